//! What the stages of a run share, and how it comes together.
//!
//! What is the same for all items is asked for once, before the first of them: what the cluster serves,
//! what the filter and the hooks mean by that, and what each action selects. So a request that cannot be
//! served fails while nothing has been begun.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bowline_plugin::{BackupItemAction, Code, ItemBlockAction, ResourceIdentifier};
use bowline_store::BackupStore;
use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::filter::{self, Filter, FilterVerdict};
use super::hook::{Hooks, Tally};
use super::inventory::Inventory;
use super::item::Namespaces;
use super::name_check::{CHECK_FRESH, CHECK_RESUMED, NameAvailability, check_name};
use super::request::Request;
use super::spool::Spool;
use super::visited_items::VisitedItems;
use super::volume::{SnapshotOutcome, VolumeOptions, Volumes};
use super::{
    CANCEL_GRACE, Fatal, Options, Progress, Recovery, Run, canceled_for, collect, credentials, csi,
    discover, snapshot,
};
use crate::action::{self, BuiltIn, Mounts};
use crate::cluster::Cluster;
use crate::item::Object;
use crate::journal::Journal;
use crate::operation::Operation;
use crate::report::{Report, ReportSubject};
use crate::resource::{GroupResource, Resource, Resources};
use crate::selection::{self, Action};

/// Everything that the stages share.
pub(super) struct Context {
    pub(super) request: Request,
    pub(super) cluster: Arc<dyn Cluster>,
    pub(super) store: BackupStore,
    pub(super) resources: Arc<Resources>,
    pub(super) filter: Filter,
    pub(super) credentials: credentials::ExcludedCredentials,
    pub(super) hooks: Hooks,
    pub(super) hook_tally: Tally,
    pub(super) backup_item_actions: Vec<Action<dyn BackupItemAction>>,
    /// How many of them are built in; they come first.
    pub(super) built_in_item_actions: usize,
    pub(super) item_block_actions: Vec<Action<dyn ItemBlockAction>>,
    /// How many of them are built in; they come first.
    pub(super) built_in_block_actions: usize,
    /// Whoever holds it shows an item to an action for the second time.
    pub(super) retry_lock: tokio::sync::Mutex<()>,
    pub(super) visited: VisitedItems,
    pub(super) namespaces: Namespaces,
    pub(super) inventory: Inventory,
    pub(super) volumes: Volumes,
    pub(super) mounts: Arc<Mounts>,
    pub(super) snapshots: snapshot::Locations,
    pub(super) csi: csi::Csi,
    pub(super) operations: Mutex<Vec<Operation>>,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) recovery: Recovery,
    /// The number of the next block that is noted.
    pub(super) next_block_number: AtomicU64,
    /// Whether something could not be noted.
    pub(super) journal_unavailable: AtomicBool,
    /// Whether a pod may be frozen still, though its block is over.
    pub(super) may_leave_frozen: AtomicBool,
    pub(super) spool: Spool,
    pub(super) budget: Arc<Semaphore>,
    pub(super) report: Arc<Report>,
    pub(super) progress: Arc<Progress>,
    pub(super) options: Options,
    pub(super) started: Timestamp,
    pub(super) stop: CancellationToken,
    pub(super) cancel: CancellationToken,
    archive_failed: AtomicBool,
}

impl Context {
    /// Whether nothing new is to be begun.
    pub(super) fn has_stopped(&self) -> bool {
        self.is_aborted() || self.stop.is_cancelled()
    }

    /// Whether what is under way is to be broken off.
    pub(super) fn is_aborted(&self) -> bool {
        self.archive_failed.load(Ordering::Relaxed) || self.cancel.is_cancelled()
    }

    /// Waits for the answer of a plugin; not for long once the run was canceled.
    pub(super) async fn unless_canceled<T>(
        &self,
        call: impl Future<Output = bowline_plugin::Result<T>>,
    ) -> bowline_plugin::Result<T> {
        tokio::select! {
            biased;
            answer = call => answer,
            () = canceled_for(&self.cancel, CANCEL_GRACE) => {
                let text = "no answer since the backup was canceled; the plugin may go on";
                Err(bowline_plugin::Error::new(Code::DeadlineExceeded, text))
            }
        }
    }

    /// Whether an item is shown to an action that may begin an operation.
    pub(super) fn may_begin_operations(&self, object: &Object) -> bool {
        let actions = &self.backup_item_actions;
        actions.iter().any(|action| action.begins_operations && action.selects(object))
    }

