//! Claims that are created from snapshots of CSI drivers: followed, shown in VolumePluginRestores, and settled in the
//! end.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::{Restore, RestoreStatus};
use bowline_engine::cluster::{ApiServer, Cluster};
use bowline_engine::csi::plugin_name;
use bowline_engine::failpoint::{self, Failpoint};
use bowline_engine::operation::{Operation, OperationClient, OperationFailure, State};
use bowline_engine::resource::Resources;
use bowline_engine::restore::action::CSI_PVC_ACTION;
use bowline_engine::restore::finalize::volumes::{VolumeFinalizer, has_csi_volumes};
use bowline_engine::restore::volume::{
    ClaimTracker, ProgressReportError, VolumeCreation, VolumeCreationResult,
    VolumeProgressReporter as _,
};
use bowline_plugin::{
    Code, Error, OperationId, Progress, RestoreItemAction, Result, SnapshotId, VolumeId,
};
use bowline_store::file::{BackupVolumeInfo, Method, ResourceList, RestoreVolumeInfo, Results};
use bowline_store::{BackupName, BackupStore};
use parking_lot::Mutex;

use super::volumes::VolumePluginRestoreReporter;
use super::{RestoreRun, RunError};
use crate::controllers::bucket_wait::retry_bucket_call;
use crate::controllers::operations::ActionClients;
use crate::error_text::status_message;

/// Clients for operations: plugins for their own, and a watch for claims.
pub(super) struct RestoreOperationClients {
    actions: ActionClients<dyn RestoreItemAction, Restore>,
    claims: Option<ClaimTracker>,
}

impl RestoreOperationClients {
    /// Follows the claims, for as long as the future is polled.
    pub(super) async fn run(&self) {
        match &self.claims {
            Some(claims) => claims.run().await,
            None => std::future::pending().await,
        }
    }

    fn claims(&self) -> Result<&ClaimTracker> {
        let unknown = || Error::new(Code::Unavailable, "cannot watch the claims");
        self.claims.as_ref().ok_or_else(unknown)
    }

    /// Volume of the claim of an operation.
    fn volume(&self, operation: &OperationId) -> Option<String> {
        self.claims.as_ref()?.volume(operation)
    }
}

fn is_of_claim(operation: &Operation) -> bool {
    operation.plugin.as_str() == CSI_PVC_ACTION
}

#[async_trait]
impl OperationClient for RestoreOperationClients {
    async fn progress(&self, operation: &Operation) -> Result<Progress> {
        if is_of_claim(operation) {
            return self.claims()?.progress(&operation.id).await;
        }
        self.actions.progress(operation).await
    }

    async fn cancel(&self, operation: &Operation) -> Result<()> {
        if is_of_claim(operation) {
            return self.claims()?.cancel(&operation.id).await;
        }
        self.actions.cancel(operation).await
    }
}

impl RestoreRun<'_> {
    /// Clients for the operations of the restore.
    pub(super) async fn operation_clients(
        &self,
        operations: &[Operation],
    ) -> RestoreOperationClients {
        let unlisted = self.context.host.registry().unlisted();
        let actions = ActionClients::new(self.actions(), self.object.clone(), unlisted);
        if !operations.iter().any(is_of_claim) {
            return RestoreOperationClients { actions, claims: None };
        }
        let cluster: Arc<dyn Cluster> = Arc::new(self.cluster());
        let claims = match cluster.discover().await {
            Ok(discovery) => {
                let resources = Resources::new(discovery.resources);
                ClaimTracker::new(Arc::clone(&cluster), &resources, self.name.as_str())
            }
            Err(error) => {
                tracing::warn!("claims cannot be watched: {}", status_message(&error));
                None
            }
        };
        RestoreOperationClients { actions, claims }
    }

    fn cluster(&self) -> ApiServer {
        let context = self.context;
        ApiServer::new(context.client.clone(), context.options.client_page_size)
    }

    /// Publisher for the claims of operations.
    pub(super) async fn claim_publisher(
        &self,
        operations: &[Operation],
        store: &BackupStore,
    ) -> ClaimPublisher {
        let mut creations = HashMap::new();
        if operations.iter().any(is_of_claim) {
            let volumes = self.restored_volumes(store).await.unwrap_or_default();
            for operation in operations.iter().filter(|operation| is_of_claim(operation)) {
                if let Some(creation) = volume_creation(operation, &volumes) {
                    creations.insert(operation.id.clone(), creation);
                }
            }
        }
        let backup = self.backup_name();
        let reporter =
            backup.map(|name| VolumePluginRestoreReporter::new(self.context, &self.object, &name));
        ClaimPublisher { reporter, creations, shown: Mutex::default() }
    }

    fn backup_name(&self) -> Option<BackupName> {
        BackupName::new(&self.object.spec.backup_name).ok()
    }

    async fn restored_volumes(
        &self,
        store: &BackupStore,
    ) -> std::result::Result<Vec<RestoreVolumeInfo>, bowline_store::Error> {
        Ok(store.get_restore_file(&self.name).await?.unwrap_or_default())
    }

    /// Applies the properties of the old volumes to the new volumes of claims. None if the server stops meanwhile. A
    /// canceled restore does not wait for volumes that do not exist.
    pub(super) async fn settle_volumes(
        &self,
        store: &BackupStore,
    ) -> std::result::Result<Option<RestoreStatus>, RunError> {
        let to_run_error = RunError::of_write::<Restore>;
        let cancel = &self.resources.cancel;
        let status = self.status();
        let Some(backup) = self.backup_name() else { return Ok(Some(status)) };
        let saved: Option<Vec<BackupVolumeInfo>> =
            store.get(&backup).await.map_err(to_run_error)?;
        let saved = saved.unwrap_or_default();
        if !has_csi_volumes(&saved) {
            return Ok(Some(status));
        }
        let items: Option<ResourceList> =
            store.get_restore_file(&self.name).await.map_err(to_run_error)?;
        let operations = self.load_operations(store, None).await?.operations;
        let mut volumes = self.restored_volumes(store).await.map_err(to_run_error)?;
        let before = volumes.clone();
        let cluster = self.cluster();
        let settling = VolumeFinalizer {
            cluster: &cluster,
            restore: &self.object,
            saved: &saved,
            items: &items.unwrap_or_default(),
            operations: &operations,
            limit: self.context.options.resource_timeout,
        };
        let settled = tokio::select! {
            settled = settling.run(&mut volumes) => settled,
            () = self.context.stop.cancelled() => return Ok(None),
            () = cancel.cancelled() => return Ok(Some(status)),
        };
        let report = settled?;
        failpoint::hit(Failpoint::VolumesPatched);
        if volumes != before {
            let put = || store.put_restore_file(&self.name, &volumes);
            retry_bucket_call(cancel, put).await.map_err(to_run_error)?;
        }
        if report.error_count() == 0 && report.warning_count() == 0 {
            return Ok(Some(status));
        }
        let read = store.get_restore_file::<Results>(&self.name).await.map_err(to_run_error)?;
        let mut results = read.unwrap_or_default();
        report.add_to(&mut results);
        retry_bucket_call(cancel, || store.put_restore_file(&self.name, &results))
            .await
            .map_err(to_run_error)?;
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        Ok(Some(RestoreStatus {
            errors: status.errors.max(count(results.errors.count())),
            warnings: status.warnings.max(count(results.warnings.count())),
            ..status
        }))
    }
}

