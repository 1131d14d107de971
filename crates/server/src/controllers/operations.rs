//! Follows the operations of a run until they have ended, for backups and restores alike.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::annotation;
use bowline_api::{Backup, Restore};
use bowline_engine::operation::{
    Counts, Deadlines, Operation, OperationClient, OperationTable, State, Tracker,
};
use bowline_engine::report::Report;
use bowline_plugin::{BackupItemAction, Encoded, Name, Progress, RestoreItemAction, Result};
use bowline_plugin_host::{Named, Problem};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::error_text::status_message;
use crate::events::Milestone;
use crate::server::Context;
use crate::{patch, unlisted_plugins};

/// Interval between checks for changes to publish.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which mere progress is written to the bucket. Ends are written at the next check.
const STORE_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between checks for a cancellation.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Number of attempts to show that a run is being canceled.
const PUBLISH_CANCEL_ATTEMPTS: u32 = 5;

/// Reason why operations of a canceled run are stopped.
pub(super) const CANCELED: &str = "the run was canceled by the user";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowOutcome {
    Finished,
    /// The server stops; another resumes the operations.
    Stopped,
    /// The object of the run is gone. Its operations were canceled.
    ObjectGone,
}

/// Makes the progress of operations visible.
#[async_trait]
pub(super) trait OperationPublisher: Sync {
    /// Writes the operations to the bucket. Returns true on success.
    async fn store_operations(&self, operations: &[Operation]) -> bool;

    /// Shows the number of ended operations. Returns true if the object of the run still exists.
    async fn publish_counts(&self, operations: &[Operation]) -> bool;

    /// Shows the progress of each operation. Called at most once a second.
    async fn publish_progress(&self, _: &[Operation]) {}
}

/// Publishes nothing.
struct NoPublisher;

#[async_trait]
impl OperationPublisher for NoPublisher {
    async fn store_operations(&self, _: &[Operation]) -> bool {
        false
    }

    async fn publish_counts(&self, _: &[Operation]) -> bool {
        true
    }
}

