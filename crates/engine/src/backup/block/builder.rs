//! Which items form a block: the items of a user-defined order, or an item and everything that ItemBlockActions relate
//! to it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bowline_plugin::{Class, Name, ResourceIdentifier};

use crate::backup::Context;
use crate::backup::collect::{self, SpooledItem};
use crate::backup::filter::FilterVerdict;
use crate::backup::item::{self, Inclusion};
use crate::item::{Object, is_name};
use crate::item_hash::ItemHash;
use crate::report::ReportSubject;
use crate::resource::Resource;

/// Limit on the items of a block. More would have to be held in memory.
const MAX_BLOCK_ITEMS: usize = 10_000;

/// Builds blocks from spooled items.
pub(super) struct BlockBuilder<'a> {
    context: &'a Context,
    spooled: Vec<Option<SpooledItem>>,
    /// Index of each item, by its key.
    indexes: HashMap<ItemHash, usize>,
    /// Items requested although they were not collected. Each is in a block now, or never will be.
    fetched: HashSet<ResourceIdentifier>,
    /// The user's orders: indexes of items that form one block, by the first index of their resource. Their block is
    /// the first of the resource, so that ordered volumes and claims still join the block of a pod that uses them:
    /// pods come first, and include them in their freeze window.
    orders: BTreeMap<usize, Vec<usize>>,
    next_index: usize,
}

impl<'a> BlockBuilder<'a> {
    pub(super) fn new(context: &'a Context, spooled: Vec<SpooledItem>) -> Self {
        let mut spooled = spooled;
        // Lists arrive in any order; pods come first, and volumes follow their claims.
        let order: HashMap<_, _> = context.resources.iter().map(|r| &r.id).zip(0..).collect();
        spooled.sort_by(|one, other| {
            let key =
                |item: &SpooledItem| order.get(&item.resource.id).copied().unwrap_or(usize::MAX);
            key(one)
                .cmp(&key(other))
                .then_with(|| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)))
        });
        // A page that was requested twice returns its objects twice.
        spooled.dedup_by(|one, other| {
            (&one.resource.id, &one.namespace, &one.name)
                == (&other.resource.id, &other.namespace, &other.name)
        });
        let indexes: HashMap<_, _> = spooled
            .iter()
            .enumerate()
            .map(|(place, item)| (context.visited.key(&item.id()), place))
            .collect();
        let orders = orders(context, &spooled);
        let spooled = spooled.into_iter().map(Some).collect();
        Self { context, spooled, indexes, fetched: HashSet::new(), orders, next_index: 0 }
    }

    /// The items that the next block starts with.
    fn next_seed(&mut self) -> Option<Vec<usize>> {
        self.orders.remove(&self.next_index).or_else(|| {
            let place = self.next_index;
            self.next_index += 1;
            (place < self.spooled.len()).then(|| vec![place])
        })
    }

    /// The items of the next block; none if there are no more, or the run stops.
    pub(super) async fn next_block(&mut self) -> Option<Vec<Object>> {
        while let Some(seed) = self.next_seed() {
            if self.context.has_stopped() {
                return None;
            }
            let block = self.expand_seed(seed).await;
            if !block.is_empty() {
                return Some(block);
            }
        }
        None
    }

    /// The items of a seed and everything related to them.
    async fn expand_seed(&mut self, seed: Vec<usize>) -> Vec<Object> {
        let mut queue: VecDeque<Object> =
            seed.into_iter().filter_map(|place| self.load_spooled(place)).collect();
        let mut block = Vec::new();
        while let Some(object) = queue.pop_front() {
            for related in find_related(self.context, &object).await {
                // Actions spell resources in various ways.
                let Some((resource, id)) = self.context.resolve(&related.id) else {
                    let id = &related.id;
                    let what = format!("requested {id}, whose kind the cluster does not serve");
                    related.report_error(self.context, &object, &what);
                    continue;
                };
                if !is_name(&id.name) {
                    let what = format!("names {id}, {}", item::invalid_name_message(&id.name));
                    related.report_error(self.context, &object, &what);
                    continue;
                }
                let found = match self.indexes.get(&self.context.visited.key(&id)) {
                    Some(&place) => self.load_spooled(place),
                    None if self.fetched.insert(id.clone()) => {
                        fetch(self.context, &object, &related, &resource, &id).await
                    }
                    None => None,
                };
                queue.extend(found);
            }
            block.push(object);
            if block.len() + queue.len() > MAX_BLOCK_ITEMS {
                self.context.report.error(
                    ReportSubject::Run,
                    format!(
                        "more than {MAX_BLOCK_ITEMS} items belong to one item block; the rest is \
                         backed up separately"
                    ),
                );
                block.extend(queue);
                break;
            }
        }
        block
    }

    /// Reads a spooled item back; none if another block has it.
    fn load_spooled(&mut self, place: usize) -> Option<Object> {
        let item = self.spooled.get_mut(place)?.take()?;
        let id = item.id();
        let read = item.read(&self.context.spool);
        read.map_err(|error| collect::report_unreadable_spool(self.context, &id, &error)).ok()
    }
}

