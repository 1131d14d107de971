//! From a Backup resource to files in a bucket.
//!
//! `collect_all` is the table of contents: one stage after the other, one file for each. [`run`] prepares the context
//! and uploads the archive meanwhile. Items come from `collect` or,
//! where they belong together, from `block`; both pass them to `item`, which runs the actions on them and appends
//! them to the [`archive`]. The archive is uploaded while it is written. At the end [`finalize`] writes the other
//! files and determines the status. `context` holds the state that the stages share, `outcome` their results.
//!
//! | stage | in | out |
//! |---|---|---|
//! | [`request`] | the Backup and the objects that the server looked up for it | a validated [`request::Request`], or all validation errors |
//! | `discover` | the resources that the API server serves | the resources that can be backed up |
//! | [`filter`], [`policy`] | the lists of the request | verdicts with reasons |
//! | `collect` | resources and filter | objects, streaming |
//! | `block`, [`hook`] | items that belong together | the same, quiesced |
//! | `item` | one object | the object as stored, followed by its additional items |
//! | `snapshot_plan`, [`snapshot`], [`csi`] | the volumes of a block | snapshots, and operations on them |
//! | [`volume`] | pods, claims, volumes | the outcome for their data |
//! | `namespaces`, `definitions` | the stored items | their Namespaces and CustomResourceDefinitions |
//! | [`archive`], [`upload`] | stored objects | the tar in the bucket |
//! | [`finalize`] | all of the above | the other files, and the status |

pub mod archive;
mod block;
mod block_journal;
mod collect;
mod context;
mod credentials;
pub mod csi;
mod definitions;
mod discover;
pub mod filter;
pub mod finalize;
pub mod hook;
mod inventory;
mod item;
mod name_check;
mod namespaces;
mod outcome;
mod outside_pods;
pub mod policy;
mod progress;
pub mod replace;
pub mod request;
pub mod snapshot;
mod snapshot_plan;
mod spool;
mod thaw;
pub mod upload;
mod visited_items;
pub mod volume;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::{BackupItemAction, ItemBlockAction};
use bowline_store::BackupStore;
use futures::future::join;
use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::action::NamedAction;
use crate::cluster::Cluster;
use crate::compression::CompressionMode;
use crate::failpoint::{self, Failpoint};
use crate::journal::{Journal, RecoveredRun};
use crate::report::{Report, ReportSubject};
use crate::snapshotter::Snapshotters;
use crate::unpack::{ExceededLimit, UnpackLimits};
use archive::{Archive, SealedArchive};
use collect::ListPhase;
use context::{Context, assemble, check_name_and_assemble};
use hook::InvalidHooks;
pub use inventory::Inventory;
use item::Sink;
use name_check::NameAvailability;
pub use outcome::{BackupOutcome, abandoned_operations};
use outcome::{
    complete_outcome, earlier_csi_snapshots, earlier_operations, earlier_snapshots,
    into_owned_report,
};
pub use progress::Progress;
use request::Request;
pub use snapshot::SnapshotProgress;
pub use thaw::{
    ThawContext, ThawError, ThawOutcome, ThawRetry, UnwrittenThaws, give_up_if_canceled,
    thaw_leftover_pods,
};
pub use upload::UploadError;

/// Limit on the bytes of objects in flight.
const MAX_IN_FLIGHT_BYTES: usize = 16 << 20;
/// Time that an upload, a plugin call, an unreachable pod or a call to the bucket still gets after the run was canceled.
pub const CANCEL_GRACE: Duration = Duration::from_secs(10);

/// Inputs of a run.
pub struct Run {
    /// The validated request.
    pub request: Request,
    /// The cluster to back up.
    pub cluster: Arc<dyn Cluster>,
    /// The store to write to.
    pub store: BackupStore,
    /// The BackupItemActions of plugins, in order. They follow the built-in ones.
    pub backup_item_actions: Vec<NamedAction<dyn BackupItemAction>>,
    /// The ItemBlockActions of plugins, in order.
    pub item_block_actions: Vec<NamedAction<dyn ItemBlockAction>>,
    /// The volume snapshotters.
    pub snapshotters: Arc<dyn Snapshotters>,
    /// Limits of the run.
    pub options: Options,
    /// Progress, for observers.
    pub progress: Arc<Progress>,
    /// The journal to write to.
    pub journal: Arc<dyn Journal>,
    /// State that an earlier process left.
    pub recovery: Recovery,
    /// Ends the run early so that another process can resume it: no new block is started, and started blocks are
    /// finished.
    pub stop: CancellationToken,
    /// Ends the run for good: blocks are aborted. Quiesced applications are thawed first.
    pub cancel: CancellationToken,
}

