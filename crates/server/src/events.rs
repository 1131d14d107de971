//! Kubernetes Events at the milestones of a run, for `kubectl describe` and `kubectl events`.
//!
//! Events are for people, and nothing depends on them. So an Event that cannot be written is only a
//! debug line in the log, and takes little time from the run. Events need the permissions to create
//! and patch `events` of `events.k8s.io` in the namespace of the run.
//!
//! # Caveats
//! The name of an Event is that of its object plus 17 characters, so an object with a name of more
//! than 236 characters has no Events.

use std::fmt;
use std::time::Duration;

use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Client, Resource};

use crate::error_text::status_message;
use crate::run_state::{FailureReason, TerminalPhase};

/// Reporting controller of Events.
const CONTROLLER: &str = "bowline";
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Progress that leads to an Event, in percent.
const QUARTERS: [u8; 3] = [75, 50, 25];

/// Milestone of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// Start of the run.
    Started,
    /// Progress of the items; see [`newly_passed_quarter`].
    Progress {
        /// Quarter that was passed.
        percent: u8,
        /// Number of processed items.
        items_done: u64,
        /// Number of known items.
        items_total: u64,
    },
    /// All items are processed, and operations of plugins continue in the background.
    OperationsStarted {
        /// Number of operations.
        count: usize,
    },
    /// Some operations have ended.
    OperationsProgress {
        /// Number of ended operations.
        ended: usize,
        /// Number of all operations.
        total: usize,
    },
    /// End of the run.
    Ended {
        /// Final phase.
        phase: TerminalPhase,
    },
    /// The restore waits for namespaces that are being deleted.
    WaitingForNamespaces {
        /// Number of these namespaces.
        count: usize,
    },
    /// Cancellation was requested.
    Canceling,
    /// The run has stopped after a cancellation.
    Canceled,
    /// The run has ended, and is being deleted.
    Deleting,
    /// The deletion failed, at least in part.
    NotDeleted,
    /// The backups of a location could not be synchronized.
    NotSynced,
    /// The backup has expired, but its deletion is on hold.
    RetentionHeld,
    /// Scratch files of the run cannot be deleted.
    ScratchFilesLeft,
    /// The run waits for its bucket.
    BucketLost,
    /// The run resumes after a restart of the server.
    Resumed {
        /// Number of this attempt.
        attempt: u32,
    },
}

/// Quarter passed since `last_reported` percent, if there is one: 25, 50 or 75. Completion is
/// reported by the next milestone.
pub fn newly_passed_quarter(last_reported: u8, done: u64, total: u64) -> Option<u8> {
    (done < total).then(|| quarter(done, total)).filter(|quarter| *quarter > last_reported)
}

/// Last quarter that was passed; 0 for none.
fn quarter(done: u64, total: u64) -> u8 {
    let is_passed = |percent: &u8| {
        u128::from(done) * 100 >= u128::from(total) * u128::from(*percent) && total > 0
    };
    QUARTERS.into_iter().find(is_passed).unwrap_or(0)
}

impl Milestone {
    /// Final milestone of a run with this phase and failure reason.
    pub(crate) fn from_terminal_phase(phase: TerminalPhase, failure_reason: &str) -> Self {
        if phase == TerminalPhase::Failed && FailureReason::from(failure_reason).is_canceled() {
            Self::Canceled
        } else {
            Self::Ended { phase }
        }
    }

