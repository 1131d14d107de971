//! Where the calls to one plugin process go, whether it runs at the moment or not.
//!
//! # Guarantees
//! - The process is started at the first call, and again at the next call after it has died.
//! - Before anything else it is *warmed up*: each plugin in it is called once, one after the other.
//!   Go plugins write an unlocked map at the first call of a name, and die if two come at once.
//!   Stores and snapshotters get their `Init` in the same way, after a restart, too.
//! - A call has a limit, and ends with a precise error when the process dies in it. It is not tried
//!   again: only its caller knows whether that is safe.
//! - Starts that fail, and processes that die before they have answered anything, are tried again
//!   after a pause that grows. Callers that waited for a start share its failure.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bowline_plugin::{Code, Config, Error};
use bowline_plugin_wire::{Connection, client};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::process::{Process, chain};
use crate::registry::Plugin;
use crate::{Options, warm_up};

/// The pause after the first failure; it doubles with each.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long a connection error waits for the end of the process that would explain it.
const END_GRACE: Duration = Duration::from_millis(500);

/// What a process is for, and so what it is told after each start.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// The item actions of a binary, all of them.
    ItemActions(Vec<Plugin>),
    /// One store or snapshotter with one configuration.
    Configured { plugin: Plugin, config: Config },
}

#[derive(Debug)]
pub(crate) struct Slot {
    command: PathBuf,
    options: Arc<Options>,
    purpose: Purpose,
    permits: Arc<Semaphore>,
    state: Mutex<State>,
    /// How many starts have failed, ever.
    failed_starts: AtomicU64,
    /// Counted in milliseconds since `created`.
    last_used: AtomicU64,
    created: Instant,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Arc<Running>>,
    /// Failures since something last worked.
    failures: u32,
    last_failure: Option<Error>,
    /// No start before this.
    not_before: Option<Instant>,
    closed: bool,
}

#[derive(Debug)]
struct Running {
    process: Process,
    /// Whether it has answered a call since it was started.
    has_answered: AtomicBool,
    /// Whether its connection broke although it runs.
    is_cut_off: AtomicBool,
}

