//! What the server may do in a cluster: the rules that `bowline install` grants, and no more.
//!
//! | profile | reads | writes |
//! |---|---|---|
//! | [`Profile::BackupOnly`] | everything | its own namespace; runs hooks in pods; snapshots of CSI volumes |
//! | [`Profile::Full`] | everything | besides that, creates and changes everything, and grants what it does not have |
//!
//! A restore brings back roles and bindings, whatever they allow. Whoever may do that can make
//! himself an administrator, so *full* amounts to one, though it is not bound to `cluster-admin`.
//!
//! A rule for every resource is also one for what lies below them, such as `nodes/proxy`: RBAC has no
//! way to leave that out. So *backup-only*, too, is for a namespace that only administrators use.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::GROUP;

/// How much a server may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Enough to back up, and to delete backups.
    #[default]
    BackupOnly,
    /// Enough to restore, too.
    Full,
}

impl Profile {
    /// Both, the lesser one first.
    pub const ALL: [Self; 2] = [Self::BackupOnly, Self::Full];

    /// Its name on the command line.
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

/// A word that is no profile.
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

/// What the server may do in all namespaces, and with what lies in none.
pub fn cluster_rules(profile: Profile) -> Vec<PolicyRule> {
    let mut rules = vec![
        // What is backed up may be of any kind, also of one that is installed tomorrow.
        rule(&["*"], &["*"], &["get", "list", "watch"]),
        // Hooks are run in pods.
        rule(&[""], &["pods/exec"], &["create"]),
        // Snapshots of CSI volumes are objects beside the claims that they are of.
        rule(
            &["snapshot.storage.k8s.io"],
            // The status of a content that is made for a deletion names the snapshot.
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
        // Roles and bindings of a backup may allow what the server itself may not.
        rules.push(rule(
            &["rbac.authorization.k8s.io"],
            &["roles", "clusterroles"],
            &["bind", "escalate"],
        ));
    }
    rules
}

/// What the server may do in its own namespace.
pub fn own_rules() -> Vec<PolicyRule> {
    const WRITE: &[&str] = &["create", "update", "patch", "delete"];
    vec![
        rule(&[GROUP], &["*"], WRITE),
        // The journal of runs.
        rule(&[""], &["configmaps"], WRITE),
        // One server at a time.
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

    /// Whether a rule allows something by name, not by a wildcard of verbs.
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
