//! What is in the JSON files of a backup or restore.
//!
//! Fields, their order and their spelling are those of Velero's Go types, with the capitals of
//! fields that Velero forgot to name. As in `bowline-api`: reading is generous (a missing or `null`
//! list is empty, a field of a newer version is kept in [`Unknown`]), writing is what Go writes.

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

/// The names of objects, by `<group/version>/<Kind>`: `ns/name`, or `name` where there is no
/// namespace. After a restore, with what became of each: `ns/name(created)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceList(pub BTreeMap<String, Vec<String>>);

/// The VolumeSnapshots of CSI snapshots that a backup took, as they were. Only old backups have the file, and
/// nobody writes it any more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CsiVolumeSnapshots(pub Vec<serde_json::Value>);

/// The VolumeSnapshotContents of CSI snapshots, as they were. Only old backups have the file, and
/// nobody writes it any more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CsiVolumeSnapshotContents(pub Vec<serde_json::Value>);

/// The VolumeSnapshotClasses of CSI snapshots, as they were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CsiVolumeSnapshotClasses(pub Vec<serde_json::Value>);

/// What a compressed JSON file of a backup holds.
pub trait BackupContent: Serialize {
    /// The file that holds it.
    const FILE: BackupFile;
    /// How much of it is read.
    const LIMITS: Limits = Limits::JSON;
}

/// What a compressed JSON file of a restore holds.
pub trait RestoreContent: Serialize {
    /// The file that holds it.
    const FILE: RestoreFile;
    /// How much of it is read.
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

/// Writes an empty list as Go writes one that was never made.
fn list_or_null<S: Serializer, T: Serialize>(list: &Vec<T>, to: S) -> Result<S::Ok, S::Error> {
    if list.is_empty() { to.serialize_none() } else { list.serialize(to) }
}

/// Writes an empty map as Go writes one that was never made.
fn map_or_null<S: Serializer>(map: &BTreeMap<String, String>, to: S) -> Result<S::Ok, S::Error> {
    if map.is_empty() { to.serialize_none() } else { map.serialize(to) }
}

/// Whether a number is left out, as Go's `omitempty` does.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}