    /// Notes an operation.
    pub(super) fn record_operation(&self, operation: Operation) {
        self.progress.snapshots.record_operation(&operation);
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).push(operation);
    }

    /// Notes what an earlier process has made of a volume.
    pub(super) fn record_replayed_volume(&self, volume: &str, outcome: SnapshotOutcome) {
        self.snapshots.claim_volume(volume);
        self.volumes.record_snapshot(volume, outcome);
    }

    /// What the request says about volumes.
    pub(super) fn volume_options(&self) -> VolumeOptions<'_> {
        let claims = self.resources.core("persistentvolumeclaims");
        let includes =
            |kind: &Arc<Resource>| matches!(self.filter.kind(kind), FilterVerdict::Include);
        VolumeOptions {
            snapshot_volumes: self.request.snapshot_volumes,
            default_volumes_to_fs_backup: self.request.default_volumes_to_fs_backup,
            policies: self.request.policies.as_ref(),
            has_snapshot_locations: !self.request.snapshot_locations.is_empty(),
            includes_claims: claims.is_some_and(includes),
        }
    }

    /// The archive takes no more.
    pub(super) fn mark_archive_failed(&self) {
        self.archive_failed.store(true, Ordering::Relaxed);
    }

    /// The resource that an identifier speaks of, and the identifier as we spell it.
    pub(super) fn resolve(
        &self,
        id: &ResourceIdentifier,
    ) -> Option<(Arc<Resource>, ResourceIdentifier)> {
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
    pub(super) fn plugin_item_actions(
        &self,
    ) -> impl Iterator<Item = &Action<dyn BackupItemAction>> {
        self.backup_item_actions.iter().skip(self.built_in_item_actions)
    }

    /// The item block actions of plugins.
    pub(super) fn plugin_block_actions(
        &self,
    ) -> impl Iterator<Item = &Action<dyn ItemBlockAction>> {
        self.item_block_actions.iter().skip(self.built_in_block_actions)
    }
}

/// Looks, asks and compiles whatever the stages need.
pub(super) async fn prepare(
    run: Run,
    report: Arc<Report>,
    now: Timestamp,
) -> Result<Arc<Context>, Fatal> {
    // An earlier process may have taken something, also one that has left in good order.
    let has_started = run.recovery.recovered.next_block > 0;
    let retry_window = if has_started { CHECK_RESUMED } else { CHECK_FRESH };
    match check_name(&run.store, &run.request.name, retry_window, &run.stop, &run.cancel).await {
        NameAvailability::Free => {}
        NameAvailability::Taken => return Err(Fatal::Exists),
        NameAvailability::Unknown(_) if run.stop.is_cancelled() => return Err(Fatal::Stopped),
        // Also if it was cancelled: what lies there may be of another.
        NameAvailability::Unknown(error) => return Err(Fatal::ReadBucket(error)),
    }
    assemble(run, report, now).await
}

pub(super) async fn assemble(
    run: Run,
    report: Arc<Report>,
    now: Timestamp,
) -> Result<Arc<Context>, Fatal> {
    let Run { request, cluster, store, options, progress, stop, cancel, journal, recovery, .. } =
        run;
    let spool = Spool::create(&options.scratch).map_err(Fatal::Scratch)?;
    let (errors, warnings) = recovery.report.messages();
    report.append(errors, warnings);
    for text in &request.errors {
        report.error(ReportSubject::Run, text.clone());
    }
    for text in &request.warnings {
        report.warn(ReportSubject::Run, text.clone());
    }
    let discovery = cluster.discover().await.map_err(Fatal::Discover)?;
    discover::report_failed_groups(&discovery, &report);
    let resources = Arc::new(discover::resources(&discovery));
    let filter = Filter::new(&request.filter, &resources);
    for text in filter.warnings() {
        report.warn(ReportSubject::Run, text.clone());
    }
    let hooks = Hooks::new(&request.hooks, &resources).map_err(Fatal::Hooks)?;

    let limited_namespaces = match filter.namespaces() {
        filter::Scope::All => Vec::new(),
        filter::Scope::Only(namespaces) => namespaces,
    };
    let key = &request.volume_group_label_key;
    let BuiltIn { backup_item_actions: mut named, item_block_actions: mut named_block, mounts } =
        action::built_in(&cluster, &resources, limited_namespaces, key);
    let csi = csi::Csi::default();
    named.extend(csi::built_in(&csi.completed));
    let (built_in_item_actions, built_in_block_actions) = (named.len(), named_block.len());
    for action in run.backup_item_actions {
        if named.iter().any(|built_in| built_in.name == action.name) {
            let text =
                format!("the action {} of a plugin takes no part: it is built in", action.name);
            report.warn(ReportSubject::Run, text);
        } else {
            named.push(action);
        }
    }
    let backup_item_actions =
        selection::resolve_selectors(named, |plugin| plugin.applies_to(), &resources, &report)
            .await;
    named_block.extend(run.item_block_actions);
    let item_block_actions = selection::resolve_selectors(
        named_block,
        |plugin| plugin.applies_to(),
        &resources,
        &report,
    )
    .await;

    let snapshots = snapshot::Locations::new(run.snapshotters, &request.snapshot_locations);
    Ok(Arc::new(Context {
        request,
        cluster,
        store,
        resources,
        filter,
        credentials: credentials::ExcludedCredentials::default(),
        hooks,
        hook_tally: Tally::default(),
        backup_item_actions,
        built_in_item_actions,
        item_block_actions,
        built_in_block_actions,
        retry_lock: tokio::sync::Mutex::default(),
        visited: VisitedItems::default(),
        namespaces: Namespaces::default(),
        inventory: Inventory::default(),
        volumes: Volumes::default(),
        mounts,
        snapshots,
        csi,
        operations: Mutex::default(),
        journal,
        next_block_number: AtomicU64::new(recovery.recovered.next_block),
        journal_unavailable: AtomicBool::new(false),
        may_leave_frozen: AtomicBool::new(false),
        recovery,
        spool,
        budget: collect::budget(),
        report,
        progress,
        options,
        started: now,
        stop,
        cancel,
        archive_failed: AtomicBool::new(false),
    }))
}
