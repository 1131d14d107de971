//! Why a PersistentVolume or a claim is not restored.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::{InvalidItem, SnapshotId, VolumeId};

use super::super::reset::{MissingData, NoMetadata};
use super::pv_name_state::{PvNameError, TerminationReason};
use crate::journal;
use crate::report::error_text;
use crate::snapshotter::OpenError;

pub(in crate::restore) const ALLOW_EMPTY_HINT: &str =
    "to have it created empty, restore with `--allow-empty-volumes`";

const LEFTOVER_WARNING: &str = "a volume that it had begun, if any, may be left over";

/// Why a PersistentVolume is not restored. Shared with its claim.
#[derive(Debug, thiserror::Error)]
pub(in crate::restore) enum VolumeError {
    /// Access to a directory of a node is a step towards control of the node.
    #[error(
        "a volume of the type {0} is a folder of a node, so it is not created just because a claim names it; to \
         have it created, restore with `--include-cluster-resources` or name persistentvolumes in \
         --include-resources"
    )]
    NodePath(&'static str),
    #[error("{0}; {ALLOW_EMPTY_HINT}")]
    DataUnavailable(MissingData),
    #[error(transparent)]
    Name(#[from] PvNameError),
    #[error(transparent)]
    Create(#[from] CreationError),
    #[error("the plugin returned a PersistentVolume without a name")]
    NoName,
    #[error(transparent)]
    Rename(#[from] NoMetadata),
}

/// A volume that must be deleted before another can have its name. Only a dry run ends with it; a restore waits.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the one that is in the cluster must go first, and the restore would wait for that: {0}")]
pub(in crate::restore) struct BlockingVolume(pub(super) TerminationReason);

/// Why the PersistentVolume of a claim is missing.
#[derive(Clone, Debug)]
pub(in crate::restore) enum MissingVolume {
    /// Another claim holds it.
    OtherClaim {
        claim: String,
    },
    NotRestored(Arc<VolumeError>),
}

impl fmt::Display for MissingVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherClaim { claim } => write!(
                f,
                "it belongs to the claim {claim}, and the backup has no copy of its data that another claim could \
                 get"
            ),
            Self::NotRestored(error) => f.write_str(&error_text(&**error)),
        }
    }
}

/// Why a claim, or a VolumeSnapshot that a claim needs, is not created.
#[derive(Debug, thiserror::Error)]
pub(in crate::restore) enum ClaimError {
    #[error("its volume {volume} is not restored: {reason}; {ALLOW_EMPTY_HINT}")]
    DataUnavailable { volume: String, reason: MissingData },
    #[error("its volume {volume} is not restored: {reason}; {ALLOW_EMPTY_HINT}")]
    NoVolume { volume: String, reason: MissingVolume },
    #[error("its data cannot be brought back: {0}; {ALLOW_EMPTY_HINT}")]
    NoSnapshot(MissingSource),
    #[error("{0}")]
    NoContent(MissingSource),
}

/// The object that an item is made from was not restored.
#[derive(Debug, thiserror::Error)]
#[error("its {kind} {name} was not restored")]
pub(in crate::restore) struct MissingSource {
    pub(super) kind: &'static str,
    pub(super) name: String,
}

/// Why there is no volume from a snapshot.
#[derive(Debug, thiserror::Error)]
pub(in crate::restore) enum CreationError {
    #[error("its snapshot has no id")]
    NoSnapshotId,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("it is not restored")]
    Journal(#[from] journal::Error),
    /// The process that resumes the restore makes the volume.
    #[error("stopped before its volume was made")]
    Stopped,
    #[error("the plugin {plugin} made no volume from the snapshot {snapshot}")]
    Create { plugin: String, snapshot: SnapshotId, source: Box<NoVolume> },
    #[error(
        "the plugin {plugin} made the volume {volume} from the snapshot {snapshot}, but cannot put it behind the \
         PersistentVolume, so that it is left over"
    )]
    Attach { plugin: String, volume: VolumeId, snapshot: SnapshotId, source: Box<AttachError> },
}

impl CreationError {
    /// True if the user canceled the restore.
    pub(super) fn is_canceled(&self) -> bool {
        let Self::Create { source, .. } = self else { return false };
        matches!(
            **source,
            NoVolume::Interrupted { reason: Interruption::Canceled, .. }
                | NoVolume::NoResponse(Interruption::Canceled)
        )
    }
}

/// Why a plugin made no volume.
#[derive(Debug, thiserror::Error)]
pub(in crate::restore) enum NoVolume {
    #[error(transparent)]
    Refused(bowline_plugin::Error),
    /// The plugin has died or the connection is lost. A volume may exist.
    #[error("{0}; {LEFTOVER_WARNING}")]
    ConnectionLost(bowline_plugin::Error),
    #[error("{reason}")]
    Interrupted { reason: Interruption, source: bowline_plugin::Error },
    /// The call was canceled without an answer. A volume may exist.
    #[error("{0}; {LEFTOVER_WARNING}")]
    NoResponse(Interruption),
}

/// Why the call of a plugin was canceled for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::restore) enum Interruption {
    Canceled,
    TimedOut(Duration),
}

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Canceled => f.write_str("the restore was canceled"),
            Self::TimedOut(limit) => write!(f, "it took longer than {} s", limit.as_secs()),
        }
    }
}

/// Why a plugin did not attach a volume to a PersistentVolume.
#[derive(Debug, thiserror::Error)]
pub(in crate::restore) enum AttachError {
    #[error(transparent)]
    Plugin(#[from] bowline_plugin::Error),
    #[error(transparent)]
    Item(#[from] InvalidItem),
    #[error("it returned something that is no PersistentVolume")]
    OtherKind,
}
