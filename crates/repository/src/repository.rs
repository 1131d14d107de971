//! An open repository: reads contents, objects, manifests, snapshots and directories.

mod error;
mod indexes;
mod object_reader;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;

pub use self::error::Error;
pub use self::object_reader::ObjectReader;

use crate::blobs::{self, Blobs, Store};
use crate::content;
use crate::crypto::Crypter;
use crate::directory::{Directory, DirectoryEntry, EntryKind};
use crate::format::{
    BLOB_CONFIG_BLOB, BlobConfig, FORMAT_BLOB, FormatBlob, FormatKey, MAX_FORMAT_BLOB, Password,
    SupportedFormat,
};
use crate::id::{BlobId, ContentId, ContentPrefix, ManifestId, ObjectId};
use crate::index::{IndexEntry, IndexSet};
use crate::manifest::{self, ManifestEntry, TYPE_LABEL};
use crate::snapshot::{self, Snapshot};
use indexes::LoadedIndexes;

/// Contents that are read at a time where many are needed.
const PARALLEL_READS: usize = 8;

/// Longest directory that is read. A million files need about 200 MiB.
const MAX_DIRECTORY: u64 = 1 << 30;

/// Contents from this length on are decrypted beside the threads of the runtime.
const LONG_CONTENT: usize = 64 << 10;

/// Attempts to read a content whose pack disappears meanwhile, since maintenance moved what is in it.
const READ_ATTEMPTS: usize = 3;

/// A repository that was opened with its password.
///
/// The indexes are those of the time of opening; [`Repository::refresh`] reads the newer ones.
pub struct Repository {
    store: Store,
    format: Arc<OpenFormat>,
    indexes: RwLock<Arc<LoadedIndexes>>,
}

/// The format of an open repository.
pub(crate) struct OpenFormat {
    unique_id: Vec<u8>,
    key: FormatKey,
    pub(crate) parameters: SupportedFormat,
    blob_config: BlobConfig,
}

impl std::fmt::Debug for Repository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Repository")
            .field("format", &self.format.parameters)
            .finish_non_exhaustive()
    }
}

impl Repository {
    /// Opens a repository. `now` decides whether an announced upgrade locks it.
    pub async fn open(
        blobs: Arc<dyn Blobs>,
        password: &Password,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let store = Store::new(blobs);
        let invalid = |error| Error::Format(Box::new(error));
        let blob = FormatBlob::parse(&read_format_blob(&store).await?).map_err(invalid)?;
        let (derivation, password) = (blob.clone(), password.clone());
        let derive = move || derivation.derive_key(&password);
        let derived = tokio::task::spawn_blocking(derive).await;
        let key = derived.map_err(|_| Error::Interrupted)?.map_err(invalid)?;
        Self::open_blob(store, blob, key, now).await
    }

    /// Opens a repository without its password, which takes most of the time otherwise.
    pub async fn open_with_key(
        blobs: Arc<dyn Blobs>,
        key: FormatKey,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let store = Store::new(blobs);
        let blob = FormatBlob::parse(&read_format_blob(&store).await?);
        let blob = blob.map_err(|error| Error::Format(Box::new(error)))?;
        Self::open_blob(store, blob, key, now).await
    }

    async fn open_blob(
        store: Store,
        blob: FormatBlob,
        key: FormatKey,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let format = Arc::new(read_format(&store, blob, key, now).await?);
        let indexes = LoadedIndexes::default().reload(&store, &format.parameters.crypter).await?;
        Ok(Self { store, format, indexes: RwLock::new(Arc::new(indexes)) })
    }

    /// Reads the indexes that were written since the repository was opened or refreshed.
    pub async fn refresh(&self) -> Result<(), Error> {
        let reloaded = self.indexes().reload(&self.store, self.crypter()).await?;
        *self.indexes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(reloaded);
        Ok(())
    }

    /// Reads the format again: fails if an upgrade locks the repository by now, or if the password was changed.
    pub async fn check_format(&self, now: Timestamp) -> Result<(), Error> {
        let blob = read_format_blob(&self.store).await?;
        FormatBlob::parse(&blob)
            .and_then(|blob| blob.open(&self.format.key)?.supported(now))
            .map(drop)
            .map_err(|error| Error::Format(Box::new(error)))
    }

    /// Keys and parameters.
    pub fn format(&self) -> &SupportedFormat {
        &self.format.parameters
    }

    /// Random name of the repository.
    pub fn unique_id(&self) -> &[u8] {
        &self.format.unique_id
    }

    /// The key that the password gives, for [`Repository::open_with_key`].
    pub fn key(&self) -> &FormatKey {
        &self.format.key
    }

    /// Retention of blobs by the store.
    pub fn blob_config(&self) -> &BlobConfig {
        &self.format.blob_config
    }

    /// Where a content is. `None` if there is none, or if it is deleted for good.
    pub fn find_content(&self, content: &ContentId) -> Option<IndexEntry> {
        self.index_set().get(content)
    }

    /// All contents with a letter or, with `None`, without one.
    pub fn contents(&self, prefix: Option<ContentPrefix>) -> Vec<IndexEntry> {
        self.index_set().entries_with_prefix(prefix.map(ContentPrefix::letter))
    }

    /// Reads a content and compares it with its hash.
    pub async fn read_content(&self, content: &ContentId) -> Result<Vec<u8>, Error> {
        let mut attempt = 1;
        loop {
            let entry = self.find_content(content).ok_or(Error::ContentNotFound(*content))?;
            match self.read_entry(&entry).await {
                Err(Error::Blobs(blobs::Error::NotFound(_))) if attempt < READ_ATTEMPTS => {
                    attempt += 1;
                    self.refresh().await?;
                }
                result => return result,
            }
        }
    }

