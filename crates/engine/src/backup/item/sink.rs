//! Where stored items go, and what has come with them.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use bowline_plugin::ResourceIdentifier;

use super::VisitContext;
use crate::backup::Context;
use crate::backup::archive::Archive;
use crate::backup::block_journal::JournaledBlock;
use crate::backup::hook::Tally;
use crate::backup::replace::ReplacementItems;
use crate::backup::volume::SnapshotOutcome;
use crate::item::Object;
use crate::journal::Intent;
use crate::operation::Operation;
use crate::report::Report;

/// Where stored items go, and what has come with them.
pub(in crate::backup) struct Sink<'a> {
    pub(super) destination: Destination<'a>,
    /// The items of the same block that are still to be visited. They have been read, so the cluster
    /// is not asked for them while an application is frozen.
    members: Mutex<HashMap<ResourceIdentifier, Object>>,
    deferred: Mutex<DeferredItems>,
}

/// Items that are visited when the applications are thawed, since what is to be stored of them is known
/// only then.
#[derive(Default)]
struct DeferredItems {
    ids: HashSet<ResourceIdentifier>,
    waiting: Vec<(Object, VisitContext)>,
}

/// How they get there.
pub(super) enum Destination<'a> {
    /// Into the archive at once.
    Archive(&'a Archive),
    /// Aside, with all that comes of the block, until that is noted. An application must not wait
    /// for an upload.
    Block(Box<JournaledBlock>),
    /// Aside, to be put in the place of what is in the archive.
    Replacement(ReplacementItems),
}

impl<'a> Sink<'a> {
    /// Into the archive at once.
    pub(in crate::backup) fn archive(archive: &'a Archive) -> Self {
        Self::new(Destination::Archive(archive))
    }

    /// Aside, until somebody asks for it.
    pub(in crate::backup) fn for_block(block: JournaledBlock) -> Self {
        Self::new(Destination::Block(Box::new(block)))
    }

    /// Aside, to be put in the place of what is in the archive.
    pub(in crate::backup) fn for_replacement(fresh: ReplacementItems) -> Self {
        Self::new(Destination::Replacement(fresh))
    }

    fn new(destination: Destination<'a>) -> Self {
        Self { destination, members: Mutex::default(), deferred: Mutex::default() }
    }

    /// Whether items go into the archive at once.
    pub(super) fn is_archive(&self) -> bool {
        matches!(self.destination, Destination::Archive(_))
    }

    /// What is to be put in the place of what is in the archive.
    pub(in crate::backup) fn into_replacement(self) -> Option<ReplacementItems> {
        match self.destination {
            Destination::Replacement(fresh) => Some(fresh),
            Destination::Archive(_) | Destination::Block(_) => None,
        }
    }

    /// The same, for the items of a block.
    #[must_use]
    pub(in crate::backup) fn with_members(self, block: Vec<Object>) -> Self {
        let members = block.into_iter().map(|object| (object.id(), object)).collect();
        Self { members: Mutex::new(members), ..self }
    }

    /// The same, with some that are to be kept back.
    #[must_use]
    pub(in crate::backup) fn deferring(self, ids: HashSet<ResourceIdentifier>) -> Self {
        Self { deferred: Mutex::new(DeferredItems { ids, waiting: Vec::new() }), ..self }
    }

    /// Whether an item is kept back, or will be.
    pub(super) fn defers(&self, id: &ResourceIdentifier) -> bool {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner).ids.contains(id)
    }

    /// Keeps an item back.
    pub(super) fn defer(&self, object: Object, visit_context: VisitContext) {
        let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        let id = object.id();
        if deferred.waiting.iter().all(|(waiting, _)| waiting.id() != id) {
            deferred.waiting.push((object, visit_context));
        }
    }

    /// What was kept back, which is not any more.
    pub(super) fn take_deferred(&self) -> Vec<(Object, VisitContext)> {
        let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *deferred).waiting
    }

    /// Adds an item that has been read, in case somebody wants it.
    pub(in crate::backup) fn add_member(&self, object: Object) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.insert(object.id(), object);
    }

    /// An item of the block, if it has not been taken yet.
    pub(in crate::backup) fn take_member(&self, id: &ResourceIdentifier) -> Option<Object> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
    }

    /// What was put aside, if it was.
    pub(in crate::backup) fn into_block(self) -> Option<JournaledBlock> {
        match self.destination {
            Destination::Archive(_) | Destination::Replacement(_) => None,
            Destination::Block(block) => Some(*block),
        }
    }

    /// Where to tell what goes wrong.
    pub(in crate::backup) fn report<'b>(&'b self, context: &'b Context) -> &'b Report {
        match &self.destination {
            Destination::Archive(_) | Destination::Replacement(_) => &context.report,
            Destination::Block(block) => &block.report,
        }
    }

    /// Where hooks are counted.
    pub(in crate::backup) fn tally<'b>(&'b self, context: &'b Context) -> &'b Tally {
        match &self.destination {
            Destination::Archive(_) | Destination::Replacement(_) => &context.hook_tally,
            Destination::Block(block) => &block.tally,
        }
    }

    pub(super) fn record_visited(&self, id: &ResourceIdentifier) {
        if let Destination::Block(block) = &self.destination {
            block.record_visited(id);
        }
    }

    /// Notes what came of a volume that was to be snapshotted.
    pub(in crate::backup) fn record_snapshot(
        &self,
        context: &Context,
        volume: &str,
        outcome: SnapshotOutcome,
    ) {
        match &self.destination {
            Destination::Block(block) => block.record_snapshot(volume, outcome),
            Destination::Archive(_) | Destination::Replacement(_) => {
                context.volumes.record_snapshot(volume, outcome);
            }
        }
    }

    /// Whether pods are frozen until all of it is done.
    pub(in crate::backup) fn freezes_pods(&self) -> bool {
        matches!(&self.destination, Destination::Block(block) if block.has_pods())
    }

    /// Notes a snapshot that a plugin was asked for, that nobody waits for any more, and that may yet come.
    pub(in crate::backup) fn record_in_flight(&self, intent: Intent) {
        if let Destination::Block(block) = &self.destination {
            block.record_in_flight(intent);
        }
    }

    /// Notes an operation that was begun.
    pub(in crate::backup) fn record_operation(&self, context: &Context, operation: Operation) {
        match &self.destination {
            Destination::Archive(_) => context.record_operation(operation),
            Destination::Block(block) => block.record_operation(operation),
            Destination::Replacement(_) => {
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
