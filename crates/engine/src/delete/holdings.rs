//! What a backup holds, as far as its files say.

use std::path::Path;

use bowline_api::{Backup, DataUpload, PodVolumeBackup, VolumePluginBackup};
use bowline_store::file::{
    BackupVolumeInfo, CsiVolumeSnapshotContents, CsiVolumeSnapshots, Own, Snapshot, VolumeOperation,
};
use bowline_store::{BackupName, BackupStore, decode};
use serde_json::Value;

use super::csi;
use crate::csi::{CONTENTS, SNAPSHOTS, resource as kind};
use crate::restore::download::{self, DownloadError};

/// What a backup holds, as far as its files and the cluster say.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    /// The commit record; none if there is none that can be read.
    pub record: Option<Backup>,
    /// Whether there is one that says that it is of something else.
    pub is_of_another: bool,
    /// The snapshots that plugins took.
    pub snapshots: Vec<Snapshot>,
    /// What plugins do with snapshots, or did.
    pub operations: Vec<VolumeOperation>,
    /// How each volume was saved; none if there is no such file.
    pub volumes: Option<Vec<BackupVolumeInfo>>,
    /// Copies of files, of the bucket and of the cluster.
    pub pod_volume_backups: Vec<PodVolumeBackup>,
    /// What plugins report of their snapshots, of the bucket and of the cluster.
    pub volume_plugin_backups: Vec<VolumePluginBackup>,
    /// Copies of snapshots; those of the cluster.
    pub data_uploads: Vec<DataUpload>,
    /// The VolumeSnapshotContents of CSI snapshots that the backup took: those of an old backup, and
    /// [those of its archive](look_for_csi).
    pub csi_contents: Vec<Value>,
    /// Those of an old backup that it may have taken, or users.
    pub csi_undecided: Vec<Value>,
}

/// Why it is not known what a backup holds.
#[derive(Debug, thiserror::Error)]
#[error("error getting backup's {what}")]
pub struct LookError {
    pub(super) what: &'static str,
    pub(super) source: bowline_store::Error,
}

/// Looks into the bucket. Files that are not there say nothing; one that cannot be read may say
/// anything.
pub async fn look(store: &BackupStore, name: &BackupName) -> Result<Holdings, LookError> {
    let failed = |what| move |source| LookError { what, source };
    let (record, is_of_another) = match store.backup(name).await {
        Ok(record) => (record, false),
        // Whatever it is, it is not this backup's.
        Err(bowline_store::Error::Unreadable { source: decode::Error::Other { .. }, .. }) => {
            (None, true)
        }
        // Nobody takes it for a backup. The other files count.
        Err(error @ bowline_store::Error::Unreadable { .. }) if !error.is_retryable() => {
            (None, false)
        }
        Err(error) => return Err(failed("record")(error)),
    };
    let snapshots = store.get(name).await.map_err(failed("volume snapshots"))?;
    let own = store.get::<Own>(name).await.map_err(failed("volume operations"))?;
    let volumes = store.get(name).await.map_err(failed("volume info"))?;
    let pod_volume_backups = store.get(name).await.map_err(failed("pod volume backups"))?;
    let plugin_backups = store.get(name).await.map_err(failed("volume plugin backups"))?;
    let contents = store.get::<CsiVolumeSnapshotContents>(name).await;
    let contents = contents.map_err(failed("CSI snapshots"))?.unwrap_or_default();
    let known = store.get::<CsiVolumeSnapshots>(name).await;
    let known = known.map_err(failed("CSI snapshots"))?.unwrap_or_default();
    let find = |content: &Value| known.0.iter().find(|one| csi::are_bound(content, one));
    let (csi_contents, csi_undecided) = sort(name, contents.0, |content| find(content).cloned());
    Ok(Holdings {
        record,
        is_of_another,
        snapshots: snapshots.unwrap_or_default(),
        operations: own.unwrap_or_default().volume_operations,
        volumes,
        pod_volume_backups: pod_volume_backups.unwrap_or_default(),
        volume_plugin_backups: plugin_backups.unwrap_or_default(),
        data_uploads: Vec::new(),
        csi_contents,
        csi_undecided,
    })
}

/// Sorts the contents that an old backup names by whether it took them: those that it did, and those of which
/// that cannot be said. Those of users are neither.
fn sort(
    name: &BackupName,
    contents: Vec<Value>,
    snapshot_of: impl Fn(&Value) -> Option<Value>,
) -> (Vec<Value>, Vec<Value>) {
    let (mut taken, mut undecided) = (Vec::new(), Vec::new());
    for content in contents {
        match snapshot_of(&content) {
            None => undecided.push(content),
            Some(snapshot) if csi::taken_by(name.as_str(), &content, Some(&snapshot)) => {
                taken.push(content);
            }
            Some(_) => {}
        }
    }
    (taken, undecided)
}

/// Looks into the archive for CSI snapshots, if something says that there may be any.
pub async fn look_for_csi(
    store: &BackupStore,
    name: &BackupName,
    backup: &Backup,
    scratch: &Path,
    holdings: &mut Holdings,
) -> Result<(), DownloadError> {
    if !csi::hints_at(backup, holdings) {
        return Ok(());
    }
    let contents = match download::contents(store, name, scratch).await {
        Ok(contents) => contents,
        // What else there is says which.
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
        if csi::taken_by(name.as_str(), &content, snapshot_of(&content).as_ref()) {
            holdings.csi_contents.push(content);
        }
    }
    let undecided = std::mem::take(&mut holdings.csi_undecided);
    let (taken, undecided) = sort(name, undecided, snapshot_of);
    holdings.csi_contents.extend(taken);
    holdings.csi_undecided = undecided;
    Ok(())
}

#[cfg(test)]
mod tests;
