//! Lists everything that the request selects, and passes each object on.
//!
//! Most objects go straight to [`item::visit`] while their list still arrives. Those that depend on related items,
//! because of hooks, volumes, an order or an ItemBlockAction, are [spooled](SpooledItem) to disk until all lists that
//! may contain related items are complete. Objects for actions of plugins wait until the blocks are stored, because
//! actions may add items of those.

use std::sync::Arc;

use bowline_plugin::ResourceIdentifier;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tracing::Instrument as _;

use super::filter::{FilterVerdict, Scope};
use super::item::{self, Inclusion, ItemOrigin, Sink};
use super::progress::{ExpectedItem, ExpectedList};
use super::spool::{Spool, SpoolRange};
use super::{Context, archive::Archive};
use crate::cluster::{self, Query};
use crate::item::Object;
use crate::report::ReportSubject;
use crate::resource::{GroupResource, Resource};

/// Number of objects of one list visited concurrently. More than one only helps where actions are called.
const MAX_CONCURRENT_VISITS: usize = 16;

/// The unit of the in-flight budget.
const BUDGET_UNIT: usize = 1 << 10;

/// One LIST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    resource: Arc<Resource>,
    query: Query,
    pub(super) phase: ListPhase,
}

/// Phase in which a LIST is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListPhase {
    /// First, since some of its objects may be spooled.
    BeforeBlocks,
    /// At any time.
    Anytime,
    /// After the blocks, since a plugin processes its objects. The plugin may add pods to them, and a pod with hooks
    /// must not come in before its block.
    AfterBlocks,
}

/// An object that waits on disk for its block. There may be very many.
#[derive(Debug)]
pub(super) struct SpooledItem {
    pub(super) resource: Arc<Resource>,
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    pub(super) spool_range: SpoolRange,
    /// True if it waits for its own block. Otherwise it waits for all of them, as [`ListPhase::AfterBlocks`] does.
    pub(super) is_of_block: bool,
    /// Counts the item as expected.
    _expected: ExpectedItem,
}

impl SpooledItem {
    pub(super) fn id(&self) -> ResourceIdentifier {
        let GroupResource { group, resource } = self.resource.id.clone();
        let (namespace, name) = (self.namespace.to_string(), self.name.to_string());
        ResourceIdentifier { group, resource, namespace, name }
    }

    /// Reads the item back.
    pub(super) fn read(self, spool: &Spool) -> std::io::Result<Object> {
        let item = spool.get(self.spool_range)?;
        Object::new(&self.resource, item).map_err(std::io::Error::other)
    }
}

/// The LISTs that a request needs, in order.
pub(super) fn plan_listings(context: &Context, live_namespaces: usize) -> Vec<Listing> {
    let selectors: Vec<String> = match context.request.selectors.as_slice() {
        [] => vec![String::new()],
        selectors => selectors.iter().map(ToString::to_string).collect(),
    };
    let mut listings = Vec::new();
    for resource in context.resources.iter() {
        // Namespaces are already listed.
        if resource.is_core("namespaces") {
            continue;
        }
        if let FilterVerdict::Skip(reason) = context.filter.kind(resource) {
            tracing::debug!(resource = %resource.id, "not listed: {reason}");
            continue;
        }
        let phase = list_phase(context, resource);
        let namespaces = context.filter.namespaces();
        for namespace in namespaces_to_list(&namespaces, resource, live_namespaces) {
            for label_selector in &selectors {
                let query = Query {
                    namespace: namespace.clone(),
                    label_selector: label_selector.clone(),
                    ..Query::default()
                };
                listings.push(Listing { resource: Arc::clone(resource), query, phase });
            }
        }
    }
    listings
}

/// One LIST over all namespaces, or one for each, whichever reads less. The filter drops the excess.
fn namespaces_to_list(
    scope: &Scope,
    resource: &Resource,
    live_namespaces: usize,
) -> Vec<Option<String>> {
    match scope {
        Scope::Only(namespaces) if resource.is_namespaced => {
            if namespaces.len() * 2 > live_namespaces {
                vec![None]
            } else {
                namespaces.iter().cloned().map(Some).collect()
            }
        }
        _ => vec![None],
    }
}

/// Carries out LISTs, a few at a time. Returns the spooled items.
pub(super) async fn items(
    context: &Arc<Context>,
    listings: Vec<Listing>,
    archive: &Archive,
    connections: &Arc<Semaphore>,
) -> Vec<SpooledItem> {
    let spooled = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    let report_broken_list = |ended: Result<(), JoinError>| {
        if let Err(error) = ended {
            context.report.error(ReportSubject::Run, format!("a listing was aborted: {error}"));
        }
    };
    for listing in listings {
        // There are as many tasks as connections, not as many as lists.
        let Ok(connection) = Arc::clone(connections).acquire_owned().await else { break };
        while let Some(ended) = tasks.try_join_next() {
            report_broken_list(ended);
        }
        if context.has_stopped() {
            break;
        }
        let (context, archive) = (Arc::clone(context), archive.clone());
        let spooled = Arc::clone(&spooled);
        let task = async move {
            list(&context, &listing, &archive, &spooled).await;
            drop(connection);
        };
        tasks.spawn(task.in_current_span());
    }
    while let Some(ended) = tasks.join_next().await {
        report_broken_list(ended);
    }
    std::mem::take(&mut *spooled.lock())
}

