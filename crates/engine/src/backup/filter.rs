//! What belongs to a backup: which kinds, which namespaces, which objects.
//!
//! A [`Spec`] of lists enters, compiled once into a [`Filter`] that answers with a [`FilterVerdict`]. The
//! rules are those of Velero's `includes_excludes.go` and of its page on resource filtering. Where
//! the two disagree the page counts:
//!
//! - A backup without resource filters takes cluster-scoped kinds. Velero means to, and then adds
//!   entries of its own to the lists, after which they are no longer empty.
//! - Cluster-scoped kinds are left out when namespaces are *selected*. To exclude some, by the spec
//!   or by a label on them, is no selection.
//! - The Namespace objects of excluded namespaces are not taken.
//! - A list of includes of which nothing is left includes nothing, not everything.

mod compiled_lists;
pub mod namespaces;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bowline_api::label;

use crate::glob::{Glob, Globs};
use crate::resource::{GroupResource, Resource, Resources};
use crate::selector::Selector;
pub use compiled_lists::{CompiledLists, Lists};
pub use verdict::{FilterVerdict, SkipReason};

/// Objects of the CSI snapshot API. Those in the cluster are nobody's data; those that a backup
/// makes come as additional items that must be included.
const NEVER_COLLECTED: [&str; 2] =
    ["volumesnapshots.snapshot.storage.k8s.io", "volumesnapshotcontents.snapshot.storage.k8s.io"];

/// Requests to the server, which are answered and forgotten within minutes. Restored, they would be answered
/// again: a DeleteBackupRequest deletes. And a DownloadRequest has a link in it that opens the bucket.
const REQUESTS: [&str; 3] = [
    "deletebackuprequests.velero.io",
    "downloadrequests.velero.io",
    "serverstatusrequests.velero.io",
];

/// Which namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All, those that come up meanwhile included.
    #[default]
    All,
    /// These. None means none.
    Only(Vec<String>),
}

/// What a user asked for. The default is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// Namespaces to take, without those that are excluded; see [`namespaces::expand`].
    pub namespaces: Scope,
    /// Whether those are all that there are, so that nothing was selected; see [`namespaces::expand`].
    pub is_of_all_namespaces: bool,
    /// Patterns of namespaces to leave out.
    pub excluded_namespaces: Vec<Glob>,
    /// Kinds to take and to leave out.
    pub kinds: Kinds,
    /// Secrets that are never taken.
    pub credentials: Credentials,
}

/// The server's own credentials, which are left out even where an action insists on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The server's namespace.
    pub namespace: String,
    /// The names of Secrets in it.
    pub secrets: BTreeSet<String>,
}

impl Credentials {
    fn contains(&self, resource: &Resource, namespace: &str, name: &str) -> bool {
        resource.is_core("secrets") && namespace == self.namespace && self.secrets.contains(name)
    }
}

/// Which kinds, in one of two ways to say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Velero's old filters: one pair of lists, and a switch for what is cluster-scoped.
    Old {
        /// `includedResources` and `excludedResources`
        lists: Lists,
        /// `includeClusterResources`
        cluster_resources: Option<bool>,
    },
    /// Its new ones: a pair of lists for each scope.
    New {
        /// Those of the backup.
        spec: ScopedLists,
        /// Those of its resource policy, which count where the backup says nothing.
        policy: ScopedLists,
    },
}

/// Names of kinds to take that the cluster does not know, most likely slips of the pen, or that are never
/// stored: the backup must not be empty without a word.
fn kinds_without_items(kinds: &Kinds, resources: &Resources) -> Vec<String> {
    let included: Vec<&Glob> = match kinds {
        Kinds::Old { lists, .. } => lists.included.iter().collect(),
        Kinds::New { spec, policy } => [spec, policy]
            .into_iter()
            .flat_map(|lists| lists.cluster.included.iter().chain(&lists.namespaced.included))
            .collect(),
    };
    let warnings = included.into_iter().filter(|glob| glob.is_literal()).filter_map(|glob| {
        match resources.resolve(glob.as_str()) {
            None => Some(format!("the cluster has no resource {glob}: nothing of it is in the backup")),
            Some(resource) if REQUESTS.contains(&resource.id.to_string().as_str()) => Some(format!(
                "{glob} are requests to a server, which are never stored: nothing of it is in the backup"
            )),
            Some(_) => None,
        }
    });
    warnings.collect()
}

/// Nothing said is said in the new way.
impl Default for Kinds {
    fn default() -> Self {
        Self::New { spec: ScopedLists::default(), policy: ScopedLists::default() }
    }
}

