//! Runs the actions on an item, with their operations and additional items.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_api::annotation;
use bowline_plugin::{
    Class, Code, InvalidItem, Item, Name, OperationId, ResourceIdentifier, RestoreItemAction,
    RestoreOutput, Wait,
};
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::super::item_journal::{ActionsOutcome, ActionsRecord, StoredItemError};
use super::super::reset;
use super::{ItemRestore, SkipReason, visit_additional_item};
use crate::failpoint::{self, Failpoint};
use crate::item::Object;
use crate::journal::{self, Intent};
use crate::operation::{Kind, Operation};
use crate::resource::GroupResource;
use crate::selection;

/// Namespace of the control plane.
const CONTROL_PLANE: &str = "kube-system";
/// Timeout for canceling an operation of an action.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between checks whether additional items are ready.
const READY_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time for an answer. The last check happens at the deadline.
const READY_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of consecutive errors after which an action is no longer asked.
const READY_MAX_ERRORS: usize = 3;

/// Why the actions did not produce an object.
#[derive(Debug, thiserror::Error)]
pub(in crate::restore) enum ActionsError {
    #[error(transparent)]
    Item(InvalidItem),
    #[error("the item is not restored")]
    Journal(#[from] journal::Error),
    #[error("the action {action} failed")]
    Execute { action: Name, source: bowline_plugin::Error },
    #[error("an action returned no object")]
    Returned(#[source] InvalidItem),
    /// The restore was stopped. The process that resumes it runs the actions again.
    #[error("the restore was stopped before this item")]
    Stopped,
    #[error("the restore was stopped while the additional items of action {0} were not ready")]
    StoppedWaiting(Name),
    /// The actions failed in an earlier process, with the text of the journal.
    #[error("{0}")]
    BeforeRestart(String),
    #[error("the results of the actions were lost when the server restarted")]
    Lost(#[source] StoredItemError),
}

impl ItemRestore<'_> {
    /// Runs the actions on the item, with journal entries before and after if one of them may start an operation. The
    /// result of an earlier process takes precedence.
    pub(super) async fn run_actions_journaled(
        &self,
        object: &Object,
        value: Value,
    ) -> Result<ActionsOutcome, ActionsError> {
        let Self { context, id, .. } = *self;
        let intents: Vec<Intent> = context
            .actions
            .iter()
            .filter(|action| action.begins_operations && action.selects(object))
            .map(|action| Intent {
                plugin: action.name.to_string(),
                item: id.clone().into(),
                ..Intent::default()
            })
            .collect();
        let journal = match &context.item_journal {
            Some(journal) if !intents.is_empty() => journal,
            _ => {
                let outcome = self.run_actions(object, value).await;
                self.merge_into_run();
                return outcome;
            }
        };
        if let Some(outcome) = journal.earlier_outcome(id).await {
            // The earlier process may have ended before it visited them.
            self.visit_additional(None, journal.earlier_additional_items(id), true).await;
            self.merge_into_run();
            return outcome;
        }
        let block = journal.journal_start(intents).await?;
        let outcome = self.run_actions(object, value).await;
        let operations = self.operations();
        if context.has_stopped() {
            // The run was interrupted, so the item is processed again as if the actions had not run.
            self.stop_operations(&operations).await;
            self.merge_into_run();
            return Err(ActionsError::Stopped);
        }
        let action_record = ActionsRecord {
            id,
            outcome: &outcome,
            operations: &operations,
            report: &self.report,
            additional: self.additional(),
        };
        journal.journal_end(block, action_record, &context.request).await;
        self.merge_into_run();
        outcome
    }

    /// Cancels operations that no record will mention.
    async fn stop_operations(&self, operations: &[Operation]) {
        let context = self.context;
        for operation in operations {
            let action = context.actions.iter().find(|action| action.name == operation.plugin);
            let Some(action) = action else { continue };
            let cancel_call = action.plugin.cancel(&operation.id, &context.request.restore);
            if !matches!(tokio::time::timeout(CANCEL_TIMEOUT, cancel_call).await, Ok(Ok(()))) {
                tracing::warn!(
                    operation = %operation.id,
                    "the operation could not be canceled and may continue"
                );
            }
        }
    }

    /// Runs the matching actions on the item, in order.
    async fn run_actions(
        &self,
        object: &Object,
        value: Value,
    ) -> Result<ActionsOutcome, ActionsError> {
        let context = self.context;
        let selecting = || context.actions.iter().filter(|action| action.selects(object));
        if selecting().next().is_none() {
            return Ok(ActionsOutcome::Changed(value));
        }
        let mut item = Item::from_value(&value).map_err(ActionsError::Item)?;
        drop(value);
        for action in selecting() {
            if action.begins_operations {
                failpoint::hit(Failpoint::Execute);
            }
            let executed = self.execute(action, &item, &object.item).await;
            if action.begins_operations {
                failpoint::hit(Failpoint::Executed);
            }
            let output = executed
                .map_err(|source| ActionsError::Execute { action: action.name.clone(), source })?;
            let RestoreOutput { item: changed, additional_items, skip_restore, operation, wait } =
                output;
            if let Some(operation) = operation {
                self.record_operation(action, operation);
            }
            if skip_restore {
                return Ok(ActionsOutcome::Skipped(SkipReason::Action(action.name.clone())));
            }
            // The annotation applies to each action separately: its input never has it.
            let must_be_included = must_include(&changed);
            item = if must_be_included { without_must_include(&changed)? } else { changed };
            let name = Some(&action.name);
            let restored = self.visit_additional(name, additional_items, must_be_included).await;
            if let Some(wait) = wait {
                self.wait_until_ready(action, &restored, wait).await?;
            }
        }
        let mut value: Value = item.parse().map_err(ActionsError::Returned)?;
        // The annotation may also be present with a value that means "not set".
        reset::remove_must_include(&mut value);
        Ok(ActionsOutcome::Changed(value))
    }

    /// Runs an action on the item. If the plugin dies meanwhile, possibly because of another item, the call is retried
    /// once: exclusively, so that an item that kills the plugin again affects no other retry.
    async fn execute(
        &self,
        action: &selection::Action<dyn RestoreItemAction>,
        item: &Item,
        item_from_backup: &Item,
    ) -> bowline_plugin::Result<RestoreOutput> {
        let Self { context, id, .. } = *self;
        let restore = &context.request.restore;
        let execute =
            || context.unless_canceled(action.plugin.execute(item, item_from_backup, restore));
        let error = match execute().await {
            Err(error) if is_plugin_crash(&error) => error,
            executed => return executed,
        };
        let _exclusive = context.claimed_items.exclusive_retry().await;
        if context.has_stopped() {
            return Err(error);
        }
        let name = &action.name;
        if action.begins_operations {
            let text = format!(
                "the action {name} processes this item again; results of the first call may be \
                 left over: {error}"
            );
            self.report.warn(id, text);
        } else {
            tracing::warn!(item = %id, "the action {name} processes this item again: {error}");
        }
        execute().await
    }

    /// Visits the additional items of an action. Returns those that are in the cluster afterwards, by the names that
    /// the action knows: those of the backup.
    async fn visit_additional(
        &self,
        action: Option<&Name>,
        items: Vec<ResourceIdentifier>,
        must_be_included: bool,
    ) -> Vec<ResourceIdentifier> {
        let Self { context, served_api, id, .. } = *self;
        let mut restored = Vec::new();
        let requester = || match action {
            Some(action) => format!("the action {action} requested"),
            None => "before the server restarted, an action requested".to_owned(),
        };
        for additional in items {
            if additional.name.is_empty() {
                let kind = GroupResource::new(&additional.group, &additional.resource);
                let text = format!("{} an item of {kind} without a name", requester());
                self.report.warn(id, text);
                continue;
            }
            if !context.contents.has(&additional) {
                let text = format!("{} {additional}, which is not in the backup", requester());
                self.report.warn(id, text);
                continue;
            }
            if must_be_included && let Some(namespace) = self.protected_namespace(&additional) {
                let text = format!(
                    "{} {additional}, which was not restored: only included items are restored \
                     into namespace {namespace}; to restore it, include its namespace",
                    requester()
                );
                self.report.warn(id, text);
                continue;
            }
            if must_be_included {
                self.add_additional(additional.clone());
            }
            visit_additional_item(context, served_api, additional.clone(), id, must_be_included)
                .await;
            if context.claimed_items.is_in_cluster(&additional) {
                restored.push(additional);
            }
        }
        restored
    }

    /// The target namespace of an item, if it is a privileged one that the user did not ask for: that of the control
    /// plane or the server's own, where write access means control of the cluster. Actions may require items
    /// regardless of the filters, and they rely on the contents of the archive.
    fn protected_namespace(&self, item: &ResourceIdentifier) -> Option<&str> {
        let Self { context, served_api, .. } = *self;
        let protected = [CONTROL_PLANE, context.options.namespace.as_str()];
        let target = match (item.group.as_str(), item.resource.as_str()) {
            ("", "namespaces") => context.request.target(&item.name),
            _ => context.request.target(&item.namespace),
        };
        let found = protected.into_iter().find(|namespace| *namespace == target)?;
        let source = if item.namespace.is_empty() { &item.name } else { &item.namespace };
        (!served_api.filter.namespace(source).is_restore()).then_some(found)
    }

    /// Waits until an action considers its additional items ready. After the timeout, a message is reported and the
    /// item is restored anyway. If the restore is stopped meanwhile, the item is not restored: the next attempt would
    /// consider it done.
    async fn wait_until_ready(
        &self,
        action: &selection::Action<dyn RestoreItemAction>,
        items: &[ResourceIdentifier],
        wait: Wait,
    ) -> Result<(), ActionsError> {
        let Self { context, id, .. } = *self;
        let name = &action.name;
        let limit = wait.timeout.unwrap_or(context.options.resource_timeout);
        let outcome = tokio::select! {
            outcome = self.poll_until_ready(action, items, Instant::now() + limit) => outcome,
            () = context.stop.cancelled() => return Err(ActionsError::StoppedWaiting(name.clone())),
        };
        let reason = match outcome {
            AdditionalItemsReadiness::Ready => return Ok(()),
            AdditionalItemsReadiness::TimedOut => {
                let limit = limit.as_secs_f64();
                format!("additional items of action {name} were not ready within {limit} s")
            }
            AdditionalItemsReadiness::Failed(error) => {
                format!(
                    "the action {name} cannot check whether its additional items are ready: \
                     {error}"
                )
            }
        };
        self.report.error(id, format!("{reason}; the item is still restored"));
        Ok(())
    }

    /// Asks an action until it considers its additional items ready. The call has no side effects, so a failed one is
    /// retried: the plugin may have died because of another item.
    async fn poll_until_ready(
        &self,
        action: &selection::Action<dyn RestoreItemAction>,
        items: &[ResourceIdentifier],
        deadline: Instant,
    ) -> AdditionalItemsReadiness {
        let context = self.context;
        let mut errors = Vec::new();
        loop {
            let has_crashed = errors.last().is_some_and(is_plugin_crash);
            let call = async {
                let _exclusive = if has_crashed {
                    Some(context.claimed_items.exclusive_retry().await)
                } else {
                    None
                };
                action.plugin.are_additional_items_ready(items, &context.request.restore).await
            };
            let answer_by = deadline.max(Instant::now() + READY_ANSWER_TIMEOUT);
            match tokio::time::timeout_at(answer_by, call).await {
                Ok(Ok(true)) => return AdditionalItemsReadiness::Ready,
                Ok(Ok(false)) => errors.clear(),
                Ok(Err(error)) => {
                    let is_permanent =
                        matches!(error.class(), Class::Permanent | Class::Unimplemented);
                    if is_permanent || errors.len() + 1 == READY_MAX_ERRORS {
                        return AdditionalItemsReadiness::Failed(error);
                    }
                    errors.push(error);
                }
                Err(_) => {}
            }
            let now = Instant::now();
            if now >= deadline {
                return errors
                    .pop()
                    .map_or(AdditionalItemsReadiness::TimedOut, AdditionalItemsReadiness::Failed);
            }
            tokio::time::sleep_until(deadline.min(now + READY_POLL_INTERVAL)).await;
        }
    }

    /// Records an operation that an action started.
    fn record_operation(
        &self,
        action: &selection::Action<dyn RestoreItemAction>,
        operation: OperationId,
    ) {
        let Self { context, id, .. } = *self;
        let (plugin, now) = (action.name.clone(), Timestamp::now());
        tracing::info!(item = %id, %plugin, %operation, "an operation was started");
        let timeout = context.request.timeouts.item_operation;
        let started =
            Operation::started(Kind::ItemRestore, plugin, id.clone(), operation, now, timeout);
        self.begin_operation(started);
    }
}

/// True if an error may mean that the plugin has died.
fn is_plugin_crash(error: &bowline_plugin::Error) -> bool {
    error.code() == Code::Unavailable
}

/// Result of the readiness checks.
enum AdditionalItemsReadiness {
    Ready,
    TimedOut,
    Failed(bowline_plugin::Error),
}

/// An item without the annotation that an action has set.
fn without_must_include(item: &Item) -> Result<Item, ActionsError> {
    let mut value: Value = item.parse().map_err(ActionsError::Returned)?;
    reset::remove_must_include(&mut value);
    Item::from_value(&value).map_err(ActionsError::Returned)
}

/// True if an action requires that its additional items are included.
fn must_include(item: &Item) -> bool {
    #[derive(serde::Deserialize)]
    struct Envelope {
        #[serde(default)]
        metadata: Metadata,
    }
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Metadata {
        annotations: Option<BTreeMap<String, String>>,
    }
    let annotations = item.parse::<Envelope>().ok().and_then(|read| read.metadata.annotations);
    annotations.is_some_and(|annotations| {
        annotations.get(annotation::MUST_INCLUDE_ON_RESTORE).is_some_and(|value| value == "true")
    })
}
