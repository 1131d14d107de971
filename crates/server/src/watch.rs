//! From watch events of objects to reconcile calls.
//!
//! ```no_run
//! # use bowline_server::watch::{Requeue, Watch};
//! # use std::{convert::Infallible, sync::Arc, time::Duration};
//! # async fn example(api: kube::Api<bowline_api::Backup>, stop: tokio_util::sync::CancellationToken)
//! # -> Result<(), bowline_server::watch::WatchEnded> {
//! let watch = Watch::new(api).concurrency(4).resync(Duration::from_mins(5));
//! let all = watch.store();
//! watch
//!     .run(&stop, move |backup| {
//!         let all = all.clone();
//!         async move {
//!             let _ = (backup, all.state());
//!             Ok::<_, Infallible>(Requeue::After(Duration::from_secs(10)))
//!         }
//!     })
//!     .await
//! # }
//! ```
//!
//! # Guarantees
//! - Calls for one object never run concurrently; changes during a call lead to one more call.
//! - At most [`Watch::concurrency`] calls run at a time.
//! - A failed call is logged and retried with backoff, up to a minute. A conflict
//!   ([`patch::is_conflict`]) is not logged, and is retried at once.
//! - A broken watch restarts with backoff; no change is missed, since a watch starts with a list.
//! - After a stop request no call is started, and [`Watch::run`] returns when the running ones have
//!   ended. Dropping it ends them at their next await.
//!
//! # Caveats
//! - Objects have no managed fields: in thousands of finished backups, these would take more memory
//!   than everything else.
//! - The object, and the contents of [`Watch::store`], may be older than the caller's last write. A
//!   decision that must not be taken twice needs a patch with the resource version.
//! - A panic in a call is a panic of [`Watch::run`].
//! - Deleted objects lead to no call.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt as _, Stream, StreamExt as _, TryStreamExt as _, stream};
use kube::runtime::controller::{Action, Config, Error as ControllerError, ReconcileRequest};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::utils::StreamBackoff;
use kube::runtime::{WatchStreamExt as _, applier, watcher};
use kube::{Api, Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::error_text::status_message;
use crate::patch;

/// First pause after a failure, and after a conflict.
const FIRST_FAILURE_BACKOFF: Duration = Duration::from_secs(1);
const FIRST_CONFLICT_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// Number of failing objects to remember before deleted ones are removed.
const MAX_TRACKED_FAILURES: usize = 1000;

/// Time of the next call for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// When the object changes.
    OnChange,
    /// After this time, or when the object changes.
    After(Duration),
}

/// Unexpected end of a watch.
#[derive(Debug, thiserror::Error)]
#[error("the watch of {kind} ended unexpectedly: {reason}")]
pub struct WatchEnded {
    kind: String,
    reason: String,
}

/// Watch of the objects of one kind.
pub struct Watch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + 'static,
{
    /// Objects to reconcile.
    requests: SelectAll<Requests<K>>,
    store: Store<K>,
    concurrency: u16,
}

type Requests<K> = BoxStream<'static, watcher::Result<ReconcileRequest<K>>>;

