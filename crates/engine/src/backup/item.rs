//! One item: looked at, shown to the actions, stored.
//!
//! What an action adds is visited first, depth first, so that it is in the archive before the item
//! that wants it. A failure is an error on the item, which is then not stored; nothing else stops.
//!
//! An item that is shown to an action that may begin an operation is [noted](super::note) before and
//! after, unless it is in a block that is.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bowline_api::annotation;
use bowline_plugin::{
    BackupItemAction, BackupOutput, Class, Code, Item, OperationId, ResourceIdentifier,
};
use futures::StreamExt as _;
use futures::future::{BoxFuture, join};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::archive::{Archive, Entry};
use super::filter::Verdict;
use super::hook::Tally;
use super::note::{self, Noted};
use super::replace::Fresh;
use super::volume::Snapshotted;
use super::{Context, csi, snapshot};
use crate::item::Object;
use crate::operation::{Kind, Operation};
use crate::point::{self, Point};
use crate::report::Report;
use crate::selection::Action;

/// How long a chain of items may be of which each was added by the one before.
const DEEPEST: usize = 64;
/// How many items that were kept back are visited at a time.
const AT_ONCE: usize = 8;
/// The pause before an item is shown again to a plugin that has died.
const SECOND_TRY_PAUSE: Duration = Duration::from_millis(500);

/// How an item came in.
#[derive(Debug, Default)]
pub(super) struct How {
    /// Whether it is stored even where the filters leave it out.
    pub(super) is_wanted: bool,
    /// Its part of what may be in flight.
    pub(super) budget: Option<OwnedSemaphorePermit>,
    /// How many items have added one another up to this one.
    pub(super) depth: usize,
}

/// Where stored items go, and what has come with them.
pub(super) struct Sink<'a> {
    way: Way<'a>,
    /// The items of the same block that are still to be visited. They have been read, so the cluster
    /// is not asked for them while an application is frozen.
    members: Mutex<HashMap<ResourceIdentifier, Object>>,
    kept_back: Mutex<KeptBack>,
}

/// Items that are visited when the applications are thawed, since what is to be stored of them is known
/// only then.
#[derive(Default)]
struct KeptBack {
    ids: HashSet<ResourceIdentifier>,
    waiting: Vec<(Object, How)>,
}

enum Way<'a> {
    /// Into the archive at once.
    Archive(&'a Archive),
    /// Aside, with all that comes of the block, until that is noted. An application must not wait
    /// for an upload.
    Noted(Box<Noted>),
    /// Aside, to be put in the place of what is in the archive.
    Fresh(Fresh),
}

impl<'a> Sink<'a> {
    /// Into the archive at once.
    pub(super) fn archive(archive: &'a Archive) -> Self {
        Self::of(Way::Archive(archive))
    }

    /// Aside, until somebody asks for it.
    pub(super) fn noted(noted: Noted) -> Self {
        Self::of(Way::Noted(Box::new(noted)))
    }

    /// Aside, to be put in the place of what is in the archive.
    pub(super) fn fresh(fresh: Fresh) -> Self {
        Self::of(Way::Fresh(fresh))
    }

    fn of(way: Way<'a>) -> Self {
        Self { way, members: Mutex::default(), kept_back: Mutex::default() }
    }

    /// What is to be put in the place of what is in the archive.
    pub(super) fn into_fresh(self) -> Option<Fresh> {
        match self.way {
            Way::Fresh(fresh) => Some(fresh),
            Way::Archive(_) | Way::Noted(_) => None,
        }
    }

    /// The same, for the items of a block.
    #[must_use]
    pub(super) fn of_block(self, block: Vec<Object>) -> Self {
        let members = block.into_iter().map(|object| (object.id(), object)).collect();
        Self { members: Mutex::new(members), ..self }
    }

    /// The same, with some that are to be kept back.
    #[must_use]
    pub(super) fn keeping_back(self, ids: HashSet<ResourceIdentifier>) -> Self {
        Self { kept_back: Mutex::new(KeptBack { ids, waiting: Vec::new() }), ..self }
    }

    /// Whether an item is kept back, or will be.
    fn keeps_back(&self, id: &ResourceIdentifier) -> bool {
        self.kept_back.lock().unwrap_or_else(PoisonError::into_inner).ids.contains(id)
    }

