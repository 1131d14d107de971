//! Namespaces: looked at once, and created only in thought.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bowline_plugin::ResourceIdentifier;
use tokio::sync::OnceCell;

use super::super::{Context, namespace};
use super::{Finding, PlanVerdict, Planner, refusal};

/// Which namespaces were looked at.
#[derive(Debug, Default)]
pub(super) struct NamespaceStates {
    known: Mutex<HashMap<String, Arc<OnceCell<NamespaceState>>>>,
}

/// How it is with a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamespaceState {
    /// It is there, or one may not look.
    Exists,
    /// The restore would create it.
    WillBeCreated,
    /// It is being deleted, and the restore would create it again.
    Terminating,
    /// It cannot be created, and why.
    Refused(String),
}

impl NamespaceState {
    /// Why nothing can be tried in it, if nothing can.
    pub(super) fn reason(&self, name: &str) -> Option<String> {
        match self {
            Self::Exists => None,
            Self::WillBeCreated => Some(format!("its namespace {name} does not exist yet")),
            Self::Terminating => Some(format!(
                "its namespace {name} is being deleted; the restore would wait for that"
            )),
            Self::Refused(reason) => Some(reason.clone()),
        }
    }
}

impl Planner {
    /// Looks at the namespace that `original` is restored to. Whoever comes first does it, and notes
    /// what would be done to it.
    pub(super) async fn namespace_state(
        &self,
        context: &Context,
        original: &str,
        target: &str,
    ) -> NamespaceState {
        let cell = {
            let mut known = self.namespaces.known.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(target.to_owned()).or_default())
        };
        cell.get_or_init(|| self.check_namespace_state(context, original, target)).await.clone()
    }

    async fn check_namespace_state(
        &self,
        context: &Context,
        original: &str,
        target: &str,
    ) -> NamespaceState {
        let Some(resource) = context.served_api().resources.core("namespaces").cloned() else {
            return NamespaceState::Refused("the cluster serves no namespaces".to_owned());
        };
        let get = || context.cluster.get(&resource, "", target);
        match context.rate_limiter.send(get).await {
            Ok(None) => {}
            Ok(Some(namespace)) if namespace.is_being_deleted => {
                return NamespaceState::Terminating;
            }
            Ok(Some(_)) => return NamespaceState::Exists,
            // What is tried in it will tell.
            Err(error) if refusal::is_permission_error(&error) => return NamespaceState::Exists,
            Err(error) => {
                return NamespaceState::Refused(format!("its namespace {target}: {error}"));
            }
        }
        let finding = match namespace::namespace_item(
            context,
            namespace::base_namespace(context, original, target),
            target,
        ) {
            Ok(item) => {
                let create = || context.cluster.create(&resource, "", &item);
                match context.rate_limiter.send(create).await {
                    Ok(_) => Finding::new(PlanVerdict::Create, ""),
                    // Somebody was faster.
                    Err(error) if error.is_already_exists() => return NamespaceState::Exists,
                    Err(error) => self.judge_error(&error),
                }
            }
            Err(error) => Finding::new(PlanVerdict::Refuse, error),
        };
        let state = match &finding {
            Finding { verdict: PlanVerdict::Refuse, reason } => NamespaceState::Refused(format!(
                "its namespace {target} cannot be created: {reason}"
            )),
            _ => NamespaceState::WillBeCreated,
        };
        let id = ResourceIdentifier {
            group: String::new(),
            resource: "namespaces".to_owned(),
            namespace: String::new(),
            name: original.to_owned(),
        };
        self.record_finding(&id, Some((&resource, &String::new(), &target.to_owned())), finding);
        state
    }
}
