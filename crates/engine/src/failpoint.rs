//! The instants at which a kill tells most: before and after every effect on the outside.
//!
//! The code names them as it passes. A harness [watches](set_handler) and ends the process at one of them;
//! nobody watches in production, and passing costs a load.

use std::sync::OnceLock;

/// Declares the points, and the list of all of them.
macro_rules! failpoints {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// An instant in the life of a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Point {
            $($(#[$doc])* $name,)+
        }

        impl Point {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// What a harness calls it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

failpoints! {
    /// A Backup is said to be in progress.
    BackupInProgress = "backup-in-progress",
    /// The journal of a run says that a process has taken it up.
    AttemptJournaled = "attempt",
    /// A block is about to be noted in the journal.
    JournalBlockStart = "note-begun",
    /// It was.
    BlockStartJournaled = "begun",
    /// A pod is about to be frozen.
    PreHook = "pre-hook",
    /// It may be frozen.
    Frozen = "frozen",
    /// An action is about to be shown an item.
    Execute = "execute",
    /// It was.
    Executed = "executed",
    /// A snapshot is about to be taken.
    CreateSnapshot = "create-snapshot",
    /// It was.
    SnapshotCreated = "snapshot-created",
    /// A VolumeSnapshot is about to be made.
    CsiSnapshotCreate = "csi-snapshot-create",
    /// It was.
    CsiSnapshotCreated = "csi-snapshot-created",
    /// Its driver has taken the snapshot, or will not.
    CsiSnapshotTaken = "csi-snapshot-taken",
    /// What a restore must know of it is written into it.
    CsiSnapshotRecorded = "csi-snapshot-noted",
    /// A snapshot is about to be uploaded.
    UploadSnapshot = "upload-snapshot",
    /// Its upload has returned.
    SnapshotUploaded = "snapshot-uploaded",
    /// A pod is about to be thawed.
    PostHook = "post-hook",
    /// It is.
    Thawed = "thawed",
    /// The items of a block are about to be put into the bucket.
    StoreBlock = "keep",
    /// They are.
    BlockStored = "kept",
    /// The end of a block is about to be noted in the journal.
    JournalBlockEnd = "note-ended",
    /// It was.
    BlockEndJournaled = "ended",
    /// A thaw after a restart is about to be noted.
    JournalThaw = "note-thawed",
    /// It was, or could not be.
    ThawJournaled = "thaw-noted",
    /// A snapshot that was in flight is about to be asked for again, so that it can be deleted.
    Reclaim = "reclaim",
    /// It is gone, which is about to be noted.
    SnapshotReclaimed = "snapshot-reclaimed",
    /// The archive of a backup is in the bucket.
    ArchiveUploaded = "archive-uploaded",
    /// The files beside it are.
    FilesWritten = "files-written",
    /// A Backup is said to wait for its operations, or to be finalized.
    BackupCollected = "backup-collected",
    /// The operations file was written again.
    OperationsWritten = "operations-written",
    /// What became of the volumes of a backup was written.
    VolumesSettled = "volumes-settled",
    /// A Backup is said to be finalized.
    BackupFinalizing = "backup-finalizing",
    /// Its archive was written again.
    ArchiveReplaced = "archive-replaced",
    /// Its results were.
    ResultsWritten = "results-written",
    /// The commit record is about to be written.
    Commit = "commit",
    /// It was.
    Committed = "committed",
    /// A Backup is said to be over.
    BackupOver = "backup-over",
    /// The content of a CSI snapshot was told to keep it.
    CsiContentRetained = "csi-content-kept",
    /// The objects of a CSI snapshot that is kept are gone.
    CsiSnapshotReleased = "csi-snapshot-released",
    /// Its journal was removed.
    JournalRemoved = "journal-removed",
    /// A Restore is said to be in progress.
    RestoreInProgress = "restore-in-progress",
    /// A plugin is about to be asked for a volume.
    CreateVolume = "create-volume",
    /// It has answered.
    VolumeCreated = "volume-created",
    /// An object is about to be created.
    Create = "create",
    /// It was.
    Created = "created",
    /// A claim that is made from a CSI snapshot is in the cluster, and is followed.
    ClaimWatched = "claim-followed",
    /// The files of a restore are in the bucket.
    RestoreFilesWritten = "restore-files-written",
    /// A Restore is said to wait for its operations, or to be finalized.
    RestoreCollected = "restore-collected",
    /// What volumes get from their backup when they are there is written to them.
    VolumesPatched = "volumes-patched",
    /// A Restore is said to be over.
    RestoreOver = "restore-over",
    /// A snapshot of a backup that is being deleted is about to go.
    DeleteSnapshot = "delete-snapshot",
    /// What stands for a CSI snapshot that is to go was made.
    DeletionContentCreated = "content-made",
    /// It is gone.
    SnapshotDeleted = "snapshot-deleted",
    /// The files of a backup are about to go.
    DeleteFiles = "delete-files",
    /// They are gone.
    FilesDeleted = "files-deleted",
    /// The Backup is gone.
    BackupRemoved = "backup-removed",
}

/// What a watcher says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailpointAction {
    /// Go on.
    Continue,
    /// Leave out what comes next, so that a harness can see what that costs.
    Skip,
}

type FailpointHandler = Box<dyn Fn(Point) -> FailpointAction + Send + Sync>;

static HANDLER: OnceLock<FailpointHandler> = OnceLock::new();

/// Watches this process pass its points. Only the first watcher counts.
pub fn set_handler(handler: impl Fn(Point) -> FailpointAction + Send + Sync + 'static) {
    // A second one is a mistake of a harness, which its own checks find.
    let _ = HANDLER.set(Box::new(handler));
}

/// Passes a point.
pub fn hit(failpoint: Point) {
    let _ = should_skip(failpoint);
}

/// Passes a point before something that may be left out.
pub fn should_skip(failpoint: Point) -> FailpointAction {
    HANDLER.get().map_or(FailpointAction::Continue, |handler| handler(failpoint))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn failpoint_names_are_unique() {
        let names: BTreeSet<&str> = Point::ALL.iter().map(|point| point.as_str()).collect();
        assert_eq!(names.len(), Point::ALL.len());
    }
}