/// A pair of lists for each scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopedLists {
    /// For what lives in no namespace.
    pub cluster: Lists,
    /// For what lives in namespaces.
    pub namespaced: Lists,
}

/// What happens to CustomResourceDefinitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrdRule {
    /// They are collected as any other kind.
    Collected,
    /// None is taken.
    Excluded,
    /// Those of which there is an object in the backup are taken.
    OfStored,
}

/// A compiled [`Spec`].
#[derive(Debug)]
pub struct Filter {
    namespaces: Scope,
    included_namespaces: Option<HashSet<String>>,
    is_of_all_namespaces: bool,
    excluded_namespaces: Globs,
    kinds: CompiledKinds,
    credentials: Credentials,
    warnings: Vec<String>,
}

#[derive(Debug)]
enum CompiledKinds {
    Old { choice: CompiledLists, cluster_resources: Option<bool> },
    New { cluster: CompiledLists, namespaced: CompiledLists },
}

impl Filter {
    /// Compiles a spec. Names of kinds are resolved, so that a user may write `deploy`; those that
    /// are not known are kept as patterns.
    pub fn new(spec: &Spec, resources: &Resources) -> Self {
        let mut warnings = Vec::new();
        let kinds = match &spec.kinds {
            Kinds::Old { lists, cluster_resources } => CompiledKinds::Old {
                choice: CompiledLists::of_kinds(lists, resources),
                cluster_resources: *cluster_resources,
            },
            Kinds::New { spec, policy } => {
                let mut scoped = |own: &Lists, policy: &Lists, is_namespaced| {
                    let mut choice =
                        CompiledLists::of_scope(own, resources, is_namespaced, &mut warnings);
                    choice.add_policy(policy, resources, is_namespaced, &mut warnings);
                    choice
                };
                CompiledKinds::New {
                    cluster: scoped(&spec.cluster, &policy.cluster, false),
                    namespaced: scoped(&spec.namespaced, &policy.namespaced, true),
                }
            }
        };
        warnings.extend(kinds_without_items(&spec.kinds, resources));
        let included_namespaces = match &spec.namespaces {
            Scope::All => None,
            Scope::Only(names) => Some(names.iter().cloned().collect()),
        };
        Self {
            namespaces: spec.namespaces.clone(),
            included_namespaces,
            is_of_all_namespaces: spec.is_of_all_namespaces,
            excluded_namespaces: spec.excluded_namespaces.iter().cloned().collect(),
            kinds,
            credentials: spec.credentials.clone(),
            warnings,
        }
    }

    /// What a user should know about the lists: names that were ignored, with the reason.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether the objects of a kind are collected.
    pub fn kind(&self, resource: &Resource) -> FilterVerdict {
        self.collects(&resource.id, resource.is_namespaced)
    }

    /// Whether an object belongs to the backup, however it came: collected, or as the additional
    /// item of another. Cluster-scoped ones are refused only if they are excluded, so that a volume
    /// follows its claim into a backup of one namespace.
    pub fn item(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        labels: &BTreeMap<String, String>,
    ) -> FilterVerdict {
        if labels.get(label::EXCLUDE_FROM_BACKUP).is_some_and(|value| value == "true") {
            return FilterVerdict::Skip(SkipReason::ExcludeLabel);
        }
        if resource.is_core("namespaces") {
            return self.excludes_namespace(name);
        }
        if !resource.is_namespaced {
            return self.excludes_cluster_scoped(&resource.id);
        }
        match self.includes_namespace(namespace) {
            FilterVerdict::Include => match self.kind(resource) {
                FilterVerdict::Include => self.must_include_verdict(resource, namespace, name),
                skip @ FilterVerdict::Skip(_) => skip,
            },
            skip @ FilterVerdict::Skip(_) => skip,
        }
    }

