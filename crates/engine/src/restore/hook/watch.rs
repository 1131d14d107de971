//! Waits for the containers of restored pods and runs hooks in them, while the restore goes on.

#[cfg(test)]
mod tests;

use std::mem;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_api::Restore;
use bowline_plugin::ResourceIdentifier;
use futures::FutureExt as _;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::sight::{Pod, Sight, Step};
use super::{Hook, Hooks, OnError};
use crate::cluster::{Cluster, Exec};
use crate::item::Object;
use crate::report::Report;
use crate::resource::Resource;

/// How many pods are looked at at a time, at most. There may be thousands that wait.
const LOOKS: usize = 16;

const STOPPED: &str = "the restore was stopped";

/// The hooks of a restore at work.
#[derive(Debug)]
pub struct Watch {
    hooks: Hooks,
    tasks: Mutex<JoinSet<()>>,
    shared: Arc<Shared>,
}

/// For how long hooks wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a hook waits for its container that does not say: the resource timeout of the
    /// server.
    pub default_wait: Duration,
}

/// What all pods share.
#[derive(Debug)]
struct Shared {
    looks: Semaphore,
    attempted: AtomicU64,
    failed: AtomicU64,
}

/// A pod whose hooks are being run.
struct Course {
    cluster: Arc<dyn Cluster>,
    report: Arc<Report>,
    shared: Arc<Shared>,
    resource: Arc<Resource>,
    id: ResourceIdentifier,
    limits: Limits,
    stop: CancellationToken,
}

impl Watch {
    /// Compiles the hooks of a Restore, or says all that is wrong with them.
    pub fn new(restore: &Restore) -> Result<Self, Vec<String>> {
        let shared = Shared {
            looks: Semaphore::new(LOOKS),
            attempted: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        };
        Ok(Self {
            hooks: Hooks::new(&restore.spec.hooks)?,
            tasks: Mutex::default(),
            shared: Arc::new(shared),
        })
    }

    /// Begins to wait for a pod that was created, if there is something to run in it. The wait of
    /// its hooks counts from here. Best is the pod as the API server returned it: by its uid it is
    /// never taken for another, and its first container is what webhooks left as the first.
    ///
    /// What fails is told as an error on the pod, and touches no other pod. When `stop` is
    /// cancelled, what has not been run is given up.
    pub fn begin(
        &self,
        cluster: &Arc<dyn Cluster>,
        report: &Arc<Report>,
        pod: &Object,
        limits: Limits,
        stop: &CancellationToken,
    ) {
        let id = pod.id();
        let planned = self.hooks.plan(pod).and_then(|plan| Ok((plan, Pod::read(pod)?)));
        let (plan, uid) = match planned {
            Ok((plan, _)) if plan.is_empty() => return,
            Ok((plan, pod)) => (plan, Some(pod.metadata.uid).filter(|uid| !uid.is_empty())),
            Err(error) => {
                self.shared.attempt(1);
                self.shared.fail(1);
                report.error(&id, error.to_string());
                return;
            }
        };
        for warning in &plan.warnings {
            report.warning(&id, warning.clone());
        }
        let course = Course {
            cluster: Arc::clone(cluster),
            report: Arc::clone(report),
            shared: Arc::clone(&self.shared),
            resource: Arc::clone(&pod.resource),
            id,
            limits,
            stop: stop.clone(),
        };
        let task = async move {
            let mut left = plan.hooks;
            course.shared.attempt(left.len());
            let ran = AssertUnwindSafe(course.run(&mut left, uid)).catch_unwind().await;
            if ran.is_err() {
                course.shared.fail(left.len());
                course.report.error(&course.id, "its hooks broke off: a defect; see the log");
            }
        };
        self.tasks().spawn(task.in_current_span());
    }