/// The user's orders: for each resource the indexes of its ordered items, by the first index of the resource.
fn orders(context: &Context, spooled: &[SpooledItem]) -> BTreeMap<usize, Vec<usize>> {
    let mut first_places = HashMap::new();
    let mut ordered_places: HashMap<(&str, String), Vec<usize>> = HashMap::new();
    for (place, item) in spooled.iter().enumerate() {
        first_places.entry(&item.resource.id).or_insert(place);
        let resource = item.resource.id.resource.as_str();
        if context.request.ordered.contains_key(resource) {
            let name = collect::ordered_name(&item.id());
            ordered_places.entry((resource, name)).or_default().push(place);
        }
    }
    let mut orders: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (resource, names) in &context.request.ordered {
        for name in names {
            let Some(places) = ordered_places.get(&(resource.as_str(), name.clone())) else {
                context.report.warn(
                    ReportSubject::Run,
                    format!("{resource} {name} is in `orderedResources` but was not found"),
                );
                continue;
            };
            // Two groups may have a resource of that name.
            for &place in places {
                let first = first_places.get(&spooled[place].resource.id).copied().unwrap_or(place);
                orders.entry(first).or_default().push(place);
            }
        }
    }
    orders
}

/// An item that an ItemBlockAction relates to another.
struct RelatedItem {
    id: ResourceIdentifier,
    action: Name,
    /// True for the action of a plugin. Item actions report items that the built-in ones find missing.
    is_of_plugin: bool,
}

impl RelatedItem {
    /// Reports that the item cannot be in the block.
    fn report_error(&self, context: &Context, of: &Object, what: &str) {
        if self.is_of_plugin {
            let text = format!("the item block action {} {what}", self.action);
            context.report.error(&of.id(), text);
        }
    }
}

/// The items that the ItemBlockActions relate to an item.
async fn find_related(context: &Context, object: &Object) -> Vec<RelatedItem> {
    let mut related = Vec::new();
    for (place, action) in context.item_block_actions.iter().enumerate() {
        if !action.selects(object) {
            continue;
        }
        let get_related = || {
            let asking = action.plugin.get_related_items(&object.item, &context.request.backup);
            context.unless_canceled(asking)
        };
        let answer = match get_related().await {
            // The plugin may have died of another item, and repeating the call does no harm.
            Err(error) if error.class() == Class::Transient && !context.is_aborted() => {
                get_related().await
            }
            asked => asked,
        };
        let is_of_plugin = place >= context.built_in_block_actions;
        match answer {
            Ok(ids) => related.extend(ids.into_iter().map(|id| {
                let action = action.name.clone();
                RelatedItem { id, action, is_of_plugin }
            })),
            Err(error) => context.report.error(
                &object.id(),
                format!("the item block action {} failed: {error}", action.name),
            ),
        }
    }
    related
}

/// Reads a related item that was not collected.
async fn fetch(
    context: &Context,
    of: &Object,
    related: &RelatedItem,
    resource: &Arc<Resource>,
    id: &ResourceIdentifier,
) -> Option<Object> {
    if context.visited.contains(id) {
        return None;
    }
    match context.cluster.get(resource, &id.namespace, &id.name).await {
        Ok(Some(object)) => Some(object).filter(|object| {
            item::judge_item(context, object, Inclusion::Filtered) == FilterVerdict::Include
        }),
        Ok(None) => {
            if related.is_of_plugin {
                let action = &related.action;
                let text =
                    format!("the ItemBlockAction {action} requested {id}, which does not exist");
                context.report.warn(&of.id(), text);
            }
            None
        }
        Err(error) => {
            let text = format!("related item {id} cannot be read: {error}");
            context.report.error(&of.id(), text);
            None
        }
    }
}
