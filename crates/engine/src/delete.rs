//! Deletes a backup and its data outside the cluster.
//!
//! | stage | in | out |
//! |---|---|---|
//! | [`check_deletion()`] | the request, the Backup, its location | verdict: delete now, later or not at all |
//! | [`read_inventory`], [`read_csi_inventory`] | the bucket | the [inventory](BackupInventory) of the backup |
//! | [`plan_deletion()`] | the inventory | a [`DeletionPlan`], or all objections to the deletion |
//! | [`referenced_snapshots`], [`exclude_shared`] | snapshots that other backups reference | the plan without them |
//! | [`open_snapshotters`], [`check_csi_ready`] | the plan | the required snapshotters; CSI drivers are available |
//! | [`delete_data`] | all of the above | no data outside the bucket, or the list of what remains |
//! | [`delete_files`] | the bucket | no files |
//!
//! # Guarantees
//! - **No data loses its record.** Anything that cannot be deleted is found before anything is changed, and the
//!   backup stays as it is. A later failure leaves all files in place, and the record says `Deleting`.
//! - **No other owner loses data.** A snapshot that another backup references stays until the last of these
//!   backups is deleted. The Secret that a CSI driver is called with comes from this cluster, not from the bucket.
//! - **A kill at any instant loses nothing.** Data is deleted before the files that name it, and the record
//!   last; each stage may be repeated and tolerates data that is already gone.
//! - **Every deletion ends.** Plugin calls have deadlines, and a shutdown of the server takes effect between two
//!   calls.

mod actions;
mod admission;
mod csi;
mod inventory;
mod objection;
mod plan;
mod shared;
mod snapshots;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use bowline_api::Backup;
use bowline_plugin::{DeleteItemAction, error_chain};
use bowline_store::{BackupName, BackupStore};
use futures::future::BoxFuture;
use futures::{StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

use crate::action::NamedAction;
use crate::cluster::Cluster;
use crate::failpoint::{self, Failpoint};
use crate::report::{Message, Report, ReportSubject};
use crate::unpack::UnpackLimits;

pub use admission::{DeletionFacts, DeletionVerdict, Refusal, Scope, check_deletion};
pub use csi::{DeletableCsiSnapshot, check_csi_ready};
pub use inventory::{BackupInventory, InventoryError, read_csi_inventory, read_inventory};
pub use objection::{Objection, Objections, OpenFailure, RemainingData, UnsupportedData};
pub use plan::{DeletableSnapshot, DeletionPlan, FileOwnership, plan_deletion};
pub use shared::{
    BackupPossessions, OtherBackups, SharedSnapshot, SnapshotRef, against_unreadable,
    exclude_shared, referenced_snapshots,
};
pub use snapshots::{OpenSnapshotters, open_snapshotters};

/// Maximum number of errors reported. The log has all of them.
const MAX_REPORTED_ERRORS: usize = 50;

/// Time limits of the steps of a deletion.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Opening a snapshotter.
    pub open: Duration,
    /// Running an action on an item.
    pub execute: Duration,
    /// Canceling a snapshot that is still being taken.
    pub cancel: Duration,
    /// Deleting a snapshot.
    pub delete: Duration,
    /// Deletion of a CSI snapshot by its controllers.
    pub content: Duration,
    /// The same, once the controllers report an error.
    pub complaint: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            open: Duration::from_mins(2),
            execute: Duration::from_mins(10),
            cancel: Duration::from_secs(30),
            delete: Duration::from_mins(30),
            content: Duration::from_mins(10),
            complaint: Duration::from_secs(20),
        }
    }
}

/// A backup whose data is to be deleted, with everything needed to do so.
pub struct DeletionJob<'a> {
    /// The backup, as passed to plugins.
    pub backup: &'a Backup,
    /// Name of the backup.
    pub name: &'a BackupName,
    /// Store that holds its files.
    pub store: &'a BackupStore,
    /// The data to delete.
    pub plan: &'a DeletionPlan,
    /// Plugins that delete snapshots.
    pub snapshotters: &'a OpenSnapshotters,
    /// DeleteItemActions of plugins, in order.
    pub actions: Vec<NamedAction<dyn DeleteItemAction>>,
    /// Resolves the resource names in the actions' selectors.
    pub cluster: &'a dyn Cluster,
    /// Directory for the archive while it is read.
    pub scratch: &'a Path,
    /// Limits on the contents of the archive.
    pub unpack_limits: UnpackLimits,
    /// Time limits.
    pub deadlines: Deadlines,
    /// Cancelled when the server shuts down.
    pub stop: &'a CancellationToken,
}

/// Result of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionResult {
    /// Success.
    Done,
    /// Failure with these errors. Everything else was done.
    Failed(Vec<String>),
    /// The server is shutting down; another one repeats the stage.
    Stopped,
}

/// The server is shutting down.
struct Stopped;

/// Runs deletions concurrently. The failure of one does not prevent the others.
async fn run_deletions(
    deletions: Vec<BoxFuture<'_, Result<(), Stopped>>>,
    max_concurrent: usize,
) -> Result<(), Stopped> {
    let ended: Vec<_> = stream::iter(deletions).buffer_unordered(max_concurrent).collect().await;
    ended.into_iter().collect()
}

/// Deletes the data of a backup outside the bucket: resources that plugin actions manage, and snapshots.
pub async fn delete_data(job: DeletionJob<'_>) -> DeletionResult {
    // From the first effect on, the backup must not be mistaken for a complete one.
    if let Err(error) = job.store.mark_deleting(job.name).await {
        return DeletionResult::Failed(vec![removal_error(&error)]);
    }
    let report = Report::default();
    // Actions first, as in Velero: they may inspect the source of a snapshot.
    let result = match actions::run_actions(&job, &report).await {
        Ok(()) => snapshots::delete(&job, &report).await,
        Err(Stopped) => Err(Stopped),
    };
    let result = match result {
        Ok(()) => csi::delete(&job, &report).await,
        Err(Stopped) => Err(Stopped),
    };
    match result {
        Err(Stopped) => DeletionResult::Stopped,
        Ok(()) if report.error_count() == 0 => DeletionResult::Done,
        Ok(()) => DeletionResult::Failed(error_lines(&report)),
    }
}

/// Deletes the files of a backup that has no data any more.
pub async fn delete_files(store: &BackupStore, name: &BackupName) -> DeletionResult {
    failpoint::hit(Failpoint::DeleteFiles);
    let deleted = store.delete_backup(name).await;
    failpoint::hit(Failpoint::FilesDeleted);
    match deleted {
        Ok(()) => DeletionResult::Done,
        Err(error) => DeletionResult::Failed(vec![removal_error(&error)]),
    }
}

/// Velero's wording.
fn removal_error(error: &bowline_store::Error) -> String {
    format!("error removing backup from backup storage: {}", error_chain(error))
}

/// The errors of a report, one line each.
fn error_lines(report: &Report) -> Vec<String> {
    let (errors, _) = report.messages();
    let line = |Message { item, text }: &Message| match item {
        Some(item) => format!("{item}: {text}"),
        None => text.clone(),
    };
    let mut lines: Vec<String> = errors.iter().take(MAX_REPORTED_ERRORS).map(line).collect();
    let more = report.error_count().saturating_sub(MAX_REPORTED_ERRORS);
    if more > 0 {
        lines.push(format!("and {more} more; see the log of the server"));
    }
    lines
}

/// Reports an error that does not belong to an item.
fn report_error(report: &Report, message: String) {
    report.error(ReportSubject::Run, message);
}