impl Slot {
    pub(crate) fn new(command: &Path, options: Arc<Options>, purpose: Purpose) -> Self {
        Self {
            command: command.to_owned(),
            purpose,
            permits: Arc::new(Semaphore::new(options.concurrency)),
            state: Mutex::default(),
            failed_starts: AtomicU64::new(0),
            last_used: AtomicU64::new(0),
            created: Instant::now(),
            options,
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The configuration that its store or snapshotter has.
    pub(crate) fn config(&self) -> Option<&Config> {
        match &self.purpose {
            Purpose::Configured { config, .. } => Some(config),
            Purpose::ItemActions(_) => None,
        }
    }

    /// Makes a call: `work` gets a connection to a process that is warmed up, and ends within
    /// `limit`.
    ///
    /// A process that died unnoticed since the last call is replaced: the call has not reached it,
    /// so it is safe to make it again.
    pub(crate) async fn call<T, F>(
        self: &Arc<Self>,
        method: &'static str,
        limit: Duration,
        work: impl Fn(Connection) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let session = self.enter().await?;
        match session.attempt(method, limit, work(session.connection())).await {
            Err(error) if Connection::was_lost_before(&error) => {
                session.running.is_cut_off.store(true, Ordering::Relaxed);
                drop(session);
                let session = self.enter().await?;
                session.call(method, limit, &work).await
            }
            Err(error) => Err(session.explain(method, error).await),
            Ok(value) => Ok(value),
        }
    }

    /// Waits for a place among those that may call at the same time, and for a process to call.
    pub(crate) async fn enter(self: &Arc<Self>) -> Result<Session, Error> {
        let permits = Arc::clone(&self.permits);
        let permit = permits.acquire_owned().await.map_err(|_| self.closed())?;
        self.touch();
        let running = self.running().await?;
        Ok(Session { slot: Arc::clone(self), running, _permit: permit })
    }

    /// Ends the process, if there is one; the next call starts another.
    pub(crate) async fn stop(&self) {
        let running = self.state.lock().await.running.take();
        if let Some(running) = running {
            running.process.stop().await;
        }
    }

    /// Ends the process for good. Calls that come later fail.
    pub(crate) async fn close(&self) {
        self.state.lock().await.closed = true;
        self.stop().await;
    }

    /// Ends the process if nobody has used it for as long as an idle one is kept.
    pub(crate) async fn stop_if_idle(&self) {
        let idle = self.created.elapsed().saturating_sub(self.last_used());
        let unused = self.permits.available_permits() == self.options.concurrency;
        if unused && idle >= self.options.limits.idle {
            self.stop().await;
        }
    }

    /// Whether there may be a process; only "no" is certain.
    pub(crate) fn may_run(&self) -> bool {
        self.state.try_lock().map_or(true, |state| state.running.is_some())
    }

    fn last_used(&self) -> Duration {
        Duration::from_millis(self.last_used.load(Ordering::Relaxed))
    }

    fn touch(&self) {
        let now = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_used.store(now, Ordering::Relaxed);
    }

    fn what(&self) -> String {
        format!("plugin {}", self.command.display())
    }

    fn closed(&self) -> Error {
        Error::new(Code::Cancelled, format!("{} is no longer used", self.what()))
    }

    /// A process that is ready for calls, started if need be.
    async fn running(&self) -> Result<Arc<Running>, Error> {
        let failures_before = self.failed_starts.load(Ordering::Acquire);
        let mut state = self.state.lock().await;
        if state.closed {
            return Err(self.closed());
        }
        if let Some(running) = state.running.take() {
            if running.is_usable() {
                state.running = Some(Arc::clone(&running));
                return Ok(running);
            }
            state.note_end_of(&running);
        }
        if self.failed_starts.load(Ordering::Acquire) > failures_before
            && let Some(failure) = &state.last_failure
        {
            return Err(failure.clone());
        }
        if let Some(not_before) = state.not_before {
            tokio::time::sleep_until(not_before).await;
        }
        match self.start().await {
            Ok(running) => {
                let running = Arc::new(running);
                state.running = Some(Arc::clone(&running));
                Ok(running)
            }
            Err(error) => {
                state.note_failure();
                state.last_failure = Some(error.clone());
                self.failed_starts.fetch_add(1, Ordering::Release);
                Err(error)
            }
        }
    }

    async fn start(&self) -> Result<Running, Error> {
        let process = Process::start(&self.command, &self.options).await.map_err(|error| {
            Error::new(Code::Unavailable, format!("{}: {}", self.what(), chain(&error)))
        })?;
        let running = Running {
            process,
            has_answered: AtomicBool::new(false),
            is_cut_off: AtomicBool::new(false),
        };
        let connection = running.process.connection();
        let warmed = warm_up::run(connection, &self.purpose, self.options.limits.metadata).await;
        match warmed {
            Ok(()) => Ok(running),
            Err((method, error)) => {
                let error = self.explain(&running, method, error).await;
                running.process.stop().await;
                Err(error)
            }
        }
    }

    /// What an error of a call means. A connection that broke is explained by the end of the
    /// process, which shows a moment later.
    async fn explain(&self, running: &Running, method: &str, error: Error) -> Error {
        if !may_be_gone(&error) {
            // A call that was given up is no answer.
            let answered = error.code() != Code::DeadlineExceeded;
            running.has_answered.fetch_or(answered, Ordering::Relaxed);
            return error;
        }
        if let Some(status) = running.process.ends_within(END_GRACE).await {
            let words = running.process.last_words();
            let words = if words.is_empty() { words } else { format!(": {words}") };
            let text = format!("{} ended in {method} ({status}){words}", self.what());
            return Error::new(Code::Unavailable, text);
        }
        // It runs. Either it said so itself, or there is no way to it any more.
        let health = client::check_health(running.process.connection());
        let answers = match tokio::time::timeout(END_GRACE, health).await {
            Ok(Err(no_health)) => !may_be_gone(&no_health),
            Ok(Ok(())) => true,
            Err(_) => false,
        };
        if answers {
            return error;
        }
        running.is_cut_off.store(true, Ordering::Relaxed);
        error.context(format_args!("{}: the connection broke in {method}", self.what()))
    }
}

/// Whether an error may mean that the process has ended.
pub(crate) fn may_be_gone(error: &Error) -> bool {
    matches!(error.code(), Code::Unavailable | Code::Cancelled)
}

/// A place among the callers of a process. While it is held, the process is not idle.
#[derive(Debug)]
pub(crate) struct Session {
    slot: Arc<Slot>,
    running: Arc<Running>,
    _permit: OwnedSemaphorePermit,
}

impl Session {
    /// Makes a call that ends within `limit`.
    pub(crate) async fn call<T, F>(
        &self,
        method: &'static str,
        limit: Duration,
        work: impl FnOnce(Connection) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        match self.attempt(method, limit, work(self.connection())).await {
            Err(error) => Err(self.explain(method, error).await),
            Ok(value) => Ok(value),
        }
    }

    fn connection(&self) -> Connection {
        self.running.process.connection().clone()
    }

    /// The outcome of a call as the wire tells it, and within `limit`.
    async fn attempt<T>(
        &self,
        method: &str,
        limit: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let answer = tokio::time::timeout(limit, call).await;
        self.slot.touch();
        let outcome = answer.unwrap_or_else(|_| Err(self.no_answer(method, limit)));
        if outcome.is_ok() {
            self.running.has_answered.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// What an error of a call means.
    pub(crate) async fn explain(&self, method: &str, error: Error) -> Error {
        self.slot.explain(&self.running, method, error).await
    }

    /// The error of a call that took too long.
    pub(crate) fn no_answer(&self, method: &str, limit: Duration) -> Error {
        let text =
            format!("{}: no answer to {method} within {} s", self.slot.what(), limit.as_secs_f32());
        Error::new(Code::DeadlineExceeded, text)
    }
}

impl Running {
    fn is_usable(&self) -> bool {
        !self.process.has_ended() && !self.is_cut_off.load(Ordering::Relaxed)
    }
}

impl State {
    fn note_end_of(&mut self, running: &Running) {
        if running.has_answered.load(Ordering::Relaxed) {
            self.failures = 0;
            self.not_before = None;
        } else {
            self.note_failure();
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
        let pauses: Vec<u128> =
            [0, 1, 2, 5, 6, 40, u32::MAX].map(|n| pause(n).as_millis()).to_vec();
        assert_eq!(pauses, [100, 200, 400, 3200, 5000, 5000, 5000]);
    }
}
