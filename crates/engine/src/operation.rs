//! Work that plugins do behind a run, from its start to its one end.
//!
//! There is one state machine for all of it: [`step`] takes an [`Operation`], something that was
//! observed, and the time, and says what the operation is now and what to do about it. It is pure.
//! [`Tracker`] does what it says: it asks plugins, all side by side, and tells what it hears.
//!
//! | file | what it holds |
//! |---|---|
//! | `step` | the machine |
//! | `track` | the loop around it: polls, uploads, cancels, deadlines |
//! | `poll_limiter` | how often one plugin is asked |
//! | `slots` | how many uploads run at a time |
//! | `record` | the form in which Velero keeps operations in the bucket |

mod poll_limiter;
pub mod record;
mod slots;
mod step;
mod track;

use std::time::Duration;

use bowline_api::snapshot_type::SnapshotType;
use bowline_plugin::{Name, OperationId, Progress, ResourceIdentifier};
use jiff::Timestamp;

pub use poll_limiter::PollRateLimiter;
pub use slots::UploadSlots;
pub use step::{Effects, Observation, StopCause, step};
pub use track::{Counts, Deadlines, OperationClient, OperationTable, Tracker};

/// What kind of work an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A BackupItemAction's.
    ItemBackup,
    /// A RestoreItemAction's.
    ItemRestore,
    /// A VolumeSnapshotter completes a snapshot whose point in time is fixed.
    SnapshotCreation,
    /// A VolumeSnapshotter brings a snapshot to where it outlives its volume. It ends when the call
    /// returns that does it, and only then.
    SnapshotUpload,
}

impl Kind {
    /// As it is called in metrics and in what people read.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ItemBackup => "item-backup",
            Self::ItemRestore => "item-restore",
            Self::SnapshotCreation => "snapshot-creation",
            Self::SnapshotUpload => "snapshot-upload",
        }
    }

    /// Whether it is about the snapshot of a volume.
    pub fn is_of_volume(self) -> bool {
        matches!(self, Self::SnapshotCreation | Self::SnapshotUpload)
    }

    /// For how long what goes wrong is put up with.
    pub fn policy(self) -> Policy {
        match self {
            Self::ItemBackup | Self::ItemRestore | Self::SnapshotCreation => Policy::ITEM,
            Self::SnapshotUpload => Policy::UPLOAD,
        }
    }
}

/// For how long what goes wrong with an operation is put up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A plugin that is away or too slow.
    pub transient_limit: Duration,
    /// Errors of which nobody can say whether they pass: so many, or for so long.
    pub unclear_limit: (u32, Duration),
    /// An operation that was asked to stop, until it says that it has.
    pub stop_timeout: Duration,
}

impl Policy {
    const ITEM: Self = Self {
        transient_limit: Duration::from_mins(10),
        unclear_limit: (5, Duration::from_mins(2)),
        stop_timeout: Duration::from_secs(30),
    };

    /// An upload is begun anew after it has failed, and may have run for hours before.
    const UPLOAD: Self = Self {
        transient_limit: Duration::from_mins(30),
        unclear_limit: (3, Duration::from_hours(4)),
        stop_timeout: Duration::from_secs(30),
    };
}

/// Work that goes on behind a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What kind of work it is.
    pub kind: Kind,
    /// The plugin that does it.
    pub plugin: Name,
    /// The item that it was begun for.
    pub item: ResourceIdentifier,
    /// The plugin's name for it. That of a snapshot is the snapshot's.
    pub id: OperationId,
    /// What only operations on the snapshots of volumes have.
    pub volume: Option<VolumeDetails>,
    /// Items to store again when it has ended.
    pub post_operation_items: Vec<ResourceIdentifier>,
    /// When it was begun.
    pub created: Timestamp,
    /// When it must have ended.
    pub deadline: Timestamp,
    /// What the plugin last told of it.
    pub progress: Progress,
    /// Where it is.
    pub state: State,
    /// Why it was asked to stop, if it was.
    pub stop_request: Option<StopRequest>,
    /// Polls that failed one after the other, since the last that did not.
    pub poll_failures: Option<PollFailures>,
}

/// What an operation on the snapshot of a volume has besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeDetails {
    /// The VolumeSnapshotLocation.
    pub location: String,
    /// Whether the snapshot is to be uploaded.
    pub snapshot_type: SnapshotType,
}

/// Where an operation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The plugin has not begun.
    New,
    /// The plugin is at it.
    InProgress,
    /// It has succeeded.
    Completed,
    /// It has not, for this reason.
    Failed(String),
}

impl State {
    /// Whether nothing more will happen.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed(_))
    }

    /// Whether it has failed because its run was cancelled. Velero's file of operations keeps nothing of that but
    /// the reason, so the reason begins with it.
    pub fn is_canceled(&self) -> bool {
        matches!(self, Self::Failed(reason) if reason.starts_with(step::CANCELED))
    }

    /// As it is called in metrics and in what people read.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::New => "New",
            Self::InProgress => "InProgress",
            Self::Completed => "Completed",
            Self::Failed(_) => "Failed",
        }
    }
}

/// An operation that was asked to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRequest {
    /// Why.
    pub cause: StopCause,
    /// When.
    pub since: Timestamp,
    /// What came of asking, once that is known.
    pub answer: Option<Result<(), String>>,
}

/// Polls that failed one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollFailures {
    /// How many.
    pub count: u32,
    /// Of those, the ones of which nobody can say whether they pass.
    pub unclear: u32,
    /// Since when.
    pub since: Timestamp,
    /// The last.
    pub error: String,
}

impl Operation {
    /// One that was begun a moment ago.
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
            stop_request: None,
            poll_failures: None,
        }
    }
}

impl Operation {
    /// Whether it is an upload that was not begun, because its snapshot was not completed.
    pub fn was_not_started(&self) -> bool {
        let reason = track::SNAPSHOT_NOT_COMPLETED;
        matches!(&self.state, State::Failed(failure) if self.kind == Kind::SnapshotUpload && failure == reason)
    }

    /// Whether it is an upload by a plugin that has no upload stage.
    pub fn had_nothing_to_upload(&self) -> bool {
        self.kind == Kind::SnapshotUpload
            && self.state == State::Completed
            && self.progress.description == step::NOTHING_TO_UPLOAD
    }
}

/// The time that is so much later.
fn saturating_add(time: Timestamp, pause: Duration) -> Timestamp {
    time.checked_add(pause).unwrap_or(Timestamp::MAX)
}

/// How much later than another a time is; nothing if it is not.
fn duration_between(earlier: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(earlier).try_into().unwrap_or_default()
}
