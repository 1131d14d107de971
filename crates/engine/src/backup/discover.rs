//! Resources that can be backed up.
//!
//! Input: the resources that the API server serves. Output: those that can be listed and restored, each once.

use crate::cluster::Discovery;
use crate::report::{Report, ReportSubject};
use crate::resource::{Resource, Resources};

/// Verbs that a resource must support, to be read now and written again later.
const VERBS: [&str; 4] = ["list", "create", "get", "delete"];

/// Resources whose objects are served by two groups. The first one found counts; `extensions` always comes last.
const COHABITING: [(&str, [&str; 2]); 5] = [
    ("deployments", ["extensions", "apps"]),
    ("daemonsets", ["extensions", "apps"]),
    ("replicasets", ["extensions", "apps"]),
    ("networkpolicies", ["extensions", "networking.k8s.io"]),
    ("events", ["", "events.k8s.io"]),
];

/// Resources of the core group that come first.
const CORE_FIRST: [&str; 3] = ["pods", "persistentvolumeclaims", "persistentvolumes"];

/// Groups whose objects are computed, so that there is never anything to back up.
const COMPUTED: [&str; 3] = ["metrics.k8s.io", "custom.metrics.k8s.io", "external.metrics.k8s.io"];

/// The resources that can be backed up, in order.
pub(super) fn resources(discovery: &Discovery) -> Resources {
    let mut found: Vec<&Resource> = discovery
        .resources
        .iter()
        .filter(|resource| !resource.id.resource.contains('/'))
        .filter(|resource| VERBS.iter().all(|verb| resource.verbs.iter().any(|has| has == verb)))
        .collect();
    found.sort_by_key(|resource| {
        let is_late = resource.id.group == "extensions";
        let core = CORE_FIRST.iter().position(|first| resource.is_core(first));
        (is_late, !resource.id.group.is_empty(), core.unwrap_or(CORE_FIRST.len()))
    });
    let mut resources: Vec<&Resource> = Vec::new();
    for resource in found {
        if !resources.iter().any(|earlier| are_cohabiting(earlier, resource)) {
            resources.push(resource);
        }
    }
    Resources::new(resources.into_iter().cloned())
}

/// True if two resources of different groups serve the same objects.
fn are_cohabiting(one: &Resource, other: &Resource) -> bool {
    let groups = COHABITING.iter().find(|(name, _)| *name == one.id.resource).map(|(_, g)| g);
    one.id.resource == other.id.resource
        && one.id.group != other.id.group
        && groups.is_some_and(|groups| {
            groups.contains(&one.id.group.as_str()) && groups.contains(&other.id.group.as_str())
        })
}

/// Reports groups that did not answer: their objects are missing in the backup.
pub(super) fn report_failed_groups(discovery: &Discovery, report: &Report) {
    for failed in &discovery.failed {
        let group = failed.split('/').next().unwrap_or_default();
        let message = format!("API group {failed}; its objects are not in the backup");
        if COMPUTED.contains(&group) {
            tracing::info!("{message}; backups never include its objects");
        } else {
            report.error(ReportSubject::Run, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::GroupResource;

    fn resource(group: &str, plural: &str, verbs: &[&str]) -> Resource {
        Resource {
            id: GroupResource::new(group, plural),
            version: "v1".into(),
            kind: plural.into(),
            singular: plural.into(),
            short_names: Vec::new(),
            is_namespaced: true,
            verbs: verbs.iter().map(ToString::to_string).collect(),
        }
    }

    fn names(found: Vec<Resource>) -> Vec<String> {
        let discovery = Discovery { resources: found, failed: Vec::new() };
        resources(&discovery).iter().map(|resource| resource.id.to_string()).collect()
    }

    #[test]
    fn resources_without_required_verbs_are_excluded() {
        let found = names(vec![
            resource("", "pods", &VERBS),
            resource("", "pods/log", &VERBS),
            resource("", "componentstatuses", &["list", "get"]),
            resource("metrics.k8s.io", "pods", &["list", "get"]),
        ]);
        assert_eq!(found, ["pods"]);
    }

    #[test]
    fn pods_and_volumes_come_first_and_extensions_last() {
        let found = names(vec![
            resource("extensions", "ingresses", &VERBS),
            resource("", "configmaps", &VERBS),
            resource("", "persistentvolumes", &VERBS),
            resource("apps", "deployments", &VERBS),
            resource("", "persistentvolumeclaims", &VERBS),
            resource("", "pods", &VERBS),
        ]);
        assert_eq!(
            found,
            [
                "pods",
                "persistentvolumeclaims",
                "persistentvolumes",
                "configmaps",
                "deployments.apps",
                "ingresses.extensions",
            ]
        );
    }

    #[test]
    fn objects_that_two_groups_serve_are_taken_from_the_first() {
        let found = names(vec![
            resource("extensions", "deployments", &VERBS),
            resource("events.k8s.io", "events", &VERBS),
            resource("", "events", &VERBS),
            resource("apps", "deployments", &VERBS),
            resource("example.io", "deployments", &VERBS),
        ]);
        assert_eq!(found, ["events", "deployments.apps", "deployments.example.io"]);
    }

    #[test]
    fn failed_api_group_is_an_error_unless_its_objects_are_computed() {
        let report = Report::default();
        let failed = vec!["metrics.k8s.io/v1beta1: gone".into(), "shop.io/v1: gone".into()];
        report_failed_groups(&Discovery { resources: Vec::new(), failed }, &report);
        assert_eq!(
            report.results().errors.velero,
            ["API group shop.io/v1: gone; its objects are not in the backup"]
        );
    }
}