/// Visits the items that were spooled until the blocks are done.
pub(super) async fn visit_spooled(context: &Context, spooled: Vec<SpooledItem>, archive: &Archive) {
    let sink = Sink::archive(archive);
    let sink = &sink;
    let visit = async |item: SpooledItem| {
        if context.has_stopped() {
            return;
        }
        let id = item.id();
        match item.read(&context.spool) {
            Ok(object) => {
                let permit = acquire_budget(&context.budget, &object).await;
                item::visit(context, object, ItemOrigin::collected(permit), sink).await;
            }
            Err(error) => report_unreadable_spool(context, &id, &error),
        }
    };
    futures::stream::iter(spooled).for_each_concurrent(MAX_CONCURRENT_VISITS, visit).await;
}

/// Reports that a spooled item cannot be read back.
pub(super) fn report_unreadable_spool(
    context: &Context,
    id: &ResourceIdentifier,
    error: &std::io::Error,
) {
    let text = format!("the item cannot be read from the scratch directory: {error}");
    context.report.error(id, text);
}

async fn list(
    context: &Context,
    listing: &Listing,
    archive: &Archive,
    spooled: &Mutex<Vec<SpooledItem>>,
) {
    let Listing { resource, query, .. } = listing;
    let archive = archive.for_list();
    let sink = Sink::archive(&archive);
    let sink = &sink;
    let expected = Arc::new(ExpectedList::new(&context.progress));
    let announced = Arc::clone(&expected);
    let announce = Box::new(move |remaining| announced.set(remaining));
    let mut objects = context.cluster.list_announced(resource, query.clone(), announce);
    let mut visits = FuturesUnordered::new();
    let mut count = 0_usize;
    while let Some(object) = with_progress(&mut visits, objects.next()).await {
        if context.has_stopped() {
            break;
        }
        expected.count_received();
        match object {
            Ok(object) => {
                count += 1;
                // Nothing more is read than the budget has room for.
                let budget =
                    with_progress(&mut visits, acquire_budget(&context.budget, &object)).await;
                visits.push(visit_or_spool(context, object, budget, sink, spooled));
            }
            Err(error) => report_list_error(context, listing, error),
        }
        while visits.len() >= MAX_CONCURRENT_VISITS {
            visits.next().await;
        }
    }
    while visits.next().await.is_some() {}
    drop(visits);
    if archive.end_list().await.is_err() {
        context.mark_archive_failed();
    }
    if count > 0 {
        let namespace = query.namespace.as_deref();
        tracing::info!(resource = %resource.id, namespace, objects = count, "listed");
    }
}

/// Waits for a future while visits continue, since it may depend on them.
async fn with_progress<T>(
    visits: &mut FuturesUnordered<impl Future<Output = ()>>,
    wait: impl Future<Output = T>,
) -> T {
    let mut wait = std::pin::pin!(wait);
    loop {
        if visits.is_empty() {
            return wait.await;
        }
        tokio::select! {
            outcome = &mut wait => return outcome,
            _ = visits.next() => {}
        }
    }
}

fn report_list_error(context: &Context, listing: &Listing, error: cluster::Error) {
    let Listing { resource, query, .. } = listing;
    let namespace_suffix = query.namespace.as_ref().map(|namespace| format!(" in {namespace}"));
    let namespace_suffix = namespace_suffix.unwrap_or_default();
    let text = match error {
        cluster::Error::Object(error) => {
            format!("an object among {}{namespace_suffix} is not backed up: {error}", resource.id)
        }
        error => format!(
            "{}{namespace_suffix} cannot be listed, so not all of them are in the backup: {error}",
            resource.id
        ),
    };
    context.report.error(ReportSubject::Run, text);
}

async fn acquire_budget(budget: &Arc<Semaphore>, object: &Object) -> Option<OwnedSemaphorePermit> {
    let units = object.item.json().len() / BUDGET_UNIT + 1;
    // An object larger than the whole budget takes all of it.
    let units = units.min(super::MAX_IN_FLIGHT_BYTES / BUDGET_UNIT);
    let units = u32::try_from(units).unwrap_or(u32::MAX);
    Arc::clone(budget).acquire_many_owned(units).await.ok()
}

/// A whole budget.
pub(super) fn budget() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(super::MAX_IN_FLIGHT_BYTES / BUDGET_UNIT))
}