impl<K> Watch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Watches all objects of an API.
    pub fn new(api: Api<K>) -> Self {
        Self::with_config(api, watcher::Config::default())
    }

    /// Watches selected objects of an API.
    pub fn with_config(api: Api<K>, config: watcher::Config) -> Self {
        let (store, writer) = reflector::store();
        let changed = watcher(api, config)
            .modify(drop_managed_fields)
            .reflect(writer)
            .applied_objects()
            .map_ok(|object| ObjectRef::from_obj(&object).into());
        let mut requests = SelectAll::new();
        requests.push(changed.boxed());
        Self { requests, store, concurrency: 1 }
    }

    /// Sets the maximum number of concurrent calls; 1 by default.
    #[must_use]
    pub fn concurrency(self, concurrency: u16) -> Self {
        // Zero would mean no limit.
        Self { concurrency: concurrency.max(1), ..self }
    }

    /// Reconciles all objects at this interval, changed or not.
    #[must_use]
    pub fn resync(self, every: Duration) -> Self {
        let ticks = stream::unfold((), move |()| async move {
            tokio::time::sleep(every).await;
            Some(((), ()))
        });
        self.reconcile_all_on(ticks)
    }

    /// Reconciles all objects each time the stream yields.
    #[must_use]
    pub fn reconcile_all_on(mut self, trigger: impl Stream<Item = ()> + Send + 'static) -> Self {
        let store = self.store();
        let all = trigger.flat_map(move |()| {
            let objects = store.state().into_iter();
            stream::iter(objects.map(|object| Ok(ObjectRef::from_obj(&*object).into())))
        });
        self.requests.push(all.boxed());
        self
    }

    /// All objects known to the watch. Filled by [`Self::run`] before the first call.
    pub fn store(&self) -> Store<K> {
        self.store.clone()
    }

    /// Reconciles the objects until asked to stop.
    pub async fn run<W, F, E>(self, stop: &CancellationToken, work: W) -> Result<(), WatchEnded>
    where
        W: Fn(Arc<K>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Requeue, E>> + Send + 'static,
        E: Error + Send + Sync + 'static,
    {
        let kind = K::kind(&()).into_owned();
        let ended = |reason: String| WatchEnded { kind: kind.clone(), reason };
        let (store, filled) = (self.store(), self.store());
        let failures = Arc::new(Failures::default());
        let reconcile = move |object: Arc<K>, _: Arc<()>| {
            let span =
                tracing::info_span!("object", kind = %K::kind(&()), name = object.name_any());
            let (failures, store) = (Arc::clone(&failures), store.clone());
            let working = work(Arc::clone(&object));
            let call = async move {
                let outcome = working.await;
                Ok::<_, Infallible>(requeue_action(
                    outcome,
                    &ObjectRef::from_obj(&*object),
                    &failures,
                    &store,
                ))
            };
            run_in_task(call.instrument(span)).boxed()
        };
        let requests = StreamBackoff::new(self.requests, watcher::DefaultBackoff::default());
        let calls = applier(
            reconcile,
            |_, never: &Infallible, _| match *never {},
            Arc::new(()),
            self.store,
            requests.take_until(stop.clone().cancelled_owned()),
            Config::default().concurrency(self.concurrency),
        );
        let mut calls = std::pin::pin!(calls);
        let mut too_early = std::pin::pin!(stopped_before_ready(&filled, stop));
        loop {
            let call = tokio::select! {
                biased;
                call = calls.next() => call,
                () = &mut too_early => return Ok(()),
            };
            let Some(call) = call else { break };
            match call {
                Err(ControllerError::QueueError(error)) => {
                    tracing::warn!(
                        kind,
                        error = status_message(&error),
                        "the watch failed; retrying"
                    );
                }
                Err(ControllerError::RunnerError(error)) if !stop.is_cancelled() => {
                    return Err(ended(error.to_string()));
                }
                Err(ControllerError::ReconcilerFailed(never, _)) => match never {},
                // Reconciled, or deleted meanwhile, or a watch that ends as it should.
                Ok(_)
                | Err(ControllerError::ObjectNotFound(_) | ControllerError::RunnerError(_)) => {}
            }
        }
        if stop.is_cancelled() { Ok(()) } else { Err(ended("no reason given".to_owned())) }
    }
}

/// Drops what no controller reads, and what takes much memory.
pub(crate) fn drop_managed_fields<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// Runs a call on any thread of the runtime. Dropping this ends it, and a panic in it is a panic here.
async fn run_in_task<T: Send + 'static>(call: impl Future<Output = T> + Send + 'static) -> T {
    let mut task = JoinSet::new();
    task.spawn(call);
    match task.join_next().await {
        Some(Ok(outcome)) => outcome,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down.
        Some(Err(_)) | None => std::future::pending().await,
    }
}

/// Waits for a stop request, if that comes before the first list. The controller would then wait
/// for a list that it no longer requests.
async fn stopped_before_ready<K>(store: &Store<K>, stop: &CancellationToken)
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    tokio::select! {
        biased;
        _ = store.wait_until_ready() => std::future::pending().await,
        () = stop.cancelled() => {}
    }
}

/// Action that follows from the outcome of a call.
fn requeue_action<K, E>(
    outcome: Result<Requeue, E>,
    object: &ObjectRef<K>,
    failures: &Failures<K>,
    store: &Store<K>,
) -> Action
where
    K: Resource<DynamicType = ()> + Clone + 'static,
    E: Error + 'static,
{
    match outcome {
        Ok(next) => {
            failures.clear(object);
            match next {
                Requeue::OnChange => Action::await_change(),
                Requeue::After(after) => Action::requeue(after),
            }
        }
        Err(error) => {
            let is_conflict = has_conflict(&error);
            let count = failures.count(object, store);
            let pause = backoff(
                if is_conflict { FIRST_CONFLICT_BACKOFF } else { FIRST_FAILURE_BACKOFF },
                count,
            );
            if !is_conflict {
                let seconds = pause.as_secs();
                tracing::warn!(
                    error = status_message(&error),
                    "reconciliation failed; retrying in {seconds} s"
                );
            }
            Action::requeue(pause)
        }
    }
}

