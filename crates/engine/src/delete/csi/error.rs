//! Failures in the deletion of a CSI snapshot.

use std::error::Error as _;
use std::time::Duration;

use bowline_plugin::{InvalidItem, error_chain};

use super::deletion::MAX_ATTEMPTS;
use super::deletion_unit::ContentKind;
use crate::cluster;

/// Why a snapshot or a group could not be deleted.
#[derive(Debug, thiserror::Error)]
pub(super) enum CsiDeletionError {
    #[error("the cluster does not serve {}s any more", .0.kind_name())]
    NotServed(ContentKind),
    #[error(
        "the controllers of the driver {driver} have let go of the {} for it {MAX_ATTEMPTS} times, and nothing \
         proves that it is deleted",
        kind.kind_name()
    )]
    NotProven { driver: String, kind: ContentKind },
    #[error("the {} {name} stands for another snapshot", kind.kind_name())]
    OtherSnapshot { kind: ContentKind, name: String },
    #[error("{}", error_chain(.0))]
    InvalidContent(InvalidItem),
    #[error("the {} {name} for its deletion cannot be created", kind.kind_name())]
    CreateContent { kind: ContentKind, name: String, source: cluster::Error },
    #[error("the {} {name} cannot be read", kind.kind_name())]
    ReadContent { kind: ContentKind, name: String, source: cluster::Error },
    #[error("the {} {name} cannot be changed", kind.kind_name())]
    WriteContent { kind: ContentKind, name: String, source: cluster::Error },
    #[error("{}s cannot be listed", kind.kind_name())]
    ListContents { kind: ContentKind, source: cluster::Error },
    #[error("it is not known what became of it")]
    Watch(#[source] cluster::Error),
    #[error("it is not known what became of it")]
    WatchEnded,
    #[error(
        "nobody has looked at the {} {name} within {} s: is the snapshotter of the driver {driver} running?",
        kind.kind_name(),
        limit.as_secs()
    )]
    NotReconciled { kind: ContentKind, name: String, limit: Duration, driver: String },
    #[error(
        "nobody has let go of the {} {name} within {} s: is the snapshotter of the driver {driver} running?",
        kind.kind_name(),
        limit.as_secs()
    )]
    NotReleased { kind: ContentKind, name: String, limit: Duration, driver: String },
    #[error(
        "the driver {driver} could not do it: {complaint}; its snapshotter tries again, and its log says more"
    )]
    Driver { driver: String, complaint: String },
    #[error(
        "it is a member of the group {group}, which the backup does not know of, and which the driver {driver} \
         deletes whole or not at all; delete that group where it is stored, and then the backup again"
    )]
    MemberOfGroup { group: String, driver: String },
    #[error("its {object} cannot be deleted")]
    DeleteBound { object: Box<BoundObject>, source: cluster::Error },
    #[error("its {object} cannot be read")]
    ReadBound { object: Box<BoundObject>, source: cluster::Error },
    #[error(
        "its {object} was not gone within {} s: is the snapshot controller running?",
        limit.as_secs()
    )]
    BoundNotGone { object: Box<BoundObject>, limit: Duration },
}

/// An object that a content is bound to.
#[derive(Debug, thiserror::Error)]
#[error("{kind} {namespace}/{name}")]
pub(super) struct BoundObject {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl CsiDeletionError {
    /// Text for the report, with the cause in one line.
    pub(super) fn text(&self) -> String {
        match self.source() {
            Some(cause) => format!("{self}: {}", error_chain(cause)),
            None => self.to_string(),
        }
    }
}
