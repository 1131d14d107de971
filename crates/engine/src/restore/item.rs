//! Restores one item: reads it, runs the actions, changes it where necessary, writes it.
//!
//! Additional items of an action are restored first. An item that several others need is restored once, and those
//! others wait for it ([`ClaimedItems`](super::item_claims::ClaimedItems)) without occupying a slot of the rate
//! limiter. [`prepare`] computes the resulting object; a dry run uses it as well.

pub(super) mod actions;
pub(super) mod prepare;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bowline_plugin::{InvalidItem, Name, ResourceIdentifier};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::SemaphorePermit;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::apply::{AppliedObject, ApplyError};
use super::filter::Reason;
use super::item_claims::ItemClaim;
use super::namespace::NamespaceError;
use super::outcome::AppliedAction;
use super::reset::{MissingData, NoMetadata, in_brackets};
use super::version::NotServed;
use super::volume::{BlockingVolume, ClaimError, RestoredVolume, VolumeError};
use super::{Context, ServedApi, apply, hook, namespace, report_task_failure, stack, volume};
use crate::failpoint::{self, Failpoint};
use crate::item::Object;
use crate::operation::Operation;
use crate::report::{Report, error_text};
use crate::resource::{GroupResource, Resource};
use crate::unpack::ReadError;
use actions::ActionsError;
use prepare::{ArchiveItem, PreparedItem, ReadyObject};

/// Why an item is restored.
#[derive(Clone, Copy)]
pub(super) enum VisitReason<'a> {
    /// The order of the restore.
    Scheduled,
    /// Another item needs it.
    NeededBy {
        /// The item that needs it.
        parent: &'a ResourceIdentifier,
        /// True if the item is restored even where the filters exclude it.
        must_be_included: bool,
    },
}

impl<'a> VisitReason<'a> {
    /// The item that needs this one, if any.
    pub(super) fn parent(self) -> Option<&'a ResourceIdentifier> {
        match self {
            Self::Scheduled => None,
            Self::NeededBy { parent, .. } => Some(parent),
        }
    }
}

/// Handles each item: restores it, or only plans it.
pub(super) trait Visitor: Send + Sync {
    /// Handles an item, unless another task does or did. Additional items of its actions are visited first.
    fn visit<'a>(
        &'a self,
        context: &'a Arc<Context>,
        served_api: &'a Arc<ServedApi>,
        id: ResourceIdentifier,
        reason: VisitReason<'a>,
    ) -> BoxFuture<'a, ()>;
}

/// Visits an item, with as much stack as its nested values need.
pub(super) async fn visit(
    context: &Arc<Context>,
    served_api: &Arc<ServedApi>,
    id: ResourceIdentifier,
    reason: VisitReason<'_>,
) {
    let levels = context.contents.levels(&id);
    stack::with_stack_for(levels, context.visitor.visit(context, served_api, id, reason)).await;
}

/// Visits an additional item in a task of its own, so that a chain of items that add one another uses no more stack
/// than one of them, however long it is. The chain ends because each item is visited once.
pub(super) async fn visit_additional_item(
    context: &Arc<Context>,
    served_api: &Arc<ServedApi>,
    id: ResourceIdentifier,
    parent: &ResourceIdentifier,
    must_be_included: bool,
) {
    let (shared, served_api, parent) =
        (Arc::clone(context), Arc::clone(served_api), parent.clone());
    // A set of one: dropping the waiting caller aborts the task.
    let mut task = JoinSet::new();
    let visiting = async move {
        let reason = VisitReason::NeededBy { parent: &parent, must_be_included };
        visit(&shared, &served_api, id, reason).await;
    };
    task.spawn(visiting.in_current_span());
    while let Some(ended) = task.join_next().await {
        report_task_failure(context, ended);
    }
}

/// Visitor that restores items.
pub(super) struct Restorer;

impl Visitor for Restorer {
    fn visit<'a>(
        &'a self,
        context: &'a Arc<Context>,
        served_api: &'a Arc<ServedApi>,
        id: ResourceIdentifier,
        reason: VisitReason<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let _memory = reserve_memory(context, &id, reason).await;
            if context.has_stopped() {
                return;
            }
            let ItemClaim::Acquired(mut claim) =
                context.claimed_items.claim(&id, reason.parent()).await
            else {
                return;
            };
            let mut item = ItemRestore::new(context, served_api, &id);
            match item.restore(reason).await {
                Ok(ItemOutcome::InCluster(action)) => {
                    claim.mark_in_cluster();
                    item.record_outcome(action);
                }
                Ok(ItemOutcome::Skipped(reason)) => {
                    tracing::info!(item = %id, "not restored: {reason}");
                    item.record_outcome(AppliedAction::Skipped);
                }
                Ok(ItemOutcome::ContentExcluded(reason)) => {
                    tracing::info!(item = %id, "not restored: {reason}");
                }
                Ok(ItemOutcome::Excluded(reason)) => {
                    tracing::debug!(item = %id, "not restored: {reason}");
                    claim.release();
                    return;
                }
                Err(error) => {
                    context.report.error(&id, error_text(&error));
                    item.record_outcome(AppliedAction::Failed);
                }
            }
            item.warn_unused_volume();
            context.progress.add_done();
        })
    }
}

