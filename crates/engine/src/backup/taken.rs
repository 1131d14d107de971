//! What a run came to, however it ended.
//!
//! Also a run that fails early, or is not taken up again, has begun things outside that others must know
//! of: operations and snapshots that an earlier process noted. They are in its [`Taken`] all the same.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bowline_store::file::{BackupVolumeInfo, CsiVolumeSnapshotClasses, FreezeWindow, Snapshot};
use jiff::Timestamp;

use super::archive::Sealed;
use super::inventory::Inventory;
use super::{Context, Fatal, Progress, csi, note};
use crate::journal::Recovered;
use crate::operation::Operation;
use crate::operation::record::Of;
use crate::report::{Message, Report};

/// What a run came to.
#[derive(Debug)]
pub struct Taken {
    /// The archive that is in the bucket now, or why there is none.
    pub archive: Result<Sealed, Fatal>,
    /// What went wrong.
    pub report: Report,
    /// What is in the archive.
    pub resources: Inventory,
    /// How many items were found, stored or not.
    pub found: u64,
    /// What became of the data of volumes.
    pub volumes: Vec<BackupVolumeInfo>,
    /// The snapshots that plugins were asked for.
    pub snapshots: Vec<Snapshot>,
    /// The snapshots that CSI drivers were asked for.
    pub csi_snapshots: Vec<csi::Record>,
    /// VolumeSnapshots that an earlier process may have made, and that nobody has heard of since.
    pub csi_left: Vec<csi::Target>,
    /// The VolumeSnapshotClasses of those.
    pub csi_classes: CsiVolumeSnapshotClasses,
    /// Operations that plugins began, on items and on snapshots.
    pub operations: Vec<Operation>,
    /// How many hooks were run, and how many of them failed.
    pub hooks: (u64, u64),
    /// For how long pods were quiesced.
    pub freezes: Vec<FreezeWindow>,
    /// Whether pods may be frozen still, because they could not be reached. The journal says which, and
    /// must stay until they are thawed.
    pub leaves_frozen: bool,
}

impl Taken {
    /// What is left of a run that is not taken up again: the operations that it has begun.
    pub fn given_up(
        reason: String,
        recovered: &Recovered,
        timeout: Duration,
        began: Timestamp,
    ) -> Self {
        let report = Report::default();
        report.take_over(recovered.thaw_errors.iter().cloned().map(Message::from), []);
        note::tell_left(&report, recovered);
        let nothing = Self::nothing(Fatal::GivenUp(reason), report, &Progress::default());
        let operations = begun_before(recovered, timeout, began);
        let (csi_snapshots, csi_left) = begun_by_csi_before(recovered);
        let snapshots = taken_before(recovered);
        Self { snapshots, csi_snapshots, csi_left, operations, ..nothing }
    }

    /// The VolumeSnapshots that there may be of it, and groups of them.
    pub fn csi_targets(&self) -> Vec<csi::Target> {
        let mut targets = csi::targets_of(&self.csi_snapshots);
        targets.extend(self.csi_left.iter().cloned());
        targets
    }

    pub(super) fn nothing(fatal: Fatal, report: Report, progress: &Progress) -> Self {
        Self {
            archive: Err(fatal),
            report,
            resources: Inventory::default(),
            found: progress.found(),
            volumes: Vec::new(),
            snapshots: Vec::new(),
            csi_snapshots: Vec::new(),
            csi_left: Vec::new(),
            csi_classes: CsiVolumeSnapshotClasses::default(),
            operations: Vec::new(),
            hooks: (0, 0),
            freezes: Vec::new(),
            leaves_frozen: false,
        }
    }
}

/// Draws the conclusions, and takes away the snapshots that nothing in the backup leads to.
pub(super) async fn end(
    context: Arc<Context>,
    archive: Result<Sealed, Fatal>,
    report: Arc<Report>,
    progress: &Progress,
) -> Taken {
    let Some(context) = Arc::into_inner(context) else {
        return Taken::nothing(Fatal::Stopped, own(report), progress);
    };
    let (cluster, resources) = (Arc::clone(&context.cluster), Arc::clone(&context.resources));
    let (name, uid) = (context.request.name.clone(), context.request.uid.clone());
    let mut taken = conclude(context, archive, report);
    if taken.archive.is_ok() {
        let of = Of { name: name.as_str(), uid: uid.as_str() };
        csi::clear_up(&*cluster, &resources, of, &mut taken).await;
    }
    taken
}

/// Draws the conclusions from what the stages noted.
fn conclude(context: Context, archive: Result<Sealed, Fatal>, report: Arc<Report>) -> Taken {
    let settled = context.volumes.settle(&context.wishes());
    for (id, text) in settled.errors {
        report.error(&id, text);
    }
    for (id, text) in settled.warnings {
        report.warning(&id, text);
    }
    let resources = context.inventory;
    let operations = context.operations.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (hooks, freezes) = (context.hook_tally.counts(), context.hook_tally.windows());
    let (volumes, snapshots) = (settled.infos, settled.snapshots);
    let csi_snapshots = settled.csi_snapshots;
    let csi_classes = CsiVolumeSnapshotClasses(context.csi.used_classes(&csi_snapshots));
    let found = context.progress.found();
    drop(context.report);
    Taken {
        archive,
        report: own(report),
        resources,
        found,
        volumes,
        snapshots,
        csi_snapshots,
        csi_left: Vec::new(),
        csi_classes,
        operations,
        hooks,
        freezes,
        leaves_frozen: context.leaves_frozen.into_inner(),
    }
}

/// The operations that an earlier process has begun.
pub(super) fn begun_before(
    recovered: &Recovered,
    timeout: Duration,
    began: Timestamp,
) -> Vec<Operation> {
    let blocks = recovered.finished.iter();
    blocks.flat_map(|ended| note::begun_in(ended, timeout, began)).flatten().collect()
}

/// The snapshots that an earlier process has taken.
pub(super) fn taken_before(recovered: &Recovered) -> Vec<Snapshot> {
    recovered.finished.iter().flat_map(|ended| ended.snapshots.clone()).collect()
}

/// The CSI snapshots that an earlier process has taken, and those that it may have.
pub(super) fn begun_by_csi_before(recovered: &Recovered) -> (Vec<csi::Record>, Vec<csi::Target>) {
    let taken = recovered.finished.iter().flat_map(|ended| ended.csi_snapshots.clone());
    let intents = recovered.unfinished.iter().flat_map(|begun| &begun.intents);
    let left = intents.filter_map(|intent| intent.csi.as_ref()).map(Into::into);
    (taken.collect(), left.collect())
}

/// The report, whether or not somebody else still holds it.
pub(super) fn own(report: Arc<Report>) -> Report {
    Arc::try_unwrap(report).unwrap_or_else(|shared| shared.take())
}
