//! What backups and restores look up in the same way.
//!
//! What the API server does not say at the moment is not a fact: it is an error, and asked for
//! again. What it refuses to say is a fact.

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

/// Why a location cannot be opened.
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
    /// Whether it may be otherwise the next time, though nobody changed anything.
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

/// The bucket that a location names, in words that tell it from others.
pub(super) fn bucket_identity(location: &BackupStorageLocation) -> String {
    let spec = &location.spec;
    let (bucket, prefix) = match &spec.object_storage {
        Some(storage) => (storage.bucket.trim_matches('/'), storage.prefix.trim_matches('/')),
        None => ("", ""),
    };
    // Buckets of one name may be at different servers or accounts.
    let at = ["s3Url", "storageAccount"].map(|key| spec.config.get(key).map(String::as_str));
    let at: String = at.into_iter().flatten().collect();
    let provider = spec.provider.trim_start_matches("velero.io/");
    format!("{provider}:{}/{bucket}/{prefix}", at.trim_end_matches('/'))
}

/// The bucket that a location of this name names now, if that can be learnt.
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

/// What came of asking for an object.
pub(super) fn lookup<T>(found: kube::Result<Option<T>>) -> kube::Result<Lookup<T>> {
    Ok(match split_refusal(found)? {
        Ok(Some(found)) => Lookup::Found(found),
        Ok(None) => Lookup::Missing,
        Err(refusal) => Lookup::Failed(refusal),
    })
}

/// What the API server says, or why it will not. What may pass is an error.
pub(super) fn split_refusal<T>(answer: kube::Result<T>) -> kube::Result<Result<T, String>> {
    match answer {
        Ok(found) => Ok(Ok(found)),
        Err(error) if patch::is_permanent(&error) => Ok(Err(status_message(&error))),
        Err(error) => Err(error),
    }
}

/// The data of a ConfigMap, if one is named.
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

/// Takes a location for available, whatever was last noted of it. Whether a run that goes on can reach
/// it shows when it is opened, and that is tried again.
pub(super) fn presume_available(location: &mut Lookup<BackupStorageLocation>) {
    if let Lookup::Found(location) = location {
        location.status.get_or_insert_default().phase = Some(LocationPhase::Available);
    }
}

/// Checks a location once more that was found unusable: somebody may have mended it since, and a run should not
/// be refused for what was true a minute ago. What is found is written to its status.
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
    tracing::info!(location = name, "the storage location can be used again");
    let status = available_status(&name, Timestamp::now());
    let api: Api<BackupStorageLocation> = context.api();
    if let Err(error) = patch::patch_status(&api, &name, None, status).await {
        tracing::warn!(
            location = name,
            "cannot note that it can be used: {}",
            status_message(&error)
        );
    }
    presume_available(location);
}