async fn visit_or_spool(
    context: &Context,
    object: Object,
    budget: Option<OwnedSemaphorePermit>,
    sink: &Sink<'_>,
    spooled: &Mutex<Vec<SpooledItem>>,
) {
    let is_of_block = is_of_block(context, &object);
    if !is_of_block && !waits_for_blocks(context, &object) {
        item::visit(context, object, ItemOrigin::collected(budget), sink).await;
        return;
    }
    if let FilterVerdict::Skip(reason) = item::judge_item(context, &object, Inclusion::Filtered) {
        tracing::debug!(item = %object.id(), "not backed up: {reason}");
        return;
    }
    match spool_object(context, &object, is_of_block) {
        Ok(spooled_item) => {
            spooled.lock().push(spooled_item);
        }
        Err(error) => {
            let text = format!("the item cannot be written to the scratch directory: {error}");
            context.report.error(&object.id(), text);
        }
    }
}

fn spool_object(
    context: &Context,
    object: &Object,
    is_of_block: bool,
) -> std::io::Result<SpooledItem> {
    let spool_range = context.spool.put(&object.item)?;
    let Object { resource, namespace, name, .. } = object;
    let (namespace, name) = (namespace.as_str().into(), name.as_str().into());
    let (resource, expected) = (Arc::clone(resource), ExpectedItem::new(&context.progress));
    Ok(SpooledItem { resource, namespace, name, spool_range, is_of_block, _expected: expected })
}

/// Phase in which a resource is listed.
fn list_phase(context: &Context, resource: &Resource) -> ListPhase {
    if may_need_block(context, resource) {
        ListPhase::BeforeBlocks
    } else if context.plugin_item_actions().any(|action| action.may_select(resource)) {
        ListPhase::AfterBlocks
    } else {
        ListPhase::Anytime
    }
}

/// True if an object has no block and yet must not come before any: see [`ListPhase::AfterBlocks`].
fn waits_for_blocks(context: &Context, object: &Object) -> bool {
    may_need_block(context, &object.resource)
        && context.plugin_item_actions().any(|action| action.selects(object))
}

/// True if objects of a resource may have to wait for their block.
fn may_need_block(context: &Context, resource: &Resource) -> bool {
    ["pods", "persistentvolumeclaims", "persistentvolumes"]
        .iter()
        .any(|kind| resource.is_core(kind))
        || context.request.ordered.contains_key(&resource.id.resource)
        || context.plugin_block_actions().any(|action| action.may_select(resource))
}

/// True if an object has to wait for its block.
fn is_of_block(context: &Context, object: &Object) -> bool {
    let resource = &object.resource;
    if resource.is_core("persistentvolumeclaims") || resource.is_core("persistentvolumes") {
        return true;
    }
    let is_ordered = || {
        let ordered = context.request.ordered.get(&resource.id.resource);
        ordered.is_some_and(|names| names.contains(&ordered_name(&object.id())))
    };
    is_ordered()
        || (resource.is_core("pods") && (has_claims(object) || has_hooks(context, object)))
        || context.plugin_block_actions().any(|action| action.selects(object))
}

/// An object as `orderedResources` names it.
pub(super) fn ordered_name(id: &ResourceIdentifier) -> String {
    match id.namespace.as_str() {
        "" => id.name.clone(),
        namespace => format!("{namespace}/{}", id.name),
    }
}

/// True if a pod has hooks, or hooks that cannot be parsed, which is reported later.
fn has_hooks(context: &Context, pod: &Object) -> bool {
    context.hooks.plan(pod).map_or(true, |plan| !plan.is_empty())
}

/// True if a pod uses a claim. A pod that cannot be parsed is treated as if it did, and reported later.
fn has_claims(pod: &Object) -> bool {
    #[derive(Deserialize)]
    struct Pod {
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Default, Deserialize)]
    struct Spec {
        #[serde(default)]
        volumes: Vec<Volume>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Volume {
        persistent_volume_claim: Option<IgnoredAny>,
        /// A generic ephemeral volume has a claim of its own.
        ephemeral: Option<IgnoredAny>,
    }
    match pod.item.parse::<Pod>() {
        Ok(pod) => {
            pod.spec.volumes.iter().any(|volume| {
                volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
            })
        }
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::GroupResource;

    #[test]
    fn a_few_namespaces_are_listed_one_by_one_and_many_at_once() {
        let resource = |is_namespaced| Resource {
            id: GroupResource::new("", "things"),
            version: "v1".into(),
            kind: "Thing".into(),
            singular: "thing".into(),
            short_names: Vec::new(),
            is_namespaced,
            verbs: Vec::new(),
        };
        let only = |count: usize| Scope::Only((0..count).map(|n| format!("n{n}")).collect());
        for (scope, is_namespaced, lists) in [
            (Scope::All, true, 1),
            (only(2), true, 2),
            (only(5), true, 5),
            (only(6), true, 1),
            (only(0), true, 0),
            (only(3), false, 1),
        ] {
            let listed = namespaces_to_list(&scope, &resource(is_namespaced), 10);
            assert_eq!(listed.len(), lists, "{scope:?}");
        }
    }
}
