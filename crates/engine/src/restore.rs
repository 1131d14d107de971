//! Restores a backup from object storage into a cluster.
//!
//! [`run`] is the entry point, with the same structure as that of backups: read the archive once ([`crate::download`],
//! [`unpack`]), sort its kinds into steps ([`order`]), and restore the items of each step concurrently
//! (`item`): filter, run the actions, change, write (`apply`).
//!
//! | stage | in | out |
//! |---|---|---|
//! | [`request`] | the Restore and the server's lookups | a [`request::Request`], or the list of its errors |
//! | [`crate::download`], [`unpack`] | the archive | an index of the items, and an unnamed temporary file |
//! | [`filter`], [`order`], [`version`] | kinds, namespaces and names | verdicts, steps, versions |
//! | `item`, [`action`] | one item | the object to write, after its additional items |
//! | [`reset`], [`modifier`] | the JSON of an object | the JSON to create in the target cluster |
//! | [`volume`] | a PersistentVolume | the PersistentVolume, with its data restored |
//! | `apply`, [`difference`] | an object | the object in the cluster |
//! | `collision` | items with the same target | the item that an object was created from |
//! | [`hook`] | created pods | commands executed in them |
//! | [`plan`] | all of the above, as a dry run | the expected outcome of each item |
//! | [`finalize`] | all of the above | the results files and the status |

pub mod action;
mod apply;
mod collision;
mod context;
pub mod difference;
pub mod filter;
pub mod finalize;
pub mod hook;
mod item;
mod item_journal;
mod item_reservations;
pub mod modifier;
mod namespace;
pub mod order;
pub mod outcome;
pub mod plan;
mod progress;
mod rate_limiter;
pub mod request;
pub mod reset;
mod stack;
#[cfg(test)]
mod tests;
pub mod version;
pub mod volume;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::{ResourceIdentifier, RestoreItemAction};
use bowline_store::BackupStore;
use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::action::NamedAction;
use crate::cluster::Cluster;
use crate::download::DownloadError;
use crate::journal::{Journal, RecoveredRun};
use crate::report::{Report, ReportSubject};
use crate::resource::GroupResource;
use crate::snapshotter::Snapshotters;
use crate::unpack::{self, UnpackLimits};
use context::{Context, ServedApi, discover, prepare};
use item::VisitReason;
use order::{Priorities, Step, StepGroup};
use outcome::{build_outcome, unwrap_report};
use request::Request;
use volume::VolumeProgressReporter;

pub use item_journal::leftover_volumes;
pub use outcome::{RestoreOutcome, abandoned_operations, operations_before_restart};
pub use progress::Progress;

/// Inputs of a restore.
pub struct Run {
    /// The validated request.
    pub request: Request,
    /// The target cluster.
    pub cluster: Arc<dyn Cluster>,
    /// The store that holds the backup.
    pub store: BackupStore,
    /// RestoreItemActions of plugins, in order. They run after the built-in ones.
    pub actions: Vec<NamedAction<dyn RestoreItemAction>>,
    /// Plugins that create volumes from snapshots.
    pub snapshotters: Arc<dyn Snapshotters>,
    /// Receives the progress of volume creation.
    pub volume_reporter: Arc<dyn VolumeProgressReporter>,
    /// Concurrency limits and timeouts.
    pub options: Options,
    /// Progress counters, shared with observers.
    pub progress: Arc<Progress>,
    /// Journal for everything that must survive a restart.
    pub journal: Arc<dyn Journal>,
    /// Journal entries of an earlier process.
    pub recovered: RecoveredRun,
    /// Stops the run early, so that another process can resume it.
    pub stop: CancellationToken,
    /// Cancels the run for good.
    pub cancel: CancellationToken,
}

