//! Restore order of kinds.
//!
//! Kinds are sorted into [`Step`]s. The kinds of one step may be restored concurrently; a step begins when the
//! previous one has ended. Velero restores everything sequentially; here all kinds without a priority form one step.
//!
//! Both ends are fixed, unless the priorities name these kinds. CustomResourceDefinitions and namespaces come
//! first, since everything else depends on them. Kinds that intercept writes to the API server come last: a
//! webhook whose pods are not running yet would refuse everything that follows.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::resource::{GroupResource, Resources};

const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
const NAMESPACES: &str = "namespaces";

/// Kinds that come after all others, step by step. APIServices come before webhooks, since webhooks may
/// intercept them too.
const LAST_KINDS: [&[&str]; 2] = [
    &["apiservices.apiregistration.k8s.io"],
    &[
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
    ],
];

/// Separates the two lists in the flag.
const SEPARATOR: &str = "-";

/// Kinds to restore first and last, in the user's spelling. The default is Velero's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Priorities {
    /// First, in this order.
    pub high: Vec<String>,
    /// Last, in this order.
    pub low: Vec<String>,
}

impl Default for Priorities {
    fn default() -> Self {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Self {
            high: owned(&[
                "customresourcedefinitions",
                "namespaces",
                "storageclasses",
                "volumesnapshotclass.snapshot.storage.k8s.io",
                "volumesnapshotcontents.snapshot.storage.k8s.io",
                "volumesnapshots.snapshot.storage.k8s.io",
                "datauploads.velero.io",
                "persistentvolumes",
                "persistentvolumeclaims",
                "clusterroles",
                "roles",
                "serviceaccounts",
                "clusterrolebindings",
                "rolebindings",
                "secrets",
                "configmaps",
                "limitranges",
                "priorityclasses",
                "pods",
                "replicasets.apps",
                "clusterclasses.cluster.x-k8s.io",
                "endpoints",
                "services",
            ]),
            low: owned(&[
                "clusterbootstraps.run.tanzu.vmware.com",
                "clusters.cluster.x-k8s.io",
                "clusterresourcesets.addons.cluster.x-k8s.io",
                "apps.kappctrl.k14s.io",
                "packageinstalls.packaging.carvel.dev",
            ]),
        }
    }
}

/// A text that is not a valid list of priorities.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPriorities {
    /// More than one `-`.
    #[error(
        "{0:?} has more than one {SEPARATOR:?}: expected the high priorities, one {SEPARATOR:?}, \
         and the low priorities"
    )]
    Separators(String),
    /// An empty name between two commas.
    #[error("{0:?} has an empty name between its commas")]
    Empty(String),
}

/// Parses `a,b,-,c`: a and b first, c last, all others in between. An empty text is the default.
impl FromStr for Priorities {
    type Err = InvalidPriorities;

    fn from_str(text: &str) -> Result<Self, InvalidPriorities> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        if names.iter().any(|name| name.is_empty()) {
            return Err(InvalidPriorities::Empty(text.to_owned()));
        }
        let mut lists = names.split(|name| *name == SEPARATOR);
        let mut next =
            || lists.next().unwrap_or_default().iter().map(ToString::to_string).collect();
        let priorities = Self { high: next(), low: next() };
        match lists.next() {
            Some(_) => Err(InvalidPriorities::Separators(text.to_owned())),
            None => Ok(priorities),
        }
    }
}

impl fmt::Display for Priorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An empty text is the default.
        if self.high.is_empty() && self.low.is_empty() {
            return f.write_str(SEPARATOR);
        }
        f.write_str(&self.high.join(","))?;
        if !self.low.is_empty() {
            let comma = if self.high.is_empty() { "" } else { "," };
            write!(f, "{comma}{SEPARATOR},{}", self.low.join(","))?;
        }
        Ok(())
    }
}

/// Kinds that may be restored concurrently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Position in the restore.
    pub group: StepGroup,
    /// The kinds, sorted by name.
    pub kinds: Vec<GroupResource>,
}