/// State that an earlier process left of a run.
#[derive(Debug, Default)]
pub struct Recovery {
    /// State from the journal.
    pub recovered: RecoveredRun,
    /// Messages from thawing its pods.
    pub report: Report,
}

/// Limits of a run, and its scratch folder.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of concurrent LISTs.
    pub connections: usize,
    /// Number of concurrent blocks.
    pub block_workers: usize,
    /// Folder for unnamed temporary files.
    pub scratch: PathBuf,
    /// Time a plugin may take for a snapshot while pods are frozen; none sets no limit of its own.
    pub freeze_timeout: Option<Duration>,
    /// Where the archive is compressed.
    pub compression: CompressionMode,
    /// Limits of restores. An archive that exceeds one of them is reported now, and not when it is needed.
    pub restore_limits: UnpackLimits,
}

/// Failure that ends a run.
#[derive(Debug, thiserror::Error)]
pub enum FatalError {
    /// The bucket already holds a backup of that name.
    #[error("backup already exists in object storage: delete it first, or choose another name")]
    Exists,
    /// The bucket could not be checked for a backup of that name.
    #[error("cannot read the bucket")]
    ReadBucket(#[source] bowline_store::Error),
    /// Discovery failed.
    #[error("cannot discover the resources of the cluster")]
    Discover(#[source] crate::cluster::Error),
    /// The hooks of the request are invalid.
    #[error(transparent)]
    Hooks(#[from] InvalidHooks),
    /// The namespaces could not be listed.
    #[error("cannot list namespaces")]
    Namespaces(#[source] crate::cluster::Error),
    /// The scratch folder cannot be used.
    #[error("cannot use the scratch directory")]
    Scratch(#[source] io::Error),
    /// The archive could not be written.
    #[error("cannot write the archive")]
    Archive(#[source] io::Error),
    /// The archive is no longer in the bucket.
    #[error("the archive is no longer in the bucket")]
    NoArchive,
    /// The archive could not be uploaded.
    #[error("cannot upload the archive")]
    Upload(#[from] UploadError),
    /// The run is not resumed.
    #[error("{0}")]
    NotResumed(String),
    /// The run was asked to stop. Another process can resume it.
    #[error("the backup was stopped before it was complete")]
    Stopped,
    /// The run was canceled.
    #[error("the backup was canceled before all items were backed up")]
    Canceled,
}

impl FatalError {
    /// The error and its causes, in one line.
    pub fn error_chain(&self) -> String {
        bowline_plugin::error_chain(self)
    }
}

/// Backs up the resources that a request selects.
///
/// # Guarantees
/// - Failures of items are in the report; the run itself fails only where it cannot continue.
/// - The archive is in the bucket whole, or not at all.
/// - Post-hooks of pods whose pre-hooks were started have run when this returns, so the future must not be dropped:
///   use [`Run::stop`].
pub async fn run(run: Run, now: Timestamp) -> BackupOutcome {
    let report = Arc::new(Report::default());
    let progress = Arc::clone(&run.progress);
    let timeout = run.request.item_operation_timeout();
    let earlier_operations = earlier_operations(&run.recovery.recovered, timeout, now);
    let earlier_snapshots = earlier_snapshots(&run.recovery.recovered);
    let recovered = run.recovery.recovered.clone();
    let context = match Box::pin(check_name_and_assemble(run, Arc::clone(&report), now)).await {
        Ok(context) => context,
        // Operations that an earlier process started continue regardless.
        Err(fatal) => {
            block_journal::report_not_resumed(&report, &recovered);
            let failed = BackupOutcome::failed(fatal, into_owned_report(report), &progress);
            let (csi_snapshots, csi_leftovers) = earlier_csi_snapshots(&recovered);
            return BackupOutcome {
                operations: earlier_operations,
                snapshots: earlier_snapshots,
                csi_snapshots,
                csi_leftovers,
                ..failed
            };
        }
    };
    // The future is large, and there is only one.
    let archive = Box::pin(write_archive(&context)).await;
    Box::pin(complete_outcome(context, archive, report, &progress)).await
}

/// Fills the archive while uploading it. A failure aborts the archive and with it the upload.
async fn write_archive(context: &Arc<Context>) -> Result<SealedArchive, FatalError> {
    let Context { store, request, options, cancel, started, .. } = &**context;
    let (archive, stream, writer) = archive::start(*started, &options.scratch, options.compression)
        .map_err(FatalError::Archive)?;
    let upload = upload::contents(store, &request.name, stream, &options.scratch);
    let size = archive.size();
    let uploaded = async {
        tokio::select! {
            uploaded = upload => uploaded,
            // A bucket that hangs must not hold up a canceled run.
            () = canceled_for(cancel, CANCEL_GRACE) => Err(bowline_store::Error::TaskAborted.into()),
        }
    };
    let collected = async move {
        let collected = collect_all(context, &archive).await;
        if collected.is_err() {
            archive.abort().await;
        } else if archive.finish().await.is_err() {
            // The upload has failed, and says why.
            context.mark_archive_failed();
        }
        collected
    };
    let (collected, uploaded) = join(collected, uploaded).await;
    if uploaded.is_ok() {
        failpoint::hit(Failpoint::ArchiveUploaded);
    }
    collected?;
    uploaded?;
    let exceeded = size.lock().exceeded_limit(&options.restore_limits);
    warn_not_restorable(context, exceeded);
    writer.finish(|_| Ok(())).await.map_err(FatalError::Archive)
}

/// Reports that an archive cannot be restored with the limits of this server.
fn warn_not_restorable(context: &Context, exceeded: Option<ExceededLimit>) {
    let Some(limit) = exceeded else { return };
    let hint = limit.flag().map(|flag| format!("; before a restore, raise `{flag}` of the server"));
    let hint = hint.unwrap_or_default();
    let text = format!("this server cannot restore the backup: {limit}{hint}");
    context.report.warn(ReportSubject::Run, text);
}

/// Waits until the run was canceled and this time has passed since.
async fn canceled_for(cancel: &CancellationToken, time: Duration) {
    cancel.cancelled().await;
    tokio::time::sleep(time).await;
}

/// Appends everything to the archive.
async fn collect_all(context: &Arc<Context>, archive: &Archive) -> Result<(), FatalError> {
    block_journal::replay(context, &context.recovery, archive).await;
    let namespaces = namespaces::list(context).await?;
    let listings = collect::plan_listings(context, namespaces.len());
    context.progress.plan_lists(listings.len());
    let listings_in =
        |phase| listings.iter().filter(|listing| listing.phase == phase).cloned().collect();
    let connections = Arc::new(Semaphore::new(context.options.connections));
    let blocks = async {
        let spooled =
            collect::items(context, listings_in(ListPhase::BeforeBlocks), archive, &connections)
                .await;
        let (of_blocks, deferred) =
            spooled.into_iter().partition(|spooled_item| spooled_item.is_of_block);
        block::process(context, of_blocks, archive).await;
        collect::visit_spooled(context, deferred, archive).await;
        let spooled =
            collect::items(context, listings_in(ListPhase::AfterBlocks), archive, &connections)
                .await;
        debug_assert!(spooled.is_empty(), "items that wait for blocks are listed before them");
    };
    let rest = async {
        let spooled =
            collect::items(context, listings_in(ListPhase::Anytime), archive, &connections).await;
        debug_assert!(spooled.is_empty(), "items that wait for blocks are listed before them");
    };
    join(blocks, rest).await;
    let sink = Sink::archive(archive);
    namespaces::store(context, namespaces, &sink).await;
    definitions::store(context, &sink).await;
    credentials::warn_excluded(context);
    check_not_stopped(context)?;
    // Another cluster may have stored a backup of the same name meanwhile. The race that remains is the moment until
    // the archive is uploaded; the commit record cannot be overwritten.
    let Context { store, request, stop, cancel, .. } = &**context;
    match name_check::check_name(store, &request.name, name_check::CHECK_RESUMED, stop, cancel)
        .await
    {
        NameAvailability::Taken => Err(FatalError::Exists),
        NameAvailability::Free => Ok(()),
        // Everything has been collected by now, so this is no reason to discard it.
        NameAvailability::Unknown(error) => {
            check_not_stopped(context)?;
            let error = bowline_plugin::error_chain(&error);
            tracing::warn!(
                error,
                "cannot check whether the name is still free in the bucket; the commit checks it \
                 again"
            );
            Ok(())
        }
    }
}

/// An error if the run must end here.
fn check_not_stopped(context: &Context) -> Result<(), FatalError> {
    if context.cancel.is_cancelled() {
        return Err(FatalError::Canceled);
    }
    if context.stop.is_cancelled() { Err(FatalError::Stopped) } else { Ok(()) }
}
