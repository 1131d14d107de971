//! Lookups shared by backups and restores.
//!
//! A temporary failure of the API server is not a fact: it is an error, and retried. A refusal is a fact.

use std::collections::BTreeMap;

use bowline_api::BackupStorageLocation;
use bowline_api::location::LocationPhase;
use bowline_engine::backup::request::Lookup;
use bowline_store::BackupStore;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _};

use super::backup_storage_location::available_status;
use crate::error_text::status_message;
use crate::server::Context;
use crate::{locations, patch};

/// Reason why a location cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("the storage location does not exist")]
    Missing,
    #[error("cannot read the storage location: {0}")]
    ReadLocation(String),
    #[error(transparent)]
    Open(#[from] locations::Error),
}

impl OpenError {
    /// True if a retry may succeed without any change by a user.
    pub(super) fn is_retryable(&self) -> bool {
        matches!(self, Self::Open(error) if error.is_retryable())
    }
}

/// Opens the store of a location that was looked up.
pub(super) async fn open(
    context: &Context,
    location: &Lookup<BackupStorageLocation>,
) -> Result<BackupStore, OpenError> {
    match location {
        Lookup::Found(location) => Ok(context.locations.open(location).await?),
        Lookup::Missing => Err(OpenError::Missing),
        Lookup::Failed(error) => Err(OpenError::ReadLocation(error.clone())),
    }
}

/// Identity of the bucket that a location names, distinct from that of other buckets.
pub(super) fn bucket_identity(location: &BackupStorageLocation) -> String {
    let spec = &location.spec;
    let (bucket, prefix) = match &spec.object_storage {
        Some(storage) => (storage.bucket.trim_matches('/'), storage.prefix.trim_matches('/')),
        None => ("", ""),
    };
    // Buckets of the same name may be on different servers or accounts.
    let at = ["s3Url", "storageAccount"].map(|key| spec.config.get(key).map(String::as_str));
    let at: String = at.into_iter().flatten().collect();
    let provider = spec.provider.trim_start_matches("velero.io/");
    format!("{provider}:{}/{bucket}/{prefix}", at.trim_end_matches('/'))
}

/// Identity of the bucket that the location of this name refers to now, if it can be looked up.
pub(super) async fn bucket_identity_of(context: &Context, name: &str) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    let locations: Api<BackupStorageLocation> = context.api();
    match locations.get_opt(name).await {
        Ok(found) => found.as_ref().map(bucket_identity),
        Err(error) => {
            tracing::warn!(location = name, "cannot read the location: {}", status_message(&error));
            None
        }
    }
}

/// Result of a request for an object.
pub(super) fn lookup<T>(found: kube::Result<Option<T>>) -> kube::Result<Lookup<T>> {
    Ok(match split_refusal(found)? {
        Ok(Some(found)) => Lookup::Found(found),
        Ok(None) => Lookup::Missing,
        Err(refusal) => Lookup::Failed(refusal.to_string()),
    })
}

/// Request that the API server refuses, and would refuse again.
#[derive(Debug, thiserror::Error)]
#[error("{}", status_message(.0))]
pub(super) struct RefusedRequest(kube::Error);

/// Answer of the API server, or its refusal. A temporary failure is an error.
pub(super) fn split_refusal<T>(answer: kube::Result<T>) -> kube::Result<Result<T, RefusedRequest>> {
    match answer {
        Ok(found) => Ok(Ok(found)),
        Err(error) if patch::is_permanent(&error) => Ok(Err(RefusedRequest(error))),
        Err(error) => Err(error),
    }
}

/// Data of a ConfigMap, if one is named.
pub(super) async fn config_map(
    context: &Context,
    name: Option<&str>,
) -> kube::Result<Lookup<BTreeMap<String, String>>> {
    let Some(name) = name else { return Ok(Lookup::Missing) };
    let maps: Api<ConfigMap> = context.api();
    Ok(match lookup(maps.get_opt(name).await)? {
        Lookup::Found(map) => Lookup::Found(map.data.unwrap_or_default()),
        Lookup::Missing => Lookup::Missing,
        Lookup::Failed(error) => Lookup::Failed(error),
    })
}

/// Treats a location as available, whatever its status. Opening it shows if a resumed run can reach it, and that is
/// retried.
pub(super) fn presume_available(location: &mut Lookup<BackupStorageLocation>) {
    if let Lookup::Found(location) = location {
        location.status.get_or_insert_default().phase = Some(LocationPhase::Available);
    }
}

/// Checks a location again that was found unusable: it may have been repaired since, and a run should not be refused
/// for a problem of a minute ago. The result is written to its status.
pub(super) async fn recheck_location(
    context: &Context,
    location: &mut Lookup<BackupStorageLocation>,
) {
    let Lookup::Found(found) = location else { return };
    let phase = found.status.as_ref().and_then(|status| status.phase.as_ref());
    if phase != Some(&LocationPhase::Unavailable) {
        return;
    }
    context.locations.evict(found);
    let Ok(store) = context.locations.open(found).await else { return };
    if store.validate().await.is_err() {
        return;
    }
    let name = found.name_any();
    tracing::info!(location = name, "the storage location is available again");
    let status = available_status(&name, Timestamp::now());
    let api: Api<BackupStorageLocation> = context.api();
    if let Err(error) = patch::patch_status(&api, &name, None, status).await {
        tracing::warn!(
            location = name,
            "cannot set the phase of the location to Available: {}",
            status_message(&error)
        );
    }
    presume_available(location);
}
