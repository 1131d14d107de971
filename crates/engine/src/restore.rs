//! Restores a backup from object storage into a cluster.
//!
//! [`run`] is the entry point, with the same structure as that of backups: read the archive once ([`download`],
//! [`unpack`]), sort its kinds into steps ([`order`]), and restore the items of each step concurrently
//! (`item`): filter, run the actions, change, write (`apply`).
//!
//! | stage | in | out |
//! |---|---|---|
//! | [`request`] | the Restore and the server's lookups | a [`request::Request`], or the list of its errors |
//! | [`download`], [`unpack`] | the archive | an index of the items, and an unnamed temporary file |
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
pub mod difference;
pub mod download;
pub mod filter;
pub mod finalize;
pub mod hook;
mod item;
mod item_claims;
mod item_journal;
pub mod modifier;
mod namespace;
pub mod order;
pub mod outcome;
pub mod plan;
mod rate_limiter;
pub mod request;
pub mod reset;
mod stack;
#[cfg(test)]
mod tests;
pub mod unpack;
pub mod version;
pub mod volume;

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bowline_plugin::{Code, ResourceIdentifier, RestoreItemAction};
use bowline_store::BackupStore;
use bowline_store::file::{ResourceList, RestoreVolumeInfo};
use jiff::Timestamp;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::action::NamedAction;
use crate::cluster::{Cluster, Discovery};
use crate::journal::{Journal, Recovered};
use crate::operation::{Operation, record};
use crate::report::{Report, ReportSubject};
use crate::resource::{GroupResource, Resources};
use crate::selection::{self, Action};
use crate::snapshotter::Snapshotters;
use action::csi::{self, CsiRestoreContext};
use collision::NamespaceCollisions;
use download::{BackupVolumes, DownloadError};
use filter::Filter;
use item::{VisitReason, Visitor};
use item_claims::ClaimedItems;
use item_journal::ItemJournal;
use namespace::NamespaceCache;
use order::{Priorities, Stage, Step};
use outcome::ItemOutcomes;
use rate_limiter::RateLimiter;
use request::Request;
use unpack::Contents;
use version::Versions;
use volume::{VolumeCreator, VolumeProgressReporter};

pub use item_journal::leftover_volumes;

/// Time that a pending plugin call still has after the run was canceled.
const AFTER_CANCEL: Duration = Duration::from_secs(10);

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
    pub recovered: Recovered,
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
    /// Namespace of the server, where actions find their ConfigMaps.
    pub namespace: String,
    /// Kinds to restore first and last.
    pub priorities: Priorities,
    /// Maximum wait for something to become ready.
    pub resource_timeout: Duration,
    /// Maximum wait for something to be deleted.
    pub terminating_timeout: Duration,
}

/// Progress of a restore.
#[derive(Debug, Default)]
pub struct Progress {
    total: AtomicU64,
    done: AtomicU64,
    /// Items that are missing because the archive is damaged.
    lost: AtomicU64,
    /// Namespaces that are terminating and that the restore waits for.
    terminating_namespaces: watch::Sender<BTreeSet<String>>,
}

impl Progress {
    /// Number of items to restore.
    pub fn total(&self) -> u64 {
        // Items that actions add are not known in advance.
        self.total.load(Ordering::Relaxed).max(self.restored()) + self.lost()
    }