    /// Keeps an item back.
    fn keep_back(&self, object: Object, how: How) {
        let mut kept = self.kept_back.lock().unwrap_or_else(PoisonError::into_inner);
        let id = object.id();
        if kept.waiting.iter().all(|(waiting, _)| waiting.id() != id) {
            kept.waiting.push((object, how));
        }
    }

    /// What was kept back, which is not any more.
    fn let_go(&self) -> Vec<(Object, How)> {
        let mut kept = self.kept_back.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *kept).waiting
    }

    /// Adds an item that has been read, in case somebody wants it.
    pub(super) fn add_member(&self, object: Object) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.insert(object.id(), object);
    }

    /// An item of the block, if it has not been taken yet.
    pub(super) fn take_member(&self, id: &ResourceIdentifier) -> Option<Object> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
    }

    /// What was put aside, if it was.
    pub(super) fn into_noted(self) -> Option<Noted> {
        match self.way {
            Way::Archive(_) | Way::Fresh(_) => None,
            Way::Noted(noted) => Some(*noted),
        }
    }

    /// Where to tell what goes wrong.
    pub(super) fn report<'b>(&'b self, context: &'b Context) -> &'b Report {
        match &self.way {
            Way::Archive(_) | Way::Fresh(_) => &context.report,
            Way::Noted(noted) => &noted.report,
        }
    }

    /// Where hooks are counted.
    pub(super) fn tally<'b>(&'b self, context: &'b Context) -> &'b Tally {
        match &self.way {
            Way::Archive(_) | Way::Fresh(_) => &context.hook_tally,
            Way::Noted(noted) => &noted.tally,
        }
    }

    fn visited(&self, id: &ResourceIdentifier) {
        if let Way::Noted(noted) = &self.way {
            noted.visited(id);
        }
    }

    /// Notes what came of a volume that was to be snapshotted.
    pub(super) fn snapshotted(&self, context: &Context, volume: &str, outcome: Snapshotted) {
        match &self.way {
            Way::Noted(noted) => noted.snapshotted(volume, outcome),
            Way::Archive(_) | Way::Fresh(_) => context.volumes.note_snapshotted(volume, outcome),
        }
    }

    /// Notes an operation that was begun.
    pub(super) fn begun(&self, context: &Context, operation: Operation) {
        match &self.way {
            Way::Archive(_) => context.begun(operation),
            Way::Noted(noted) => noted.begun(operation),
            Way::Fresh(_) => {
                let text = format!(
                    "the action {} began the operation {} when the item was stored again; nobody \
                     waits for it",
                    operation.plugin, operation.id
                );
                context.report.error(&operation.item, text);
            }
        }
    }
}

/// What became of an item among the actions.
enum Acted {
    Store(Object),
    Drop,
    Failed,
}

/// Backs up an item and what its actions add to it.
pub(super) fn visit<'a>(
    context: &'a Context,
    object: Object,
    how: How,
    sink: &'a Sink<'a>,
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let id = object.id();
        if let Some(reason) = why_not(context, &object, how.is_wanted) {
            tracing::debug!(item = %id, "left out: {reason}");
            return;
        }
        if sink.keeps_back(&id) {
            sink.keep_back(object, how);
            return;
        }
        if context.is_over() || !context.seen.claim(&id) {
            return;
        }
        match &sink.way {
            Way::Archive(archive)
                if context.may_begin_operations(&object)
                    || may_be_snapshotted(context, &object)
                    || is_new_claim(context, &object) =>
            {
                note::alone(context, object, how, archive).await;
            }
            Way::Noted(noted) if is_new_claim(context, &object) => {
                // An action has brought a claim in that nobody expected in this block.
                let planned = csi::prepare(context, [&object]).await;
                let is_noted = note::also(context, noted, csi::intents(&planned)).await;
                let planned = csi::if_noted(planned, is_noted);
                let tried = csi::take(context, planned, sink).await;
                csi::finish(context, tried, sink).await;
                work(context, object, how, sink).await;
            }
            Way::Noted(noted) if may_be_snapshotted(context, &object) => {
                // An action has brought a volume in that nobody expected in this block.
                let planned = snapshot::prepare(context, [&object]).await;
                let is_noted = note::also(context, noted, snapshot::intents(&planned)).await;
                let planned = snapshot::if_noted(planned, is_noted);
                join(work(context, object, how, sink), snapshot::take(context, planned, sink))
                    .await;
            }
            _ => work(context, object, how, sink).await,
        }
    })
}

