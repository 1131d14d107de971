//! From files in a bucket back to a cluster.
//!
//! [`run`] is the table of contents, mirrored on that of backups: the archive is read once
//! ([`download`], [`unpack`]), its kinds are put into an order ([`order`]), and the items of each step
//! are restored side by side (`item`): filtered, shown to the actions, changed and written
//! (`apply`).
//!
//! | stage | in | out |
//! |---|---|---|
//! | [`request`] | the Restore and what the server looked up | a [`request::Request`], or all that is wrong with it |
//! | [`download`], [`unpack`] | the archive | an index of what is in it, and a file without a name |
//! | [`filter`], [`order`], [`version`] | kinds and places | verdicts, steps, versions |
//! | `item`, [`action`] | one item | what it becomes, after what it needs |
//! | [`reset`], [`modifier`] | its JSON | the same, for its new life |
//! | [`volume`] | a PersistentVolume | the same, with its data behind it |
//! | `apply`, [`difference`] | an object | the object in the cluster |
//! | `collision` | items that come to one place | which of them an object was |
//! | [`hook`] | pods that were created | commands that were run in them |
//! | [`plan`] | all of the above, with nothing written | what would become of each item |
//! | [`finalize`] | all of the above | the files, and the status |

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

/// How long a call of a plugin may still take once the run was canceled.
const AFTER_CANCEL: Duration = Duration::from_secs(10);

/// What a restore needs.
pub struct Run {
    /// What is to be restored.
    pub request: Request,
    /// Into what.
    pub cluster: Arc<dyn Cluster>,
    /// From where.
    pub store: BackupStore,
    /// The RestoreItemActions of plugins, in order. They come after those that are built in.
    pub actions: Vec<NamedAction<dyn RestoreItemAction>>,
    /// The plugins that make volumes from their snapshots.
    pub snapshotters: Arc<dyn Snapshotters>,
    /// Who is told how they make them.
    pub volume_reporter: Arc<dyn VolumeProgressReporter>,
    /// How much at a time.
    pub options: Options,
    /// How far it is, for whoever wants to know.
    pub progress: Arc<Progress>,
    /// Where it notes what must not be forgotten.
    pub journal: Arc<dyn Journal>,
    /// What an earlier process has noted there.
    pub recovered: Recovered,
    /// Ends it early, so that another process can take it up.
    pub stop: CancellationToken,
    /// Ends it for good.
    pub cancel: CancellationToken,
}

/// How much a restore does at a time, and for how long it waits.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests to the API server at a time, at most.
    pub requests: usize,
    /// Items that are worked on at a time, at most.
    pub items: usize,
    /// A folder for files without a name.
    pub scratch: PathBuf,
    /// The namespace of the server, where actions find their settings.
    pub namespace: String,
    /// Which kinds come first and which last.
    pub priorities: Priorities,
    /// How long to wait for something that should become ready.
    pub resource_timeout: Duration,
    /// How long to wait for something that should go away.
    pub terminating_timeout: Duration,
}

/// How far a restore is.
#[derive(Debug, Default)]
pub struct Progress {
    total: AtomicU64,
    done: AtomicU64,
    /// Items that a damaged archive does not give.
    lost: AtomicU64,
    /// Namespaces that are being deleted, and waited for.
    terminating_namespaces: watch::Sender<BTreeSet<String>>,
}

impl Progress {
    /// How many items there are to restore.
    pub fn total(&self) -> u64 {
        // What actions add is not known before.
        self.total.load(Ordering::Relaxed).max(self.restored()) + self.lost()
    }

