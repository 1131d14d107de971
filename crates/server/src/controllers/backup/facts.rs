//! Lookups before a backup starts.

use std::collections::BTreeMap;

use bowline_api::{Backup, BackupStorageLocation, VolumeSnapshotLocation};
use bowline_engine::backup::filter::namespaces;
use bowline_engine::backup::request::{ClusterVersion, Defaults, Facts, ListRefused, Lookup};
use bowline_store::BackupStore;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use crate::controllers::backup_queue::scope_of;
use crate::controllers::lookup::{OpenError, config_map, lookup, open, split_refusal};
use crate::error_text::status_message;
use crate::queue::NamespaceScope;
use crate::server::Context;

/// Facts that the server knows before a backup starts.
pub(super) struct BackupFacts {
    pub(super) facts: Facts,
    pub(super) defaults: Defaults,
}

impl BackupFacts {
    /// Opens the store of the backup's location.
    pub(super) async fn open(&self, context: &Context) -> Result<BackupStore, OpenError> {
        open(context, &self.facts.storage_location).await
    }

    /// True if the backup's location has not been checked yet.
    pub(super) fn awaits_first_check(&self) -> bool {
        awaits_first_check(&self.facts.storage_location)
    }

    /// Namespaces of a backup.
    pub(super) fn scope_of(&self, backup: &Backup) -> NamespaceScope {
        self.facts.namespaces.as_ref().map_or(NamespaceScope::All, |live| scope_of(backup, live))
    }
}

fn awaits_first_check(location: &Lookup<BackupStorageLocation>) -> bool {
    let Lookup::Found(location) = location else { return false };
    location.status.as_ref().is_none_or(|status| status.phase.is_none())
}

/// Looks up all facts. A refusal of the API server is one of them, since it may make the backup invalid; a temporary
/// failure is an error.
pub(super) async fn gather_facts(context: &Context, backup: &Backup) -> kube::Result<BackupFacts> {
    let location = location(context, backup).await?;
    let policy = backup.spec.resource_policy.as_ref().map(|policy| policy.name.as_str());
    let facts = Facts {
        storage_location: location.found,
        default_storage_location: location.default,
        storage_locations: fact(list_all(&context.api::<BackupStorageLocation>()).await)?,
        snapshot_locations: fact(list_all(&context.api::<VolumeSnapshotLocation>()).await)?,
        namespaces: fact(live_namespaces(context).await)?,
        policy: config_map(context, policy).await?,
    };
    Ok(BackupFacts { facts, defaults: defaults(context).await })
}

/// Answer of the API server as a fact for the engine. A refusal is one as well.
fn fact<T>(answer: kube::Result<T>) -> kube::Result<Result<T, ListRefused>> {
    Ok(split_refusal(answer)?.map_err(|refusal| refusal.to_string().into()))
}

pub(super) struct BackupLocation {
    pub(super) found: Lookup<BackupStorageLocation>,
    /// Name of the location that is marked as the default. Not looked up if the backup names one.
    default: Option<String>,
}

pub(super) async fn location(context: &Context, backup: &Backup) -> kube::Result<BackupLocation> {
    let locations: Api<BackupStorageLocation> = context.api();
    let own = backup.spec.storage_location.as_str();
    if !own.is_empty() {
        let found = lookup(locations.get_opt(own).await)?;
        return Ok(BackupLocation { found, default: None });
    }
    let listed = match split_refusal(list_all(&locations).await)? {
        Ok(listed) => listed,
        // The default is not known, so there is none.
        Err(refusal) => {
            let found = Lookup::Failed(refusal.to_string());
            return Ok(BackupLocation { found, default: None });
        }
    };
    let name = &context.options.default_backup_storage_location;
    let marked = listed.iter().find(|location| location.spec.default);
    let default = marked.map(kube::ResourceExt::name_any);
    let wanted = default.as_ref().unwrap_or(name);
    let found = listed.iter().find(|location| location.name_any() == *wanted);
    Ok(BackupLocation { found: found.cloned().map_or(Lookup::Missing, Lookup::Found), default })
}

async fn list_all<K>(api: &Api<K>) -> kube::Result<Vec<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    Ok(api.list(&ListParams::default()).await?.items)
}

pub(in crate::controllers) async fn live_namespaces(
    context: &Context,
) -> kube::Result<Vec<namespaces::Namespace>> {
    let api: Api<Namespace> = Api::all(context.client.clone());
    let live = |namespace: Namespace| {
        let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
        namespaces::Namespace {
            name: namespace.name_any(),
            is_active: phase == Some("Active"),
            labels: namespace.metadata.labels.unwrap_or_default(),
        }
    };
    Ok(api.list(&ListParams::default()).await?.items.into_iter().map(live).collect())
}

/// Settings of the server, and the version of its cluster, which is only for information.
async fn defaults(context: &Context) -> Defaults {
    let options = &context.options;
    let version = context.client.apiserver_version().await.map_or_else(
        |error| {
            tracing::warn!(
                "cannot determine the version of the cluster: {}",
                status_message(&error)
            );
            ClusterVersion::default()
        },
        |info| ClusterVersion {
            git_version: info.git_version,
            major: info.major,
            minor: info.minor,
        },
    );
    let snapshot_locations: BTreeMap<String, String> =
        options.default_volume_snapshot_locations.clone();
    Defaults {
        ttl: options.default_backup_ttl.into(),
        storage_location: options.default_backup_storage_location.clone(),
        item_operation_timeout: options.default_item_operation_timeout.into(),
        resource_timeout: options.resource_timeout.into(),
        volumes_to_fs_backup: options.default_volumes_to_fs_backup,
        snapshot_move_data: options.default_snapshot_move_data,
        volume_group_label_key: options.volume_group_snapshot_label_key.clone(),
        snapshot_locations,
        snapshot_type: options.default_snapshot_type,
        cluster_version: version,
        ..Defaults::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(status: &Value) -> Lookup<BackupStorageLocation> {
        let spec = json!({"provider": "aws", "objectStorage": {"bucket": "b"}});
        let location = json!({"metadata": {"name": "main"}, "spec": spec, "status": status});
        Lookup::Found(serde_json::from_value(location).unwrap())
    }

    #[test]
    fn backup_waits_only_for_the_first_location_check() {
        for (location, expected) in [
            (found(&Value::Null), true),
            (found(&json!({})), true),
            (found(&json!({"phase": "Available"})), false),
            (found(&json!({"phase": "Unavailable"})), false),
            (Lookup::Missing, false),
            (Lookup::Failed("forbidden".to_owned()), false),
        ] {
            assert_eq!(awaits_first_check(&location), expected, "{location:?}");
        }
    }
}
