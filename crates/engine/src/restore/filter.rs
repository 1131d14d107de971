//! What of a backup is restored: which kinds, which namespaces, which items.
//!
//! A [`Spec`] enters, compiled once into a [`Filter`] that answers with a [`RestoreVerdict`]. Namespaces
//! are those of the backup, not those that they are mapped to. The rules are those of Velero's
//! `pkg/restore/restore.go`:
//!
//! - Excludes win over includes; nothing included means everything.
//! - What is cluster-scoped is restored unless `includeClusterResources` is false. If it is not set
//!   and any namespace is selected or excluded, only as what other items need.
//! - A kind that the cluster does not know is judged by its name: an action may still change it.
//! - The [`ALWAYS_INCLUDED`] kinds are looked at whatever the lists say, as they carry what volumes need.
//! - Pods and jobs that have ended, and the shadows of static pods, are left alone.
//!
//! One rule is ours: the Namespace object of a namespace that is not restored is not restored
//! either. With `includeClusterResources: true`, Velero makes empty namespaces of them.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use bowline_api::annotation;
use serde_json::Value;

pub use crate::backup::filter::Lists;
use crate::glob::{Glob, Globs};
use crate::resource::{GroupResource, Resources};
use crate::selector::Selector;

/// Kinds that lists and labels do not keep out.
///
/// In Velero, datauploads as well: an action takes what it needs from them, and they are not created. Here
/// nothing needs them.
pub const ALWAYS_INCLUDED: [&str; 1] = ["volumesnapshotcontents.snapshot.storage.k8s.io"];

/// On the shadow of a pod that a node runs by itself.
const MIRROR_POD: &str = "kubernetes.io/config.mirror";

/// Whether something is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreVerdict {
    /// It is.
    Restore,
    /// It is not.
    Skip(Reason),
}

impl RestoreVerdict {
    /// Whether it is restored.
    pub fn is_restore(self) -> bool {
        self == Self::Restore
    }

    /// The first one that skips, else the other.
    fn and_then(self, other: impl FnOnce() -> Self) -> Self {
        if self.is_restore() { other() } else { self }
    }
}

/// Why something is not restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its kind is excluded.
    KindExcluded,
    /// Its kind is not among those that were selected.
    KindNotIncluded,
    /// Its namespace is excluded.
    NamespaceExcluded,
    /// Its namespace is not among those that were selected.
    NamespaceNotIncluded,
    /// It is cluster-scoped, and nothing that is shall be restored.
    NoClusterResources,
    /// It is cluster-scoped, and the restore is of some namespaces only.
    SomeNamespaces,
    /// Its labels were not asked for.
    NotSelected,
    /// It had done its work when the backup was taken.
    Completed,
    /// It is the shadow of a pod that a node runs by itself.
    MirrorPod,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KindExcluded => "its kind is excluded",
            Self::KindNotIncluded => "its kind is not included",
            Self::NamespaceExcluded => "its namespace is excluded",
            Self::NamespaceNotIncluded => "its namespace is not included",
            Self::NoClusterResources => {
                "it is cluster-scoped, and includeClusterResources is false"
            }
            Self::SomeNamespaces => {
                "it is cluster-scoped, and the restore is of some namespaces only"
            }
            Self::NotSelected => "its labels are not selected",
            Self::Completed => "it had completed when the backup was taken",
            Self::MirrorPod => "it is a mirror pod, which its node makes by itself",
        })
    }
}

/// What a user asked for. The default is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// Patterns of namespaces.
    pub namespaces: Lists,
    /// Kinds, as users spell them.
    pub kinds: Lists,
    /// `includeClusterResources`
    pub cluster_resources: Option<bool>,
    /// Labels. One of several is enough; none selects everything.
    pub selectors: Vec<Selector>,
    /// Kinds whose status is restored. None means none.
    pub status: Option<Lists>,
}

/// A compiled [`Spec`].
#[derive(Debug)]
pub struct Filter {
    namespaces: CompiledLists,
    kinds: CompiledLists,
    cluster_resources: Option<bool>,
    selectors: Vec<Selector>,
    status: Option<CompiledLists>,
}

impl Filter {
    /// Compiles a spec. Names of kinds are resolved, so that a user may write `deploy`; those that
    /// are not known are kept as patterns. To be done again when the cluster has learnt new kinds.
    pub fn new(spec: &Spec, resources: &Resources) -> Self {
        let resolved = |glob: &Glob| match resources.resolve(glob.as_str()) {
            Some(resource) => Glob::literal(resource.id.to_string()),
            None => glob.clone(),
        };
        Self {
            namespaces: CompiledLists::new(&spec.namespaces, Glob::clone),
            kinds: CompiledLists::new(&spec.kinds, resolved),
            cluster_resources: spec.cluster_resources,
            selectors: spec.selectors.clone(),
            status: spec.status.as_ref().map(|lists| CompiledLists::new(lists, resolved)),
        }
    }

    /// Whether any item of a kind can be restored by its turn.
    pub fn kind(&self, kind: &GroupResource) -> RestoreVerdict {
        let name = kind.to_string();
        match self.kinds.check(&name) {
            _ if ALWAYS_INCLUDED.contains(&name.as_str()) => RestoreVerdict::Restore,
            ListMatch::Excluded => RestoreVerdict::Skip(Reason::KindExcluded),
            ListMatch::NotIncluded => RestoreVerdict::Skip(Reason::KindNotIncluded),
            ListMatch::Included => RestoreVerdict::Restore,
        }
    }

    /// Whether a kind was asked for by its name.
    pub fn includes_by_name(&self, kind: &GroupResource) -> bool {
        self.kinds.includes_by_name(&kind.to_string())
    }

