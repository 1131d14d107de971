//! Actions on an item: each is called in order, and may return additional items.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::annotation;
use bowline_plugin::{
    BackupItemAction, BackupOutput, Class, Code, Item, Name, OperationId, ResourceIdentifier,
};
use jiff::Timestamp;
use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;

use super::{Inclusion, ItemOrigin, ItemSource, Sink};
use crate::backup::Context;
use crate::failpoint::{self, Failpoint};
use crate::item::{InvalidObject, Object, is_name};
use crate::operation::{Kind, Operation};
use crate::selection::Action;

/// The pause before an item is passed again to a plugin that has died.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Outcome of the actions on an item.
pub(super) enum ActionOutcome {
    Store(Object),
    Exclude,
    Failed,
}

/// An additional item.
pub(super) struct AdditionalItem {
    id: ResourceIdentifier,
    /// The item that it was added to.
    parent: Arc<ResourceIdentifier>,
    action: Name,
    /// Whether the action insists on it.
    inclusion: Inclusion,
}

/// Calls the actions that select an item, in order. Additional items go to `added`, to be visited afterwards.
pub(super) async fn run_actions(
    context: &Context,
    mut object: Object,
    id: &ResourceIdentifier,
    sink: &Sink<'_>,
    added: &mut Vec<AdditionalItem>,
) -> ActionOutcome {
    let mut parent = None;
    for (place, action) in context.backup_item_actions.iter().enumerate() {
        if !action.selects(&object) {
            continue;
        }
        if parent.is_none() {
            object = match strip_must_include(object) {
                Ok(object) => object,
                Err(error) => {
                    sink.report(context).error(id, format!("the item cannot be read: {error}"));
                    return ActionOutcome::Failed;
                }
            };
        }
        let parent = parent.get_or_insert_with(|| Arc::new(id.clone()));
        let is_of_plugin = place >= context.built_in_item_actions;
        if is_of_plugin {
            failpoint::hit(Failpoint::Execute);
        }
        let executing = action.plugin.execute(&object.item, &context.request.backup);
        let mut executed = context.unless_canceled(executing).await;
        if is_of_plugin {
            executed = match executed {
                Err(error) if is_retryable(&error) => {
                    retry_execute(context, action, &object, id, error, sink).await
                }
                executed => executed,
            };
            failpoint::hit(Failpoint::Executed);
        }
        let BackupOutput { item, additional_items, operation, post_operation_items } =
            match executed {
                Ok(output) => output,
                Err(error) => {
                    let text = format!("the action {} failed: {error}", action.name);
                    sink.report(context).error(id, text);
                    return ActionOutcome::Failed;
                }
            };
        // The operation continues, whatever happens to the item.
        if let Some(operation) = operation {
            sink.results(context).record_operation(started_operation(
                context,
                action,
                id,
                operation,
                post_operation_items,
            ));
        }
        let mut inclusion = Inclusion::Filtered;
        // Most actions return the item unchanged.
        if item.json() != object.item.json() {
            let marks = match split_marks(item) {
                Ok(marks) => marks,
                Err(error) => {
                    let text = format!("the action {} returned no object: {error}", action.name);
                    sink.report(context).error(id, text);
                    return ActionOutcome::Failed;
                }
            };
            if marks.is_skipped {
                tracing::info!(item = %id, "not backed up: excluded by the action {}", action.name);
                return ActionOutcome::Exclude;
            }
            if marks.wants_additional {
                inclusion = Inclusion::Required;
            }
            object = match Object::new(&object.resource, marks.item) {
                Ok(object) => object,
                Err(error) => {
                    let text =
                        format!("the action {} returned an invalid object: {error}", action.name);
                    sink.report(context).error(id, text);
                    return ActionOutcome::Failed;
                }
            };
        }
        // The last one is visited first.
        added.extend(additional_items.into_iter().rev().map(|id| {
            let (parent, action) = (Arc::clone(parent), action.name.clone());
            AdditionalItem { id, parent, action, inclusion }
        }));
    }
    ActionOutcome::Store(object)
}

/// True if a plugin may have died of another item while it processed this one. A plugin that is still working is not
/// meant: it would only do the same twice.
fn is_retryable(error: &bowline_plugin::Error) -> bool {
    error.class() == Class::Transient && error.code() != Code::DeadlineExceeded
}

/// Passes an item to the action of a plugin that has died, for the second and last time. One item at a time, so that
/// an item that kills the plugin affects no other.
async fn retry_execute(
    context: &Context,
    action: &Action<dyn BackupItemAction>,
    object: &Object,
    id: &ResourceIdentifier,
    error: bowline_plugin::Error,
    sink: &Sink<'_>,
) -> bowline_plugin::Result<BackupOutput> {
    tokio::time::sleep(RETRY_PAUSE).await;
    let _retry_guard = context.retry_lock.lock().await;
    if context.is_aborted() {
        return Err(error);
    }
    tracing::info!(item = %id, "the action {} is called again: {error}", action.name);
    let executing = action.plugin.execute(&object.item, &context.request.backup);
    let executed = context.unless_canceled(executing).await;
    if !error.is_undelivered() {
        let text = format!(
            "the plugin of the action {} crashed while it processed {id} and was called again; \
             operations of the first call may be duplicates",
            action.name
        );
        sink.report(context).warn(id, text);
    }
    executed
}

