//! Downloads the archive and the volume information of a backup.

use std::io::{self, Read};
use std::path::Path;

use bowline_api::PodVolumeBackup;
use bowline_plugin::ByteStream;
use bowline_store::file::{BackupVolumeInfo, Snapshot};
use bowline_store::{BackupName, BackupStore, blocking};
use tokio::io::AsyncReadExt as _;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::unpack::{self, ArchiveBreak, Contents, ExceededLimit, UnpackError, UnpackLimits};

/// Why the archive is not available.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The object store returned an error.
    #[error("cannot read the backup from the bucket")]
    Store(#[from] bowline_store::Error),
    /// The archive does not exist.
    #[error("the bucket has no archive of the backup `{0}`")]
    Missing(BackupName),
    /// The archive cannot be unpacked.
    #[error(transparent)]
    Unpack(UnpackError),
    /// The archive exceeds a limit that the server sets.
    #[error("the archive is refused: {limit}; hint: raise {flag} of the server")]
    TooLarge {
        /// The limit.
        limit: ExceededLimit,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// No part of the archive can be read.
    #[error("the archive cannot be read: {0}")]
    Unreadable(ArchiveBreak),
    /// The unpacking thread has died.
    #[error("unpacking the archive was aborted")]
    TaskFailed,
}

impl From<UnpackError> for DownloadError {
    fn from(error: UnpackError) -> Self {
        if let UnpackError::TooLarge(limit) = error
            && let Some(flag) = limit.flag()
        {
            return Self::TooLarge { limit, flag };
        }
        Self::Unpack(error)
    }
}

/// Volume information of a backup.
#[derive(Debug, Default)]
pub struct BackupVolumes {
    /// Backup method of each volume.
    pub infos: Vec<BackupVolumeInfo>,
    /// Snapshots taken by plugins.
    pub snapshots: Vec<Snapshot>,
    /// File system backups.
    pub pod_volume_backups: Vec<PodVolumeBackup>,
}

/// Downloads and unpacks an archive. A broken archive must contain at least something to restore.
pub async fn fetch_contents(
    store: &BackupStore,
    backup: &BackupName,
    scratch: &Path,
    limits: UnpackLimits,
) -> Result<Contents, DownloadError> {
    let Some(stream) = store.contents(backup).await? else {
        return Err(DownloadError::Missing(backup.clone()));
    };
    let reader = blocking_reader(stream).await;
    let scratch = scratch.to_owned();
    let unpacked = blocking::run(move || {
        unpack::unpack(io::BufReader::with_capacity(1 << 18, reader), &scratch, limits)
    });
    let contents = unpacked.await.map_err(|_| DownloadError::TaskFailed)??;
    match &contents.broken {
        Some(broken) if contents.kinds().next().is_none() => {
            Err(DownloadError::Unreadable(broken.clone()))
        }
        _ => Ok(contents),
    }
}

/// Reader of a stream, for blocking work. If that is done inline, nobody else could read the stream meanwhile.
async fn blocking_reader(stream: ByteStream) -> Box<dyn Read + Send> {
    let mut reader = StreamReader::new(stream);
    if !blocking::is_inline() {
        return Box::new(SyncIoBridge::new(reader));
    }
    let mut content = Vec::new();
    let end = reader.read_to_end(&mut content).await;
    let failure = FailingReader(end.err());
    Box::new(Read::chain(io::Cursor::new(content), failure))
}

/// End of a stream that has failed.
struct FailingReader(Option<io::Error>);

impl Read for FailingReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// Reads the volume information of a backup. Missing files count as empty.
pub(crate) async fn read_volumes(
    store: &BackupStore,
    backup: &BackupName,
) -> Result<BackupVolumes, DownloadError> {
    Ok(BackupVolumes {
        infos: store.get(backup).await?.unwrap_or_default(),
        snapshots: store.get(backup).await?.unwrap_or_default(),
        pod_volume_backups: store.get(backup).await?.unwrap_or_default(),
    })
}
