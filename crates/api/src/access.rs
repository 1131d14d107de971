//! Permissions of the server: exactly the rules that `bowline install` grants.
//!
//! | profile | reads | writes |
//! |---|---|---|
//! | [`Profile::BackupOnly`] | everything | its own namespace; runs hooks in pods; snapshots of CSI volumes |
//! | [`Profile::Full`] | everything | the same; creates and changes everything; grants permissions that it lacks |
//!
//! A restore recreates roles and bindings, whatever they allow. So *full* amounts to an administrator, although it is
//! not bound to `cluster-admin`.
//!
//! A rule for every resource includes subresources, such as `nodes/proxy`: RBAC cannot exclude them. So only
//! administrators may use the server's namespace, with *backup-only* as well.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::GROUP;

/// Permissions of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// For backups and their deletion.
    #[default]
    BackupOnly,
    /// For restores as well.
    Full,
}

impl Profile {
    /// All profiles, the one with fewer permissions first.
    pub const ALL: [Self; 2] = [Self::BackupOnly, Self::Full];

    /// Name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BackupOnly => "backup-only",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Unknown name of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid profile `{0}`: expected backup-only or full")]
pub struct UnknownProfile(String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|profile| profile.as_str() == text);
        found.ok_or_else(|| UnknownProfile(text.to_owned()))
    }
}

/// Permissions in all namespaces, and for cluster-scoped objects.
pub fn cluster_rules(profile: Profile) -> Vec<PolicyRule> {
    let mut rules = vec![
        // Backups include objects of every kind, also of kinds that are installed later.
        rule(&["*"], &["*"], &["get", "list", "watch"]),
        // For hooks.
        rule(&[""], &["pods/exec"], &["create"]),
        // For snapshots of CSI volumes.
        rule(
            &["snapshot.storage.k8s.io"],
            // To delete a snapshot, Bowline creates a content whose status names the snapshot.
            &["volumesnapshots", "volumesnapshotcontents", "volumesnapshotcontents/status"],
            &["create", "update", "patch", "delete"],
        ),
        rule(
            &["groupsnapshot.storage.k8s.io"],
            &[
                "volumegroupsnapshots",
                "volumegroupsnapshotcontents",
                "volumegroupsnapshotcontents/status",
            ],
            &["create", "update", "patch", "delete"],
        ),
    ];
    if profile == Profile::Full {
        rules.push(rule(&["*"], &["*"], &["create", "update", "patch"]));
        // Roles and bindings of a backup may grant permissions that the server lacks.
        rules.push(rule(
            &["rbac.authorization.k8s.io"],
            &["roles", "clusterroles"],
            &["bind", "escalate"],
        ));
    }
    rules
}

/// Permissions in the server's own namespace.
pub fn own_rules() -> Vec<PolicyRule> {
    const WRITE: &[&str] = &["create", "update", "patch", "delete"];
    vec![
        rule(&[GROUP], &["*"], WRITE),
        // The journal of runs.
        rule(&[""], &["configmaps"], WRITE),
        // For the Lease of the active server.
        rule(&["coordination.k8s.io"], &["leases"], &["create", "update", "patch"]),
        rule(&["", "events.k8s.io"], &["events"], &["create", "patch"]),
    ]
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(texts(groups)),
        resources: Some(texts(resources)),
        verbs: texts(verbs),
        ..PolicyRule::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True if a rule allows a verb by name, not by a wildcard.
    fn allows(rules: &[PolicyRule], group: &str, resource: &str, verb: &str) -> bool {
        let has = |list: &[String], text: &str| list.iter().any(|one| one == "*" || one == text);
        rules.iter().any(|rule| {
            has(rule.api_groups.as_deref().unwrap_or_default(), group)
                && has(rule.resources.as_deref().unwrap_or_default(), resource)
                && has(&rule.verbs, verb)
        })
    }

    #[test]
    fn no_profile_grants_all_verbs_or_deletes_foreign_resources() {
        for profile in Profile::ALL {
            let rules = cluster_rules(profile);
            assert!(rules.iter().all(|rule| !rule.verbs.contains(&"*".to_owned())), "{profile}");
            for (group, resource) in [("", "namespaces"), ("", "secrets"), ("apps", "deployments")]
            {
                assert!(!allows(&rules, group, resource, "delete"), "{profile}: {resource}");
            }
            assert!(!allows(&rules, "", "users", "impersonate"), "{profile}");
        }
    }

    #[test]
    fn only_the_full_profile_writes_outside_its_namespace() {
        let backup_only = cluster_rules(Profile::BackupOnly);
        let full = cluster_rules(Profile::Full);
        for (group, resource, verb) in [
            ("", "secrets", "create"),
            ("apps", "deployments", "patch"),
            ("rbac.authorization.k8s.io", "clusterroles", "escalate"),
            ("rbac.authorization.k8s.io", "clusterrolebindings", "create"),
        ] {
            assert!(!allows(&backup_only, group, resource, verb), "{verb} {resource}");
            assert!(allows(&full, group, resource, verb), "{verb} {resource}");
        }
    }

    #[test]
    fn profile_round_trips() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        let error = "admin".parse::<Profile>().unwrap_err();
        assert_eq!(error.to_string(), "invalid profile `admin`: expected backup-only or full");
    }
}