    /// Opens an object for reading.
    pub async fn open_object(&self, object: ObjectId) -> Result<ObjectReader<'_>, Error> {
        ObjectReader::open(self, object).await
    }

    /// Reads a whole object, which may have no more than `max_length` bytes.
    pub async fn read_object(&self, object: ObjectId, max_length: u64) -> Result<Vec<u8>, Error> {
        self.open_object(object).await?.read_all(max_length).await
    }

    /// Reads a directory.
    pub async fn read_directory(&self, object: ObjectId) -> Result<Directory, Error> {
        let json = self.read_object(object, MAX_DIRECTORY).await?;
        Directory::parse(&json).map_err(|source| Error::Directory { object, source })
    }

    /// Finds a file or directory below another, by the names on the way.
    pub async fn find_entry(
        &self,
        root: &DirectoryEntry,
        path: &[&str],
    ) -> Result<Option<DirectoryEntry>, Error> {
        let mut found = root.clone();
        for name in path {
            let Some(object) = found.object.filter(|_| found.kind == EntryKind::Directory) else {
                return Ok(None);
            };
            let directory = self.read_directory(object).await?;
            match directory.entries.into_iter().find(|entry| entry.name == *name) {
                Some(entry) => found = entry,
                None => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    /// All manifests.
    pub async fn manifests(&self) -> Result<BTreeMap<ManifestId, ManifestEntry>, Error> {
        let contents = self.contents(Some(ContentPrefix::MANIFEST));
        let lists: Vec<Vec<ManifestEntry>> = stream::iter(contents)
            // Those that were merged into another are deleted.
            .filter(|entry| std::future::ready(!entry.is_deleted))
            .map(|entry| self.read_manifests(entry.content))
            .buffer_unordered(PARALLEL_READS)
            .try_collect()
            .await?;
        Ok(manifest::merge(lists.into_iter().flatten()))
    }

    /// All snapshots, the oldest first.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        let manifests = self.manifests().await?;
        let mut snapshots = manifests
            .values()
            .filter(|entry| entry.labels.get(TYPE_LABEL).is_some_and(is_snapshot))
            .map(Snapshot::parse)
            .collect::<Result<Vec<_>, _>>()
            .map_err(Error::Snapshot)?;
        snapshots.sort_by_key(|snapshot| (snapshot.start_time, snapshot.id));
        Ok(snapshots)
    }

    async fn read_manifests(&self, content: ContentId) -> Result<Vec<ManifestEntry>, Error> {
        let list = self.read_content(&content).await?;
        manifest::parse_list(&list).map_err(|source| Error::Manifests { content, source })
    }

    async fn read_entry(&self, entry: &IndexEntry) -> Result<Vec<u8>, Error> {
        let damaged = |source| Error::Content { pack: entry.pack.clone(), source };
        content::check_entry(entry).map_err(damaged)?;
        let (offset, length) = (u64::from(entry.offset), u64::from(entry.packed_length));
        let packed = self.store.get_range(&entry.pack, offset, length).await?;
        if packed.len() < LONG_CONTENT {
            return content::decode(self.crypter(), entry, packed.into()).map_err(damaged);
        }
        let (format, owned) = (Arc::clone(&self.format), entry.clone());
        let decode = move || content::decode(&format.parameters.crypter, &owned, packed.into());
        let decoded = tokio::task::spawn_blocking(decode).await;
        decoded.map_err(|_| Error::Interrupted)?.map_err(damaged)
    }

    /// The store, for those who write.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Keys and parameters, for work on other threads.
    pub(crate) fn shared_format(&self) -> Arc<OpenFormat> {
        Arc::clone(&self.format)
    }

    fn crypter(&self) -> &Crypter {
        &self.format.parameters.crypter
    }

    fn indexes(&self) -> Arc<LoadedIndexes> {
        Arc::clone(&self.indexes.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn index_set(&self) -> Arc<IndexSet> {
        self.indexes().set()
    }
}

fn is_snapshot(kind: &String) -> bool {
    kind == snapshot::MANIFEST_TYPE
}

/// The name of a blob that is the same in every repository.
pub(crate) fn well_known_blob(name: &str) -> BlobId {
    #[expect(clippy::expect_used, reason = "constants of this crate")]
    name.parse().expect("name of a blob")
}

async fn read_format_blob(store: &Store) -> Result<Bytes, Error> {
    match store.get(&well_known_blob(FORMAT_BLOB), MAX_FORMAT_BLOB).await {
        Err(blobs::Error::NotFound(_)) => Err(Error::NotInitialized),
        blob => Ok(blob?),
    }
}

async fn read_format(
    store: &Store,
    blob: FormatBlob,
    key: FormatKey,
    now: Timestamp,
) -> Result<OpenFormat, Error> {
    let invalid = |error| Error::Format(Box::new(error));
    let parameters = blob.open(&key).and_then(|format| format.supported(now)).map_err(invalid)?;
    let blob_config = match store.get(&well_known_blob(BLOB_CONFIG_BLOB), MAX_FORMAT_BLOB).await {
        // Repositories of older versions have none.
        Err(blobs::Error::NotFound(_)) => BlobConfig::default(),
        config => blob.open_blob_config(&key, &config?).map_err(invalid)?,
    };
    Ok(OpenFormat { unique_id: blob.unique_id().to_vec(), key, parameters, blob_config })
}
