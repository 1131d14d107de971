//! Thaws pods that may have been frozen since a server ended, or that could not be reached before.
//!
//! Input: pods, as named in a journal. Output: those that may still be frozen. Thawing needs only the cluster: an
//! application must not stay frozen because a bucket is unavailable. Hooks are derived again from the pod and the
//! Backup; a pod that was replaced by another of its name is left alone.
//!
//! # Guarantees
//! - No pod waits for another, and none for the journal: a journal that cannot be written keeps no pod frozen.
//! - A hook that has run is not run again by this process, whatever the journal says. Across processes that holds as
//!   far as the journal could be written.

use std::collections::BTreeMap;
use std::convert::Infallible;

use bowline_api::backup::BackupHooks;
use futures::StreamExt as _;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::CANCEL_GRACE;
use super::block::uid_of;
use super::discover;
use super::hook::{self, Hooks, InvalidHooks, Plan, PodThaw, Tally, retry_thaw};
use crate::cluster::{self, Cluster};
use crate::failpoint::{self, Failpoint, FailpointAction};
use crate::item::Object;
use crate::journal::{self, FrozenByBlock, Journal, JournalEntry, Pod, apply_thaw};
use crate::report::Report;

/// Number of pods read and thawed concurrently.
const MAX_CONCURRENT_PODS: usize = 32;

/// Inputs for thawing pods.
#[derive(Clone, Copy)]
pub struct ThawContext<'a> {
    /// The cluster of the pods.
    pub cluster: &'a dyn Cluster,
    /// The uid of the run that froze them.
    pub run: &'a str,
    /// The hooks of its Backup, or the reason why they are unknown. Annotations of pods may also define post-hooks.
    pub hooks: Result<&'a BackupHooks, &'a str>,
    /// The journal of the run.
    pub journal: &'a dyn Journal,
    /// Entries that could not be written to the journal.
    pub unwritten: &'a UnwrittenThaws,
    /// Report of failures.
    pub report: &'a Report,
}

/// Retry of pods that are not reached.
#[derive(Clone, Copy, Debug)]
pub enum ThawRetry<'a> {
    /// One attempt: the caller retries later.
    Never,
    /// Retry for as long as a running backup does, unless the server is asked to end or the run is canceled. Then the
    /// failure is reported.
    DuringOutage(&'a CancellationToken),
}

/// Outcome of thawing pods.
#[derive(Debug, Default)]
#[must_use]
pub struct ThawOutcome {
    /// Pods that may still be frozen.
    pub frozen: FrozenByBlock,
    /// Error of the first of them.
    pub error: Option<ThawError>,
    /// Reason why the journal does not record everything that was done.
    pub unwritten: Option<journal::Error>,
}

/// Reason why pods may still be frozen.
#[derive(Debug, thiserror::Error)]
pub enum ThawError {
    /// The API server does not answer, or refuses.
    #[error("cannot thaw pods that may be frozen")]
    Cluster(#[source] cluster::Error),
    /// The hooks are unknown, or no longer valid.
    #[error("cannot thaw pods that may be frozen: the hooks of the backup cannot be used: {}", .0.join("; "))]
    Hooks(Vec<String>),
    /// The cluster does not serve pods.
    #[error("cannot thaw pods that may be frozen: the cluster serves no pods")]
    NoPods,
}

/// Entries about thawed pods that could not be written, by run. This process treats them as written, so that no hook
/// is run again, and writes them when the journal accepts them.
#[derive(Debug, Default)]
pub struct UnwrittenThaws(Mutex<BTreeMap<String, Vec<JournalEntry>>>);

impl UnwrittenThaws {
    /// Removes pods from a list that were thawed already.
    pub fn apply(&self, run: &str, frozen: &mut FrozenByBlock) {
        for record in self.0.lock().get(run).into_iter().flatten() {
            apply_thaw(frozen, record);
        }
    }

    /// Retries the entries that could not be written before.
    pub async fn write(&self, run: &str, journal: &dyn Journal) -> Result<(), journal::Error> {
        let records = self.0.lock().get(run).cloned().unwrap_or_default();
        for record in records {
            journal.append(&record).await?;
            self.remove_record(run, &record);
        }
        Ok(())
    }

    /// Forgets a run whose journal is gone.
    pub fn discard_run(&self, run: &str) {
        self.0.lock().remove(run);
    }

    /// Writes an entry. The entry counts from now on, written or not.
    async fn append(
        &self,
        run: &str,
        journal: &dyn Journal,
        record: JournalEntry,
    ) -> Result<(), journal::Error> {
        self.0.lock().entry(run.to_owned()).or_default().push(record.clone());
        journal.append(&record).await?;
        self.remove_record(run, &record);
        Ok(())
    }

