//! Dry run of a restore: the expected outcome of each item, without changes to the cluster.
//!
//! Items go through the same stages as in a restore, up to the object that would be written. This object is sent to
//! the API server in a dry-run request, so that the answer is the real one, with defaults, validation and
//! admission. The result is a [`PlanEntry`] for each item, with a [`PlanVerdict`] and the reason.
//!
//! # Items that are not validated
//! The API server cannot judge an object that depends on others which do not exist yet: an object in a namespace
//! that is restored with it, of a kind whose definition is, or a pod whose service account is. The same applies to
//! requests that the user is not permitted to make, and to webhooks that do not support dry runs.
//!
//! # Limits of a plan
//! - Volumes from snapshots: the plan names the snapshot, but does not ask the plugin.
//! - Actions of plugins, and built-in actions that look something up, do not run ([`RestorePlan::not_run`]).
//! - Combined effects of many objects, such as a quota that the last of them exceeds, do not show.
//! - Changes to the cluster between plan and restore are unknown.

mod namespace_state;
mod refusal;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;

use bowline_plugin::{Item, ResourceIdentifier, RestoreItemAction};
use bowline_store::file::Results;
use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::action::csi::{self, CsiRestoreContext};
use super::apply::{self, ApplyError, Decision};
use super::context::{Context, ContextInputs, ServedApi, assemble, discover};
use super::item::prepare::{ArchiveItem, PreparedItem, ReadyObject, StoredObject};
use super::item::{ItemRestore, VisitReason, Visitor, reserve_memory};
use super::item_reservations::ItemReservation;
use super::order::{self, Priorities};
use super::request::{ExistingResourcePolicy, Request};
use super::{FatalError, Options, Progress, action, collision, visit_all, volume};
use crate::cluster::{Cluster, Error, Subresource};
use crate::download::BackupVolumes;
use crate::item::Object;
use crate::json::text;
use crate::report::{Report, error_text};
use crate::resource::{GroupResource, Resource, Resources};
use crate::selection::{self, Action};
use crate::unpack::Contents;
use namespace_state::{NamespaceState, NamespaceStates};
use refusal::PlannedDependencies;

/// Inputs of a plan.
pub struct Run {
    /// The validated request.
    pub request: Request,
    /// The target cluster. It must not persist any write:
    /// [`ApiServer::dry_run`](crate::cluster::ApiServer::dry_run).
    pub cluster: Arc<dyn Cluster>,
    /// The archive of the backup.
    pub contents: Contents,
    /// Volume information of the backup.
    pub volumes: BackupVolumes,
    /// Concurrency limits and timeouts.
    pub options: Options,
}

/// Expected outcome of a restore.
#[derive(Clone, Debug, PartialEq)]
pub struct RestorePlan {
    /// Expected outcome of each item, in restore order.
    pub entries: Vec<PlanEntry>,
    /// Further warnings and errors that the restore would report.
    pub results: Results,
    /// Built-in actions that select some of the items and did not run.
    pub not_run: Vec<String>,
}

impl RestorePlan {
    /// Number of items with a verdict.
    pub fn count(&self, verdict: PlanVerdict) -> usize {
        self.entries.iter().filter(|entry| entry.verdict == verdict).count()
    }

    /// True if the restore would report errors.
    pub fn would_fail(&self) -> bool {
        self.count(PlanVerdict::Refuse) > 0 || self.results.errors.count() > 0
    }
}

/// Expected outcome of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanEntry {
    /// Identity in the backup.
    pub id: ResourceIdentifier,
    /// Resulting object, as far as known.
    pub target: Option<PlanTarget>,
    /// Expected outcome.
    pub verdict: PlanVerdict,
    /// Reason for the verdict; may be empty.
    pub reason: String,
}

/// Object that an item becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanTarget {
    /// API version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Expected outcome of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PlanVerdict {
    /// The object would be created.
    Create,
    /// The object exists and would be changed.
    Update,
    /// The object would stay unchanged, or would not be restored.
    Skip,
    /// The item cannot be restored.
    Refuse,
    /// The API server cannot validate the object yet.
    NotValidated,
}

