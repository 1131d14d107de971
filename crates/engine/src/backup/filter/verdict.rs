//! Verdict of a filter, with the reason for a refusal.

use std::fmt;

use bowline_api::label;

/// Verdict of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterVerdict {
    /// The object belongs to the backup.
    Include,
    /// The object does not belong to the backup.
    Skip(SkipReason),
}

impl FilterVerdict {
    /// True if the object belongs to the backup.
    pub fn is_include(self) -> bool {
        self == Self::Include
    }
}

/// Reason why an object does not belong to a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// It has the exclude label.
    ExcludeLabel,
    /// Its namespace is excluded.
    NamespaceExcluded,
    /// Its namespace is not among those that were selected.
    NamespaceNotIncluded,
    /// Its kind is excluded.
    KindExcluded,
    /// Its kind is not among those that were selected.
    KindNotIncluded,
    /// It is cluster-scoped, and the backup excludes cluster-scoped resources.
    NoClusterResources,
    /// It is cluster-scoped, and the backup is of a part of the cluster only.
    PartOfCluster,
    /// It is an object of the CSI snapshot API.
    SnapshotObject,
    /// It is a request to the server.
    Request,
    /// It holds credentials of the server.
    Credentials,
    /// It is a Namespace that is not active.
    NamespaceNotActive,
    /// Its labels do not match the selector.
    NotSelected,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExcludeLabel => write!(f, "the label {}=true is set", label::EXCLUDE_FROM_BACKUP),
            Self::NamespaceExcluded => f.write_str("the namespace is excluded"),
            Self::NamespaceNotIncluded => f.write_str("the namespace is not included"),
            Self::KindExcluded => f.write_str("the kind is excluded"),
            Self::KindNotIncluded => f.write_str("the kind is not included"),
            Self::NoClusterResources => {
                f.write_str("the object is cluster-scoped, and includeClusterResources is false")
            }
            Self::PartOfCluster => f.write_str(
                "the object is cluster-scoped, and the backup is limited to some namespaces",
            ),
            Self::SnapshotObject => {
                f.write_str("objects of the CSI snapshot API are backed up only with their volume")
            }
            Self::Request => f.write_str("backups never include requests to the server"),
            Self::Credentials => f.write_str("the Secret contains credentials of the server"),
            Self::NamespaceNotActive => f.write_str("the namespace is not active"),
            Self::NotSelected => f.write_str("the labels do not match the selector"),
        }
    }
}
