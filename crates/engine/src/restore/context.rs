//! State that the stages of a restore share, and its preparation.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::{Code, RestoreItemAction};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;

use super::action;
use super::action::csi::{self, CsiRestoreContext};
use super::collision::NamespaceCollisions;
use super::filter::Filter;
use super::hook::HookRunner;
use super::item::{self, Visitor};
use super::item_claims::ClaimedItems;
use super::item_journal::{self, ItemJournal};
use super::namespace::NamespaceCache;
use super::outcome::ItemOutcomes;
use super::rate_limiter::RateLimiter;
use super::request::Request;
use super::version::Versions;
use super::volume::{VolumeCreator, VolumeOutcomes};
use super::{FatalError, Options, Progress, Run};
use crate::action::NamedAction;
use crate::cluster::{Cluster, Discovery};
use crate::download::{self, BackupVolumes};
use crate::operation::Operation;
use crate::report::{Report, ReportSubject};
use crate::resource::{GroupResource, Resources};
use crate::selection::{self, Action};
use crate::unpack::{self, Contents, Defect};

/// Time that a pending plugin call still has after the run was canceled.
const AFTER_CANCEL: Duration = Duration::from_secs(10);

/// Resources that the cluster serves. The set grows when CustomResourceDefinitions are restored.
pub(super) struct ServedApi {
    pub(super) resources: Arc<Resources>,
    pub(super) versions: Versions,
    pub(super) filter: Filter,
}

/// Inputs of the stages, in which a restore and its dry run differ.
pub(super) struct ContextInputs {
    /// Handles each item: restores or only plans it.
    pub(super) visitor: Arc<dyn Visitor>,
    pub(super) request: Request,
    pub(super) cluster: Arc<dyn Cluster>,
    pub(super) contents: Arc<Contents>,
    pub(super) volumes: Arc<BackupVolumes>,
    /// State of the CSI snapshot actions.
    pub(super) csi: Arc<CsiRestoreContext>,
    pub(super) options: Options,
    pub(super) progress: Arc<Progress>,
    /// None in a dry run.
    pub(super) item_journal: Option<ItemJournal>,
    /// None in a dry run.
    pub(super) volume_creator: Option<VolumeCreator>,
    pub(super) stop: CancellationToken,
    pub(super) cancel: CancellationToken,
}

/// State shared by all stages. The inputs are read as if they were its own fields.
pub(super) struct Context {
    inputs: ContextInputs,
    served_api: RwLock<Arc<ServedApi>>,
    pub(super) actions: Vec<Action<dyn RestoreItemAction>>,
    pub(super) claimed_items: ClaimedItems,
    pub(super) rate_limiter: RateLimiter,
    pub(super) namespaces: NamespaceCache,
    pub(super) collisions: NamespaceCollisions,
    pub(super) outcomes: ItemOutcomes,
    pub(super) volume_outcomes: VolumeOutcomes,
    pub(super) operations: Mutex<Vec<Operation>>,
    pub(super) hooks: HookRunner,
    pub(super) report: Arc<Report>,
    /// When the restore first started, possibly in another process.
    pub(super) started_at: Timestamp,
}

impl Deref for Context {
    type Target = ContextInputs;

    fn deref(&self) -> &ContextInputs {
        &self.inputs
    }
}

impl Context {
    /// True if no new work may start.
    pub(super) fn has_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits for the answer of a plugin, but only for [`AFTER_CANCEL`] once the run was canceled.
    pub(super) async fn unless_canceled<T>(
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
                let text = "no answer since the restore was canceled; the plugin may continue";
                Err(bowline_plugin::Error::new(Code::DeadlineExceeded, text))
            }
        }
    }

    pub(super) fn record_operation(&self, operation: Operation) {
        self.operations.lock().push(operation);
    }

    pub(super) fn served_api(&self) -> Arc<ServedApi> {
        Arc::clone(&self.served_api.read())
    }

    /// Replaces what the cluster serves, after definitions were restored.
    pub(super) fn set_served_api(&self, served_api: ServedApi) {
        *self.served_api.write() = Arc::new(served_api);
    }
}