/// Position of a step in the restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepGroup {
    /// CustomResourceDefinitions. After this group the cluster may serve more kinds.
    Definitions,
    /// Namespaces.
    Namespaces,
    /// A kind with high priority.
    High,
    /// All kinds without a priority.
    Rest,
    /// A kind with low priority.
    Low,
    /// Kinds that may block every later write.
    Last,
}

/// Sorts kinds into steps. Each kind is in exactly one step.
pub fn steps<'a>(
    kinds: impl IntoIterator<Item = &'a GroupResource>,
    priorities: &Priorities,
    resources: &Resources,
) -> Vec<Step> {
    let mut remaining: BTreeSet<&GroupResource> = kinds.into_iter().collect();
    let mut steps = Vec::new();
    let mut step = |group, kinds: Vec<&GroupResource>| {
        if !kinds.is_empty() {
            steps.push(Step { group, kinds: kinds.into_iter().cloned().collect() });
        }
    };
    step(StepGroup::Definitions, take_kinds(&mut remaining, &[DEFINITIONS], resources));
    step(StepGroup::Namespaces, take_kinds(&mut remaining, &[NAMESPACES], resources));
    for name in &priorities.high {
        step(StepGroup::High, take_kinds(&mut remaining, &[name], resources));
    }
    let low = priorities.low.iter().map(|name| take_kinds(&mut remaining, &[name], resources));
    let low: Vec<_> = low.collect();
    let last = LAST_KINDS.map(|names| take_kinds(&mut remaining, names, resources));
    step(StepGroup::Rest, remaining.into_iter().collect());
    for kinds in low {
        step(StepGroup::Low, kinds);
    }
    for kinds in last {
        step(StepGroup::Last, kinds);
    }
    steps
}

/// Removes and returns the kinds that some names refer to.
fn take_kinds<'a>(
    remaining: &mut BTreeSet<&'a GroupResource>,
    names: &[&str],
    resources: &Resources,
) -> Vec<&'a GroupResource> {
    let mut matched = Vec::new();
    for name in names {
        let found = match resources.resolve(name) {
            Some(resource) => remaining.get(&resource.id).copied(),
            None => remaining.iter().find(|kind| is_named(kind, name)).copied(),
        };
        if let Some(kind) = found {
            remaining.remove(kind);
            matched.push(kind);
        }
    }
    matched
}

