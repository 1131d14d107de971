//! What a restore would do, found out without doing it.
//!
//! Items go through the same stages as in a restore, up to the object that would be written. Then the
//! API server is asked with a dry-run request: what it says is what it would say, with its defaults,
//! its validation and its admission. Out comes an [`PlanEntry`] for each item, with a [`PlanVerdict`] and the
//! reason.
//!
//! # What is not validated
//! An object that the API server cannot judge before others are there: in a namespace that does not
//! exist yet, of a kind whose definition is restored with it, a pod whose service account is. The
//! same goes for what the user may not do, or a webhook that does not take part in dry runs.
//!
//! # What a plan cannot know
//! - What plugins make of snapshots: that a volume would be made from one is told, and nobody is asked.
//! - What actions of plugins do, and the built-in ones that look something up ([`RestorePlan::not_run`]).
//! - What many objects come to together, such as a quota that the last one of them exceeds.
//! - What happens in the cluster meanwhile.

mod namespace_state;
mod refusal;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_plugin::{Item, ResourceIdentifier, RestoreItemAction};
use bowline_store::file::Results;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::action::csi::{self, CsiRestoreContext};
use super::apply::{self, Decision};
use super::download::BackupVolumes;
use super::item::prepare::{ArchiveItem, PreparedItem, ReadyObject, StoredObject};
use super::item::{ItemRestore, VisitReason, Visitor, reserve_memory};
use super::item_claims::ItemClaim;
use super::order::{self, Priorities};
use super::request::{ExistingObjectPolicy, Request};
use super::unpack::Contents;
use super::{
    Context, ContextParts, Fatal, Options, Progress, ServedApi, action, assemble, collision,
    discover, visit_all, volume,
};
use crate::cluster::{Cluster, Error, Subresource};
use crate::item::Object;
use crate::report::Report;
use crate::resource::{GroupResource, Resource, Resources};
use crate::selection::{self, Action};
use namespace_state::{NamespaceState, NamespaceStates};
use refusal::PlannedDependencies;

/// What a plan is made from.
pub struct Run {
    /// What is to be restored.
    pub request: Request,
    /// Into what. It must keep nothing of what is written:
    /// [`ApiServer::dry_run`](crate::cluster::ApiServer::dry_run).
    pub cluster: Arc<dyn Cluster>,
    /// The archive of the backup.
    pub contents: Contents,
    /// What the backup says of volumes.
    pub volumes: BackupVolumes,
    /// How much at a time.
    pub options: Options,
}

/// What a restore would do.
#[derive(Clone, Debug, PartialEq)]
pub struct RestorePlan {
    /// What would become of each item, in the order of the restore.
    pub entries: Vec<PlanEntry>,
    /// What the restore would tell beyond that.
    pub results: Results,
    /// The built-in actions that select some of the items and were not run.
    pub not_run: Vec<String>,
}

impl RestorePlan {
    /// How many items have a verdict.
    pub fn count(&self, verdict: PlanVerdict) -> usize {
        self.entries.iter().filter(|entry| entry.verdict == verdict).count()
    }

    /// Whether something would go wrong.
    pub fn would_fail(&self) -> bool {
        self.count(PlanVerdict::Refuse) > 0 || self.results.errors.count() > 0
    }
}

/// What would become of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanEntry {
    /// What it is in the backup.
    pub id: ResourceIdentifier,
    /// What it becomes, as far as that is known.
    pub target: Option<PlanTarget>,
    /// What would happen to it.
    pub verdict: PlanVerdict,
    /// Why. Empty where there is nothing to say.
    pub reason: String,
}

/// What an item becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanTarget {
    /// The version of its API.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for what lives in none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What would happen to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PlanVerdict {
    /// It would be created.
    Create,
    /// It is there and would be changed.
    Update,
    /// It would be left as it is, or left out.
    Skip,
    /// It cannot be restored.
    Refuse,
    /// Nobody can say yet.
    NotValidated,
}

impl PlanVerdict {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Create, Self::Update, Self::Skip, Self::Refuse, Self::NotValidated];
}

/// Finds out what a restore would do.
pub async fn run(run: Run, now: Timestamp) -> Result<RestorePlan, Fatal> {
    // Boxed, since everything that a restore needs goes through it.
    Box::pin(plan_restore(run, now)).await
}

