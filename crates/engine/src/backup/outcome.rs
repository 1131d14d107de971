//! Outcome of a run, however it ended.
//!
//! Even a run that fails early, or is not resumed, has started work outside that must stay known: operations and
//! snapshots in the journal of an earlier process. Its [`BackupOutcome`] contains them too.

use std::sync::Arc;
use std::time::Duration;

use bowline_store::file::{BackupVolumeInfo, CsiVolumeSnapshotClasses, FreezeWindow, Snapshot};
use jiff::Timestamp;

use super::archive::SealedArchive;
use super::inventory::Inventory;
use super::{Context, FatalError, Progress, block_journal, csi};
use crate::journal::RecoveredRun;
use crate::operation::Operation;
use crate::operation::record::{self, RunRef};
use crate::report::{Message, Report};

/// Outcome of a run.
#[derive(Debug)]
pub struct BackupOutcome {
    /// The archive in the bucket, or the reason why there is none.
    pub archive: Result<SealedArchive, FatalError>,
    /// Errors and warnings.
    pub report: Report,
    /// Contents of the archive.
    pub resources: Inventory,
    /// Number of items found, stored or not.
    pub found: u64,
    /// Outcome for the data of volumes.
    pub volumes: Vec<BackupVolumeInfo>,
    /// Snapshots requested from plugins.
    pub snapshots: Vec<Snapshot>,
    /// Snapshots requested from CSI drivers.
    pub csi_snapshots: Vec<csi::CsiSnapshotRecord>,
    /// VolumeSnapshots that an earlier process may have created, with unknown outcome.
    pub csi_leftovers: Vec<csi::Target>,
    /// The VolumeSnapshotClasses of those.
    pub csi_classes: CsiVolumeSnapshotClasses,
    /// Operations that plugins started, on items and on snapshots.
    pub operations: Vec<Operation>,
    /// Number of hooks that ran, and number of those that failed.
    pub hooks: (u64, u64),
    /// Freeze windows of pods.
    pub freezes: Vec<FreezeWindow>,
    /// True if pods may still be frozen because they could not be reached. The journal names them, and must be kept
    /// until they are thawed.
    pub may_leave_frozen: bool,
}

impl BackupOutcome {
    /// Outcome of a run that is not resumed: the operations that it has started.
    pub fn not_resumed(
        reason: String,
        recovered: &RecoveredRun,
        timeout: Duration,
        started_at: Timestamp,
    ) -> Self {
        let report = Report::default();
        report.append(recovered.thaw_errors.iter().cloned().map(Message::from), []);
        block_journal::report_not_resumed(&report, recovered);
        let outcome = Self::failed(FatalError::NotResumed(reason), report, &Progress::default());
        let operations = earlier_operations(recovered, timeout, started_at);
        let (csi_snapshots, csi_leftovers) = earlier_csi_snapshots(recovered);
        let snapshots = earlier_snapshots(recovered);
        Self { snapshots, csi_snapshots, csi_leftovers, operations, ..outcome }
    }

    /// The VolumeSnapshots and VolumeGroupSnapshots of the run that may exist.
    pub fn csi_targets(&self) -> Vec<csi::Target> {
        let mut targets = csi::targets_of(&self.csi_snapshots);
        targets.extend(self.csi_leftovers.iter().cloned());
        targets
    }

    pub(super) fn failed(fatal: FatalError, report: Report, progress: &Progress) -> Self {
        Self {
            archive: Err(fatal),
            report,
            resources: Inventory::default(),
            found: progress.found(),
            volumes: Vec::new(),
            snapshots: Vec::new(),
            csi_snapshots: Vec::new(),
            csi_leftovers: Vec::new(),
            csi_classes: CsiVolumeSnapshotClasses::default(),
            operations: Vec::new(),
            hooks: (0, 0),
            freezes: Vec::new(),
            may_leave_frozen: false,
        }
    }
}

