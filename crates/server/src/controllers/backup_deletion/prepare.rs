//! What there is to delete of a backup, or why it cannot be deleted. Nothing is changed yet.

use std::sync::Arc;

use bowline_api::{Backup, BackupStorageLocation, VolumePluginBackup};
use bowline_engine::backup::request::Lookup;
use bowline_engine::cluster::ApiServer;
use bowline_engine::delete::{
    self, Deadlines, DeletionPlan, FileOwnership, InventoryError, OpenSnapshotters, SharedSnapshot,
};
use bowline_engine::download::DownloadError;
use bowline_store::{BackupName, BackupStore};
use tokio::sync::OwnedMutexGuard;

use super::possession_index::UnknownPossessions;
use super::{Controller, owned_objects};
use crate::controllers::lookup::{OpenError, RefusedRequest, open, split_refusal};
use crate::error_text::status_message;
use crate::unlisted_plugins;

/// Reason why a backup cannot be deleted. The text ends up in the status of the request.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    #[error("error getting the backup store")]
    OpenStore(#[source] OpenError),
    #[error(transparent)]
    ReadInventory(InventoryError),
    #[error("cannot read the list of CSI snapshots of the backup")]
    ReadCsiInventory(#[source] DownloadError),
    #[error("cannot list the objects that belong to the backup")]
    FindOwnedObjects(#[source] RefusedRequest),
    #[error(transparent)]
    Possessions(UnknownPossessions),
    #[error(transparent)]
    ListBackups(RefusedRequest),
    #[error("{}", .0.join("; "))]
    Objections(Vec<String>),
}

impl PrepareError {
    /// One message for each reason.
    pub(super) fn into_messages(self) -> Vec<String> {
        match self {
            Self::Objections(reasons) => reasons,
            error => vec![status_message(&error)],
        }
    }
}

/// A backup that is about to be deleted.
pub(super) struct PreparedDeletion {
    pub(super) backup: Backup,
    pub(super) name: BackupName,
    pub(super) store: BackupStore,
    pub(super) plan: DeletionPlan,
    pub(super) snapshotters: OpenSnapshotters,
    /// VolumePluginBackups in the cluster.
    pub(super) reports: Vec<VolumePluginBackup>,
    /// Held from the time at which the other backups are checked for what they name until this backup is `Deleting`,
    /// and so no longer keeps anything: two backups deleted at once would each keep for the other what both name.
    pub(super) planned_alone: Option<OwnedMutexGuard<()>>,
}

impl Controller {
    /// Finds out what there is to delete, or why it cannot be deleted. Changes nothing.
    pub(super) async fn prepare(
        &self,
        backup: &Backup,
        name: &BackupName,
        location: &Lookup<BackupStorageLocation>,
    ) -> kube::Result<Result<PreparedDeletion, PrepareError>> {
        let Controller { context, .. } = self;
        let store = match open(context, location).await {
            Ok(store) => store,
            Err(error) => return Ok(Err(PrepareError::OpenStore(error))),
        };
        let mut holdings = match delete::read_inventory(&store, name).await {
            Ok(holdings) => holdings,
            Err(error) => return Ok(Err(PrepareError::ReadInventory(error))),
        };
        let (scratch, limits) = (&context.options.scratch_dir, context.options.unpack_limits);
        if let Err(error) =
            delete::read_csi_inventory(&store, name, backup, scratch, limits, &mut holdings).await
        {
            return Ok(Err(PrepareError::ReadCsiInventory(error)));
        }
        let found = match split_refusal(owned_objects::find_owned(context, name).await)? {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(PrepareError::FindOwnedObjects(refusal))),
        };
        let reports = found.volume_plugin_backups.clone();
        holdings.pod_volume_backups.extend(found.pod_volume_backups);
        holdings.volume_plugin_backups.extend(found.volume_plugin_backups);
        holdings.data_uploads.extend(found.data_uploads);
        let mut plan = match delete::plan_deletion(backup, &holdings) {
            Ok(plan) => plan,
            Err(objections) => return Ok(Err(PrepareError::Objections(objections.messages()))),
        };
        let missing = unlisted_plugins::deletion_objections(context.host.registry().unlisted());
        if plan.files == FileOwnership::Own && !missing.is_empty() {
            return Ok(Err(PrepareError::Objections(missing)));
        }
        let mut planned_alone = None;
        if !plan.snapshots.is_empty() || !plan.csi.is_empty() {
            planned_alone = Some(Arc::clone(&self.planning).lock_owned().await);
            let of_others = match split_refusal(self.possessions.of_others(context, backup).await)?
            {
                Ok(Ok(possessions)) => possessions,
                Ok(Err(error)) => return Ok(Err(PrepareError::Possessions(error))),
                Err(refusal) => return Ok(Err(PrepareError::ListBackups(refusal))),
            };
            let shared = match delete::exclude_shared(&mut plan, &of_others) {
                Ok(shared) => shared,
                Err(objections) => return Ok(Err(PrepareError::Objections(objections.messages()))),
            };
            for SharedSnapshot { snapshot, other_backup: by } in shared {
                tracing::warn!(snapshot, "snapshot kept: backup {by} refers to it as well");
            }
        }
        let cluster = ApiServer::new(context.client.clone(), context.options.client_page_size);
        if let Err(objections) = delete::check_csi_ready(&cluster, &mut plan.csi).await {
            return Ok(Err(PrepareError::Objections(objections.messages())));
        }
        let deadlines = Deadlines::default();
        let opened =
            delete::open_snapshotters(&*context.snapshotters, &plan.snapshots, &deadlines).await;
        let (backup, name) = (backup.clone(), name.clone());
        let prepared = opened.map(|snapshotters| PreparedDeletion {
            backup,
            name,
            store,
            plan,
            snapshotters,
            reports,
            planned_alone,
        });
        Ok(prepared.map_err(|objections| PrepareError::Objections(objections.messages())))
    }
}
