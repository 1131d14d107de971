//! CSI snapshots of a backup that is over: those that count are kept, and nothing else.

use std::collections::BTreeSet;

use bowline_engine::backup::csi::{self, Reach, Target};
use bowline_engine::operation::{Operation, State};
use bowline_engine::report::{About, Report};
use bowline_plugin::ResourceIdentifier;
use bowline_store::BackupStore;
use bowline_store::file::BackupVolumeInfo;

use super::wait::bucket;
use super::{Course, WorkError};

impl Course<'_> {
    /// Deletes CSI snapshots of a backup that is not to be, or that have failed. Returns those that could
    /// not be deleted, which are told.
    pub(super) async fn discard_csi(&self, targets: &[Target], report: &Report) -> Vec<Target> {
        if targets.is_empty() {
            return Vec::new();
        }
        tracing::info!(snapshots = targets.len(), "CSI snapshots of the backup are deleted");
        let cluster = self.cluster();
        match Reach::discover(&*cluster, self.of()).await {
            Ok(Some(reach)) => csi::discard_or_tell(&reach, targets, report).await,
            Ok(None) => Vec::new(),
            Err(error) => {
                let text = format!("its CSI snapshots could not be deleted: {error}");
                report.error(About::Run, text);
                targets.to_vec()
            }
        }
    }

    /// Sees to it that the CSI snapshots of a backup outlive their objects, and that those that have
    /// failed are gone.
    pub(super) async fn settle_csi(
        &self,
        operations: &[Operation],
        report: &Report,
    ) -> Result<(), WorkError> {
        let (kept, failed) = csi::targets(operations);
        self.discard_csi(&failed, report).await;
        if kept.is_empty() {
            return Ok(());
        }
        let cluster = self.cluster();
        match Reach::discover(&*cluster, self.of()).await {
            Ok(Some(reach)) => csi::retain(&reach, &kept, report).await,
            Ok(None) => {}
            Err(error) => return Err(WorkError::Thaw(error.to_string())),
        }
        Ok(())
    }

    /// Removes the objects of CSI snapshots that are kept. What is left of them harms nobody but whoever
    /// reads the list, so a failure is told in the log and no more.
    pub(super) async fn release_csi(&self, store: &BackupStore) -> Result<(), WorkError> {
        let (operations, _, _) = self.operations(store).await?;
        let (kept, _) = csi::targets(&operations);
        if kept.is_empty() {
            return Ok(());
        }
        let cluster = self.cluster();
        let left = match Reach::discover(&*cluster, self.of()).await {
            Ok(Some(reach)) => csi::release(&reach, &kept).await,
            Ok(None) => Vec::new(),
            Err(error) => return Err(WorkError::Thaw(error.to_string())),
        };
        for (Target { namespace, name, .. }, reason) in left {
            tracing::warn!(namespace, name, "a VolumeSnapshot is left in the cluster: {reason}");
        }
        Ok(())
    }

    /// What the bucket knows of the volumes of the backup, if CSI drivers have to do with it.
    pub(super) async fn csi_infos(
        &self,
        store: &BackupStore,
        operations: &[Operation],
    ) -> Result<Vec<BackupVolumeInfo>, WorkError> {
        if !operations.iter().any(csi::is_of_csi) {
            return Ok(Vec::new());
        }
        let infos = bucket(store.get::<Vec<BackupVolumeInfo>>(&self.name).await)?;
        Ok(infos.unwrap_or_default())
    }
}

/// The items to store again: not those of snapshots that have failed, but their claims, which must not name
/// a snapshot that is gone.
pub(super) fn without_failed(
    items: BTreeSet<ResourceIdentifier>,
    operations: &[Operation],
    infos: &[BackupVolumeInfo],
) -> BTreeSet<ResourceIdentifier> {
    let mut items = items;
    let failed =
        operations.iter().filter(|one| csi::is_of_csi(one) && one.state != State::Completed);
    for operation in failed {
        for item in &operation.post_operation_items {
            items.remove(item);
        }
        let of_operation = infos.iter().find(|info| {
            let csi = info.csi_snapshot_info.as_ref();
            csi.is_some_and(|csi| csi.operation_id == operation.id.as_str())
        });
        if let Some(info) = of_operation.filter(|info| !info.pvc_name.is_empty()) {
            items.insert(ResourceIdentifier {
                group: String::new(),
                resource: "persistentvolumeclaims".to_owned(),
                namespace: info.pvc_namespace.clone(),
                name: info.pvc_name.clone(),
            });
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use bowline_engine::operation::Kind;
    use bowline_plugin::OperationId;
    use bowline_store::file::CsiSnapshotInfo;
    use jiff::Timestamp;

    use super::*;

    fn item(resource: &str, name: &str) -> ResourceIdentifier {
        ResourceIdentifier {
            group: String::new(),
            resource: resource.to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn a_claim_is_stored_again_in_the_place_of_a_snapshot_that_failed() {
        let operation = |claim: &str, state| Operation {
            post_operation_items: vec![item("volumesnapshots", claim)],
            state,
            ..Operation::begun(
                Kind::ItemBackup,
                csi::BACKUPPER.parse().unwrap(),
                item("volumesnapshots", claim),
                OperationId::new(claim).unwrap(),
                Timestamp::UNIX_EPOCH,
                std::time::Duration::ZERO,
            )
        };
        let info = |claim: &str| BackupVolumeInfo {
            pvc_namespace: "shop".to_owned(),
            pvc_name: claim.to_owned(),
            csi_snapshot_info: Some(CsiSnapshotInfo {
                operation_id: claim.to_owned(),
                ..CsiSnapshotInfo::default()
            }),
            ..BackupVolumeInfo::default()
        };
        let operations =
            [operation("a", State::Completed), operation("b", State::Failed("no".to_owned()))];
        let items = ["a", "b"].map(|name| item("volumesnapshots", name)).into();
        let items = without_failed(items, &operations, &[info("a"), info("b")]);
        let expected = [item("volumesnapshots", "a"), item("persistentvolumeclaims", "b")];
        assert_eq!(items, expected.into());
    }
}
