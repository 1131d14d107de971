//! Failpoints: the instants at which a kill reveals most, before and after every external effect.
//!
//! The code names each failpoint as it passes. A test harness [installs a handler](set_handler) and
//! ends the process at one of them; in production there is no handler, and passing a failpoint
//! costs one atomic load.

use std::sync::OnceLock;

/// Declares the failpoints and the list of all of them.
macro_rules! failpoints {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// Failpoint: an instant in the life of a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Failpoint {
            $($(#[$doc])* $name,)+
        }

        impl Failpoint {
            /// All failpoints.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Name for test harnesses.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

failpoints! {
    /// After the phase of a Backup was set to InProgress.
    BackupInProgress = "backup-in-progress",
    /// After an attempt of this process at a run was journaled.
    AttemptJournaled = "attempt-journaled",
    /// Before the start of a block is journaled.
    JournalBlockStart = "journal-block-start",
    /// After the start of a block was journaled.
    BlockStartJournaled = "block-start-journaled",
    /// Before a pre-hook, which may freeze a pod.
    PreHook = "pre-hook",
    /// After a pre-hook: the pod may be frozen.
    Frozen = "frozen",
    /// Before an action is executed for an item.
    Execute = "execute",
    /// After an action was executed for an item.
    Executed = "executed",
    /// Before a snapshot is created.
    CreateSnapshot = "create-snapshot",
    /// After a snapshot was created.
    SnapshotCreated = "snapshot-created",
    /// Before a VolumeSnapshot is created.
    CsiSnapshotCreate = "csi-snapshot-create",
    /// After a VolumeSnapshot was created.
    CsiSnapshotCreated = "csi-snapshot-created",
    /// After the CSI driver has taken the snapshot, or has failed to.
    CsiSnapshotTaken = "csi-snapshot-taken",
    /// After the data that a restore needs was written to the VolumeSnapshot.
    CsiSnapshotRecorded = "csi-snapshot-recorded",
    /// Before a snapshot is uploaded.
    UploadSnapshot = "upload-snapshot",
    /// After the upload of a snapshot has returned.
    SnapshotUploaded = "snapshot-uploaded",
    /// Before a post-hook, which thaws a pod.
    PostHook = "post-hook",
    /// After a pod was thawed.
    Thawed = "thawed",
    /// Before the items of a block are stored.
    StoreBlock = "store-block",
    /// After the items of a block were stored.
    BlockStored = "block-stored",
    /// Before the end of a block is journaled.
    JournalBlockEnd = "journal-block-end",
    /// After the end of a block was journaled.
    BlockEndJournaled = "block-end-journaled",
    /// Before a thaw after a restart is journaled.
    JournalThaw = "journal-thaw",
    /// After a thaw was journaled, or could not be.
    ThawJournaled = "thaw-journaled",
    /// Before a snapshot that was in flight is requested again, so that it can be deleted.
    Reclaim = "reclaim",
    /// After such a snapshot was deleted, and before that is journaled.
    SnapshotReclaimed = "snapshot-reclaimed",
    /// After the archive of a backup was uploaded.
    ArchiveUploaded = "archive-uploaded",
    /// After the files beside the archive were written.
    FilesWritten = "files-written",
    /// After the phase of a Backup was set to wait for operations, or to finalize.
    BackupCollected = "backup-collected",
    /// After the operations file was rewritten.
    OperationsWritten = "operations-written",
    /// After the outcomes of the volumes of a backup were written.
    VolumesSettled = "volumes-settled",
    /// After the phase of a Backup was set to Finalizing.
    BackupFinalizing = "backup-finalizing",
    /// After the archive of a backup was replaced.
    ArchiveReplaced = "archive-replaced",
    /// After the results of a backup were written.
    ResultsWritten = "results-written",
    /// Before the commit record is written.
    Commit = "commit",
    /// After the commit record was written.
    Committed = "committed",
    /// After the phase of a Backup was set to a terminal one.
    BackupOver = "backup-over",
    /// After the deletion policy of a VolumeSnapshotContent was set to Retain.
    CsiContentRetained = "csi-content-retained",
    /// After the objects of a retained CSI snapshot were deleted.
    CsiSnapshotReleased = "csi-snapshot-released",
    /// After the journal of a run was removed.
    JournalRemoved = "journal-removed",
    /// After the phase of a Restore was set to InProgress.
    RestoreInProgress = "restore-in-progress",
    /// Before a plugin is called to create a volume.
    CreateVolume = "create-volume",
    /// After the plugin has answered.
    VolumeCreated = "volume-created",
    /// Before an object is created.
    Create = "create",
    /// After an object was created.
    Created = "created",
    /// After a PersistentVolumeClaim was created from a CSI snapshot, and its watch started.
    ClaimWatched = "claim-watched",
    /// After the files of a restore were written.
    RestoreFilesWritten = "restore-files-written",
    /// After the phase of a Restore was set to wait for operations, or to finalize.
    RestoreCollected = "restore-collected",
    /// After the restored volumes were patched with the settings from their backup.
    VolumesPatched = "volumes-patched",
    /// After the phase of a Restore was set to a terminal one.
    RestoreOver = "restore-over",
    /// Before a snapshot of a deleted backup is deleted.
    DeleteSnapshot = "delete-snapshot",
    /// After the VolumeSnapshotContent for the deletion of a CSI snapshot was created.
    DeletionContentCreated = "deletion-content-created",
    /// After a snapshot was deleted.
    SnapshotDeleted = "snapshot-deleted",
    /// Before the files of a backup are deleted.
    DeleteFiles = "delete-files",
    /// After the files of a backup were deleted.
    FilesDeleted = "files-deleted",
    /// After the Backup object was deleted.
    BackupRemoved = "backup-removed",
}

/// Decision of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailpointAction {
    /// Continue.
    Continue,
    /// Skip the next effect, so that a harness can see the damage.
    Skip,
}

type FailpointHandler = Box<dyn Fn(Failpoint) -> FailpointAction + Send + Sync>;

static HANDLER: OnceLock<FailpointHandler> = OnceLock::new();

/// Installs the handler of this process. Only the first one counts.
pub fn set_handler(handler: impl Fn(Failpoint) -> FailpointAction + Send + Sync + 'static) {
    // A second handler is a mistake of the harness, which its own checks find.
    let _ = HANDLER.set(Box::new(handler));
}

/// Passes a failpoint.
pub fn hit(failpoint: Failpoint) {
    let _ = should_skip(failpoint);
}

/// Passes a failpoint before an effect that may be skipped.
pub fn should_skip(failpoint: Failpoint) -> FailpointAction {
    HANDLER.get().map_or(FailpointAction::Continue, |handler| handler(failpoint))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn failpoint_names_are_unique() {
        let names: BTreeSet<&str> = Failpoint::ALL.iter().map(|point| point.as_str()).collect();
        assert_eq!(names.len(), Failpoint::ALL.len());
    }
}
