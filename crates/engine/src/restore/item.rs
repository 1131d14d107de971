//! One item: read, shown to the actions, changed where it must be, written.
//!
//! What an action wants is restored first. An item that several want is restored once, and those
//! that need it wait for it ([`ClaimedItems`](super::once::Once)) without holding a place at the API server.
//! What it becomes is found out in [`prepare`], which a dry run uses as well.

pub(super) mod prepare;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bowline_plugin::ResourceIdentifier;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::SemaphorePermit;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::apply::AppliedObject;
use super::item_claims::ItemClaim;
use super::outcome::AppliedAction;
use super::version::NotServed;
use super::volume::RestoredVolume;
use super::{Context, ServedApi, apply, hook, namespace, report_task_failure, stack, volume};
use crate::failpoint::{self, Point};
use crate::item::Object;
use crate::operation::Operation;
use crate::report::Report;
use crate::resource::{GroupResource, Resource};
use prepare::{ArchiveItem, PreparedItem, ReadyObject};

/// Why an item is restored.
#[derive(Clone, Copy)]
pub(super) enum VisitReason<'a> {
    /// It is its turn.
    Scheduled,
    /// Another item needs it.
    NeededBy {
        /// That one.
        parent: &'a ResourceIdentifier,
        /// Whether it is restored even where the filters leave it out.
        must_be_included: bool,
    },
}

impl<'a> VisitReason<'a> {
    /// The item that needs it, if one does.
    pub(super) fn parent(self) -> Option<&'a ResourceIdentifier> {
        match self {
            Self::Scheduled => None,
            Self::NeededBy { parent, .. } => Some(parent),
        }
    }
}

/// What is done with each item: it is restored, or only looked at.
pub(super) trait Visitor: Send + Sync {
    /// Does it, unless somebody else does or did. What the actions of the item add is visited first.
    fn visit<'a>(
        &'a self,
        context: &'a Arc<Context>,
        served_api: &'a Arc<ServedApi>,
        id: ResourceIdentifier,
        reason: VisitReason<'a>,
    ) -> BoxFuture<'a, ()>;
}

/// Visits an item, with as much stack as its nested values take.
pub(super) async fn visit(
    context: &Arc<Context>,
    served_api: &Arc<ServedApi>,
    id: ResourceIdentifier,
    reason: VisitReason<'_>,
) {
    let levels = context.contents.levels(&id);
    stack::with_stack_for(levels, context.visitor.visit(context, served_api, id, reason)).await;
}

/// Visits an item that another one needs, in a task of its own. So a chain of items that add one another
/// takes no more stack than one of them, however long it is. It ends, because each item is visited once.
pub(super) async fn visit_additional_item(
    context: &Arc<Context>,
    served_api: &Arc<ServedApi>,
    id: ResourceIdentifier,
    parent: &ResourceIdentifier,
    must_be_included: bool,
) {
    let (shared, served_api, parent) =
        (Arc::clone(context), Arc::clone(served_api), parent.clone());
    // A set of one: the task ends with whoever waits for it.
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

/// Restores items.
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
                Ok(ItemOutcome::Completed(reason)) => {
                    tracing::info!(item = %id, "not restored: {reason}");
                }
                Ok(ItemOutcome::Excluded(reason)) => {
                    tracing::debug!(item = %id, "not restored: {reason}");
                    claim.release();
                    return;
                }
                Err(error) => {
                    context.report.error(&id, error);
                    item.record_outcome(AppliedAction::Failed);
                }
            }
            item.warn_unused_volume();
            context.progress.add_done();
        })
    }
}

/// Waits until there is memory for an item whose turn it is. One that another needs does not wait:
/// the other holds what it would wait for.
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

/// How the work on an item ended.
enum ItemOutcome {
    /// It is in the cluster; this was done for it.
    InCluster(AppliedAction),
    /// It is not to be brought back, and why.
    Skipped(String),
    /// It had done its work when it was backed up, and is in no list, as in Velero.
    Completed(String),
    /// It is not part of the restore.
    Excluded(String),
}

