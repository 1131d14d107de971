//! One item: read, shown to the actions, changed where it must be, written.
//!
//! What an action wants is restored first. An item that several want is restored once, and those
//! that need it wait for it ([`Once`](super::once::Once)) without holding a place at the API server.
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

use super::apply::Applied;
use super::once::Turn;
use super::outcome::Action;
use super::version::NotServed;
use super::volume::Brought;
use super::{Context, World, apply, hook, namespace, stack, tell_broken, volume};
use crate::item::Object;
use crate::operation::Operation;
use crate::point::{self, Point};
use crate::report::Report;
use crate::resource::{GroupResource, Resource};
use prepare::{Found, Ready, Shaped};

/// Why an item is restored.
#[derive(Clone, Copy)]
pub(super) enum Why<'a> {
    /// It is its turn.
    Turn,
    /// Another item needs it.
    NeededBy {
        /// That one.
        parent: &'a ResourceIdentifier,
        /// Whether it is restored even where the filters leave it out.
        must_be_included: bool,
    },
}

impl<'a> Why<'a> {
    /// The item that needs it, if one does.
    pub(super) fn parent(self) -> Option<&'a ResourceIdentifier> {
        match self {
            Self::Turn => None,
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
        world: &'a Arc<World>,
        id: ResourceIdentifier,
        why: Why<'a>,
    ) -> BoxFuture<'a, ()>;
}

/// Visits an item, with as much stack as its nested values take.
pub(super) async fn visit(
    context: &Arc<Context>,
    world: &Arc<World>,
    id: ResourceIdentifier,
    why: Why<'_>,
) {
    let levels = context.contents.levels(&id);
    stack::with_room(levels, context.visitor.visit(context, world, id, why)).await;
}

/// Visits an item that another one needs, in a task of its own. So a chain of items that add one another
/// takes no more stack than one of them, however long it is. It ends, because each item is visited once.
pub(super) async fn visit_needed(
    context: &Arc<Context>,
    world: &Arc<World>,
    id: ResourceIdentifier,
    parent: &ResourceIdentifier,
    must_be_included: bool,
) {
    let (shared, world, parent) = (Arc::clone(context), Arc::clone(world), parent.clone());
    // A set of one: the task ends with whoever waits for it.
    let mut task = JoinSet::new();
    let visiting = async move {
        let why = Why::NeededBy { parent: &parent, must_be_included };
        visit(&shared, &world, id, why).await;
    };
    task.spawn(visiting.in_current_span());
    while let Some(ended) = task.join_next().await {
        tell_broken(context, ended);
    }
}

/// Restores items.
pub(super) struct Restorer;

impl Visitor for Restorer {
    fn visit<'a>(
        &'a self,
        context: &'a Arc<Context>,
        world: &'a Arc<World>,
        id: ResourceIdentifier,
        why: Why<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let _room = room(context, &id, why).await;
            if context.has_stopped() {
                return;
            }
            let Turn::Mine(mut working) = context.once.take(&id, why.parent()).await else {
                return;
            };
            let mut item = Working::new(context, world, &id);
            match item.restore(why).await {
                Ok(Ended::There(action)) => {
                    working.exists();
                    item.note(action);
                }
                Ok(Ended::Skipped(reason)) => {
                    tracing::info!(item = %id, "not restored: {reason}");
                    item.note(Action::Skipped);
                }
                Ok(Ended::Over(reason)) => tracing::info!(item = %id, "not restored: {reason}"),
                Ok(Ended::LeftOut(reason)) => {
                    tracing::debug!(item = %id, "not restored: {reason}");
                    working.leave();
                    return;
                }
                Err(error) => {
                    context.report.error(&id, error);
                    item.note(Action::Failed);
                }
            }
            item.tell_left_over();
            context.progress.done();
        })
    }
}

/// Waits until there is memory for an item whose turn it is. One that another needs does not wait:
/// the other holds what it would wait for.
pub(super) async fn room<'a>(
    context: &'a Context,
    id: &ResourceIdentifier,
    why: Why<'_>,
) -> Option<SemaphorePermit<'a>> {
    match why {
        Why::Turn => context.pace.room(context.contents.size(id)).await,
        Why::NeededBy { .. } => None,
    }
}

/// How the work on an item ended.
enum Ended {
    /// It is in the cluster; this was done for it.
    There(Action),
    /// It is not to be brought back, and why.
    Skipped(String),
    /// It had done its work when it was backed up, and is in no list, as in Velero.
    Over(String),
    /// It is not part of the restore.
    LeftOut(String),
}

/// An item that is being worked on.
pub(super) struct Working<'a> {
    pub(super) context: &'a Arc<Context>,
    pub(super) world: &'a Arc<World>,
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
    pub(super) brought: Option<Box<Brought>>,
}