    /// How many items a damaged archive does not give.
    fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// How many of them are through.
    pub fn restored(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits until other namespaces than before are waited for, and says which. They must be gone before
    /// anything is restored there.
    pub async fn changed_terminating_namespaces(
        &self,
        previous: &BTreeSet<String>,
    ) -> BTreeSet<String> {
        let mut waiting = self.terminating_namespaces.subscribe();
        let now = waiting.wait_for(|now| now != previous).await.map(|now| now.clone());
        match now {
            Ok(now) => now,
            // Nobody is left who could say it.
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

    /// Plans other items instead of some that were planned.
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

/// What a restore came to.
#[derive(Debug)]
pub struct RestoreOutcome {
    /// Why it could not go on, if it could not.
    pub fatal: Option<Fatal>,
    /// What went wrong.
    pub report: Report,
    /// What became of each item.
    pub resources: ResourceList,
    /// How many items that are.
    pub items: usize,
    /// How many there should be: those that were not reached, or that a damaged archive does not give, too.
    pub total: usize,
    /// Operations that actions began.
    pub operations: Vec<Operation>,
    /// How many hooks were run, and how many of them failed.
    pub hooks: (u64, u64),
    /// The volumes that were restored.
    pub volumes: Vec<RestoreVolumeInfo>,
}

/// Why a restore could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The archive cannot be had.
    #[error("cannot get the archive of the backup")]
    Download(#[from] DownloadError),
    /// The archive is damaged, and nobody said that it is to be restored all the same.
    #[error(
        "the archive of the backup is damaged, so nothing was restored: {}{}; to restore what can be read, \
         use `--allow-damaged-archive`",
        first.join("; "),
        if *more == 0 { String::new() } else { format!("; and {more} more") }
    )]
    Damaged {
        /// What is wrong with it, as far as a person wants to read it.
        first: Vec<String>,
        /// How much more that is.
        more: usize,
    },
    /// The API server did not say what it serves.
    #[error("cannot discover what the cluster serves")]
    Discover(#[source] crate::cluster::Error),
    /// The hooks cannot be used.
    #[error("invalid hooks: {}", .0.join("; "))]
    Hooks(Vec<String>),
    /// It was told to stop. Another process can take it up.
    #[error("stopped before it was done")]
    Stopped,
    /// It was cancelled.
    #[error("canceled before all items were restored")]
    Canceled,
}

impl Fatal {
    /// What happened and why, in one line.
    pub fn error_chain(&self) -> String {
        bowline_plugin::error_chain(self)
    }
}

/// What the cluster serves, which grows when definitions are restored.
struct ServedApi {
    resources: Arc<Resources>,
    versions: Versions,
    filter: Filter,
}

/// Everything that the stages share.
struct Context {
    /// What is done with each item.
    visitor: Arc<dyn Visitor>,
    request: Request,
    cluster: Arc<dyn Cluster>,
    contents: Arc<Contents>,
    volumes: Arc<BackupVolumes>,
    /// What is known of the snapshots of CSI drivers.
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
    /// When the restore first started, maybe in another process.
    started_at: Timestamp,
    stop: CancellationToken,
    cancel: CancellationToken,
}

impl Context {
    /// Whether nothing new is to be begun.
    fn has_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits for the answer of a plugin; not for long once the run was canceled.
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

    /// Notes an operation.
    fn record_operation(&self, operation: Operation) {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).push(operation);
    }

    fn served_api(&self) -> Arc<ServedApi> {
        Arc::clone(&self.served_api.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Restores what a request asks for.
///
/// It may be run again after a process died in the middle: what this restore has created is
/// recognised and left as it is.
pub async fn run(run: Run, now: Timestamp) -> RestoreOutcome {
    let report = Arc::new(Report::default());
    let timeout = run.request.timeouts.item_operation;
    let earlier_operations = operations_before_restart(&run.recovered, timeout, now);
    let leftover_volumes = leftover_volumes(&run.recovered);
    let context = match Box::pin(prepare(run, Arc::clone(&report), now)).await {
        Ok(context) => Arc::new(context),
        // What an earlier process has begun goes on all the same.
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
    // What is cancelled is stopped as well.
    let canceled = async {
        context.cancel.cancelled().await;
        context.stop.cancel();
        std::future::pending().await
    };
    let visiting = async {
        let visited = visit_all(&context).await;
        // Hooks may wait for their pods long after all items are through.
        (visited.err(), context.hooks.finish().await)
    };
    let (fatal, hooks) = tokio::select! {
        visited = visiting => visited,
        never = canceled => never,
    };
    // Hooks that were given up are run by the process that goes on.
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

/// Fetches and asks for whatever the stages need.
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

/// What differs between a restore and its dry run.
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

/// Compiles whatever the stages need, and tells what is wrong with it.
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
    let hooks = hook::HookRunner::new(&request.restore).map_err(Fatal::Hooks)?;
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

/// How much of the damage of an archive a status tells.
const MAX_DAMAGE_REPORTED: usize = 3;

/// Refuses a damaged archive, unless it is to be restored all the same. Returns how many items are lost then.
fn check_damage(request: &Request, contents: &Contents) -> Result<usize, Fatal> {
    let damage = &contents.damage;
    if !damage.is_empty() && !request.allow_damaged {
        let first: Vec<String> = damage.iter().take(MAX_DAMAGE_REPORTED).cloned().collect();
        return Err(Fatal::Damaged { more: damage.len() - first.len(), first });
    }
    if contents.broken.is_none() {
        return Ok(contents.lost);
    }
    // Of an archive that breaks off nobody knows what comes after, but for what the backup counted.
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

/// Visits the archive, step by step.
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
            // Only now it is known which kinds are meant by short names and singulars.
            let before = count(&planned);
            planned = plan_steps(context, |step| step.stage != Stage::Definitions);
            context.progress.replan(before, count(&planned));
        }
    }
    Ok(())
}

/// Steps with their items, as far as their place tells.
type Steps = VecDeque<(Stage, Vec<ResourceIdentifier>)>;

/// Puts the kinds of the archive into steps, by what the cluster serves now.
fn plan_steps(context: &Context, is_open: impl Fn(&Step) -> bool) -> Steps {
    let served_api = context.served_api();
    let kinds = context.contents.kinds().map(|(kind, _)| kind);
    let kinds = kinds.filter(|kind| served_api.filter.kind(kind).is_restore());
    let steps = order::steps(kinds, &context.options.priorities, &served_api.resources);
    let open = steps.iter().filter(|step| is_open(step));
    open.map(|step| items_of(context, &served_api, step)).collect()
}

/// The items of a step, as far as their place tells.
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

/// Visits items side by side.
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

/// Draws the conclusions from what the stages noted.
fn conclude(
    context: Context,
    fatal: Option<Fatal>,
    hooks: (u64, u64),
    report: Arc<Report>,
) -> RestoreOutcome {
    let (resources, items) = (context.outcomes.list(), context.outcomes.count());
    let lost = usize::try_from(context.progress.lost()).unwrap_or(usize::MAX);
    let total = match &fatal {
        // What was planned is known, and not what became of it.
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

/// The operations that an earlier process has begun.
pub fn operations_before_restart(
    recovered: &Recovered,
    timeout: Duration,
    began: Timestamp,
) -> Vec<Operation> {
    let records = recovered.finished.iter().flat_map(|ended| ended.restore_operations.clone());
    records.filter_map(|one| record::from_restore(one, timeout, began).ok()).collect()
}

/// The report, whether or not somebody else still holds it.
fn unwrap_report(report: Arc<Report>) -> Report {
    Arc::try_unwrap(report).unwrap_or_else(|shared| shared.take_all())
}
