//! Uploads the archive while it is written.
//!
//! Stores that retry failed parts themselves receive the stream. Plugins cannot retry: for them the archive is put on
//! disk first, and sent again as a whole.

use std::io;
use std::path::Path;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use bowline_plugin::{ByteStream, error_chain};
use bowline_store::{BackupName, BackupStore, Error};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, stream};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

/// Retries of an upload with a plugin.
pub(super) const UPLOAD_RETRIES: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_secs(1)).with_max_times(2);
/// Number of bytes read from disk at a time.
const CHUNK_SIZE: usize = 256 << 10;

/// Failure of the upload.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The bucket refused the archive.
    #[error(transparent)]
    Store(#[from] Error),
    /// The archive could not be kept on disk meanwhile.
    #[error("the archive cannot be written to the scratch directory")]
    Scratch(#[source] io::Error),
}

/// Uploads an archive that is being written.
pub(super) async fn contents(
    store: &BackupStore,
    backup: &BackupName,
    archive: ByteStream,
    scratch: &Path,
) -> Result<(), UploadError> {
    if store.retries_parts() {
        return Ok(store.put_contents(backup, archive).await?);
    }
    let file = spool_to_disk(archive, scratch).await.map_err(UploadError::Scratch)?;
    let send = || async {
        let stream = read(&file).await.map_err(UploadError::Scratch)?;
        Ok(store.put_contents(backup, stream).await?)
    };
    send.retry(UPLOAD_RETRIES)
        .when(|error| matches!(error, UploadError::Store(_)))
        .notify(|error, _| {
            tracing::warn!("retrying the upload of the archive: {}", error_chain(error));
        })
        .await
}

/// Writes a stream into an unnamed file.
pub(super) async fn spool_to_disk(mut archive: ByteStream, scratch: &Path) -> io::Result<File> {
    let mut file = File::from_std(tempfile::tempfile_in(scratch)?);
    while let Some(piece) = archive.next().await {
        file.write_all(&piece?).await?;
    }
    file.flush().await?;
    Ok(file)
}

/// The file from its beginning.
pub(super) async fn rewind(file: &File) -> io::Result<std::fs::File> {
    let mut file = file.try_clone().await?;
    file.rewind().await?;
    Ok(file.into_std().await)
}

async fn read(file: &File) -> io::Result<ByteStream> {
    let file = File::from_std(rewind(file).await?);
    let pieces = stream::try_unfold(file, async |mut file| {
        let mut piece = BytesMut::with_capacity(CHUNK_SIZE);
        let count = file.read_buf(&mut piece).await?;
        Ok::<_, io::Error>((count > 0).then(|| (Bytes::from(piece), file)))
    });
    Ok(Box::pin(pieces))
}
