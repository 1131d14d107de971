//! Applies properties of the original volumes to the new ones.
//!
//! A volume that was provisioned from a CSI snapshot has the labels and the reclaim policy of its storage class. Those
//! of the backup are written to it once it exists. Volumes that are provisioned when a pod first uses them, and do not
//! exist yet, are left alone, as in Velero.
//!
//! This module also removes the stubs for snapshot groups when the contents do not need them any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Restore, label};
use bowline_plugin::{InvalidItem, ResourceIdentifier, error_chain};
use bowline_store::file::{
    BackupVolumeInfo, Method, PersistentVolumeInfo, ResourceList, RestoreVolumeInfo,
};
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::action::CSI_PVC_ACTION;
use super::super::action::csi::{CONTENTS, GROUP_CONTENTS, GROUP_GROUP, kind};
use crate::cluster::watch::{WaitOutcome, WatchedObjects, wait_until};
use crate::cluster::{Cluster, Error, Query, Subresource};
use crate::json::text;
use crate::operation::{Operation, State};
use crate::report::{Report, ReportSubject};
use crate::resource::{GroupResource, Resource, Resources};

/// Maximum number of volumes processed concurrently.
const MAX_CONCURRENT_VOLUMES: usize = 16;

/// A restore whose operations have ended.
pub struct VolumeFinalizer<'a> {
    /// The target cluster.
    pub cluster: &'a dyn Cluster,
    /// The Restore.
    pub restore: &'a Restore,
    /// Volume information of the backup.
    pub saved: &'a [BackupVolumeInfo],
    /// Result of each item.
    pub items: &'a ResourceList,
    /// The operations.
    pub operations: &'a [Operation],
    /// Maximum wait for a volume or a content.
    pub limit: Duration,
}