/// Builds the outcome, and deletes the snapshots that nothing in the backup refers to.
pub(super) async fn complete_outcome(
    context: Arc<Context>,
    archive: Result<SealedArchive, FatalError>,
    report: Arc<Report>,
    progress: &Progress,
) -> BackupOutcome {
    // A task that still holds the context has not seen the end of the run, so its results would be incomplete.
    let Some(context) = Arc::into_inner(context) else {
        return BackupOutcome::failed(FatalError::Stopped, into_owned_report(report), progress);
    };
    let (cluster, resources) = (Arc::clone(&context.cluster), Arc::clone(&context.resources));
    let (name, uid) = (context.request.name.clone(), context.request.uid.clone());
    let mut outcome = build_outcome(context, archive, report);
    if outcome.archive.is_ok() {
        let run_ref = RunRef { name: name.as_str(), uid: uid.as_str() };
        csi::discard_unreferenced(&*cluster, &resources, run_ref, &mut outcome).await;
    }
    outcome
}

/// Builds the outcome from the records of the stages.
fn build_outcome(
    context: Context,
    archive: Result<SealedArchive, FatalError>,
    report: Arc<Report>,
) -> BackupOutcome {
    let volume_results = context.volumes.decide_all(&context.volume_options());
    for (id, text) in volume_results.errors {
        report.error(&id, text);
    }
    for (id, text) in volume_results.warnings {
        report.warn(&id, text);
    }
    let resources = context.inventory;
    let operations = context.operations.into_inner();
    let (hooks, freezes) = (context.hook_tally.counts(), context.hook_tally.windows());
    let (volumes, snapshots) = (volume_results.infos, volume_results.snapshots);
    let csi_snapshots = volume_results.csi_snapshots;
    let csi_classes = CsiVolumeSnapshotClasses(context.csi.used_classes(&csi_snapshots));
    let found = context.progress.found();
    drop(context.report);
    BackupOutcome {
        archive,
        report: into_owned_report(report),
        resources,
        found,
        volumes,
        snapshots,
        csi_snapshots,
        csi_leftovers: Vec::new(),
        csi_classes,
        operations,
        hooks,
        freezes,
        may_leave_frozen: context.may_leave_frozen.into_inner(),
    }
}

/// The operations that an earlier process started.
pub(super) fn earlier_operations(
    recovered: &RecoveredRun,
    timeout: Duration,
    started_at: Timestamp,
) -> Vec<Operation> {
    let blocks = recovered.finished.iter();
    blocks
        .flat_map(|ended| block_journal::operations_of(ended, timeout, started_at))
        .flatten()
        .chain(abandoned_operations(recovered, timeout, started_at))
        .collect()
}

/// The operations that an earlier attempt started in blocks that are repeated. Nobody waits for them.
pub fn abandoned_operations(
    recovered: &RecoveredRun,
    timeout: Duration,
    started_at: Timestamp,
) -> Vec<Operation> {
    let records = recovered.abandoned.backup_operations.iter().cloned();
    records.filter_map(|one| record::from_backup(one, timeout, started_at).ok()).collect()
}

/// The snapshots that an earlier process took.
pub(super) fn earlier_snapshots(recovered: &RecoveredRun) -> Vec<Snapshot> {
    recovered.finished.iter().flat_map(|ended| ended.snapshots.clone()).collect()
}

/// The CSI snapshots that an earlier process took, and those that it may have taken.
pub(super) fn earlier_csi_snapshots(
    recovered: &RecoveredRun,
) -> (Vec<csi::CsiSnapshotRecord>, Vec<csi::Target>) {
    let snapshots = recovered.finished.iter().flat_map(|ended| ended.csi_snapshots.clone());
    let intents = recovered.unfinished.iter().flat_map(|started| &started.intents);
    let unconfirmed = intents.filter_map(|intent| intent.csi.as_ref()).map(Into::into);
    (snapshots.collect(), unconfirmed.collect())
}

/// The report, even while other references to it exist: its messages are then moved out.
pub(super) fn into_owned_report(report: Arc<Report>) -> Report {
    Arc::try_unwrap(report).unwrap_or_else(|shared| shared.take_all())
}
