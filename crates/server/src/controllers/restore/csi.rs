//! Claims that are made from the snapshots of CSI drivers: followed, shown in VolumePluginRestores, and
//! settled in the end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bowline_api::{Restore, RestoreStatus};
use bowline_engine::cluster::{ApiServer, Cluster};
use bowline_engine::csi::plugin_of;
use bowline_engine::operation::{Asker, Operation, State};
use bowline_engine::point::{self, Point};
use bowline_engine::resource::Resources;
use bowline_engine::restore::action::CSI_CLAIMS;
use bowline_engine::restore::finalize::volumes::{Settling, is_concerned};
use bowline_engine::restore::volume::{Claims, End, Making, Witness as _};
use bowline_plugin::{
    Code, Error, OperationId, Progress, RestoreItemAction, Result, SnapshotId, VolumeId,
};
use bowline_store::file::{BackupVolumeInfo, Method, ResourceList, RestoreVolumeInfo, Results};
use bowline_store::{BackupName, BackupStore};

use super::volumes::Witness;
use super::{Course, WorkError};
use crate::controllers::bucket_wait::try_bucket;
use crate::controllers::operations::Actions;
use crate::story::one_line;

/// Asks plugins about their operations, and a watch about claims.
pub(super) struct Askers {
    actions: Actions<dyn RestoreItemAction, Restore>,
    claims: Option<Claims>,
}

impl Askers {
    /// Follows the claims, for as long as it is asked about them.
    pub(super) async fn run(&self) {
        match &self.claims {
            Some(claims) => claims.run().await,
            None => std::future::pending().await,
        }
    }

    fn claims(&self) -> Result<&Claims> {
        let unknown = || Error::new(Code::Unavailable, "it is not known how claims go");
        self.claims.as_ref().ok_or_else(unknown)
    }

    /// The volume that the claim of an operation has.
    fn volume(&self, operation: &OperationId) -> Option<String> {
        self.claims.as_ref()?.volume(operation)
    }
}

fn is_of_claim(operation: &Operation) -> bool {
    operation.plugin.as_str() == CSI_CLAIMS
}

#[async_trait]
impl Asker for Askers {
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

impl Course<'_> {
    /// Who knows how operations go.
    pub(super) async fn askers(&self, operations: &[Operation]) -> Askers {
        let unlisted = self.context.host.registry().unlisted();
        let actions = Actions::new(self.actions(), self.restore.clone(), unlisted);
        if !operations.iter().any(is_of_claim) {
            return Askers { actions, claims: None };
        }
        let cluster: Arc<dyn Cluster> = Arc::new(self.cluster());
        let claims = match cluster.discover().await {
            Ok(discovery) => {
                let resources = Resources::new(discovery.resources);
                Claims::new(Arc::clone(&cluster), &resources, self.name.as_str())
            }
            Err(error) => {
                tracing::warn!("claims cannot be followed: {}", one_line(&error));
                None
            }
        };
        Askers { actions, claims }
    }

    fn cluster(&self) -> ApiServer {
        let context = self.context;
        ApiServer::new(context.client.clone(), context.options.client_page_size)
    }

    /// Shows how the claims of operations go.
    pub(super) async fn showing(&self, operations: &[Operation], store: &BackupStore) -> Showing {
        let mut makings = HashMap::new();
        if operations.iter().any(is_of_claim) {
            let volumes = self.restored_volumes(store).await.unwrap_or_default();
            for operation in operations.iter().filter(|operation| is_of_claim(operation)) {
                if let Some(making) = making(operation, &volumes) {
                    makings.insert(operation.id.clone(), making);
                }
            }
        }
        let backup = self.backup_name();
        let witness = backup.map(|name| Witness::new(self.context, &self.restore, &name));
        Showing { witness, makings, told: Mutex::default() }
    }

    fn backup_name(&self) -> Option<BackupName> {
        BackupName::new(&self.restore.spec.backup_name).ok()
    }

    async fn restored_volumes(
        &self,
        store: &BackupStore,
    ) -> std::result::Result<Vec<RestoreVolumeInfo>, bowline_store::Error> {
        Ok(store.get_of_restore(&self.name).await?.unwrap_or_default())
    }