/// Why a volume or a content is not as it should be.
#[derive(Debug, thiserror::Error)]
enum UpdateError {
    #[error("the API server does not serve {0}")]
    NotServed(&'static str),
    #[error(transparent)]
    Cluster(#[from] Error),
    #[error(transparent)]
    Object(#[from] InvalidItem),
    #[error("the claim has no volume after {} s", .0.as_secs())]
    NoVolume(Duration),
    #[error("volume {volume} is not bound after {} s", limit.as_secs())]
    NotBound { volume: String, limit: Duration },
    #[error("volume {volume} is bound to another claim, {namespace}/{name}")]
    OtherClaim { volume: String, namespace: String, name: String },
    #[error("the settings of volume {volume} cannot be restored")]
    Patch { volume: String, source: Error },
    #[error("the VolumeSnapshotContents of the group are not ready after {} s", .0.as_secs())]
    NotReady(Duration),
}

/// True if a backup has volumes that need finalization.
pub fn has_csi_volumes(saved: &[BackupVolumeInfo]) -> bool {
    saved.iter().any(is_csi_snapshot)
}

fn is_csi_snapshot(info: &BackupVolumeInfo) -> bool {
    info.backup_method == Some(Method::CsiSnapshot) && !info.skipped
}

/// A volume to update.
#[derive(Clone, Debug, PartialEq)]
struct VolumeUpdate<'a> {
    /// The claim in the backup.
    id: ResourceIdentifier,
    /// The namespace of the claim in the cluster.
    namespace: &'a str,
    name: &'a str,
    info: &'a PersistentVolumeInfo,
}

impl VolumeFinalizer<'_> {
    /// Updates the volumes. Reports failures, and records the names of volumes that exist by now.
    pub async fn run(&self, volumes: &mut [RestoreVolumeInfo]) -> Result<Report, Error> {
        let served = self.cluster.discover().await?.resources.into_iter();
        let resources = Resources::new(served.filter(|served| !served.id.resource.contains('/')));
        let report = Report::default();
        let (updates, report_ref, resources_ref) = (self.volume_updates(), &report, &resources);
        let work = updates.iter().map(|update| async move {
            if let Err(error) = self.update_volume(resources_ref, update).await {
                report_ref.error(&update.id, error_chain(&error));
            }
        });
        // Collected, since a closure over borrowed values must not live across an await point.
        let work: Vec<_> = work.collect();
        stream::iter(work).buffer_unordered(MAX_CONCURRENT_VOLUMES).collect::<()>().await;
        let is_group = |info: &BackupVolumeInfo| {
            let csi = info.csi_snapshot_info.as_ref();
            csi.is_some_and(|csi| !csi.volume_group_snapshot_handle.is_empty())
        };
        if self.saved.iter().any(is_group) {
            self.remove_stubs(&resources, &report).await;
        }
        self.record_volume_names(&resources, volumes).await;
        Ok(report)
    }

    /// The volumes of claims that this restore created from CSI snapshots.
    fn volume_updates(&self) -> Vec<VolumeUpdate<'_>> {
        let created = self.items.0.get("v1/PersistentVolumeClaim");
        let created: BTreeSet<&str> =
            created.into_iter().flatten().filter_map(|one| one.strip_suffix("(created)")).collect();
        let mapping = &self.restore.spec.namespace_mapping;
        let is_operation_complete = |id: &ResourceIdentifier| {
            let mut of_claim = self
                .operations
                .iter()
                .filter(|one| one.item == *id && one.plugin.as_str() == CSI_PVC_ACTION);
            of_claim.all(|one| one.state == State::Completed)
        };
        let mut all = Vec::new();
        for saved in self.saved.iter().filter(|saved| is_csi_snapshot(saved)) {
            let BackupVolumeInfo { pvc_namespace, pvc_name: name, .. } = saved;
            let id = ResourceIdentifier {
                group: String::new(),
                resource: "persistentvolumeclaims".to_owned(),
                namespace: pvc_namespace.clone(),
                name: name.clone(),
            };
            let namespace = mapping.get(pvc_namespace).unwrap_or(pvc_namespace);
            let is_created = created.contains(format!("{namespace}/{name}").as_str());
            if let Some(info) = &saved.pv_info
                && is_created
                && is_operation_complete(&id)
            {
                all.push(VolumeUpdate { id, namespace, name, info });
            }
        }
        all
    }

    /// Updates a volume, if it exists or will exist.
    async fn update_volume(
        &self,
        resources: &Resources,
        update: &VolumeUpdate<'_>,
    ) -> Result<(), UpdateError> {
        let VolumeUpdate { namespace, name, info, .. } = update;
        let claims = core(resources, "persistentvolumeclaims")?;
        let volumes = core(resources, "persistentvolumes")?;
        let deadline = Instant::now() + self.limit;
        let Some(claim) = self.get(claims, namespace, name).await? else { return Ok(()) };
        let volume = match bound_volume(&claim) {
            Some(volume) => volume.to_owned(),
            None if self.waits_for_consumer(resources, &claim).await? => {
                let text = "the volume is created when a pod first uses the claim, and its labels \
                            and reclaim policy are not restored";
                tracing::info!(item = %update.id, "{text}");
                return Ok(());
            }
            None => {
                let query = named(Some(namespace), name);
                let claim_volume = |claim: &Value| bound_volume(claim).map(str::to_owned);
                let timed_out = UpdateError::NoVolume(self.limit);
                self.wait(claims, query, deadline, claim_volume).await?.ok_or(timed_out)?
            }
        };
        let is_bound =
            |volume: &Value| (text(volume, "/status/phase") == "Bound").then(|| volume.clone());
        let found = self.get(volumes, "", &volume).await?.as_ref().and_then(is_bound);
        let found = if let Some(found) = found {
            found
        } else {
            let timed_out = || UpdateError::NotBound { volume: volume.clone(), limit: self.limit };
            let query = named(None, &volume);
            self.wait(volumes, query, deadline, is_bound).await?.ok_or_else(timed_out)?
        };
        let owner = |field: &str| text(&found, &format!("/spec/claimRef/{field}")).to_owned();
        if (owner("namespace").as_str(), owner("name").as_str()) != (*namespace, *name) {
            let (namespace, name) = (owner("namespace"), owner("name"));
            return Err(UpdateError::OtherClaim { volume, namespace, name });
        }
        let Some(patch) = volume_patch(&found, info) else { return Ok(()) };
        let patched = self.cluster.patch(volumes, "", &volume, Subresource::None, &patch).await;
        patched.map(drop).map_err(|source| UpdateError::Patch { volume, source })
    }

