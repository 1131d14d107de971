//! Interprets the API server's refusals of dry-run requests.
//!
//! A refusal may concern the user who runs the plan, and not apply to the server. Or it may concern an object that does
//! not exist yet, and will exist when the restore reaches the item.

use std::collections::HashSet;

use super::{Finding, PlanVerdict};
use crate::cluster::Error;
use crate::resource::GroupResource;

const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
const ACCOUNTS: &str = "serviceaccounts";
const PRIORITIES: &str = "priorityclasses.scheduling.k8s.io";
const ROLES: &str = "roles.rbac.authorization.k8s.io";
const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";

/// Kinds that the API server requires before it accepts other objects.
const DEPENDENCY_KINDS: [&str; 5] = [DEFINITIONS, ACCOUNTS, PRIORITIES, ROLES, CLUSTER_ROLES];

/// Planned objects that others depend on.
#[derive(Debug, Default)]
pub(super) struct PlannedDependencies(HashSet<(String, String)>);

impl PlannedDependencies {
    /// Adds an object that would be restored, if others may depend on it.
    pub(super) fn add(&mut self, kind: &GroupResource, namespace: &str, name: &str) {
        let kind = kind.to_string();
        if DEPENDENCY_KINDS.contains(&kind.as_str()) {
            self.0.insert((kind, format!("{namespace}/{name}")));
        }
    }

    /// True if the definition of a kind would be restored.
    pub(super) fn defines(&self, kind: &GroupResource) -> bool {
        self.has(DEFINITIONS, &format!("/{kind}"))
    }

    fn has(&self, kind: &str, name: &str) -> bool {
        self.0.contains(&(kind.to_owned(), name.to_owned()))
    }

    /// True if an object of that name would be restored, in any namespace.
    fn has_anywhere(&self, kind: &str, name: &str) -> bool {
        let is_called = |key: &str| key.rsplit_once('/').is_some_and(|(_, own)| own == name);
        self.0.iter().any(|(of, key)| of == kind && is_called(key))
    }
}

/// Finding for a refusal.
pub(super) fn judge_refusal(error: &Error, planned: &PlannedDependencies) -> Finding {
    let refuse = || Finding::new(PlanVerdict::Refuse, error.to_string());
    let not_validated = |reason: String| Finding::new(PlanVerdict::NotValidated, reason);
    let Error::Refused { code, message, .. } = error else { return refuse() };
    match cause_in_message(*code, message) {
        Some(RefusalCause::Permission) => {
            not_validated(format!("your permissions are not sufficient for a dry run: {message}"))
        }
        Some(RefusalCause::WebhookWithoutDryRun) => {
            not_validated(format!("a dry run is not possible: {message}"))
        }
        Some(RefusalCause::ServiceAccount(account)) if planned.has(ACCOUNTS, account) => {
            not_validated(format!("the service account {account} does not exist yet"))
        }
        Some(RefusalCause::PriorityClass(class))
            if planned.has(PRIORITIES, &format!("/{class}")) =>
        {
            not_validated(format!("the priority class {class} does not exist yet"))
        }
        Some(RefusalCause::NotFound { kind: "namespaces", name }) => {
            not_validated(format!("namespace {name} does not exist yet"))
        }
        Some(RefusalCause::NotFound { kind: kind @ (ROLES | CLUSTER_ROLES), name })
            if planned.has_anywhere(kind, name) =>
        {
            not_validated(format!("{kind} {name} does not exist yet"))
        }
        _ => refuse(),
    }
}

/// True if the user lacks permission, which says nothing about the server.
pub(super) fn is_permission_error(error: &Error) -> bool {
    matches!(error, Error::Refused { code, message, .. }
        if cause_in_message(*code, message) == Some(RefusalCause::Permission))
}