    fn remove_record(&self, run: &str, record: &JournalEntry) {
        let mut all = self.0.lock();
        if let Some(records) = all.get_mut(run) {
            records.retain(|one| one != record);
            if records.is_empty() {
                all.remove(run);
            }
        }
    }
}

/// A pod with the blocks that froze it.
struct ThawTarget {
    pod: Pod,
    blocks: Vec<u64>,
}

/// A pod that exists, and its hooks.
struct FoundPod {
    target: ThawTarget,
    object: Object,
    plan: Plan,
}

/// Thaws pods. The outcome holds those that could not be thawed.
pub async fn thaw_leftover_pods(
    thaw_context: ThawContext<'_>,
    frozen: &FrozenByBlock,
    retry: ThawRetry<'_>,
) -> ThawOutcome {
    let mut outcome = ThawOutcome { frozen: frozen.clone(), ..ThawOutcome::default() };
    thaw_context.unwritten.apply(thaw_context.run, &mut outcome.frozen);
    outcome.unwritten =
        thaw_context.unwritten.write(thaw_context.run, thaw_context.journal).await.err();
    if outcome.frozen.is_empty() {
        return outcome;
    }
    let work = Mutex::new(outcome);
    let error = ThawPass { context: thaw_context, work: &work }.run(retry).await.err();
    let mut outcome = work.into_inner();
    outcome.error = outcome.error.or(error);
    outcome
}

/// Gives up pods that are not reached shortly after their run is canceled. A canceled run must not wait minutes for a
/// node that is unavailable; the server keeps retrying the pods in its journal.
pub async fn give_up_if_canceled(
    cancel: &CancellationToken,
    given_up: &CancellationToken,
) -> Infallible {
    cancel.cancelled().await;
    tokio::time::sleep(CANCEL_GRACE).await;
    given_up.cancel();
    std::future::pending().await
}

/// One pass over the pods.
struct ThawPass<'a> {
    context: ThawContext<'a>,
    work: &'a Mutex<ThawOutcome>,
}

