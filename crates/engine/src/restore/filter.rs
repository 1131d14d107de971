//! Filters of a restore: kinds, namespaces and items.
//!
//! A [`Spec`] is compiled once into a [`Filter`] that returns a [`RestoreVerdict`]. Namespaces are those of the
//! backup, not those that they are mapped to. The rules are those of Velero's `pkg/restore/restore.go`:
//!
//! - Excludes win over includes; an empty include list means everything.
//! - Cluster-scoped items are restored unless `includeClusterResources` is false. If it is not set and any
//!   namespace is included or excluded, they are restored only as additional items.
//! - A kind that the cluster does not serve is judged by its name: an action may still change it.
//! - The [`ALWAYS_INCLUDED`] kinds are processed regardless of the lists, since volumes depend on them.
//! - Completed pods and jobs, and mirror pods, are skipped.
//!
//! One rule is Bowline's own: the Namespace object of a namespace that is not restored is not restored either.
//! With `includeClusterResources: true`, Velero creates empty namespaces from these objects.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use bowline_api::annotation;
use serde_json::Value;

pub use crate::filter_lists::Lists;
use crate::glob::{Glob, Globs};
use crate::json;
use crate::resource::{GroupResource, Resources};
use crate::selector::Selector;

/// Kinds that lists and labels do not exclude.
///
/// In Velero, datauploads as well: an action reads them, and they are not created. Nothing needs them here.
pub const ALWAYS_INCLUDED: [&str; 1] = ["volumesnapshotcontents.snapshot.storage.k8s.io"];

/// Resources that are never restored: they belong to a cluster, are synced from the bucket automatically, or request
/// an action of a server. A restored DeleteBackupRequest would delete a backup. Velero's list has the first nine.
pub(super) const NEVER_RESTORED: [&str; 18] = [
    "nodes",
    "events",
    "events.events.k8s.io",
    "backups.velero.io",
    "restores.velero.io",
    "resticrepositories.velero.io",
    "csinodes.storage.k8s.io",
    "volumeattachments.storage.k8s.io",
    "backuprepositories.velero.io",
    "volumepluginbackups.velero.io",
    "volumepluginrestores.velero.io",
    "deletebackuprequests.velero.io",
    "downloadrequests.velero.io",
    "serverstatusrequests.velero.io",
    "podvolumebackups.velero.io",
    "podvolumerestores.velero.io",
    "datauploads.velero.io",
    "datadownloads.velero.io",
];

/// Annotation of a mirror pod, which represents a static pod of a node.
const MIRROR_POD: &str = "kubernetes.io/config.mirror";

/// Decision about a kind, namespace or item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreVerdict {
    /// Restored.
    Restore,
    /// Not restored.
    Skip(Reason),
}

impl RestoreVerdict {
    /// True for [`RestoreVerdict::Restore`].
    pub fn is_restore(self) -> bool {
        self == Self::Restore
    }

    /// This verdict if it skips, otherwise the other one.
    fn and_then(self, other: impl FnOnce() -> Self) -> Self {
        if self.is_restore() { other() } else { self }
    }
}

/// Why something is not restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The kind is excluded.
    KindExcluded,
    /// The kind is not included.
    KindNotIncluded,
    /// The namespace is excluded.
    NamespaceExcluded,
    /// The namespace is not included.
    NamespaceNotIncluded,
    /// The item is cluster-scoped, and `includeClusterResources` is false.
    NoClusterResources,
    /// The item is cluster-scoped, and the restore is limited to some namespaces.
    SomeNamespaces,
    /// The labels match no selector.
    NotSelected,
    /// The pod or job had completed when the backup was taken.
    Completed,
    /// The pod is a mirror pod of a static pod.
    MirrorPod,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KindExcluded => "the kind is excluded",
            Self::KindNotIncluded => "the kind is not included",
            Self::NamespaceExcluded => "the namespace is excluded",
            Self::NamespaceNotIncluded => "the namespace is not included",
            Self::NoClusterResources => {
                "the object is cluster-scoped, and includeClusterResources is false"
            }
            Self::SomeNamespaces => {
                "the object is cluster-scoped, and the restore is limited to some namespaces"
            }
            Self::NotSelected => "the labels do not match the selector",
            Self::Completed => "the pod or job was already complete at the time of the backup",
            Self::MirrorPod => "a mirror pod is created by the kubelet of its node",
        })
    }
}