/// Cause of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusalCause<'a> {
    /// The user lacks permission.
    Permission,
    /// A webhook does not support dry runs.
    WebhookWithoutDryRun,
    /// A pod needs this service account: `namespace/name`.
    ServiceAccount(&'a str),
    /// A pod needs this priority class.
    PriorityClass(&'a str),
    /// An object that the request depends on does not exist.
    NotFound { kind: &'a str, name: &'a str },
}

/// The cause of a refusal, if it is a known one.
///
/// This reads the text for people, because the answer of the API server has no other form of it. RBAC, the escalation
/// check and all admission plugins answer `Forbidden`, and their `details` name the object in the request, never the
/// cause (`NewForbidden` in apiserver/pkg/admission/errors.go); a webhook without dry runs is a plain `BadRequest`
/// (`NewDryRunUnsupportedErr` in apiserver/pkg/admission/plugin/webhook/errors). Only a missing object is named by
/// `details`, in the same words as in the message.
fn cause_in_message(code: u16, message: &str) -> Option<RefusalCause<'_>> {
    let is_denied = message.contains(": User \"") && message.contains("\" cannot ");
    let is_escalation =
        message.contains("is attempting to grant RBAC permissions not currently held");
    if code == 403 && (is_denied || is_escalation) {
        return Some(RefusalCause::Permission);
    }
    if message.contains("does not support dry run") {
        return Some(RefusalCause::WebhookWithoutDryRun);
    }
    if let Some(account) = between(message, "error looking up service account ", ": ") {
        return Some(RefusalCause::ServiceAccount(account));
    }
    if let Some(class) = between(message, "no PriorityClass with name ", " was found") {
        return Some(RefusalCause::PriorityClass(class));
    }
    // `roles.rbac.authorization.k8s.io "x" not found`
    let (kind, name) = message.strip_suffix("\" not found")?.split_once(" \"")?;
    (code == 404).then_some(RefusalCause::NotFound { kind, name })
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    Some(rest.split_once(after).map_or(rest, |(found, _)| found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, message: &str) -> Error {
        Error::Refused { code, reason: "Why".into(), message: message.into() }
    }

    #[test]
    fn refusal_that_may_not_last_is_not_validated() {
        let mut planned = PlannedDependencies::default();
        for (kind, namespace, name) in [
            (GroupResource::new("", "serviceaccounts"), "shop", "web"),
            (GroupResource::new("scheduling.k8s.io", "priorityclasses"), "", "high"),
            (GroupResource::new("rbac.authorization.k8s.io", "roles"), "shop", "reader"),
            (GroupResource::new("", "configmaps"), "shop", "settings"),
        ] {
            planned.add(&kind, namespace, name);
        }
        let account = |account: &str| {
            format!(
                "pods \"p\" is forbidden: error looking up service account {account}: \
                 serviceaccount \"web\" not found"
            )
        };
        let class = |class: &str| {
            format!("pods \"p\" is forbidden: no PriorityClass with name {class} was found")
        };
        let rows = [
            (
                403,
                "configmaps is forbidden: User \"jane\" cannot create resource \"configmaps\" in \
                 API group \"\" in the namespace \"shop\"",
                Some(
                    "your permissions are not sufficient for a dry run: configmaps is forbidden: ",
                ),
            ),
            (
                403,
                "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"jane\" (groups=[]) is \
                 attempting to grant RBAC permissions not currently held:\n{}",
                Some("your permissions are not sufficient for a dry run: "),
            ),
            (
                400,
                "admission webhook \"a.io\" does not support dry run",
                Some(
                    "a dry run is not possible: admission webhook \"a.io\" does not support dry \
                     run",
                ),
            ),
            (403, &account("shop/web"), Some("the service account shop/web does not")),
            (403, &account("other/web"), None),
            (403, &class("high"), Some("the priority class high does not exist ")),
            (403, &class("low"), None),
            (404, "namespaces \"x\" not found", Some("namespace x does not exist yet")),
            (
                404,
                "roles.rbac.authorization.k8s.io \"reader\" not found",
                Some("roles.rbac.authorization.k8s.io reader does not exist yet"),
            ),
            (404, "roles.rbac.authorization.k8s.io \"writer\" not found", None),
            (404, "configmaps \"settings\" not found", None),
            (422, "Service \"s\" is invalid: namespaces \"x\" not found", None),
            (403, "pods \"p\" is forbidden: exceeded quota: q, requested: pods=1", None),
        ];
        for (code, message, later) in rows {
            let error = refused(code, message);
            let Finding { verdict, reason } = judge_refusal(&error, &planned);
            match later {
                Some(start) => {
                    assert_eq!(verdict, PlanVerdict::NotValidated, "{message}");
                    assert!(reason.starts_with(start), "{reason}");
                }
                None => {
                    assert_eq!((verdict, reason), (PlanVerdict::Refuse, error.to_string()));
                }
            }
        }
        let silent = judge_refusal(&Error::Unreachable("gone".into()), &planned);
        assert_eq!(silent.verdict, PlanVerdict::Refuse);
    }

    #[test]
    fn kind_is_planned_with_its_definition() {
        let mut planned = PlannedDependencies::default();
        let definitions = GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions");
        planned.add(&definitions, "", "widgets.example.io");
        assert!(planned.defines(&GroupResource::new("example.io", "widgets")));
        assert!(!planned.defines(&GroupResource::new("example.io", "gadgets")));
    }
}