async fn plan_restore(run: Run, now: Timestamp) -> Result<RestorePlan, Fatal> {
    let Run { request, cluster, contents, volumes, options } = run;
    let report = Arc::new(Report::default());
    let served_api = discover(&*cluster, &request, &report).await?;
    let (resources, namespace) = (&served_api.resources, &options.namespace);
    let mut skipped_actions =
        action::restore_item_actions(&cluster, resources, namespace, &request.restore);
    skipped_actions.retain(|action| !action::is_pure(&action.name));
    let skipped_actions = selection::resolve_selectors(
        skipped_actions,
        |plugin| plugin.applies_to(),
        resources,
        &report,
    )
    .await;
    let (contents, volumes) = (Arc::new(contents), Arc::new(volumes));
    let csi = CsiRestoreContext::new(&cluster, resources, &contents, &volumes, &request, &report);
    let csi = Arc::new(csi.dry_run());
    let mut actions = action::pure_restore_item_actions(&request.restore);
    actions.extend(csi::actions(&csi));
    let planner = Arc::new(Planner {
        skipped_actions,
        namespaces: NamespaceStates::default(),
        findings: Mutex::default(),
    });
    let parts = ContextParts {
        visitor: Arc::clone(&planner) as _,
        actions,
        request,
        cluster,
        contents,
        volumes,
        csi,
        served_api,
        options,
        progress: Arc::new(Progress::default()),
        item_journal: None,
        volume_creator: None,
        stop: CancellationToken::new(),
        cancel: CancellationToken::new(),
    };
    let context = Arc::new(assemble(parts, Arc::clone(&report), now).await?);
    visit_all(&context).await?;
    let PlanFindings { mut entries, not_run, .. } = mem::take(&mut *planner.findings());
    sort(&mut entries, &context.options.priorities, &context.served_api().resources);
    Ok(RestorePlan { entries, results: report.results(), not_run: not_run.into_iter().collect() })
}

/// Puts entries in the order of the restore; within a step by their names.
fn sort(entries: &mut [PlanEntry], priorities: &Priorities, resources: &Resources) {
    let kind = |entry: &PlanEntry| GroupResource::new(&entry.id.group, &entry.id.resource);
    let kinds: BTreeSet<GroupResource> = entries.iter().map(kind).collect();
    let steps = order::steps(&kinds, priorities, resources);
    let ordered = steps.into_iter().flat_map(|step| step.kinds);
    let ranks: HashMap<GroupResource, usize> =
        ordered.enumerate().map(|(rank, kind)| (kind, rank)).collect();
    entries.sort_by_cached_key(|entry| {
        (ranks.get(&kind(entry)).copied(), entry.id.namespace.clone(), entry.id.name.clone())
    });
}

/// What was found out about an item.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    verdict: PlanVerdict,
    reason: String,
}

impl Finding {
    fn new(verdict: PlanVerdict, reason: impl Into<String>) -> Self {
        Self { verdict, reason: reason.into() }
    }
}

/// Looks at items instead of restoring them.
struct Planner {
    /// Actions that are not run.
    skipped_actions: Vec<Action<dyn RestoreItemAction>>,
    namespaces: NamespaceStates,
    findings: Mutex<PlanFindings>,
}

/// What was found out so far.
#[derive(Default)]
struct PlanFindings {
    entries: Vec<PlanEntry>,
    not_run: BTreeSet<String>,
    planned: PlannedDependencies,
    /// The places of items that others may come to as well.
    occupied: HashMap<(GroupResource, String, String), ResourceIdentifier>,
}

/// What would become of an item whose place another item of the same restore takes.
fn collision_finding(item: &ItemRestore<'_>, conflicting_item: &ResourceIdentifier) -> Finding {
    let ItemRestore { context, id, .. } = item;
    let is_claim = id.group.is_empty() && id.resource == "persistentvolumeclaims";
    if is_claim && volume::has_data(context, id) {
        return Finding::new(
            PlanVerdict::Refuse,
            apply::claim_collision_message(&conflicting_item.to_string()),
        );
    }
    match context.request.existing {
        ExistingObjectPolicy::Update => Finding::new(
            PlanVerdict::Update,
            format!("it would replace {conflicting_item}, which is restored to the same place"),
        ),
        ExistingObjectPolicy::Unset | ExistingObjectPolicy::Keep => Finding::new(
            PlanVerdict::Skip,
            format!("{conflicting_item} is restored to the same place, and would stay as it is"),
        ),
    }
}

