//! Writes contents, objects and manifests into a repository.
//!
//! Contents are collected in packs, one for data and one for metadata. [`Writer::flush`] writes what is left, and then
//! the index: only with it are the contents in the repository. A blob marks the session until then, so that maintenance
//! keeps its packs. A writer that dies leaves packs that no index names, and the marker: both are deleted later by the
//! maintenance of either product.
//!
//! # Guarantees
//! An index names only packs that the store has confirmed. It is in an epoch that maintenance has not settled: the epoch
//! is read before it is written and again afterwards.

mod error;
mod object_writer;
mod session;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use ring::rand::{SecureRandom as _, SystemRandom};

pub use self::error::Error;
pub use self::object_writer::{ObjectWriter, WrittenObject};
pub use self::session::SessionOwner;

use self::session::Session;
use crate::content::{self, EncodedContent};
use crate::crypto::NONCE_LENGTH;
use crate::directory::Directory;
use crate::id::{BlobId, ContentId, ContentPrefix, ManifestId, ObjectId};
use crate::index::{self, IndexEntry};
use crate::manifest::{self, ManifestEntry};
use crate::pack::{self, PADDING_UNIT, PackBuilder, PackRandomness};
use crate::repository::Repository;
use crate::snapshot::Snapshot;
use crate::splitter::SplitterAlgorithm;
use crate::{epoch, json};

/// Interval after which everything is flushed, and indexes of other writers are read: so a session is short, and no
/// content is reused that maintenance deleted long ago.
const FLUSH_INTERVAL: SignedDuration = SignedDuration::from_mins(10);

/// Contents after which everything is flushed, so that memory has a bound.
const MAX_PENDING: usize = 500_000;

/// Attempts to write an index, each in a later epoch.
const INDEX_ATTEMPTS: usize = 3;

/// Contents from this length on are encrypted beside the threads of the runtime.
const LONG_CONTENT: usize = 64 << 10;

/// The time, as a writer asks for it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Writes into a repository. Everything is there after [`Writer::flush`] alone.
pub struct Writer<'a> {
    repository: &'a Repository,
    owner: SessionOwner,
    clock: Clock,
    splitter: SplitterAlgorithm,
    session: Option<Session>,
    /// Packs that are not full yet, by the first letter of their names.
    packs: BTreeMap<&'static str, PackBuilder>,
    /// Contents that no index names yet, in packs that are written or not.
    pending: HashSet<ContentId>,
    /// Entries of packs that are written.
    entries: Vec<IndexEntry>,
    manifests: Vec<ManifestEntry>,
    last_flush: Timestamp,
    /// True while a pack is on its way, and for ever if it did not arrive: then its contents are lost.
    is_broken: bool,
    random: SystemRandom,
}