/// Whether a volume may have to be snapshotted that no block has seen to.
fn may_be_snapshotted(context: &Context, object: &Object) -> bool {
    object.resource.is_core("persistentvolumes") && context.snapshots.is_unclaimed(&object.name)
}

/// Whether a claim may have to be snapshotted that no block has seen to.
fn is_new_claim(context: &Context, object: &Object) -> bool {
    object.resource.is_core("persistentvolumeclaims")
        && context.csi.is_unclaimed(&object.namespace, &object.name)
}

/// Backs up the items that were kept back.
pub(super) async fn visit_kept_back(context: &Context, sink: &Sink<'_>) {
    let mut visits = Vec::new();
    for (object, how) in sink.let_go() {
        visits.push(visit(context, object, how, sink));
    }
    futures::stream::iter(visits).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// Backs up an item that was claimed.
pub(super) async fn work(context: &Context, object: Object, how: How, sink: &Sink<'_>) {
    let id = object.id();
    sink.visited(&id);
    meet(context, &object);
    match act(context, object, &id, &how, sink).await {
        Acted::Store(object) => store(context, &object, how.budget, sink).await,
        Acted::Drop => context.seen.release(&id),
        Acted::Failed => {}
    }
    context.progress.done();
}

/// Notes what is to be known of every item, whatever becomes of it.
pub(super) fn meet(context: &Context, object: &Object) {
    context.progress.found();
    if object.resource.is_namespaced {
        context.namespaces.touch(&object.namespace);
    }
    context.volumes.note(object);
}

/// Why an item is not backed up, if it is not.
fn why_not(context: &Context, object: &Object, is_wanted: bool) -> Option<String> {
    if object.is_being_deleted {
        return Some("it is being deleted".to_owned());
    }
    if is_wanted {
        return None;
    }
    let Object { resource, namespace, name, labels, .. } = object;
    match context.filter.item(resource, namespace, name, labels) {
        Verdict::Include => None,
        Verdict::Skip(reason) => Some(reason.to_string()),
    }
}

async fn store(
    context: &Context,
    object: &Object,
    budget: Option<OwnedSemaphorePermit>,
    sink: &Sink<'_>,
) {
    if let Way::Fresh(fresh) = &sink.way {
        if let Err(error) = fresh.store(object) {
            let text = format!("it cannot be kept in the scratch folder: {error}");
            context.report.error(&object.id(), text);
        }
        return;
    }
    context.inventory.add(object);
    let entry = Entry::new(object, budget);
    match &sink.way {
        Way::Fresh(_) => {}
        Way::Archive(archive) => {
            if archive.append(entry).await.is_err() {
                context.stop();
            }
        }
        Way::Noted(noted) => noted.store(object, entry),
    }
}

/// Shows an item to the actions that select it, in order.
async fn act(
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
            let how = How { is_wanted, budget: None, depth: depth + 1 };
            visit(context, member, how, sink).await;
        }
        return;
    }
    if depth >= DEEPEST {
        let text = format!("{id} is not backed up: {DEEPEST} items have added one another");
        sink.report(context).error(parent, text);
        return;
    }
    let found = match sink.take_member(id) {
        Some(member) => Ok(Some(member)),
        None => context.cluster.get(&resource, &id.namespace, &id.name).await,
    };
    match found {
        Ok(Some(object)) => {
            let how = How { is_wanted, budget: None, depth: depth + 1 };
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

/// The namespaces that something was found in.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    touched: Mutex<BTreeSet<String>>,
}

impl Namespaces {
    fn touch(&self, namespace: &str) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        if !touched.contains(namespace) {
            touched.insert(namespace.to_owned());
        }
    }

    /// All of them.
    pub(super) fn touched(&self) -> BTreeSet<String> {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether something was found in a namespace.
    pub(super) fn has(&self, namespace: &str) -> bool {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).contains(namespace)
    }
}
