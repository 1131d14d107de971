//! Inventory of a backup, from its files.

use std::path::Path;

use bowline_api::{Backup, DataUpload, PodVolumeBackup, VolumePluginBackup};
use bowline_store::file::{
    BackupVolumeInfo, BowlineBackupInfo, CsiVolumeSnapshotContents, CsiVolumeSnapshots, Snapshot,
    VolumeOperation,
};
use bowline_store::{BackupName, BackupStore, decode};
use serde_json::Value;

use super::csi;
use crate::csi::{CONTENTS, SNAPSHOTS, resource as kind};
use crate::download::{self, DownloadError};
use crate::unpack::UnpackLimits;

/// Inventory of a backup, from its files and the cluster.
#[derive(Clone, Debug, Default)]
pub struct BackupInventory {
    /// The commit record; `None` if there is no readable one.
    pub record: Option<Backup>,
    /// True if the record says that it belongs to something else.
    pub belongs_to_another: bool,
    /// Snapshots taken by plugins.
    pub snapshots: Vec<Snapshot>,
    /// Current and past operations of plugins on snapshots.
    pub operations: Vec<VolumeOperation>,
    /// Backup method of each volume; `None` if the file is missing.
    pub volumes: Option<Vec<BackupVolumeInfo>>,
    /// File system backups, from the bucket and the cluster.
    pub pod_volume_backups: Vec<PodVolumeBackup>,
    /// Progress of plugin snapshots, from the bucket and the cluster.
    pub volume_plugin_backups: Vec<VolumePluginBackup>,
    /// Data uploads, from the cluster.
    pub data_uploads: Vec<DataUpload>,
    /// VolumeSnapshotContents of CSI snapshots that the backup took: those of an old backup, and
    /// [those of its archive](read_csi_inventory).
    pub csi_contents: Vec<Value>,
    /// Contents of an old backup that either the backup or a user took.
    pub csi_undecided: Vec<Value>,
}

/// Why the inventory of a backup is unknown.
#[derive(Debug, thiserror::Error)]
#[error("error getting backup's {what}")]
pub struct InventoryError {
    pub(super) what: &'static str,
    pub(super) source: bowline_store::Error,
}

/// Reads the inventory from the bucket. Missing files count as empty; a file that cannot be read may name
/// anything.
pub async fn read_inventory(
    store: &BackupStore,
    name: &BackupName,
) -> Result<BackupInventory, InventoryError> {
    let failed = |what| move |source| InventoryError { what, source };
    let (record, belongs_to_another) = match store.backup(name).await {
        Ok(record) => (record, false),
        // The record does not belong to this backup.
        Err(bowline_store::Error::Unreadable { source: decode::Error::Other { .. }, .. }) => {
            (None, true)
        }
        // Without a readable record this is not a valid backup. The other files count.
        Err(error @ bowline_store::Error::Unreadable { .. }) if !error.is_retryable() => {
            (None, false)
        }
        Err(error) => return Err(failed("record")(error)),
    };
    let snapshots = store.get(name).await.map_err(failed("volume snapshots"))?;
    let operations_file =
        store.get::<BowlineBackupInfo>(name).await.map_err(failed("volume operations"))?;
    let volumes = store.get(name).await.map_err(failed("volume info"))?;
    let pod_volume_backups = store.get(name).await.map_err(failed("pod volume backups"))?;
    let plugin_backups = store.get(name).await.map_err(failed("volume plugin backups"))?;
    let contents = store.get::<CsiVolumeSnapshotContents>(name).await;
    let contents = contents.map_err(failed("CSI snapshots"))?.unwrap_or_default();
    let known = store.get::<CsiVolumeSnapshots>(name).await;
    let known = known.map_err(failed("CSI snapshots"))?.unwrap_or_default();
    let find = |content: &Value| known.0.iter().find(|one| csi::are_bound(content, one));
    let (csi_contents, csi_undecided) =
        partition_contents(name, contents.0, |content| find(content).cloned());
    Ok(BackupInventory {
        record,
        belongs_to_another,
        snapshots: snapshots.unwrap_or_default(),
        operations: operations_file.unwrap_or_default().volume_operations,
        volumes,
        pod_volume_backups: pod_volume_backups.unwrap_or_default(),
        volume_plugin_backups: plugin_backups.unwrap_or_default(),
        data_uploads: Vec::new(),
        csi_contents,
        csi_undecided,
    })
}

/// Sorts the contents that an old backup names: those that it took, and those where that is unknown. Those of users
/// are in neither list.
fn partition_contents(
    name: &BackupName,
    contents: Vec<Value>,
    snapshot_of: impl Fn(&Value) -> Option<Value>,
) -> (Vec<Value>, Vec<Value>) {
    let (mut created, mut undecided) = (Vec::new(), Vec::new());
    for content in contents {
        match snapshot_of(&content) {
            None => undecided.push(content),
            Some(snapshot) if csi::is_created_by(name.as_str(), &content, Some(&snapshot)) => {
                created.push(content);
            }
            Some(_) => {}
        }
    }
    (created, undecided)
}

/// Searches the archive for CSI snapshots, if there is any sign of them.
pub async fn read_csi_inventory(
    store: &BackupStore,
    name: &BackupName,
    backup: &Backup,
    scratch: &Path,
    limits: UnpackLimits,
    inventory: &mut BackupInventory,
) -> Result<(), DownloadError> {
    if !csi::may_hold_csi_snapshots(backup, inventory) {
        return Ok(());
    }
    let contents = match download::fetch_contents(store, name, scratch, limits).await {
        Ok(contents) => contents,
        // The remaining files say which snapshots there are.
        Err(DownloadError::Missing(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    let read = |plural: &str, namespace: &str, name: &str| {
        contents.read(&kind(plural), None, namespace, name).ok()?.parse::<Value>().ok()
    };
    let snapshot_of = |content: &Value| {
        let (namespace, snapshot) = csi::snapshot_of(content);
        read(SNAPSHOTS, namespace, snapshot)
    };
    let stored = contents.kind(&kind(CONTENTS));
    for (_, content) in stored.iter().flat_map(|stored| stored.items()) {
        let Some(content) = read(CONTENTS, "", content) else { continue };
        if csi::is_created_by(name.as_str(), &content, snapshot_of(&content).as_ref()) {
            inventory.csi_contents.push(content);
        }
    }
    let undecided = std::mem::take(&mut inventory.csi_undecided);
    let (created, undecided) = partition_contents(name, undecided, snapshot_of);
    inventory.csi_contents.extend(created);
    inventory.csi_undecided = undecided;
    Ok(())
}

#[cfg(test)]
mod tests;