impl PlanVerdict {
    /// All verdicts.
    pub const ALL: [Self; 5] =
        [Self::Create, Self::Update, Self::Skip, Self::Refuse, Self::NotValidated];
}

/// Plans a restore.
pub async fn run(run: Run, now: Timestamp) -> Result<RestorePlan, FatalError> {
    // Boxed, because the future holds the whole state of a restore.
    Box::pin(plan_restore(run, now)).await
}

async fn plan_restore(run: Run, now: Timestamp) -> Result<RestorePlan, FatalError> {
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
    let inputs = ContextInputs {
        visitor: Arc::clone(&planner) as _,
        request,
        cluster,
        contents,
        volumes,
        csi,
        options,
        progress: Arc::new(Progress::default()),
        item_journal: None,
        volume_creator: None,
        stop: CancellationToken::new(),
        cancel: CancellationToken::new(),
    };
    let context = assemble(inputs, served_api, actions, Arc::clone(&report), now).await?;
    let context = Arc::new(context);
    visit_all(&context).await?;
    let PlanFindings { mut entries, not_run, .. } = mem::take(&mut *planner.findings.lock());
    sort(&mut entries, &context.options.priorities, &context.served_api().resources);
    Ok(RestorePlan { entries, results: report.results(), not_run: not_run.into_iter().collect() })
}

/// Sorts entries in restore order; within a step by name.
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

/// Verdict on an item, with its reason.
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

/// Visitor that plans items instead of restoring them.
struct Planner {
    /// Actions that do not run.
    skipped_actions: Vec<Action<dyn RestoreItemAction>>,
    namespaces: NamespaceStates,
    findings: Mutex<PlanFindings>,
}

/// Findings so far.
#[derive(Default)]
struct PlanFindings {
    entries: Vec<PlanEntry>,
    not_run: BTreeSet<String>,
    planned: PlannedDependencies,
    /// Targets of items that may collide with those of other items.
    occupied: HashMap<(GroupResource, String, String), ResourceIdentifier>,
}

/// Finding for an item whose target another item of the same restore occupies.
fn collision_finding(item: &ItemRestore<'_>, conflicting_item: &ResourceIdentifier) -> Finding {
    let ItemRestore { context, id, .. } = item;
    let is_claim = id.group.is_empty() && id.resource == "persistentvolumeclaims";
    if is_claim && volume::has_data(context, id) {
        let collision = ApplyError::ClaimCollision(conflicting_item.to_string());
        return Finding::new(PlanVerdict::Refuse, error_text(&collision));
    }
    match context.request.existing_policy {
        ExistingResourcePolicy::Update => Finding::new(
            PlanVerdict::Update,
            format!(
                "the item would replace {conflicting_item}, which is restored under the same name"
            ),
        ),
        ExistingResourcePolicy::Unset | ExistingResourcePolicy::Keep => Finding::new(
            PlanVerdict::Skip,
            format!("{conflicting_item} is restored under the same name and would be kept"),
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
            let ItemReservation::Acquired(guard) =
                context.reserved_items.reserve(&id, reason.parent()).await
            else {
                return;
            };
            let mut item = ItemRestore::new(context, served_api, &id);
            let finding = match item.read_item(reason) {
                Ok(ArchiveItem::Excluded(_)) => return guard.release(),
                Ok(ArchiveItem::ContentExcluded(reason)) => {
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
                Err(error) => self.not_found(&item, error_text(&error)),
            };
            let target = item.target.as_ref();
            let target = target.map(|(resource, namespace, name)| (resource, namespace, name));
            self.record_finding(&id, target, finding);
        })
    }
}

impl Planner {
    /// Finding for an item that cannot be read. An item of a kind that the restore defines can be read later.
    fn not_found(&self, item: &ItemRestore<'_>, error: String) -> Finding {
        let ItemRestore { context, served_api, id, .. } = item;
        let kind = GroupResource::new(&id.group, &id.resource);
        let stored = context.contents.kind(&kind);
        let is_served =
            stored.is_none_or(|stored| served_api.versions.choose(&kind, stored).is_ok());
        if !is_served && self.findings.lock().planned.defines(&kind) {
            let reason = "the kind is not served before its CustomResourceDefinition is restored";
            return Finding::new(PlanVerdict::NotValidated, reason);
        }
        Finding::new(PlanVerdict::Refuse, error)
    }

