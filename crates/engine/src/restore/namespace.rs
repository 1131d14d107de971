//! Namespaces: looked at once, waited for while they go, created where they are missing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bowline_plugin::Item;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::outcome::Action;
use super::{Context, reset};
use crate::cluster;

/// How often a namespace that is going is looked at.
const PAUSE: Duration = Duration::from_secs(1);

/// Which namespaces are known to be there.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    known: Mutex<HashMap<String, Arc<OnceCell<Ready>>>>,
}

/// Whether a namespace can be used, and whether we made it.
pub(super) type Ready = Result<Action, String>;

/// Makes sure that a namespace is there, under the name that `original` is restored to. Whoever
/// comes first does it; the others wait for it.
pub(super) async fn ensure(context: &Context, original: &str, target: &str) -> Ready {
    let cell = {
        let mut known = context.namespaces.known.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.entry(target.to_owned()).or_default())
    };
    cell.get_or_init(|| make_ready(context, original, target)).await.clone()
}

async fn make_ready(context: &Context, original: &str, target: &str) -> Ready {
    let Some(resource) = context.world().resources.core("namespaces").cloned() else {
        return Err("the cluster serves no namespaces".to_owned());
    };
    let deadline = Instant::now() + context.options.terminating_timeout;
    loop {
        if context.stop.is_cancelled() {
            return Err(format!("the restore was stopped before the namespace {target} was ready"));
        }
        let get = || context.cluster.get(&resource, "", target);
        let found = context.pace.ask(get).await.map_err(|error| told(&error))?;
        match found {
            None => {}
            Some(namespace) if !namespace.is_being_deleted => return Ok(Action::Skipped),
            Some(_) if Instant::now() >= deadline => {
                let limit = context.options.terminating_timeout.as_secs();
                return Err(format!(
                    "the namespace {target} is still being deleted after {limit} s"
                ));
            }
            Some(_) => {
                // What has been stopped is found out by the next look.
                let pause = tokio::time::sleep(PAUSE);
                context.stop.run_until_cancelled(pause).await;
                continue;
            }
        }
        let item = namespace_item(context, original, target)?;
        let create = || context.cluster.create(&resource, "", &item);
        return match context.pace.ask(create).await {
            Ok(_) => Ok(Action::Created),
            // Somebody was faster. It may be on its way out again already.
            Err(error) if error.is_already_there() && Instant::now() < deadline => continue,
            Err(error) => Err(told(&error)),
        };
    }
}

fn told(error: &cluster::Error) -> String {
    format!("its namespace cannot be made ready: {error}")
}

/// The namespace as the backup has it, under the name that it gets; a bare one where it has none.
pub(super) fn namespace_item(
    context: &Context,
    original: &str,
    target: &str,
) -> Result<Item, String> {
    let resource = context.world().resources.core("namespaces").cloned();
    // One that cannot be read is told where it is restored itself.
    let stored = resource.and_then(|kind| context.contents.object(&kind, None, "", original).ok());
    let stored = stored.and_then(|object| object.item.parse::<Value>().ok());
    let mut namespace = stored.unwrap_or_else(|| json!({"metadata": {}}));
    reset::former_life(&mut namespace).map_err(|error| error.to_string())?;
    namespace["apiVersion"] = "v1".into();
    namespace["kind"] = "Namespace".into();
    namespace["metadata"]["name"] = target.into();
    Item::from_object(&namespace).map_err(|error| error.to_string())
}