    /// Waits until no hook runs or waits any more. How many hooks there were, and how many of them
    /// failed.
    pub async fn finish(&self) -> (u64, u64) {
        loop {
            let mut tasks = mem::take(&mut *self.tasks());
            if tasks.is_empty() {
                break;
            }
            while tasks.join_next().await.is_some() {}
        }
        let Shared { attempted, failed, .. } = &*self.shared;
        (attempted.load(Ordering::Relaxed), failed.load(Ordering::Relaxed))
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn attempt(&self, hooks: usize) {
        self.attempted.fetch_add(hooks as u64, Ordering::Relaxed);
    }

    fn fail(&self, hooks: usize) {
        self.failed.fetch_add(hooks as u64, Ordering::Relaxed);
    }
}

impl Course {
    /// Runs the hooks that are left. One is taken from them when it is known what becomes of it.
    async fn run(&self, left: &mut Vec<Hook>, mut uid: Option<String>) {
        let began = Instant::now();
        let mut running = Duration::ZERO;
        while !left.is_empty() {
            let sight = self.look(uid.as_deref()).await;
            if let (None, Sight::There(pod)) = (&uid, &sight) {
                uid = Some(pod.metadata.uid.clone());
            }
            let waited = began.elapsed().saturating_sub(running);
            match sight.step(left, waited, self.limits.default_wait) {
                Step::Run(at) => {
                    bring_forward(left, at);
                    let began = Instant::now();
                    let outcome = self.exec(&left[0]).await;
                    running += began.elapsed();
                    match outcome {
                        Ok(()) => drop(left.remove(0)),
                        Err(why) => self.fail(left, 0, &why),
                    }
                }
                Step::GiveUp(at, why) => self.fail(left, at, &format!("was not run: {why}")),
                Step::GiveUpAll(why) => {
                    let (first, rest) = (&left[0], left.len() - 1);
                    let text = format!("{first} was not run: {why}{}", not_run(rest));
                    self.report.error(&self.id, text);
                    self.shared.fail(left.len());
                    left.clear();
                }
                Step::Wait(pause) => {
                    // What has been stopped is found out by the next look.
                    self.unless_stopped(sleep(pause)).await;
                }
            }
        }
    }

    /// A hook has failed. If that means to, those that would follow are given up.
    fn fail(&self, left: &mut Vec<Hook>, at: usize, why: &str) {
        let hook = left.remove(at);
        let given_up = match hook.on_error {
            OnError::Continue => 0,
            OnError::Fail => left.drain(at..).len(),
        };
        self.shared.fail(1 + given_up);
        self.report.error(&self.id, format!("{hook} {why}{}", not_run(given_up)));
    }

    async fn look(&self, uid: Option<&str>) -> Sight {
        let look = async {
            // The semaphore is never closed.
            let _place = self.shared.looks.acquire().await;
            let ResourceIdentifier { namespace, name, .. } = &self.id;
            match self.cluster.get(&self.resource, namespace, name).await {
                Ok(found) => Sight::new(found.as_ref(), uid),
                Err(error) => Sight::Dark(error.to_string()),
            }
        };
        self.unless_stopped(look).await.unwrap_or_else(|| Sight::Over(STOPPED.to_owned()))
    }

    /// Runs a hook, or says how it failed.
    async fn exec(&self, hook: &Hook) -> Result<(), String> {
        let exec = Exec {
            namespace: self.id.namespace.clone(),
            pod: self.id.name.clone(),
            container: hook.container.clone(),
            command: hook.command.clone(),
            timeout: hook.exec_timeout,
        };
        tracing::info!(item = %self.id, "running {hook}");
        match self.unless_stopped(self.cluster.exec(&exec)).await {
            None => {
                Err(format!("was broken off: {STOPPED}; it may still be running in the container"))
            }
            Some(Ok(executed)) => match crate::hook::failure(executed) {
                None => Ok(()),
                Some(why) => Err(format!("failed: {why}")),
            },
            Some(Err(error)) => Err(format!("failed: {error}")),
        }
    }

    /// What comes of some work, unless the restore is stopped before.
    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            outcome = work => Some(outcome),
        }
    }
}

/// Moves the hooks of a container to the front, so that no other container comes in between. `at`
/// is the first of them.
fn bring_forward(hooks: &mut [Hook], at: usize) {
    let same = |hook: &&Hook| hook.container == hooks[at].container;
    let count = hooks[at..].iter().take_while(same).count();
    hooks[..at + count].rotate_right(count);
}

fn not_run(hooks: usize) -> String {
    match hooks {
        0 => String::new(),
        1 => "; the hook after it is not run".to_owned(),
        more => format!("; the {more} hooks after it are not run"),
    }
}
