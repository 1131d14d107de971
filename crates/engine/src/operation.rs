//! Background operations of plugins, from start to end.
//!
//! All kinds share one state machine: [`step`] takes an [`Operation`], an observation and the time,
//! and returns the new state of the operation and the effects to carry out. It is pure. [`Tracker`]
//! carries the effects out: it polls plugins concurrently and publishes the observations.
//!
//! | file | contents |
//! |---|---|
//! | `step` | state machine |
//! | `track` | loop around it: polls, uploads, cancellations, deadlines |
//! | `poll_limiter` | limit on how often one plugin is polled |
//! | `slots` | limit on concurrent uploads |
//! | `failure` | reasons why operations fail, and their texts |
//! | `record` | format in which Velero stores operations in the bucket |

mod failure;
mod poll_limiter;
pub mod record;
mod slots;
mod step;
mod track;

use std::time::Duration;

use bowline_api::snapshot_type::SnapshotType;
use bowline_plugin::{Name, OperationId, Progress, ResourceIdentifier};
use jiff::Timestamp;

pub use failure::{OperationFailure, StopError};
pub use poll_limiter::PollRateLimiter;
pub use slots::UploadSlots;
pub use step::{Effects, Observation, StopCause, step};
pub use track::{Counts, Deadlines, OperationClient, OperationTable, Tracker};

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Operation of a BackupItemAction.
    ItemBackup,
    /// Operation of a RestoreItemAction.
    ItemRestore,
    /// A VolumeSnapshotter completes a snapshot whose point in time is fixed.
    SnapshotCreation,
    /// A VolumeSnapshotter copies a snapshot to where it outlives its volume. The operation ends
    /// when the upload call returns, and only then.
    SnapshotUpload,
}

impl Kind {
    /// Name in metrics and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ItemBackup => "item-backup",
            Self::ItemRestore => "item-restore",
            Self::SnapshotCreation => "snapshot-creation",
            Self::SnapshotUpload => "snapshot-upload",
        }
    }

    /// True if the operation concerns the snapshot of a volume.
    pub fn is_of_volume(self) -> bool {
        matches!(self, Self::SnapshotCreation | Self::SnapshotUpload)
    }

    /// Tolerance for failures of this kind of operation.
    pub fn policy(self) -> Policy {
        match self {
            Self::ItemBackup | Self::ItemRestore | Self::SnapshotCreation => Policy::ITEM,
            Self::SnapshotUpload => Policy::UPLOAD,
        }
    }
}

/// Tolerance for failures of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Time for which a plugin may be unavailable or too slow.
    pub transient_limit: Duration,
    /// Limit on errors that may or may not be transient: their number, and for how long.
    pub unclear_limit: (u32, Duration),
    /// Time for an operation to confirm that it has stopped.
    pub stop_timeout: Duration,
}

impl Policy {
    const ITEM: Self = Self {
        transient_limit: Duration::from_mins(10),
        unclear_limit: (5, Duration::from_mins(2)),
        stop_timeout: Duration::from_secs(30),
    };

    /// A failed upload starts from the beginning, and may have run for hours before.
    const UPLOAD: Self = Self {
        transient_limit: Duration::from_mins(30),
        unclear_limit: (3, Duration::from_hours(4)),
        stop_timeout: Duration::from_secs(30),
    };
}

/// Background operation of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Kind of work.
    pub kind: Kind,
    /// Plugin that carries it out.
    pub plugin: Name,
    /// Item that it was started for.
    pub item: ResourceIdentifier,
    /// Id that the plugin assigned. For a snapshot operation this is the snapshot's id.
    pub id: OperationId,
    /// Details of operations on volume snapshots; `None` for others.
    pub volume: Option<VolumeDetails>,
    /// Items to store again after the operation has ended.
    pub post_operation_items: Vec<ResourceIdentifier>,
    /// Start time.
    pub created: Timestamp,
    /// Time by which it must have ended.
    pub deadline: Timestamp,
    /// Last progress that the plugin reported.
    pub progress: Progress,
    /// Current state.
    pub state: State,
    /// What a completed operation has done.
    pub completion: Completion,
    /// Stop request, if there was one.
    pub stop_request: Option<StopRequest>,
    /// Consecutive failed polls, since the last successful one.
    pub poll_failures: Option<PollFailures>,
}

/// Additional data of an operation on a volume snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeDetails {
    /// Name of the VolumeSnapshotLocation.
    pub location: String,
    /// Snapshot type, which decides if the snapshot is uploaded.
    pub snapshot_type: SnapshotType,
}

/// State of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Not yet started by the plugin.
    New,
    /// In progress.
    InProgress,
    /// Succeeded.
    Completed,
    /// Failed, with the reason.
    Failed(OperationFailure),
}

/// What a completed operation has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// The work of its kind.
    #[default]
    Done,
    /// Nothing: an upload by a plugin that has no upload stage.
    NothingToUpload,
}

impl State {
    /// True if the state is final.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed(_))
    }

    /// Name in metrics and messages.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::New => "New",
            Self::InProgress => "InProgress",
            Self::Completed => "Completed",
            Self::Failed(_) => "Failed",
        }
    }
}

/// Request to stop an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRequest {
    /// Cause of the request.
    pub cause: StopCause,
    /// Time of the request.
    pub since: Timestamp,
    /// Answer of the plugin, once known.
    pub answer: Option<Result<(), StopError>>,
}

/// Consecutive failed polls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollFailures {
    /// Number of failed polls.
    pub count: u32,
    /// Number of those whose error may or may not be transient.
    pub unclear: u32,
    /// Time of the first failure.
    pub since: Timestamp,
    /// Last error.
    pub error: String,
}

impl Operation {
    /// New operation that has just been started.
    pub fn started(
        kind: Kind,
        plugin: Name,
        item: ResourceIdentifier,
        id: OperationId,
        created: Timestamp,
        timeout: Duration,
    ) -> Self {
        Self {
            kind,
            plugin,
            item,
            id,
            volume: None,
            post_operation_items: Vec::new(),
            created,
            deadline: saturating_add(created, timeout),
            progress: Progress::default(),
            state: State::New,
            completion: Completion::default(),
            stop_request: None,
            poll_failures: None,
        }
    }

    /// True for an upload that was not started because its snapshot was not completed.
    pub fn was_not_started(&self) -> bool {
        self.kind == Kind::SnapshotUpload
            && self.state == State::Failed(OperationFailure::SnapshotNotCompleted)
    }
}

fn saturating_add(time: Timestamp, pause: Duration) -> Timestamp {
    time.checked_add(pause).unwrap_or(Timestamp::MAX)
}

/// Time from `earlier` to `now`; zero if `now` is not later.
fn duration_between(earlier: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(earlier).try_into().unwrap_or_default()
}
