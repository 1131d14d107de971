//! State that the stages of a run share, and its preparation.
//!
//! Everything that is the same for all items is determined once, before the first of them: the resources of the
//! cluster, the filter and the hooks compiled for those, and the selectors of each action. A request that cannot be
//! served therefore fails before anything has started.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bowline_plugin::{BackupItemAction, Code, ItemBlockAction, ResourceIdentifier};
use bowline_store::BackupStore;
use jiff::Timestamp;
use parking_lot::Mutex;
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
    CANCEL_GRACE, FatalError, Options, Progress, Recovery, Run, canceled_for, collect, credentials,
    csi, discover, snapshot,
};
use crate::action::{self, BuiltIn, Mounts};
use crate::cluster::Cluster;
use crate::item::Object;
use crate::journal::Journal;
use crate::operation::Operation;
use crate::report::{Report, ReportSubject};
use crate::resource::{GroupResource, Resource, Resources};
use crate::selection::{self, Action};

/// State that the stages share.
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
    /// Number of built-in ones; they come first.
    pub(super) built_in_item_actions: usize,
    pub(super) item_block_actions: Vec<Action<dyn ItemBlockAction>>,
    /// Number of built-in ones; they come first.
    pub(super) built_in_block_actions: usize,
    /// Held while an item is passed to an action for the second time.
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
    /// The number of the next block in the journal.
    pub(super) next_block_number: AtomicU64,
    /// True if an entry could not be written to the journal.
    pub(super) journal_unavailable: AtomicBool,
    /// True if a pod may still be frozen although its block has ended.
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
    /// True if nothing new may be started.
    pub(super) fn has_stopped(&self) -> bool {
        self.is_aborted() || self.stop.is_cancelled()
    }

    /// True if work in progress must be aborted.
    pub(super) fn is_aborted(&self) -> bool {
        self.archive_failed.load(Ordering::Relaxed) || self.cancel.is_cancelled()
    }

    /// Waits for the answer of a plugin, but only briefly once the run was canceled.
    pub(super) async fn unless_canceled<T>(
        &self,
        call: impl Future<Output = bowline_plugin::Result<T>>,
    ) -> bowline_plugin::Result<T> {
        tokio::select! {
            biased;
            answer = call => answer,
            () = canceled_for(&self.cancel, CANCEL_GRACE) => {
                let text = "no answer since the backup was canceled; the plugin may continue";
                Err(bowline_plugin::Error::new(Code::DeadlineExceeded, text))
            }
        }
    }

    /// True if an item is passed to an action that may start an operation.
    pub(super) fn may_begin_operations(&self, object: &Object) -> bool {
        let actions = &self.backup_item_actions;
        actions.iter().any(|action| action.begins_operations && action.selects(object))
    }

    pub(super) fn record_operation(&self, operation: Operation) {
        self.progress.snapshots.record_operation(&operation);
        self.operations.lock().push(operation);
    }

    /// Records the outcome of a volume from an earlier process.
    pub(super) fn record_replayed_volume(&self, volume: &str, outcome: SnapshotOutcome) {
        self.snapshots.reserve_volume(volume);
        self.volumes.record_snapshot(volume, outcome);
    }

    /// Options of the request for volumes.
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

    /// Records that the archive accepts no more items.
    pub(super) fn mark_archive_failed(&self) {
        self.archive_failed.store(true, Ordering::Relaxed);
    }

    /// The resource that an identifier refers to, and the identifier in canonical spelling.
    pub(super) fn resolve(
        &self,
        id: &ResourceIdentifier,
    ) -> Option<(Arc<Resource>, ResourceIdentifier)> {
        let exact = self.resources.find(&GroupResource::new(&id.group, &id.resource));
        // Actions may use any spelling that users may.
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

    /// The BackupItemActions of plugins.
    pub(super) fn plugin_item_actions(
        &self,
    ) -> impl Iterator<Item = &Action<dyn BackupItemAction>> {
        self.backup_item_actions.iter().skip(self.built_in_item_actions)
    }

    /// The ItemBlockActions of plugins.
    pub(super) fn plugin_block_actions(
        &self,
    ) -> impl Iterator<Item = &Action<dyn ItemBlockAction>> {
        self.item_block_actions.iter().skip(self.built_in_block_actions)
    }
}

/// Prepares everything that the stages need.
pub(super) async fn check_name_and_assemble(
    run: Run,
    report: Arc<Report>,
    now: Timestamp,
) -> Result<Arc<Context>, FatalError> {
    // An earlier process may have taken snapshots, even one that left in good order.
    let has_started = run.recovery.recovered.next_block > 0;
    let retry_window = if has_started { CHECK_RESUMED } else { CHECK_FRESH };
    match check_name(&run.store, &run.request.name, retry_window, &run.stop, &run.cancel).await {
        NameAvailability::Free => {}
        NameAvailability::Taken => return Err(FatalError::Exists),
        NameAvailability::Unknown(_) if run.stop.is_cancelled() => return Err(FatalError::Stopped),
        // Also if the run was canceled: the files in the bucket may belong to another backup.
        NameAvailability::Unknown(error) => return Err(FatalError::ReadBucket(error)),
    }
    assemble(run, report, now).await
}

pub(super) async fn assemble(
    run: Run,
    report: Arc<Report>,
    now: Timestamp,
) -> Result<Arc<Context>, FatalError> {
    let Run { request, cluster, store, options, progress, stop, cancel, journal, recovery, .. } =
        run;
    let spool = Spool::create(&options.scratch).map_err(FatalError::Scratch)?;
    let (errors, warnings) = recovery.report.messages();
    report.append(errors, warnings);
    for text in &request.errors {
        report.error(ReportSubject::Run, text.clone());
    }
    for text in &request.warnings {
        report.warn(ReportSubject::Run, text.clone());
    }
    let discovery = cluster.discover().await.map_err(FatalError::Discover)?;
    discover::report_failed_groups(&discovery, &report);
    let resources = Arc::new(discover::resources(&discovery));
    let filter = Filter::new(&request.filter, &resources);
    for text in filter.warnings() {
        report.warn(ReportSubject::Run, text.clone());
    }
    let hooks = Hooks::new(&request.hooks, &resources)?;

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
            let text = format!(
                "the action {} of a plugin is not used: the action is built in",
                action.name
            );
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
