//! Takes away what a backup has made that is not to be: one that has failed, was cancelled or is gone.

use bowline_engine::backup::csi::Target;
use bowline_engine::backup::snapshot;
use bowline_engine::report::Report;
use bowline_store::file::Snapshot;
use bowline_store::{BackupName, BackupStore};

use super::wait::bucket;
use super::{Course, WorkError};
use crate::story::one_line;

impl Course<'_> {
    /// Deletes snapshots of a backup that is not to be. Returns those that could not be deleted, which
    /// are told.
    pub(super) async fn discard(&self, snapshots: Vec<Snapshot>, report: &Report) -> Vec<Snapshot> {
        if snapshots.is_empty() {
            return snapshots;
        }
        tracing::info!(snapshots = snapshots.len(), "the snapshots of the backup are deleted");
        snapshot::discard(&*self.context.snapshotters, snapshots, report).await
    }

    /// Takes away what a backup has left whose Backup is gone: first its snapshots, then its files in the
    /// bucket, unless those name a snapshot that could not be deleted. There is nobody to tell it to but
    /// the log.
    pub(super) async fn clean_up(
        &self,
        store: &BackupStore,
        snapshots: Vec<Snapshot>,
        by_csi: &[Target],
    ) {
        let left_by_csi = self.discard_csi(by_csi, &Report::default()).await;
        let left = self.discard(snapshots, &Report::default()).await;
        for left in &left {
            tracing::error!(
                volume = left.spec.persistent_volume_name,
                snapshot = left.status.provider_snapshot_id,
                location = left.spec.location,
                "a snapshot of a backup that is gone is left over, and its files are kept"
            );
        }
        for Target { namespace, name, .. } in &left_by_csi {
            tracing::error!(
                namespace,
                name,
                "a CSI snapshot of a backup that is gone is left over, and its files are kept"
            );
        }
        if left.is_empty() && left_by_csi.is_empty() {
            clean(store, &self.name).await;
        }
    }

    /// The same, with the snapshots that the bucket knows of.
    pub(super) async fn clean_up_recorded(&self, store: &BackupStore) -> Result<(), WorkError> {
        let snapshots = bucket(store.get::<Vec<Snapshot>>(&self.name).await)?;
        let (operations, _, _) = self.operations(store).await?;
        let by_csi: Vec<Target> = operations.iter().filter_map(Target::of_operation).collect();
        self.clean_up(store, snapshots.unwrap_or_default(), &by_csi).await;
        Ok(())
    }
}

/// Takes out of the bucket what a run has put there whose Backup was deleted.
async fn clean(store: &BackupStore, name: &BackupName) {
    let cleaned = async {
        // A record would be somebody else's: this run has written none.
        if !store.exists(name).await? {
            store.delete_backup(name).await?;
        }
        Ok::<_, bowline_store::Error>(())
    };
    if let Err(error) = cleaned.await {
        tracing::warn!("files of a deleted backup may be left: {}", one_line(&error));
    }
}
