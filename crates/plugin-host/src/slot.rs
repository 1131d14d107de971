//! Entry point for the calls to one plugin process, running or not.
//!
//! # Guarantees
//! - The process is started at the first call, and again at the next call after it has died, lost
//!   its connection or stopped answering altogether. A start belongs to the slot, not to the caller
//!   that caused it: a caller that goes away does not end it for the others.
//! - Before its first regular call the process is *warmed up*: each plugin in it is called once,
//!   one after the other. Go plugins write an unlocked map at the first call of a name, and crash
//!   if two such calls are concurrent. Stores and snapshotters get their `Init` in the same way,
//!   also after a restart.
//! - A call has a limit, and ends with a precise error if the process dies during it. It is retried
//!   only if it certainly never reached the process.
//! - Failed starts, and starts of processes that died before they answered anything, are retried
//!   with backoff. Callers that waited for a start share its failure.
//! - The number of concurrent calls that do work is limited. Queries never wait for them: progress
//!   and cancel calls are always possible.

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

/// Time for which a connection error waits for the end of the process that would explain it, and in
/// which a process must answer a health check.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// The purpose of a process, which determines its first calls after each start.
#[derive(Debug)]
pub enum Purpose {
    /// The item actions of a binary, all of them.
    ItemActions(Vec<Plugin>),
    /// One store or snapshotter with one configuration.
    Configured {
        /// The store or snapshotter.
        plugin: Plugin,
        /// Its configuration.
        config: Config,
    },
}

/// A call: its name, its time limit, and whether it does work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) limit: Duration,
    pub(crate) is_work: bool,
}

/// One supervised plugin process, running or not.
#[derive(Debug)]
pub struct Slot {
    command: PathBuf,
    options: Arc<Options>,
    purpose: Purpose,
    permits: Arc<Semaphore>,
    lifecycle: ProcessLifecycle,
    in_use: AtomicUsize,
    /// In milliseconds since `created`.
    last_used: AtomicU64,
    created: Instant,
}

/// Reasons why a call failed.
enum CallFailure {
    /// The plugin returned an error, or the connection broke.
    Returned(Error),
    /// No answer in time.
    NoAnswer,
}

impl Slot {
    /// No process is started before the first call.
    pub fn new(command: &Path, options: Arc<Options>, purpose: Purpose) -> Self {
        let calls = match &purpose {
            Purpose::ItemActions(plugins) if options.is_serial(command, plugins) => 1,
            // An upload may take hours, and a concurrent snapshot must not wait for it.
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

    /// The configuration of its store or snapshotter.
    pub(crate) fn config(&self) -> Option<&Config> {
        match &self.purpose {
            Purpose::Configured { config, .. } => Some(config),
            Purpose::ItemActions(_) => None,
        }
    }

    /// Makes a call: `work` gets a connection to a process that has been warmed up.
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

    /// Waits for a process and, for work, for a permit.
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

    /// Ends the process for good. Later calls fail.
    pub async fn close(&self) {
        self.permits.close();
        if let Some(running) = self.lifecycle.close() {
            running.process().stop().await;
        }
    }

    /// Ends the process, if there is one; the next call starts another.
    pub async fn stop(&self) {
        if let Some(running) = self.lifecycle.take_running_if(|| true) {
            running.process().stop().await;
        }
    }

    /// Ends the process if it has been idle for the configured time.
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

    /// True if the process is running or starting.
    pub(crate) fn is_alive(&self) -> bool {
        self.lifecycle.is_alive()
    }

    fn plugin_label(&self) -> String {
        format!("plugin {}", self.command.display())
    }

    fn closed_error(&self) -> Error {
        Error::new(Code::FailedPrecondition, format!("{} is no longer used", self.plugin_label()))
    }

    /// Explains the error of a call. A broken connection is explained by the end of the process,
    /// which becomes visible a moment later.
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
                format!("{} exited during {} ({status}){detail}", self.plugin_label(), call.method);
            return Error::new(Code::Unavailable, text);
        }
        // The process is running. Either the plugin returned the error itself, or the connection is
        // lost.
        if running.is_responsive().await {
            return error;
        }
        running.mark_unreachable();
        error.context(format_args!(
            "{}: the connection was lost during {}",
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

/// True if an error may mean that the process has ended.
pub(crate) fn may_mean_process_ended(error: &Error) -> bool {
    matches!(error.code(), Code::Unavailable | Code::Cancelled)
}

impl RunningProcess {
    /// True if the process answers anything at all.
    async fn is_responsive(&self) -> bool {
        let health = client::check_health(self.process().connection());
        match tokio::time::timeout(EXIT_GRACE, health).await {
            Ok(Ok(())) => true,
            // The process may not have this service; then that error is its answer.
            Ok(Err(error)) => !may_mean_process_ended(&error),
            Err(_) => false,
        }
    }
}

/// While this guard exists, the process is not idle.
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

/// A process that is ready for calls, and that does not become idle meanwhile.
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

    /// Releases the permit for work. A slowly read stream must not delay the work that its reader
    /// does with it.
    pub(crate) fn release_permit(&mut self) {
        self.permit = None;
    }

    /// Explains an error that came in a stream.
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
