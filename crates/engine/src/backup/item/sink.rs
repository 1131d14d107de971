//! Where stored items go, and what has come with them.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use bowline_plugin::ResourceIdentifier;

use super::How;
use crate::backup::Context;
use crate::backup::archive::Archive;
use crate::backup::hook::Tally;
use crate::backup::note::Noted;
use crate::backup::replace::Fresh;
use crate::backup::volume::Snapshotted;
use crate::item::Object;
use crate::journal::Intent;
use crate::operation::Operation;
use crate::report::Report;

/// Where stored items go, and what has come with them.
pub(in crate::backup) struct Sink<'a> {
    pub(super) way: Way<'a>,
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

/// How they get there.
pub(super) enum Way<'a> {
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
    pub(in crate::backup) fn archive(archive: &'a Archive) -> Self {
        Self::of(Way::Archive(archive))
    }

    /// Aside, until somebody asks for it.
    pub(in crate::backup) fn noted(noted: Noted) -> Self {
        Self::of(Way::Noted(Box::new(noted)))
    }

    /// Aside, to be put in the place of what is in the archive.
    pub(in crate::backup) fn fresh(fresh: Fresh) -> Self {
        Self::of(Way::Fresh(fresh))
    }

    fn of(way: Way<'a>) -> Self {
        Self { way, members: Mutex::default(), kept_back: Mutex::default() }
    }

    /// Whether items go into the archive at once.
    pub(super) fn is_archive(&self) -> bool {
        matches!(self.way, Way::Archive(_))
    }

    /// What is to be put in the place of what is in the archive.
    pub(in crate::backup) fn into_fresh(self) -> Option<Fresh> {
        match self.way {
            Way::Fresh(fresh) => Some(fresh),
            Way::Archive(_) | Way::Noted(_) => None,
        }
    }

    /// The same, for the items of a block.
    #[must_use]
    pub(in crate::backup) fn of_block(self, block: Vec<Object>) -> Self {
        let members = block.into_iter().map(|object| (object.id(), object)).collect();
        Self { members: Mutex::new(members), ..self }
    }

    /// The same, with some that are to be kept back.
    #[must_use]
    pub(in crate::backup) fn keeping_back(self, ids: HashSet<ResourceIdentifier>) -> Self {
        Self { kept_back: Mutex::new(KeptBack { ids, waiting: Vec::new() }), ..self }
    }

    /// Whether an item is kept back, or will be.
    pub(super) fn keeps_back(&self, id: &ResourceIdentifier) -> bool {
        self.kept_back.lock().unwrap_or_else(PoisonError::into_inner).ids.contains(id)
    }

    /// Keeps an item back.
    pub(super) fn keep_back(&self, object: Object, how: How) {
        let mut kept = self.kept_back.lock().unwrap_or_else(PoisonError::into_inner);
        let id = object.id();
        if kept.waiting.iter().all(|(waiting, _)| waiting.id() != id) {
            kept.waiting.push((object, how));
        }
    }

    /// What was kept back, which is not any more.
    pub(super) fn let_go(&self) -> Vec<(Object, How)> {
        let mut kept = self.kept_back.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *kept).waiting
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
    pub(in crate::backup) fn into_noted(self) -> Option<Noted> {
        match self.way {
            Way::Archive(_) | Way::Fresh(_) => None,
            Way::Noted(noted) => Some(*noted),
        }
    }

    /// Where to tell what goes wrong.
    pub(in crate::backup) fn report<'b>(&'b self, context: &'b Context) -> &'b Report {
        match &self.way {
            Way::Archive(_) | Way::Fresh(_) => &context.report,
            Way::Noted(noted) => &noted.report,
        }
    }

    /// Where hooks are counted.
    pub(in crate::backup) fn tally<'b>(&'b self, context: &'b Context) -> &'b Tally {
        match &self.way {
            Way::Archive(_) | Way::Fresh(_) => &context.hook_tally,
            Way::Noted(noted) => &noted.tally,
        }
    }

    pub(super) fn visited(&self, id: &ResourceIdentifier) {
        if let Way::Noted(noted) = &self.way {
            noted.visited(id);
        }
    }

    /// Notes what came of a volume that was to be snapshotted.
    pub(in crate::backup) fn snapshotted(
        &self,
        context: &Context,
        volume: &str,
        outcome: Snapshotted,
    ) {
        match &self.way {
            Way::Noted(noted) => noted.snapshotted(volume, outcome),
            Way::Archive(_) | Way::Fresh(_) => context.volumes.note_snapshotted(volume, outcome),
        }
    }

    /// Whether pods are frozen until all of it is done.
    pub(in crate::backup) fn freezes_pods(&self) -> bool {
        matches!(&self.way, Way::Noted(noted) if noted.has_pods())
    }

    /// Notes a snapshot that a plugin was asked for, that nobody waits for any more, and that may yet come.
    pub(in crate::backup) fn in_flight(&self, intent: Intent) {
        if let Way::Noted(noted) = &self.way {
            noted.in_flight(intent);
        }
    }

    /// Notes an operation that was begun.
    pub(in crate::backup) fn begun(&self, context: &Context, operation: Operation) {
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
