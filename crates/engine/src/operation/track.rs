//! Loop around the state machine: polls all operations of a run concurrently, until each has ended.
//!
//! A poll that hangs delays only its own operation, and not beyond its deadline.

mod upload;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{Code, Error, Progress, Result};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::poll_limiter::PollRateLimiter;
use super::slots::UploadSlots;
use super::step::{Effects, Observation, StopCause, step};
use super::{Kind, Operation, State, StopError, duration_between};

/// Calls to plugins about their operations.
#[async_trait]
pub trait OperationClient: Send + Sync {
    /// Polls the progress of an operation.
    async fn progress(&self, operation: &Operation) -> Result<Progress>;

    /// Requests an operation to stop.
    async fn cancel(&self, operation: &Operation) -> Result<()>;

    /// Carries out an upload, and returns when it has ended.
    async fn upload(&self, operation: &Operation) -> Result<()> {
        Err(Error::new(Code::Internal, format!("uploads are not supported here: {}", operation.id)))
    }
}

/// Timeouts of plugin calls, and the pause between polls.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Timeout of one poll.
    pub poll: Duration,
    /// Timeout of one stop request.
    pub cancel: Duration,
    /// Maximum pause between two polls.
    pub longest_pause: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            poll: Duration::from_mins(1),
            cancel: Duration::from_secs(20),
            longest_pause: Duration::from_secs(10),
        }
    }
}

/// Operations of a run, shared with all observers.
#[derive(Debug)]
pub struct OperationTable {
    operations: Mutex<Vec<Operation>>,
    changes: watch::Sender<u64>,
    /// Flags of the operations that have ended and whose end survives a kill.
    saved: watch::Sender<Vec<bool>>,
}

/// Number of operations by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All operations.
    pub attempted: usize,
    /// Completed operations.
    pub completed: usize,
    /// Failed operations.
    pub failed: usize,
}

impl Counts {
    /// Counts operations.
    pub fn of<'a>(operations: impl IntoIterator<Item = &'a Operation>) -> Self {
        let mut counts = Self::default();
        for operation in operations {
            counts.attempted += 1;
            match operation.state {
                State::Completed => counts.completed += 1,
                State::Failed(_) => counts.failed += 1,
                State::New | State::InProgress => {}
            }
        }
        counts
    }
}

impl OperationTable {
    /// Table of these operations, in their given states.
    pub fn new(operations: Vec<Operation>) -> Self {
        let saved = watch::Sender::new(terminal_flags(&operations));
        Self { operations: Mutex::new(operations), changes: watch::Sender::new(0), saved }
    }

    /// Records that operations were saved where another process finds them.
    pub fn mark_saved(&self, operations: &[Operation]) {
        self.saved.send_replace(terminal_flags(operations));
    }

    /// Current state of all operations.
    pub fn operations(&self) -> Vec<Operation> {
        self.operations.lock().clone()
    }

    /// Number of operations by outcome.
    pub fn counts(&self) -> Counts {
        Counts::of(self.operations.lock().iter())
    }

    /// Receiver that changes whenever an operation does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Index and state of the first matching operation.
    fn find(&self, is_meant: impl Fn(&Operation) -> bool) -> Option<(usize, State)> {
        let operations = self.operations.lock();
        let index = operations.iter().position(is_meant)?;
        Some((index, operations[index].state.clone()))
    }

    /// Waits until the end of an operation survives a kill.
    async fn wait_until_saved(&self, index: usize) {
        let mut saved = self.saved.subscribe();
        // The sender is ours, so it cannot be dropped.
        let _ = saved.wait_for(|written| written.get(index).copied().unwrap_or_default()).await;
    }

    fn get(&self, index: usize) -> Option<Operation> {
        self.operations.lock().get(index).cloned()
    }

