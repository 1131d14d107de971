//! The life of a slot's process: not there, starting, running, and at last closed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_plugin::{Code, Error};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::{Call, Failure, Purpose, Slot};
use crate::process::{Process, StartError};
use crate::warm_up;

/// The pause after the first failure; it doubles with each.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Guards the state; never held over an await.
#[derive(Debug, Default)]
pub(super) struct Life(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    /// Failures since something last worked.
    failures: u32,
    /// No start before this.
    not_before: Option<Instant>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    NotThere,
    Starting {
        outcome: Outcome,
        task: AbortHandle,
    },
    Running(Arc<Running>),
    Closed,
}

/// Where those who wait for a start hear of it.
type Outcome = watch::Receiver<Option<Result<Arc<Running>, Error>>>;

/// A process that has been warmed up.
#[derive(Debug)]
pub(super) struct Running {
    process: Process,
    /// Whether it has answered a call since it was started.
    has_answered: AtomicBool,
    /// Whether there is no way to it any more although it runs.
    is_cut_off: AtomicBool,
}

impl Running {
    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    pub(super) fn note_answer(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    pub(super) fn cut_off(&self) {
        self.is_cut_off.store(true, Ordering::Relaxed);
    }

    fn is_usable(&self) -> bool {
        !self.process.has_ended() && !self.is_cut_off.load(Ordering::Relaxed)
    }
}

impl Life {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it for good. Returns the process, if there is one, for a courteous end.
    pub(super) fn close(&self) -> Option<Arc<Running>> {
        match std::mem::replace(&mut self.lock().stage, Stage::Closed) {
            Stage::Running(running) => Some(running),
            Stage::Starting { task, .. } => {
                task.abort();
                None
            }
            Stage::NotThere | Stage::Closed => None,
        }
    }

    /// Takes the process away if `is_idle`, which is asked while nobody can get hold of it.
    pub(super) fn take_if(&self, is_idle: impl FnOnce() -> bool) -> Option<Arc<Running>> {
        let mut state = self.lock();
        if !matches!(state.stage, Stage::Running(_)) || !is_idle() {
            return None;
        }
        match std::mem::take(&mut state.stage) {
            Stage::Running(running) => Some(running),
            _ => None,
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        matches!(self.lock().stage, Stage::Starting { .. } | Stage::Running(_))
    }
}

impl Slot {
    /// A process that is ready for calls, started if need be.
    pub(super) async fn running(self: &Arc<Self>) -> Result<Arc<Running>, Error> {
        let mut outcome = {
            let mut state = self.life.lock();
            state.notice_an_end();
            match &state.stage {
                Stage::Closed => return Err(self.closed()),
                Stage::Running(running) => return Ok(Arc::clone(running)),
                Stage::Starting { outcome, .. } => outcome.clone(),
                Stage::NotThere => self.begin_to_start(&mut state),
            }
        };
        let told = outcome.wait_for(Option::is_some).await.ok().and_then(|told| told.clone());
        // A start that was given up tells nothing.
        told.unwrap_or_else(|| Err(self.closed()))
    }

    fn begin_to_start(self: &Arc<Self>, state: &mut State) -> Outcome {
        let (tell, outcome) = watch::channel(None);
        let slot = Arc::clone(self);
        let not_before = state.not_before;
        let start = async move {
            if let Some(not_before) = not_before {
                tokio::time::sleep_until(not_before).await;
            }
            let started = slot.start().await.map(Arc::new);
            slot.life.lock().note_start(&started);
            tell.send_replace(Some(started));
        };
        // What item actions log belongs to their run; other processes serve many.
        let span = match self.purpose {
            Purpose::ItemActions(_) => Span::current(),
            Purpose::Configured { .. } => Span::none(),
        };
        let task = tokio::spawn(start.instrument(span)).abort_handle();
        state.stage = Stage::Starting { outcome: outcome.clone(), task };
        outcome
    }

    async fn start(&self) -> Result<Running, Error> {
        let started = Process::start(&self.command, &self.options).await;
        let process = started.map_err(|error| self.start_error(&error))?;
        let running = Running {
            process,
            has_answered: AtomicBool::new(false),
            is_cut_off: AtomicBool::new(false),
        };
        let limit = match self.purpose {
            Purpose::ItemActions(_) => self.options.limits.applies_to,
            Purpose::Configured { .. } => self.options.limits.metadata,
        };
        let (method, warmed) = warm_up::run(&running.process, &self.purpose, limit).await;
        let call = Call { method, limit, is_work: false };
        let failure = match warmed {
            Ok(Ok(())) => return Ok(running),
            Ok(Err(error)) => Failure::Told(error),
            Err(warm_up::TooLong) => Failure::NoAnswer,
        };
        let error = self.explain(&running, call, failure).await;
        running.process.stop().await;
        Err(error)
    }

    /// A binary that cannot be a plugin will not be one at the next try either.
    fn start_error(&self, error: &StartError) -> Error {
        let code = if error.is_permanent() { Code::FailedPrecondition } else { Code::Unavailable };
        Error::new(code, format!("{}: {}", self.what(), bowline_plugin::one_line(error)))
    }
}

impl State {
    /// Takes note that the process has ended, or cannot be reached.
    fn notice_an_end(&mut self) {
        let Stage::Running(running) = &self.stage else { return };
        if running.is_usable() {
            return;
        }
        if running.has_answered.load(Ordering::Relaxed) {
            self.failures = 0;
            self.not_before = None;
        } else {
            self.note_failure();
        }
        self.stage = Stage::NotThere;
    }

    fn note_start(&mut self, started: &Result<Arc<Running>, Error>) {
        if matches!(self.stage, Stage::Closed) {
            return;
        }
        if let Ok(running) = started {
            self.stage = Stage::Running(Arc::clone(running));
        } else {
            self.note_failure();
            self.stage = Stage::NotThere;
        }
    }

    fn note_failure(&mut self) {
        self.not_before = Some(Instant::now() + pause(self.failures));
        self.failures = self.failures.saturating_add(1);
    }
}

fn pause(failures: u32) -> Duration {
    PAUSE_FIRST.saturating_mul(2_u32.saturating_pow(failures)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_between_starts_doubles_up_to_a_limit() {
        let pauses = [0, 1, 2, 5, 6, 40, u32::MAX].map(|failures| pause(failures).as_millis());
        assert_eq!(pauses, [100, 200, 400, 3200, 5000, 5000, 5000]);
    }
}
