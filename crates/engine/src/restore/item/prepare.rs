//! Turns an item of the archive into the object to write, for a restore and for its dry run.
//!
//! There are two halves, since the namespace of an item is created in between: [`ItemRestore::read_item`] reads the
//! item and applies the filters, [`ItemRestore::prepare_object`] resets it, runs the actions and makes the requested
//! changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::annotation;
use bowline_plugin::{
    Class, Code, Item, Name, OperationId, ResourceIdentifier, RestoreItemAction, RestoreOutput,
    Wait,
};
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::super::filter::{self, Reason, RestoreVerdict};
use super::super::item_journal::{ActionsOutcome, ActionsRecord};
use super::super::version::ChosenVersion;
use super::super::volume::{self, PreparedVolume};
use super::super::{collision, reset};
use super::{ItemRestore, VisitReason, visit_additional_item};
use crate::failpoint::{self, Point};
use crate::item::Object;
use crate::journal::Intent;
use crate::operation::{Kind, Operation};
use crate::resource::{GroupResource, Resource};
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

/// Classification of an item of the archive.
pub(in crate::restore) enum ArchiveItem {
    /// Excluded by the filters.
    Excluded(Reason),
    /// A Namespace, which has rules of its own. Its target is set.
    Namespace,
    /// An item that must never be restored.
    NotRestorable(Reason),
    /// An object to restore.
    Object(Box<StoredObject>),
}

/// An object as stored in the archive.
pub(in crate::restore) struct StoredObject {
    pub(in crate::restore) kind: GroupResource,
    pub(in crate::restore) object: Object,
    /// Target namespace; empty for cluster-scoped objects.
    pub(in crate::restore) namespace: String,
    value: Value,
    /// True if the filters select the item itself, so that it is not only an additional item.
    is_selected: bool,
}

/// Result of the preparation of an object.
pub(in crate::restore) enum PreparedItem {
    /// The item is not restored, with the reason.
    Skipped(String),
    /// Another object must be deleted first. Only in a dry run, which does not wait.
    Waiting(String),
    /// The object to write.
    Ready(Box<ReadyObject>),
}

/// An object that is ready to be written.
pub(in crate::restore) struct ReadyObject {
    pub(in crate::restore) resource: Arc<Resource>,
    pub(in crate::restore) namespace: String,
    pub(in crate::restore) value: Value,
    /// The backed-up status.
    pub(in crate::restore) status: Option<Value>,
    /// The backed-up field ownership, if it is to be written back.
    pub(in crate::restore) managed_fields: Option<Value>,
}

