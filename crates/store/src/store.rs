//! Operations of the engine on a bucket, in terms of backups and restores.
//!
//! # Life of a backup in the bucket
//! A backup is listed when any of its files is there, and it *exists* when its commit record
//! (`velero-backup.json`) does. The record is written last, with a terminal phase
//! ([`BackupStore::commit`]), so that a reader who finds it also finds every file that it refers
//! to. Before a deletion the record is marked as such ([`BackupStore::mark_deleting`]), and it is
//! deleted last ([`BackupStore::delete_backup`]), so that the leftovers of an interrupted deletion
//! can be found and deleted, too.
//!
//! # Deadlines
//! Backends need not have any. Here, a call that moves no data has [`Deadlines::metadata`], and a
//! stream has [`Deadlines::idle_timeout`] for each piece. After a timeout the outcome is unknown:
//! all writes may be repeated.

pub mod commit;
mod deadline;
mod delete;
mod error;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::Backup;
use bowline_api::download_request::DownloadTarget;
use bowline_plugin::{ByteStream, Class, Code};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

pub use commit::CommitOutcome;
pub use deadline::Deadlines;
pub use error::Error;

use crate::backend::{Backend, single_piece_stream};
use crate::blocking;
use crate::decode::{self, Limits};
use crate::encode;
use crate::file::{BackupContent, RestoreContent};
use crate::layout::{BackupFile, Key, Layout, Prefix, RestoreFile};
use crate::name::{BackupName, RestoreName, RunUid};

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Lifetime of a download link, as in Velero.
pub const DOWNLOAD_TTL: Duration = Duration::from_mins(10);

/// The backups and restores of one location.
#[derive(Clone)]
pub struct BackupStore {
    backend: Arc<dyn Backend>,
    bucket: String,
    layout: Layout,
    deadlines: Deadlines,
}

/// Content of the folder of backups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Backups, including incomplete ones and leftovers.
    pub backups: Vec<BackupName>,
    /// Folders whose names no backup can have.
    pub unexpected: Vec<String>,
}

/// Memory in MiB that all files may take together while they are read, by [their
/// limits](Limits::memory).
const READ_MEMORY_MIB: u32 = 384;
/// The unused part of that memory, for the whole process.
static READ_MEMORY_PERMITS: Semaphore = Semaphore::const_new(READ_MEMORY_MIB as usize);
/// Size limit of a log that is read back, compressed.
const LOG_LIMIT: u64 = 64 << 20;

impl BackupStore {
    /// The part of a bucket below a prefix.
    pub fn new(backend: Arc<dyn Backend>, bucket: impl Into<String>, prefix: &Prefix) -> Self {
        let layout = Layout::new(prefix);
        Self { backend, bucket: bucket.into(), layout, deadlines: Deadlines::default() }
    }

    /// The same store with other deadlines.
    #[must_use]
    pub fn with_deadlines(self, deadlines: Deadlines) -> Self {
        Self { deadlines, ..self }
    }

    /// The layout of the location.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Checks that the location is usable: it answers, and contains no foreign folders.
    pub async fn validate(&self) -> Result<()> {
        let root = self.layout.root();
        let request = self.backend.list_common_prefixes(&self.bucket, root, "/");
        let folders = self.metadata_call("list", root, request).await?;
        match self.layout.unexpected_folders(folders.iter().map(String::as_str)) {
            strange if strange.is_empty() => Ok(()),
            strange => Err(Error::UnexpectedFolders(strange)),
        }
    }

    /// True if the location contains nothing at all, foreign objects included.
    pub async fn is_empty(&self) -> Result<bool> {
        let root = self.layout.root();
        let request = self.backend.list_common_prefixes(&self.bucket, root, "/");
        Ok(self.metadata_call("list", root, request).await?.is_empty())
    }

    /// Lists the folder of backups.
    pub async fn list(&self) -> Result<Listing> {
        let folder = self.layout.backups();
        let request = self.backend.list_common_prefixes(&self.bucket, &folder, "/");
        let mut listing = Listing::default();
        for prefix in self.metadata_call("list", &folder, request).await? {
            let name = prefix.strip_prefix(folder.as_str()).unwrap_or(&prefix);
            let name = name.strip_suffix('/').unwrap_or(name);
            match BackupName::new(name) {
                Ok(name) => listing.backups.push(name),
                Err(_) => listing.unexpected.push(name.to_owned()),
            }
        }
        listing.backups.sort();
        Ok(listing)
    }

