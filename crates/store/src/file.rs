//! Content of the JSON files of a backup or restore.
//!
//! Fields, their order and their spelling are those of Velero's Go types, including the capitalized
//! fields for which Velero has no JSON names. As in `bowline-api`, reading is lenient (a missing or
//! `null` list is empty, a field of a newer version is kept in [`Unknown`]), and writing matches
//! Go.

mod bowline_info;
mod operation;
mod results;
mod snapshot;
mod volume_info;

use std::collections::BTreeMap;

use bowline_api::{PodVolumeBackup, VolumePluginBackup};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use bowline_api::Unknown;
pub use bowline_info::{BowlineBackupInfo, FreezeWindow, VolumeOperation, VolumeOperationKind};
pub use operation::{
    BackupOperation, BackupOperationSpec, OperationPhase, OperationStatus, ResourceIdentifier,
    RestoreOperation, RestoreOperationSpec,
};
pub use results::{Messages, Results};
pub use snapshot::{Snapshot, SnapshotPhase, SnapshotSpec, SnapshotStatus};
pub use volume_info::{
    BackupVolumeInfo, CsiSnapshotInfo, DataMovementInfo, Method, NativeSnapshotInfo, Outcome,
    PersistentVolumeInfo, PodVolumeInfo, RestoreVolumeInfo,
};

use crate::decode::Limits;
use crate::layout::{BackupFile, RestoreFile};

/// Names of objects, by `<group/version>/<Kind>`: `ns/name`, or `name` for cluster-scoped objects.
/// For a restore, each with its outcome: `ns/name(created)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceList(pub BTreeMap<String, Vec<String>>);

/// The VolumeSnapshots of the CSI snapshots of a backup, verbatim. Only old backups have this file;
/// neither Velero nor Bowline writes it any more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CsiVolumeSnapshots(pub Vec<serde_json::Value>);

/// The VolumeSnapshotContents of CSI snapshots, verbatim. Only old backups have this file; neither
/// Velero nor Bowline writes it any more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CsiVolumeSnapshotContents(pub Vec<serde_json::Value>);

/// The VolumeSnapshotClasses of CSI snapshots, verbatim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CsiVolumeSnapshotClasses(pub Vec<serde_json::Value>);

/// Content of a compressed JSON file of a backup.
pub trait BackupContent: Serialize {
    /// The file with this content.
    const FILE: BackupFile;
    /// Limits for reading the file.
    const LIMITS: Limits = Limits::JSON;
}

/// Content of a compressed JSON file of a restore.
pub trait RestoreContent: Serialize {
    /// The file with this content.
    const FILE: RestoreFile;
    /// Limits for reading the file.
    const LIMITS: Limits = Limits::JSON;
}

macro_rules! content {
    ($of:ident, $file:ident { $($content:ty => $variant:ident within $limits:ident,)+ }) => {
        $(impl $of for $content {
            const FILE: $file = $file::$variant;
            const LIMITS: Limits = Limits::$limits;
        })+
    };
}

content!(BackupContent, BackupFile {
    Vec<PodVolumeBackup> => PodVolumeBackups within VOLUMES,
    Vec<VolumePluginBackup> => VolumePluginBackups within VOLUMES,
    Vec<Snapshot> => VolumeSnapshots within VOLUMES,
    BowlineBackupInfo => BowlineInfo within VOLUMES,
    Vec<BackupOperation> => ItemOperations within JSON,
    Vec<BackupVolumeInfo> => VolumeInfos within VOLUMES,
    CsiVolumeSnapshots => CsiVolumeSnapshots within VOLUMES,
    CsiVolumeSnapshotContents => CsiVolumeSnapshotContents within VOLUMES,
    CsiVolumeSnapshotClasses => CsiVolumeSnapshotClasses within VOLUMES,
    ResourceList => ResourceList within JSON,
    Results => Results within JSON,
});

content!(RestoreContent, RestoreFile {
    Vec<RestoreOperation> => ItemOperations within JSON,
    Vec<RestoreVolumeInfo> => VolumeInfos within VOLUMES,
    ResourceList => ResourceList within JSON,
    Results => Results within JSON,
});

/// Reads `null` as the empty value.
fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Writes an empty list as Go writes a nil slice.
fn list_or_null<S: Serializer, T: Serialize>(list: &Vec<T>, to: S) -> Result<S::Ok, S::Error> {
    if list.is_empty() { to.serialize_none() } else { list.serialize(to) }
}

/// Writes an empty map as Go writes a nil map.
fn map_or_null<S: Serializer>(map: &BTreeMap<String, String>, to: S) -> Result<S::Ok, S::Error> {
    if map.is_empty() { to.serialize_none() } else { map.serialize(to) }
}

/// True if a number is omitted, as with Go's `omitempty`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}
