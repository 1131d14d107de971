//! Removes the leftovers of a backup that has failed, was canceled or is gone.

use std::collections::BTreeSet;

use bowline_engine::backup::csi::{Leftovers, Target};
use bowline_engine::backup::{self, snapshot};
use bowline_engine::journal::RecoveredRun;
use bowline_engine::report::Report;
use bowline_store::file::Snapshot;
use bowline_store::{BackupName, BackupStore};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::wait::{FileContents, file_contents};
use super::{BackupRun, RunError};
use crate::error_text::status_message;
use crate::queue::NamespaceScope;
use crate::server::Context;

/// Maximum number of snapshots named in a status, and length of each description.
const MAX_NAMED_SNAPSHOTS: usize = 5;
const MAX_NAME_CHARS: usize = 300;

impl BackupRun<'_> {
    /// Cancels the operations of blocks that this attempt repeats, before their actions are called again. The report
    /// warns about those actions, so it does not name the operations.
    pub(super) async fn stop_abandoned_operations(&self, recovered: &RecoveredRun) {
        let began = self.status().start_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let mut operations = backup::abandoned_operations(recovered, self.timeout(), began);
        if !operations.is_empty() {
            tracing::info!(
                operations = operations.len(),
                "canceling the operations of item blocks that are repeated"
            );
            self.stop_operations(&mut operations).await;
        }
    }

    /// Deletes snapshots of a backup that is discarded. Returns those that could not be deleted, which are reported.
    pub(super) async fn delete_plugin_snapshots(
        &self,
        snapshots: Vec<Snapshot>,
        report: &Report,
    ) -> Vec<Snapshot> {
        let key =
            |one: &Snapshot| (one.spec.location.clone(), one.status.provider_snapshot_id.clone());
        let mut deleted: BTreeSet<_> = snapshots.iter().map(key).collect();
        let remaining = delete_plugin_snapshots(self.context, snapshots, report).await;
        for one in &remaining {
            deleted.remove(&key(one));
        }
        // Those of a block that was not completed are in flight, according to the journal.
        self.resources.journal.record_deleted(&deleted).await;
        remaining
    }

    /// Removes the leftovers of a backup whose Backup is gone: first its snapshots, then its files in the bucket,
    /// unless those name a snapshot that could not be deleted. The log is the only place to report failures.
    pub(super) async fn delete_leftovers(
        &self,
        store: &BackupStore,
        snapshots: Vec<Snapshot>,
        csi_targets: &[Target],
    ) {
        let csi_leftovers = self.delete_csi_snapshots(csi_targets, &Report::default()).await;
        let leftovers = self.delete_plugin_snapshots(snapshots, &Report::default()).await;
        log_leftovers(&leftovers, &csi_leftovers);
        if leftovers.is_empty() && csi_leftovers.is_empty() {
            match self.has_namesake().await {
                Ok(false) => delete_bucket_files(store, &self.name).await,
                Ok(true) => {
                    tracing::info!("the files are kept: another Backup now has the same name");
                }
                Err(error) => {
                    tracing::warn!(
                        "files of a deleted backup may be left over: {}",
                        status_message(&error)
                    );
                }
            }
        } else {
            tracing::error!(
                "the files of the backup and its journal are kept, because they list the leftovers"
            );
            self.resources.keep_journal();
        }
    }

    /// True if another Backup has the same name, so that files of this name may belong to it.
    async fn has_namesake(&self) -> kube::Result<bool> {
        let found = self.api.get_opt(&self.object.name_any()).await?;
        Ok(found.is_some_and(|found| found.uid() != self.object.uid()))
    }

    /// Like [`Self::delete_leftovers`], with the snapshots that the bucket has on record.
    pub(super) async fn delete_listed_leftovers(
        &self,
        store: &BackupStore,
    ) -> Result<(), RunError> {
        // Keeps a backup of the same name, whose files have the same names, from starting meanwhile.
        let _hold = self.context.runs.register(&self.object, Some(NamespaceScope::All));
        if self.has_namesake().await? {
            tracing::info!("another Backup now has the same name; cleanup uses the journal only");
            self.resources.keep_journal();
            return Ok(());
        }
        let snapshots = match file_contents(store.get::<Vec<Snapshot>>(&self.name).await)? {
            FileContents::Found(snapshots) => snapshots,
            FileContents::Absent => Vec::new(),
            FileContents::Unreadable(reason) => {
                // The journal may name the same snapshots, and its cleanup deletes them.
                tracing::error!(
                    "the files of the backup and its journal are kept: the list of snapshots is unreadable: {reason}"
                );
                self.resources.keep_journal();
                return Ok(());
            }
        };
        let operations = self.load_operations(store).await?.operations;
        let by_csi: Vec<Target> = operations.iter().filter_map(Target::of_operation).collect();
        self.delete_leftovers(store, snapshots, &by_csi).await;
        Ok(())
    }
}

