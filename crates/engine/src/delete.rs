//! Deletes a backup, with what belongs to it outside of the cluster.
//!
//! | stage | in | out |
//! |---|---|---|
//! | [`check_deletion()`] | the request, the Backup, its location | whether it may be deleted, now or later |
//! | [`read_inventory`], [`read_csi_inventory`] | the bucket | what the backup [holds](BackupInventory) |
//! | [`plan_deletion()`] | that | a [`DeletionPlan`], or all that speaks against it |
//! | [`referenced_snapshots`], [`exclude_shared`] | what other backups name | the plan without that |
//! | [`open_snapshotters`], [`check_csi_ready`] | the plan | the snapshotters that it needs, and that CSI drivers are there |
//! | [`delete_data`] | all of the above | no data outside of the bucket any more, or what is left of it |
//! | [`delete_files`] | the bucket | no files any more |
//!
//! # What holds
//! - **Nothing loses its record.** What cannot be deleted is found before anything is touched, and the
//!   backup stays as it is. What fails later leaves all files, and the record says `Deleting`.
//! - **Nobody loses what is theirs.** What another backup names stays, until the last of them goes; and with which
//!   Secret a CSI driver is asked, this cluster says, not the bucket.
//! - **A kill at any instant costs nothing.** Data goes before the files that name it, and the record
//!   last; each stage may be repeated, and deletes again what is gone already.
//! - **Everything ends**: calls of plugins have deadlines, and a server that ends is obeyed between two
//!   of them.

mod actions;
mod admission;
mod csi;
mod inventory;
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
use tokio_util::sync::CancellationToken;

use crate::action::NamedAction;
use crate::cluster::Cluster;
use crate::failpoint::{self, Point};
use crate::report::{Message, Report, ReportSubject};

pub use admission::{DeletionFacts, DeletionVerdict, Refusal, Scope, check_deletion};
pub use csi::{DeletableCsiSnapshot, check_csi_ready};
pub use inventory::{BackupInventory, InventoryError, read_csi_inventory, read_inventory};
pub use plan::{DeletableSnapshot, DeletionPlan, FileOwnership, plan_deletion};
pub use shared::{
    BackupPossessions, OtherBackups, SharedSnapshot, SnapshotRef, against_unreadable,
    exclude_shared, referenced_snapshots,
};
pub use snapshots::{OpenSnapshotters, open_snapshotters};

/// How many errors are told. More are in the log.
const MAX_REPORTED_ERRORS: usize = 50;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Opening a snapshotter.
    pub open: Duration,
    /// Showing an item to an action.
    pub execute: Duration,
    /// Asking a snapshot that is still being made to stop.
    pub cancel: Duration,
    /// Deleting a snapshot.
    pub delete: Duration,
    /// Deleting a snapshot of a CSI driver, by its controllers.
    pub content: Duration,
    /// The same, if the controllers complain.
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

/// A backup whose data is to be deleted, and what that takes.
pub struct DeletionJob<'a> {
    /// The backup, as plugins are shown it.
    pub backup: &'a Backup,
    /// Its name.
    pub name: &'a BackupName,
    /// Where its files are.
    pub store: &'a BackupStore,
    /// What is to be deleted.
    pub plan: &'a DeletionPlan,
    /// Who deletes snapshots.
    pub snapshotters: &'a OpenSnapshotters,
    /// The actions that want to know, in order.
    pub actions: Vec<NamedAction<dyn DeleteItemAction>>,
    /// Who knows what their words for resources mean.
    pub cluster: &'a dyn Cluster,
    /// A folder for the archive while it is read.
    pub scratch: &'a Path,
    /// How long things may take.
    pub deadlines: Deadlines,
    /// Cancelled when the server is to end.
    pub stop: &'a CancellationToken,
}

/// How a stage ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionResult {
    /// Well.
    Done,
    /// With these errors. The rest was done.
    Failed(Vec<String>),
    /// The server ends; another does it again.
    Stopped,
}

/// The server ends.
struct Stopped;

/// Deletes what a backup holds outside of the bucket: what actions of plugins know of, and snapshots.
pub async fn delete_data(job: DeletionJob<'_>) -> DeletionResult {
    // From the first effect on, nobody must take the backup for whole.
    if let Err(error) = job.store.mark_deleting(job.name).await {
        return DeletionResult::Failed(vec![removal_error(&error)]);
    }
    let report = Report::default();
    // Actions first, as in Velero: they may want to see what a snapshot was of.
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

/// Deletes the files of a backup that holds nothing any more.
pub async fn delete_files(store: &BackupStore, name: &BackupName) -> DeletionResult {
    failpoint::hit(Point::DeleteFiles);
    let deleted = store.delete_backup(name).await;
    failpoint::hit(Point::FilesDeleted);
    match deleted {
        Ok(()) => DeletionResult::Done,
        Err(error) => DeletionResult::Failed(vec![removal_error(&error)]),
    }
}

/// In Velero's words.
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
        lines.push(format!("and {more} more, which are in the log of the server"));
    }
    lines
}

/// Notes an error that is not about an item.
fn report_error(report: &Report, message: String) {
    report.error(ReportSubject::Run, message);
}
