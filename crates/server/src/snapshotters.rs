//! From a VolumeSnapshotLocation to its plugin.
//!
//! The plugin receives the location's settings and the path of a private file with the credentials
//! that the location names. Its calls have timeouts.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::annotation;
use bowline_api::snapshot_type::{InvalidSnapshotType, SnapshotType};
use bowline_api::{VolumeSnapshotLocation, VolumeSnapshotLocationSpec};
use bowline_engine::snapshotter::{OpenError, Snapshotter, Snapshotters};
use bowline_plugin::{
    Class, Config, Item, Kind, Progress, Result, SnapshotId, VolumeId, VolumeInfo,
    VolumeSnapshotter,
};
use bowline_plugin_host::Host;
use kube::{Api, Client, ResourceExt as _};

use crate::controllers::{PluginCalls, TimedPlugin};
use crate::error_text::status_message;
use crate::locations::Locations;
use crate::metrics::Method;
use crate::server::Context;
use crate::{locations, patch, unlisted_plugins};

/// Opens the snapshotters of locations.
pub struct SnapshotterOpener {
    client: Client,
    namespace: String,
    locations: Arc<Locations>,
    host: Arc<Host>,
    calls: Arc<PluginCalls>,
}

impl SnapshotterOpener {
    /// Opener for the locations of a namespace.
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        locations: Arc<Locations>,
        host: Arc<Host>,
        calls: Arc<PluginCalls>,
    ) -> Self {
        Self { client, namespace: namespace.to_owned(), locations, host, calls }
    }
}

#[async_trait]
impl Snapshotters for Context {
    async fn open(&self, location: &str) -> std::result::Result<Snapshotter, OpenError> {
        self.snapshotters.open(location).await
    }
}

#[async_trait]
impl Snapshotters for SnapshotterOpener {
    async fn open(&self, location: &str) -> std::result::Result<Snapshotter, OpenError> {
        let failed = |reason: String, is_retryable| OpenError {
            location: location.to_owned(),
            reason,
            is_retryable,
        };
        let locations: Api<VolumeSnapshotLocation> =
            Api::namespaced(self.client.clone(), &self.namespace);
        let found = locations.get_opt(location).await;
        let found =
            found.map_err(|error| failed(status_message(&error), !patch::is_permanent(&error)))?;
        let found = found.ok_or_else(|| failed("not found".to_owned(), false))?;
        let VolumeSnapshotLocationSpec { provider, .. } = &found.spec;
        let snapshot_type = snapshot_type_of(&found);
        let snapshot_type = snapshot_type.map_err(|error| failed(status_message(&error), false))?;
        let config = self.locations.snapshotter_config(&found).await;
        let config = config.map_err(|error| failed(status_message(&error), may_recover(&error)))?;
        let refused = |error: bowline_plugin::Error| {
            let is_retryable = matches!(error.class(), Class::Transient | Class::Unclear);
            failed(error.to_string(), is_retryable)
        };
        let kind = self.host.volume_snapshotter_kind(provider);
        let found = self.host.volume_snapshotter(provider, config.clone()).await;
        let (Some(found), Some((kind, plugin))) = (found.map_err(refused)?, kind) else {
            let detail = format!("no plugin for volume snapshots by {provider} is installed");
            let error =
                unlisted_plugins::missing_plugin_error(self.host.registry().unlisted(), &detail);
            return Err(failed(error.message().to_owned(), error.class() == Class::Transient));
        };
        let (name, calls) = (plugin.clone(), Arc::clone(&self.calls));
        let calls = Arc::new(TimedPlugin { plugin: found, name, calls });
        calls.init(&config).await.map_err(refused)?;
        Ok(Snapshotter {
            location: location.to_owned(),
            plugin,
            is_v2: kind == Kind::VolumeSnapshotterV2,
            snapshot_type,
            calls,
        })
    }
}

/// True if the settings of a location may be available later. A Secret that is being replaced is
/// missing for a moment, or lacks its key; a snapshot that was taken with it must not be given up
/// for that.
fn may_recover(error: &locations::Error) -> bool {
    use locations::Error::{NoKey, NoSecret};
    error.is_retryable() || matches!(error, NoSecret(_) | NoKey { .. })
}

/// Reason why the snapshot type of a location is not known.
#[derive(Debug, thiserror::Error)]
#[error("invalid annotation {}", annotation::SNAPSHOT_TYPE)]
struct InvalidAnnotation(#[source] InvalidSnapshotType);

/// Snapshot type of a location, if it specifies one.
fn snapshot_type_of(
    location: &VolumeSnapshotLocation,
) -> std::result::Result<Option<SnapshotType>, InvalidAnnotation> {
    let annotation = location.annotations().get(annotation::SNAPSHOT_TYPE);
    let parsed = annotation.map(|text| text.parse::<SnapshotType>()).transpose();
    parsed.map_err(InvalidAnnotation)
}

#[async_trait]
impl VolumeSnapshotter for TimedPlugin<dyn VolumeSnapshotter> {
    async fn init(&self, config: &Config) -> Result<()> {
        self.timed_call(Method::Init, self.plugin.init(config)).await
    }

    async fn get_volume_id(&self, persistent_volume: &Item) -> Result<Option<VolumeId>> {
        self.timed_call(Method::GetVolumeID, self.plugin.get_volume_id(persistent_volume)).await
    }

    async fn set_volume_id(&self, persistent_volume: &Item, volume: &VolumeId) -> Result<Item> {
        self.timed_call(Method::SetVolumeID, self.plugin.set_volume_id(persistent_volume, volume))
            .await
    }

    async fn get_volume_info(&self, volume: &VolumeId, zone: &str) -> Result<VolumeInfo> {
        self.timed_call(Method::GetVolumeInfo, self.plugin.get_volume_info(volume, zone)).await
    }

    async fn create_snapshot(
        &self,
        volume: &VolumeId,
        zone: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        self.timed_call(Method::CreateSnapshot, self.plugin.create_snapshot(volume, zone, tags))
            .await
    }

    async fn create_volume_from_snapshot(
        &self,
        snapshot: &SnapshotId,
        info: &VolumeInfo,
        zone: &str,
    ) -> Result<VolumeId> {
        let call = self.plugin.create_volume_from_snapshot(snapshot, info, zone);
        self.timed_call(Method::CreateVolumeFromSnapshot, call).await
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        self.timed_call(Method::DeleteSnapshot, self.plugin.delete_snapshot(snapshot)).await
    }

    async fn progress(&self, snapshot: &SnapshotId) -> Result<Progress> {
        self.timed_call(Method::Progress, self.plugin.progress(snapshot)).await
    }

    async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
        self.timed_call(Method::Cancel, self.plugin.cancel(snapshot)).await
    }

    async fn upload_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        self.timed_call(Method::UploadSnapshot, self.plugin.upload_snapshot(snapshot)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_secret_is_retryable() {
        let no_key = locations::Error::NoKey { name: "cloud".to_owned(), key: "k".to_owned() };
        for (error, expected) in [
            (locations::Error::NoSecret("cloud".to_owned()), true),
            (no_key, true),
            (locations::Error::TooSlow, true),
            (locations::Error::TwoCertificates, false),
        ] {
            assert_eq!(may_recover(&error), expected, "{error}");
        }
    }
}