impl Visitor for Planner {
    fn visit<'a>(
        &'a self,
        context: &'a Arc<Context>,
        served_api: &'a Arc<ServedApi>,
        id: ResourceIdentifier,
        reason: VisitReason<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let _memory = reserve_memory(context, &id, reason).await;
            let ItemClaim::Acquired(guard) =
                context.claimed_items.claim(&id, reason.parent()).await
            else {
                return;
            };
            let mut item = ItemRestore::new(context, served_api, &id);
            let finding = match item.read_item(reason) {
                Ok(ArchiveItem::Excluded(_)) => return guard.release(),
                Ok(ArchiveItem::NotRestorable(reason)) => {
                    Finding::new(PlanVerdict::Skip, reason.to_string())
                }
                Ok(ArchiveItem::Object(stored)) => match self.not_served(&item) {
                    Some(finding) => finding,
                    None => self.check_item(&mut item, *stored).await,
                },
                Ok(ArchiveItem::Namespace) => match self.check_namespace(&item).await {
                    Some(finding) => finding,
                    None => return,
                },
                Err(error) => self.not_found(&item, error),
            };
            let target = item.target.as_ref();
            let target = target.map(|(resource, namespace, name)| (resource, namespace, name));
            self.record_finding(&id, target, finding);
        })
    }
}

impl Planner {
    /// Why an item cannot be read. One of a kind that comes with the restore can be, later.
    fn not_found(&self, item: &ItemRestore<'_>, error: String) -> Finding {
        let ItemRestore { context, served_api, id, .. } = item;
        let kind = GroupResource::new(&id.group, &id.resource);
        let stored = context.contents.kind(&kind);
        let is_served =
            stored.is_none_or(|stored| served_api.versions.choose(&kind, stored).is_ok());
        if !is_served && self.findings().planned.defines(&kind) {
            let reason = "its kind is not there before its definition is restored";
            return Finding::new(PlanVerdict::NotValidated, reason);
        }
        Finding::new(PlanVerdict::Refuse, error)
    }

    /// What is to be said of an item of a kind that the cluster does not serve yet, if it will.
    fn not_served(&self, item: &ItemRestore<'_>) -> Option<Finding> {
        let error = item.not_served.as_ref()?;
        let finding = self.not_found(item, error.to_string());
        (finding.verdict == PlanVerdict::NotValidated).then_some(finding)
    }

    async fn check_item(&self, item: &mut ItemRestore<'_>, stored: StoredObject) -> Finding {
        self.record_skipped_actions(&stored.object);
        let (original, target) = (&item.id.namespace, stored.namespace.clone());
        let namespace_state = match target.as_str() {
            "" => NamespaceState::Exists,
            target => self.namespace_state(item.context, original, target).await,
        };
        if let NamespaceState::Refused(reason) = namespace_state {
            return Finding::new(PlanVerdict::Refuse, reason);
        }
        let ready = match item.prepare_object(stored).await {
            Ok(PreparedItem::Ready(ready)) => *ready,
            Ok(PreparedItem::Skipped(reason)) => return Finding::new(PlanVerdict::Skip, reason),
            Ok(PreparedItem::Waiting(reason)) => {
                return Finding::new(PlanVerdict::NotValidated, reason);
            }
            Err(error) => return Finding::new(PlanVerdict::Refuse, error),
        };
        let conflicting_item = self.claim_place(item.id, &ready);
        let finding = match (conflicting_item, namespace_state.reason(&target)) {
            (Some(other), _) => collision_finding(item, &other),
            (None, Some(reason)) => Finding::new(PlanVerdict::NotValidated, reason),
            (None, None) => self.dry_run_create(item.context, &ready).await,
        };
        match (&finding, &item.restored_volume) {
            (Finding { verdict: PlanVerdict::Create, .. }, Some(volume)) => {
                Finding::new(PlanVerdict::Create, volume.description.clone())
            }
            _ => finding,
        }
    }

    /// Takes the place of an item. Returns the item that has it, if another does.
    fn claim_place(
        &self,
        id: &ResourceIdentifier,
        ready: &ReadyObject,
    ) -> Option<ResourceIdentifier> {
        // What notes nothing is the only one that comes to its place.
        collision::origin_item(&ready.value)?;
        let name = ready.value.pointer("/metadata/name").and_then(Value::as_str);
        let key = (
            ready.resource.id.clone(),
            ready.namespace.clone(),
            name.unwrap_or_default().to_owned(),
        );
        let mut findings = self.findings();
        let holder = findings.occupied.entry(key).or_insert_with(|| id.clone());
        (holder != id).then(|| holder.clone())
    }