/// Pause after this many consecutive failures.
fn backoff(first: Duration, failures: u32) -> Duration {
    first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MAX_BACKOFF)
}

/// True if a conflict is among the causes of an error.
fn has_conflict(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        if cause.downcast_ref::<kube::Error>().is_some_and(patch::is_conflict) {
            return true;
        }
        next = cause.source();
    }
    false
}

/// Number of consecutive failures of each object.
struct Failures<K: Resource<DynamicType = ()>>(Mutex<HashMap<ObjectRef<K>, u32>>);

impl<K: Resource<DynamicType = ()>> Default for Failures<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Failures<K> {
    /// Counts one more failure.
    fn count(&self, object: &ObjectRef<K>, store: &Store<K>) -> u32 {
        let mut failures = self.0.lock();
        if failures.len() >= MAX_TRACKED_FAILURES {
            failures.retain(|object, _| store.get(object).is_some());
        }
        let count = failures.entry(object.clone()).or_default();
        *count = count.saturating_add(1);
        *count
    }

    fn clear(&self, object: &ObjectRef<K>) {
        self.0.lock().remove(object);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use serde_json::json;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("it failed")]
    struct Failed(#[source] kube::Error);

    fn failed(code: u16, reason: &str) -> Failed {
        let mut status = kube::core::Status::failure("no", reason);
        status.code = code;
        Failed(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn watched_objects_have_no_managed_fields() {
        let entry = json!({"manager": "m", "fieldsV1": {"f:status": {"f:phase": {}}}});
        let metadata = json!({"name": "b", "labels": {"a": "b"}, "managedFields": [entry]});
        let mut backup: bowline_api::Backup =
            serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap();
        let expected = backup.labels().clone();
        assert!(!backup.managed_fields().is_empty());
        drop_managed_fields(&mut backup);
        assert!(backup.managed_fields().is_empty());
        assert_eq!((backup.name_any(), backup.labels()), ("b".to_owned(), &expected));
    }

    #[tokio::test]
    async fn panic_of_a_call_is_a_panic_of_the_watch() {
        let failing = run_in_task::<()>(async { panic!("it failed") });
        let outcome = AssertUnwindSafe(failing).catch_unwind();
        assert!(outcome.await.is_err());
        assert_eq!(run_in_task(async { 7 }).await, 7);
    }

    #[test]
    fn backoff_doubles_up_to_a_minute() {
        let seconds = |failures| backoff(FIRST_FAILURE_BACKOFF, failures).as_secs();
        assert_eq!([1, 2, 3, 6, 7, 100, u32::MAX].map(seconds), [1, 2, 4, 32, 60, 60, 60]);
        assert_eq!(backoff(FIRST_CONFLICT_BACKOFF, 1), FIRST_CONFLICT_BACKOFF);
    }

    #[test]
    fn conflict_is_found_in_the_error_chain() {
        assert!(has_conflict(&failed(409, "Conflict")));
        assert!(!has_conflict(&failed(409, "AlreadyExists")));
        assert!(!has_conflict(&failed(404, "NotFound")));
    }

    #[test]
    fn failures_are_counted_for_each_object_until_it_succeeds() {
        let (store, _writer) = kube::runtime::reflector::store::<bowline_api::Backup>();
        let failures = Failures::default();
        let [a, b] = ["a", "b"].map(|name| ObjectRef::new(name).within("velero"));
        let counts = [&a, &a, &b, &a].map(|object| failures.count(object, &store));
        assert_eq!(counts, [1, 2, 1, 3]);
        let done = requeue_action(Ok::<_, Failed>(Requeue::OnChange), &a, &failures, &store);
        assert_eq!(done, Action::await_change());
        assert_eq!(failures.count(&a, &store), 1);
    }

    #[test]
    fn failures_of_deleted_objects_are_dropped() {
        let (store, _writer) = kube::runtime::reflector::store::<bowline_api::Backup>();
        let failures = Failures::default();
        for number in 0..3 * MAX_TRACKED_FAILURES {
            failures.count(&ObjectRef::new(&number.to_string()), &store);
        }
        assert!(failures.0.lock().len() <= MAX_TRACKED_FAILURES);
    }
}