/// Waits until there is memory for a scheduled item. An additional item does not wait: the item that needs it holds
/// the memory that it would wait for.
pub(super) async fn reserve_memory<'a>(
    context: &'a Context,
    id: &ResourceIdentifier,
    reason: VisitReason<'_>,
) -> Option<SemaphorePermit<'a>> {
    match reason {
        VisitReason::Scheduled => {
            context.rate_limiter.reserve_memory(context.contents.size(id)).await
        }
        VisitReason::NeededBy { .. } => None,
    }
}

/// Outcome of an item.
enum ItemOutcome {
    /// The object is in the cluster; the action says how it got there.
    InCluster(AppliedAction),
    /// The item is not restored, with the reason.
    Skipped(SkipReason),
    /// The pod or job had completed when it was backed up. Not listed, as in Velero.
    ContentExcluded(Reason),
    /// The filters exclude the item.
    Excluded(Reason),
}

/// Why an item that the filters select is not restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SkipReason {
    /// An action says so.
    Action(Name),
    /// An action said so in an earlier process.
    ActionBeforeRestart,
    /// A volume is not created, since its data is missing.
    NoData(MissingData),
    /// A volume is not created, since its claim gets one from a CSI snapshot with this handle.
    FromClaim { snapshot: String },
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Action(name) => write!(f, "the action {name} skips the item"),
            Self::ActionBeforeRestart => {
                f.write_str("an action skipped the item before the server restarted")
            }
            Self::NoData(missing) => missing.fmt(f),
            Self::FromClaim { snapshot } => {
                let snapshot = in_brackets(snapshot);
                write!(f, "the claim gets a new volume from a CSI snapshot{snapshot}")
            }
        }
    }
}