/// User-defined filters. The default is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// Namespace patterns.
    pub namespaces: Lists,
    /// Kinds, in the user's spelling.
    pub kinds: Lists,
    /// `includeClusterResources`
    pub cluster_resources: Option<bool>,
    /// Label selectors, combined with OR; an empty list selects everything.
    pub selectors: Vec<Selector>,
    /// Kinds whose status is restored; `None` means none.
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
    /// Compiles a spec. Names of kinds are resolved, so that a user may write `deploy`; unknown names are kept
    /// as patterns. Must be repeated when the cluster serves new kinds.
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

    /// Verdict on the scheduled restore of a kind: skips if none of its items can be restored.
    pub fn kind(&self, kind: &GroupResource) -> RestoreVerdict {
        let name = kind.to_string();
        match self.kinds.check(&name) {
            _ if ALWAYS_INCLUDED.contains(&name.as_str()) => RestoreVerdict::Restore,
            ListMatch::Excluded => RestoreVerdict::Skip(Reason::KindExcluded),
            ListMatch::NotIncluded => RestoreVerdict::Skip(Reason::KindNotIncluded),
            ListMatch::Included => RestoreVerdict::Restore,
        }
    }

    /// True if the include list names a kind explicitly.
    pub fn includes_by_name(&self, kind: &GroupResource) -> bool {
        self.kinds.includes_by_name(&kind.to_string())
    }

    /// Verdict on the items in a namespace of the backup.
    pub fn namespace(&self, name: &str) -> RestoreVerdict {
        match self.namespaces.check(name) {
            ListMatch::Excluded => RestoreVerdict::Skip(Reason::NamespaceExcluded),
            ListMatch::NotIncluded => RestoreVerdict::Skip(Reason::NamespaceNotIncluded),
            ListMatch::Included => RestoreVerdict::Restore,
        }
    }

    /// Verdict on the scheduled restore of an item, judged by kind, namespace and name.
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

    /// Verdict on the labels of an item.
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

    /// Verdict on an additional item. Labels do not count, nor does the limitation to some namespaces. An item that
    /// must be included always is, unless its kind is never restored: an action must not delete a backup.
    pub fn additional(
        &self,
        kind: &GroupResource,
        namespace: &str,
        name: &str,
        must_be_included: bool,
    ) -> RestoreVerdict {
        if NEVER_RESTORED.contains(&kind.to_string().as_str()) {
            return RestoreVerdict::Skip(Reason::KindExcluded);
        }
        if must_be_included {
            return RestoreVerdict::Restore;
        }
        self.kind(kind).and_then(|| match self.cluster_resources {
            _ if !namespace.is_empty() => self.in_namespace(kind, namespace),
            Some(false) => RestoreVerdict::Skip(Reason::NoClusterResources),
            _ => self.namespace_object(kind, name),
        })
    }

    /// True if the status of an item is restored. The annotation of the item takes precedence over the lists.
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

/// Skips items that must never be restored, regardless of the filters.
pub fn check_content(kind: &GroupResource, object: &Value) -> RestoreVerdict {
    match (kind.group.as_str(), kind.resource.as_str()) {
        ("", "pods") => {
            let mirror = json::annotation(object, MIRROR_POD);
            if matches!(json::text(object, "/status/phase"), "Succeeded" | "Failed") {
                RestoreVerdict::Skip(Reason::Completed)
            } else if mirror.is_some_and(|mirror| !mirror.is_empty()) {
                RestoreVerdict::Skip(Reason::MirrorPod)
            } else {
                RestoreVerdict::Restore
            }
        }
        ("batch", "jobs") if !json::text(object, "/status/completionTime").is_empty() => {
            RestoreVerdict::Skip(Reason::Completed)
        }
        _ => RestoreVerdict::Restore,
    }
}

fn is_always_included(kind: &GroupResource) -> bool {
    ALWAYS_INCLUDED.contains(&kind.to_string().as_str())
}

/// Compiled [`Lists`]. The type for backups does not fit, since two kinds are never a user's choice there.
#[derive(Debug)]
struct CompiledLists {
    /// `None` if the list is empty.
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

    /// True if a name is included explicitly, and not only because everything is.
    fn includes_by_name(&self, name: &str) -> bool {
        let included = self.included.as_ref().filter(|included| !included.is_everything());
        included.is_some_and(|included| included.matches(name)) && !self.excluded.matches(name)
    }

    fn is_everything(&self) -> bool {
        self.excluded.is_empty() && self.included.as_ref().is_none_or(Globs::is_everything)
    }
}
