//! From an item of the archive to the object that is written, for a restore as for its dry run.
//!
//! In two halves, since the namespace of an item is made ready in between: [`Working::find`] reads it
//! and asks the filters, [`Working::shape`] takes away its former life, shows it to the actions and
//! makes the changes that were asked for.

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

use super::super::filter::{self, Reason, Verdict};
use super::super::note::{Acted, Shown};
use super::super::version::Chosen;
use super::super::volume::{self, Shape};
use super::super::{origin, reset};
use super::{Why, Working, visit_needed};
use crate::item::Object;
use crate::journal::Intent;
use crate::operation::{Kind, Operation};
use crate::point::{self, Point};
use crate::resource::{GroupResource, Resource};
use crate::selection;

/// Where the control plane has its own objects.
const CONTROL_PLANE: &str = "kube-system";
/// How long an action may take to stop what it began.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);
/// How often an action is asked whether what it added is ready.
const READY_PAUSE: Duration = Duration::from_secs(1);
/// How long an answer may take at least. The last question comes at the deadline.
const READY_ANSWER: Duration = Duration::from_secs(1);
/// After how many errors in a row an action is not asked any more.
const READY_ERRORS: usize = 3;

/// What an item of the archive turns out to be.
pub(in crate::restore) enum Found {
    /// No part of the restore.
    LeftOut(Reason),
    /// A namespace, which is made ready by rules of its own. Its target is set.
    Namespace,
    /// Something that must not be brought back.
    Ended(Reason),
    /// An object to restore.
    Object(Box<Stored>),
}

/// An object as it is in the archive.
pub(in crate::restore) struct Stored {
    pub(in crate::restore) kind: GroupResource,
    pub(in crate::restore) object: Object,
    /// The namespace that it goes to; empty for what lives in none.
    pub(in crate::restore) namespace: String,
    value: Value,
    /// Whether the user asked for it, and not only for something that needs it.
    is_chosen: bool,
}

/// What an object becomes.
pub(in crate::restore) enum Shaped {
    /// Nothing, and why.
    Skipped(String),
    /// Nothing before another has gone, and what is waited for. Only in a dry run, which does not wait.
    Waiting(String),
    /// This.
    Ready(Box<Ready>),
}

/// An object that is ready to be written.
pub(in crate::restore) struct Ready {
    pub(in crate::restore) resource: Arc<Resource>,
    pub(in crate::restore) namespace: String,
    pub(in crate::restore) value: Value,
    /// The status that it had.
    pub(in crate::restore) status: Option<Value>,
    /// Who owned which of its fields, if that is to be written back.
    pub(in crate::restore) managed_fields: Option<Value>,
}