    /// Whether items in a namespace of the backup are restored.
    pub fn namespace(&self, name: &str) -> RestoreVerdict {
        match self.namespaces.check(name) {
            ListMatch::Excluded => RestoreVerdict::Skip(Reason::NamespaceExcluded),
            ListMatch::NotIncluded => RestoreVerdict::Skip(Reason::NamespaceNotIncluded),
            ListMatch::Included => RestoreVerdict::Restore,
        }
    }

    /// Whether an item can be restored by its turn, as far as its kind and place tell.
    pub fn location(&self, kind: &GroupResource, namespace: &str, name: &str) -> RestoreVerdict {
        self.kind(kind).and_then(|| match self.cluster_resources {
            _ if !namespace.is_empty() => self.in_namespace(kind, namespace),
            Some(false) => RestoreVerdict::Skip(Reason::NoClusterResources),
            None if !self.namespaces.is_everything() => {
                RestoreVerdict::Skip(Reason::SomeNamespaces)
            }
            _ => self.namespace_object(kind, name),
        })
    }

    /// Whether the labels of an item were asked for.
    pub fn labels(
        &self,
        kind: &GroupResource,
        labels: &BTreeMap<String, String>,
    ) -> RestoreVerdict {
        let is_selected = self.selectors.is_empty()
            || self.selectors.iter().any(|selector| selector.matches(labels))
            || is_always_included(kind);
        if is_selected {
            RestoreVerdict::Restore
        } else {
            RestoreVerdict::Skip(Reason::NotSelected)
        }
    }

    /// Whether an item that another one needs is restored. Labels do not count, nor does it matter
    /// that the restore is of some namespaces only. What must be included always is.
    pub fn additional(
        &self,
        kind: &GroupResource,
        namespace: &str,
        name: &str,
        must_be_included: bool,
    ) -> RestoreVerdict {
        if must_be_included {
            return RestoreVerdict::Restore;
        }
        self.kind(kind).and_then(|| match self.cluster_resources {
            _ if !namespace.is_empty() => self.in_namespace(kind, namespace),
            Some(false) => RestoreVerdict::Skip(Reason::NoClusterResources),
            _ => self.namespace_object(kind, name),
        })
    }

    /// Whether the status of an item is restored. What the item itself says counts more than the
    /// lists.
    pub fn restores_status(
        &self,
        kind: &GroupResource,
        annotations: &BTreeMap<String, String>,
    ) -> bool {
        let own = annotations.get(annotation::RESTORE_STATUS);
        match own.map(|own| own.trim().to_ascii_lowercase()).as_deref() {
            Some("true") => true,
            Some("false") => false,
            _ => {
                let name = kind.to_string();
                self.status
                    .as_ref()
                    .is_some_and(|status| status.check(&name) == ListMatch::Included)
            }
        }
    }

    fn in_namespace(&self, kind: &GroupResource, namespace: &str) -> RestoreVerdict {
        if is_always_included(kind) { RestoreVerdict::Restore } else { self.namespace(namespace) }
    }

    fn namespace_object(&self, kind: &GroupResource, name: &str) -> RestoreVerdict {
        let is_namespace = kind.group.is_empty() && kind.resource == "namespaces";
        if is_namespace { self.namespace(name) } else { RestoreVerdict::Restore }
    }
}

/// Whether an item is one that must not be brought back, whatever was asked for.
pub fn check_content(kind: &GroupResource, object: &Value) -> RestoreVerdict {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    match (kind.group.as_str(), kind.resource.as_str()) {
        ("", "pods") => {
            let annotations = object.pointer("/metadata/annotations");
            let mirror = annotations.and_then(|annotations| annotations.get(MIRROR_POD));
            if matches!(text("/status/phase"), "Succeeded" | "Failed") {
                RestoreVerdict::Skip(Reason::Completed)
            } else if mirror.and_then(Value::as_str).is_some_and(|mirror| !mirror.is_empty()) {
                RestoreVerdict::Skip(Reason::MirrorPod)
            } else {
                RestoreVerdict::Restore
            }
        }
        ("batch", "jobs") if !text("/status/completionTime").is_empty() => {
            RestoreVerdict::Skip(Reason::Completed)
        }
        _ => RestoreVerdict::Restore,
    }
}

fn is_always_included(kind: &GroupResource) -> bool {
    ALWAYS_INCLUDED.contains(&kind.to_string().as_str())
}

/// Compiled [`Lists`]. Not that of backups, for which two kinds are never a user's choice.
#[derive(Debug)]
struct CompiledLists {
    /// None if nothing was said.
    included: Option<Globs>,
    excluded: Globs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListMatch {
    Included,
    NotIncluded,
    Excluded,
}

impl CompiledLists {
    fn new(lists: &Lists, resolved: impl Fn(&Glob) -> Glob) -> Self {
        let included = lists.included.iter().map(&resolved).collect();
        Self {
            included: (!lists.included.is_empty()).then_some(included),
            excluded: lists.excluded.iter().map(resolved).collect(),
        }
    }

    fn check(&self, name: &str) -> ListMatch {
        match &self.included {
            _ if self.excluded.matches(name) => ListMatch::Excluded,
            Some(included) if !included.matches(name) => ListMatch::NotIncluded,
            _ => ListMatch::Included,
        }
    }

    /// Whether a name is included, and not only because everything is.
    fn includes_by_name(&self, name: &str) -> bool {
        let included = self.included.as_ref().filter(|included| !included.is_everything());
        included.is_some_and(|included| included.matches(name)) && !self.excluded.matches(name)
    }

    fn is_everything(&self) -> bool {
        self.excluded.is_empty() && self.included.as_ref().is_none_or(Globs::is_everything)
    }
}
