//! An item among the actions: shown to each in order, with what they add to it.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_api::annotation;
use bowline_plugin::{
    BackupItemAction, BackupOutput, Class, Code, Item, OperationId, ResourceIdentifier,
};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::{How, Sink, visit};
use crate::backup::Context;
use crate::item::Object;
use crate::operation::{Kind, Operation};
use crate::point::{self, Point};
use crate::selection::Action;

/// How long a chain of items may be of which each was added by the one before.
const DEEPEST: usize = 64;
/// The pause before an item is shown again to a plugin that has died.
const SECOND_TRY_PAUSE: Duration = Duration::from_millis(500);

/// What became of an item among the actions.
pub(super) enum Acted {
    Store(Object),
    Drop,
    Failed,
}

/// Shows an item to the actions that select it, in order.
pub(super) async fn act(
    context: &Context,
    mut object: Object,
    id: &ResourceIdentifier,
    how: &How,
    sink: &Sink<'_>,
) -> Acted {
    for (place, action) in context.backup_item_actions.iter().enumerate() {
        if !action.selects(&object) {
            continue;
        }
        let is_of_plugin = place >= context.built_in_item_actions;
        if is_of_plugin {
            point::pass(Point::Execute);
        }
        let mut executed = action.plugin.execute(&object.item, &context.request.backup).await;
        if is_of_plugin {
            executed = match executed {
                Err(error) if is_bystander(&error) => {
                    execute_again(context, action, &object, id, error, sink).await
                }
                executed => executed,
            };
            point::pass(Point::Executed);
        }
        let BackupOutput { item, additional_items, operation, post_operation_items } =
            match executed {
                Ok(output) => output,
                Err(error) => {
                    let text = format!("the action {} failed: {error}", action.name);
                    sink.report(context).error(id, text);
                    return Acted::Failed;
                }
            };
        let mut wants_additional = false;
        // Most actions return what they were given.
        if item.json() != object.item.json() {
            let marks = match take_marks(item) {
                Ok(marks) => marks,
                Err(error) => {
                    let text = format!("the action {} returned no object: {error}", action.name);
                    sink.report(context).error(id, text);
                    return Acted::Failed;
                }
            };
            if marks.is_skipped {
                tracing::info!(item = %id, "left out by the action {}", action.name);
                return Acted::Drop;
            }
            wants_additional = marks.wants_additional;
            object = match Object::new(&object.resource, marks.item) {
                Ok(object) => object,
                Err(error) => {
                    let text = format!("the action {} broke the object: {error}", action.name);
                    sink.report(context).error(id, text);
                    return Acted::Failed;
                }
            };
        }
        if let Some(operation) = operation {
            sink.begun(context, begun(context, action, id, operation, post_operation_items));
        }
        for additional in additional_items {
            visit_additional(context, id, &additional, wants_additional, how.depth, sink).await;
        }
    }
    Acted::Store(object)
}

/// Whether a plugin may have died of another item while it had this one. One that is still at it is
/// not meant: it would only have to do the same twice.
fn is_bystander(error: &bowline_plugin::Error) -> bool {
    error.class() == Class::Transient && error.code() != Code::DeadlineExceeded
}

/// Shows an item to the action of a plugin that has died, for the second and last time. One item at a
/// time, so that whichever kills the plugin kills it alone.
async fn execute_again(
    context: &Context,
    action: &Action<dyn BackupItemAction>,
    object: &Object,
    id: &ResourceIdentifier,
    error: bowline_plugin::Error,
    sink: &Sink<'_>,
) -> bowline_plugin::Result<BackupOutput> {
    tokio::time::sleep(SECOND_TRY_PAUSE).await;
    let _turn = context.second_try.lock().await;
    if context.is_over() {
        return Err(error);
    }
    tracing::info!(item = %id, "the action {} is asked again: {error}", action.name);
    let executed = action.plugin.execute(&object.item, &context.request.backup).await;
    if !error.is_undelivered() {
        let text = format!(
            "the plugin of the action {} went away while it had {id} and was given it again: what \
             it does, such as an operation that it began, may have been done twice",
            action.name
        );
        sink.report(context).warning(id, text);
    }
    executed
}

/// Backs up an item that an action added.
async fn visit_additional(
    context: &Context,
    parent: &ResourceIdentifier,
    id: &ResourceIdentifier,
    is_wanted: bool,
    depth: usize,
    sink: &Sink<'_>,
) {
    let Some((resource, id)) = context.resolve(id) else {
        let text = format!("an action added {id}, which the cluster has no such kind for");
        sink.report(context).error(parent, text);
        return;
    };
    let id = &id;
    if context.seen.contains(id) {
        return;
    }
    if sink.keeps_back(id) {
        // It is an item of the block, and comes to it by itself.
        if let Some(member) = sink.take_member(id) {
            let how = How { is_wanted, depth: depth + 1, ..How::default() };
            visit(context, member, how, sink).await;
        }
        return;
    }
    if depth >= DEEPEST {
        let text = format!("{id} is not backed up: {DEEPEST} items have added one another");
        sink.report(context).error(parent, text);
        return;
    }
    let member = sink.take_member(id);
    let is_of_another_block = member.is_none();
    let found = match member {
        Some(member) => Ok(Some(member)),
        None => context.cluster.get(&resource, &id.namespace, &id.name).await,
    };
    match found {
        Ok(Some(object)) => {
            let how = How { is_wanted, depth: depth + 1, is_of_another_block, ..How::default() };
            visit(context, object, how, sink).await;
        }
        Ok(None) => {
            let text = format!("an action added {id}, which does not exist");
            sink.report(context).warning(parent, text);
        }
        Err(error) => {
            sink.report(context).error(id, format!("it cannot be read: {error}"));
        }
    }
}

/// An item as an action returned it, without the marks by which actions speak to us.
struct Marks {
    item: Item,
    is_skipped: bool,
    wants_additional: bool,
}

fn take_marks(item: Item) -> Result<Marks, bowline_plugin::InvalidItem> {
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
    // Velero asks for the value of the one and only for the presence of the other.
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
    Ok(Marks { item, is_skipped, wants_additional })
}

/// Work that an action has begun behind the backup.
fn begun(
    context: &Context,
    action: &Action<dyn BackupItemAction>,
    id: &ResourceIdentifier,
    operation: OperationId,
    post_operation_items: Vec<ResourceIdentifier>,
) -> Operation {
    let timeout = context.request.item_operation_timeout();
    let (plugin, now) = (action.name.clone(), Timestamp::now());
    tracing::info!(item = %id, plugin = %plugin, operation = %operation, "an operation was begun");
    let begun = Operation::begun(Kind::ItemBackup, plugin, id.clone(), operation, now, timeout);
    Operation { post_operation_items, ..begun }
}