/// Concurrency limits and timeouts of a restore.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum number of concurrent requests to the API server.
    pub requests: usize,
    /// Maximum number of items restored concurrently.
    pub items: usize,
    /// Directory for unnamed temporary files.
    pub scratch: PathBuf,
    /// Limits on the contents of the archive.
    pub unpack_limits: UnpackLimits,
    /// Namespace of the server, where actions find their ConfigMaps.
    pub namespace: String,
    /// Kinds to restore first and last.
    pub priorities: Priorities,
    /// Maximum wait for something to become ready.
    pub resource_timeout: Duration,
    /// Maximum wait for something to be deleted.
    pub terminating_timeout: Duration,
}

/// The reason why a restore could not continue.
#[derive(Debug, thiserror::Error)]
pub enum FatalError {
    /// The archive cannot be downloaded.
    #[error("cannot get the archive of the backup")]
    Download(#[from] DownloadError),
    /// The archive is damaged, and the Restore does not allow damaged archives.
    #[error(
        "the archive of the backup is damaged, so nothing was restored: {}{}; to restore what can be read, \
         use `--allow-damaged-archive`",
        first.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        if *more == 0 { String::new() } else { format!("; and {more} more") }
    )]
    Damaged {
        /// The first few defects, enough for a status message.
        first: Vec<unpack::Defect>,
        /// Number of further defects.
        more: usize,
    },
    /// API discovery failed.
    #[error("cannot discover the resources of the cluster")]
    Discover(#[source] crate::cluster::Error),
    /// The hooks are invalid.
    #[error("invalid hooks")]
    Hooks(#[from] hook::InvalidHooks),
    /// The run was stopped. Another process can resume it.
    #[error("the restore was stopped before it was complete")]
    Stopped,
    /// The run was canceled.
    #[error("the restore was canceled before all items were restored")]
    Canceled,
}

impl FatalError {
    /// The error and its causes in one line.
    pub fn error_chain(&self) -> String {
        bowline_plugin::error_chain(self)
    }
}

/// Carries out a restore.
///
/// May run again after a process died halfway: objects that this restore has created are recognised and left
/// unchanged.
pub async fn run(run: Run, now: Timestamp) -> RestoreOutcome {
    let report = Arc::new(Report::default());
    let timeout = run.request.timeouts.item_operation;
    let earlier_operations = operations_before_restart(&run.recovered, timeout, now);
    let leftover_volumes = leftover_volumes(&run.recovered);
    let context = match Box::pin(prepare(run, Arc::clone(&report), now)).await {
        Ok(context) => Arc::new(context),
        // Operations that an earlier process started are still running.
        Err(fatal) => {
            for (id, text) in leftover_volumes {
                report.warn(&id, text);
            }
            return RestoreOutcome {
                operations: earlier_operations,
                ..RestoreOutcome::without_items(fatal, unwrap_report(report))
            };
        }
    };
    // Canceling implies stopping.
    let canceled = async {
        context.cancel.cancelled().await;
        context.stop.cancel();
        std::future::pending().await
    };
    let visiting = async {
        let visited = visit_all(&context).await;
        // Hooks may wait for their pods long after all items have been processed.
        (visited.err(), context.hooks.finish().await)
    };
    let (fatal, hooks) = tokio::select! {
        visited = visiting => visited,
        never = canceled => never,
    };
    // The process that resumes the run executes the hooks that were abandoned here.
    let is_unfinished = context.stop.is_cancelled() && !context.cancel.is_cancelled();
    let fatal = fatal.or(is_unfinished.then_some(FatalError::Stopped));
    if fatal.is_some() {
        item_journal::warn_leftover_volumes(&context);
    }
    match Arc::into_inner(context) {
        Some(context) => build_outcome(context, fatal, hooks, report),
        None => RestoreOutcome::without_items(FatalError::Stopped, unwrap_report(report)),
    }
}

/// Visits the items of the archive, step by step.
async fn visit_all(context: &Arc<Context>) -> Result<(), FatalError> {
    let mut planned = PlannedSteps::new(context, |_| true);
    if planned.steps.is_empty() {
        context.report.warn(ReportSubject::Run, "there are zero items to be restored");
    }
    context.progress.add_expected(planned.count(context));
    while let Some(step) = planned.steps.pop_front() {
        tracing::debug!(stage = ?step.group, "next step");
        visit_step(context, &planned.served_api, &step).await;
        if context.cancel.is_cancelled() {
            return Err(FatalError::Canceled);
        }
        if context.stop.is_cancelled() {
            return Err(FatalError::Stopped);
        }
        if step.group == StepGroup::Definitions
            && context.outcomes.has_written("CustomResourceDefinition")
        {
            let (cluster, request) = (&*context.cluster, &context.request);
            context.set_served_api(discover(cluster, request, &context.report).await?);
            // Short names and singulars of the new kinds can be resolved only now.
            let before = planned.count(context);
            planned = PlannedSteps::new(context, |step| step.group != StepGroup::Definitions);
            context.progress.replan(before, planned.count(context));
        }
    }
    Ok(())
}

/// Steps with their kinds, filtered by what the cluster served when they were planned. Their items stay in the index of
/// the archive until it is their turn: a list of all of them would take more memory than the index.
struct PlannedSteps {
    served_api: Arc<ServedApi>,
    steps: VecDeque<Step>,
}

impl PlannedSteps {
    /// Sorts the kinds of the archive into steps, according to what the cluster serves now.
    fn new(context: &Context, is_open: impl Fn(&Step) -> bool) -> Self {
        let served_api = context.served_api();
        let kinds = context.contents.kinds().map(|(kind, _)| kind);
        let kinds = kinds.filter(|kind| served_api.filter.kind(kind).is_restore());
        let steps = order::steps(kinds, &context.options.priorities, &served_api.resources);
        let steps = steps.into_iter().filter(is_open).collect();
        Self { served_api, steps }
    }

    /// Number of items.
    fn count(&self, context: &Context) -> usize {
        self.steps.iter().map(|step| items_of(context, &self.served_api, step).count()).sum()
    }
}

/// The items of a step, filtered by kind, namespace and name.
fn items_of<'a>(
    context: &'a Context,
    served_api: &'a ServedApi,
    step: &'a Step,
) -> impl Iterator<Item = ItemName<'a>> {
    step.kinds.iter().flat_map(move |kind| {
        let items = context.contents.kind(kind).into_iter().flat_map(unpack::Kind::items);
        items
            .filter(move |(namespace, name)| {
                served_api.filter.location(kind, namespace, name).is_restore()
            })
            .map(move |(namespace, name)| ItemName { kind, namespace, name })
    })
}

