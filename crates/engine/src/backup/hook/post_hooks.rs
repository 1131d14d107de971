//! Post-hooks of pods, which thaw applications.
//!
//! A pod stays frozen if its post-hook does not reach it, so such a hook is retried: through the restart of an API
//! server or of a kubelet. One that has run is never run again, however it ended. Pods that a run cannot thaw are in
//! its journal, for the next process.

#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bowline_api::annotation::hook as key;
use futures::FutureExt as _;
use futures::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::run::{Failure, HookLabel, run};
use super::{Hook, Plan, Source, Tally};
use crate::backoff::Backoff;
use crate::cluster::Cluster;
use crate::item::Object;
use crate::report::Report;

/// Time to retry the thaw of a pod that is not reached. An API server is back by then, or another has replaced it;
/// reads wait for it as long. The time an application may stay frozen is unknown, so the thaw is not given up sooner.
const RETRY_WINDOW: Duration = Duration::from_mins(2);
/// The pause before the second attempt; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Number of pods of a block thawed concurrently, when the first was not reached.
pub const MAX_CONCURRENT_THAWS: usize = 16;

/// Inputs for running hooks.
#[derive(Clone, Copy)]
pub struct HookContext<'a> {
    /// The cluster of the pods.
    pub cluster: &'a dyn Cluster,
    /// Report of failures.
    pub report: &'a Report,
    /// Tally of hooks.
    pub tally: &'a Tally,
}

/// The post-hooks of a pod, and their progress.
pub struct PodThaw<'a> {
    pod: &'a Object,
    hooks: &'a [Hook],
    /// Hooks that have ended, by index.
    ran: Vec<usize>,
    /// Reason why the first of the others did not reach the pod, if it was attempted.
    unreached_reason: Option<String>,
}

/// A pod that may still be frozen.
#[derive(Clone, Debug)]
pub struct FrozenPod<'a> {
    /// The pod.
    pub pod: &'a Object,
    /// Post-hooks that have run nevertheless, by index.
    pub ran: Vec<usize>,
}

impl<'a> PodThaw<'a> {
    /// All post-hooks of a plan.
    pub fn new(pod: &'a Object, plan: &'a Plan) -> Self {
        Self { pod, hooks: &plan.post, ran: Vec::new(), unreached_reason: None }
    }

    /// Without the hooks that have run before.
    #[must_use]
    pub fn without(self, ran: &[usize]) -> Self {
        Self { ran: ran.to_vec(), ..self }
    }

    /// The post-hooks that have run, by index.
    pub fn ran(&self) -> &[usize] {
        &self.ran
    }

    /// The remaining hooks, in order.
    fn pending(&self) -> Vec<(usize, &'a Hook)> {
        let hooks = self.hooks.iter().enumerate();
        hooks.filter(|(place, _)| !self.ran.contains(place)).collect()
    }

    /// Runs the hooks one after the other, as far as they reach the pod. None is skipped because another has failed:
    /// thawing the application matters more. Returns the rest; none if the pod is thawed.
    pub async fn run(self, context: HookContext<'_>) -> Option<Self> {
        let pod = self.pod;
        // A panic must not keep the other pods from being thawed.
        let ran = AssertUnwindSafe(self.run_unguarded(context)).catch_unwind().await;
        let remaining = ran.unwrap_or_else(|_| {
            context
                .report
                .error(&pod.id(), "the post-hooks of the pod were aborted by a bug; see the log");
            None
        });
        if remaining.is_none() {
            log_freeze(context.tally, pod);
        }
        remaining
    }

    async fn run_unguarded(mut self, context: HookContext<'_>) -> Option<Self> {
        let id = self.pod.id();
        for (place, hook) in self.pending() {
            match run(context.cluster, &id, hook).await {
                Err(Failure { text, is_unreached: true, .. }) => {
                    self.unreached_reason = Some(text);
                    return Some(self);
                }
                ended => record_hook_result(context, self.pod, hook, ended),
            }
            self.ran.push(place);
        }
        None
    }

