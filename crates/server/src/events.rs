//! What `kubectl describe` and `kubectl events` show of a run while it goes on: Kubernetes Events at
//! its milestones.
//!
//! Events are for people, and nothing depends on them. So an Event that cannot be written is a line
//! in the log for those who look closely, and takes little time from the run. It needs the rights to
//! create and patch `events` of `events.k8s.io` in the namespace of the run.
//!
//! # Caveats
//! The name of an Event is that of its object and 17 characters more, so that an object with a name
//! of more than 236 characters has none.

use std::fmt;
use std::time::Duration;

use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Client, Resource};

use crate::controllers::CANCELED_PREFIX;
use crate::error_text::status_message;
use crate::run_state::TerminalPhase;

/// Who Events are from.
const CONTROLLER: &str = "bowline";
/// How long writing one may take.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The progress that is worth an Event, in percent.
const QUARTERS: [u8; 3] = [75, 50, 25];

/// What is worth telling of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// It has started.
    Started,
    /// So much is through; see [`newly_passed_quarter`].
    Progress {
        /// The quarter that was passed.
        percent: u8,
        /// Items that are through.
        items_done: u64,
        /// Items known of.
        items_total: u64,
    },
    /// All items are through, and plugins go on in the background.
    OperationsStarted {
        /// How many operations there are.
        count: usize,
    },
    /// Some of these have ended.
    OperationsProgress {
        /// How many.
        ended: usize,
        /// Of how many.
        total: usize,
    },
    /// It is over.
    Ended {
        /// How it ended.
        phase: TerminalPhase,
    },
    /// It waits for namespaces that are being deleted.
    WaitingForNamespaces {
        /// How many.
        count: usize,
    },
    /// It was asked to stop.
    Canceling,
    /// It has stopped, because it was asked to.
    Canceled,
    /// It is over, and is being deleted.
    Deleting,
    /// It could not be deleted, or not wholly.
    NotDeleted,
    /// The backups of a location could not be brought into the cluster.
    NotSynced,
    /// Its time is over, and it is not deleted for now.
    RetentionHeld,
    /// It waits for its bucket.
    BucketLost,
    /// It goes on after the server was away.
    Resumed {
        /// How often it was begun by now.
        attempt: u32,
    },
}

/// The quarter that has been passed since `last_reported` percent were told, if one has: 25, 50 or 75. That
/// all is through is told by what comes next.
pub fn newly_passed_quarter(last_reported: u8, done: u64, total: u64) -> Option<u8> {
    (done < total).then(|| quarter(done, total)).filter(|quarter| *quarter > last_reported)
}

/// The last quarter that was passed; 0 if none was.
fn quarter(done: u64, total: u64) -> u8 {
    let is_passed = |percent: &u8| {
        u128::from(done) * 100 >= u128::from(total) * u128::from(*percent) && total > 0
    };
    QUARTERS.into_iter().find(is_passed).unwrap_or(0)
}

impl Milestone {
    /// The end of a run that failed for a reason, if it did.
    pub(crate) fn from_terminal_phase(phase: TerminalPhase, failure_reason: &str) -> Self {
        if phase == TerminalPhase::Failed && failure_reason.starts_with(CANCELED_PREFIX) {
            Self::Canceled
        } else {
            Self::Ended { phase }
        }
    }

    /// The Event that tells it.
    ///
    /// Events with the same reason and action are one to the recorder, which then counts them and
    /// keeps the first one's text. So the action tells apart what is to be seen apart.
    pub fn event(self) -> Event {
        let normal = |reason: &str, note: String| (EventType::Normal, reason.to_owned(), note);
        let mut action = None;
        let mut set_distinct_action = |what: &str, number: &dyn fmt::Display| {
            action = Some(format!("{what}{number}"));
        };
        let (type_, reason, note) = match self {
            Self::Started => normal("Started", "it has started".to_owned()),
            Self::Progress { percent, items_done, items_total } => {
                set_distinct_action("Progress", &percent);
                let note =
                    format!("past {percent} %: {items_done} of {items_total} items known so far");
                normal("Progress", note)
            }
            Self::OperationsStarted { count } => {
                let operations = if count == 1 { "operation" } else { "operations" };
                let note = format!("waits for {count} {operations} of plugins");
                normal("OperationsStarted", note)
            }
            Self::OperationsProgress { ended, total } => {
                set_distinct_action("OperationsProgress", &quarter(ended as u64, total as u64));
                let note = format!("{ended} of {total} operations of plugins have ended");
                normal("OperationsProgress", note)
            }
            Self::Ended { phase: TerminalPhase::Completed } => {
                normal("Completed", "it has ended as Completed".to_owned())
            }
            Self::Ended { phase } => {
                let note = format!("it has ended as {}; its status says why", phase.as_str());
                (EventType::Warning, phase.as_str().to_owned(), note)
            }
            Self::WaitingForNamespaces { count } => {
                set_distinct_action("WaitingForNamespaces", &count);
                let (namespaces, are, them) = match count {
                    1 => ("namespace", "is", "it"),
                    _ => ("namespaces", "are", "them"),
                };
                let note = format!(
                    "the restore waits until {count} {namespaces} that it restores into, and that {are} \
                     being deleted, {are} gone; its log names {them}"
                );
                (EventType::Warning, "WaitingForNamespaces".to_owned(), note)
            }
            Self::Canceling => normal("Canceling", "it was asked to stop".to_owned()),
            Self::Canceled => {
                normal("Canceled", "it has stopped, because it was asked to".to_owned())
            }
            Self::Deleting => normal("Deleting", "it is being deleted".to_owned()),
            Self::NotDeleted => {
                let note = "it could not be deleted; its DeleteBackupRequest says why".to_owned();
                (EventType::Warning, "NotDeleted".to_owned(), note)
            }
            Self::NotSynced => {
                let note =
                    "its backups could not be brought into the cluster; the condition Synced \
                            says why"
                        .to_owned();
                (EventType::Warning, "NotSynced".to_owned(), note)
            }
            Self::RetentionHeld => {
                let note = "it has expired and is not deleted for now: too many expire at once, or the \
                            clocks of the server and of the API server differ; the log of the server \
                            says which"
                    .to_owned();
                (EventType::Warning, "RetentionHeld".to_owned(), note)
            }
            Self::BucketLost => {
                let note =
                    "waiting for the bucket, which cannot be used; the server's log says why";
                (EventType::Warning, "BucketLost".to_owned(), note.to_owned())
            }
            Self::Resumed { attempt } => {
                set_distinct_action("Resumed", &attempt);
                normal("Resumed", format!("it goes on after an interruption, attempt {attempt}"))
            }
        };
        let action = action.unwrap_or_else(|| reason.clone());
        Event { type_, reason, note: Some(note), action, secondary: None }
    }
}

/// Writes Events.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// Events of this server.
    pub fn new(client: Client) -> Self {
        Self { recorder: Recorder::new(client, CONTROLLER.into()) }
    }

    /// Tells a milestone of a Backup or Restore, as far as that can be done.
    pub async fn publish<K>(&self, run: &K, milestone: Milestone)
    where
        K: Resource<DynamicType = ()>,
    {
        let (event, reference) = (milestone.event(), run.object_ref(&()));
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