    fn set(&self, index: usize, operation: Operation) {
        if let Some(entry) = self.operations.lock().get_mut(index) {
            *entry = operation;
        }
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// Flags of the operations that have ended.
fn terminal_flags(operations: &[Operation]) -> Vec<bool> {
    operations.iter().map(|operation| operation.state.is_terminal()).collect()
}

/// Tracks the operations of a run until they end.
pub struct Tracker<'a> {
    /// Tracked operations.
    pub table: Arc<OperationTable>,
    /// Client for the calls to plugins.
    pub client: &'a dyn OperationClient,
    /// Limit on how often one plugin is polled.
    pub poll_limiter: &'a PollRateLimiter,
    /// Timeouts of plugin calls.
    pub deadlines: Deadlines,
    /// Slots for uploads, shared by all runs.
    pub uploads: &'a UploadSlots,
}

impl Tracker<'_> {
    /// Returns when all operations have ended, or when `stop` is cancelled: then they stay as they
    /// are, for another process to track. When `cancel` is cancelled, all operations are requested
    /// to stop, with `reason`.
    pub async fn run(&self, cancel: &CancellationToken, reason: &str, stop: &CancellationToken) {
        let indexes = 0..self.table.operations().len();
        let all: FuturesUnordered<_> = indexes
            .map(|index| async move {
                match self.table.get(index).map(|operation| operation.kind) {
                    Some(Kind::SnapshotUpload) => self.upload(index, cancel, reason).await,
                    _ => self.track(index, cancel, reason).await,
                }
            })
            .collect();
        tokio::select! {
            () = all.for_each(|()| std::future::ready(())) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Tracks one operation until it ends.
    async fn track(&self, index: usize, cancel: &CancellationToken, reason: &str) {
        if self.has_ended(index) {
            return;
        }
        // The operation may have ended long ago, during the life of another process or while the
        // items of a large run were collected. So it is polled once before its deadline can decide.
        let mut is_first = true;
        let mut effects = Effects { poll_at: Some(Timestamp::now()), ..Effects::default() };
        loop {
            if effects.cancel {
                let after_stop_request = self.request_stop(index).await;
                if effects.ended {
                    return;
                }
                effects = after_stop_request;
                continue;
            }
            let Some(poll_at) = effects.poll_at else { return };
            let may_be_canceled = !self.is_stopping(index);
            let canceled = async {
                if may_be_canceled {
                    cancel.cancelled().await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            let polled = self.poll(index, poll_at, is_first);
            is_first = false;
            effects = tokio::select! {
                biased;
                () = canceled => {
                    self.observe(index, Observation::StopRequested(StopCause::Canceled(reason.to_owned())))
                }
                observation = polled => self.observe(index, observation),
            };
        }
    }

    fn has_ended(&self, index: usize) -> bool {
        self.table.get(index).is_none_or(|operation| operation.state.is_terminal())
    }

    fn is_stopping(&self, index: usize) -> bool {
        self.table.get(index).is_some_and(|operation| operation.stop_request.is_some())
    }

    /// Waits until the given time, and polls. A poll after the deadline is not awaited, unless it
    /// is the first.
    async fn poll(&self, index: usize, at: Timestamp, is_first: bool) -> Observation {
        tokio::time::sleep(duration_between(Timestamp::now(), at)).await;
        let Some(operation) = self.table.get(index) else { return Observation::TimePassed };
        let is_late = Timestamp::now() >= operation.deadline;
        if is_late && !is_first {
            return Observation::TimePassed;
        }
        // An operation that is to stop has little time to confirm it.
        if operation.stop_request.is_none() {
            self.poll_limiter.wait(&operation.plugin).await;
        }
        let limit = match duration_between(Timestamp::now(), poll_deadline(&operation)) {
            _ if is_late => self.deadlines.poll,
            remaining => self.deadlines.poll.min(remaining),
        };
        match timeout(limit, self.client.progress(&operation)).await {
            Ok(Ok(progress)) => Observation::Progressed(progress),
            Ok(Err(error)) => Observation::PollFailed(error),
            Err(_) => Observation::PollFailed(Error::new(
                Code::DeadlineExceeded,
                format!("the plugin has not answered within {} s", limit.as_secs()),
            )),
        }
    }

    async fn request_stop(&self, index: usize) -> Effects {
        let Some(operation) = self.table.get(index) else { return Effects::default() };
        let limit = self.deadlines.cancel;
        let answer = match timeout(limit, self.client.cancel(&operation)).await {
            Ok(answer) => answer.map_err(StopError::from),
            Err(_) => Err(StopError::NoAnswer(limit)),
        };
        self.observe(index, Observation::StopAnswered(answer))
    }

    /// Applies an observation.
    fn observe(&self, index: usize, observation: Observation) -> Effects {
        let Some(operation) = self.table.get(index) else { return Effects::default() };
        let longest = self.deadlines.longest_pause;
        let (next, effects) = step(&operation, observation, longest, Timestamp::now());
        if effects.changed {
            log_change(&operation, &next);
            self.table.set(index, next);
        }
        effects
    }
}

/// Latest time at which a poll is still useful.
fn poll_deadline(operation: &Operation) -> Timestamp {
    match &operation.stop_request {
        Some(stopping) => {
            super::saturating_add(stopping.since, operation.kind.policy().stop_timeout)
        }
        None => operation.deadline,
    }
}

fn log_change(before: &Operation, now: &Operation) {
    let (operation, item, plugin) = (&now.id, &now.item, &now.plugin);
    match &now.state {
        State::Completed => tracing::info!(%item, %plugin, %operation, "the operation completed"),
        State::Failed(reason) => {
            tracing::warn!(%item, %plugin, %operation, "the operation failed: {reason}");
        }
        State::New | State::InProgress => {
            if let (None, Some(failures)) = (&before.poll_failures, &now.poll_failures) {
                let error = &failures.error;
                tracing::info!(
                    %item,
                    %plugin,
                    %operation,
                    "the progress could not be read; retrying: {error}"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
