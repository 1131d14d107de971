//! Where the calls to one plugin process go, whether it runs at the moment or not.
//!
//! # Guarantees
//! - The process is started at the first call, and again at the next call after it has died, lost
//!   its connection or stopped answering altogether. A start belongs to the slot, not to the caller
//!   that caused it: one that goes away does not end it for the others.
//! - Before anything else it is *warmed up*: each plugin in it is called once, one after the other.
//!   Go plugins write an unlocked map at the first call of a name, and die if two come at once.
//!   Stores and snapshotters get their `Init` in the same way, after a restart, too.
//! - A call has a limit, and ends with a precise error when the process dies in it. It is made again
//!   only if it certainly never reached the process.
//! - Starts that fail, and processes that die before they have answered anything, are tried again
//!   after a pause that grows. Callers that waited for a start share its failure.
//! - A limited number of calls that do work go on at the same time. Questions are never held up
//!   behind them: progress can be asked for, and work cancelled, whatever else goes on.

mod lifecycle;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bowline_plugin::{Code, Config, Error};
use bowline_plugin_wire::{Connection, client};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use self::lifecycle::{ProcessLifecycle, RunningProcess};
use crate::Options;
use crate::registry::Plugin;

/// How long a connection error waits for the end of the process that would explain it, and a
/// process for a sign of life.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// What a process is for, and so what it is told after each start.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// The item actions of a binary, all of them.
    ItemActions(Vec<Plugin>),
    /// One store or snapshotter with one configuration.
    Configured { plugin: Plugin, config: Config },
}

/// A call: its name, how long it may take, and whether it is one of those that do work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) limit: Duration,
    pub(crate) is_work: bool,
}

#[derive(Debug)]
pub(crate) struct Slot {
    command: PathBuf,
    options: Arc<Options>,
    purpose: Purpose,
    permits: Arc<Semaphore>,
    lifecycle: ProcessLifecycle,
    in_use: AtomicUsize,
    /// Counted in milliseconds since `created`.
    last_used: AtomicU64,
    created: Instant,
}

/// Why a call failed.
enum CallFailure {
    /// The plugin said so, or the way to it broke.
    Returned(Error),
    /// There was no answer in time.
    NoAnswer,
}