    /// Event of a milestone of an object.
    ///
    /// The recorder merges Events with the same reason and action: it counts them and keeps the
    /// text of the first. So milestones to be shown separately have different actions.
    pub fn event<K: Resource<DynamicType = ()>>(self, object: &K) -> Event {
        let normal = |reason: &str, note: String| (EventType::Normal, reason.to_owned(), note);
        let mut action = None;
        let mut set_distinct_action = |what: &str, number: &dyn fmt::Display| {
            action = Some(format!("{what}{number}"));
        };
        let (type_, reason, note) = match self {
            Self::Started => normal("Started", "run started".to_owned()),
            Self::Progress { percent, items_done, items_total } => {
                set_distinct_action("Progress", &percent);
                let note = format!("{percent} % done: {items_done} of {items_total} known items");
                normal("Progress", note)
            }
            Self::OperationsStarted { count } => {
                let operations = if count == 1 { "operation" } else { "operations" };
                let note = format!("waiting for {count} plugin {operations}");
                normal("OperationsStarted", note)
            }
            Self::OperationsProgress { ended, total } => {
                set_distinct_action("OperationsProgress", &quarter(ended as u64, total as u64));
                let note = format!("{ended} of {total} plugin operations have ended");
                normal("OperationsProgress", note)
            }
            Self::Ended { phase: TerminalPhase::Completed } => {
                normal("Completed", "run completed".to_owned())
            }
            Self::Ended { phase } => {
                let noun = K::kind(&()).to_lowercase();
                let name = object.meta().name.as_deref().unwrap_or_default();
                let phase_name = phase.as_str();
                let note =
                    format!("run ended as {phase_name}; see `bowline {noun} describe {name}`");
                (EventType::Warning, phase.as_str().to_owned(), note)
            }
            Self::WaitingForNamespaces { count } => {
                set_distinct_action("WaitingForNamespaces", &count);
                let (namespaces, are) = match count {
                    1 => ("namespace", "is"),
                    _ => ("namespaces", "are"),
                };
                let note = format!(
                    "waiting for {count} terminating {namespaces}; see the log of the restore"
                );
                (EventType::Warning, "WaitingForNamespaces".to_owned(), note)
            }
            Self::Canceling => normal("Canceling", "cancellation requested".to_owned()),
            Self::Canceled => normal("Canceled", "run canceled on request".to_owned()),
            Self::Deleting => normal("Deleting", "deletion started".to_owned()),
            Self::NotDeleted => {
                let note = "deletion failed; see the status of the DeleteBackupRequest".to_owned();
                (EventType::Warning, "DeletionFailed".to_owned(), note)
            }
            Self::NotSynced => {
                let note = "backups could not be synced into the cluster; see the condition Synced"
                    .to_owned();
                (EventType::Warning, "SyncFailed".to_owned(), note)
            }
            Self::RetentionHeld => {
                let note =
                    "the deletion of the expired backup is delayed: the rate limit is reached, or \
                     clocks differ; see the server's log"
                        .to_owned();
                (EventType::Warning, "RetentionDelayed".to_owned(), note)
            }
            Self::ScratchFilesLeft => {
                let note = "scratch files stay in the bucket, because they cannot be deleted; the server's log names \
                            them";
                (EventType::Warning, "ScratchFilesRemain".to_owned(), note.to_owned())
            }
            Self::BucketLost => {
                let note =
                    "the bucket is unavailable, and the run waits for it; see the server's log";
                (EventType::Warning, "BucketUnavailable".to_owned(), note.to_owned())
            }
            Self::Resumed { attempt } => {
                set_distinct_action("Resumed", &attempt);
                normal("Resumed", format!("run resumed, attempt {attempt}"))
            }
        };
        let action = action.unwrap_or_else(|| reason.clone());
        Event { type_, reason, note: Some(note), action, secondary: None }
    }
}

/// Publisher of Events.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// Publisher of this server's Events.
    pub fn new(client: Client) -> Self {
        Self { recorder: Recorder::new(client, CONTROLLER.into()) }
    }

    /// Publishes a milestone of a Backup or Restore, on a best-effort basis.
    pub async fn publish<K>(&self, run: &K, milestone: Milestone)
    where
        K: Resource<DynamicType = ()>,
    {
        let (event, reference) = (milestone.event(run), run.object_ref(&()));
        let reason = &event.reason;
        match tokio::time::timeout(PUBLISH_TIMEOUT, self.recorder.publish(&event, &reference)).await
        {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = status_message(&error);
                tracing::debug!(reason, error, "an Event could not be written");
            }
            Err(_) => {
                let limit = PUBLISH_TIMEOUT.as_secs();
                tracing::debug!(reason, "an Event could not be written within {limit} s");
            }
        }
    }
}

#[cfg(test)]
mod tests;
