//! From a Backup resource to files in a bucket.
//!
//! [`run`] is the table of contents: one stage after the other, a file for each. Items come from
//! `collect` or, where they belong together, from `block`; both hand them to `item`, which
//! shows them to the actions and puts them into the [`archive`]. That one is uploaded while it is
//! written. At the end [`finalize`] writes the other files and says what the status is.
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
//! | [`archive`], [`upload`] | stored objects | the tar in the bucket |
//! | [`finalize`] | all of the above | the other files, and the status |

pub mod archive;
mod block;
mod collect;
pub mod csi;
mod discover;
pub mod filter;
pub mod finalize;
pub mod hook;
mod inventory;
mod item;
mod note;
pub mod policy;
pub mod replace;
pub mod request;
mod seen;
pub mod snapshot;
mod spool;
pub mod upload;
pub mod volume;

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bowline_plugin::{BackupItemAction, ItemBlockAction, ResourceIdentifier};
use bowline_store::BackupStore;
use bowline_store::file::{BackupVolumeInfo, CsiVolumeSnapshotClasses, FreezeWindow, Snapshot};
use futures::StreamExt as _;
use futures::future::join;
use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::action::{self, BuiltIn, Named};
use crate::cluster::{Cluster, Query};
use crate::item::Object;
use crate::journal::{Journal, Recovered};
use crate::operation::Operation;
use crate::operation::record::Of;
use crate::point::{self, Point};
use crate::report::{About, Message, Report};
use crate::resource::{GroupResource, Resource, Resources};
use crate::selection::{self, Action};
use crate::snapshotter::Snapshotters;
use archive::{Archive, Sealed};
pub use block::{ThawError, thaw_left};
use collect::Turn;
use filter::{CrdRule, Filter, Verdict};
use hook::{Hooks, Tally};
pub use inventory::Inventory;
use item::{How, Namespaces, Sink};
use request::Request;
use seen::Seen;
use spool::Spool;
use upload::UploadError;
use volume::{Snapshotted, Volumes, Wishes};

/// How many bytes of objects may be in flight.
const IN_FLIGHT: usize = 16 << 20;
/// How many definitions of custom resources are asked for at a time.
const CRDS_AT_ONCE: usize = 8;

/// What a run needs.
pub struct Run {
    /// What is to be backed up.
    pub request: Request,
    /// From where.
    pub cluster: Arc<dyn Cluster>,
    /// Into what.
    pub store: BackupStore,
    /// The BackupItemActions of plugins, in order. They come after those that are built in.
    pub backup_item_actions: Vec<Named<dyn BackupItemAction>>,
    /// The ItemBlockActions of plugins, in order.
    pub item_block_actions: Vec<Named<dyn ItemBlockAction>>,
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
}

/// How far a run is.
#[derive(Debug, Default)]
pub struct Progress {
    found: AtomicU64,
    done: AtomicU64,
}

