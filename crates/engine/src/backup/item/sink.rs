//! Destination of stored items and of their results.

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

/// Destination of stored items and of their results.
pub(in crate::backup) struct Sink<'a> {
    pub(super) destination: Destination<'a>,
    /// The items of the same block that are still to be visited. They have been read, so the cluster is not asked for
    /// them while an application is frozen.
    members: Mutex<HashMap<ResourceIdentifier, Object>>,
    deferred: Mutex<DeferredItems>,
}

/// Items that are visited after the thaw, since what is to be stored of them is known only then.
#[derive(Default)]
struct DeferredItems {
    ids: HashSet<ResourceIdentifier>,
    waiting: Vec<(Object, VisitContext)>,
}

/// Destination of stored items.
pub(super) enum Destination<'a> {
    /// Into the archive at once.
    Archive(&'a Archive),
    /// Aside, with all results of the block, until those are in the journal. An application must not wait for an
    /// upload.
    Block(Box<JournaledBlock>),
    /// Aside, to replace items in the archive.
    Replacement(ReplacementItems),
}

impl<'a> Sink<'a> {
    /// Sink into the archive at once.
    pub(in crate::backup) fn archive(archive: &'a Archive) -> Self {
        Self::new(Destination::Archive(archive))
    }

    /// Sink that collects a block.
    pub(in crate::backup) fn for_block(block: JournaledBlock) -> Self {
        Self::new(Destination::Block(Box::new(block)))
    }

    /// Sink that collects items to replace in the archive.
    pub(in crate::backup) fn for_replacement(fresh: ReplacementItems) -> Self {
        Self::new(Destination::Replacement(fresh))
    }

    fn new(destination: Destination<'a>) -> Self {
        Self { destination, members: Mutex::default(), deferred: Mutex::default() }
    }

    /// True if items go into the archive at once.
    pub(super) fn is_archive(&self) -> bool {
        matches!(self.destination, Destination::Archive(_))
    }

    /// The items to replace in the archive.
    pub(in crate::backup) fn into_replacement(self) -> Option<ReplacementItems> {
        match self.destination {
            Destination::Replacement(fresh) => Some(fresh),
            Destination::Archive(_) | Destination::Block(_) => None,
        }
    }

    /// The sink, with the items of a block.
    #[must_use]
    pub(in crate::backup) fn with_members(self, block: Vec<Object>) -> Self {
        let members = block.into_iter().map(|object| (object.id(), object)).collect();
        Self { members: Mutex::new(members), ..self }
    }

    /// The sink, with items to defer.
    #[must_use]
    pub(in crate::backup) fn deferring(self, ids: HashSet<ResourceIdentifier>) -> Self {
        Self { deferred: Mutex::new(DeferredItems { ids, waiting: Vec::new() }), ..self }
    }

    /// True if an item is deferred, or will be.
    pub(super) fn defers(&self, id: &ResourceIdentifier) -> bool {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner).ids.contains(id)
    }

    pub(super) fn defer(&self, object: Object, visit_context: VisitContext) {
        let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        let id = object.id();
        if deferred.waiting.iter().all(|(waiting, _)| waiting.id() != id) {
            deferred.waiting.push((object, visit_context));
        }
    }

    /// Removes and returns the deferred items.
    pub(super) fn take_deferred(&self) -> Vec<(Object, VisitContext)> {
        let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *deferred).waiting
    }

    /// Adds an item that has been read, for later visits.
    pub(in crate::backup) fn add_member(&self, object: Object) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.insert(object.id(), object);
    }

    /// Removes and returns an item of the block, if it is still there.
    pub(in crate::backup) fn take_member(&self, id: &ResourceIdentifier) -> Option<Object> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
    }

    /// The collected block, if any.
    pub(in crate::backup) fn into_block(self) -> Option<JournaledBlock> {
        match self.destination {
            Destination::Archive(_) | Destination::Replacement(_) => None,
            Destination::Block(block) => Some(*block),
        }
    }

    /// The report for this destination.
    pub(in crate::backup) fn report<'b>(&'b self, context: &'b Context) -> &'b Report {
        match &self.destination {
            Destination::Archive(_) | Destination::Replacement(_) => &context.report,
            Destination::Block(block) => &block.report,
        }
    }

    /// The tally of hooks for this destination.
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

    /// Records the outcome of a volume selected for a snapshot.
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

    /// True if pods are frozen until everything is done.
    pub(in crate::backup) fn freezes_pods(&self) -> bool {
        matches!(&self.destination, Destination::Block(block) if block.has_pods())
    }

    /// Records a snapshot requested from a plugin that the run gave up on and that may still appear.
    pub(in crate::backup) fn record_in_flight(&self, intent: Intent) {
        if let Destination::Block(block) = &self.destination {
            block.record_in_flight(intent);
        }
    }

    /// Records an operation that was started.
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