/// Why an item could not be restored.
#[derive(Debug, thiserror::Error)]
pub(super) enum ItemError {
    #[error("the item is not in the backup")]
    NotInBackup,
    #[error(transparent)]
    NotServed(#[from] NotServed),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Parse(#[from] InvalidItem),
    #[error(transparent)]
    Reset(#[from] NoMetadata),
    #[error("the item has no target")]
    NoTarget,
    #[error(transparent)]
    Namespace(#[from] Arc<NamespaceError>),
    #[error(transparent)]
    Volume(#[from] Arc<VolumeError>),
    #[error(transparent)]
    VolumeName(#[from] BlockingVolume),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Actions(#[from] ActionsError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// An item that is being restored.
pub(super) struct ItemRestore<'a> {
    pub(super) context: &'a Arc<Context>,
    pub(super) served_api: &'a Arc<ServedApi>,
    pub(super) id: &'a ResourceIdentifier,
    /// Resulting object: resource, namespace, name.
    pub(super) target: Option<(Arc<Resource>, String, String)>,
    /// Messages and operations of the actions, until they are merged into the run.
    report: Report,
    operations: Mutex<Vec<Operation>>,
    /// Additional items that must be included whatever the filters say, since no other item brings them.
    additional: Mutex<Vec<ResourceIdentifier>>,
    /// Set if the cluster does not serve the kind. An action or a modifier may change it.
    pub(super) not_served: Option<NotServed>,
    /// The volume created from a snapshot, until the PersistentVolume is in the cluster.
    pub(super) restored_volume: Option<Box<RestoredVolume>>,
}

impl<'a> ItemRestore<'a> {
    pub(super) fn new(
        context: &'a Arc<Context>,
        served_api: &'a Arc<ServedApi>,
        id: &'a ResourceIdentifier,
    ) -> Self {
        let (report, operations, additional) = Default::default();
        let (target, not_served, restored_volume) = (None, None, None);
        Self {
            context,
            served_api,
            id,
            target,
            report,
            operations,
            additional,
            not_served,
            restored_volume,
        }
    }

    fn begin_operation(&self, operation: Operation) {
        self.operations.lock().push(operation);
    }

    fn add_additional(&self, id: ResourceIdentifier) {
        self.additional.lock().push(id);
    }

    fn additional(&self) -> Vec<ResourceIdentifier> {
        self.additional.lock().clone()
    }

    fn operations(&self) -> Vec<Operation> {
        self.operations.lock().clone()
    }

    /// Merges the messages and operations of the actions into the run.
    fn merge_into_run(&self) {
        let (errors, warnings) = self.report.messages();
        self.context.report.append(errors, warnings);
        self.operations()
            .into_iter()
            .for_each(|operation| self.context.record_operation(operation));
    }
}

impl ItemRestore<'_> {
    async fn restore(&mut self, reason: VisitReason<'_>) -> Result<ItemOutcome, ItemError> {
        let Self { context, id, .. } = *self;
        let stored = match self.read_item(reason)? {
            ArchiveItem::Excluded(reason) => return Ok(ItemOutcome::Excluded(reason)),
            ArchiveItem::Namespace => return self.restore_namespace().await,
            ArchiveItem::ContentExcluded(reason) => {
                return Ok(ItemOutcome::ContentExcluded(reason));
            }
            ArchiveItem::Object(stored) => stored,
        };
        if !stored.namespace.is_empty() {
            namespace::ensure(context, &id.namespace, &stored.namespace).await?;
        }
        let kind = stored.kind.clone();
        let ready = match self.prepare_object(*stored).await? {
            PreparedItem::Ready(ready) => *ready,
            PreparedItem::Skipped(reason) => return Ok(ItemOutcome::Skipped(reason)),
            PreparedItem::Waiting(blocking) => return Err(blocking.into()),
        };
        let ReadyObject { resource, namespace, value, status, managed_fields } = ready;
        failpoint::hit(Failpoint::Create);
        let AppliedObject { action: applied, created } =
            apply::apply(context, &resource, &namespace, id, &value).await?;
        failpoint::hit(Failpoint::Created);
        if let (Some(created), Some(fields)) = (&created, managed_fields)
            && let Err(error) = apply::write_managed_fields(context, created, fields).await
        {
            let text = format!("the managedFields of the object could not be restored: {error}");
            context.report.warn(id, text);
        }
        // An object that existed before does not refer to the volume that was created for it.
        if matches!(applied, AppliedAction::Created | AppliedAction::Updated)
            && let Some(restored_volume) = self.restored_volume.take()
            && let Some((_, _, name)) = &self.target
        {
            context.volume_outcomes.record_restored(name, *restored_volume);
        }
        // As in Velero, an object that existed before keeps its status; only its other fields are updated.
        if let (Some(status), Some(created)) = (status, &created) {
            self.restore_status(&kind, &value, created, status).await;
        }
        if let Some(created) = created {
            if resource.is_core("pods") {
                self.start_hooks(&created);
            } else if resource.is_core("persistentvolumeclaims") {
                volume::track_claim(context, id, &created).await;
            }
        }
        Ok(ItemOutcome::InCluster(applied))
    }

    async fn restore_namespace(&self) -> Result<ItemOutcome, ItemError> {
        let (_, _, target) = self.target.as_ref().ok_or(ItemError::NoTarget)?;
        Ok(ItemOutcome::InCluster(namespace::restore(self.context, self.id, target).await?))
    }

    async fn restore_status(
        &self,
        kind: &GroupResource,
        value: &Value,
        created: &Object,
        status: Value,
    ) {
        let Self { context, served_api, id, .. } = *self;
        let annotations = value.pointer("/metadata/annotations").cloned().unwrap_or_default();
        let annotations: BTreeMap<String, String> =
            serde_json::from_value(annotations).unwrap_or_default();
        if !served_api.filter.restores_status(kind, &annotations) {
            return;
        }
        if let Err(error) = apply::write_status(context, created, status).await {
            context
                .report
                .warn(id, format!("the status of the object could not be restored: {error}"));
        }
    }

    /// Schedules the hooks of a pod, to run once its containers do.
    fn start_hooks(&self, pod: &Object) {
        let context = self.context;
        let limits = hook::HookLimits { default_wait: context.options.resource_timeout };
        context.hooks.start(&context.cluster, &context.report, pod, limits, &context.stop);
    }

    /// Warns about a volume that a plugin created for the item and that nothing refers to.
    fn warn_unused_volume(&self) {
        if let Some(volume) = self.restored_volume.as_ref().filter(|volume| volume.is_new) {
            let text = format!("{} is left over: no object refers to it", volume.description);
            self.context.report.warn(self.id, text);
        }
    }

    fn record_outcome(&self, action: AppliedAction) {
        if let Some((resource, namespace, name)) = &self.target {
            let outcomes = &self.context.outcomes;
            outcomes.record(&resource.api_version(), &resource.kind, namespace, name, action);
        }
    }
}