impl Progress {
    /// How many items have been found so far.
    pub fn total(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// How many of them are through.
    pub fn backed_up(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn found(&self) {
        self.found.fetch_add(1, Ordering::Relaxed);
    }

    fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

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
}

/// Why a run could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// There is a backup of that name in the bucket.
    #[error("backup already exists in object storage: delete it first, or choose another name")]
    Exists,
    /// The bucket did not say whether there is.
    #[error("cannot look into the bucket")]
    Look(#[source] bowline_store::Error),
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
    GivenUp(String),
    /// It was told to stop. Another process can take it up.
    #[error("stopped before it was done")]
    Stopped,
    /// It was cancelled.
    #[error("canceled before all items were backed up")]
    Canceled,
}

impl Fatal {
    /// What happened and why, in one line.
    pub fn told(&self) -> String {
        bowline_plugin::one_line(self)
    }
}

/// Backs up what a request asks for.
///
/// # Guarantees
/// - Failures of items are in the report; the run itself fails only where it cannot go on.
/// - The archive is in the bucket whole, or not at all.
/// - Post-hooks of pods whose pre-hooks were started have run when this returns, so it must not be
///   dropped: use [`Run::stop`].
pub async fn run(run: Run, now: Timestamp) -> Taken {
    let report = Arc::new(Report::default());
    let progress = Arc::clone(&run.progress);
    let timeout = run.request.item_operation_timeout();
    let begun = begun_before(&run.recovery.recovered, timeout, now);
    let snapshots = taken_before(&run.recovery.recovered);
    let recovered = run.recovery.recovered.clone();
    let context = match Box::pin(prepare(run, Arc::clone(&report), now)).await {
        Ok(context) => context,
        // What an earlier process has begun goes on all the same.
        Err(fatal) => {
            note::tell_left(&report, &recovered);
            let nothing = Taken::nothing(fatal, own(report), &progress);
            let (csi_snapshots, csi_left) = begun_by_csi_before(&recovered);
            return Taken { operations: begun, snapshots, csi_snapshots, csi_left, ..nothing };
        }
    };
    // It is large, and there is one of it.
    let archive = Box::pin(take(&context)).await;
    Box::pin(end(context, archive, report, &progress)).await
}

/// Everything that the stages share.
struct Context {
    request: Request,
    cluster: Arc<dyn Cluster>,
    store: BackupStore,
    resources: Arc<Resources>,
    filter: Filter,
    hooks: Hooks,
    hook_tally: Tally,
    backup_item_actions: Vec<Action<dyn BackupItemAction>>,
    /// How many of them are built in; they come first.
    built_in_item_actions: usize,
    item_block_actions: Vec<Action<dyn ItemBlockAction>>,
    /// How many of them are built in; they come first.
    built_in_block_actions: usize,
    /// Whoever holds it shows an item to an action for the second time.
    second_try: tokio::sync::Mutex<()>,
    seen: Seen,
    namespaces: Namespaces,
    inventory: Inventory,
    volumes: Volumes,
    snapshots: snapshot::Locations,
    csi: csi::Csi,
    operations: Mutex<Vec<Operation>>,
    journal: Arc<dyn Journal>,
    recovery: Recovery,
    /// The number of the next block that is noted.
    blocks: AtomicU64,
    /// Whether something could not be noted.
    is_without_notes: AtomicBool,
    spool: Spool,
    budget: Arc<Semaphore>,
    report: Arc<Report>,
    progress: Arc<Progress>,
    options: Options,
    started: Timestamp,
    stop: CancellationToken,
    cancel: CancellationToken,
    is_broken: AtomicBool,
}

impl Context {
    /// Whether nothing new is to be begun.
    fn has_stopped(&self) -> bool {
        self.is_over() || self.stop.is_cancelled()
    }

    /// Whether what is under way is to be broken off.
    fn is_over(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed) || self.cancel.is_cancelled()
    }

    /// Whether an item is shown to an action that may begin an operation.
    fn may_begin_operations(&self, object: &Object) -> bool {
        let actions = &self.backup_item_actions;
        actions.iter().any(|action| action.begins_operations && action.selects(object))
    }

    /// Notes an operation.
    fn begun(&self, operation: Operation) {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).push(operation);
    }

    /// Notes what an earlier process has made of a volume.
    fn replayed(&self, volume: &str, outcome: Snapshotted) {
        self.snapshots.claim(volume);
        self.volumes.note_snapshotted(volume, outcome);
    }

