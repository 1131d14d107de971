//! Namespaces: checked once, waited for while they terminate, created if missing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::{InvalidItem, Item, ResourceIdentifier};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::outcome::AppliedAction;
use super::{Context, difference};
use crate::cluster;

/// Interval between checks of a terminating namespace.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Namespaces that are known to exist.
#[derive(Debug, Default)]
pub(super) struct NamespaceCache {
    known: Mutex<HashMap<String, Arc<OnceCell<NamespaceResult>>>>,
}

/// Error if a namespace cannot be used; otherwise how it came to exist.
pub(super) type NamespaceResult = Result<AppliedAction, Arc<NamespaceError>>;

/// Why a namespace cannot be used. Shared by all its items.
#[derive(Debug, thiserror::Error)]
pub(super) enum NamespaceError {
    #[error("the API server does not serve namespaces")]
    NotServed,
    #[error("the restore was stopped before the namespace {0} was ready")]
    Stopped(String),
    #[error("the namespace {name} is still being deleted after {} s", limit.as_secs())]
    Terminating { name: String, limit: Duration },
    #[error("the namespace of the item cannot be created")]
    Cluster(#[from] cluster::Error),
    #[error(transparent)]
    Item(#[from] InvalidItem),
}

/// Restores a Namespace of the backup. If several are mapped to the same target and this is not the one that the
/// target is created from, reports the labels and annotations that the other one lacks: they are lost.
pub(super) async fn restore(
    context: &Context,
    id: &ResourceIdentifier,
    target: &str,
) -> NamespaceResult {
    let action = ensure(context, &id.name, target).await?;
    let base_name = base_namespace(context, &id.name, target);
    if action == AppliedAction::Created && base_name != id.name {
        let value = |name: &str| {
            let item = namespace_item(context, name, target)?;
            item.parse::<Value>().map_err(NamespaceError::Item)
        };
        if let Some(fields) = difference::differs(&value(&id.name)?, &value(base_name)?) {
            let text = format!(
                "labels or annotations of the namespace are not restored, because namespace \
                 {target} was created from {base_name}: {}",
                fields.join(", ")
            );
            context.report.warn(id, text);
        }
    }
    Ok(action)
}

/// The namespace of the backup from which a target namespace is created. If several are mapped to it, the one with
/// the same name, otherwise the first.
pub(super) fn base_namespace<'a>(
    context: &'a Context,
    original: &'a str,
    target: &'a str,
) -> &'a str {
    let served_api = context.served_api();
    let is_stored = |name: &&str| {
        context.contents.has(&namespace_id(name)) && served_api.filter.namespace(name).is_restore()
    };
    let sources = || context.collisions.sources(target).filter(is_stored);
    sources().find(|name| *name == target).or_else(|| sources().next()).unwrap_or(original)
}

fn namespace_id(name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: String::new(),
        resource: "namespaces".to_owned(),
        namespace: String::new(),
        name: name.to_owned(),
    }
}

/// Ensures that the target namespace of `original` exists. The first caller does the work; the others wait for it.
pub(super) async fn ensure(context: &Context, original: &str, target: &str) -> NamespaceResult {
    let cell = {
        let mut known = context.namespaces.known.lock();
        Arc::clone(known.entry(target.to_owned()).or_default())
    };
    let make_ready = async || make_ready(context, original, target).await.map_err(Arc::new);
    cell.get_or_init(make_ready).await.clone()
}

async fn make_ready(
    context: &Context,
    original: &str,
    target: &str,
) -> Result<AppliedAction, NamespaceError> {
    let Some(resource) = context.served_api().resources.core("namespaces").cloned() else {
        return Err(NamespaceError::NotServed);
    };
    let deadline = Instant::now() + context.options.terminating_timeout;
    let mut termination_wait = None;
    loop {
        if context.stop.is_cancelled() {
            return Err(NamespaceError::Stopped(target.to_owned()));
        }
        let get = || context.cluster.get(&resource, "", target);
        match context.rate_limiter.send(get).await? {
            None => {}
            Some(namespace) if !namespace.is_being_deleted => return Ok(AppliedAction::Skipped),
            Some(_) if Instant::now() >= deadline => {
                let limit = context.options.terminating_timeout;
                return Err(NamespaceError::Terminating { name: target.to_owned(), limit });
            }
            Some(_) => {
                termination_wait.get_or_insert_with(|| TerminationWait::start(context, target));
                // The next check notices a stop.
                let pause = tokio::time::sleep(POLL_INTERVAL);
                context.stop.run_until_cancelled(pause).await;
                continue;
            }
        }
        let item = namespace_item(context, base_namespace(context, original, target), target)?;
        let create = || context.cluster.create(&resource, "", &item);
        return match context.rate_limiter.send(create).await {
            Ok(_) => Ok(AppliedAction::Created),
            // Another client created the namespace in between. It may already be terminating again.
            Err(error) if error.is_already_exists() && Instant::now() < deadline => continue,
            Err(error) => Err(error.into()),
        };
    }
}

/// Publishes that the restore waits for a namespace, until dropped.
struct TerminationWait<'a> {
    context: &'a Context,
    target: &'a str,
    started_at: Instant,
}

impl<'a> TerminationWait<'a> {
    fn start(context: &'a Context, target: &'a str) -> Self {
        let limit = context.options.terminating_timeout.as_secs();
        tracing::warn!(
            "namespace {target} is being deleted; waiting up to {limit} s until it is gone"
        );
        context.progress.add_terminating_namespace(target);
        Self { context, target, started_at: Instant::now() }
    }
}

impl Drop for TerminationWait<'_> {
    fn drop(&mut self) {
        let Self { context, target, started_at } = self;
        context.progress.remove_terminating_namespace(target);
        let waited = started_at.elapsed().as_secs();
        let text = format!("namespace {target} was being deleted; the restore waited {waited} s");
        context.report.warn(&namespace_id(target), text);
    }
}

/// The namespace from the backup under its target name; a bare one if the backup has none.
pub(super) fn namespace_item(
    context: &Context,
    original: &str,
    target: &str,
) -> Result<Item, InvalidItem> {
    let resource = context.served_api().resources.core("namespaces").cloned();
    // A Namespace that cannot be read is reported when it is restored itself.
    let stored = resource.and_then(|kind| context.contents.object(&kind, None, "", original).ok());
    let stored = stored.and_then(|object| object.item.parse::<Value>().ok());
    // Only labels and annotations, as in Velero: a finalizer would wait for a controller that may not exist, and
    // the namespace could never be deleted.
    let mut metadata = json!({"name": target});
    for field in ["labels", "annotations"] {
        let stored_map = stored.as_ref().and_then(|stored| stored.pointer("/metadata")?.get(field));
        if let Some(stored_map) = stored_map.filter(|had| had.is_object()) {
            metadata[field] = stored_map.clone();
        }
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
    Item::from_object(&namespace)
}
