//! The snapshots of a block or of a single item: those of plugins and those of CSI drivers follow one protocol.
//!
//! ```text
//!   prepare, prepare_item   before a pod is frozen: volumes and claims are selected, and who snapshots each
//!        │
//!        ▼
//!   SnapshotPlan ── intents ──▶ journal
//!        │  with_proof          a snapshot that the journal does not name is not requested
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
//! Only a [`JournaledPlan`] can be carried out, and only intents that are in the journal make one
//! ([`IntentsInJournal`]), so no snapshot is requested that a later process would not find.

use std::collections::HashSet;

use bowline_plugin::ResourceIdentifier;
use futures::future::join;

use super::Context;
use super::block_journal::IntentsInJournal;
use super::csi::{self, JournaledCsiSnapshot, PlannedCsiSnapshot, SnapshotAttempt};
use super::item::Sink;
use super::snapshot::{self, JournaledPluginSnapshot, PlannedPluginSnapshot};
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
pub(super) struct JournaledPlan {
    by_plugins: Vec<JournaledPluginSnapshot>,
    by_csi: Vec<JournaledCsiSnapshot>,
}

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
        let by_csi = csi::plan_snapshots(context, items()).await;
        let mut by_plugins = snapshot::plan_snapshots(context, items()).await;
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
            UnplannedSnapshot::OfVolume => {
                (snapshot::plan_snapshots(context, [object]).await, Vec::new())
            }
            UnplannedSnapshot::OfClaim => (Vec::new(), csi::plan_snapshot(context, object).await),
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
    /// behind, so each whose intent the proof does not name fails.
    pub(super) fn with_proof(self, proof: &IntentsInJournal) -> JournaledPlan {
        let Self { by_plugins, by_csi } = self;
        JournaledPlan {
            by_plugins: by_plugins.into_iter().map(|one| one.with_proof(proof)).collect(),
            by_csi: by_csi.into_iter().map(|one| one.with_proof(proof)).collect(),
        }
    }
}

impl JournaledPlan {
    /// The claims that are visited when their snapshots are taken.
    pub(super) fn waiting_claims(&self) -> HashSet<ResourceIdentifier> {
        csi::waiting_claims(self.by_csi.iter().map(JournaledCsiSnapshot::planned))
    }

    /// Takes all snapshots concurrently, and returns when their points in time are fixed.
    pub(super) async fn create(self, context: &Context, sink: &Sink<'_>) -> CreatedSnapshots {
        let Self { by_plugins, by_csi } = self;
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
        let Self { by_plugins, by_csi } = self;
        let by_csi = csi::create_snapshots(context, by_csi, sink).await;
        CreatedSnapshots { by_csi }.finish(context, sink).await;
        join(back_up, snapshot::create_snapshots(context, by_plugins, sink)).await;
    }
}

impl CreatedSnapshots {
    /// Records the snapshots, when no pod is frozen any more. Failed ones are deleted.
    pub(super) async fn finish(self, context: &Context, sink: &Sink<'_>) {
        csi::complete_snapshots(context, self.by_csi, sink).await;
    }
}