    /// What the request says about volumes.
    fn wishes(&self) -> Wishes<'_> {
        let claims = self.resources.core("persistentvolumeclaims");
        let includes = |kind: &Arc<Resource>| matches!(self.filter.kind(kind), Verdict::Include);
        Wishes {
            snapshot_volumes: self.request.snapshot_volumes,
            default_volumes_to_fs_backup: self.request.default_volumes_to_fs_backup,
            policies: self.request.policies.as_ref(),
            has_snapshot_locations: !self.request.snapshot_locations.is_empty(),
            includes_claims: claims.is_some_and(includes),
        }
    }

    /// The archive takes no more.
    fn stop(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    /// The resource that an identifier speaks of, and the identifier as we spell it.
    fn resolve(&self, id: &ResourceIdentifier) -> Option<(Arc<Resource>, ResourceIdentifier)> {
        let exact = self.resources.find(&GroupResource::new(&id.group, &id.resource));
        // Actions may spell it as users do.
        let found = exact.or_else(|| match id.group.as_str() {
            "" => self.resources.resolve(&id.resource),
            group => self.resources.resolve(&format!("{}.{group}", id.resource)),
        });
        let resource = Arc::clone(found?);
        let GroupResource { group, resource: plural } = resource.id.clone();
        let namespace = if resource.is_namespaced { id.namespace.clone() } else { String::new() };
        let id = ResourceIdentifier { group, resource: plural, namespace, name: id.name.clone() };
        Some((resource, id))
    }

    /// The backup item actions of plugins.
    fn own_item_actions(&self) -> impl Iterator<Item = &Action<dyn BackupItemAction>> {
        self.backup_item_actions.iter().skip(self.built_in_item_actions)
    }

    /// The item block actions of plugins.
    fn own_block_actions(&self) -> impl Iterator<Item = &Action<dyn ItemBlockAction>> {
        self.item_block_actions.iter().skip(self.built_in_block_actions)
    }
}

/// Looks, asks and compiles whatever the stages need.
async fn prepare(run: Run, report: Arc<Report>, now: Timestamp) -> Result<Arc<Context>, Fatal> {
    if run.store.exists(&run.request.name).await.map_err(Fatal::Look)? {
        return Err(Fatal::Exists);
    }
    assemble(run, report, now).await
}

async fn assemble(run: Run, report: Arc<Report>, now: Timestamp) -> Result<Arc<Context>, Fatal> {
    let Run { request, cluster, store, options, progress, stop, cancel, journal, recovery, .. } =
        run;
    let spool = Spool::create(&options.scratch).map_err(Fatal::Scratch)?;
    let (errors, warnings) = recovery.report.messages();
    report.take_over(errors, warnings);
    for text in &request.errors {
        report.error(About::Run, text.clone());
    }
    for text in &request.warnings {
        report.warning(About::Run, text.clone());
    }
    let discovery = cluster.discover().await.map_err(Fatal::Discover)?;
    discover::tell_failed(&discovery, &report);
    let resources = Arc::new(discover::resources(&discovery));
    let filter = Filter::new(&request.filter, &resources);
    for text in filter.warnings() {
        report.warning(About::Run, text.clone());
    }
    let hooks = Hooks::new(&request.hooks, &resources).map_err(Fatal::Hooks)?;

    let only = match filter.namespaces() {
        filter::Scope::All => Vec::new(),
        filter::Scope::Only(namespaces) => namespaces,
    };
    let key = &request.volume_group_label_key;
    let BuiltIn { backup_item_actions: mut named, item_block_actions: mut named_block } =
        action::built_in(&cluster, &resources, only, key);
    let csi = csi::Csi::default();
    named.extend(csi::built_in(&csi.taken));
    let (built_in_item_actions, built_in_block_actions) = (named.len(), named_block.len());
    for action in run.backup_item_actions {
        if named.iter().any(|built_in| built_in.name == action.name) {
            let text =
                format!("the action {} of a plugin takes no part: it is built in", action.name);
            report.warning(About::Run, text);
        } else {
            named.push(action);
        }
    }
    let backup_item_actions =
        selection::ask(named, |plugin| plugin.applies_to(), &resources, &report).await;
    named_block.extend(run.item_block_actions);
    let item_block_actions =
        selection::ask(named_block, |plugin| plugin.applies_to(), &resources, &report).await;

    let snapshots = snapshot::Locations::new(run.snapshotters, &request.snapshot_locations);
    Ok(Arc::new(Context {
        request,
        cluster,
        store,
        resources,
        filter,
        hooks,
        hook_tally: Tally::default(),
        backup_item_actions,
        built_in_item_actions,
        item_block_actions,
        built_in_block_actions,
        second_try: tokio::sync::Mutex::default(),
        seen: Seen::default(),
        namespaces: Namespaces::default(),
        inventory: Inventory::default(),
        volumes: Volumes::default(),
        snapshots,
        csi,
        operations: Mutex::default(),
        journal,
        blocks: AtomicU64::new(recovery.recovered.next_block),
        is_without_notes: AtomicBool::new(false),
        recovery,
        spool,
        budget: collect::budget(),
        report,
        progress,
        options,
        started: now,
        stop,
        cancel,
        is_broken: AtomicBool::new(false),
    }))
}