    /// Whether an object belongs to the backup on which an action insists, whatever the lists say.
    pub fn must_include_verdict(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> FilterVerdict {
        if self.credentials.contains(resource, namespace, name) {
            FilterVerdict::Skip(SkipReason::Credentials)
        } else {
            FilterVerdict::Include
        }
    }

    /// Which namespaces to list objects of. With all of them, objects of excluded ones come along;
    /// [`item`](Self::item) refuses them.
    pub fn namespaces(&self) -> Scope {
        self.namespaces.clone()
    }

    /// Whether the objects in a namespace belong to the backup.
    pub fn includes_namespace(&self, name: &str) -> FilterVerdict {
        if let skip @ FilterVerdict::Skip(_) = self.excludes_namespace(name) {
            return skip;
        }
        match &self.included_namespaces {
            Some(names) if !names.contains(name) => {
                FilterVerdict::Skip(SkipReason::NamespaceNotIncluded)
            }
            _ => FilterVerdict::Include,
        }
    }

    /// Whether a Namespace object is taken for its own sake. One that is not is taken all the same
    /// if an object in it is, unless it is excluded.
    pub fn keeps_namespace_object(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
        is_active: bool,
        selectors: &[Selector],
    ) -> FilterVerdict {
        if !is_active {
            return FilterVerdict::Skip(SkipReason::NamespaceNotActive);
        }
        if let skip @ FilterVerdict::Skip(_) = self.excludes_namespace(name) {
            return skip;
        }
        if selectors.iter().any(|selector| selector.matches(labels)) {
            return FilterVerdict::Include;
        }
        // Who asks for labels everywhere does not ask for every namespace.
        if !self.is_partial() && !selectors.is_empty() {
            return FilterVerdict::Skip(SkipReason::NotSelected);
        }
        self.includes_namespace(name)
    }

    /// What happens to CustomResourceDefinitions.
    pub fn crd_rule(&self) -> CrdRule {
        let id = GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions");
        if !self.excludes_cluster_scoped(&id).is_include() {
            CrdRule::Excluded
        } else if self.collects(&id, false).is_include() {
            CrdRule::Collected
        } else {
            CrdRule::OfStored
        }
    }

    /// Whether namespaces were selected, and the backup is so of a part of the cluster.
    fn is_partial(&self) -> bool {
        self.included_namespaces.is_some() && !self.is_of_all_namespaces
    }

    fn excludes_namespace(&self, name: &str) -> FilterVerdict {
        if self.excluded_namespaces.matches(name) {
            FilterVerdict::Skip(SkipReason::NamespaceExcluded)
        } else {
            FilterVerdict::Include
        }
    }

    fn collects(&self, id: &GroupResource, is_namespaced: bool) -> FilterVerdict {
        let name = id.to_string();
        if NEVER_COLLECTED.contains(&name.as_str()) {
            return FilterVerdict::Skip(SkipReason::SnapshotObject);
        }
        if REQUESTS.contains(&name.as_str()) {
            return FilterVerdict::Skip(SkipReason::Request);
        }
        let are_namespaces = name == "namespaces";
        match &self.kinds {
            CompiledKinds::Old { choice, cluster_resources } => {
                match cluster_resources {
                    Some(false) if !is_namespaced => {
                        return FilterVerdict::Skip(SkipReason::NoClusterResources);
                    }
                    None if !is_namespaced && !are_namespaces && self.is_partial() => {
                        return FilterVerdict::Skip(SkipReason::PartOfCluster);
                    }
                    _ => {}
                }
                choice.verdict(&name)
            }
            CompiledKinds::New { namespaced, .. } if is_namespaced => namespaced.verdict(&name),
            CompiledKinds::New { cluster, namespaced } => {
                let is_full = !self.is_partial() && namespaced.is_everything();
                if cluster.excludes(&name) {
                    FilterVerdict::Skip(SkipReason::KindExcluded)
                } else if are_namespaces || cluster.includes_explicitly(&name) {
                    FilterVerdict::Include
                } else if !cluster.is_unset() {
                    FilterVerdict::Skip(SkipReason::KindNotIncluded)
                } else if is_full {
                    FilterVerdict::Include
                } else {
                    FilterVerdict::Skip(SkipReason::PartOfCluster)
                }
            }
        }
    }

    /// Whether a cluster-scoped kind is refused even as an additional item.
    fn excludes_cluster_scoped(&self, id: &GroupResource) -> FilterVerdict {
        let name = id.to_string();
        if NEVER_COLLECTED.contains(&name.as_str()) {
            return FilterVerdict::Skip(SkipReason::SnapshotObject);
        }
        match &self.kinds {
            CompiledKinds::Old { choice, cluster_resources } => match cluster_resources {
                _ if choice.excludes(&name) => FilterVerdict::Skip(SkipReason::KindExcluded),
                Some(true) => FilterVerdict::Include,
                Some(false) => FilterVerdict::Skip(SkipReason::NoClusterResources),
                None => choice.verdict(&name),
            },
            CompiledKinds::New { cluster, .. } if cluster.excludes(&name) => {
                FilterVerdict::Skip(SkipReason::KindExcluded)
            }
            CompiledKinds::New { .. } => FilterVerdict::Include,
        }
    }
}