    /// Finding for an item of a kind that the cluster does not serve yet but will.
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
            Ok(PreparedItem::Skipped(reason)) => {
                return Finding::new(PlanVerdict::Skip, reason.to_string());
            }
            Ok(PreparedItem::Waiting(reason)) => {
                return Finding::new(PlanVerdict::NotValidated, reason.to_string());
            }
            Err(error) => return Finding::new(PlanVerdict::Refuse, error_text(&error)),
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

    /// Claims the target of an item. Returns the other item that occupies it, if any.
    fn claim_place(
        &self,
        id: &ResourceIdentifier,
        ready: &ReadyObject,
    ) -> Option<ResourceIdentifier> {
        // Only objects with a recorded origin can collide with others.
        collision::origin_item(&ready.value)?;
        let name = ready.value.pointer("/metadata/name").and_then(Value::as_str);
        let key = (
            ready.resource.id.clone(),
            ready.namespace.clone(),
            name.unwrap_or_default().to_owned(),
        );
        let mut findings = self.findings.lock();
        let holder = findings.occupied.entry(key).or_insert_with(|| id.clone());
        (holder != id).then(|| holder.clone())
    }

    /// `None` if the namespace has been reported already.
    async fn check_namespace(&self, item: &ItemRestore<'_>) -> Option<Finding> {
        let (_, _, target) = item.target.as_ref()?;
        match self.namespace_state(item.context, &item.id.name, target).await {
            NamespaceState::Exists => Some(Finding::new(PlanVerdict::Skip, "the namespace exists")),
            NamespaceState::Terminating => {
                let reason =
                    "the namespace is being deleted; the restore would wait until it is gone";
                Some(Finding::new(PlanVerdict::NotValidated, reason))
            }
            NamespaceState::WillBeCreated | NamespaceState::Refused(_) => None,
        }
    }

    /// Sends an object to the API server as a dry-run create.
    async fn dry_run_create(&self, context: &Context, ready: &ReadyObject) -> Finding {
        let ReadyObject { resource, namespace, value, .. } = ready;
        let item = match Item::from_value(value) {
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

    /// Compares an object with the one that seems to exist.
    async fn compare_existing(
        &self,
        context: &Context,
        ready: &ReadyObject,
        refused: Error,
    ) -> Finding {
        let ReadyObject { resource, namespace, value, .. } = ready;
        let name = text(value, "/metadata/name");
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
                return Finding::new(PlanVerdict::Skip, "the object exists and is identical");
            }
            Decision::Same { labels: Some(_) } => {
                let reason = "the object exists and is identical; only the labels of the restore \
                              would be added";
                return Finding::new(PlanVerdict::Skip, reason);
            }
            Decision::Keep(fields) => {
                let fields = fields.join(", ");
                let reason =
                    format!("the object exists and would be kept, although it differs in {fields}");
                return Finding::new(PlanVerdict::Skip, reason);
            }
            Decision::Add(patch) => {
                let fields: Vec<&str> =
                    patch.as_object().into_iter().flatten().map(|(name, _)| &**name).collect();
                let reason = format!("the object exists and lacks values in {}", fields.join(", "));
                (patch, reason)
            }
            Decision::Change { fields, patch, .. } => {
                (patch, format!("the object exists and differs in {}", fields.join(", ")))
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
        refusal::judge_refusal(error, &self.findings.lock().planned)
    }

    fn record_finding(
        &self,
        id: &ResourceIdentifier,
        target: Option<(&Arc<Resource>, &String, &String)>,
        Finding { verdict, reason }: Finding,
    ) {
        let mut findings = self.findings.lock();
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

    /// Records the actions that a restore would run on an object.
    fn record_skipped_actions(&self, object: &Object) {
        for action in self.skipped_actions.iter().filter(|action| action.selects(object)) {
            self.findings.lock().not_run.insert(action.name.to_string());
        }
    }
}