impl ThawPass<'_> {
    async fn run(&self, retry: ThawRetry<'_>) -> Result<(), ThawError> {
        let ThawContext { cluster, .. } = self.context;
        let discovery = cluster.discover().await.map_err(ThawError::Cluster)?;
        let resources = discover::resources(&discovery);
        let pods = resources.core("pods").ok_or(ThawError::NoPods)?;
        let hooks = match self.context.hooks {
            Ok(hooks) => Hooks::new(hooks, &resources),
            Err(reason) => Err(InvalidHooks(vec![reason.to_owned()])),
        };
        let (hooks, unusable) = match hooks {
            Ok(hooks) => (hooks, None),
            // Annotations of pods may define post-hooks.
            Err(InvalidHooks(reasons)) => (Hooks::default(), Some(reasons)),
        };
        let hooks = (&hooks, unusable.as_deref());
        let targets = self.targets().into_iter().map(|target| async move {
            let found = cluster.get(pods, &target.pod.namespace, &target.pod.name).await;
            self.plan_thaw(target, found, hooks).await
        });
        let pod: Vec<FoundPod> = futures::stream::iter(targets)
            .buffer_unordered(MAX_CONCURRENT_PODS)
            .filter_map(std::future::ready)
            .collect()
            .await;
        let attempts = pod.iter().map(|found| self.try_once(found, retry));
        let attempts = futures::stream::iter(attempts.collect::<Vec<_>>());
        let unreached: Vec<_> = attempts.buffer_unordered(MAX_CONCURRENT_PODS).collect().await;
        if let ThawRetry::DuringOutage(stop) = retry {
            let permits = Semaphore::new(hook::MAX_CONCURRENT_THAWS);
            let unreached = unreached.into_iter().flatten();
            join_all(unreached.map(|late| self.retry(late, stop, &permits))).await;
        }
        Ok(())
    }

    /// Each pod once, however many blocks have frozen it: the last block records which hooks have run since.
    fn targets(&self) -> Vec<ThawTarget> {
        let mut targets: BTreeMap<(String, String, String), ThawTarget> = BTreeMap::new();
        for (&block, pods) in &self.work.lock().frozen {
            for pod in pods {
                let key = (pod.namespace.clone(), pod.name.clone(), pod.uid.clone());
                let blocks = targets.remove(&key).map(|before| before.blocks).unwrap_or_default();
                let blocks = blocks.into_iter().chain([block]).collect();
                targets.insert(key, ThawTarget { pod: pod.clone(), blocks });
            }
        }
        targets.into_values().collect()
    }

    /// Determines the hooks of a pod. None if the pod is settled, or if they cannot be determined.
    async fn plan_thaw(
        &self,
        target: ThawTarget,
        found: Result<Option<Object>, cluster::Error>,
        (hooks, unusable): (&Hooks, Option<&[String]>),
    ) -> Option<FoundPod> {
        let object = match found {
            Ok(Some(object)) if uid_of(&object) == target.pod.uid => object,
            // The pod is gone, or another has its name.
            Ok(_) => {
                self.record_thawed(&target, &Report::default()).await;
                return None;
            }
            Err(error) => {
                self.record_error(ThawError::Cluster(error));
                return None;
            }
        };
        let (id, report) = (object.id(), Report::default());
        match (hooks.plan(&object), unusable) {
            (Ok(plan), _) if !plan.post.is_empty() => {
                return Some(FoundPod { target, object, plan });
            }
            (Ok(_), Some(reasons)) => {
                self.record_error(ThawError::Hooks(reasons.to_vec()));
                return None;
            }
            (Ok(_), None) => {
                let text = "no post-hook is configured, so the pod may still be frozen";
                report.warn(&id, text);
            }
            (Err(error), _) => report.error(&id, format!("the pod may still be frozen: {error}")),
        }
        self.record_thawed(&target, &report).await;
        None
    }

    /// Runs the post-hooks of a pod, once. Returns the hooks that did not reach it.
    async fn try_once<'b>(
        &self,
        found: &'b FoundPod,
        retry: ThawRetry<'_>,
    ) -> Option<UnreachedPod<'b>> {
        let FoundPod { target, object, plan } = found;
        tracing::info!(pod = %object.id(), "the pod may still be frozen; running its post-hooks");
        let (report, tally) = (Report::default(), Tally::default());
        let thaw = PodThaw::new(object, plan).without(&target.pod.ran);
        let hook_context =
            hook::HookContext { cluster: self.context.cluster, report: &report, tally: &tally };
        let Some(remaining) = thaw.run(hook_context).await else {
            self.record_thawed(target, &report).await;
            return None;
        };
        if object.is_being_deleted {
            // Do not wait for an unavailable node to release its last pods.
            remaining.give_up(hook_context).await;
            self.record_thawed(target, &report).await;
            return None;
        }
        if matches!(retry, ThawRetry::Never) {
            self.record_ran_hooks(target, remaining.ran()).await;
            self.record_unreached(object);
            return None;
        }
        Some(UnreachedPod { found, thaw: remaining, report, tally })
    }

    /// Retries a pod until it is reached, or the outage is too long.
    async fn retry(&self, late: UnreachedPod<'_>, stop: &CancellationToken, permits: &Semaphore) {
        let UnreachedPod { found, thaw: remaining, report, tally } = late;
        let hook_context =
            hook::HookContext { cluster: self.context.cluster, report: &report, tally: &tally };
        match retry_thaw(hook_context, remaining, stop, permits).await {
            None => self.record_thawed(&found.target, &report).await,
            Some(still_frozen) => {
                self.record_ran_hooks(&found.target, &still_frozen.ran).await;
                self.record_unreached(&found.object);
                let (errors, warnings) = report.messages();
                self.context.report.append(errors, warnings);
            }
        }
    }

    /// Records that a pod is thawed, for each block that has frozen it.
    async fn record_thawed(&self, target: &ThawTarget, report: &Report) {
        let (errors, warnings) = report.messages();
        let mut journaled: Vec<journal::JournaledMessage> =
            errors.iter().cloned().map(Into::into).collect();
        for &block in &target.blocks {
            let errors = std::mem::take(&mut journaled);
            let is_last = self.work.lock().frozen.get(&block).is_none_or(|pods| pods.len() <= 1);
            let record = if is_last {
                JournalEntry::Thawed { block, errors }
            } else {
                let (pod, ran) = (target.pod.uid.clone(), Vec::new());
                JournalEntry::PostHooks { block, pod, ran, is_thawed: true, errors }
            };
            self.append(record).await;
        }
        self.context.report.append(errors, warnings);
    }

    /// Records which hooks of a pod have run, although the pod is not thawed.
    async fn record_ran_hooks(&self, target: &ThawTarget, ran: &[usize]) {
        if ran == target.pod.ran {
            return;
        }
        for &block in &target.blocks {
            let (pod, ran) = (target.pod.uid.clone(), ran.to_vec());
            let errors = Vec::new();
            self.append(JournalEntry::PostHooks { block, pod, ran, is_thawed: false, errors })
                .await;
        }
    }

    async fn append(&self, record: JournalEntry) {
        apply_thaw(&mut self.work.lock().frozen, &record);
        if failpoint::should_skip(Failpoint::JournalThaw) != FailpointAction::Continue {
            return;
        }
        let ThawContext { run, journal, unwritten, .. } = self.context;
        if let Err(error) = unwritten.append(run, journal, record).await {
            self.work.lock().unwritten.get_or_insert(error);
        }
        failpoint::hit(Failpoint::ThawJournaled);
    }

    fn record_unreached(&self, object: &Object) {
        let reason = format!("the post-hooks of {} may not have run", object.id());
        self.record_error(ThawError::Cluster(cluster::Error::Unreachable(reason)));
    }

    fn record_error(&self, error: ThawError) {
        self.work.lock().error.get_or_insert(error);
    }
}

/// A pod that was not reached at the first attempt.
struct UnreachedPod<'a> {
    found: &'a FoundPod,
    thaw: PodThaw<'a>,
    report: Report,
    tally: Tally,
}
