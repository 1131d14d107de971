//! The life of a run, the same for backups and restores: how it is opened, driven from stage to stage, canceled,
//! refused and ended. `run/outage.rs` has the rules for a bucket that is away.
//!
//! A [`Run`] takes one Backup or Restore from its current stage to its end. Each stage starts from the state of the
//! cluster and the bucket, so it makes no difference if the previous stage was run by this process or by one that is
//! gone. [`RunObject`] is what the two kinds do differently.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_engine::backup::replace;
use bowline_engine::failpoint::{self, Failpoint};
use bowline_engine::journal::RecoveredRun;
use bowline_engine::operation::record::RunRef;
use bowline_engine::operation::{Counts, Operation};
use bowline_engine::phase::Stage;
use bowline_plugin::ResourceIdentifier;
use bowline_store::name::RunUid;
use bowline_store::{BackupStore, InvalidName};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::object::{HasSpec, HasStatus};
use kube::runtime::reflector::Store;
use kube::{Api, Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::error::RunError;
use super::with_retries;
use crate::conditions::{self, CancelState};
use crate::controllers::bucket_wait::{EndReason, RunBounds};
use crate::controllers::operations::{
    is_canceled, publish_canceling, run_cancelable, wait_for_cancel,
};
use crate::controllers::run_resources::{self, RunResources};
use crate::error_text::status_message;
use crate::events::Milestone;
use crate::log::RunLog;
use crate::metrics::Metrics;
use crate::patch;
use crate::run_state::{RunState, TerminalPhase};
use crate::server::Context;

/// A Backup or Restore: what its runs do differently.
#[async_trait]
pub(in crate::controllers) trait RunObject:
    Resource<DynamicType = ()>
    + HasSpec<Spec: Serialize>
    + HasStatus<Status: RunStatus>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    type Name: FromStr<Err = InvalidName> + Send + Sync;
    /// In messages.
    const NOUN: &'static str;
    /// Reached when the end is written.
    const OVER: Failpoint;
    /// Messages of failures to use the bucket, which failure reasons contain.
    const BUCKET_UNREACHABLE: &'static str;
    const FILE_REFUSED: &'static str;

    /// Stage according to the phase; none before the start and after the end.
    fn stage(&self) -> Option<Stage>;

    /// Timeout of its operations, if it sets one.
    fn operation_timeout(&self) -> Option<Duration>;

    /// Counts an end in the metrics.
    fn record_end(&self, metrics: &Metrics, status: &Self::Status, end: TerminalPhase);

    /// Opens the bucket of a run.
    async fn open_store(run: &Run<'_, Self>) -> Result<BackupStore, RunError>;

    /// Runs a stage after the items.
    async fn run_stage(run: &Run<'_, Self>, stage: Stage) -> Result<NextStage<Self>, RunError>;

    /// Ends a run without its bucket, based on its journal. `failure` is what was wrong with the bucket, if anything.
    async fn end_from_journal(
        run: &Run<'_, Self>,
        stage: Stage,
        end_reason: EndReason,
        failure: &str,
        recovered: &RecoveredRun,
    ) -> Result<NextStage<Self>, RunError>;

    /// Called after the end of a run is written.
    async fn clean_up_after_end(&self, _context: &Context) {}
}

/// Status of a Backup or Restore.
pub(in crate::controllers) trait RunStatus:
    Clone + Default + Serialize + Send + Sync + 'static
{
    fn state(&self) -> RunState<'_>;
    fn failure_reason(&self) -> &str;
    fn conditions_mut(&mut self) -> &mut Vec<Condition>;
    /// Sets the phase of a stage; `is_tainted` if there were errors.
    fn set_stage(&mut self, stage: Stage, is_tainted: bool);
    fn count_operations(&mut self, operations: &[Operation]);
    /// Sets the errors of a validation that failed, and the phase for it.
    fn set_invalid(&mut self, errors: &[String]);
    /// Status of a run that has failed for a reason, based on its status so far.
    fn failed(&self, reason: String) -> Self;
    /// Status of a run that was canceled, based on its status so far.
    fn canceled(&self) -> Self;
}

/// A backup or restore on its way to its end.
pub(in crate::controllers) struct Run<'a, K: RunObject> {
    pub(in crate::controllers) context: &'a Arc<Context>,
    pub(in crate::controllers) api: &'a Api<K>,
    /// The object as last read or written.
    pub(in crate::controllers) object: K,
    pub(in crate::controllers) name: K::Name,
    pub(in crate::controllers) resources: RunResources<'a>,
    /// Contents of the journal, if it was opened after all items were processed, so that it has all of them.
    pub(in crate::controllers) recovered: Option<RecoveredRun>,
    /// Of a backup: items to store again that are in the journal.
    pub(in crate::controllers) journaled_items: Mutex<BTreeSet<ResourceIdentifier>>,
    /// Of a restore: its bucket, once opened. The Backup, which names the bucket, may be deleted later.
    pub(in crate::controllers) store: Option<BackupStore>,
}

pub(in crate::controllers) enum NextStage<K: RunObject> {
    /// The next stage, as the phase of the object says.
    Continue(Box<K>),
    /// No stage: the run has ended with this status.
    Finished(Box<K::Status>),
    /// No stage: the object is gone.
    ObjectGone,
    /// Another process resumes the run.
    HandedOver,
}

impl<K: RunObject> NextStage<K> {
    /// Next stage after a write of the status, which returns nothing if the object is gone.
    pub(in crate::controllers) fn of_written(written: Option<K>) -> Self {
        written.map_or(Self::ObjectGone, |object| Self::Continue(Box::new(object)))
    }

    pub(in crate::controllers) fn finished(status: K::Status) -> Self {
        Self::Finished(Box::new(status))
    }
}

/// Status of an object; empty if it has none.
pub(in crate::controllers) fn status_of<K: RunObject>(object: &K) -> K::Status {
    object.status().cloned().unwrap_or_default()
}

/// Name and uid of the run of an object.
pub(in crate::controllers) fn identity<K: RunObject>(
    object: &K,
) -> Result<(K::Name, RunUid), InvalidName> {
    Ok((object.name_any().parse()?, RunUid::new(object.uid().unwrap_or_default())?))
}

/// Token that is canceled when the user cancels a run, which may have happened already.
pub(in crate::controllers) fn cancel_token<K: RunObject>(object: &K) -> CancellationToken {
    let cancel = CancellationToken::new();
    if is_canceled(object) {
        cancel.cancel();
    }
    cancel
}

/// Waits for the work on a run, and cancels it when the watch shows that the user does.
pub(in crate::controllers) async fn run_until_canceled<K: RunObject>(
    context: &Context,
    api: &Api<K>,
    watched: &Store<K>,
    object: &K,
    cancel: &CancellationToken,
    work: impl Future<Output = Result<(), RunError>>,
) -> Result<(), RunError> {
    let conditions = |found: &K| {
        found.stage()?;
        Some(with_conditions(&status_of(found), true).conditions_mut().clone())
    };
    let publishing = Box::pin(publish_canceling(context, api, object, conditions));
    run_cancelable(work, wait_for_cancel(watched, object), cancel, publishing).await
}

impl<'a, K: RunObject> Run<'a, K> {
    /// Opens the journal of a run and returns its contents as well. Returns nothing if the journal is damaged or the
    /// name is invalid, which has ended the run.
    pub(in crate::controllers) async fn open(
        context: &'a Arc<Context>,
        api: &'a Api<K>,
        object: K,
        location: &str,
        log: &'a RunLog,
        cancel: &CancellationToken,
    ) -> Result<Option<(Self, RecoveredRun)>, RunError> {
        let is_cancel_requested = || cancel.is_cancelled() || is_canceled(&object);
        let (name, uid) = match identity(&object) {
            Ok(identity) => identity,
            Err(error) => {
                let status = status_of(&object).failed(error.to_string());
                write_end(context, api, &object, &status, is_cancel_requested()).await?;
                return Ok(None);
            }
        };
        let (kind, object_name) = (K::kind(&()), object.name_any());
        let of = (kind.as_ref(), object_name.as_str(), uid.clone());
        let opening =
            RunResources::open(context, of, location, object.stage(), log, cancel.clone());
        let (resources, recovered) = match opening.await {
            Err(error) if run_resources::is_damaged(&error) => {
                let reason = run_resources::damaged_journal_message(&error, &uid);
                let status = status_of(&object).failed(reason);
                write_end(context, api, &object, &status, is_cancel_requested()).await?;
                object.clean_up_after_end(context).await;
                return Ok(None);
            }
            opened => opened?,
        };
        let journaled_items = Mutex::new(replace::journaled_items(&recovered));
        let run = Self {
            context,
            api,
            object,
            name,
            resources,
            recovered: None,
            journaled_items,
            store: None,
        };
        Ok(Some((run, recovered)))
    }

    /// Runs the remaining stages.
    pub(in crate::controllers) async fn drive(
        mut self,
        mut next_stage: NextStage<K>,
    ) -> Result<(), RunError> {
        loop {
            next_stage = match next_stage {
                NextStage::Continue(object) => {
                    self.object = *object;
                    let Some(stage @ (Stage::Waiting | Stage::Finalizing)) = self.object.stage()
                    else {
                        return Ok(());
                    };
                    let outcome = K::run_stage(&self, stage).await;
                    let recovered = self.recovered.as_ref();
                    Box::pin(self.handle_bucket_failure(stage, outcome, recovered)).await?
                }
                NextStage::Finished(status) => {
                    let is_cancel_requested = self.is_canceled();
                    write_end(self.context, self.api, &self.object, &status, is_cancel_requested)
                        .await?;
                    failpoint::hit(K::OVER);
                    self.object.clean_up_after_end(self.context).await;
                    return self.remove_journal().await;
                }
                NextStage::ObjectGone => return self.remove_journal().await,
                NextStage::HandedOver => {
                    self.resources.hand_over().await;
                    return Ok(());
                }
            };
        }
    }

    /// Removes the journal and the scratch files, which were kept in case the server ended.
    pub(in crate::controllers) async fn remove_journal(self) -> Result<(), RunError> {
        let store = K::open_store(&self).await;
        Ok(self.resources.clean_up(self.context, store.as_ref()).await?)
    }

    pub(in crate::controllers) async fn object_exists(&self) -> Result<bool, RunError> {
        let found = self.api.get_opt(&self.object.name_any()).await?;
        Ok(found.is_some_and(|found| found.uid() == self.object.uid()))
    }

    pub(in crate::controllers) fn is_canceled(&self) -> bool {
        self.resources.cancel.is_cancelled() || is_canceled(&self.object)
    }

    /// Reference to the run, as used by its operations.
    pub(in crate::controllers) fn run_ref(&self) -> RunRef<'_> {
        let name = self.object.meta().name.as_deref().unwrap_or_default();
        RunRef { name, uid: self.resources.uid.as_str() }
    }

    /// Timeout of its operations.
    pub(in crate::controllers) fn timeout(&self) -> Duration {
        let timeout = self.object.operation_timeout();
        timeout.unwrap_or(self.context.options.default_item_operation_timeout)
    }

    /// Limits on retries of the run.
    pub(in crate::controllers) fn bounds(&self) -> RunBounds {
        RunBounds::of(&self.context.options)
    }

    pub(in crate::controllers) fn status(&self) -> K::Status {
        status_of(&self.object)
    }

    /// Writes the status. None if the object is gone.
    pub(in crate::controllers) async fn write_status(
        &self,
        status: &K::Status,
    ) -> kube::Result<Option<K>> {
        let status = with_conditions(status, self.is_canceled());
        patch::patch_status_of(self.api, &self.object, json!(status)).await
    }

    pub(in crate::controllers) async fn publish_milestone(&self, milestone: Milestone) {
        self.context.events.publish(&self.object, milestone).await;
    }

    /// Handles an attempt to store the operations in the bucket. Returns true if they are there.
    pub(in crate::controllers) async fn handle_stored_operations(
        &self,
        stored: Result<(), bowline_store::Error>,
    ) -> bool {
        match &stored {
            Ok(()) => self.resources.journal_bucket_back(self.context).await,
            Err(error) => tracing::warn!("operations cannot be written: {}", status_message(error)),
        }
        failpoint::hit(Failpoint::OperationsWritten);
        stored.is_ok()
    }

    /// Shows the number of ended operations. Returns true if the object still exists.
    pub(in crate::controllers) async fn publish_counts(&self, operations: &[Operation]) -> bool {
        let counts = Counts::of(operations);
        let mut status = self.status();
        status.count_operations(operations);
        if counts.failed > 0 {
            status.set_stage(Stage::Waiting, true);
        }
        if let Some(milestone) = self.resources.next_milestone(counts) {
            self.publish_milestone(milestone).await;
        }
        // A status that cannot be written now is written with the next change.
        !matches!(self.write_status(&status).await, Ok(None))
    }
}

