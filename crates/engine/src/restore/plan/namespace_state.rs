//! Namespaces in a dry run: checked once, and created only with dry-run requests.

use std::collections::HashMap;
use std::sync::Arc;

use bowline_plugin::ResourceIdentifier;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::super::{Context, namespace};
use super::{Finding, PlanVerdict, Planner, refusal};

/// Namespaces checked so far.
#[derive(Debug, Default)]
pub(super) struct NamespaceStates {
    known: Mutex<HashMap<String, Arc<OnceCell<NamespaceState>>>>,
}

/// State of a target namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamespaceState {
    /// The namespace exists, or may not be read.
    Exists,
    /// The restore would create it.
    WillBeCreated,
    /// The namespace is being deleted, and the restore would create it again.
    Terminating,
    /// The namespace cannot be created, with the reason.
    Refused(String),
}

impl NamespaceState {
    /// Why objects in the namespace cannot be validated, if so.
    pub(super) fn reason(&self, name: &str) -> Option<String> {
        match self {
            Self::Exists => None,
            Self::WillBeCreated => Some(format!("namespace {name} does not exist yet")),
            Self::Terminating => Some(format!(
                "namespace {name} is being deleted; the restore would wait until it is gone"
            )),
            Self::Refused(reason) => Some(reason.clone()),
        }
    }
}

impl Planner {
    /// State of the target namespace of `original`. The first caller determines it and records the plan for the
    /// namespace.
    pub(super) async fn namespace_state(
        &self,
        context: &Context,
        original: &str,
        target: &str,
    ) -> NamespaceState {
        let cell = {
            let mut known = self.namespaces.known.lock();
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
            return NamespaceState::Refused("the API server does not serve namespaces".to_owned());
        };
        let get = || context.cluster.get(&resource, "", target);
        match context.rate_limiter.send(get).await {
            Ok(None) => {}
            Ok(Some(namespace)) if namespace.is_being_deleted => {
                return NamespaceState::Terminating;
            }
            Ok(Some(_)) => return NamespaceState::Exists,
            // The dry-run requests in the namespace will show.
            Err(error) if refusal::is_permission_error(&error) => return NamespaceState::Exists,
            Err(error) => {
                return NamespaceState::Refused(format!("namespace {target}: {error}"));
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
                    // Another client created the namespace in between.
                    Err(error) if error.is_already_exists() => return NamespaceState::Exists,
                    Err(error) => self.judge_error(&error),
                }
            }
            Err(error) => Finding::new(PlanVerdict::Refuse, error.to_string()),
        };
        let state = match &finding {
            Finding { verdict: PlanVerdict::Refuse, reason } => {
                NamespaceState::Refused(format!("namespace {target} cannot be created: {reason}"))
            }
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