impl<'a> Working<'a> {
    pub(super) fn new(
        context: &'a Arc<Context>,
        world: &'a Arc<World>,
        id: &'a ResourceIdentifier,
    ) -> Self {
        let (report, operations, additional) = Default::default();
        let (target, not_served, brought) = (None, None, None);
        Self { context, world, id, target, report, operations, additional, not_served, brought }
    }

    /// An action has begun an operation.
    fn begin_operation(&self, operation: Operation) {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).push(operation);
    }

    /// An action wants another item restored.
    fn add(&self, id: ResourceIdentifier) {
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
    fn hand_over(&self) {
        let (errors, warnings) = self.report.messages();
        self.context.report.take_over(errors, warnings);
        self.operations().into_iter().for_each(|operation| self.context.begun(operation));
    }
}

impl Working<'_> {
    async fn restore(&mut self, why: Why<'_>) -> Result<Ended, String> {
        let Self { context, id, .. } = *self;
        let stored = match self.find(why)? {
            Found::LeftOut(reason) => return Ok(Ended::LeftOut(reason.to_string())),
            Found::Namespace => return self.restore_namespace().await,
            Found::Ended(reason) => return Ok(Ended::Over(reason.to_string())),
            Found::Object(stored) => stored,
        };
        if !stored.namespace.is_empty() {
            namespace::ensure(context, &id.namespace, &stored.namespace).await?;
        }
        let kind = stored.kind.clone();
        let ready = match self.shape(*stored).await? {
            Shaped::Ready(ready) => *ready,
            Shaped::Skipped(reason) => return Ok(Ended::Skipped(reason)),
            Shaped::Waiting(reason) => return Err(reason),
        };
        let Ready { resource, namespace, value, status, managed_fields } = ready;
        point::pass(Point::Create);
        let Applied { action: applied, created } =
            apply::apply(context, &resource, &namespace, id, &value).await?;
        point::pass(Point::Created);
        if let (Some(created), Some(fields)) = (&created, managed_fields)
            && let Err(error) = apply::managed_fields(context, created, fields).await
        {
            let text =
                format!("the owners of its fields (managedFields) could not be restored: {error}");
            context.report.warning(id, text);
        }
        // One that was there already does not point to what was made for it.
        if matches!(applied, Action::Created | Action::Updated)
            && let Some(brought) = self.brought.take()
            && let Some((_, _, name)) = &self.target
        {
            context.volume_outcomes.restored(name, *brought);
        }
        // As in Velero, of what was there before only the rest is updated.
        if let (Some(status), Some(created)) = (status, &created) {
            self.restore_status(&kind, &value, created, status).await;
        }
        if let Some(created) = created {
            if resource.is_core("pods") {
                self.begin_hooks(&created);
            } else if resource.is_core("persistentvolumeclaims") {
                volume::follow(context, id, &created).await;
            }
        }
        Ok(Ended::There(applied))
    }

    async fn restore_namespace(&self) -> Result<Ended, String> {
        let (_, _, target) = self.target.as_ref().ok_or("it has no target")?;
        Ok(Ended::There(namespace::restore(self.context, self.id, target).await?))
    }

    async fn restore_status(
        &self,
        kind: &GroupResource,
        value: &Value,
        created: &Object,
        status: Value,
    ) {
        let Self { context, world, id, .. } = *self;
        let annotations = value.pointer("/metadata/annotations").cloned().unwrap_or_default();
        let annotations: BTreeMap<String, String> =
            serde_json::from_value(annotations).unwrap_or_default();
        if !world.filter.restores_status(kind, &annotations) {
            return;
        }
        if let Err(error) = apply::status(context, created, status).await {
            context.report.warning(id, format!("its status could not be restored: {error}"));
        }
    }

    /// Lets the hooks of a pod run when it does.
    fn begin_hooks(&self, pod: &Object) {
        let context = self.context;
        let limits = hook::Limits { default_wait: context.options.resource_timeout };
        context.hooks.begin(&context.cluster, &context.report, pod, limits, &context.stop);
    }

    /// Tells of a volume that a plugin made for it and that nothing points to.
    fn tell_left_over(&self) {
        if let Some(brought) = self.brought.as_ref().filter(|brought| brought.is_new) {
            let text = format!("{} is left over: nothing points to it", brought.told);
            self.context.report.warning(self.id, text);
        }
    }

    fn note(&self, action: Action) {
        if let Some((resource, namespace, name)) = &self.target {
            let outcomes = &self.context.outcomes;
            outcomes.note(&resource.api_version(), &resource.kind, namespace, name, action);
        }
    }
}