/// An item that is being worked on.
pub(super) struct ItemRestore<'a> {
    pub(super) context: &'a Arc<Context>,
    pub(super) served_api: &'a Arc<ServedApi>,
    pub(super) id: &'a ResourceIdentifier,
    /// What it becomes: resource, namespace, name.
    pub(super) target: Option<(Arc<Resource>, String, String)>,
    /// What the actions have told of it, and begun, until that is noted.
    report: Report,
    operations: Mutex<Vec<Operation>>,
    /// What they want restored with it whatever the filters say, so that nobody else brings it.
    additional: Mutex<Vec<ResourceIdentifier>>,
    /// That the cluster does not serve its kind, if so. An action or a modifier may change it.
    pub(super) not_served: Option<NotServed>,
    /// The volume that it gets from a snapshot, until it is in the cluster.
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

    /// An action has begun an operation.
    fn begin_operation(&self, operation: Operation) {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).push(operation);
    }

    /// An action wants another item restored.
    fn add_additional(&self, id: ResourceIdentifier) {
        self.additional.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }

    /// The items that were added.
    fn additional(&self) -> Vec<ResourceIdentifier> {
        self.additional.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The operations that were begun.
    fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Hands on what the actions have told and begun.
    fn merge_into_run(&self) {
        let (errors, warnings) = self.report.messages();
        self.context.report.append(errors, warnings);
        self.operations()
            .into_iter()
            .for_each(|operation| self.context.record_operation(operation));
    }
}

impl ItemRestore<'_> {
    async fn restore(&mut self, reason: VisitReason<'_>) -> Result<ItemOutcome, String> {
        let Self { context, id, .. } = *self;
        let stored = match self.read_item(reason)? {
            ArchiveItem::Excluded(reason) => return Ok(ItemOutcome::Excluded(reason.to_string())),
            ArchiveItem::Namespace => return self.restore_namespace().await,
            ArchiveItem::NotRestorable(reason) => {
                return Ok(ItemOutcome::Completed(reason.to_string()));
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
            PreparedItem::Waiting(reason) => return Err(reason),
        };
        let ReadyObject { resource, namespace, value, status, managed_fields } = ready;
        failpoint::hit(Point::Create);
        let AppliedObject { action: applied, created } =
            apply::apply(context, &resource, &namespace, id, &value).await?;
        failpoint::hit(Point::Created);
        if let (Some(created), Some(fields)) = (&created, managed_fields)
            && let Err(error) = apply::write_managed_fields(context, created, fields).await
        {
            let text =
                format!("the owners of its fields (managedFields) could not be restored: {error}");
            context.report.warn(id, text);
        }
        // One that was there already does not point to what was made for it.
        if matches!(applied, AppliedAction::Created | AppliedAction::Updated)
            && let Some(restored_volume) = self.restored_volume.take()
            && let Some((_, _, name)) = &self.target
        {
            context.volume_outcomes.record_restored(name, *restored_volume);
        }
        // As in Velero, of what was there before only the rest is updated.
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

    async fn restore_namespace(&self) -> Result<ItemOutcome, String> {
        let (_, _, target) = self.target.as_ref().ok_or("it has no target")?;
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
            context.report.warn(id, format!("its status could not be restored: {error}"));
        }
    }

    /// Lets the hooks of a pod run when it does.
    fn start_hooks(&self, pod: &Object) {
        let context = self.context;
        let limits = hook::HookLimits { default_wait: context.options.resource_timeout };
        context.hooks.start(&context.cluster, &context.report, pod, limits, &context.stop);
    }

    /// Tells of a volume that a plugin made for it and that nothing points to.
    fn warn_unused_volume(&self) {
        if let Some(volume) = self.restored_volume.as_ref().filter(|brought| brought.is_new) {
            let text = format!("{} is left over: nothing points to it", volume.description);
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