    /// Number of items that are missing because the archive is damaged.
    fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Number of items that have been processed.
    pub fn restored(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits until the set of terminating namespaces differs from `previous`, and returns it. These namespaces must
    /// be gone before anything is restored into them.
    pub async fn changed_terminating_namespaces(
        &self,
        previous: &BTreeSet<String>,
    ) -> BTreeSet<String> {
        let mut waiting = self.terminating_namespaces.subscribe();
        let now = waiting.wait_for(|now| now != previous).await.map(|now| now.clone());
        match now {
            Ok(now) => now,
            // The sender is gone, so the set cannot change any more.
            Err(_) => std::future::pending().await,
        }
    }

    fn add_terminating_namespace(&self, namespace: &str) {
        self.terminating_namespaces
            .send_if_modified(|waiting| waiting.insert(namespace.to_owned()));
    }

    fn remove_terminating_namespace(&self, namespace: &str) {
        self.terminating_namespaces.send_if_modified(|waiting| waiting.remove(namespace));
    }

    /// Replaces a number of planned items by another.
    fn replan(&self, before: usize, now: usize) {
        self.total.fetch_add(now as u64, Ordering::Relaxed);
        self.total.fetch_sub(before as u64, Ordering::Relaxed);
    }

    fn add_expected(&self, items: usize) {
        self.total.fetch_add(items as u64, Ordering::Relaxed);
    }

    fn add_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    fn add_lost(&self, items: usize) {
        self.lost.fetch_add(items as u64, Ordering::Relaxed);
    }
}

/// Outcome of a restore.
#[derive(Debug)]
pub struct RestoreOutcome {
    /// The reason why the restore could not continue, if so.
    pub fatal: Option<Fatal>,
    /// Warnings and errors.
    pub report: Report,
    /// Result of each item.
    pub resources: ResourceList,
    /// Number of items in `resources`.
    pub items: usize,
    /// Expected number of items, including those that were not reached or that a damaged archive lacks.
    pub total: usize,
    /// Operations that actions started.
    pub operations: Vec<Operation>,
    /// Number of hooks attempted, and number of hooks failed.
    pub hooks: (u64, u64),
    /// Restored volumes.
    pub volumes: Vec<RestoreVolumeInfo>,
}

/// The reason why a restore could not continue.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The archive cannot be downloaded.
    #[error("cannot get the archive of the backup")]
    Download(#[from] DownloadError),
    /// The archive is damaged, and the Restore does not allow damaged archives.
    #[error(
        "the archive of the backup is damaged, so nothing was restored: {}{}; to restore what can be read, \
         use `--allow-damaged-archive`",
        first.join("; "),
        if *more == 0 { String::new() } else { format!("; and {more} more") }
    )]
    Damaged {
        /// The first few defects, enough for a status message.
        first: Vec<String>,
        /// Number of further defects.
        more: usize,
    },
    /// API discovery failed.
    #[error("cannot discover what the cluster serves")]
    Discover(#[source] crate::cluster::Error),
    /// The hooks are invalid.
    #[error("invalid hooks")]
    Hooks(#[from] hook::InvalidHooks),
    /// The run was stopped. Another process can resume it.
    #[error("stopped before it was done")]
    Stopped,
    /// The run was canceled.
    #[error("canceled before all items were restored")]
    Canceled,
}

impl Fatal {
    /// The error and its causes in one line.
    pub fn error_chain(&self) -> String {
        bowline_plugin::error_chain(self)
    }
}

/// Resources that the cluster serves. The set grows when CustomResourceDefinitions are restored.
struct ServedApi {
    resources: Arc<Resources>,
    versions: Versions,
    filter: Filter,
}

/// State shared by all stages.
struct Context {
    /// Handles each item: restores or only plans it.
    visitor: Arc<dyn Visitor>,
    request: Request,
    cluster: Arc<dyn Cluster>,
    contents: Arc<Contents>,
    volumes: Arc<BackupVolumes>,
    /// State of the CSI snapshot actions.
    csi: Arc<CsiRestoreContext>,
    served_api: RwLock<Arc<ServedApi>>,
    actions: Vec<Action<dyn RestoreItemAction>>,
    claimed_items: ClaimedItems,
    rate_limiter: RateLimiter,
    namespaces: NamespaceCache,
    collisions: NamespaceCollisions,
    outcomes: ItemOutcomes,
    volume_outcomes: volume::VolumeOutcomes,
    operations: Mutex<Vec<Operation>>,
    /// None in a dry run.
    item_journal: Option<ItemJournal>,
    /// None in a dry run.
    volume_creator: Option<VolumeCreator>,
    hooks: hook::HookRunner,
    report: Arc<Report>,
    progress: Arc<Progress>,
    options: Options,
    /// When the restore first started, possibly in another process.
    started_at: Timestamp,
    stop: CancellationToken,
    cancel: CancellationToken,
}

impl Context {
    /// True if no new work may start.
    fn has_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits for the answer of a plugin, but only for [`AFTER_CANCEL`] once the run was canceled.
    async fn unless_canceled<T>(
        &self,
        call: impl Future<Output = bowline_plugin::Result<T>>,
    ) -> bowline_plugin::Result<T> {
        let canceled = async {
            self.cancel.cancelled().await;
            tokio::time::sleep(AFTER_CANCEL).await;
        };
        tokio::select! {
            biased;
            answer = call => answer,
            () = canceled => {
                let text = "no answer since the restore was canceled; the plugin may go on";
                Err(bowline_plugin::Error::new(Code::DeadlineExceeded, text))
            }
        }
    }

    fn record_operation(&self, operation: Operation) {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).push(operation);
    }

    fn served_api(&self) -> Arc<ServedApi> {
        Arc::clone(&self.served_api.read().unwrap_or_else(PoisonError::into_inner))
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
    let fatal = fatal.or(is_unfinished.then_some(Fatal::Stopped));
    if fatal.is_some() {
        item_journal::warn_leftover_volumes(&context);
    }
    match Arc::into_inner(context) {
        Some(context) => conclude(context, fatal, hooks, report),
        None => RestoreOutcome::without_items(Fatal::Stopped, unwrap_report(report)),
    }
}

/// Downloads the archive, discovers the API and collects everything else that the stages need.
async fn prepare(run: Run, report: Arc<Report>, now: Timestamp) -> Result<Context, Fatal> {
    let Run { request, cluster, store, actions, options, progress, journal, stop, cancel, .. } =
        run;
    let volume_creator = Some(VolumeCreator::new(run.snapshotters, run.volume_reporter));
    let contents = download::fetch_contents(&store, &request.backup_name, &options.scratch).await?;
    let volumes = Arc::new(download::read_volumes(&store, &request.backup_name).await?);
    let contents = Arc::new(contents);
    let served_api = discover(&*cluster, &request, &report).await?;
    let (resources, namespace) = (&served_api.resources, &options.namespace);
    let built_in = action::restore_item_actions(&cluster, resources, namespace, &request.restore);
    let csi = Arc::new(CsiRestoreContext::new(
        &cluster, resources, &contents, &volumes, &request, &report,
    ));
    let actions = built_in.into_iter().chain(csi::actions(&csi)).chain(actions).collect();
    let visitor = Arc::new(item::Restorer);
    let item_journal = Some(ItemJournal::new(journal, store, &request, &run.recovered));
    let parts = ContextParts {
        visitor,
        request,
        cluster,
        contents,
        volumes,
        csi,
        served_api,
        actions,
        options,
        progress,
        item_journal,
        volume_creator,
        stop: stop.child_token(),
        cancel,
    };
    let context = assemble(parts, report, now).await?;
    item_journal::replay(&context, &run.recovered);
    Ok(context)
}

/// The parts in which a restore and its dry run differ.
struct ContextParts {
    visitor: Arc<dyn Visitor>,
    request: Request,
    cluster: Arc<dyn Cluster>,
    contents: Arc<Contents>,
    volumes: Arc<BackupVolumes>,
    csi: Arc<CsiRestoreContext>,
    served_api: ServedApi,
    actions: Vec<NamedAction<dyn RestoreItemAction>>,
    options: Options,
    progress: Arc<Progress>,
    item_journal: Option<ItemJournal>,
    volume_creator: Option<VolumeCreator>,
    stop: CancellationToken,
    cancel: CancellationToken,
}

/// Compiles the inputs of the stages and reports their errors.
async fn assemble(
    parts: ContextParts,
    report: Arc<Report>,
    now: Timestamp,
) -> Result<Context, Fatal> {
    let ContextParts { request, contents, served_api: world, options, .. } = parts;
    let lost = check_damage(&request, &contents)?;
    parts.progress.add_lost(lost);
    for refusal in &contents.refusals {
        report.error(ReportSubject::Run, format!("in the archive: {refusal}"));
    }
    for warning in request.namespaces(&contents).warnings {
        report.warn(ReportSubject::Run, warning);
    }
    let collisions = match &request.namespace_mapping {
        mapping if mapping.is_empty() => NamespaceCollisions::default(),
        mapping => {
            let mut names = contents.namespaces();
            let own = contents.kind(&GroupResource::new("", "namespaces"));
            names.extend(own.into_iter().flat_map(unpack::Kind::items).map(|(_, name)| name));
            names.sort_unstable();
            names.dedup();
            NamespaceCollisions::new(mapping, &names)
        }
    };
    let hooks = hook::HookRunner::new(&request.restore)?;
    let (named, resources) = (parts.actions, &world.resources);
    let actions =
        selection::resolve_selectors(named, |plugin| plugin.applies_to(), resources, &report).await;
    let started_at =
        request.restore.status.as_ref().and_then(|status| status.start_timestamp.as_ref());
    let started_at = started_at.map_or(now, |began| began.0);
    Ok(Context {
        visitor: parts.visitor,
        request,
        cluster: parts.cluster,
        contents,
        volumes: parts.volumes,
        csi: parts.csi,
        served_api: RwLock::new(Arc::new(world)),
        actions,
        claimed_items: ClaimedItems::default(),
        rate_limiter: RateLimiter::new(options.requests),
        namespaces: NamespaceCache::default(),
        collisions,
        outcomes: ItemOutcomes::default(),
        volume_outcomes: volume::VolumeOutcomes::default(),
        operations: Mutex::default(),
        item_journal: parts.item_journal,
        volume_creator: parts.volume_creator,
        hooks,
        report,
        progress: parts.progress,
        options,
        started_at,
        stop: parts.stop,
        cancel: parts.cancel,
    })
}

/// Maximum number of archive defects shown in the status.
const MAX_DAMAGE_REPORTED: usize = 3;

/// Refuses a damaged archive unless the request allows it. Returns the number of lost items otherwise.
fn check_damage(request: &Request, contents: &Contents) -> Result<usize, Fatal> {
    let damage = &contents.damage;
    if !damage.is_empty() && !request.allow_damaged {
        let first: Vec<String> = damage.iter().take(MAX_DAMAGE_REPORTED).cloned().collect();
        return Err(Fatal::Damaged { more: damage.len() - first.len(), first });
    }
    if contents.broken.is_none() {
        return Ok(contents.lost);
    }
    // The number of items after the point where an archive breaks off is unknown, except for the backup's own count.
    let status = request.backup.status.as_ref();
    let counted = status.and_then(|status| status.progress.as_ref());
    let counted = counted.and_then(|progress| usize::try_from(progress.items_backed_up).ok());
    Ok(contents.lost + counted.unwrap_or(0).saturating_sub(contents.len()).max(1))
}

async fn discover(
    cluster: &dyn Cluster,
    request: &Request,
    report: &Report,
) -> Result<ServedApi, Fatal> {
    let Discovery { resources, failed } = cluster.discover().await.map_err(Fatal::Discover)?;
    for failed in failed {
        report.warn(ReportSubject::Run, format!("the API group {failed}"));
    }
    let served = resources.iter().filter(|resource| !resource.id.resource.contains('/'));
    let versions = Versions::new(served.clone().cloned());
    let resources = Arc::new(Resources::new(served.cloned()));
    let filter = Filter::new(&request.filter, &resources);
    Ok(ServedApi { resources, versions, filter })
}

/// Visits the items of the archive, step by step.
async fn visit_all(context: &Arc<Context>) -> Result<(), Fatal> {
    let mut planned = plan_steps(context, |_| true);
    if planned.is_empty() {
        context.report.warn(ReportSubject::Run, "there are zero items to be restored");
    }
    let count = |planned: &Steps| planned.iter().map(|(_, items)| items.len()).sum();
    context.progress.add_expected(count(&planned));
    while let Some((stage, items)) = planned.pop_front() {
        tracing::debug!(?stage, items = items.len(), "next step");
        visit_step(context, items).await;
        if context.cancel.is_cancelled() {
            return Err(Fatal::Canceled);
        }
        if context.stop.is_cancelled() {
            return Err(Fatal::Stopped);
        }
        if stage == Stage::Definitions && context.outcomes.has_written("CustomResourceDefinition") {
            let Context { cluster, request, report, .. } = &**context;
            let served_api = discover(&**cluster, request, report).await?;
            *context.served_api.write().unwrap_or_else(PoisonError::into_inner) =
                Arc::new(served_api);
            // Short names and singulars of the new kinds can be resolved only now.
            let before = count(&planned);
            planned = plan_steps(context, |step| step.stage != Stage::Definitions);
            context.progress.replan(before, count(&planned));
        }
    }
    Ok(())
}

/// Steps with their items, filtered by kind, namespace and name.
type Steps = VecDeque<(Stage, Vec<ResourceIdentifier>)>;

/// Sorts the kinds of the archive into steps, according to what the cluster serves now.
fn plan_steps(context: &Context, is_open: impl Fn(&Step) -> bool) -> Steps {
    let served_api = context.served_api();
    let kinds = context.contents.kinds().map(|(kind, _)| kind);
    let kinds = kinds.filter(|kind| served_api.filter.kind(kind).is_restore());
    let steps = order::steps(kinds, &context.options.priorities, &served_api.resources);
    let open = steps.iter().filter(|step| is_open(step));
    open.map(|step| items_of(context, &served_api, step)).collect()
}

/// The items of a step, filtered by kind, namespace and name.
fn items_of(context: &Context, world: &ServedApi, step: &Step) -> (Stage, Vec<ResourceIdentifier>) {
    let mut items = Vec::new();
    for kind in &step.kinds {
        let Some(stored) = context.contents.kind(kind) else { continue };
        for (namespace, name) in stored.items() {
            if world.filter.location(kind, namespace, name).is_restore() {
                items.push(ResourceIdentifier {
                    group: kind.group.clone(),
                    resource: kind.resource.clone(),
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                });
            }
        }
    }
    (step.stage, items)
}

/// Visits items concurrently.
async fn visit_step(context: &Arc<Context>, items: Vec<ResourceIdentifier>) {
    let permits = Arc::new(Semaphore::new(context.options.items.max(1)));
    let served_api = context.served_api();
    let mut tasks = JoinSet::new();
    for id in items {
        let Ok(place) = Arc::clone(&permits).acquire_owned().await else { break };
        if context.has_stopped() {
            break;
        }
        let (shared, world) = (Arc::clone(context), Arc::clone(&served_api));
        let task = async move {
            item::visit(&shared, &world, id, VisitReason::Scheduled).await;
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
            .error(ReportSubject::Run, format!("the restore of an item broke off: {error}"));
    }
}

/// Builds the outcome from the results of the stages.
fn conclude(
    context: Context,
    fatal: Option<Fatal>,
    hooks: (u64, u64),
    report: Arc<Report>,
) -> RestoreOutcome {
    let (resources, items) = (context.outcomes.list(), context.outcomes.count());
    let lost = usize::try_from(context.progress.lost()).unwrap_or(usize::MAX);
    let total = match &fatal {
        // The plan is known, the results of the unreached items are not.
        Some(_) => usize::try_from(context.progress.total()).unwrap_or(usize::MAX),
        None => items.saturating_add(lost),
    };
    let operations = context.operations.into_inner().unwrap_or_else(PoisonError::into_inner);
    let volumes = context.volume_outcomes.infos();
    drop(context.report);
    let total = total.max(items);
    RestoreOutcome {
        fatal,
        report: unwrap_report(report),
        resources,
        items,
        total,
        operations,
        hooks,
        volumes,
    }
}

impl RestoreOutcome {
    fn without_items(fatal: Fatal, report: Report) -> Self {
        Self {
            fatal: Some(fatal),
            report,
            resources: ResourceList::default(),
            items: 0,
            total: 0,
            operations: Vec::new(),
            hooks: (0, 0),
            volumes: Vec::new(),
        }
    }
}

/// Operations that an earlier process started.
pub fn operations_before_restart(
    recovered: &Recovered,
    timeout: Duration,
    began: Timestamp,
) -> Vec<Operation> {
    let records = recovered.finished.iter().flat_map(|ended| ended.restore_operations.clone());
    records.filter_map(|one| record::from_restore(one, timeout, began).ok()).collect()
}

/// The report, even if another task still holds a reference to it.
fn unwrap_report(report: Arc<Report>) -> Report {
    Arc::try_unwrap(report).unwrap_or_else(|shared| shared.take_all())
}