/// Writes the final status of a run.
pub(in crate::controllers) async fn write_end<K: RunObject>(
    context: &Context,
    api: &Api<K>,
    object: &K,
    status: &K::Status,
    is_cancel_requested: bool,
) -> Result<(), RunError> {
    let status = with_conditions(status, is_cancel_requested);
    let written = with_retries(|| patch::patch_status_of(api, object, json!(status))).await?;
    if written.is_none() {
        tracing::info!(
            "the resource was deleted before its final status was written; if the backup is in the \
             bucket, the sync recreates the Backup"
        );
    }
    context.runs.clear_waiting_for_bucket(&object.uid().unwrap_or_default());
    if let RunState::Ended(end) = status.state() {
        object.record_end(&context.metrics, &status, end);
        let milestone = Milestone::from_terminal_phase(end, status.failure_reason());
        context.events.publish(object, milestone).await;
    }
    Ok(())
}

/// Writes the validation errors of a run.
pub(in crate::controllers) async fn reject_invalid<K: RunObject>(
    context: &Context,
    api: &Api<K>,
    object: &K,
    errors: &[String],
) -> Result<(), RunError> {
    tracing::warn!("the {} is not valid: {}", K::NOUN, errors.join("; "));
    let mut status = status_of(object);
    status.set_invalid(errors);
    let change = defaulted_patch(object, &status);
    patch::patch(api, &object.name_any(), object.resource_version().as_deref(), change).await?;
    let end = TerminalPhase::FailedValidation;
    object.record_end(&context.metrics, &status, end);
    context.events.publish(object, Milestone::Ended { phase: end }).await;
    Ok(())
}

/// Adds the conditions that follow from a status and from a request to cancel.
pub(in crate::controllers) fn with_conditions<S: RunStatus>(
    status: &S,
    is_cancel_requested: bool,
) -> S {
    let mut status = status.clone();
    let before = std::mem::take(status.conditions_mut());
    let run = conditions::RunSummary {
        state: status.state(),
        cancel: CancelState::of(status.failure_reason(), is_cancel_requested),
        message: status.failure_reason(),
    };
    let conditions = conditions::update(&before, run, Timestamp::now());
    *status.conditions_mut() = conditions;
    status
}

/// Patch with a status and the defaults that the validation filled in.
pub(in crate::controllers) fn defaulted_patch<K: RunObject>(
    object: &K,
    status: &K::Status,
) -> Value {
    json!({
        "metadata": {
            "uid": object.uid(),
            "labels": object.labels(),
            "annotations": object.annotations(),
        },
        "spec": object.spec(),
        "status": with_conditions(status, is_canceled(object)),
    })
}
