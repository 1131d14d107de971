//! Namespaces: looked at once, and created only in thought.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bowline_plugin::ResourceIdentifier;
use tokio::sync::OnceCell;

use super::super::{Context, namespace};
use super::{Finding, Planner, Verdict, refusal};

/// Which namespaces were looked at.
#[derive(Debug, Default)]
pub(super) struct Places {
    known: Mutex<HashMap<String, Arc<OnceCell<Place>>>>,
}

/// How it is with a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is there, or one may not look.
    There,
    /// The restore would create it.
    Coming,
    /// It is being deleted, and the restore would create it again.
    Leaving,
    /// It cannot be created, and why.
    Refused(String),
}

impl Place {
    /// Why nothing can be tried in it, if nothing can.
    pub(super) fn reason(&self, name: &str) -> Option<String> {
        match self {
            Self::There => None,
            Self::Coming => Some(format!("its namespace {name} does not exist yet")),
            Self::Leaving => Some(format!(
                "its namespace {name} is being deleted; the restore would wait for that"
            )),
            Self::Refused(reason) => Some(reason.clone()),
        }
    }
}

impl Planner {
    /// Looks at the namespace that `original` is restored to. Whoever comes first does it, and notes
    /// what would be done to it.
    pub(super) async fn place(&self, context: &Context, original: &str, target: &str) -> Place {
        let cell = {
            let mut known = self.places.known.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(target.to_owned()).or_default())
        };
        cell.get_or_init(|| self.find_place(context, original, target)).await.clone()
    }

    async fn find_place(&self, context: &Context, original: &str, target: &str) -> Place {
        let Some(resource) = context.world().resources.core("namespaces").cloned() else {
            return Place::Refused("the cluster serves no namespaces".to_owned());
        };
        let get = || context.cluster.get(&resource, "", target);
        match context.pace.ask(get).await {
            Ok(None) => {}
            Ok(Some(namespace)) if namespace.is_being_deleted => return Place::Leaving,
            Ok(Some(_)) => return Place::There,
            // What is tried in it will tell.
            Err(error) if refusal::is_about_rights(&error) => return Place::There,
            Err(error) => return Place::Refused(format!("its namespace {target}: {error}")),
        }
        let finding = match namespace::namespace_item(
            context,
            namespace::base(context, original, target),
            target,
        ) {
            Ok(item) => {
                let create = || context.cluster.create(&resource, "", &item);
                match context.pace.ask(create).await {
                    Ok(_) => Finding::new(Verdict::Create, ""),
                    // Somebody was faster.
                    Err(error) if error.is_already_there() => return Place::There,
                    Err(error) => self.judge(&error),
                }
            }
            Err(error) => Finding::new(Verdict::Refuse, error),
        };
        let place = match &finding {
            Finding { verdict: Verdict::Refuse, reason } => {
                Place::Refused(format!("its namespace {target} cannot be created: {reason}"))
            }
            _ => Place::Coming,
        };
        let id = ResourceIdentifier {
            group: String::new(),
            resource: "namespaces".to_owned(),
            namespace: String::new(),
            name: original.to_owned(),
        };
        self.note(&id, Some((&resource, &String::new(), &target.to_owned())), finding);
        place
    }
}