impl Slot {
    pub(crate) fn new(command: &Path, options: Arc<Options>, purpose: Purpose) -> Self {
        let calls = match &purpose {
            Purpose::ItemActions(plugins) if options.is_serial(command, plugins) => 1,
            // An upload may take hours, and a snapshot beside it must not wait for that.
            _ => options.concurrency,
        };
        Self {
            command: command.to_owned(),
            purpose,
            permits: Arc::new(Semaphore::new(calls)),
            lifecycle: ProcessLifecycle::default(),
            in_use: AtomicUsize::new(0),
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

    /// Makes a call: `work` gets a connection to a process that is warmed up.
    pub(crate) async fn call<T, F>(
        self: &Arc<Self>,
        call: Call,
        work: impl Fn(Connection) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let session = self.open_session(call.is_work).await?;
        match session.attempt_call(call.limit, work(session.connection())).await {
            // The process had died unnoticed since the last call.
            Err(CallFailure::Returned(error)) if error.is_undelivered() => {
                session.running.mark_unreachable();
                drop(session);
                self.open_session(call.is_work).await?.call(call, &work).await
            }
            Err(failure) => Err(session.explain_failure(call, failure).await),
            Ok(value) => Ok(value),
        }
    }

    /// Waits for a process to call and, for work, for a place among those that do some.
    pub(crate) async fn open_session(self: &Arc<Self>, for_work: bool) -> Result<Session, Error> {
        let in_use = UseGuard::new(self);
        let permit = if for_work {
            let permits = Arc::clone(&self.permits);
            Some(permits.acquire_owned().await.map_err(|_| self.closed_error())?)
        } else {
            None
        };
        let running = self.running_process().await?;
        Ok(Session { running, permit, in_use })
    }

    /// Ends the process for good. Calls that come later fail.
    pub(crate) async fn close(&self) {
        self.permits.close();
        if let Some(running) = self.lifecycle.close() {
            running.process().stop().await;
        }
    }

    /// Ends the process, if there is one; the next call starts another.
    pub(crate) async fn stop(&self) {
        if let Some(running) = self.lifecycle.take_running_if(|| true) {
            running.process().stop().await;
        }
    }

    /// Ends the process if nobody has used it for as long as an idle one is kept.
    pub(crate) async fn stop_if_idle(&self) {
        let is_idle = || {
            let last_used = Duration::from_millis(self.last_used.load(Ordering::Acquire));
            let idle = self.created.elapsed().saturating_sub(last_used);
            self.in_use.load(Ordering::Acquire) == 0 && idle >= self.options.limits.idle
        };
        if let Some(running) = self.lifecycle.take_running_if(is_idle) {
            running.process().stop().await;
        }
    }

    /// Whether there is a process, or will be in a moment.
    pub(crate) fn is_alive(&self) -> bool {
        self.lifecycle.is_alive()
    }

    fn plugin_label(&self) -> String {
        format!("plugin {}", self.command.display())
    }

    fn closed_error(&self) -> Error {
        Error::new(Code::FailedPrecondition, format!("{} is no longer used", self.plugin_label()))
    }

    /// What an error of a call means. A connection that broke is explained by the end of the
    /// process, which shows a moment later.
    async fn explain_failure(
        &self,
        running: &RunningProcess,
        call: Call,
        failure: CallFailure,
    ) -> Error {
        let error = match failure {
            CallFailure::NoAnswer => {
                if !running.is_responsive().await {
                    running.mark_unreachable();
                }
                return self.no_answer_error(call);
            }
            CallFailure::Returned(error) if !may_mean_process_ended(&error) => {
                running.mark_answered();
                return error;
            }
            CallFailure::Returned(error) => error,
        };
        if let Some(status) = running.process().wait_for_end(EXIT_GRACE).await {
            let last_line = running.process().last_error_line();
            let detail = if last_line.is_empty() { last_line } else { format!(": {last_line}") };
            let text =
                format!("{} ended in {} ({status}){detail}", self.plugin_label(), call.method);
            return Error::new(Code::Unavailable, text);
        }
        // It runs. Either it said so itself, or there is no way to it any more.
        if running.is_responsive().await {
            return error;
        }
        running.mark_unreachable();
        error.context(format_args!(
            "{}: the connection broke in {}",
            self.plugin_label(),
            call.method
        ))
    }

    fn no_answer_error(&self, call: Call) -> Error {
        let limit = call.limit.as_secs_f32();
        let text =
            format!("{}: no answer to {} within {limit} s", self.plugin_label(), call.method);
        Error::new(Code::DeadlineExceeded, text)
    }
}

/// Whether an error may mean that the process has ended.
pub(crate) fn may_mean_process_ended(error: &Error) -> bool {
    matches!(error.code(), Code::Unavailable | Code::Cancelled)
}

impl RunningProcess {
    /// Whether the process answers anything at all.
    async fn is_responsive(&self) -> bool {
        let health = client::check_health(self.process().connection());
        match tokio::time::timeout(EXIT_GRACE, health).await {
            Ok(Ok(())) => true,
            // It may have no such service; then it has said so.
            Ok(Err(error)) => !may_mean_process_ended(&error),
            Err(_) => false,
        }
    }
}

/// While it lasts, the process is not idle.
#[derive(Debug)]
struct UseGuard {
    slot: Arc<Slot>,
}

impl UseGuard {
    fn new(slot: &Arc<Slot>) -> Self {
        slot.in_use.fetch_add(1, Ordering::AcqRel);
        Self { slot: Arc::clone(slot) }
    }
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        let now = u64::try_from(self.slot.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.slot.last_used.store(now, Ordering::Release);
        self.slot.in_use.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A process that is ready to be called, kept from being idle.
#[derive(Debug)]
pub(crate) struct Session {
    running: Arc<RunningProcess>,
    permit: Option<OwnedSemaphorePermit>,
    in_use: UseGuard,
}

impl Session {
    /// Makes a call.
    pub(crate) async fn call<T, F>(
        &self,
        call: Call,
        work: impl FnOnce(Connection) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        match self.attempt_call(call.limit, work(self.connection())).await {
            Err(failure) => Err(self.explain_failure(call, failure).await),
            Ok(value) => Ok(value),
        }
    }

    /// Gives the place among those that do work to others. A stream that is read slowly must not
    /// hold up what its reader does with it.
    pub(crate) fn release_permit(&mut self) {
        self.permit = None;
    }

    /// What an error that came in a stream means.
    pub(crate) async fn explain_error(&self, call: Call, error: Error) -> Error {
        self.explain_failure(call, CallFailure::Returned(error)).await
    }

    /// The error of a call that took too long.
    pub(crate) fn no_answer_error(&self, call: Call) -> Error {
        self.in_use.slot.no_answer_error(call)
    }

    async fn explain_failure(&self, call: Call, failure: CallFailure) -> Error {
        self.in_use.slot.explain_failure(&self.running, call, failure).await
    }

    fn connection(&self) -> Connection {
        self.running.process().connection().clone()
    }

    async fn attempt_call<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, CallFailure> {
        let answer = tokio::time::timeout(limit, call).await.map_err(|_| CallFailure::NoAnswer)?;
        let value = answer.map_err(CallFailure::Returned)?;
        self.running.mark_answered();
        Ok(value)
    }
}
