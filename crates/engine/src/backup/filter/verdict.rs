//! Whether something belongs to a backup, and why not.

use std::fmt;

use bowline_api::label;

/// Whether something belongs to a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterVerdict {
    /// It does.
    Include,
    /// It does not.
    Skip(SkipReason),
}

impl FilterVerdict {
    /// Whether it belongs to the backup.
    pub fn is_include(self) -> bool {
        self == Self::Include
    }
}

/// Why something does not belong to a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// It has the label for that.
    ExcludeLabel,
    /// Its namespace is excluded.
    NamespaceExcluded,
    /// Its namespace is not among those that were selected.
    NamespaceNotIncluded,
    /// Its kind is excluded.
    KindExcluded,
    /// Its kind is not among those that were selected.
    KindNotIncluded,
    /// It is cluster-scoped, and the backup takes nothing that is.
    NoClusterResources,
    /// It is cluster-scoped, and the backup is of a part of the cluster only.
    PartOfCluster,
    /// It is an object of the CSI snapshot API.
    SnapshotObject,
    /// It is a request to the server.
    Request,
    /// It holds credentials of the server.
    Credentials,
    /// It is a Namespace on its way in or out.
    NamespaceNotActive,
    /// Its labels were not asked for.
    NotSelected,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExcludeLabel => write!(f, "it has the label {}=true", label::EXCLUDE_FROM_BACKUP),
            Self::NamespaceExcluded => f.write_str("its namespace is excluded"),
            Self::NamespaceNotIncluded => f.write_str("its namespace is not included"),
            Self::KindExcluded => f.write_str("its kind is excluded"),
            Self::KindNotIncluded => f.write_str("its kind is not included"),
            Self::NoClusterResources => {
                f.write_str("it is cluster-scoped, and includeClusterResources is false")
            }
            Self::PartOfCluster => {
                f.write_str("it is cluster-scoped, and the backup is of a part of the cluster only")
            }
            Self::SnapshotObject => {
                f.write_str("objects of the CSI snapshot API are taken only with their volume")
            }
            Self::Request => f.write_str("requests to the server are never stored"),
            Self::Credentials => f.write_str("it holds credentials of the server"),
            Self::NamespaceNotActive => f.write_str("the namespace is not active"),
            Self::NotSelected => f.write_str("its labels are not selected"),
        }
    }
}