/// Deletes snapshots of a backup that is discarded. Returns those that could not be deleted, which are reported.
pub(super) async fn delete_plugin_snapshots(
    context: &Context,
    snapshots: Vec<Snapshot>,
    report: &Report,
) -> Vec<Snapshot> {
    if snapshots.is_empty() {
        return snapshots;
    }
    tracing::info!(snapshots = snapshots.len(), "deleting the snapshots of the backup");
    snapshot::discard(&*context.snapshotters, snapshots, report).await
}

/// Description of a snapshot for an operator who has to look for it. None if it was not taken.
pub(super) fn snapshot_description(snapshot: &Snapshot) -> Option<String> {
    let (id, of) = (&snapshot.status.provider_snapshot_id, &snapshot.spec);
    let (volume, location) = (&of.persistent_volume_name, &of.location);
    (!id.is_empty()).then(|| format!("snapshot {id} of volume {volume} at {location}"))
}

/// Names the first few leftovers, for a status that is the only place to report them.
pub(super) fn leftovers_message(leftovers: &[String]) -> String {
    if leftovers.is_empty() {
        return String::new();
    }
    format!("; and {} could not be deleted", first_leftovers(leftovers))
}

/// The first few leftovers, and the number of the others.
pub(super) fn first_leftovers(leftovers: &[String]) -> String {
    let short = |one: &String| one.chars().take(MAX_NAME_CHARS).collect::<String>();
    let some: Vec<String> = leftovers.iter().take(MAX_NAMED_SNAPSHOTS).map(short).collect();
    let more = match leftovers.len().saturating_sub(MAX_NAMED_SNAPSHOTS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", some.join(", "))
}

/// Logs snapshots that could not be deleted and whose backup is gone.
pub(super) fn log_leftovers(snapshots: &[Snapshot], csi_leftovers: &Leftovers) {
    for snapshot in snapshots {
        tracing::error!(
            volume = snapshot.spec.persistent_volume_name,
            snapshot = snapshot.status.provider_snapshot_id,
            location = snapshot.spec.location,
            "a snapshot of a deleted backup is left over"
        );
    }
    for Target { namespace, name, .. } in csi_leftovers {
        tracing::error!(namespace, name, "a CSI snapshot of a deleted backup is left over");
    }
}

/// Removes the files of a run whose Backup was deleted from the bucket.
pub(in crate::controllers) async fn delete_bucket_files(store: &BackupStore, name: &BackupName) {
    let cleaned = async {
        // A record would belong to another backup: this run has written none.
        if !store.exists(name).await? {
            store.delete_backup(name).await?;
        }
        Ok::<_, bowline_store::Error>(())
    };
    if let Err(error) = cleaned.await {
        tracing::warn!("files of a deleted backup may be left over: {}", status_message(&error));
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
    fn leftovers_message_names_the_first_few() {
        assert_eq!(leftovers_message(&[]), "");
        assert_eq!(snapshot_description(&snapshot("")), None, "it was not taken");
        let csi = |number: usize| Target {
            namespace: "shop".to_owned(),
            name: format!("vs-{number}"),
            is_group: number == 1,
        };
        let mut leftovers: Vec<String> =
            snapshot_description(&snapshot("snap-0")).into_iter().collect();
        leftovers.extend((1..7).map(|number| csi(number).to_string()));
        assert_eq!(
            leftovers_message(&leftovers[..2]),
            "; and snapshot snap-0 of volume pv-1 at east, the VolumeGroupSnapshot shop/vs-1 \
             could not be deleted"
        );
        assert!(
            leftovers_message(&leftovers).contains("shop/vs-4 and 2 more"),
            "{}",
            leftovers_message(&leftovers)
        );
        let long = vec!["x".repeat(100_000); 100];
        assert!(leftovers_message(&long).len() < 2000, "{}", leftovers_message(&long).len());
    }
}