    async fn get(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, UpdateError> {
        let found = self.cluster.get(resource, namespace, name).await?;
        Ok(found.map(|found| found.item.parse()).transpose()?)
    }

    /// Waits for an object. `None` after the timeout.
    async fn wait<T>(
        &self,
        resource: &Arc<Resource>,
        query: Query,
        deadline: Instant,
        condition: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, UpdateError> {
        let condition = |objects: &WatchedObjects| objects.iter().find_map(&condition);
        match wait_until(self.cluster, resource, query, deadline, condition).await? {
            WaitOutcome::Found(found) => Ok(Some(found)),
            WaitOutcome::TimedOut => Ok(None),
        }
    }

    async fn waits_for_consumer(
        &self,
        resources: &Resources,
        claim: &Value,
    ) -> Result<bool, UpdateError> {
        let classes = resources.find(&GroupResource::new("storage.k8s.io", "storageclasses"));
        let name = text(claim, "/spec/storageClassName");
        let class = match classes {
            Some(classes) if !name.is_empty() => self.get(classes, "", name).await?,
            _ => None,
        };
        let mode = class.as_ref().map(|class| text(class, "/volumeBindingMode"));
        Ok(mode == Some("WaitForFirstConsumer"))
    }

    /// Removes the stubs for groups once the contents that needed them are ready.
    async fn remove_stubs(&self, resources: &Resources, report: &Report) {
        let Some(stubs) = resources.find(&GroupResource::new(GROUP_GROUP, GROUP_CONTENTS)) else {
            return;
        };
        let restore = self.restore.metadata.name.as_deref().unwrap_or_default();
        let label_selector = format!("{}={}", label::RESTORE_NAME, label::value(restore));
        let query = Query { label_selector, ..Query::default() };
        let mut list = self.cluster.list(stubs, query.clone());
        let deadline = Instant::now() + self.limit;
        while let Some(stub) = list.next().await {
            let stub = match stub {
                Ok(stub) => stub,
                Err(error) => {
                    let text = "the stubs of snapshot groups cannot be found";
                    report.warn(ReportSubject::Run, format!("{text}: {}", error_chain(&error)));
                    return;
                }
            };
            let value: Value = stub.item.parse().unwrap_or_default();
            if let Some(contents) = resources.find(&kind(CONTENTS)) {
                let waited =
                    self.wait_until_ready(contents, &query, &handles(&value), deadline).await;
                if let Err(error) = waited {
                    let text = "the temporary VolumeGroupSnapshotContent is removed anyway";
                    report.warn(&stub.id(), format!("{text}: {}", error_chain(&error)));
                }
            }
            match self.cluster.delete(stubs, "", &stub.name, None).await {
                Err(error) if !error.is_not_found() => {
                    let text = "cannot remove the temporary VolumeGroupSnapshotContent";
                    report.warn(&stub.id(), format!("{text}: {}", error_chain(&error)));
                }
                _ => {}
            }
        }
    }

    /// Waits until the contents of these snapshots are ready.
    async fn wait_until_ready(
        &self,
        contents: &Arc<Resource>,
        query: &Query,
        handles: &BTreeSet<String>,
        deadline: Instant,
    ) -> Result<(), UpdateError> {
        let mut list = self.cluster.list(contents, query.clone());
        let mut names = BTreeSet::new();
        while let Some(content) = list.next().await {
            let content = content?;
            let value: Value = content.item.parse()?;
            if handles.contains(text(&value, "/spec/source/snapshotHandle")) {
                names.insert(content.name);
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        let all_ready = |objects: &WatchedObjects| {
            let is_ready = |name: &String| {
                let content = objects.get("", name);
                let ready = content.and_then(|content| content.pointer("/status/readyToUse"));
                ready.and_then(Value::as_bool) == Some(true)
            };
            names.iter().all(is_ready).then_some(())
        };
        match wait_until(self.cluster, contents, query.clone(), deadline, all_ready).await? {
            WaitOutcome::Found(()) => Ok(()),
            WaitOutcome::TimedOut => Err(UpdateError::NotReady(self.limit)),
        }
    }

    /// Records the names of the volumes that claims from CSI snapshots have by now.
    async fn record_volume_names(&self, resources: &Resources, volumes: &mut [RestoreVolumeInfo]) {
        let Ok(claims) = core(resources, "persistentvolumeclaims") else { return };
        let unnamed = volumes.iter_mut().filter(|volume| {
            volume.restore_method == Some(Method::CsiSnapshot) && volume.pv_name.is_empty()
        });
        let work = unnamed.map(|volume| async {
            let claim = self.get(claims, &volume.pvc_namespace, &volume.pvc_name).await;
            if let Ok(Some(claim)) = claim
                && let Some(name) = bound_volume(&claim)
            {
                name.clone_into(&mut volume.pv_name);
            }
        });
        let work: Vec<_> = work.collect();
        stream::iter(work).buffer_unordered(MAX_CONCURRENT_VOLUMES).collect::<()>().await;
    }
}

fn core<'a>(
    resources: &'a Resources,
    name: &'static str,
) -> Result<&'a Arc<Resource>, UpdateError> {
    resources.core(name).ok_or(UpdateError::NotServed(name))
}

fn named(namespace: Option<&str>, name: &str) -> Query {
    Query {
        namespace: namespace.map(str::to_owned),
        field_selector: format!("metadata.name={name}"),
        ..Query::default()
    }
}

/// The volume that a claim is bound to.
fn bound_volume(claim: &Value) -> Option<&str> {
    let volume = text(claim, "/spec/volumeName");
    (text(claim, "/status/phase") == "Bound" && !volume.is_empty()).then_some(volume)
}

/// Patch with the properties that a volume lacks. Additional labels stay: they describe its current location.
fn volume_patch(volume: &Value, info: &PersistentVolumeInfo) -> Option<Value> {
    let labels = volume.pointer("/metadata/labels");
    let is_missing = |(key, value): &(&String, &String)| {
        labels.and_then(|labels| labels.get(*key)?.as_str()) != Some(value.as_str())
    };
    let missing: serde_json::Map<String, Value> = info
        .labels
        .iter()
        .filter(is_missing)
        .map(|(key, value)| (key.clone(), value.as_str().into()))
        .collect();
    let mut patch = json!({});
    if !missing.is_empty() {
        patch["metadata"] = json!({ "labels": missing });
    }
    let policy = &info.reclaim_policy;
    if !policy.is_empty() && text(volume, "/spec/persistentVolumeReclaimPolicy") != policy {
        patch["spec"] = json!({ "persistentVolumeReclaimPolicy": policy });
    }
    patch.as_object().is_some_and(|patch| !patch.is_empty()).then_some(patch)
}

/// The snapshots that a stub covers.
fn handles(stub: &Value) -> BTreeSet<String> {
    let handles = stub.pointer("/spec/source/groupSnapshotHandles/volumeSnapshotHandles");
    let handles = handles.and_then(Value::as_array).into_iter().flatten();
    handles.filter_map(|handle| Some(handle.as_str()?.to_owned())).collect()
}

#[cfg(test)]
mod tests;