    /// True if the backup exists, which means that its commit record does.
    pub async fn exists(&self, backup: &BackupName) -> Result<bool> {
        let key = self.layout.key(&Key::Backup(backup.clone(), BackupFile::Record));
        let request = self.backend.object_exists(&self.bucket, &key);
        self.metadata_call("search for", &key, request).await
    }

    /// The commit record of a backup; `None` if the backup does not exist.
    pub async fn backup(&self, backup: &BackupName) -> Result<Option<Backup>> {
        let key = Key::Backup(backup.clone(), BackupFile::Record);
        let Some(text) = self.get_bytes(&key, Limits::RECORD.packed).await? else {
            return Ok(None);
        };
        let read = decode::read_record(&text, backup);
        read.map(Some).map_err(|source| Error::Unreadable { key: self.layout.key(&key), source })
    }

    /// The content of a file of a backup; `None` if there is no such file.
    pub async fn get<T: BackupContent + DeserializeOwned + Default + Send + 'static>(
        &self,
        backup: &BackupName,
    ) -> Result<Option<T>> {
        self.get_json(&Key::Backup(backup.clone(), T::FILE), T::LIMITS).await
    }

    /// Writes a file of a backup.
    pub async fn put<T: BackupContent>(&self, backup: &BackupName, content: &T) -> Result<()> {
        self.put_bytes(&Key::Backup(backup.clone(), T::FILE), encode::json_gzip(content)?).await
    }

    /// Writes the log of a backup, given compressed.
    pub async fn put_log(&self, backup: &BackupName, log: ByteStream) -> Result<()> {
        self.put_stream(&Key::Backup(backup.clone(), BackupFile::Log), log).await
    }

    /// The log of a backup, compressed; `None` if there is no log.
    pub async fn log(&self, backup: &BackupName) -> Result<Option<Bytes>> {
        self.get_bytes(&Key::Backup(backup.clone(), BackupFile::Log), LOG_LIMIT).await
    }

    /// The log of a restore, compressed; `None` if there is no log.
    pub async fn restore_log(&self, restore: &RestoreName) -> Result<Option<Bytes>> {
        self.get_bytes(&Key::Restore(restore.clone(), RestoreFile::Log), LOG_LIMIT).await
    }

    /// Writes the archive of a backup, given compressed.
    pub async fn put_contents(&self, backup: &BackupName, archive: ByteStream) -> Result<()> {
        self.put_stream(&Key::Backup(backup.clone(), BackupFile::Contents), archive).await
    }

    /// True if an archive may be uploaded while it is being made; otherwise it must be possible to
    /// send it again from the beginning.
    pub fn retries_parts(&self) -> bool {
        self.backend.retries_parts()
    }

    /// The archive of a backup, compressed; `None` if there is no archive.
    pub async fn contents(&self, backup: &BackupName) -> Result<Option<ByteStream>> {
        self.get_stream(&Key::Backup(backup.clone(), BackupFile::Contents)).await
    }

    /// The content of a file of a restore; `None` if there is no such file.
    pub async fn get_restore_file<
        T: RestoreContent + DeserializeOwned + Default + Send + 'static,
    >(
        &self,
        restore: &RestoreName,
    ) -> Result<Option<T>> {
        self.get_json(&Key::Restore(restore.clone(), T::FILE), T::LIMITS).await
    }

    /// Writes a file of a restore.
    pub async fn put_restore_file<T: RestoreContent>(
        &self,
        restore: &RestoreName,
        content: &T,
    ) -> Result<()> {
        self.put_bytes(&Key::Restore(restore.clone(), T::FILE), encode::json_gzip(content)?).await
    }

    /// Writes the log of a restore, given compressed.
    pub async fn put_restore_log(&self, restore: &RestoreName, log: ByteStream) -> Result<()> {
        self.put_stream(&Key::Restore(restore.clone(), RestoreFile::Log), log).await
    }

    /// Stores a scratch file for a run, until the run has ended.
    pub async fn put_scratch(&self, run: &RunUid, number: u64, content: Bytes) -> Result<()> {
        self.put_bytes(&Key::Scratch(run.clone(), number), content).await
    }

    /// A scratch file of a run; `None` if it does not exist, and an error if it is longer than
    /// `limit`.
    pub async fn scratch(&self, run: &RunUid, number: u64, limit: u64) -> Result<Option<Bytes>> {
        self.get_bytes(&Key::Scratch(run.clone(), number), limit).await
    }

    /// A download link to a file.
    pub async fn download_url(&self, target: &DownloadTarget) -> Result<String> {
        let key = self.layout.key(&Key::try_from(target)?);
        let request = self.backend.create_signed_url(&self.bucket, &key, DOWNLOAD_TTL);
        self.metadata_call("create a link to", &key, request).await
    }

    /// Any file as stored in the bucket; `None` if it does not exist.
    pub async fn get_stream(&self, key: &Key) -> Result<Option<ByteStream>> {
        let key = self.layout.key(key);
        let request = self.backend.get_object(&self.bucket, &key);
        match self.metadata_call("read", &key, request).await {
            Ok(stream) => Ok(Some(deadline::fail_when_idle(stream, self.deadlines.idle_timeout))),
            Err(error) if self.is_missing_object(&error, &key).await => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A part of any file, shorter if the file ends before; `None` if the file does not exist.
    pub async fn get_range(&self, key: &Key, range: Range<u64>) -> Result<Option<Bytes>> {
        let key = self.layout.key(key);
        let length = range.end.saturating_sub(range.start);
        let request = self.backend.get_range(&self.bucket, &key, range);
        let stream = match self.metadata_call("read", &key, request).await {
            Ok(stream) => deadline::fail_when_idle(stream, self.deadlines.idle_timeout),
            Err(error) if self.is_missing_object(&error, &key).await => return Ok(None),
            Err(error) => return Err(error),
        };
        let content = decode::collect(stream, length).await;
        content.map(Some).map_err(|source| Error::Unreadable { key, source })
    }

    /// Writes any file from a stream.
    pub async fn put_stream(&self, key: &Key, content: ByteStream) -> Result<()> {
        let key = self.layout.key(key);
        let (content, flow) = deadline::observe_reads(content);
        let put = self.backend.put_object(&self.bucket, &key, content);
        let put = deadline::await_unless_idle(put, flow, self.deadlines.idle_timeout).await;
        put.map_err(|source| Error::Backend { action: "write", key, source })
    }

    async fn put_bytes(&self, key: &Key, content: Bytes) -> Result<()> {
        self.put_stream(key, single_piece_stream(content)).await
    }

    async fn get_json<T: DeserializeOwned + Default + Send + 'static>(
        &self,
        key: &Key,
        limits: Limits,
    ) -> Result<Option<T>> {
        let Some(packed) = self.get_bytes(key, limits.packed).await? else {
            return Ok(None);
        };
        let unreadable = |source| Error::Unreadable { key: self.layout.key(key), source };
        // Weighed on a blocking thread: the file may be many megabytes.
        let weighed = packed.clone();
        let weighed = blocking::run(move || decode::weigh_gzip(&weighed, limits));
        let weight = weighed.await.map_err(|_| Error::TaskAborted)?.map_err(unreadable)?;
        // Large files are read one after the other, however many backups are being read.
        let room = u32::try_from(weight >> 20).unwrap_or(READ_MEMORY_MIB).clamp(1, READ_MEMORY_MIB);
        let room = READ_MEMORY_PERMITS.acquire_many(room).await.map_err(|_| Error::TaskAborted)?;
        let read = blocking::run(move || decode::read_weighed_json_gzip(&packed, limits));
        let read = read.await.map_err(|_| Error::TaskAborted)?;
        drop(room);
        read.map(Some).map_err(unreadable)
    }

    async fn get_bytes(&self, key: &Key, limit: u64) -> Result<Option<Bytes>> {
        let Some(stream) = self.get_stream(key).await? else { return Ok(None) };
        let content = decode::collect(stream, limit).await;
        content.map(Some).map_err(|source| Error::Unreadable { key: self.layout.key(key), source })
    }

    /// True if a read failed because the object does not exist. Plugins written in Go do not report
    /// that, so the plugin is asked whether the object exists.
    async fn is_missing_object(&self, error: &Error, key: &str) -> bool {
        let Error::Backend { source, .. } = error else { return false };
        match source.class() {
            Class::Permanent => source.code() == Code::NotFound,
            Class::Unclear => {
                let request = self.backend.object_exists(&self.bucket, key);
                matches!(self.metadata_call("search for", key, request).await, Ok(false))
            }
            Class::Transient | Class::Unimplemented => false,
        }
    }

    /// Awaits a call that moves no data, with a deadline.
    async fn metadata_call<T>(
        &self,
        action: &'static str,
        key: &str,
        call: impl Future<Output = bowline_plugin::Result<T>>,
    ) -> Result<T> {
        let outcome = deadline::with_timeout(self.deadlines.metadata, call).await;
        outcome.map_err(|source| Error::Backend { action, key: key.to_owned(), source })
    }
}
