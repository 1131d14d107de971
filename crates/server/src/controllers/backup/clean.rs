//! Takes away what a backup has made that is not to be: one that has failed, was cancelled or is gone.

use bowline_engine::backup::csi::{Left, Target};
use bowline_engine::backup::snapshot;
use bowline_engine::report::Report;
use bowline_store::file::Snapshot;
use bowline_store::{BackupName, BackupStore};

use super::wait::bucket;
use super::{Course, WorkError};
use crate::server::Context;
use crate::story::one_line;

/// How many snapshots are named in a status, and how much of each.
const NAMED: usize = 5;
const LONGEST_NAME: usize = 300;

impl Course<'_> {
    /// Deletes snapshots of a backup that is not to be. Returns those that could not be deleted, which
    /// are told.
    pub(super) async fn discard(&self, snapshots: Vec<Snapshot>, report: &Report) -> Vec<Snapshot> {
        discard(self.context, snapshots, report).await
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
        tell_left(&left, &left_by_csi);
        if left.is_empty() && left_by_csi.is_empty() {
            clean(store, &self.name).await;
        } else {
            tracing::error!(
                "the files of the backup and its journal are kept, because they name what is left over"
            );
            self.kit.keep_journal();
        }
    }

    /// The same, with the snapshots that the bucket knows of.
    pub(super) async fn clean_up_recorded(&self, store: &BackupStore) -> Result<(), WorkError> {
        let snapshots = bucket(store.get::<Vec<Snapshot>>(&self.name).await)?;
        let operations = self.operations(store).await?.operations;
        let by_csi: Vec<Target> = operations.iter().filter_map(Target::of_operation).collect();
        self.clean_up(store, snapshots.found().unwrap_or_default(), &by_csi).await;
        Ok(())
    }
}

/// Deletes snapshots of a backup that is not to be. Returns those that could not be deleted, which are told.
pub(super) async fn discard(
    context: &Context,
    snapshots: Vec<Snapshot>,
    report: &Report,
) -> Vec<Snapshot> {
    if snapshots.is_empty() {
        return snapshots;
    }
    tracing::info!(snapshots = snapshots.len(), "the snapshots of the backup are deleted");
    snapshot::discard(&*context.snapshotters, snapshots, report).await
}

/// A snapshot, for somebody who has to look for it. None if it was not taken.
pub(super) fn named(snapshot: &Snapshot) -> Option<String> {
    let (id, of) = (&snapshot.status.provider_snapshot_id, &snapshot.spec);
    let (volume, location) = (&of.persistent_volume_name, &of.location);
    (!id.is_empty()).then(|| format!("the snapshot {id} of the volume {volume} at {location}"))
}

/// Names the first few of what is left over, for a status that is the only place to tell it.
pub(super) fn told_left(left: &[String]) -> String {
    if left.is_empty() {
        return String::new();
    }
    let short = |one: &String| one.chars().take(LONGEST_NAME).collect::<String>();
    let some: Vec<String> = left.iter().take(NAMED).map(short).collect();
    let more = match left.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("; and {}{more} could not be deleted", some.join(", "))
}

/// Tells of snapshots of a backup that is gone, and that could not be deleted.
pub(super) fn tell_left(snapshots: &[Snapshot], by_csi: &Left) {
    for left in snapshots {
        tracing::error!(
            volume = left.spec.persistent_volume_name,
            snapshot = left.status.provider_snapshot_id,
            location = left.spec.location,
            "a snapshot of a backup that is gone is left over"
        );
    }
    for Target { namespace, name, .. } in by_csi {
        tracing::error!(namespace, name, "a CSI snapshot of a backup that is gone is left over");
    }
}

/// Takes out of the bucket what a run has put there whose Backup was deleted.
pub(in crate::controllers) async fn clean(store: &BackupStore, name: &BackupName) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(id: &str) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.spec.persistent_volume_name = "pv-1".to_owned();
        snapshot.spec.location = "east".to_owned();
        id.clone_into(&mut snapshot.status.provider_snapshot_id);
        snapshot
    }

    #[test]
    fn what_is_left_over_is_named_and_not_all_of_it() {
        assert_eq!(told_left(&[]), "");
        assert_eq!(named(&snapshot("")), None, "it was not taken");
        let csi = |number: usize| Target {
            namespace: "shop".to_owned(),
            name: format!("vs-{number}"),
            is_group: number == 1,
        };
        let mut left: Vec<String> = named(&snapshot("snap-0")).into_iter().collect();
        left.extend((1..7).map(|number| csi(number).to_string()));
        assert_eq!(
            told_left(&left[..2]),
            "; and the snapshot snap-0 of the volume pv-1 at east, the VolumeGroupSnapshot shop/vs-1 could not be \
             deleted"
        );
        assert!(told_left(&left).contains("shop/vs-4 and 2 more"), "{}", told_left(&left));
        let long = vec!["x".repeat(100_000); 100];
        assert!(told_left(&long).len() < 2000, "{}", told_left(&long).len());
    }
}
