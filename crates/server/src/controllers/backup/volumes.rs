//! Operations on snapshots: the clients that ask plugins about them, and the VolumePluginBackups that show them.
//!
//! Every snapshot of every plugin has a VolumePluginBackup. A plugin that can reach the API server creates its own,
//! which is then an observation like any other; for all others the server creates it, and stops writing it for good if
//! another writer changes it.
//!
//! | file | contents |
//! |---|---|
//! | `resources` | the VolumePluginBackups of a backup: created, adopted, written, ended |
//! | `report` | interpretation of those that a plugin writes; pure |

mod report;
mod resources;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_engine::backup::csi;
use bowline_engine::operation::{Operation, OperationClient};
use bowline_engine::snapshotter::{OpenError, Snapshotter, Snapshotters as _};
use bowline_plugin::{BackupItemAction, Code, Error, Progress, Result, SnapshotId};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use self::report::combine_progress;
pub(super) use self::resources::SnapshotResources;
use crate::controllers::operations::ActionClients;
use crate::server::Context;

/// Clients for all operations of a backup: item actions for those on items, snapshotters for those on snapshots.
pub(super) struct BackupOperationClients<'a> {
    actions: ActionClients<dyn BackupItemAction, Backup>,
    csi: csi::ReadinessWatch,
    context: &'a Context,
    resources: &'a SnapshotResources<'a>,
    /// Snapshotters that were needed so far, by location.
    snapshotters: Mutex<HashMap<String, Arc<OnceCell<Snapshotter>>>>,
}

impl<'a> BackupOperationClients<'a> {
    pub(super) fn new(
        actions: ActionClients<dyn BackupItemAction, Backup>,
        csi: csi::ReadinessWatch,
        context: &'a Context,
        resources: &'a SnapshotResources<'a>,
    ) -> Self {
        Self { actions, csi, context, resources, snapshotters: Mutex::default() }
    }

    async fn snapshotter(&self, operation: &Operation) -> Result<(Snapshotter, SnapshotId)> {
        let location = operation.volume.as_ref().map(|volume| volume.location.as_str());
        let location = location.unwrap_or_default();
        let id = SnapshotId::new(operation.id.as_str());
        let id = id.ok_or_else(|| Error::new(Code::InvalidArgument, "the snapshot has no id"))?;
        // Each has its own cell: one that is slow to open delays no other.
        let cell = {
            let mut opened = self.snapshotters.lock();
            Arc::clone(opened.entry(location.to_owned()).or_default())
        };
        let open = async || {
            self.context.snapshotters.open(location).await.map_err(|error| open_error(&error))
        };
        let snapshotter = cell.get_or_try_init(open).await?.clone();
        Ok((snapshotter, id))
    }

    /// Answer of the plugin about the progress of a snapshot.
    async fn plugin_progress(&self, operation: &Operation) -> Result<Progress> {
        let (snapshotter, id) = self.snapshotter(operation).await?;
        snapshotter.calls.progress(&id).await
    }
}

/// Error of an operation whose location cannot be opened. If that is temporary, as when its Secret is being replaced,
/// it is retried for as long as a plugin may be unavailable; if the location was deleted, it is not.
fn open_error(error: &OpenError) -> Error {
    let code = if error.is_retryable { Code::Unavailable } else { Code::NotFound };
    Error::new(code, error.to_string())
}

#[async_trait]
impl OperationClient for BackupOperationClients<'_> {
    async fn progress(&self, operation: &Operation) -> Result<Progress> {
        if csi::is_csi_operation(operation) {
            return self.csi.progress(operation).await;
        }
        if !operation.kind.is_of_volume() {
            return self.actions.progress(operation).await;
        }
        let report = self.resources.plugin_report(operation).await;
        combine_progress(operation, self.plugin_progress(operation).await, report)
    }

    async fn cancel(&self, operation: &Operation) -> Result<()> {
        if csi::is_csi_operation(operation) {
            return self.csi.cancel(operation);
        }
        if !operation.kind.is_of_volume() {
            return self.actions.cancel(operation).await;
        }
        let (snapshotter, id) = self.snapshotter(operation).await?;
        snapshotter.calls.cancel(&id).await
    }

    async fn upload(&self, operation: &Operation) -> Result<()> {
        let (snapshotter, id) = self.snapshotter(operation).await?;
        snapshotter.calls.upload_snapshot(&id).await
    }
}

#[cfg(test)]
mod tests {
    use bowline_plugin::Class;

    use super::*;

    #[test]
    fn location_open_error_is_retryable() {
        for (is_retryable, class) in [(true, Class::Transient), (false, Class::Permanent)] {
            let error = OpenError {
                location: "disks".to_owned(),
                reason: "the Secret cloud does not exist".to_owned(),
                is_retryable,
            };
            let error = open_error(&error);
            assert_eq!(error.class(), class, "{error}");
            assert!(error.to_string().contains("the Secret cloud does not exist"), "{error}");
        }
    }
}
