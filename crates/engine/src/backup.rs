//! From a Backup resource to files in a bucket.
//!
//! [`run`] is the table of contents: one stage after the other, a file for each. Items come from
//! `collect` or, where they belong together, from `block`; both hand them to `item`, which
//! shows them to the actions and puts them into the [`archive`]. That one is uploaded while it is
//! written. At the end [`finalize`] writes the other files and says what the status is.
//! What the stages share is in `context`, and what came of them in `outcome`.
//!
//! | stage | in | out |
//! |---|---|---|
//! | [`request`] | the Backup and what the server looked up | a [`request::Request`] that cannot be wrong, or all that is wrong with it |
//! | `discover` | what the API server serves | the resources that can be backed up |
//! | [`filter`], [`policy`] | the lists of the request | verdicts with reasons |
//! | `collect` | resources and filter | objects, streaming |
//! | `block`, [`hook`] | items that belong together | the same, quiesced |
//! | `item` | one object | what is stored of it, after what it needs |
//! | [`snapshot`], [`csi`] | the volumes of a block | snapshots, and operations on them |
//! | [`volume`] | pods, claims, volumes | what became of their data |
//! | `namespaces`, `definitions` | what was stored | the objects that it is in, and that define it |
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
use crate::failpoint::{self, Point};
use crate::journal::{Journal, Recovered};
use crate::report::Report;
use crate::snapshotter::Snapshotters;
use archive::{Archive, Sealed};
use collect::ListPhase;
use context::{Context, assemble, prepare};
pub use inventory::Inventory;
use item::Sink;
use name_check::NameAvailability;
pub use outcome::BackupOutcome;
use outcome::{
    earlier_csi_snapshots, earlier_operations, earlier_snapshots, finish, into_owned_report,
};
pub use progress::Progress;
use request::Request;
pub use snapshot::SnapshotProgress;
pub use thaw::{
    ThawContext, ThawError, ThawOutcome, ThawRetry, UnwrittenThaws, give_up_if_canceled,
    thaw_leftover_pods,
};
use upload::UploadError;

/// How many bytes of objects may be in flight.
const MAX_IN_FLIGHT_BYTES: usize = 16 << 20;
/// How long an upload, or a call of a plugin, may still take once the run was canceled.
const CANCEL_GRACE: Duration = Duration::from_secs(10);

/// What a run needs.
pub struct Run {
    /// What is to be backed up.
    pub request: Request,
    /// From where.
    pub cluster: Arc<dyn Cluster>,
    /// Into what.
    pub store: BackupStore,
    /// The BackupItemActions of plugins, in order. They come after those that are built in.
    pub backup_item_actions: Vec<NamedAction<dyn BackupItemAction>>,
    /// The ItemBlockActions of plugins, in order.
    pub item_block_actions: Vec<NamedAction<dyn ItemBlockAction>>,
    /// Where snapshots of volumes are taken.
    pub snapshotters: Arc<dyn Snapshotters>,
    /// How much at a time.
    pub options: Options,
    /// How far it is, for whoever wants to know.
    pub progress: Arc<Progress>,
    /// Where it notes what must not be forgotten.
    pub journal: Arc<dyn Journal>,
    /// What an earlier process has noted there.
    pub recovery: Recovery,
    /// Ends it early, so that another process can take it up: no block is begun any more, and those
    /// that were are finished.
    pub stop: CancellationToken,
    /// Ends it for good: blocks are broken off. Applications that are quiesced are let go first.
    pub cancel: CancellationToken,
}

/// What an earlier process has left of a run.
#[derive(Debug, Default)]
pub struct Recovery {
    /// What its journal says.
    pub recovered: Recovered,
    /// What was told when its pods were thawed.
    pub report: Report,
}

/// How much a run does at a time, and where it puts what it cannot hold.
#[derive(Clone, Debug)]
pub struct Options {
    /// LISTs at a time.
    pub connections: usize,
    /// Blocks at a time.
    pub block_workers: usize,
    /// A folder for files without a name.
    pub scratch: PathBuf,
    /// How long a plugin may take to take a snapshot while pods are frozen; none is no limit of its own.
    pub freeze_timeout: Option<Duration>,
}

