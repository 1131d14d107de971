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
    #[error("the cluster no longer serves {}s", .0.kind_name())]
    NotServed(ContentKind),
    #[error(
        "the controllers of driver {driver} removed the {} {MAX_ATTEMPTS} times without \
         confirming that the snapshot is deleted",
        kind.kind_name()
    )]
    NotProven { driver: String, kind: ContentKind },
    #[error("{} {name} belongs to another snapshot", kind.kind_name())]
    OtherSnapshot { kind: ContentKind, name: String },
    #[error("{}", error_chain(.0))]
    InvalidContent(InvalidItem),
    #[error("{} {name}, which is needed for the deletion, cannot be created", kind.kind_name())]
    CreateContent { kind: ContentKind, name: String, source: cluster::Error },
    #[error("{} {name} cannot be read", kind.kind_name())]
    ReadContent { kind: ContentKind, name: String, source: cluster::Error },
    #[error("{} {name} cannot be changed", kind.kind_name())]
    WriteContent { kind: ContentKind, name: String, source: cluster::Error },
    #[error("{}s cannot be listed", kind.kind_name())]
    ListContents { kind: ContentKind, source: cluster::Error },
    #[error("the deletion of the snapshot cannot be watched")]
    Watch(#[source] cluster::Error),
    #[error("the deletion of the snapshot cannot be watched")]
    WatchEnded,
    #[error(
        "{} {name} was not reconciled within {} s; check that the csi-snapshotter of driver \
         {driver} is running",
        kind.kind_name(),
        limit.as_secs()
    )]
    NotReconciled { kind: ContentKind, name: String, limit: Duration, driver: String },
    #[error(
        "{} {name} was not released within {} s; check that the csi-snapshotter of driver \
         {driver} is running",
        kind.kind_name(),
        limit.as_secs()
    )]
    NotReleased { kind: ContentKind, name: String, limit: Duration, driver: String },
    #[error(
        "driver {driver} could not delete the snapshot: {complaint}; the csi-snapshotter \
         retries, see its log"
    )]
    Driver { driver: String, complaint: String },
    #[error(
        "the snapshot belongs to group {group}, which is not in the backup and which driver \
         {driver} deletes only as a whole; delete the group in the storage system, then delete \
         the backup again"
    )]
    MemberOfGroup { group: String, driver: String },
    #[error("{object} cannot be deleted")]
    DeleteBound { object: Box<BoundObject>, source: cluster::Error },
    #[error("{object} cannot be read")]
    ReadBound { object: Box<BoundObject>, source: cluster::Error },
    #[error(
        "{object} still exists after {} s; check that the snapshot controller is running",
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