/// Fills the archive and uploads it meanwhile.
async fn take(context: &Arc<Context>) -> Result<Sealed, Fatal> {
    let (archive, stream, writing) = archive::start(context.started).map_err(Fatal::Archive)?;
    let Context { store, request, options, .. } = &**context;
    let uploaded = upload::contents(store, &request.name, stream, &options.scratch);
    let (filled, uploaded) = join(fill(context, archive), uploaded).await;
    if uploaded.is_ok() {
        point::pass(Point::ArchiveUploaded);
    }
    let sealed = writing.end().await;
    filled?;
    uploaded?;
    sealed.map_err(Fatal::Archive)
}

/// Puts everything into the archive. If that fails, the archive breaks off, and the upload with it.
async fn fill(context: &Arc<Context>, archive: Archive) -> Result<(), Fatal> {
    let filled = collect_all(context, &archive).await;
    if filled.is_err() {
        archive.break_off().await;
    }
    filled
}

async fn collect_all(context: &Arc<Context>, archive: &Archive) -> Result<(), Fatal> {
    note::replay(context, &context.recovery, archive).await;
    let namespaces = namespaces(context).await?;
    let listings = collect::plan(context, namespaces.len());
    let of = |turn| listings.iter().filter(|listing| listing.turn == turn).cloned().collect();
    let connections = Arc::new(Semaphore::new(context.options.connections));
    let blocks = async {
        let held = collect::items(context, of(Turn::First), archive, &connections).await;
        let (of_blocks, others) = held.into_iter().partition(|held| held.is_of_block);
        block::process(context, of_blocks, archive).await;
        collect::release(context, others, archive).await;
        let held = collect::items(context, of(Turn::Last), archive, &connections).await;
        debug_assert!(held.is_empty(), "what may be held is listed first");
    };
    let rest = async {
        let held = collect::items(context, of(Turn::Any), archive, &connections).await;
        debug_assert!(held.is_empty(), "what may be held is listed first");
    };
    join(blocks, rest).await;
    let sink = Sink::archive(archive);
    back_up_namespaces(context, namespaces, &sink).await;
    back_up_definitions(context, &sink).await;
    if context.cancel.is_cancelled() {
        return Err(Fatal::Canceled);
    }
    if context.stop.is_cancelled() {
        return Err(Fatal::Stopped);
    }
    // Another cluster may have stored one of the same name meanwhile. What is left of that race is the
    // moment until the archive is there; the commit record cannot be taken over.
    match context.store.exists(&context.request.name).await {
        Ok(true) => Err(Fatal::Exists),
        Ok(false) => Ok(()),
        Err(error) => Err(Fatal::Look(error)),
    }
}

/// All namespaces, which are few.
async fn namespaces(context: &Context) -> Result<Vec<Object>, Fatal> {
    let Some(resource) = context.resources.core("namespaces") else { return Ok(Vec::new()) };
    let mut listed = context.cluster.list(resource, Query::default());
    let mut namespaces = Vec::new();
    while let Some(namespace) = listed.next().await {
        namespaces.push(namespace.map_err(Fatal::Namespaces)?);
    }
    Ok(namespaces)
}