/// Why a run could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// There is a backup of that name in the bucket.
    #[error("backup already exists in object storage: delete it first, or choose another name")]
    Exists,
    /// The bucket did not say whether there is.
    #[error("cannot look into the bucket")]
    ReadBucket(#[source] bowline_store::Error),
    /// The API server did not say what it serves.
    #[error("cannot discover what the cluster has")]
    Discover(#[source] crate::cluster::Error),
    /// The hooks of the request cannot be used.
    #[error("invalid hooks: {}", .0.join("; "))]
    Hooks(Vec<String>),
    /// The namespaces cannot be listed.
    #[error("cannot list namespaces")]
    Namespaces(#[source] crate::cluster::Error),
    /// There is no room for temporary files.
    #[error("cannot use the scratch folder")]
    Scratch(#[source] io::Error),
    /// The archive could not be written.
    #[error("cannot write the archive")]
    Archive(#[source] io::Error),
    /// The archive is not in the bucket any more.
    #[error("the archive is not in the bucket any more")]
    NoArchive,
    /// The archive could not be uploaded.
    #[error("cannot upload the archive")]
    Upload(#[from] UploadError),
    /// It is not taken up again.
    #[error("{0}")]
    Abandoned(String),
    /// It was told to stop. Another process can take it up.
    #[error("stopped before it was done")]
    Stopped,
    /// It was cancelled.
    #[error("canceled before all items were backed up")]
    Canceled,
}

impl Fatal {
    /// What happened and why, in one line.
    pub fn error_chain(&self) -> String {
        bowline_plugin::error_chain(self)
    }
}

/// Backs up what a request asks for.
///
/// # Guarantees
/// - Failures of items are in the report; the run itself fails only where it cannot go on.
/// - The archive is in the bucket whole, or not at all.
/// - Post-hooks of pods whose pre-hooks were started have run when this returns, so it must not be
///   dropped: use [`Run::stop`].
pub async fn run(run: Run, now: Timestamp) -> BackupOutcome {
    let report = Arc::new(Report::default());
    let progress = Arc::clone(&run.progress);
    let timeout = run.request.item_operation_timeout();
    let earlier_operations = earlier_operations(&run.recovery.recovered, timeout, now);
    let earlier_snapshots = earlier_snapshots(&run.recovery.recovered);
    let recovered = run.recovery.recovered.clone();
    let context = match Box::pin(prepare(run, Arc::clone(&report), now)).await {
        Ok(context) => context,
        // What an earlier process has begun goes on all the same.
        Err(fatal) => {
            block_journal::report_abandoned(&report, &recovered);
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
    // It is large, and there is one of it.
    let archive = Box::pin(write_archive(&context)).await;
    Box::pin(finish(context, archive, report, &progress)).await
}

/// Fills the archive and uploads it meanwhile.
async fn write_archive(context: &Arc<Context>) -> Result<Sealed, Fatal> {
    let (archive, stream, writer) = archive::start(context.started).map_err(Fatal::Archive)?;
    let Context { store, request, options, cancel, .. } = &**context;
    let upload = upload::contents(store, &request.name, stream, &options.scratch);
    let uploaded = async {
        tokio::select! {
            uploaded = upload => uploaded,
            // A bucket that hangs does not hold a run that nobody wants any more.
            () = canceled_for(cancel, CANCEL_GRACE) => Err(bowline_store::Error::TaskAborted.into()),
        }
    };
    let (filled, uploaded) = join(fill_archive(context, archive), uploaded).await;
    if uploaded.is_ok() {
        failpoint::hit(Point::ArchiveUploaded);
    }
    let sealed = writer.finish().await;
    filled?;
    uploaded?;
    sealed.map_err(Fatal::Archive)
}

/// Waits until a run has been canceled for so long.
async fn canceled_for(cancel: &CancellationToken, time: Duration) {
    cancel.cancelled().await;
    tokio::time::sleep(time).await;
}

/// Puts everything into the archive. If that fails, the archive breaks off, and the upload with it.
async fn fill_archive(context: &Arc<Context>, archive: Archive) -> Result<(), Fatal> {
    let filled = collect_all(context, &archive).await;
    if filled.is_err() {
        archive.abort().await;
    }
    filled
}

async fn collect_all(context: &Arc<Context>, archive: &Archive) -> Result<(), Fatal> {
    block_journal::replay(context, &context.recovery, archive).await;
    let namespaces = namespaces::list(context).await?;
    let listings = collect::plan_listings(context, namespaces.len());
    context.progress.plan_lists(listings.len());
    let listings_in =
        |turn| listings.iter().filter(|listing| listing.phase == turn).cloned().collect();
    let connections = Arc::new(Semaphore::new(context.options.connections));
    let blocks = async {
        let spooled =
            collect::items(context, listings_in(ListPhase::BeforeBlocks), archive, &connections)
                .await;
        let (of_blocks, deferred) = spooled.into_iter().partition(|held| held.is_of_block);
        block::process(context, of_blocks, archive).await;
        collect::visit_spooled(context, deferred, archive).await;
        let spooled =
            collect::items(context, listings_in(ListPhase::AfterBlocks), archive, &connections)
                .await;
        debug_assert!(spooled.is_empty(), "what may be held is listed first");
    };
    let rest = async {
        let spooled =
            collect::items(context, listings_in(ListPhase::Anytime), archive, &connections).await;
        debug_assert!(spooled.is_empty(), "what may be held is listed first");
    };
    join(blocks, rest).await;
    let sink = Sink::archive(archive);
    namespaces::store(context, namespaces, &sink).await;
    definitions::store(context, &sink).await;
    credentials::warn_excluded(context);
    check_not_stopped(context)?;
    // Another cluster may have stored one of the same name meanwhile. What is left of that race is the
    // moment until the archive is there; the commit record cannot be taken over.
    let Context { store, request, stop, cancel, .. } = &**context;
    match name_check::check_name(store, &request.name, name_check::CHECK_RESUMED, stop, cancel)
        .await
    {
        NameAvailability::Taken => Err(Fatal::Exists),
        NameAvailability::Free => Ok(()),
        // Everything has been taken by now, so it is not thrown away for that.
        NameAvailability::Unknown(error) => {
            check_not_stopped(context)?;
            let error = bowline_plugin::error_chain(&error);
            tracing::warn!(
                error,
                "it is not known whether the name is still free; the commit will say"
            );
            Ok(())
        }
    }
}

/// Whether the run is to end here.
fn check_not_stopped(context: &Context) -> Result<(), Fatal> {
    if context.cancel.is_cancelled() {
        return Err(Fatal::Canceled);
    }
    if context.stop.is_cancelled() { Err(Fatal::Stopped) } else { Ok(()) }
}
