//! Brings the archive from the bucket, and what the backup says of volumes.

use std::io;
use std::path::Path;

use bowline_api::PodVolumeBackup;
use bowline_store::file::{BackupVolumeInfo, Snapshot};
use bowline_store::{BackupName, BackupStore};
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::unpack::{self, Contents, UnpackError, UnpackLimits};

/// Why the archive cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The bucket does not give it.
    #[error("cannot read the backup from the bucket")]
    Store(#[from] bowline_store::Error),
    /// It is not there.
    #[error("the bucket has no archive of the backup `{0}`")]
    Missing(BackupName),
    /// It cannot be unpacked.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// Nothing of it can be read.
    #[error("nothing can be read of it: {0}")]
    Unreadable(String),
    /// The thread that unpacks has died.
    #[error("unpacking the archive broke off")]
    TaskFailed,
}

/// What the backup says of volumes.
#[derive(Debug, Default)]
pub struct BackupVolumes {
    /// How each was saved.
    pub infos: Vec<BackupVolumeInfo>,
    /// The snapshots that plugins took.
    pub snapshots: Vec<Snapshot>,
    /// The copies of files.
    pub pod_volume_backups: Vec<PodVolumeBackup>,
}

/// Downloads and unpacks an archive. Of a broken one there must be something to restore.
pub async fn fetch_contents(
    store: &BackupStore,
    backup: &BackupName,
    scratch: &Path,
) -> Result<Contents, DownloadError> {
    let Some(stream) = store.contents(backup).await? else {
        return Err(DownloadError::Missing(backup.clone()));
    };
    let reader = SyncIoBridge::new(StreamReader::new(stream));
    let scratch = scratch.to_owned();
    let unpacked = tokio::task::spawn_blocking(move || {
        unpack::unpack(
            io::BufReader::with_capacity(1 << 18, reader),
            &scratch,
            UnpackLimits::default(),
        )
    });
    let contents = unpacked.await.map_err(|_| DownloadError::TaskFailed)??;
    match &contents.broken {
        Some(reason) if contents.kinds().next().is_none() => {
            Err(DownloadError::Unreadable(reason.clone()))
        }
        _ => Ok(contents),
    }
}

/// Reads what the backup says of volumes. Files that are not there say nothing.
pub(super) async fn read_volumes(
    store: &BackupStore,
    backup: &BackupName,
) -> Result<BackupVolumes, DownloadError> {
    Ok(BackupVolumes {
        infos: store.get(backup).await?.unwrap_or_default(),
        snapshots: store.get(backup).await?.unwrap_or_default(),
        pod_volume_backups: store.get(backup).await?.unwrap_or_default(),
    })
}
