//! Filters of a backup: kinds, namespaces and objects to include.
//!
//! A [`Spec`] of lists is compiled once into a [`Filter`], which answers with a [`FilterVerdict`]. The rules are
//! those of Velero's `includes_excludes.go` and of its page on resource filtering. Where the two disagree, the page
//! counts:
//!
//! - A backup without resource filters includes cluster-scoped kinds. Velero intends to, but then adds entries of its
//!   own to the lists, after which they are no longer empty.
//! - Cluster-scoped kinds are excluded when namespaces are *selected*. Excluding some, by the spec or by a label on
//!   them, is not a selection.
//! - The Namespace objects of excluded namespaces are not included.
//! - An include list whose entries are all dropped includes nothing, not everything.

mod compiled_lists;
pub mod namespaces;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bowline_api::label;

pub use crate::filter_lists::Lists;
use crate::glob::{Glob, Globs};
use crate::resource::{GroupResource, Resource, Resources};
use crate::selector::Selector;
pub use compiled_lists::CompiledLists;
pub use verdict::{FilterVerdict, SkipReason};

/// Objects of the CSI snapshot API. Those in the cluster are not user data; those that a backup creates come as
/// additional items that must be included.
const NEVER_COLLECTED: [&str; 2] =
    ["volumesnapshots.snapshot.storage.k8s.io", "volumesnapshotcontents.snapshot.storage.k8s.io"];

/// Requests to the server, which are answered and deleted within minutes. Restored, they would be answered again: a
/// DeleteBackupRequest deletes. A DownloadRequest also contains a link that opens the bucket.
const REQUESTS: [&str; 3] = [
    "deletebackuprequests.velero.io",
    "downloadrequests.velero.io",
    "serverstatusrequests.velero.io",
];

/// Namespaces to include.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All, including those created meanwhile.
    #[default]
    All,
    /// These only. An empty list means none.
    Only(Vec<String>),
}

/// The user's filters. The default is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// Namespaces to include, without the excluded ones; see [`namespaces::expand`].
    pub namespaces: Scope,
    /// True if those are all namespaces of the cluster, so that nothing was selected; see [`namespaces::expand`].
    pub is_of_all_namespaces: bool,
    /// Patterns of namespaces to exclude.
    pub excluded_namespaces: Vec<Glob>,
    /// Kinds to include and to exclude.
    pub kinds: Kinds,
    /// Secrets that are never included.
    pub credentials: Credentials,
}

/// The server's own credentials, which are excluded even where an action insists on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The server's namespace.
    pub namespace: String,
    /// The names of Secrets in that namespace.
    pub secrets: BTreeSet<String>,
}

impl Credentials {
    fn contains(&self, resource: &Resource, namespace: &str, name: &str) -> bool {
        resource.is_core("secrets") && namespace == self.namespace && self.secrets.contains(name)
    }
}

/// Filters on kinds, in one of Velero's two forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Velero's old filters: one pair of lists, and a switch for cluster-scoped resources.
    Old {
        /// `includedResources` and `excludedResources`
        lists: Lists,
        /// `includeClusterResources`
        cluster_resources: Option<bool>,
    },
    /// Velero's new filters: a pair of lists for each scope.
    New {
        /// Lists of the Backup.
        spec: ScopedLists,
        /// Lists of its resource policy, which apply where the Backup sets none.
        policy: ScopedLists,
    },
}

/// Names of kinds to include that the cluster does not know, most likely typos, or that are never stored: the backup
/// must not be silently empty.
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
            None => Some(format!(
                "the cluster does not serve resource {glob}; the backup contains none"
            )),
            Some(resource) if REQUESTS.contains(&resource.id.to_string().as_str()) => {
                Some(format!("backups never include {glob} (requests to the server)"))
            }
            Some(_) => None,
        }
    });
    warnings.collect()
}

/// An empty spec counts as the new form.
impl Default for Kinds {
    fn default() -> Self {
        Self::New { spec: ScopedLists::default(), policy: ScopedLists::default() }
    }
}

/// A pair of lists for each scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopedLists {
    /// Lists for cluster-scoped resources.
    pub cluster: Lists,
    /// Lists for namespaced resources.
    pub namespaced: Lists,
}

/// Treatment of CustomResourceDefinitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrdRule {
    /// They are collected like any other kind.
    Collected,
    /// None is included.
    Excluded,
    /// Those with an object in the backup are included.
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
    /// Compiles a spec. Names of kinds are resolved, so that a user may write `deploy`; unknown names are kept as
    /// patterns.
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

    /// Warnings about the lists: ignored names, with the reason.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Verdict on collecting the objects of a kind.
    pub fn kind(&self, resource: &Resource) -> FilterVerdict {
        self.collects(&resource.id, resource.is_namespaced)
    }

    /// Verdict on an object, whether it was collected or is the additional item of another. Cluster-scoped objects
    /// are refused only if they are excluded, so that a volume follows its claim into a backup of one namespace.
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

    /// Verdict on an object that an action insists on, whatever the lists say.
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

    /// Namespaces whose objects to list. With all of them, objects of excluded namespaces are listed too;
    /// [`item`](Self::item) refuses them.
    pub fn namespaces(&self) -> Scope {
        self.namespaces.clone()
    }

    /// Verdict on the objects in a namespace.
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

    /// Verdict on a Namespace object for its own sake. Even if it is refused here, the object is stored if an object
    /// in the namespace is, unless the namespace is excluded.
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
        // A label selector without a namespace selection does not ask for every namespace.
        if !self.is_partial() && !selectors.is_empty() {
            return FilterVerdict::Skip(SkipReason::NotSelected);
        }
        self.includes_namespace(name)
    }

    /// Treatment of CustomResourceDefinitions.
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

    /// True if namespaces were selected, which makes the backup one of a part of the cluster.
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

    /// Verdict on a cluster-scoped kind, even as an additional item.
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
