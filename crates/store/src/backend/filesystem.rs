//! A folder as a bucket.
//!
//! The bucket of a `filesystem` location is a folder directly below the server's
//! `--filesystem-root`, and the parts of a key are folders in it.
//!
//! # Guarantees
//! - **Strictly beneath.** Folders are entered one by one, each relative to the one before and none
//!   through a symbolic link. A key with a part that is empty, `.` or `..` is refused.
//! - **All or nothing.** An object is written to a temporary file beside it, flushed to disk,
//!   renamed to its name, and the folder is flushed. Whenever the process or the machine dies,
//!   either the old object or the new one is there. Temporary files are never listed. A temporary
//!   file without a writer, judged by its lock and its age, is deleted when it is encountered:
//!   after an hour, or with the last object of its folder after five minutes. A file that is being
//!   written stays, however long that takes.
//! - **Private.** Only the server has access to files and folders: they may hold Secrets of a whole
//!   cluster.
//! - **A mount that hangs costs a few threads**, and then fails at once: see `gate.rs`. A path
//!   that hangs does not fail the others.
//! - **No accidental replacement.** [`Backend::create_object`] links the temporary file to the
//!   name, which the file system refuses if the name is taken.
//!
//! # Caveats
//! - `a` and `a/b` cannot both be objects.
//! - A name of more than 255 bytes is refused, as by file systems.

mod error;
mod folder;
mod gate;
mod temporary;
mod upload;

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Code, Config, Error, ObjectStore, Result};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _};

use super::{Backend, Creation, Permit, common_prefixes, refuse_unknown_keys, single_piece_stream};
use crate::download::{self, Grant, SigningKey};
use error::user_error;
use folder::Folder;
use gate::BucketGate;
use upload::Upload;

/// Interval at which a file that waits for content is touched.
const TOUCH_INTERVAL: Duration = Duration::from_mins(1);
/// Number of bytes that are read at a time.
const READ_CHUNK: usize = 256 << 10;

/// Settings of filesystem locations on this server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder that contains all of them: `--filesystem-root`.
    pub root: PathBuf,
    /// Settings of downloads; `None` disables them.
    pub downloads: Option<Downloads>,
}

/// Settings of download links.
#[derive(Clone, Debug)]
pub struct Downloads {
    /// The part of a link before the token: `https://host/download`.
    pub base_url: String,
    /// The key that signs links.
    pub key: SigningKey,
}

/// Buckets as folders.
#[derive(Clone, Debug)]
pub struct Filesystem {
    options: Options,
    permit: Permit,
}

/// Permission to replace an existing object.
#[derive(Clone, Copy)]
enum Mode {
    Replace,
    Create,
}

impl Filesystem {
    /// Opens the buckets below the root, after checking the settings of a location.
    pub async fn open(config: &Config, options: Options) -> Result<Self> {
        let store = Self { options, permit: Permit::default() };
        store.init(config).await?;
        Ok(store)
    }

    /// The same, writing only while permitted.
    #[must_use]
    pub fn with_permit(self, permit: Permit) -> Self {
        Self { permit, ..self }
    }

    /// Runs blocking work with the folder of a bucket, for a key or prefix in it.
    async fn with_bucket<T: Send + 'static>(
        &self,
        bucket: &str,
        path: &str,
        job: impl FnOnce(Folder) -> folder::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (root, name) = (self.options.root.clone(), bucket.to_owned());
        let gate = BucketGate::for_bucket(&self.options.root, bucket);
        let outcome = gate.run_blocking(path, move || job(Folder::bucket(&root, &name)?)).await?;
        outcome.map_err(|failure| user_error(bucket, failure))
    }

    async fn open_object(&self, bucket: &str, key: &str) -> Result<File> {
        let segments = key_segments(key)?;
        let file = self.with_bucket(bucket, key, move |root| root.open_file(&segments)).await?;
        Ok(File::from_std(file))
    }

    async fn write(
        &self,
        bucket: &str,
        key: &str,
        body: ByteStream,
        mode: Mode,
    ) -> Result<Creation> {
        let segments = key_segments(key)?;
        let gate = BucketGate::for_bucket(&self.options.root, bucket);
        let of_upload = gate.clone();
        let create = move |root: Folder| Upload::create(of_upload, &root, &segments);
        let mut upload = self.with_bucket(bucket, key, create).await?;
        if let Err(error) = write_content(&mut upload, bucket, key, body).await {
            upload.delete(key).await;
            return Err(error);
        }
        let permit = self.permit.clone();
        // Flushing it to disk may have taken long.
        let published = gate.run_publication(key, move || upload.publish(mode, &permit));
        published.await?.map_err(|failure| user_error(bucket, failure))
    }
}

/// Writes the content of an object and flushes it to disk.
async fn write_content(
    upload: &mut Upload,
    bucket: &str,
    key: &str,
    mut body: ByteStream,
) -> Result<()> {
    let failed = |failure| user_error(bucket, failure);
    loop {
        let piece = match tokio::time::timeout(TOUCH_INTERVAL, body.next()).await {
            Ok(Some(piece)) => piece,
            Ok(None) => return upload.flush().await.map_err(failed),
            // The source is slow, for example because of a hook that takes long.
            Err(_) => {
                upload.touch(key).await;
                continue;
            }
        };
        let piece = piece
            .map_err(|error| Error::new(Code::Aborted, format!("the upload broke off: {error}")))?;
        upload.write(&piece).await.map_err(failed)?;
    }
}

