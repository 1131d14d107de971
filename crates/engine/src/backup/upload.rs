//! Uploads the archive while it is written.
//!
//! Stores that retry failed parts themselves receive the stream. Plugins cannot retry: for them the archive is put on
//! disk first, and sent again as a whole.

use std::fs::File;
use std::io::{self, Seek as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use bowline_plugin::{ByteStream, error_chain};
use bowline_store::{BackupName, BackupStore, Error, blocking};
use bytes::Bytes;
use futures::{StreamExt as _, stream};

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
        let stream = read(&file).map_err(UploadError::Scratch)?;
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
    let file = Arc::new(tempfile::tempfile_in(scratch)?);
    let mut end = 0;
    while let Some(piece) = archive.next().await {
        let (piece, file, offset) = (piece?, Arc::clone(&file), end);
        end += piece.len() as u64;
        let write = move || file.write_all_at(&piece, offset);
        blocking::run(write).await.map_err(io::Error::other)??;
    }
    file.try_clone()
}

/// The file from its beginning.
pub(super) fn rewind(file: &File) -> io::Result<File> {
    let mut file = file.try_clone()?;
    file.rewind()?;
    Ok(file)
}

fn read(file: &File) -> io::Result<ByteStream> {
    let pieces = stream::try_unfold((file.try_clone()?, 0), async |(file, offset)| {
        let read = move || {
            let mut piece = vec![0; CHUNK_SIZE];
            let count = file.read_at(&mut piece, offset)?;
            piece.truncate(count);
            Ok::<_, io::Error>((piece, file))
        };
        let (piece, file) = blocking::run(read).await.map_err(io::Error::other)??;
        let next = offset + piece.len() as u64;
        Ok((!piece.is_empty()).then(|| (Bytes::from(piece), (file, next))))
    });
    Ok(Box::pin(pieces))
}