/// Downloads the archive, discovers the API and collects everything else that the stages need.
pub(super) async fn prepare(
    run: Run,
    report: Arc<Report>,
    now: Timestamp,
) -> Result<Context, FatalError> {
    let Run { request, cluster, store, actions, options, progress, journal, stop, cancel, .. } =
        run;
    let volume_creator = Some(VolumeCreator::new(run.snapshotters, run.volume_reporter));
    let name = &request.backup_name;
    let contents =
        download::fetch_contents(&store, name, &options.scratch, options.unpack_limits).await?;
    let volumes = Arc::new(download::read_volumes(&store, name).await?);
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
    let inputs = ContextInputs {
        visitor,
        request,
        cluster,
        contents,
        volumes,
        csi,
        options,
        progress,
        item_journal,
        volume_creator,
        stop: stop.child_token(),
        cancel,
    };
    let context = assemble(inputs, served_api, actions, report, now).await?;
    item_journal::replay(&context, &run.recovered);
    Ok(context)
}

/// Compiles the inputs of the stages and reports their errors.
pub(super) async fn assemble(
    inputs: ContextInputs,
    served_api: ServedApi,
    actions: Vec<NamedAction<dyn RestoreItemAction>>,
    report: Arc<Report>,
    now: Timestamp,
) -> Result<Context, FatalError> {
    let ContextInputs { request, contents, progress, options, .. } = &inputs;
    let lost = check_damage(request, contents)?;
    progress.add_lost(lost);
    for refusal in &contents.refusals {
        report.error(ReportSubject::Run, format!("in the archive: {refusal}"));
    }
    for warning in request.namespaces(contents).warnings {
        report.warn(ReportSubject::Run, warning);
    }
    let collisions = find_collisions(request, contents);
    let hooks = HookRunner::new(&request.restore)?;
    let resources = &served_api.resources;
    let actions =
        selection::resolve_selectors(actions, |plugin| plugin.applies_to(), resources, &report)
            .await;
    let started_at =
        request.restore.status.as_ref().and_then(|status| status.start_timestamp.as_ref());
    Ok(Context {
        served_api: RwLock::new(Arc::new(served_api)),
        actions,
        claimed_items: ClaimedItems::default(),
        rate_limiter: RateLimiter::new(options.requests),
        namespaces: NamespaceCache::default(),
        collisions,
        outcomes: ItemOutcomes::default(),
        volume_outcomes: VolumeOutcomes::default(),
        operations: Mutex::default(),
        hooks,
        report,
        started_at: started_at.map_or(now, |began| began.0),
        inputs,
    })
}

/// The target namespaces that several namespaces of the archive are mapped to.
fn find_collisions(request: &Request, contents: &Contents) -> NamespaceCollisions {
    let mapping = &request.namespace_mapping;
    if mapping.is_empty() {
        return NamespaceCollisions::default();
    }
    let mut names = contents.namespaces();
    let own = contents.kind(&GroupResource::new("", "namespaces"));
    names.extend(own.into_iter().flat_map(unpack::Kind::items).map(|(_, name)| name));
    names.sort_unstable();
    names.dedup();
    NamespaceCollisions::new(mapping, &names)
}

/// Maximum number of archive defects shown in the status.
const MAX_DAMAGE_REPORTED: usize = 3;

/// Refuses a damaged archive unless the request allows it. Returns the number of lost items otherwise.
fn check_damage(request: &Request, contents: &Contents) -> Result<usize, FatalError> {
    let damage = &contents.damage;
    if !damage.is_empty() && !request.allow_damaged {
        let first: Vec<Defect> = damage.iter().take(MAX_DAMAGE_REPORTED).cloned().collect();
        return Err(FatalError::Damaged { more: damage.len() - first.len(), first });
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

/// Discovers what the cluster serves.
pub(super) async fn discover(
    cluster: &dyn Cluster,
    request: &Request,
    report: &Report,
) -> Result<ServedApi, FatalError> {
    let Discovery { resources, failed } = cluster.discover().await.map_err(FatalError::Discover)?;
    for failed in failed {
        report.warn(ReportSubject::Run, format!("the API group {failed}"));
    }
    let served = resources.iter().filter(|resource| !resource.id.resource.contains('/'));
    let versions = Versions::new(served.clone().cloned());
    let resources = Arc::new(Resources::new(served.cloned()));
    let filter = Filter::new(&request.filter, &resources);
    Ok(ServedApi { resources, versions, filter })
}