impl<'a> Writer<'a> {
    /// A writer, if the repository can be written to.
    pub async fn new(
        repository: &'a Repository,
        owner: SessionOwner,
        clock: Clock,
    ) -> Result<Writer<'a>, Error> {
        let format = repository.format();
        if format.index_version != 2 {
            return Err(Error::IndexVersion(format.index_version));
        }
        let splitter = format.splitter.ok_or(Error::UnsupportedSplitter)?;
        if !repository.blob_config().retention_mode.is_empty() {
            return Err(Error::RetentionMode);
        }
        repository.refresh().await?;
        let last_flush = clock();
        Ok(Self {
            repository,
            owner,
            clock,
            splitter,
            session: None,
            packs: BTreeMap::new(),
            pending: HashSet::new(),
            entries: Vec::new(),
            manifests: Vec::new(),
            last_flush,
            is_broken: false,
            random: SystemRandom::new(),
        })
    }

    /// Writes a content, unless the repository has it already.
    pub async fn write_content(
        &mut self,
        prefix: Option<ContentPrefix>,
        plain: Vec<u8>,
        compress: bool,
    ) -> Result<ContentId, Error> {
        self.check_usable()?;
        let is_due = (self.clock)().duration_since(self.last_flush).abs() >= FLUSH_INTERVAL;
        if is_due || self.pending.len() >= MAX_PENDING {
            self.flush_contents().await?;
        }
        if plain.len() > content::MAX_LENGTH {
            return Err(Error::TooLong(plain.len()));
        }
        let (content, plain) = self.hash(prefix, plain).await?;
        if self.pending.contains(&content) {
            return Ok(content);
        }
        let known = self.repository.find_content(&content);
        if known.as_ref().is_some_and(|entry| !entry.is_deleted) {
            return Ok(content);
        }
        // A content that comes back must be later than its deletion.
        let after_deletion = known.map_or(i64::MIN, |entry| entry.timestamp.saturating_add(1));
        let timestamp = (self.clock)().as_second().max(after_deletion);
        let encoded = self.encode(content, plain, compress).await?;
        self.is_broken = true;
        self.add_to_pack(&encoded, timestamp).await?;
        self.is_broken = false;
        Ok(content)
    }

    /// Begins an object of any length: `None` for the data of a file.
    pub fn begin_object(&self, prefix: Option<ContentPrefix>) -> ObjectWriter {
        ObjectWriter::new(self.splitter, prefix)
    }

    /// Writes a short object: the target of a link, for instance.
    pub async fn write_object(
        &mut self,
        prefix: Option<ContentPrefix>,
        data: &[u8],
    ) -> Result<ObjectId, Error> {
        let mut object = self.begin_object(prefix);
        object.write(self, data).await?;
        Ok(object.finish(self).await?.object)
    }

    /// Writes a directory.
    pub async fn write_directory(&mut self, directory: &Directory) -> Result<ObjectId, Error> {
        let json = directory.encode().map_err(Error::Directory)?;
        self.write_object(Some(ContentPrefix::DIRECTORY), &json).await
    }

    /// Adds the manifest of a snapshot. Returns its ID, which is the snapshot ID of Velero.
    pub fn add_snapshot(&mut self, snapshot: &Snapshot) -> Result<ManifestId, Error> {
        let data = json::to_go_json(snapshot).map_err(Error::EncodeManifest)?;
        self.add_manifest(snapshot.labels(), data)
    }

    /// Adds a manifest with a JSON document.
    pub fn add_manifest(
        &mut self,
        labels: BTreeMap<String, String>,
        json: String,
    ) -> Result<ManifestId, Error> {
        let id = ManifestId::from_random(self.random_bytes()?);
        let data = serde_json::value::RawValue::from_string(json).map_err(Error::EncodeManifest)?;
        self.manifests.push(ManifestEntry {
            id,
            labels,
            modified: (self.clock)(),
            deleted: false,
            data: Some(data),
        });
        Ok(id)
    }

    /// Deletes a manifest: a snapshot, for instance. What it alone refers to is deleted by maintenance, days later.
    pub fn delete_manifest(&mut self, entry: &ManifestEntry) {
        // Later than the entry that it deletes, also where that writer's clock is ahead.
        let after = entry.modified.checked_add(SignedDuration::from_nanos(1)).unwrap_or_default();
        self.manifests.push(ManifestEntry {
            id: entry.id,
            labels: entry.labels.clone(),
            modified: (self.clock)().max(after),
            deleted: true,
            data: None,
        });
    }

    /// Writes everything that is pending. Afterwards it is in the repository, for every reader.
    ///
    /// After an error, or when the future was dropped, what was pending is lost, and the writer refuses to work.
    pub async fn flush(&mut self) -> Result<(), Error> {
        if !self.manifests.is_empty() {
            let list = manifest::encode_list(self.manifests.clone()).map_err(Error::Manifests)?;
            self.write_content(Some(ContentPrefix::MANIFEST), list, true).await?;
        }
        self.flush_contents().await?;
        self.manifests.clear();
        Ok(())
    }

    fn check_usable(&self) -> Result<(), Error> {
        if self.is_broken { Err(Error::Broken) } else { Ok(()) }
    }

    async fn flush_contents(&mut self) -> Result<(), Error> {
        self.check_usable()?;
        self.is_broken = true;
        self.flush_all().await?;
        self.is_broken = false;
        Ok(())
    }

    async fn flush_all(&mut self) -> Result<(), Error> {
        // An upgrade of the repository may have begun.
        self.repository.check_format((self.clock)()).await?;
        while let Some((_, pack)) = self.packs.pop_first() {
            self.put_pack(pack).await?;
        }
        if !self.entries.is_empty() {
            let index = index::build(self.entries.iter().cloned()).map_err(Error::Index)?;
            self.put_index(&index).await?;
            self.entries.clear();
            self.pending.clear();
        }
        if let Some(session) = self.session.take() {
            self.repository.store().delete(&session.marker).await?;
        }
        self.repository.refresh().await?;
        self.last_flush = (self.clock)();
        Ok(())
    }

    async fn add_to_pack(&mut self, encoded: &EncodedContent, timestamp: i64) -> Result<(), Error> {
        let letter = pack::prefix_for(&encoded.content);
        let mut pack = match self.packs.remove(letter) {
            Some(pack) => pack,
            None => self.begin_pack(letter).await?,
        };
        pack.add(encoded, timestamp).map_err(Error::Pack)?;
        self.pending.insert(encoded.content);
        if pack.len() >= self.repository.format().max_pack_size {
            return self.put_pack(pack).await;
        }
        self.packs.insert(letter, pack);
        Ok(())
    }

    async fn begin_pack(&mut self, letter: &str) -> Result<PackBuilder, Error> {
        let session = self.session_id().await?;
        let random: [u8; 16] = self.random_bytes()?;
        let id = blob_id(&format!("{letter}{}-{session}", hex::encode(random)))?;
        Ok(PackBuilder::new(id, self.random_bytes()?, self.repository.format().version))
    }

    async fn put_pack(&mut self, pack: PackBuilder) -> Result<(), Error> {
        let random = PackRandomness {
            padding: self.random_bytes::<PADDING_UNIT>()?,
            index_suffix: self.random_bytes()?,
            nonce: self.random_bytes()?,
        };
        let format = self.repository.shared_format();
        let finish = move || pack.finish(&format.parameters.crypter, &random);
        let finished = tokio::task::spawn_blocking(finish).await;
        let mut pack = finished.map_err(|_| Error::Interrupted)?.map_err(Error::Pack)?;
        self.repository.store().put(&pack.id, pack.data).await?;
        self.entries.append(&mut pack.entries);
        Ok(())
    }

    /// Writes an index into the current epoch, and makes sure that the epoch has not been settled meanwhile.
    async fn put_index(&mut self, index: &[u8]) -> Result<(), Error> {
        let session = self.session_id().await?;
        let crypter = &self.repository.format().crypter;
        let hash = crypter.hash(index);
        let iv = crate::crypto::initialization_vector(&hash).map_err(Error::Encrypt)?;
        let nonce = self.random_bytes()?;
        let sealed = crypter.encrypt(index, &iv, nonce).map_err(Error::Encrypt)?;
        let sealed = bytes::Bytes::from(sealed);
        for _ in 0..INDEX_ATTEMPTS {
            let epoch = self.write_epoch().await?;
            let prefix = epoch::uncompacted_prefix(epoch);
            // One shard, which is the whole set.
            let blob = blob_id(&format!("{prefix}{}-{session}-c1", hex::encode(&hash)))?;
            self.repository.store().put(&blob, sealed.clone()).await?;
            if epoch::is_unsettled(epoch, self.write_epoch().await?) {
                return Ok(());
            }
            self.repository.store().delete(&blob).await?;
        }
        Err(Error::EpochsAdvance)
    }

    async fn write_epoch(&self) -> Result<u64, Error> {
        let listing = self.repository.store().list(epoch::MARKER_PREFIX).await?;
        Ok(epoch::select(listing.into_iter().map(|blob| blob.id)).write_epoch)
    }

    /// The ID of the session, which begins now if it has not yet.
    async fn session_id(&mut self) -> Result<String, Error> {
        if let Some(session) = &self.session {
            return Ok(session.id.clone());
        }
        let crypter = &self.repository.format().crypter;
        let (random, nonce) = (self.random_bytes()?, self.random_bytes()?);
        let (session, blob) = Session::begin(&self.owner, (self.clock)(), random, crypter, nonce)?;
        self.repository.store().put(&session.marker, blob.into()).await?;
        let id = session.id.clone();
        self.session = Some(session);
        Ok(id)
    }

    async fn hash(
        &self,
        prefix: Option<ContentPrefix>,
        plain: Vec<u8>,
    ) -> Result<(ContentId, Vec<u8>), Error> {
        let (format, length) = (self.repository.shared_format(), plain.len());
        let hash = move || (format.parameters.crypter.content_id(prefix, &plain), plain);
        run(hash, length).await
    }

    async fn encode(
        &self,
        content: ContentId,
        plain: Vec<u8>,
        compress: bool,
    ) -> Result<EncodedContent, Error> {
        let nonce: [u8; NONCE_LENGTH] = self.random_bytes()?;
        let (format, length) = (self.repository.shared_format(), plain.len());
        let encode =
            move || content::encode(&format.parameters.crypter, content, &plain, compress, nonce);
        run(encode, length).await?.map_err(Error::Encode)
    }

    fn random_bytes<const N: usize>(&self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.random.fill(&mut bytes).map_err(|_| Error::Random)?;
        Ok(bytes)
    }
}

/// Runs work on `length` bytes, beside the threads of the runtime if that takes long.
async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    length: usize,
) -> Result<T, Error> {
    if length < LONG_CONTENT {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Interrupted)
}

fn blob_id(name: &str) -> Result<BlobId, Error> {
    name.parse().map_err(Error::BlobName)
}

#[cfg(test)]
mod tests;