/// Shows the progress of claims, in VolumePluginRestores.
pub(super) struct ClaimPublisher {
    reporter: Option<VolumePluginRestoreReporter>,
    creations: HashMap<OperationId, VolumeCreation>,
    /// Operations whose start was shown, with true if the end was shown as well.
    shown: Mutex<HashMap<OperationId, bool>>,
}

impl ClaimPublisher {
    /// Shows changes. A failure to do so is only logged.
    pub(super) async fn publish(
        &self,
        operations: &[Operation],
        clients: &RestoreOperationClients,
    ) {
        let Some(reporter) = &self.reporter else { return };
        for operation in operations {
            let Some(creation) = self.creations.get(&operation.id) else { continue };
            let before = self.shown.lock().get(&operation.id).copied();
            if before.is_none() {
                log_unwritable(reporter.creation_started(creation).await);
                self.shown.lock().insert(operation.id.clone(), false);
            }
            let end = match &operation.state {
                _ if before == Some(true) => continue,
                State::New | State::InProgress => continue,
                State::Completed => {
                    let volume = clients.volume(&operation.id);
                    let volume = volume.unwrap_or_else(|| creation.target.clone());
                    VolumeId::new(&volume).map(VolumeCreationResult::Completed)
                }
                State::Failed(failure @ OperationFailure::Canceled(_)) => {
                    Some(VolumeCreationResult::Canceled(failure.to_string()))
                }
                State::Failed(failure) => Some(VolumeCreationResult::Failed(failure.to_string())),
            };
            let Some(end) = end else { continue };
            let target = match &end {
                VolumeCreationResult::Completed(volume) => volume.to_string(),
                _ => creation.target.clone(),
            };
            log_unwritable(
                reporter.creation_ended(&VolumeCreation { target, ..creation.clone() }, &end).await,
            );
            self.shown.lock().insert(operation.id.clone(), true);
        }
    }
}

fn log_unwritable(shown: std::result::Result<(), ProgressReportError>) {
    if let Err(error) = shown {
        tracing::warn!("a VolumePluginRestore cannot be written: {error}");
    }
}

/// Volume creation that is shown for the claim of an operation.
fn volume_creation(operation: &Operation, volumes: &[RestoreVolumeInfo]) -> Option<VolumeCreation> {
    let mut parts = operation.id.as_str().splitn(3, '/');
    let (namespace, name) = (parts.next()?, parts.next()?);
    let volume = volumes.iter().find(|volume| {
        volume.restore_method == Some(Method::CsiSnapshot)
            && volume.pvc_namespace == namespace
            && volume.pvc_name == name
    })?;
    let csi = volume.csi_snapshot_info.as_ref()?;
    Some(VolumeCreation {
        persistent_volume: format!("{namespace}-{name}"),
        target: format!("{namespace}/{name}"),
        snapshot: SnapshotId::new(&csi.snapshot_handle)?,
        plugin: plugin_name(&csi.driver),
        started_at: operation.created,
    })
}
