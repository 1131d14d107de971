//! Reasons not to start a deletion: data that would remain, with or without a record.

use std::fmt;
use std::time::Duration;

use bowline_plugin::{SnapshotId, error_chain};

use crate::cluster;
use crate::csi::GROUP_SNAPSHOT_API_GROUP;
use crate::snapshotter::OpenError;

/// Maximum number of remaining objects named in a message.
const MAX_NAMED: usize = 5;

/// All objections to a deletion.
#[derive(Debug)]
pub struct Objections(pub(super) Vec<Objection>);

impl Objections {
    /// Text of each objection.
    pub fn messages(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}

/// Objection to a deletion.
#[derive(Debug, thiserror::Error)]
pub enum Objection {
    /// The location of a plugin snapshot is not known.
    #[error("snapshot {0} names no VolumeSnapshotLocation, so no plugin can delete it")]
    NoLocation(SnapshotId),
    /// This version cannot delete some of the data.
    #[error(
        "this version cannot delete {data}, and deleting the backup would lose track of them: \
         {names}"
    )]
    Unsupported {
        /// The data.
        data: UnsupportedData,
        /// Names of its parts.
        names: RemainingData,
    },
    /// The files of another backup are unreadable, and may reference the same snapshots.
    #[error(
        "backup {backup} may refer to the same snapshots, and its files cannot be read: \
         {reason}; hint: delete backup {backup} first; if that is refused as well, run `bowline \
         backup delete {backup} --forget` and remove its files from the bucket"
    )]
    UnreadableBackup {
        /// The other backup.
        backup: String,
        /// Why its files cannot be read.
        reason: String,
    },
    /// The plugin of a location is not available.
    #[error(
        "error getting volume snapshotter for location {location:?}: {reason}; its snapshots \
         would be left over: {snapshots}"
    )]
    Snapshotter {
        /// The VolumeSnapshotLocation.
        location: String,
        /// Why the plugin is not available.
        reason: OpenFailure,
        /// Its snapshots.
        snapshots: RemainingData,
    },
    /// The API server does not say whether CSI snapshots can be deleted.
    #[error("cannot check whether CSI snapshots can be deleted: {}", error_chain(.0))]
    CsiUnknown(cluster::Error),
    /// The cluster has no CSI snapshots at all.
    #[error(
        "the cluster does not serve VolumeSnapshotContents, so CSI snapshots cannot be deleted \
         and would be left over: {0}"
    )]
    NoContents(RemainingData),
    /// The cluster has no groups of CSI snapshots.
    #[error(
        "the cluster does not serve VolumeGroupSnapshotContents ({GROUP_SNAPSHOT_API_GROUP}), so \
         snapshots of volume groups cannot be deleted and would be left over: {0}"
    )]
    NoGroupContents(RemainingData),
    /// A CSI driver is not installed.
    #[error(
        "CSI driver {driver} is not installed in this cluster, and its snapshots would be left \
         over: {snapshots}"
    )]
    NoDriver {
        /// The driver.
        driver: String,
        /// Its snapshots.
        snapshots: RemainingData,
    },
    /// No class names the Secret that a CSI driver needs.
    #[error(
        "deleting snapshots of CSI driver {driver} requires a Secret, which a \
         VolumeSnapshotClass names; create the class of this driver again"
    )]
    NoSecretClass {
        /// The driver.
        driver: String,
    },
    /// The classes name several Secrets.
    #[error(
        "deleting snapshots of CSI driver {driver} requires a Secret, and its classes in this \
         cluster name several; create the class {class:?}, which the snapshots were created with"
    )]
    SeveralSecrets {
        /// The driver.
        driver: String,
        /// The class that would decide.
        class: String,
    },
    /// The name of the Secret contains the name of a VolumeSnapshot that is not known.
    #[error(
        "the name of the Secret for CSI snapshot {handle} contains the name of its VolumeSnapshot, \
         which is not in the backup"
    )]
    UnnamedSecret {
        /// The driver's handle of the snapshot.
        handle: String,
    },
}

/// Why the plugin of a location is not available.
#[derive(Debug, thiserror::Error)]
pub enum OpenFailure {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It does not answer.
    #[error("the plugin has not answered within {} s", .0.as_secs())]
    Timeout(Duration),
}

/// Data that this version cannot delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedData {
    /// File system backups.
    FileCopies,
    /// Data of snapshots in a repository.
    MovedData,
    /// CSI snapshots without a handle or a driver.
    CsiWithoutHandle,
    /// CSI snapshots that either the backup or a user took.
    CsiOfUnknownOrigin,
    /// Volumes that were saved by an unknown method.
    UnknownMethod,
    /// Plugin snapshots without a location.
    SnapshotsWithoutLocation,
}

impl fmt::Display for UnsupportedData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FileCopies => "file-system backups of volumes (PodVolumeBackups)",
            Self::MovedData => "snapshot data that was moved to a repository (DataUploads)",
            Self::CsiWithoutHandle => "CSI snapshots without the handle of the driver",
            Self::CsiOfUnknownOrigin => "CSI snapshots that the backup may not have created",
            Self::UnknownMethod => "volumes that were saved by an unknown method",
            Self::SnapshotsWithoutLocation => "snapshots without a location",
        })
    }
}

/// Names of data that would remain. A message shows the first few.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingData(Vec<String>);

impl RemainingData {
    pub(super) fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }
}

impl fmt::Display for RemainingData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = &self.0[..self.0.len().min(MAX_NAMED)];
        f.write_str(&first.join(", "))?;
        match self.0.len() - first.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