    /// None if what is to be said of it is said already.
    async fn check_namespace(&self, item: &ItemRestore<'_>) -> Option<Finding> {
        let (_, _, target) = item.target.as_ref()?;
        match self.namespace_state(item.context, &item.id.name, target).await {
            NamespaceState::Exists => Some(Finding::new(PlanVerdict::Skip, "it exists")),
            NamespaceState::Terminating => {
                let reason = "it is being deleted; the restore would wait for that";
                Some(Finding::new(PlanVerdict::NotValidated, reason))
            }
            NamespaceState::WillBeCreated | NamespaceState::Refused(_) => None,
        }
    }

    /// Asks the API server what it would do with an object.
    async fn dry_run_create(&self, context: &Context, ready: &ReadyObject) -> Finding {
        let ReadyObject { resource, namespace, value, .. } = ready;
        let item = match Item::from_object(value) {
            Ok(item) => item,
            Err(error) => return Finding::new(PlanVerdict::Refuse, error.to_string()),
        };
        let create = || context.cluster.create(resource, namespace, &item);
        match context.rate_limiter.send(create).await {
            Ok(_) => Finding::new(PlanVerdict::Create, ""),
            Err(error) if apply::may_exist(&error) => {
                self.compare_existing(context, ready, error).await
            }
            Err(error) => self.judge_error(&error),
        }
    }

    /// Compares an object with the one that seems to be there.
    async fn compare_existing(
        &self,
        context: &Context,
        ready: &ReadyObject,
        refused: Error,
    ) -> Finding {
        let ReadyObject { resource, namespace, value, .. } = ready;
        let name = value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let get = || context.cluster.get(resource, namespace, name);
        let found: Value = match context.rate_limiter.send(get).await {
            Ok(Some(found)) => match found.item.parse() {
                Ok(found) => found,
                Err(error) => return Finding::new(PlanVerdict::Refuse, error.to_string()),
            },
            Ok(None) => return self.judge_error(&refused),
            Err(error) => return self.judge_error(&error),
        };
        let decision = apply::decide(&context.request, context.started_at, resource, value, &found);
        let (patch, reason) = match decision {
            Decision::CreatedByThisRestore | Decision::Same { labels: None } => {
                return Finding::new(PlanVerdict::Skip, "it exists and is the same");
            }
            Decision::Same { labels: Some(_) } => {
                let reason = "it exists and is the same; only the labels of the restore would be \
                              put on it";
                return Finding::new(PlanVerdict::Skip, reason);
            }
            Decision::Keep(fields) => {
                let fields = fields.join(", ");
                let reason = format!("it exists and would stay as it is, but differs in {fields}");
                return Finding::new(PlanVerdict::Skip, reason);
            }
            Decision::Add(patch) => {
                let fields: Vec<&str> =
                    patch.as_object().into_iter().flatten().map(|(name, _)| &**name).collect();
                let reason = format!("it exists and lacks something in {}", fields.join(", "));
                (patch, reason)
            }
            Decision::Change { fields, patch, .. } => {
                (patch, format!("it exists and differs in {}", fields.join(", ")))
            }
        };
        let send = || context.cluster.patch(resource, namespace, name, Subresource::None, &patch);
        match context.rate_limiter.send(send).await {
            Ok(_) => Finding::new(PlanVerdict::Update, reason),
            Err(error) => {
                let Finding { verdict, reason: cause } = self.judge_error(&error);
                Finding::new(verdict, format!("{reason}, and cannot be changed: {cause}"))
            }
        }
    }

    fn judge_error(&self, error: &Error) -> Finding {
        refusal::judge_refusal(error, &self.findings().planned)
    }

    fn record_finding(
        &self,
        id: &ResourceIdentifier,
        target: Option<(&Arc<Resource>, &String, &String)>,
        Finding { verdict, reason }: Finding,
    ) {
        let mut findings = self.findings();
        let target = target.map(|(resource, namespace, name)| {
            if matches!(
                verdict,
                PlanVerdict::Create | PlanVerdict::Update | PlanVerdict::NotValidated
            ) {
                findings.planned.add(&resource.id, namespace, name);
            }
            PlanTarget {
                api_version: resource.api_version(),
                kind: resource.kind.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
            }
        });
        findings.entries.push(PlanEntry { id: id.clone(), target, verdict, reason });
    }

    /// Notes the actions that a restore would show an object to.
    fn record_skipped_actions(&self, object: &Object) {
        for action in self.skipped_actions.iter().filter(|action| action.selects(object)) {
            self.findings().not_run.insert(action.name.to_string());
        }
    }

    fn findings(&self) -> MutexGuard<'_, PlanFindings> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