    /// Gives the new volumes of claims what the old ones had. None if the server ends meanwhile. A restore that is
    /// canceled does not wait for volumes that are not there.
    pub(super) async fn settle_volumes(
        &self,
        store: &BackupStore,
    ) -> std::result::Result<Option<RestoreStatus>, WorkError> {
        let bucket = |error: bowline_store::Error| WorkError::of_write(&error);
        let cancel = &self.kit.cancel;
        let status = self.status();
        let Some(backup) = self.backup_name() else { return Ok(Some(status)) };
        let saved: Option<Vec<BackupVolumeInfo>> = store.get(&backup).await.map_err(bucket)?;
        let saved = saved.unwrap_or_default();
        if !is_concerned(&saved) {
            return Ok(Some(status));
        }
        let items: Option<ResourceList> = store.get_of_restore(&self.name).await.map_err(bucket)?;
        let operations = self.operations(store, None).await?.operations;
        let mut volumes = self.restored_volumes(store).await.map_err(bucket)?;
        let before = volumes.clone();
        let cluster = self.cluster();
        let settling = Settling {
            cluster: &cluster,
            restore: &self.restore,
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
        let report = settled.map_err(|error| WorkError::Note(one_line(&error)))?;
        point::pass(Point::VolumesPatched);
        if volumes != before {
            let put = || store.put_of_restore(&self.name, &volumes);
            try_bucket(cancel, put).await.map_err(bucket)?;
        }
        if report.errors() == 0 && report.warnings() == 0 {
            return Ok(Some(status));
        }
        let read = store.get_of_restore::<Results>(&self.name).await.map_err(bucket)?;
        let mut results = read.unwrap_or_default();
        report.add_to(&mut results);
        try_bucket(cancel, || store.put_of_restore(&self.name, &results)).await.map_err(bucket)?;
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        Ok(Some(RestoreStatus {
            errors: status.errors.max(count(results.errors.count())),
            warnings: status.warnings.max(count(results.warnings.count())),
            ..status
        }))
    }
}

/// Shows how claims go, in VolumePluginRestores.
pub(super) struct Showing {
    witness: Option<Witness>,
    makings: HashMap<OperationId, Making>,
    /// What was shown: that it has begun, and whether that it has ended.
    told: Mutex<HashMap<OperationId, bool>>,
}

impl Showing {
    /// Shows what has changed. What cannot be shown is told in the log.
    pub(super) async fn show(&self, operations: &[Operation], askers: &Askers) {
        let Some(witness) = &self.witness else { return };
        for operation in operations {
            let Some(making) = self.makings.get(&operation.id) else { continue };
            let before = self.told().get(&operation.id).copied();
            if before.is_none() {
                tell(witness.began(making).await);
                self.told().insert(operation.id.clone(), false);
            }
            let end = match &operation.state {
                _ if before == Some(true) => continue,
                State::New | State::InProgress => continue,
                State::Completed => {
                    let volume = askers.volume(&operation.id);
                    let volume = volume.unwrap_or_else(|| making.target.clone());
                    VolumeId::new(&volume).map(End::Completed)
                }
                State::Failed(why) if why.starts_with("canceled: ") => {
                    Some(End::Canceled(why.clone()))
                }
                State::Failed(why) => Some(End::Failed(why.clone())),
            };
            let Some(end) = end else { continue };
            let target = match &end {
                End::Completed(volume) => volume.to_string(),
                _ => making.target.clone(),
            };
            tell(witness.ended(&Making { target, ..making.clone() }, &end).await);
            self.told().insert(operation.id.clone(), true);
        }
    }

    fn told(&self) -> std::sync::MutexGuard<'_, HashMap<OperationId, bool>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(shown: std::result::Result<(), String>) {
    if let Err(error) = shown {
        tracing::warn!("a VolumePluginRestore cannot be written: {error}");
    }
}

/// What is shown of the claim of an operation.
fn making(operation: &Operation, volumes: &[RestoreVolumeInfo]) -> Option<Making> {
    let mut parts = operation.id.as_str().splitn(3, '/');
    let (namespace, name) = (parts.next()?, parts.next()?);
    let volume = volumes.iter().find(|volume| {
        volume.restore_method == Some(Method::CsiSnapshot)
            && volume.pvc_namespace == namespace
            && volume.pvc_name == name
    })?;
    let csi = volume.csi_snapshot_info.as_ref()?;
    Some(Making {
        persistent_volume: format!("{namespace}-{name}"),
        target: format!("{namespace}/{name}"),
        snapshot: SnapshotId::new(&csi.snapshot_handle)?,
        plugin: plugin_of(&csi.driver),
        began: operation.created,
    })
}