/// Reads an additional item, and returns its origin. None if it is not to be visited: it was, or will be, or does not
/// exist.
pub(super) async fn read_additional(
    context: &Context,
    additional: &AdditionalItem,
    sink: &Sink<'_>,
) -> Option<(Object, ItemOrigin)> {
    let AdditionalItem { id, parent, action, inclusion } = additional;
    let inclusion = *inclusion;
    let Some((resource, id)) = context.resolve(id) else {
        let text =
            format!("the action {action} requested {id}, whose kind the cluster does not serve");
        sink.report(context).error(&**parent, text);
        return None;
    };
    let id = &id;
    // Without a name the request would be a list.
    if !is_name(&id.name) || (!id.namespace.is_empty() && !is_name(&id.namespace)) {
        let text =
            format!("the action {action} requested {id}, {}", invalid_name_message(&id.name));
        sink.report(context).error(&**parent, text);
        return None;
    }
    if context.visited.contains(id) {
        return None;
    }
    if sink.defers(id) {
        // An item of the block is visited anyway.
        let member = sink.take_member(id)?;
        return Some((member, ItemOrigin { inclusion, ..ItemOrigin::default() }));
    }
    let member = sink.take_member(id);
    let (found, source) = if let Some(member) = member {
        (Ok(Some(member)), ItemSource::default())
    } else {
        let found = context.cluster.get(&resource, &id.namespace, &id.name).await;
        (found, ItemSource::ReadForAction)
    };
    match found {
        Ok(Some(object)) => Some((object, ItemOrigin { inclusion, source })),
        Ok(None) => {
            let text = format!("the action {action} requested {id}, which does not exist");
            sink.report(context).warn(&**parent, text);
            None
        }
        Err(error) => {
            let text = format!(
                "the item cannot be read: {error}; the action {action} requested it for {parent}"
            );
            sink.report(context).error(id, text);
            None
        }
    }
}

/// Error for an item without a name, or with an invalid one.
pub(in crate::backup) fn invalid_name_message(name: &str) -> &'static str {
    if name.is_empty() { "an item without a name" } else { "an item with an invalid name" }
}

/// An object without the annotation by which actions insist on their additional items: a user who may write the
/// object could set it, and get items that filters exclude into the backup.
fn strip_must_include(object: Object) -> Result<Object, InvalidObject> {
    let mark = annotation::MUST_INCLUDE_ON_BACKUP;
    // Almost no object has it, so almost none is parsed for it.
    if memmem::find(object.item.json(), mark.as_bytes()).is_none() {
        return Ok(object);
    }
    let mut value: Value = object.item.parse()?;
    let annotations = value["metadata"]["annotations"].as_object_mut();
    if annotations.is_none_or(|annotations| annotations.remove(mark).is_none()) {
        return Ok(object);
    }
    tracing::warn!(item = %object.id(), "the annotation {mark} of the object is ignored: only \
                                         plugin actions may set it: only plugin actions may set it");
    Object::new(&object.resource, Item::from_value(&value)?)
}

/// An item as an action returned it, without the annotations meant for the server.
struct ActionMarks {
    item: Item,
    is_skipped: bool,
    wants_additional: bool,
}

fn split_marks(item: Item) -> Result<ActionMarks, bowline_plugin::InvalidItem> {
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(default)]
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Metadata {
        annotations: Option<BTreeMap<String, String>>,
    }
    let annotations = item.parse::<Envelope>()?.metadata.annotations.unwrap_or_default();
    // Velero checks the value of the one and only the presence of the other.
    let is_skipped = annotations.contains_key(annotation::SKIP_FROM_BACKUP);
    let wants = annotations.get(annotation::MUST_INCLUDE_ON_BACKUP);
    let wants_additional = wants.is_some_and(|value| value == "true");
    let item = if wants.is_some() {
        let mut object: Value = item.parse()?;
        if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.remove(annotation::MUST_INCLUDE_ON_BACKUP);
        }
        Item::from_object(&object)?
    } else {
        item
    };
    Ok(ActionMarks { item, is_skipped, wants_additional })
}

/// An operation that an action has started.
fn started_operation(
    context: &Context,
    action: &Action<dyn BackupItemAction>,
    id: &ResourceIdentifier,
    operation: OperationId,
    post_operation_items: Vec<ResourceIdentifier>,
) -> Operation {
    let timeout = context.request.item_operation_timeout();
    let (plugin, now) = (action.name.clone(), Timestamp::now());
    tracing::info!(
        item = %id,
        plugin = %plugin,
        operation = %operation,
        "an operation was started"
    );
    let operation =
        Operation::started(Kind::ItemBackup, plugin, id.clone(), operation, now, timeout);
    Operation { post_operation_items, ..operation }
}