impl ItemRestore<'_> {
    /// Reads the item and classifies it.
    pub(in crate::restore) fn read_item(
        &mut self,
        reason: VisitReason<'_>,
    ) -> Result<ArchiveItem, String> {
        let Self { context, served_api, id, .. } = *self;
        let kind = GroupResource::new(&id.group, &id.resource);
        let verdict = match reason {
            VisitReason::Scheduled => served_api.filter.location(&kind, &id.namespace, &id.name),
            VisitReason::NeededBy { must_be_included, .. } => {
                served_api.filter.additional(&kind, &id.namespace, &id.name, must_be_included)
            }
        };
        if let RestoreVerdict::Skip(reason) = verdict {
            return Ok(ArchiveItem::Excluded(reason));
        }
        let is_selected = match reason {
            VisitReason::Scheduled => true,
            VisitReason::NeededBy { .. } => {
                served_api.filter.location(&kind, &id.namespace, &id.name).is_restore()
                    || served_api.filter.includes_by_name(&kind)
            }
        };
        let stored = context.contents.kind(&kind).ok_or("it is not in the backup")?;
        let ChosenVersion { resource, stored: version } =
            match served_api.versions.choose(&kind, stored) {
                Ok(chosen) => chosen,
                Err(not_served) => {
                    let resource = self.convertible(&kind).ok_or_else(|| not_served.to_string())?;
                    self.not_served = Some(not_served);
                    ChosenVersion { resource, stored: None }
                }
            };
        let version = version.as_deref();
        let read = context.contents.object(&resource, version, &id.namespace, &id.name);
        let object = read.map_err(|error| error.to_string())?;
        if let (VisitReason::Scheduled, RestoreVerdict::Skip(reason)) =
            (reason, served_api.filter.labels(&kind, &object.labels))
        {
            return Ok(ArchiveItem::Excluded(reason));
        }
        if object.resource.is_core("namespaces") {
            let name = context.request.target(&id.name).to_owned();
            self.target = Some((Arc::clone(&object.resource), String::new(), name));
            return Ok(ArchiveItem::Namespace);
        }
        let namespace = context.request.target(&id.namespace).to_owned();
        self.target = Some((Arc::clone(&object.resource), namespace.clone(), id.name.clone()));
        let value: Value = object.item.parse().map_err(|error| error.to_string())?;
        if let RestoreVerdict::Skip(reason) = filter::check_content(&kind, &value) {
            return Ok(ArchiveItem::NotRestorable(reason));
        }
        Ok(ArchiveItem::Object(Box::new(StoredObject {
            kind,
            object,
            namespace,
            value,
            is_selected,
        })))
    }

    /// Stand-in for a kind that the cluster does not serve, if an action or a modifier may convert the item to a kind
    /// that it does serve.
    fn convertible(&self, kind: &GroupResource) -> Option<Arc<Resource>> {
        let Self { context, id, .. } = *self;
        let resource = context.contents.resource(kind, &id.namespace, &id.name)?;
        let is_handled = context.actions.iter().any(|action| action.may_select(&resource));
        let modifiers = context.request.modifiers.as_ref();
        (is_handled || modifiers.is_some_and(|modifiers| modifiers.may_apply_to(kind)))
            .then(|| Arc::new(resource))
    }

    /// Computes the object to write: resets the item and runs the actions. Their additional items are visited
    /// first.
    pub(in crate::restore) async fn prepare_object(
        &mut self,
        stored: StoredObject,
    ) -> Result<PreparedItem, String> {
        let StoredObject { kind, object, namespace, mut value, is_selected } = stored;
        let context = self.context;
        if object.resource.is_core("persistentvolumes") {
            value = match volume::prepare_volume(context, self.id, value, is_selected).await? {
                PreparedVolume::Create(value) => value,
                PreparedVolume::FromSnapshot(value, restored_volume) => {
                    self.restored_volume = Some(restored_volume);
                    value
                }
                PreparedVolume::Skip(reason) => return Ok(PreparedItem::Skipped(reason)),
                PreparedVolume::Wait(reason) => return Ok(PreparedItem::Waiting(reason)),
            };
        }
        let status =
            reset::reset_metadata_and_status(&mut value).map_err(|error| error.to_string())?;
        reset::remove_must_include(&mut value);
        let mut value = match self.run_actions_journaled(&object, value).await? {
            ActionsOutcome::Changed(value) => value,
            ActionsOutcome::Skipped(reason) => return Ok(PreparedItem::Skipped(reason)),
        };
        volume::require_source(context, self.id, &object, &mut value)?;
        if object.resource.is_core("persistentvolumeclaims") {
            volume::reset_claim(context, self.id, &mut value)?;
        }
        self.apply_changes(&kind, &mut value, &namespace)?;
        let managed_fields = reset::remove_managed_fields(&mut value);
        let (resource, namespace, _) = self.target.clone().ok_or("it has no target")?;
        Ok(PreparedItem::Ready(Box::new(ReadyObject {
            resource,
            namespace,
            value,
            status,
            managed_fields,
        })))
    }

    /// Runs the actions on the item, with journal entries before and after if one of them may start an operation. The
    /// result of an earlier process takes precedence.
    async fn run_actions_journaled(
        &self,
        object: &Object,
        value: Value,
    ) -> Result<ActionsOutcome, String> {
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
            return Err("stopped before it was restored".to_owned());
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
                tracing::warn!(operation = %operation.id, "it may go on, though nobody waits for it");
            }
        }
    }

    /// Runs the matching actions on the item, in order.
    async fn run_actions(&self, object: &Object, value: Value) -> Result<ActionsOutcome, String> {
        let context = self.context;
        let selecting = || context.actions.iter().filter(|action| action.selects(object));
        if selecting().next().is_none() {
            return Ok(ActionsOutcome::Changed(value));
        }
        let mut item = Item::from_object(&value).map_err(|error| error.to_string())?;
        drop(value);
        for action in selecting() {
            if action.begins_operations {
                failpoint::hit(Point::Execute);
            }
            let executed = self.execute(action, &item, &object.item).await;
            if action.begins_operations {
                failpoint::hit(Point::Executed);
            }
            let output =
                executed.map_err(|error| format!("the action {} failed: {error}", action.name))?;
            let RestoreOutput { item: changed, additional_items, skip_restore, operation, wait } =
                output;
            if let Some(operation) = operation {
                self.record_operation(action, operation);
            }
            if skip_restore {
                return Ok(ActionsOutcome::Skipped(format!("the action {} says so", action.name)));
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
        let mut value: Value =
            item.parse().map_err(|error| format!("an action returned no object: {error}"))?;
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
                "the action {name} is shown this item again: what it had begun, if anything, may be \
                 left over: {error}"
            );
            self.report.warn(id, text);
        } else {
            tracing::warn!(item = %id, "the action {name} is shown this item again: {error}");
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
            Some(action) => format!("the action {action} wants"),
            None => "an action wanted, before the server was started again,".to_owned(),
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
                    "{} {additional}, which was not restored: nothing comes to the namespace {namespace} \
                     that was not asked for; include its namespace, if it is to",
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
    ) -> Result<(), String> {
        let Self { context, id, .. } = *self;
        let name = &action.name;
        let limit = wait.timeout.unwrap_or(context.options.resource_timeout);
        let outcome = tokio::select! {
            outcome = self.poll_until_ready(action, items, Instant::now() + limit) => outcome,
            () = context.stop.cancelled() => {
                return Err(format!("stopped while what the action {name} added was not ready"));
            }
        };
        let reason = match outcome {
            AdditionalItemsReadiness::Ready => return Ok(()),
            AdditionalItemsReadiness::TimedOut => {
                let limit = limit.as_secs_f64();
                format!("what the action {name} added was not ready within {limit} s")
            }
            AdditionalItemsReadiness::Failed(error) => {
                format!("the action {name} cannot say whether what it added is ready: {error}")
            }
        };
        self.report.error(id, format!("{reason}; the item is restored all the same"));
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

    /// Applies modifiers, namespace and labels, and determines the resulting resource.
    fn apply_changes(
        &mut self,
        stored: &GroupResource,
        value: &mut Value,
        target: &str,
    ) -> Result<(), String> {
        let Self { context, served_api, id, .. } = *self;
        if let Some(modifiers) = &context.request.modifiers {
            for error in modifiers.apply(stored, value) {
                context.report.error(id, format!("a resource modifier failed: {error}"));
            }
        }
        let no_metadata = |error: reset::NoMetadata| error.to_string();
        reset::set_namespace(value, target).map_err(no_metadata)?;
        let (backup, restore) = (&context.request.backup_name, &context.request.name);
        reset::set_restore_labels(value, backup.as_str(), restore.as_str()).map_err(no_metadata)?;
        let text = |pointer: &str| {
            value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let (api_version, kind) = (text("/apiVersion"), text("/kind"));
        let resource = served_api.versions.of_kind(&api_version, &kind).map_err(|error| {
            // An item that was not converted is reported under its stored kind.
            self.not_served.take().map_or_else(|| error.to_string(), |stored| stored.to_string())
        })?;
        let namespace =
            if resource.is_namespaced { text("/metadata/namespace") } else { String::new() };
        let name = text("/metadata/name");
        let has_moved = name != id.name || resource.id != *stored;
        let is_restored = |other: &ResourceIdentifier| {
            let verdict = served_api.filter.location(stored, &other.namespace, &other.name);
            verdict.is_restore() && context.contents.has(other)
        };
        let needs_origin =
            has_moved || context.collisions.has_conflicting_item(id, target, is_restored);
        collision::set_origin(value, needs_origin.then_some(id));
        self.target = Some((resource, namespace, name));
        Ok(())
    }

    /// Records an operation that an action started.
    fn record_operation(
        &self,
        action: &selection::Action<dyn RestoreItemAction>,
        operation: OperationId,
    ) {
        let Self { context, id, .. } = *self;
        let (plugin, now) = (action.name.clone(), Timestamp::now());
        tracing::info!(item = %id, %plugin, %operation, "an operation was begun");
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
fn without_must_include(item: &Item) -> Result<Item, String> {
    let broken = |error| format!("an action returned no object: {error}");
    let mut value: Value = item.parse().map_err(broken)?;
    reset::remove_must_include(&mut value);
    Item::from_object(&value).map_err(broken)
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