/// True if a name refers to a kind that the cluster does not serve: its plural, with or without its group.
fn is_named(kind: &GroupResource, name: &str) -> bool {
    let (resource, group) = name.split_once('.').unwrap_or((name, ""));
    kind.resource == resource && kind.group.starts_with(group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake::usual_resources;

    fn kind(name: &str) -> GroupResource {
        let (resource, group) = name.split_once('.').unwrap_or((name, ""));
        GroupResource::new(group, resource)
    }

    fn ordered(kinds: &[&str], priorities: &Priorities) -> Vec<(StepGroup, Vec<String>)> {
        let kinds: Vec<_> = kinds.iter().map(|name| kind(name)).collect();
        let steps = steps(&kinds, priorities, &Resources::new(usual_resources()));
        let names = |step: &Step| step.kinds.iter().map(ToString::to_string).collect();
        steps.iter().map(|step| (step.group, names(step))).collect()
    }

    #[test]
    fn priorities_are_parsed_as_velero_parses_them() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (text, high, low) in [
            ("a", &["a"][..], &[][..]),
            ("a,b", &["a", "b"], &[]),
            ("a,b,-,c,d", &["a", "b"], &["c", "d"]),
            ("-,c", &[], &["c"]),
            ("a,-", &["a"], &[]),
            ("-", &[], &[]),
            (" a , b ", &["a", "b"], &[]),
        ] {
            let expected = Priorities { high: names(high), low: names(low) };
            assert_eq!(text.parse(), Ok(expected.clone()), "{text}");
            assert_eq!(expected.to_string().parse(), Ok(expected), "{text}");
        }
        assert_eq!("".parse(), Ok(Priorities::default()));
        for bad in ["a,-,b,-,c", "a,,b", ",", "-,-"] {
            assert!(bad.parse::<Priorities>().is_err(), "{bad}");
        }
    }

    #[test]
    fn empty_priorities_are_not_the_default() {
        let none: Priorities = "-".parse().unwrap();
        assert_ne!(none, Priorities::default());
        assert_eq!(none.to_string().parse(), Ok(none));
    }

    #[test]
    fn default_priorities_round_trip_through_text() {
        let priorities = Priorities::default();
        assert_eq!(priorities.to_string().parse(), Ok(priorities));
    }

    #[test]
    fn steps_come_in_the_order_of_the_priorities() {
        let kinds = [
            "validatingwebhookconfigurations.admissionregistration.k8s.io",
            "mutatingwebhookconfigurations.admissionregistration.k8s.io",
            "apiservices.apiregistration.k8s.io",
            "packageinstalls.packaging.carvel.dev",
            "apps.kappctrl.k14s.io",
            "widgets.example.io",
            "deployments.apps",
            "services",
            "replicasets.apps",
            "pods",
            "clusterroles.rbac.authorization.k8s.io",
            "persistentvolumeclaims",
            "persistentvolumes",
            "storageclasses.storage.k8s.io",
            "namespaces",
            "customresourcedefinitions.apiextensions.k8s.io",
        ];
        let one = |group, name: &str| (group, vec![name.to_owned()]);
        let expected = vec![
            one(StepGroup::Definitions, "customresourcedefinitions.apiextensions.k8s.io"),
            one(StepGroup::Namespaces, "namespaces"),
            one(StepGroup::High, "storageclasses.storage.k8s.io"),
            one(StepGroup::High, "persistentvolumes"),
            one(StepGroup::High, "persistentvolumeclaims"),
            one(StepGroup::High, "clusterroles.rbac.authorization.k8s.io"),
            one(StepGroup::High, "pods"),
            one(StepGroup::High, "replicasets.apps"),
            one(StepGroup::High, "services"),
            (StepGroup::Rest, vec!["deployments.apps".into(), "widgets.example.io".into()]),
            one(StepGroup::Low, "apps.kappctrl.k14s.io"),
            one(StepGroup::Low, "packageinstalls.packaging.carvel.dev"),
            one(StepGroup::Last, "apiservices.apiregistration.k8s.io"),
            (
                StepGroup::Last,
                vec![
                    "mutatingwebhookconfigurations.admissionregistration.k8s.io".into(),
                    "validatingwebhookconfigurations.admissionregistration.k8s.io".into(),
                ],
            ),
        ];
        assert_eq!(ordered(&kinds, &Priorities::default()), expected);
    }

    #[test]
    fn user_priorities_override_the_fixed_order() {
        let kinds = [
            "apiservices.apiregistration.k8s.io",
            "pods",
            "secrets",
            "widgets.example.io",
            "namespaces",
            "gadgets.other.io",
        ];
        let priorities = "apiservices,widgets,po,-,secrets,gadgets.other".parse().unwrap();
        let one = |group, name: &str| (group, vec![name.to_owned()]);
        let expected = vec![
            one(StepGroup::Namespaces, "namespaces"),
            one(StepGroup::High, "apiservices.apiregistration.k8s.io"),
            one(StepGroup::High, "widgets.example.io"),
            one(StepGroup::High, "pods"),
            one(StepGroup::Low, "secrets"),
            one(StepGroup::Low, "gadgets.other.io"),
        ];
        assert_eq!(ordered(&kinds, &priorities), expected);
    }

    #[test]
    fn every_kind_is_in_one_step() {
        let known = Resources::new(usual_resources());
        let kinds: Vec<_> = known.iter().map(|resource| resource.id.clone()).collect();
        let twice = kinds.iter().chain(&kinds);
        let steps = steps(twice, &Priorities::default(), &known);
        let mut found: Vec<_> = steps.into_iter().flat_map(|step| step.kinds).collect();
        found.sort();
        let mut kinds = kinds;
        kinds.sort();
        assert_eq!(found, kinds);
        assert_eq!(super::steps([], &Priorities::default(), &known), []);
    }
}