pub(super) async fn follow_operations(
    context: &Context,
    run: &str,
    table: &Arc<OperationTable>,
    operation_client: &dyn OperationClient,
    cancel: &CancellationToken,
    publisher: &dyn OperationPublisher,
) -> FollowOutcome {
    let deadlines = Deadlines {
        longest_pause: context.options.item_operation_sync_frequency,
        ..Deadlines::default()
    };
    let tracker = Tracker {
        table: Arc::clone(table),
        client: operation_client,
        poll_limiter: &context.poll_rate,
        deadlines,
        uploads: &context.uploads,
    };
    context.metrics.adopt_operations(run, &table.operations());
    let is_gone = AtomicBool::new(false);
    let mut ticks = interval(PUBLISH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut changes = table.changes();
    let (mut shown, mut last_stored) = (table.counts(), Instant::now());
    // Concurrent with the tracking: a slow bucket delays no plugin.
    let publishing = async {
        loop {
            ticks.tick().await;
            if !changes.has_changed().unwrap_or(false) {
                continue;
            }
            let operations = table.operations();
            let counts = Counts::of(&operations);
            let has_ended = counts != shown;
            context.metrics.set_operations(run, &operations);
            publisher.publish_progress(&operations).await;
            if has_ended || last_stored.elapsed() >= STORE_INTERVAL {
                changes.mark_unchanged();
                if publisher.store_operations(&operations).await {
                    table.mark_saved(&operations);
                } else {
                    changes.mark_changed();
                }
                last_stored = Instant::now();
            }
            if has_ended && !is_gone.load(Ordering::Relaxed) {
                shown = counts;
                if !publisher.publish_counts(&operations).await {
                    tracing::warn!("the run was deleted; canceling its operations");
                    is_gone.store(true, Ordering::Relaxed);
                    cancel.cancel();
                }
            }
        }
    };
    tokio::select! {
        () = tracker.run(cancel, CANCELED, &context.stop) => {}
        () = publishing => {}
    }
    context.metrics.set_operations(run, &table.operations());
    let counts = table.counts();
    if is_gone.into_inner() {
        FollowOutcome::ObjectGone
    } else if counts.completed + counts.failed == counts.attempted {
        FollowOutcome::Finished
    } else {
        FollowOutcome::Stopped
    }
}

/// Cancels operations that no run will wait for. Returns them as they ended.
pub(super) async fn cancel_operations(
    context: &Context,
    run: &str,
    operations: Vec<Operation>,
    operation_client: &dyn OperationClient,
) -> Vec<Operation> {
    let table = Arc::new(OperationTable::new(operations));
    let canceled = CancellationToken::new();
    canceled.cancel();
    let followed =
        follow_operations(context, run, &table, operation_client, &canceled, &NoPublisher).await;
    if followed == FollowOutcome::Stopped {
        tracing::warn!("operations may continue to run, because the server is stopping");
    }
    table.operations()
}

/// Reports the operations that have failed.
pub(super) fn report_failed(operations: &[Operation], report: &Report) {
    for operation in operations {
        if let State::Failed(reason) = &operation.state {
            // The failure of its snapshot is already reported.
            if operation.was_not_started() {
                continue;
            }
            let Operation { id, plugin, item, .. } = operation;
            report.error(item, format!("operation {id} of plugin {plugin} failed: {reason}"));
        }
    }
}

pub(super) fn is_canceled<K: Resource>(object: &K) -> bool {
    object.meta().annotations.as_ref().and_then(|all| all.get(annotation::CANCEL))
        == Some(&"true".to_owned())
}

/// Waits until a watch shows that a run is to be canceled, or is deleted.
pub(super) async fn wait_for_cancel<K>(watched: &Store<K>, object: &K)
where
    K: Resource<DynamicType = ()> + Clone + Debug,
{
    let reference = ObjectRef::from_obj(object);
    let mut ticks = interval(CANCEL_POLL_INTERVAL);
    let mut was_there = false;
    loop {
        ticks.tick().await;
        match watched.get(&reference) {
            Some(found) if found.uid() == object.uid() => {
                was_there = true;
                if is_canceled(&*found) || found.meta().deletion_timestamp.is_some() {
                    return;
                }
            }
            // The object is gone, or another has its name.
            _ if was_there => return,
            // The watch does not have the object yet.
            _ => {}
        }
    }
}

/// Runs a future, and cancels a token if `canceled` completes first. In that case, also publishes the cancellation.
pub(super) async fn run_cancelable<T>(
    work: impl Future<Output = T>,
    canceled: impl Future<Output = ()>,
    token: &CancellationToken,
    publish_cancel: impl Future<Output = ()>,
) -> T {
    let (mut work, mut canceled) = (std::pin::pin!(work), std::pin::pin!(canceled));
    tokio::select! {
        outcome = &mut work => return outcome,
        () = &mut canceled => token.cancel(),
    }
    tracing::info!("the run is being canceled");
    // Publishing is not awaited: the end of the run comes first.
    let mut publish_cancel = std::pin::pin!(publish_cancel);
    tokio::select! {
        outcome = &mut work => return outcome,
        () = &mut publish_cancel => {}
    }
    work.await
}

/// Shows that a run is being canceled, in its status and as an Event. `with_conditions` returns the conditions of an
/// active run, and none for one that has ended.
pub(super) async fn publish_canceling<K>(
    context: &Context,
    api: &Api<K>,
    object: &K,
    with_conditions: impl Fn(&K) -> Option<Vec<Condition>>,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    for _ in 0..PUBLISH_CANCEL_ATTEMPTS {
        let Ok(found) = api.get_opt(&object.name_any()).await else { continue };
        let Some(found) = found.filter(|found| found.uid() == object.uid()) else { return };
        let Some(conditions) = with_conditions(&found) else { return };
        // With the resource version, so that nothing is written to a run that has ended meanwhile.
        let version = found.resource_version();
        let change = json!({ "conditions": conditions });
        match patch::patch_status(api, &found.name_any(), version.as_deref(), change).await {
            Ok(_) => {
                context.events.publish(object, Milestone::Canceling).await;
                return;
            }
            Err(error) => tracing::debug!(
                "the condition Canceling cannot be written: {}",
                status_message(&error)
            ),
        }
        tokio::time::sleep(CANCEL_POLL_INTERVAL).await;
    }
}

/// Actions of a run by name, with the object that they are asked about.
pub(super) struct ActionClients<T: ?Sized, O> {
    by_name: HashMap<Name, Arc<T>>,
    object: Encoded<O>,
    /// Plugin binaries that could not be listed, and that may contain a missing action.
    unlisted: Vec<Problem>,
}

impl<T: ?Sized, O: serde::Serialize> ActionClients<T, O> {
    pub(super) fn new(actions: Vec<Named<T>>, object: O, unlisted: &[Problem]) -> Self {
        let by_name = actions.into_iter().map(|named| (named.name, named.plugin)).collect();
        Self { by_name, object: Encoded::new(object), unlisted: unlisted.to_vec() }
    }

    fn find(&self, operation: &Operation) -> Result<&Arc<T>> {
        let name = &operation.plugin;
        self.by_name.get(name).ok_or_else(|| {
            let detail = format!("plugin {name} is no longer installed");
            unlisted_plugins::missing_plugin_error(&self.unlisted, &detail)
        })
    }
}

#[async_trait]
impl OperationClient for ActionClients<dyn BackupItemAction, Backup> {
    async fn progress(&self, operation: &Operation) -> Result<Progress> {
        self.find(operation)?.progress(&operation.id, &self.object).await
    }

    async fn cancel(&self, operation: &Operation) -> Result<()> {
        self.find(operation)?.cancel(&operation.id, &self.object).await
    }
}

#[async_trait]
impl OperationClient for ActionClients<dyn RestoreItemAction, Restore> {
    async fn progress(&self, operation: &Operation) -> Result<Progress> {
        self.find(operation)?.progress(&operation.id, &self.object).await
    }

    async fn cancel(&self, operation: &Operation) -> Result<()> {
        self.find(operation)?.cancel(&operation.id, &self.object).await
    }
}

#[cfg(test)]
mod tests;
