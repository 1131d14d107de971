//! The snapshots of a block or of a single item: those of plugins and those of CSI drivers follow one protocol.
//!
//! ```text
//!   prepare, prepare_item   before a pod is frozen: volumes and claims are selected, and who snapshots each
//!        │
//!        ▼
//!   SnapshotPlan ── intents ──▶ journal
//!        │  journaled           a snapshot that the journal does not name is not requested
//!        ▼
//!   JournaledPlan
//!        │  create              in the freeze window: every point in time is fixed
//!        ▼
//!   CreatedSnapshots
//!        │  finish              after the thaw: snapshots are labelled and recorded, failed ones deleted
//!        ▼
//!   SnapshotOutcome             of each volume, in the sink
//! ```
//!
//! Only a [`JournaledPlan`] can be carried out, so no snapshot is requested that a later process would not find.

use std::collections::HashSet;

use bowline_plugin::ResourceIdentifier;
use futures::future::join;

use super::Context;
use super::block_journal::IntentsInJournal;
use super::csi::{self, PlannedCsiSnapshot, SnapshotAttempt};
use super::item::Sink;
use super::snapshot::{self, PlannedPluginSnapshot};
use crate::item::Object;
use crate::journal::Intent;

/// Snapshot of an item that no block has planned, because an action added the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnplannedSnapshot {
    /// The item has none, or a block has planned it.
    None,
    /// Of a PersistentVolume, by a plugin.
    OfVolume,
    /// Of a PersistentVolumeClaim, by its CSI driver.
    OfClaim,
}

/// The snapshots to take, and by whom.
pub(super) struct SnapshotPlan {
    by_plugins: Vec<PlannedPluginSnapshot>,
    by_csi: Vec<PlannedCsiSnapshot>,
}

/// A plan whose snapshots are in the journal. Those that could not be written have failed.
pub(super) struct JournaledPlan(SnapshotPlan);

/// Snapshots whose points in time are fixed.
#[derive(Default)]
pub(super) struct CreatedSnapshots {
    /// Plugins leave nothing to be finished.
    by_csi: Vec<SnapshotAttempt>,
}

impl SnapshotPlan {
    /// Plans the snapshots of the items of a block. `items` are read twice: another block may have visited some of
    /// them meanwhile.
    pub(super) async fn prepare<'a, I>(context: &Context, items: impl Fn() -> I) -> Self
    where
        I: Iterator<Item = &'a Object>,
    {
        let by_csi = csi::prepare(context, items()).await;
        let mut by_plugins = snapshot::prepare(context, items()).await;
        let by_csi = csi::prefer_plugins(by_csi, &mut by_plugins);
        Self { by_plugins, by_csi }
    }

    /// Plans the snapshot of an item that no block expected.
    pub(super) async fn prepare_item(
        context: &Context,
        object: &Object,
        unplanned: UnplannedSnapshot,
    ) -> Self {
        let (by_plugins, by_csi) = match unplanned {
            UnplannedSnapshot::None => (Vec::new(), Vec::new()),
            UnplannedSnapshot::OfVolume => (snapshot::prepare(context, [object]).await, Vec::new()),
            UnplannedSnapshot::OfClaim => (Vec::new(), csi::prepare_one(context, object).await),
        };
        Self { by_plugins, by_csi }
    }

    /// The claims that are visited when their snapshots are taken.
    pub(super) fn waiting_claims(&self) -> HashSet<ResourceIdentifier> {
        csi::waiting_claims(&self.by_csi)
    }

    /// Intents to write to the journal before anything is requested.
    pub(super) fn intents(&self) -> Vec<Intent> {
        let mut intents = snapshot::intents(&self.by_plugins);
        intents.extend(csi::intents(&self.by_csi));
        intents
    }

    /// The plan, after an attempt to write its intents to the journal. A snapshot without a record could be left
    /// behind, so all fail without the proof that their intents are there.
    pub(super) fn journaled(self, proof: Option<IntentsInJournal>) -> JournaledPlan {
        let (Self { by_plugins, by_csi }, is_in_journal) = (self, proof.is_some());
        JournaledPlan(Self {
            by_plugins: snapshot::fail_unless_journaled(by_plugins, is_in_journal),
            by_csi: csi::fail_unless_journaled(by_csi, is_in_journal),
        })
    }
}

impl JournaledPlan {
    /// The claims that are visited when their snapshots are taken.
    pub(super) fn waiting_claims(&self) -> HashSet<ResourceIdentifier> {
        self.0.waiting_claims()
    }

    /// Takes all snapshots concurrently, and returns when their points in time are fixed.
    pub(super) async fn create(self, context: &Context, sink: &Sink<'_>) -> CreatedSnapshots {
        let SnapshotPlan { by_plugins, by_csi } = self.0;
        let by_plugins = snapshot::create_snapshots(context, by_plugins, sink);
        let by_csi = csi::create_snapshots(context, by_csi, sink);
        let ((), by_csi) = join(by_plugins, by_csi).await;
        CreatedSnapshots { by_csi }
    }

    /// Takes the snapshot of a single item around its backup: a claim names its snapshot, so it is backed up
    /// afterwards; a volume is backed up meanwhile.
    pub(super) async fn create_around(
        self,
        context: &Context,
        sink: &Sink<'_>,
        back_up: impl Future<Output = ()>,
    ) {
        let SnapshotPlan { by_plugins, by_csi } = self.0;
        let by_csi = csi::create_snapshots(context, by_csi, sink).await;
        CreatedSnapshots { by_csi }.finish(context, sink).await;
        join(back_up, snapshot::create_snapshots(context, by_plugins, sink)).await;
    }
}

impl CreatedSnapshots {
    /// Records the snapshots, when no pod is frozen any more. Failed ones are deleted.
    pub(super) async fn finish(self, context: &Context, sink: &Sink<'_>) {
        csi::finish(context, self.by_csi, sink).await;
    }
}