    /// Reports that the pod may be frozen, and attempts the hooks after the one that did not reach it.
    pub async fn give_up(mut self, context: HookContext<'_>) -> FrozenPod<'a> {
        let mut reason = self.unreached_reason.take();
        for (place, hook) in self.pending() {
            if let Some(reason) = reason.take() {
                report_unreached(context, self.pod, hook, &reason);
                continue;
            }
            match run(context.cluster, &self.pod.id(), hook).await {
                Err(Failure { text, is_unreached: true, .. }) => {
                    report_unreached(context, self.pod, hook, &text);
                }
                ended => {
                    record_hook_result(context, self.pod, hook, ended);
                    self.ran.push(place);
                }
            }
        }
        log_freeze(context.tally, self.pod);
        FrozenPod { pod: self.pod, ran: self.ran }
    }
}

/// Thaws pods that were not reached, concurrently, so that one on an unavailable node keeps no other frozen. This
/// continues until the outage is too long, or the server is asked to end: then the next server thaws them. Returns
/// those that may still be frozen.
pub async fn retry_thaw_all<'a>(
    context: HookContext<'_>,
    pods: Vec<PodThaw<'a>>,
    stop: &CancellationToken,
) -> Vec<FrozenPod<'a>> {
    let permits = Semaphore::new(MAX_CONCURRENT_THAWS);
    let pods = pods.into_iter().map(|pod| retry_thaw(context, pod, stop, &permits));
    join_all(pods).await.into_iter().flatten().collect()
}

/// Thaws one of them. An attempt needs a permit; the pause before the next does not.
pub async fn retry_thaw<'a>(
    context: HookContext<'_>,
    mut thaw: PodThaw<'a>,
    stop: &CancellationToken,
    permits: &Semaphore,
) -> Option<FrozenPod<'a>> {
    let started_at = Instant::now();
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let pod = thaw.pod;
    loop {
        if let Some(reason) = &thaw.unreached_reason {
            if started_at.elapsed() >= RETRY_WINDOW || stop.is_cancelled() {
                break;
            }
            tracing::warn!(pod = %pod.id(), "retrying a post-hook of the pod: {reason}");
            tokio::select! {
                () = stop.cancelled() => break,
                () = backoff.wait() => {}
            }
        }
        // The semaphore is never closed.
        let _permit = permits.acquire().await;
        thaw = thaw.run(context).await?;
    }
    Some(thaw.give_up(context).await)
}

/// Counts a hook that has run, and reports a failure.
fn record_hook_result(
    context: HookContext<'_>,
    pod: &Object,
    hook: &Hook,
    ended: Result<(), Failure>,
) {
    let id = pod.id();
    context.tally.count(ended.is_err());
    context.tally.record_thaw(&id);
    if let Err(Failure { text, .. }) = ended {
        let label = HookLabel(hook);
        let text = format!("the post-hook {label} failed: {text}; the pod may still be frozen");
        context.report.error(&id, text);
    }
}

/// Counts a hook that did not reach its pod, and reports it with a hint. The report omits the command: it may hold a
/// password.
fn report_unreached(context: HookContext<'_>, pod: &Object, hook: &Hook, reason: &str) {
    context.tally.count(true);
    let Object { namespace, name, .. } = pod;
    let place = match &hook.source {
        Source::Annotations => format!("the pod's annotation {}", key::POST_COMMAND),
        Source::Spec(name) => format!("the post-hook {name:?} in the Backup's spec.hooks"),
    };
    let text = format!(
        "the post-hook {} did not reach the pod: {reason}; the pod may still be frozen: the \
         server retries every 30 s, also after the end of the backup; to thaw the pod at once, \
         run `kubectl -n {namespace} exec {name} -c {} -- COMMAND` with the command of {place}",
        HookLabel(hook),
        hook.container,
    );
    context.report.error(&pod.id(), text);
}

/// Logs the freeze window of a pod.
fn log_freeze(tally: &Tally, pod: &Object) {
    let id = pod.id();
    let Some(freeze) = tally.take_freeze(&id) else { return };
    if let Some(milliseconds) = freeze.milliseconds() {
        tracing::info!(pod = %id, milliseconds, "the pod was frozen");
    } else {
        tracing::info!(pod = %id, "pre-hooks ran, but no post-hook has completed");
    }
}