impl Working<'_> {
    /// Reads the item, and says whether it is to be restored.
    pub(in crate::restore) fn find(&mut self, why: Why<'_>) -> Result<Found, String> {
        let Self { context, world, id, .. } = *self;
        let kind = GroupResource::new(&id.group, &id.resource);
        let place = match why {
            Why::Turn => world.filter.place(&kind, &id.namespace, &id.name),
            Why::NeededBy { must_be_included, .. } => {
                world.filter.additional(&kind, &id.namespace, &id.name, must_be_included)
            }
        };
        if let Verdict::Skip(reason) = place {
            return Ok(Found::LeftOut(reason));
        }
        let is_chosen = match why {
            Why::Turn => true,
            Why::NeededBy { .. } => {
                world.filter.place(&kind, &id.namespace, &id.name).is_restore()
                    || world.filter.names(&kind)
            }
        };
        let stored = context.contents.kind(&kind).ok_or("it is not in the backup")?;
        let Chosen { resource, stored: version } = match world.versions.choose(&kind, stored) {
            Ok(chosen) => chosen,
            Err(not_served) => {
                let resource = self.convertible(&kind).ok_or_else(|| not_served.to_string())?;
                self.not_served = Some(not_served);
                Chosen { resource, stored: None }
            }
        };
        let version = version.as_deref();
        let read = context.contents.object(&resource, version, &id.namespace, &id.name);
        let object = read.map_err(|error| error.to_string())?;
        if let (Why::Turn, Verdict::Skip(reason)) =
            (why, world.filter.labels(&kind, &object.labels))
        {
            return Ok(Found::LeftOut(reason));
        }
        if object.resource.is_core("namespaces") {
            let name = context.request.target(&id.name).to_owned();
            self.target = Some((Arc::clone(&object.resource), String::new(), name));
            return Ok(Found::Namespace);
        }
        let namespace = context.request.target(&id.namespace).to_owned();
        self.target = Some((Arc::clone(&object.resource), namespace.clone(), id.name.clone()));
        let value: Value = object.item.parse().map_err(|error| error.to_string())?;
        if let Verdict::Skip(reason) = filter::content(&kind, &value) {
            return Ok(Found::Ended(reason));
        }
        Ok(Found::Object(Box::new(Stored { kind, object, namespace, value, is_chosen })))
    }

    /// What stands for a kind that the cluster does not serve, if an action or a modifier may make another
    /// kind of the item, which it does serve.
    fn convertible(&self, kind: &GroupResource) -> Option<Arc<Resource>> {
        let Self { context, id, .. } = *self;
        let resource = context.contents.resource(kind, &id.namespace, &id.name)?;
        let is_seen = context.actions.iter().any(|action| action.looks_at(&resource));
        let modifiers = context.request.modifiers.as_ref();
        (is_seen || modifiers.is_some_and(|modifiers| modifiers.look_at(kind)))
            .then(|| Arc::new(resource))
    }

    /// Makes of the item what is written: its former life is taken away, the actions see it, and
    /// what they add is visited first.
    pub(in crate::restore) async fn shape(&mut self, stored: Stored) -> Result<Shaped, String> {
        let Stored { kind, object, namespace, mut value, is_chosen } = stored;
        let context = self.context;
        if object.resource.is_core("persistentvolumes") {
            value = match volume::shape(context, self.id, value, is_chosen).await? {
                Shape::Create(value) => value,
                Shape::Bring(value, brought) => {
                    self.brought = Some(brought);
                    value
                }
                Shape::Skip(reason) => return Ok(Shaped::Skipped(reason)),
                Shape::Wait(reason) => return Ok(Shaped::Waiting(reason)),
            };
        }
        let status = reset::former_life(&mut value).map_err(|error| error.to_string())?;
        reset::must_include(&mut value);
        let mut value = match self.act_noted(&object, value).await? {
            Acted::Changed(value) => value,
            Acted::Skipped(reason) => return Ok(Shaped::Skipped(reason)),
        };
        volume::require(context, self.id, &object, &mut value)?;
        if object.resource.is_core("persistentvolumeclaims") {
            volume::reset_claim(context, self.id, &mut value)?;
        }
        self.finish(&kind, &mut value, &namespace)?;
        let managed_fields = reset::managed_fields(&mut value);
        let (resource, namespace, _) = self.target.clone().ok_or("it has no target")?;
        Ok(Shaped::Ready(Box::new(Ready { resource, namespace, value, status, managed_fields })))
    }

    /// Shows the item to the actions, with a note before and after if one of them may begin an
    /// operation. What they made of it in an earlier process holds.
    async fn act_noted(&self, object: &Object, value: Value) -> Result<Acted, String> {
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
        let notes = match &context.notes {
            Some(notes) if !intents.is_empty() => notes,
            _ => {
                let acted = self.act(object, value).await;
                self.hand_over();
                return acted;
            }
        };
        if let Some(acted) = notes.before(id).await {
            // They may not have got their turn before the server ended.
            self.visit_additional(None, notes.additional_before(id), true).await;
            self.hand_over();
            return acted;
        }
        let block = notes.begin(intents).await?;
        let acted = self.act(object, value).await;
        let operations = self.operations();
        if context.has_stopped() {
            // It was broken off, so that it is done again as if nothing had come of it.
            self.stop_operations(&operations).await;
            self.hand_over();
            return Err("stopped before it was restored".to_owned());
        }
        let shown = Shown {
            id,
            acted: &acted,
            operations: &operations,
            report: &self.report,
            additional: self.additional(),
        };
        notes.end(block, shown, &context.request).await;
        self.hand_over();
        acted
    }

    /// Tells operations to stop that nobody will know of.
    async fn stop_operations(&self, operations: &[Operation]) {
        let context = self.context;
        for operation in operations {
            let action = context.actions.iter().find(|action| action.name == operation.plugin);
            let Some(action) = action else { continue };
            let asked = action.plugin.cancel(&operation.id, &context.request.restore);
            if !matches!(tokio::time::timeout(CANCEL_LIMIT, asked).await, Ok(Ok(()))) {
                tracing::warn!(operation = %operation.id, "it may go on, though nobody waits for it");
            }
        }
    }

    /// Shows the item to the actions that select it, in order.
    async fn act(&self, object: &Object, value: Value) -> Result<Acted, String> {
        let context = self.context;
        let selecting = || context.actions.iter().filter(|action| action.selects(object));
        if selecting().next().is_none() {
            return Ok(Acted::Changed(value));
        }
        let mut item = Item::from_object(&value).map_err(|error| error.to_string())?;
        drop(value);
        for action in selecting() {
            if action.begins_operations {
                point::pass(Point::Execute);
            }
            let executed = self.execute(action, &item, &object.item).await;
            if action.begins_operations {
                point::pass(Point::Executed);
            }
            let output =
                executed.map_err(|error| format!("the action {} failed: {error}", action.name))?;
            let RestoreOutput { item: changed, additional_items, skip_restore, operation, wait } =
                output;
            if let Some(operation) = operation {
                self.begun(action, operation);
            }
            if skip_restore {
                return Ok(Acted::Skipped(format!("the action {} says so", action.name)));
            }
            // Each action counts for itself: what it is shown has no mark.
            let must_be_included = must_include(&changed);
            item = if must_be_included { without_mark(&changed)? } else { changed };
            let name = Some(&action.name);
            let restored = self.visit_additional(name, additional_items, must_be_included).await;
            if let Some(wait) = wait {
                self.wait_until_ready(action, &restored, wait).await?;
            }
        }
        let mut value: Value =
            item.parse().map_err(|error| format!("an action returned no object: {error}"))?;
        // It may say that it is not set.
        reset::must_include(&mut value);
        Ok(Acted::Changed(value))
    }

    /// Shows the item to an action. If the plugin dies meanwhile, maybe of another item, it is shown
    /// once more: alone, so that one that kills the plugin again takes no other such item with it.
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
            Err(error) if has_died(&error) => error,
            executed => return executed,
        };
        let _alone = context.once.alone().await;
        if context.has_stopped() {
            return Err(error);
        }
        let name = &action.name;
        if action.begins_operations {
            let text = format!(
                "the action {name} is shown this item again: what it had begun, if anything, may be \
                 left over: {error}"
            );
            self.report.warning(id, text);
        } else {
            tracing::warn!(item = %id, "the action {name} is shown this item again: {error}");
        }
        execute().await
    }

    /// Visits what an action added. Returns those that are in the cluster then, by the names that the
    /// action knows: those of the backup.
    async fn visit_additional(
        &self,
        action: Option<&Name>,
        items: Vec<ResourceIdentifier>,
        must_be_included: bool,
    ) -> Vec<ResourceIdentifier> {
        let Self { context, world, id, .. } = *self;
        let mut restored = Vec::new();
        let wants = || match action {
            Some(action) => format!("the action {action} wants"),
            None => "an action wanted, before the server was started again,".to_owned(),
        };
        for additional in items {
            if additional.name.is_empty() {
                let kind = GroupResource::new(&additional.group, &additional.resource);
                let text = format!("{} an item of {kind} without a name", wants());
                self.report.warning(id, text);
                continue;
            }
            if !context.contents.has(&additional) {
                let text = format!("{} {additional}, which is not in the backup", wants());
                self.report.warning(id, text);
                continue;
            }
            if must_be_included && let Some(namespace) = self.protected(&additional) {
                let text = format!(
                    "{} {additional}, which was not restored: nothing comes to the namespace {namespace} \
                     that was not asked for; include its namespace, if it is to",
                    wants()
                );
                self.report.warning(id, text);
                continue;
            }
            if must_be_included {
                self.add(additional.clone());
            }
            visit_needed(context, world, additional.clone(), id, must_be_included).await;
            if context.once.exists(&additional) {
                restored.push(additional);
            }
        }
        restored
    }

    /// The namespace that an item would go to, if that is one which whoever writes there rules the cluster,
    /// and the user did not ask for it: that of the control plane, and the server's own. Actions may want
    /// items whatever the filters say, and go by what the archive tells them.
    fn protected(&self, item: &ResourceIdentifier) -> Option<&str> {
        let Self { context, world, .. } = *self;
        let protected = [CONTROL_PLANE, context.options.namespace.as_str()];
        let target = match (item.group.as_str(), item.resource.as_str()) {
            ("", "namespaces") => context.request.target(&item.name),
            _ => context.request.target(&item.namespace),
        };
        let found = protected.into_iter().find(|namespace| *namespace == target)?;
        let source = if item.namespace.is_empty() { &item.name } else { &item.namespace };
        (!world.filter.namespace(source).is_restore()).then_some(found)
    }

    /// Waits until an action calls what it added ready. If it never does, that is told, and the item
    /// is restored all the same. If the restore is stopped meanwhile the item is not: the next attempt
    /// would take it for done.
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
            outcome = self.ask_until_ready(action, items, Instant::now() + limit) => outcome,
            () = context.stop.cancelled() => {
                return Err(format!("stopped while what the action {name} added was not ready"));
            }
        };
        let why = match outcome {
            Asked::Ready => return Ok(()),
            Asked::TooLong => {
                let limit = limit.as_secs_f64();
                format!("what the action {name} added was not ready within {limit} s")
            }
            Asked::Failed(error) => {
                format!("the action {name} cannot say whether what it added is ready: {error}")
            }
        };
        self.report.error(id, format!("{why}; the item is restored all the same"));
        Ok(())
    }

    /// Asks an action until it calls what it added ready. A question is harmless, so that one that
    /// failed is asked again: the plugin may have died of another item.
    async fn ask_until_ready(
        &self,
        action: &selection::Action<dyn RestoreItemAction>,
        items: &[ResourceIdentifier],
        deadline: Instant,
    ) -> Asked {
        let context = self.context;
        let mut errors = Vec::new();
        loop {
            let has_died = errors.last().is_some_and(has_died);
            let asked = async {
                let _alone = if has_died { Some(context.once.alone().await) } else { None };
                action.plugin.are_additional_items_ready(items, &context.request.restore).await
            };
            let answer_by = deadline.max(Instant::now() + READY_ANSWER);
            match tokio::time::timeout_at(answer_by, asked).await {
                Ok(Ok(true)) => return Asked::Ready,
                Ok(Ok(false)) => errors.clear(),
                Ok(Err(error)) => {
                    let is_hopeless =
                        matches!(error.class(), Class::Permanent | Class::Unimplemented);
                    if is_hopeless || errors.len() + 1 == READY_ERRORS {
                        return Asked::Failed(error);
                    }
                    errors.push(error);
                }
                Err(_) => {}
            }
            let now = Instant::now();
            if now >= deadline {
                return errors.pop().map_or(Asked::TooLong, Asked::Failed);
            }
            tokio::time::sleep_until(deadline.min(now + READY_PAUSE)).await;
        }
    }

    /// Modifiers, namespace and labels; and what the item is by now.
    fn finish(
        &mut self,
        stored: &GroupResource,
        value: &mut Value,
        target: &str,
    ) -> Result<(), String> {
        let Self { context, world, id, .. } = *self;
        if let Some(modifiers) = &context.request.modifiers {
            for error in modifiers.apply(stored, value) {
                context.report.error(id, format!("a resource modifier failed: {error}"));
            }
        }
        let no = |error: reset::NoMetadata| error.to_string();
        reset::namespace(value, target).map_err(no)?;
        let (backup, restore) = (&context.request.backup_name, &context.request.name);
        reset::labels(value, backup.as_str(), restore.as_str()).map_err(no)?;
        let text = |pointer: &str| {
            value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let (api_version, kind) = (text("/apiVersion"), text("/kind"));
        let resource = world.versions.of_kind(&api_version, &kind).map_err(|error| {
            // One that nobody has changed is told as what it was.
            self.not_served.take().map_or_else(|| error.to_string(), |stored| stored.to_string())
        })?;
        let namespace =
            if resource.is_namespaced { text("/metadata/namespace") } else { String::new() };
        let name = text("/metadata/name");
        let is_elsewhere = name != id.name || resource.id != *stored;
        let is_restored = |other: &ResourceIdentifier| {
            let place = world.filter.place(stored, &other.namespace, &other.name);
            place.is_restore() && context.contents.has(other)
        };
        let has_note = is_elsewhere || context.shared.has_rival(id, target, is_restored);
        origin::note(value, has_note.then_some(id));
        self.target = Some((resource, namespace, name));
        Ok(())
    }

    /// Notes work that an action has begun behind the restore.
    fn begun(&self, action: &selection::Action<dyn RestoreItemAction>, operation: OperationId) {
        let Self { context, id, .. } = *self;
        let (plugin, now) = (action.name.clone(), Timestamp::now());
        tracing::info!(item = %id, %plugin, %operation, "an operation was begun");
        let timeout = context.request.timeouts.item_operation;
        let begun =
            Operation::begun(Kind::ItemRestore, plugin, id.clone(), operation, now, timeout);
        self.begin_operation(begun);
    }
}

/// Whether an error may mean that the plugin has died.
fn has_died(error: &bowline_plugin::Error) -> bool {
    error.code() == Code::Unavailable
}

/// What came of the questions whether something is ready.
enum Asked {
    Ready,
    TooLong,
    Failed(bowline_plugin::Error),
}

/// An item without the mark that an action has set.
fn without_mark(item: &Item) -> Result<Item, String> {
    let broken = |error| format!("an action returned no object: {error}");
    let mut value: Value = item.parse().map_err(broken)?;
    reset::must_include(&mut value);
    Item::from_object(&value).map_err(broken)
}

/// Whether an action wants what it adds to be restored whatever the filters say.
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
