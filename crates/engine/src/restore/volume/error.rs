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
    "to create an empty volume instead, restore with `--allow-empty-volumes`";

const LEFTOVER_WARNING: &str = "an incomplete volume may be left over";

/// Why a PersistentVolume is not restored. Shared with its claim.
#[derive(Debug, thiserror::Error)]
pub(in crate::restore) enum VolumeError {
    /// Access to a directory of a node is a step towards control of the node.
    #[error(
        "PersistentVolumes of type {0} give access to a directory of a node, so Bowline does not \
         restore them as additional items; hint: add --include-cluster-resources, or \
         persistentvolumes to --include-resources"
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
#[error(
    "the existing PersistentVolume must be deleted first, and the restore would wait for its \
     deletion: {0}"
)]
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
            Self::OtherClaim { claim } => {
                write!(f, "the volume is bound to claim {claim}, and its data is not in the backup")
            }
            Self::NotRestored(error) => f.write_str(&error_text(&**error)),
        }
    }
}

/// Why a claim, or a VolumeSnapshot that a claim needs, is not created.
#[derive(Debug, thiserror::Error)]
pub(in crate::restore) enum ClaimError {
    #[error("volume {volume} of the claim is not restored: {reason}; {ALLOW_EMPTY_HINT}")]
    DataUnavailable { volume: String, reason: MissingData },
    #[error("volume {volume} of the claim is not restored: {reason}; {ALLOW_EMPTY_HINT}")]
    NoVolume { volume: String, reason: MissingVolume },
    #[error("the data of the claim cannot be restored: {0}; {ALLOW_EMPTY_HINT}")]
    NoSnapshot(MissingSource),
    #[error("{0}")]
    NoContent(MissingSource),
}

/// The object that an item is made from was not restored.
#[derive(Debug, thiserror::Error)]
#[error("{kind} {name} was not restored")]
pub(in crate::restore) struct MissingSource {
    pub(super) kind: &'static str,
    pub(super) name: String,
}

/// Why there is no volume from a snapshot.
#[derive(Debug, thiserror::Error)]
pub(in crate::restore) enum CreationError {
    #[error("the snapshot has no id")]
    NoSnapshotId,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the volume is not restored")]
    Journal(#[from] journal::Error),
    /// The process that resumes the restore makes the volume.
    #[error("the restore was stopped before the volume was created")]
    Stopped,
    #[error("plugin {plugin} created no volume from snapshot {snapshot}")]
    Create { plugin: String, snapshot: SnapshotId, source: Box<NoVolume> },
    #[error(
        "plugin {plugin} created volume {volume} from snapshot {snapshot}, but cannot set it in \
         the PersistentVolume; the volume is left over"
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
            Self::TimedOut(limit) => write!(f, "the plugin took longer than {} s", limit.as_secs()),
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
    #[error("the plugin did not return a PersistentVolume")]
    OtherKind,
}