/// An item in the index of the archive.
#[derive(Clone, Copy)]
struct ItemName<'a> {
    kind: &'a GroupResource,
    namespace: &'a str,
    name: &'a str,
}

impl ItemName<'_> {
    fn id(self) -> ResourceIdentifier {
        ResourceIdentifier {
            group: self.kind.group.clone(),
            resource: self.kind.resource.clone(),
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
        }
    }
}

/// Visits the items of a step concurrently.
async fn visit_step(context: &Arc<Context>, served_api: &Arc<ServedApi>, step: &Step) {
    let permits = Arc::new(Semaphore::new(context.options.items.max(1)));
    let mut tasks = JoinSet::new();
    for item in items_of(context, served_api, step) {
        let Ok(place) = Arc::clone(&permits).acquire_owned().await else { break };
        if context.has_stopped() {
            break;
        }
        let (shared, served_api, id) = (Arc::clone(context), Arc::clone(served_api), item.id());
        let task = async move {
            item::visit(&shared, &served_api, id, VisitReason::Scheduled).await;
            drop(place);
        };
        tasks.spawn(task.in_current_span());
        while let Some(ended) = tasks.try_join_next() {
            report_task_failure(context, ended);
        }
    }
    while let Some(ended) = tasks.join_next().await {
        report_task_failure(context, ended);
    }
}

fn report_task_failure(context: &Context, ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        context
            .report
            .error(ReportSubject::Run, format!("the restore of an item was aborted: {error}"));
    }
}