#[async_trait]
impl Backend for Filesystem {
    async fn create_object(&self, bucket: &str, key: &str, content: Bytes) -> Result<Creation> {
        self.write(bucket, key, single_piece_stream(content), Mode::Create).await
    }

    async fn get_range(&self, bucket: &str, key: &str, range: Range<u64>) -> Result<ByteStream> {
        let mut file = self.open_object(bucket, key).await?;
        let seek = file.seek(io::SeekFrom::Start(range.start)).await;
        seek.map_err(|error| Error::new(Code::Internal, error.to_string()))?;
        Ok(pieces(file.take(range.end.saturating_sub(range.start))))
    }
}

#[async_trait]
impl ObjectStore for Filesystem {
    async fn init(&self, config: &Config) -> Result<()> {
        refuse_unknown_keys(config, &[])
    }

    async fn put_object(&self, bucket: &str, key: &str, body: ByteStream) -> Result<()> {
        self.write(bucket, key, body, Mode::Replace).await.map(drop)
    }

    async fn object_exists(&self, bucket: &str, key: &str) -> Result<bool> {
        let segments = key_segments(key)?;
        self.with_bucket(bucket, key, move |root| root.has_file(&segments)).await
    }

    async fn get_object(&self, bucket: &str, key: &str) -> Result<ByteStream> {
        Ok(pieces(self.open_object(bucket, key).await?))
    }

    async fn list_common_prefixes(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
    ) -> Result<Vec<String>> {
        if delimiter != "/" {
            let keys = self.list_objects(bucket, prefix).await?;
            return Ok(common_prefixes(&keys, prefix, delimiter));
        }
        let (segments, begin) = prefix_segments(prefix)?;
        let (lead, now) = (folder_of_prefix(prefix).to_owned(), SystemTime::now());
        self.with_bucket(bucket, prefix, move |root| {
            let Some(folder) = root.descend(&segments)? else { return Ok(Vec::new()) };
            let names = folder.folders_with_files(&begin, now)?;
            Ok(names.into_iter().map(|name| format!("{lead}{name}/")).collect())
        })
        .await
    }

    async fn list_objects(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        let (segments, begin) = prefix_segments(prefix)?;
        let (lead, now) = (folder_of_prefix(prefix).to_owned(), SystemTime::now());
        self.with_bucket(bucket, prefix, move |root| {
            let Some(folder) = root.descend(&segments)? else { return Ok(Vec::new()) };
            let mut keys = folder.list_keys(&begin, &lead, now)?;
            keys.sort();
            Ok(keys)
        })
        .await
    }

    async fn delete_object(&self, bucket: &str, key: &str) -> Result<()> {
        let segments = key_segments(key)?;
        let permit = self.permit.clone();
        self.with_bucket(bucket, key, move |root| root.delete_file(&segments, &permit)).await
    }

    async fn create_signed_url(&self, bucket: &str, key: &str, ttl: Duration) -> Result<String> {
        key_segments(key)?;
        let Some(downloads) = &self.options.downloads else {
            return Err(Error::new(Code::FailedPrecondition, "the server has no download address"));
        };
        let expires = Timestamp::now().checked_add(ttl).map_err(|_| {
            Error::new(Code::InvalidArgument, "the expiration time of the link is out of range")
        })?;
        let grant = Grant { bucket: bucket.to_owned(), key: key.to_owned(), expires };
        let token = download::sign(&downloads.key, &grant);
        Ok(format!("{}/{token}", downloads.base_url.trim_end_matches('/')))
    }
}

/// A stream of what a reader yields.
fn pieces(reader: impl AsyncRead + Send + Unpin + 'static) -> ByteStream {
    let pieces = stream::try_unfold(reader, async |mut reader| {
        let mut piece = BytesMut::with_capacity(READ_CHUNK);
        let read = reader.read_buf(&mut piece).await?;
        Ok((read > 0).then(|| (piece.freeze(), reader)))
    });
    Box::pin(pieces.into_stream())
}

type Segments = Arc<[String]>;

/// The folders of a key and, last, its file.
fn key_segments(key: &str) -> Result<Segments> {
    let segments: Segments = key.split('/').map(str::to_owned).collect();
    if segments.iter().all(|segment| folder::is_object_segment(segment)) {
        return Ok(segments);
    }
    let message =
        format!("`{key}` is not a valid key: a part of it is empty, `.`, `..` or a reserved name");
    Err(Error::new(Code::InvalidArgument, message))
}

/// The folders that a prefix names completely, and the prefix of the names in the last of them.
fn prefix_segments(prefix: &str) -> Result<(Segments, String)> {
    let Some((folders, begin)) = prefix.rsplit_once('/') else {
        return Ok((Segments::default(), prefix.to_owned()));
    };
    Ok((key_segments(folders)?, begin.to_owned()))
}

/// The part of a prefix that is common to all keys in its folder.
fn folder_of_prefix(prefix: &str) -> &str {
    prefix.rfind('/').map_or("", |at| &prefix[..=at])
}
