//! Lifecycle of a slot's process: absent, starting, running, and finally closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bowline_plugin::{Code, Error};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::{Call, CallFailure, Purpose, Slot};
use crate::process::{Process, StartError};
use crate::warm_up;

/// The pause after the first failure; it doubles with each.
const FIRST_START_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const MAX_START_PAUSE: Duration = Duration::from_secs(5);

/// Guards the state; never held across an await.
#[derive(Debug, Default)]
pub(super) struct ProcessLifecycle(Mutex<LifecycleState>);

#[derive(Debug, Default)]
struct LifecycleState {
    stage: LifecycleStage,
    /// Failures since the last success.
    failures: u32,
    /// Earliest time of the next start.
    not_before: Option<Instant>,
}

#[derive(Debug, Default)]
enum LifecycleStage {
    #[default]
    NotRunning,
    Starting {
        outcome: StartOutcome,
        task: AbortHandle,
    },
    Running(Arc<RunningProcess>),
    Closed,
}

/// Delivers the outcome of a start to its waiters.
type StartOutcome = watch::Receiver<Option<Result<Arc<RunningProcess>, Error>>>;

/// A process that has been warmed up.
#[derive(Debug)]
pub(super) struct RunningProcess {
    process: Process,
    /// True if the process has answered a call since it was started.
    has_answered: AtomicBool,
    /// True if the process is running but cannot be reached any more.
    is_unreachable: AtomicBool,
}

impl RunningProcess {
    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    pub(super) fn mark_answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    pub(super) fn mark_unreachable(&self) {
        self.is_unreachable.store(true, Ordering::Relaxed);
    }

    fn is_usable(&self) -> bool {
        !self.process.has_ended() && !self.is_unreachable.load(Ordering::Relaxed)
    }
}

impl ProcessLifecycle {
    /// Closes the slot for good. Returns the process, if there is one, for a graceful stop.
    pub(super) fn close(&self) -> Option<Arc<RunningProcess>> {
        match std::mem::replace(&mut self.0.lock().stage, LifecycleStage::Closed) {
            LifecycleStage::Running(running) => Some(running),
            LifecycleStage::Starting { task, .. } => {
                task.abort();
                None
            }
            LifecycleStage::NotRunning | LifecycleStage::Closed => None,
        }
    }

    /// Takes the process out if `is_idle`, which is evaluated while no caller can obtain the
    /// process.
    pub(super) fn take_running_if(
        &self,
        is_idle: impl FnOnce() -> bool,
    ) -> Option<Arc<RunningProcess>> {
        let mut state = self.0.lock();
        if !matches!(state.stage, LifecycleStage::Running(_)) || !is_idle() {
            return None;
        }
        match std::mem::take(&mut state.stage) {
            LifecycleStage::Running(running) => Some(running),
            _ => None,
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        matches!(self.0.lock().stage, LifecycleStage::Starting { .. } | LifecycleStage::Running(_))
    }
}

impl Slot {
    /// A process that is ready for calls, started if necessary.
    pub(super) async fn running_process(self: &Arc<Self>) -> Result<Arc<RunningProcess>, Error> {
        let mut outcome = {
            let mut state = self.lifecycle.0.lock();
            state.detect_end();
            match &state.stage {
                LifecycleStage::Closed => return Err(self.closed_error()),
                LifecycleStage::Running(running) => return Ok(Arc::clone(running)),
                LifecycleStage::Starting { outcome, .. } => outcome.clone(),
                LifecycleStage::NotRunning => self.spawn_start(&mut state),
            }
        };
        let start_result =
            outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        // An abandoned start has no result.
        start_result.unwrap_or_else(|| Err(self.closed_error()))
    }

    fn spawn_start(self: &Arc<Self>, state: &mut LifecycleState) -> StartOutcome {
        let (outcome_sender, outcome) = watch::channel(None);
        let slot = Arc::clone(self);
        let not_before = state.not_before;
        let start = async move {
            if let Some(not_before) = not_before {
                tokio::time::sleep_until(not_before).await;
            }
            let started = slot.start().await.map(Arc::new);
            slot.lifecycle.0.lock().record_start(&started);
            outcome_sender.send_replace(Some(started));
        };
        // Log lines of item actions belong to their run; other processes serve many runs.
        let span = match self.purpose {
            Purpose::ItemActions(_) => Span::current(),
            Purpose::Configured { .. } => Span::none(),
        };
        let task = tokio::spawn(start.instrument(span)).abort_handle();
        state.stage = LifecycleStage::Starting { outcome: outcome.clone(), task };
        outcome
    }

    async fn start(&self) -> Result<RunningProcess, Error> {
        let started = Process::start(&self.command, &self.options).await;
        let process = started.map_err(|error| self.start_error(&error))?;
        let running = RunningProcess {
            process,
            has_answered: AtomicBool::new(false),
            is_unreachable: AtomicBool::new(false),
        };
        let limit = match self.purpose {
            Purpose::ItemActions(_) => self.options.limits.applies_to,
            Purpose::Configured { .. } => self.options.limits.metadata,
        };
        let (method, warmed) = warm_up::run(&running.process, &self.purpose, limit).await;
        let call = Call { method, limit, is_work: false };
        let failure = match warmed {
            Ok(Ok(())) => return Ok(running),
            Ok(Err(error)) => CallFailure::Returned(error),
            Err(warm_up::WarmUpTimeout) => CallFailure::NoAnswer,
        };
        let error = self.explain_failure(&running, call, failure).await;
        running.process.stop().await;
        Err(error)
    }

    /// A binary that is not a plugin will not become one at a retry.
    fn start_error(&self, error: &StartError) -> Error {
        let code = if error.is_permanent() { Code::FailedPrecondition } else { Code::Unavailable };
        Error::new(code, format!("{}: {}", self.plugin_label(), bowline_plugin::error_chain(error)))
    }
}

impl LifecycleState {
    /// Records that the process has ended, or cannot be reached.
    fn detect_end(&mut self) {
        let LifecycleStage::Running(running) = &self.stage else { return };
        if running.is_usable() {
            return;
        }
        if running.has_answered.load(Ordering::Relaxed) {
            self.failures = 0;
            self.not_before = None;
        } else {
            self.record_failure();
        }
        self.stage = LifecycleStage::NotRunning;
    }

    fn record_start(&mut self, started: &Result<Arc<RunningProcess>, Error>) {
        if matches!(self.stage, LifecycleStage::Closed) {
            return;
        }
        if let Ok(running) = started {
            self.stage = LifecycleStage::Running(Arc::clone(running));
        } else {
            self.record_failure();
            self.stage = LifecycleStage::NotRunning;
        }
    }

    fn record_failure(&mut self) {
        self.not_before = Some(Instant::now() + start_pause(self.failures));
        self.failures = self.failures.saturating_add(1);
    }
}

fn start_pause(failures: u32) -> Duration {
    FIRST_START_PAUSE.saturating_mul(2_u32.saturating_pow(failures)).min(MAX_START_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_between_starts_doubles_up_to_a_limit() {
        let pauses =
            [0, 1, 2, 5, 6, 40, u32::MAX].map(|failures| start_pause(failures).as_millis());
        assert_eq!(pauses, [100, 200, 400, 3200, 5000, 5000, 5000]);
    }
}
