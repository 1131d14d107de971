//! Waits for the containers of restored pods and runs hooks in them, while the restore continues.

#[cfg(test)]
mod tests;

use std::mem;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_api::Restore;
use bowline_plugin::ResourceIdentifier;
use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::pod_state::{HookStep, Pod, PodEnd, PodReadError, PodState};
use super::{Hook, Hooks, InvalidHooks, OnError};
use crate::cluster::{self, Cluster, Exec};
use crate::item::Object;
use crate::report::{Report, error_text};
use crate::resource::Resource;

/// Maximum number of concurrent pod checks. Thousands of pods may be waiting.
const MAX_CONCURRENT_CHECKS: usize = 16;

/// Runs the hooks of a restore.
#[derive(Debug)]
pub struct HookRunner {
    hooks: Hooks,
    tasks: Mutex<JoinSet<()>>,
    shared: Arc<HookCounters>,
}

/// Wait limits of hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookLimits {
    /// Time that a hook without a wait timeout waits for its container: the resource timeout of the server.
    pub default_wait: Duration,
}

/// State shared by all pods.
#[derive(Debug)]
struct HookCounters {
    checks: Semaphore,
    attempted: AtomicU64,
    failed: AtomicU64,
}

/// A pod whose hooks are running.
struct PodHookRun {
    cluster: Arc<dyn Cluster>,
    report: Arc<Report>,
    shared: Arc<HookCounters>,
    resource: Arc<Resource>,
    id: ResourceIdentifier,
    limits: HookLimits,
    stop: CancellationToken,
}

/// Why a hook that was started counts as failed, as the rest of a sentence about it.
#[derive(Debug, thiserror::Error)]
enum HookFailure {
    #[error("was aborted: {}; the command may still be running in the container", PodEnd::Stopped)]
    Stopped,
    /// The command failed, with its exit code and the end of its output.
    #[error("failed: {0}")]
    Command(String),
    #[error("failed")]
    Exec(#[source] cluster::Error),
}

impl HookRunner {
    /// Compiles the hooks of a Restore, or returns all their errors.
    pub fn new(restore: &Restore) -> Result<Self, InvalidHooks> {
        let shared = HookCounters {
            checks: Semaphore::new(MAX_CONCURRENT_CHECKS),
            attempted: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        };
        Ok(Self {
            hooks: Hooks::new(&restore.spec.hooks)?,
            tasks: Mutex::default(),
            shared: Arc::new(shared),
        })
    }

    /// Starts waiting for a created pod, if it has hooks. The wait time of its hooks starts here. Pass the pod as the
    /// API server returned it: its uid ensures that it is never mistaken for another, and its first container is the
    /// one after webhooks.
    ///
    /// A failure is reported as an error of the pod, and affects no other pod. When `stop` is cancelled, hooks that
    /// have not run are abandoned.
    pub fn start(
        &self,
        cluster: &Arc<dyn Cluster>,
        report: &Arc<Report>,
        pod: &Object,
        limits: HookLimits,
        stop: &CancellationToken,
    ) {
        let id = pod.id();
        let planned = self.hooks.plan(pod).and_then(|plan| Ok((plan, Pod::read(pod)?)));
        let (plan, uid) = match planned {
            Ok((plan, _)) if plan.is_empty() => return,
            Ok((plan, pod)) => (plan, Some(pod.metadata.uid).filter(|uid| !uid.is_empty())),
            Err(error) => {
                self.shared.add_attempted(1);
                self.shared.add_failed(1);
                report.error(&id, error.to_string());
                return;
            }
        };
        for warning in &plan.warnings {
            report.warn(&id, warning.clone());
        }
        let pod_run = PodHookRun {
            cluster: Arc::clone(cluster),
            report: Arc::clone(report),
            shared: Arc::clone(&self.shared),
            resource: Arc::clone(&pod.resource),
            id,
            limits,
            stop: stop.clone(),
        };
        let task = async move {
            let mut remaining = plan.hooks;
            pod_run.shared.add_attempted(remaining.len());
            let ran = AssertUnwindSafe(pod_run.run(&mut remaining, uid)).catch_unwind().await;
            if ran.is_err() {
                pod_run.shared.add_failed(remaining.len());
                pod_run
                    .report
                    .error(&pod_run.id, "the hooks of the pod were aborted by a bug; see the log");
            }
        };
        self.tasks.lock().spawn(task.in_current_span());
    }