/// Stores the namespaces that were chosen, and those that something was found in.
async fn back_up_namespaces(context: &Context, namespaces: Vec<Object>, sink: &Sink<'_>) {
    #[derive(Deserialize)]
    struct Namespace {
        #[serde(default)]
        status: Status,
    }
    #[derive(Default, Deserialize)]
    struct Status {
        #[serde(default)]
        phase: String,
    }
    let Some(resource) = context.resources.core("namespaces") else { return };
    if matches!(context.filter.kind(resource), Verdict::Skip(_)) {
        return;
    }
    let listed: HashSet<String> =
        namespaces.iter().map(|namespace| namespace.name.clone()).collect();
    for namespace in namespaces {
        let read = namespace.item.parse::<Namespace>();
        let is_active = read.is_ok_and(|namespace| namespace.status.phase == "Active");
        let kept = context.filter.keeps_namespace_object(
            &namespace.name,
            &namespace.labels,
            is_active,
            &context.request.selectors,
        );
        if matches!(kept, Verdict::Include) || context.namespaces.has(&namespace.name) {
            let how = How { is_wanted: true, ..How::default() };
            item::visit(context, namespace, how, sink).await;
        }
    }
    // Namespaces that have been created since the list.
    for name in context.namespaces.touched() {
        if listed.contains(&name) || context.has_stopped() {
            continue;
        }
        match context.cluster.get(resource, "", &name).await {
            Ok(Some(namespace)) => {
                let how = How { is_wanted: true, ..How::default() };
                item::visit(context, namespace, how, sink).await;
            }
            // It went as it came.
            Ok(None) => {}
            Err(error) => context.report.error(
                About::Run,
                format!("the namespace {name} itself is not in the backup: {error}"),
            ),
        }
    }
}

/// Stores the definitions of the custom resources that were stored, unless the request says what
/// to do with definitions.
async fn back_up_definitions(context: &Context, sink: &Sink<'_>) {
    if context.filter.wants_crds() != CrdRule::OfStored {
        return;
    }
    let id = GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions");
    let Some(definitions) = context.resources.find(&id) else { return };
    let stored = context.inventory.resources();
    futures::stream::iter(stored)
        // The core group has none.
        .filter(|stored| std::future::ready(!stored.group.is_empty()))
        .for_each_concurrent(CRDS_AT_ONCE, async |stored| {
            let name = stored.to_string();
            match context.cluster.get(definitions, "", &name).await {
                Ok(Some(definition)) => {
                    let how = How { is_wanted: true, ..How::default() };
                    item::visit(context, definition, how, sink).await;
                }
                // Kinds that are built into the API server have no definition.
                Ok(None) => {}
                Err(error) => context.report.error(
                    About::Run,
                    format!("the definition of {name} is not in the backup: {error}"),
                ),
            }
        })
        .await;
}

/// Draws the conclusions, and takes away the snapshots that nothing in the backup leads to.
async fn end(
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
    let found = context.progress.total();
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
    }
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

    fn nothing(fatal: Fatal, report: Report, progress: &Progress) -> Self {
        Self {
            archive: Err(fatal),
            report,
            resources: Inventory::default(),
            found: progress.total(),
            volumes: Vec::new(),
            snapshots: Vec::new(),
            csi_snapshots: Vec::new(),
            csi_left: Vec::new(),
            csi_classes: CsiVolumeSnapshotClasses::default(),
            operations: Vec::new(),
            hooks: (0, 0),
            freezes: Vec::new(),
        }
    }
}

/// The operations that an earlier process has begun.
fn begun_before(recovered: &Recovered, timeout: Duration, began: Timestamp) -> Vec<Operation> {
    let blocks = recovered.finished.iter();
    blocks.flat_map(|ended| note::begun_in(ended, timeout, began)).flatten().collect()
}

/// The snapshots that an earlier process has taken.
fn taken_before(recovered: &Recovered) -> Vec<Snapshot> {
    recovered.finished.iter().flat_map(|ended| ended.snapshots.clone()).collect()
}

/// The CSI snapshots that an earlier process has taken, and those that it may have.
fn begun_by_csi_before(recovered: &Recovered) -> (Vec<csi::Record>, Vec<csi::Target>) {
    let taken = recovered.finished.iter().flat_map(|ended| ended.csi_snapshots.clone());
    let intents = recovered.unfinished.iter().flat_map(|begun| &begun.intents);
    let left = intents.filter_map(|intent| intent.csi.as_ref()).map(Into::into);
    (taken.collect(), left.collect())
}

/// The report, whether or not somebody else still holds it.
fn own(report: Arc<Report>) -> Report {
    Arc::try_unwrap(report).unwrap_or_else(|shared| shared.take())
}