    /// Waits until no hook runs or waits any more. Returns the number of hooks, and the number of failed ones.
    pub async fn finish(&self) -> (u64, u64) {
        loop {
            let mut tasks = mem::take(&mut *self.tasks.lock());
            if tasks.is_empty() {
                break;
            }
            while tasks.join_next().await.is_some() {}
        }
        let HookCounters { attempted, failed, .. } = &*self.shared;
        (attempted.load(Ordering::Relaxed), failed.load(Ordering::Relaxed))
    }
}

impl HookCounters {
    fn add_attempted(&self, hooks: usize) {
        self.attempted.fetch_add(hooks as u64, Ordering::Relaxed);
    }

    fn add_failed(&self, hooks: usize) {
        self.failed.fetch_add(hooks as u64, Ordering::Relaxed);
    }
}

impl PodHookRun {
    /// Runs the remaining hooks. A hook is removed from the list when its outcome is determined.
    async fn run(&self, remaining: &mut Vec<Hook>, mut uid: Option<String>) {
        let started_at = Instant::now();
        let mut running = Duration::ZERO;
        while !remaining.is_empty() {
            let pod_state = self.check_pod(uid.as_deref()).await;
            if let (None, PodState::Present(pod)) = (&uid, &pod_state) {
                uid = Some(pod.metadata.uid.clone());
            }
            let waited = started_at.elapsed().saturating_sub(running);
            match pod_state.step(remaining, waited, self.limits.default_wait) {
                HookStep::Run(at) => {
                    move_container_hooks_first(remaining, at);
                    let started_at = Instant::now();
                    let outcome = self.exec(&remaining[0]).await;
                    running += started_at.elapsed();
                    match outcome {
                        Ok(()) => drop(remaining.remove(0)),
                        Err(failure) => self.fail(remaining, 0, &error_text(&failure)),
                    }
                }
                HookStep::GiveUp(at, reason) => {
                    self.fail(remaining, at, &format!("was not run: {reason}"));
                }
                HookStep::GiveUpAll(reason) => {
                    let (first, rest) = (&remaining[0], remaining.len() - 1);
                    let text =
                        format!("{first} was not run: {reason}{}", skipped_hooks_message(rest));
                    self.report.error(&self.id, text);
                    self.shared.add_failed(remaining.len());
                    remaining.clear();
                }
                HookStep::Wait(pause) => {
                    // The next check notices a stop.
                    self.unless_stopped(sleep(pause)).await;
                }
            }
        }
    }

    /// Records the failure of a hook. If its `onError` says so, the following hooks are abandoned.
    fn fail(&self, remaining: &mut Vec<Hook>, at: usize, reason: &str) {
        let hook = remaining.remove(at);
        let given_up = match hook.on_error {
            OnError::Continue => 0,
            OnError::Fail => remaining.drain(at..).len(),
        };
        self.shared.add_failed(1 + given_up);
        self.report.error(&self.id, format!("{hook} {reason}{}", skipped_hooks_message(given_up)));
    }

    async fn check_pod(&self, uid: Option<&str>) -> PodState {
        let check = async {
            // The semaphore is never closed.
            let _permit = self.shared.checks.acquire().await;
            let ResourceIdentifier { namespace, name, .. } = &self.id;
            match self.cluster.get(&self.resource, namespace, name).await {
                Ok(found) => PodState::new(found.as_ref(), uid),
                Err(error) => PodState::Unknown(PodReadError::Get(error)),
            }
        };
        self.unless_stopped(check).await.unwrap_or(PodState::Ended(PodEnd::Stopped))
    }

    /// Runs a hook, or returns the failure.
    async fn exec(&self, hook: &Hook) -> Result<(), HookFailure> {
        let exec = Exec {
            namespace: self.id.namespace.clone(),
            pod: self.id.name.clone(),
            container: hook.container.clone(),
            command: hook.command.clone(),
            timeout: hook.exec_timeout,
        };
        tracing::info!(item = %self.id, "running {hook}");
        match self.unless_stopped(self.cluster.exec(&exec)).await {
            None => Err(HookFailure::Stopped),
            Some(Ok(executed)) => match crate::hook::failure(executed) {
                None => Ok(()),
                Some(reason) => Err(HookFailure::Command(reason)),
            },
            Some(Err(error)) => Err(HookFailure::Exec(error)),
        }
    }

    /// Result of some work, unless the restore is stopped first.
    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            outcome = work => Some(outcome),
        }
    }
}

/// Moves the hooks of a container to the front, so that no other container interrupts them. `at` is the first of
/// them.
fn move_container_hooks_first(hooks: &mut [Hook], at: usize) {
    let same = |hook: &&Hook| hook.container == hooks[at].container;
    let count = hooks[at..].iter().take_while(same).count();
    hooks[..at + count].rotate_right(count);
}

fn skipped_hooks_message(hooks: usize) -> String {
    match hooks {
        0 => String::new(),
        1 => "; the following hook is skipped".to_owned(),
        more => format!("; the {more} following hooks are skipped"),
    }
}
