//! Journals of runs, in ConfigMaps of the server's namespace.
//!
//! Journals are in the cluster and not in the bucket: a frozen application must not depend on a
//! bucket. One ConfigMap is one page of the journal; at 32 KiB a new page starts. Pages have no
//! owner reference, so a deleted run leaves its journal behind, and [`orphans`] finds it.
//!
//! # Guarantees
//! - A record is in the cluster when its `append` has returned. A record whose `append` failed, or
//!   was not awaited, may or may not be there, but never twice.
//! - Many tasks may append concurrently: waiting records are written together, by the task that
//!   holds the writer. If that task is dropped, the next one finishes its batch.
//! - Opening a journal takes it over, and writes to pages of its own. Pending writes of an earlier
//!   opener are refused, however late they reach the API server. The exception is a new page: there
//!   the later opening is refused, and must be repeated to see that page.
//! - Anything other than a page as this server writes it is an error that names the ConfigMap;
//!   nothing is skipped. Only `salvage` reads whatever is still readable, for the sake of pods that
//!   may be frozen.
//! - A page is started only when the previous one exists.
//!
//! # Caveats
//! - An append is retried for 18 seconds, after the batch that was being written when it arrived.

mod attempts;
mod hooks;
mod pack;
mod page;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bowline_api::label;
use bowline_engine::journal::{self, Journal, JournalEntry};
use bowline_engine::phase::Stage;
use bowline_store::name::RunUid;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, ObjectList, Patch, PatchParams};
use kube::core::ObjectMeta;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::error_text::status_message;
use crate::list::next_page;
use crate::patch;
use attempts::Attempts;
pub(crate) use hooks::{SavedHooks, SavedHooksError};
pub use pack::UnpackError;
pub use page::PageDefect;
use page::{JournalContents, JournalOwner, WritePosition};
use state::JournalState;
pub(crate) use state::ThawClaim;

/// Page size of lists, for pages and for metadata of pages.
const PAGES_PER_LIST: u32 = 32;
const METADATA_PER_LIST: u32 = 250;
/// Maximum number of journals per listing. The remaining ones wait for the next listing, and the
/// log says so.
const MAX_JOURNALS: usize = 100_000;

/// Reason why a journal could not be read, written or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A record is too large.
    #[error(
        "a record of {bytes} bytes is too large: a journal takes {} at most",
        page::MAX_RECORD_BYTES
    )]
    TooLarge {
        /// Size of the record.
        bytes: usize,
    },
    /// A record cannot be encoded as JSON.
    #[error("a record cannot be encoded")]
    Encode(#[source] serde_json::Error),
    /// The journal is full.
    #[error(
        "the journal is full: it takes {} MiB at most, packed {}",
        page::MAX_UNPACKED_BYTES >> 20,
        page::MAX_BYTES >> 20
    )]
    Full,
    /// The journal has more pages than this server ever writes.
    #[error("run {run} has a journal of more than {} ConfigMaps", page::MAX_PAGES)]
    TooMany {
        /// Run of the journal.
        run: RunUid,
    },
    /// A ConfigMap has the label of a page but is not one.
    #[error(
        "ConfigMap {page} is not a page of the journal: {defect}; if it is of no use, delete it"
    )]
    InvalidPage {
        /// Name of the ConfigMap.
        page: String,
        /// Defect of the page, which is part of the message.
        defect: PageDefect,
    },
    /// A page is missing although later ones exist.
    #[error("ConfigMap {page} of the journal is missing, and what was noted on it")]
    Missing {
        /// Name of the ConfigMap.
        page: String,
    },
    /// Another process has opened the journal since, or a late write of an earlier opener arrived.
    #[error("ConfigMap {page} of the journal is somebody else's by now: open the journal again")]
    TakenOver {
        /// Name of the ConfigMap.
        page: String,
    },
    /// A page was replaced or changed.
    #[error("ConfigMap {page} was changed by somebody else meanwhile")]
    Changed {
        /// Name of the ConfigMap.
        page: String,
    },
    /// The API server did not answer.
    #[error("the API server did not answer in time")]
    Timeout,
    /// The API server refused a read.
    #[error("the ConfigMaps of the journal cannot be read")]
    Read(#[source] kube::Error),
    /// The API server refused a write.
    #[error("ConfigMap {page} of the journal cannot be written")]
    Write {
        /// Name of the ConfigMap.
        page: String,
        /// Cause.
        source: kube::Error,
    },
    /// The API server refused a deletion.
    #[error("ConfigMap {page} of the journal cannot be deleted")]
    Remove {
        /// Name of the ConfigMap.
        page: String,
        /// Cause.
        source: kube::Error,
    },
}

impl Error {
    /// True if a retry may succeed without any intervention.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Changed { .. } | Self::Timeout => true,
            // A list that took too long starts from the beginning.
            Self::Read(kube::Error::Api(status)) if status.code == 410 => true,
            Self::Read(source) | Self::Write { source, .. } | Self::Remove { source, .. } => {
                !patch::is_permanent(source)
            }
            Self::TooLarge { .. }
            | Self::Encode(_)
            | Self::Full
            | Self::TooMany { .. }
            | Self::InvalidPage { .. }
            | Self::Missing { .. }
            | Self::TakenOver { .. } => false,
        }
    }
}

impl From<Error> for journal::Error {
    fn from(error: Error) -> Self {
        let reason = status_message(&error);
        match error {
            Error::Full => Self::Full(reason),
            _ => Self::Failed(reason),
        }
    }
}

/// Journal of a run.
pub struct ConfigMapJournal {
    api: Api<ConfigMap>,
    owner: JournalOwner,
    /// Id of this opener, unique among all openers of the journal.
    writer: String,
    /// Storage location of the run, if known, and the bucket that it names.
    location: Option<String>,
    bucket: Option<String>,
    /// Records not yet in a batch. Each entry has a waiting caller, so the callers bound the queue.
    waiting: Mutex<VecDeque<PendingRecord>>,
    page_writer: tokio::sync::Mutex<PageWriter>,
    /// Pods that may be frozen and snapshots in flight, according to the records, written or not.
    state: JournalState,
}

/// A journal in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedJournal {
    /// Run of the journal.
    pub(crate) orphan: Orphan,
    /// Hash that changes with each record.
    pub(crate) fingerprint: u64,
}

/// Readable part of a journal, damaged or not.
#[derive(Debug, Default)]
pub(crate) struct SalvagedJournal {
    /// Readable records, in order.
    pub(crate) records: Vec<JournalEntry>,
    /// True if the pods of a damaged journal have been thawed, which cannot be appended to it.
    pub(crate) is_thawed: bool,
}

/// Journal whose run no longer exists. [`ConfigMapJournal::open`] reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Uid of the run.
    pub run: RunUid,
    /// Kind of the run: `Backup` or `Restore`.
    pub kind: String,
    /// Name of the run.
    pub name: String,
    /// Storage location of the run, if the journal contains it.
    pub location: Option<String>,
    /// Bucket that the location named when the run started.
    pub bucket: Option<String>,
    /// Stage at which the run ended without its bucket, if that could not be appended.
    pub abandoned: Option<Stage>,
}

type AppendResult = Result<(), journal::Error>;

/// Record with the channel of its waiting caller.
struct PendingRecord {
    text: String,
    /// True if the record may be packed.
    is_packable: bool,
    done: oneshot::Sender<AppendResult>,
}

/// State that is needed to write; only one task holds it.
#[derive(Default)]
struct PageWriter {
    place: WritePosition,
    /// Resource version of the page; `None` if the page may not exist yet.
    version: Option<String>,
    /// Records that are certainly on the page.
    written: WrittenRecords,
    /// Records to pack with the next write.
    packed: Option<PackedRecords>,
    /// Batch being written. It stays here until its outcome is known, whichever task writes it.
    batch: Option<Batch>,
}

impl WrittenRecords {
    /// Packs the packable records, if that saves enough. Also returns the resulting size of the
    /// page.
    fn pack(&self) -> Option<(PackedRecords, usize)> {
        if self.plain.is_empty() {
            return None;
        }
        let bytes = match pack::pack(&self.packable) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!("a page of the journal cannot be packed: {error}");
                return None;
            }
        };
        let used = self.readable + page::record_cost(bytes.len());
        let packed = PackedRecords { bytes: ByteString(bytes), keys: self.plain.clone() };
        (used <= page::MAX_PACKED_BYTES).then_some((packed, used))
    }

    fn record_batch(&mut self, batch: &Batch) {
        for key in batch.packed.iter().flat_map(|packed| &packed.keys) {
            self.plain.remove(key);
        }
        for (key, text) in &batch.records {
            if batch.packable.contains(key) {
                self.plain.insert(key.clone());
                self.packable.insert(key.clone(), text.clone());
            } else {
                self.readable += page::record_cost(text.len());
            }
        }
    }
}

impl Batch {
    /// Patch of the page.
    fn as_patch(&self) -> Value {
        let Some(PackedRecords { bytes, keys }) = &self.packed else {
            return json!({ "data": self.records });
        };
        let removed = keys.iter().map(|key| (key.clone(), Value::Null));
        let new = self.records.iter().map(|(key, text)| (key.clone(), json!(text)));
        let data: serde_json::Map<String, Value> = removed.chain(new).collect();
        json!({ "data": data, "binaryData": { pack::KEY: bytes } })
    }
}

/// Records that one writer has put on a page.
#[derive(Default)]
struct WrittenRecords {
    /// Records that may be packed, packed or not.
    packable: BTreeMap<String, String>,
    /// Keys of packable records that are not packed yet.
    plain: BTreeSet<String>,
    /// Size of the other records, which stay unpacked.
    readable: usize,
}

/// Records that the next write packs, so that they no longer have keys of their own on the page.
struct PackedRecords {
    bytes: ByteString,
    keys: BTreeSet<String>,
}

/// Records written by one request, to one page.
#[derive(Default)]
struct Batch {
    records: BTreeMap<String, String>,
    /// Keys of the records that may be packed later.
    packable: BTreeSet<String>,
    packed: Option<PackedRecords>,
    done: Vec<oneshot::Sender<AppendResult>>,
}

impl ConfigMapJournal {
    /// Opens the journal of a run and takes it over: earlier openers can no longer write to it.
    /// Also returns its records, in order. Nothing is created before the first append.
    pub async fn open(
        client: Client,
        namespace: &str,
        run: &RunUid,
        kind: &str,
        name: &str,
    ) -> Result<(Self, Vec<JournalEntry>), Error> {
        let api = Api::namespaced(client, namespace);
        let owner = JournalOwner { run: run.clone(), kind: kind.to_owned(), name: name.to_owned() };
        let writer = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let mut attempts = Attempts::new(attempts::WHOLE_JOURNAL_LIMITS);
        let contents = loop {
            match attempts.attempt(take_over(&api, &owner, &writer)).await {
                Ok(contents) => break contents,
                Err(error) => attempts.wait_before_retry(error).await?,
            }
        };
        let page_writer = PageWriter { place: contents.position, ..PageWriter::default() };
        let (waiting, page_writer) = (Mutex::default(), tokio::sync::Mutex::new(page_writer));
        let state = JournalState::recover(&contents.records);
        let (location, bucket) = (None, None);
        Ok((
            Self { api, owner, writer, location, bucket, waiting, page_writer, state },
            contents.records,
        ))
    }

    /// True if the run has leftovers that only the journal knows of: pods that may be frozen, or
    /// snapshots that may still appear.
    pub(crate) fn has_unfinished_work(&self) -> bool {
        self.state.has_unfinished_work()
    }

    /// Claims the pods that may be frozen and that no other task is about to thaw. No block with
    /// one of them starts meanwhile. Waits until no other task has a claim.
    pub(crate) async fn claim_frozen(&self) -> ThawClaim<'_> {
        self.state.claim().await
    }

    /// Like [`claim_frozen`](Self::claim_frozen), but returns `None` if another task has a claim.
    pub(crate) fn try_claim_frozen(&self) -> Option<ThawClaim<'_>> {
        self.state.try_claim()
    }

    /// Writes the storage location of the run on each page. Once the run's object is deleted,
    /// cleanup has no other source for it.
    #[must_use]
    pub fn with_location(mut self, location: &str) -> Self {
        self.location = Some(location.to_owned()).filter(|name| !name.is_empty());
        self
    }

    /// Writes the bucket of the location beside the location, so that cleanup does not use another
    /// bucket.
    #[must_use]
    pub fn with_bucket(self, bucket: Option<String>) -> Self {
        Self { bucket, ..self }
    }

    /// Appends that the run ends at a stage without its bucket. If that fails, marks the first page
    /// instead.
    pub async fn abandon(&self, stage: Stage) -> Result<(), Error> {
        let record = JournalEntry::Abandoned { stage, at: Timestamp::now() };
        let Err(error) = self.append(&record).await else { return Ok(()) };
        tracing::warn!("{error}; the first page is marked instead");
        let page = self.owner.page_name(0);
        let mark = json!({ "metadata": { "annotations": { page::ABANDONED: stage } } });
        let mut attempts = Attempts::new(attempts::WHOLE_JOURNAL_LIMITS);
        loop {
            let marking = async {
                let marked = patch_page(&self.api, &page, None, mark.clone()).await;
                marked.map_err(|source| Error::Write { page: page.clone(), source })
            };
            match attempts.attempt(marking).await {
                Ok(_) => return Ok(()),
                Err(error) => attempts.wait_before_retry(error).await?,
            }
        }
    }

    /// Removes the journal: the run has ended and none of its records may be needed.
    pub async fn remove(&self) -> Result<(), Error> {
        let mut attempts = Attempts::new(attempts::WHOLE_JOURNAL_LIMITS);
        loop {
            match attempts.attempt(delete_pages(&self.api, &self.owner)).await {
                Ok(()) => return Ok(()),
                Err(error) => attempts.wait_before_retry(error).await?,
            }
        }
    }

    fn pending(&self) -> MutexGuard<'_, VecDeque<PendingRecord>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the current batch, or else the waiting records that fit on a page, and notifies the
    /// callers.
    async fn write(&self, page_writer: &mut PageWriter) {
        if page_writer.batch.is_none() {
            page_writer.begin_batch(&mut self.pending());
        }
        let mut tries = Attempts::new(attempts::WRITE_LIMITS);
        let outcome = loop {
            match tries.attempt(self.write_once(page_writer)).await {
                Ok(()) => break Ok(()),
                Err(error) => {
                    if let Err(error) = tries.wait_before_retry(error).await {
                        page_writer.abandon_batch();
                        break Err(error.into());
                    }
                }
            }
        };
        let batch = page_writer.batch.take().unwrap_or_default();
        if outcome.is_ok() {
            page_writer.written.record_batch(&batch);
        }
        for done in batch.done {
            // A caller that is gone does not need the outcome.
            let _ = done.send(outcome.clone());
        }
    }

    /// One attempt. An earlier attempt may have been carried out, or may still be: both would
    /// change the resource version, so only one of them ever succeeds.
    async fn write_once(&self, page_writer: &mut PageWriter) -> Result<(), Error> {
        let Some(batch) = &page_writer.batch else { return Ok(()) };
        let name = self.owner.page_name(page_writer.place.page);
        let written = if let Some(version) = &page_writer.version {
            patch_page(&self.api, &name, Some(version), batch.as_patch()).await
        } else {
            let mut new =
                self.owner.page(page_writer.place.page, &self.writer, batch.records.clone());
            let places = [(page::LOCATION, &self.location), (page::BUCKET, &self.bucket)];
            for (key, value) in places {
                let position = value.iter().map(|value| (key.to_owned(), value.clone()));
                new.annotations_mut().extend(position);
            }
            self.api.create(&patch::post_params(), &new).await.map(|page| page.metadata)
        };
        match written {
            Ok(meta) => {
                page_writer.version = meta.resource_version;
                return Ok(());
            }
            Err(error) if patch::is_conflict(&error) || patch::is_already_exists(&error) => {}
            Err(source) => return Err(Error::Write { page: name, source }),
        }
        let found = self.api.get(&name).await.map_err(Error::Read)?;
        if found.annotations().get(page::WRITER) != Some(&self.writer) {
            return Err(Error::TakenOver { page: name });
        }
        let has = |(key, text)| found.data.as_ref().and_then(|data| data.get(key)) == Some(text);
        let is_written = batch.records.iter().all(has);
        page_writer.version = found.metadata.resource_version;
        if is_written { Ok(()) } else { Err(Error::Changed { page: name }) }
    }
}

#[async_trait]
impl Journal for ConfigMapJournal {
    async fn append(&self, record: &JournalEntry) -> Result<(), journal::Error> {
        self.state.apply(record).await;
        let written = self.enqueue_and_write(record).await;
        if written.is_err() {
            self.state.revert(record);
        }
        written
    }
}

impl ConfigMapJournal {
    async fn enqueue_and_write(&self, record: &JournalEntry) -> Result<(), journal::Error> {
        let text = page::encode(record)?;
        let is_packable = !pack::must_stay_readable(record);
        let (done, mut outcome) = oneshot::channel();
        self.pending().push_back(PendingRecord { text, is_packable, done });
        let mut page_writer = tokio::select! {
            biased;
            outcome = &mut outcome => return append_result(outcome.ok()),
            page_writer = self.page_writer.lock() => page_writer,
        };
        // Our record is written after the current batch and after the records queued before it.
        loop {
            match outcome.try_recv() {
                Ok(outcome) => return append_result(Some(outcome)),
                Err(oneshot::error::TryRecvError::Empty) => self.write(&mut page_writer).await,
                Err(oneshot::error::TryRecvError::Closed) => return append_result(None),
            }
        }
    }
}

impl PageWriter {
    /// Moves the waiting records that fit on the page into a batch, or onto the next page if none
    /// fits.
    fn begin_batch(&mut self, waiting: &mut VecDeque<PendingRecord>) {
        // The callers of these are gone: they have had no confirmation, and will not ask.
        waiting.retain(|waiting| !waiting.done.is_closed());
        let mut batch = Batch::default();
        while let Some(first) = waiting.pop_front() {
            match self.next_key(first.text.len(), batch.records.is_empty()) {
                Ok(Some(key)) => {
                    if first.is_packable {
                        batch.packable.insert(key.clone());
                    }
                    batch.records.insert(key, first.text);
                    batch.done.push(first.done);
                }
                Ok(None) => {
                    waiting.push_front(first);
                    break;
                }
                Err(error) => {
                    let _ = first.done.send(Err(error.into()));
                }
            }
        }
        batch.packed = self.packed.take();
        self.batch = Some(batch).filter(|batch| !batch.records.is_empty());
    }

    /// Gives up a batch that could not be written. If its page may not exist, the next records go
    /// to the same page: no page may be missing. Its record numbers are not reused, since the
    /// records may exist after all.
    fn abandon_batch(&mut self) {
        if self.version.is_none() {
            self.place.clear();
        }
    }

    /// Key for a record, if it fits. Moves to the next page only if this batch is still empty.
    fn next_key(&mut self, bytes: usize, may_turn: bool) -> Result<Option<String>, Error> {
        let key = self.place.next_key(bytes)?;
        if key.is_some() || !may_turn {
            return Ok(key);
        }
        if let Some((packed, used)) = self.written.pack() {
            self.place.resize(used);
            if let Some(key) = self.place.next_key(bytes)? {
                self.packed = Some(packed);
                return Ok(Some(key));
            }
        }
        self.place.next_page()?;
        self.version = None;
        self.written = WrittenRecords::default();
        self.place.next_key(bytes)
    }
}

/// Journals whose run is not in `live`: the uids of all existing Backups and Restores, and of those
/// that were deleted but that this process still runs.
pub async fn orphans(
    client: Client,
    namespace: &str,
    live: &BTreeSet<String>,
) -> Result<Vec<Orphan>, Error> {
    let all = list(client, namespace).await?.into_iter().map(|listed| listed.orphan);
    Ok(all.filter(|orphan| !live.contains(orphan.run.as_str())).collect())
}

/// All journals.
pub(crate) async fn list(client: Client, namespace: &str) -> Result<Vec<ListedJournal>, Error> {
    let api = Api::namespaced(client, namespace);
    let mut attempts = Attempts::new(attempts::WHOLE_JOURNAL_LIMITS);
    loop {
        match attempts.attempt(list_all(&api)).await {
            Ok(found) => return Ok(found),
            Err(error) => attempts.wait_before_retry(error).await?,
        }
    }
}

async fn list_all(api: &Api<ConfigMap>) -> Result<Vec<ListedJournal>, Error> {
    let mut found: BTreeMap<String, (Orphan, DefaultHasher)> = BTreeMap::new();
    let mut is_truncated = false;
    let params = ListParams::default().labels(label::JOURNAL).limit(METADATA_PER_LIST);
    let visit = |page: kube::core::PartialObjectMeta<ConfigMap>| {
        let value = |values: &BTreeMap<String, String>, key| values.get(key).cloned();
        let uid = value(page.labels(), label::JOURNAL).unwrap_or_default();
        let location = value(page.annotations(), page::LOCATION);
        let bucket = value(page.annotations(), page::BUCKET);
        let abandoned = value(page.annotations(), page::ABANDONED);
        let abandoned = abandoned.and_then(|stage| serde_json::from_value(stage.into()).ok());
        let version = (page.name_any(), page.resource_version());
        // Pages of an older server do not contain the location.
        if let Some((known, hasher)) = found.get_mut(&uid) {
            // A later bucket of the same location does not count.
            if known.location.is_none() {
                (known.location, known.bucket) = (location, bucket);
            }
            known.abandoned = known.abandoned.or(abandoned);
            version.hash(hasher);
            return Ok(());
        }
        if found.len() >= MAX_JOURNALS {
            is_truncated = true;
            return Ok(());
        }
        let Ok(run) = RunUid::new(uid.clone()) else {
            let page = page.name_any();
            tracing::warn!(
                "ConfigMap {page} is labelled as the journal of {uid:?}, which is no uid"
            );
            return Ok(());
        };
        let kind = value(page.labels(), label::RUN_KIND).unwrap_or_default();
        let name = value(page.annotations(), page::RUN_NAME).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        version.hash(&mut hasher);
        found.insert(uid, (Orphan { run, kind, name, location, bucket, abandoned }, hasher));
        Ok(())
    };
    for_each_listed(params, |params| async move { api.list_metadata(&params).await }, visit)
        .await?;
    if is_truncated {
        tracing::error!("more than {MAX_JOURNALS} journals are in the namespace: some wait");
    }
    let listed = |(orphan, hasher): (Orphan, DefaultHasher)| ListedJournal {
        orphan,
        fingerprint: hasher.finish(),
    };
    Ok(found.into_values().map(listed).collect())
}

/// Reads a journal that another task may have open, without taking it over.
pub(crate) async fn read(
    client: Client,
    namespace: &str,
    orphan: &Orphan,
) -> Result<Vec<JournalEntry>, Error> {
    let (api, owner) = (Api::namespaced(client, namespace), JournalOwner::of(orphan));
    let mut attempts = Attempts::new(attempts::WHOLE_JOURNAL_LIMITS);
    loop {
        match attempts.attempt(all_pages(&api, &owner)).await {
            Ok(pages) if pages.iter().any(|page| owner.is_removed(page)) => return Ok(Vec::new()),
            Ok(pages) => return Ok(owner.read(pages)?.records),
            Err(error) => attempts.wait_before_retry(error).await?,
        }
    }
}

/// Reads the readable part of a journal and skips the rest.
pub(crate) async fn salvage(
    client: Client,
    namespace: &str,
    orphan: &Orphan,
) -> Result<SalvagedJournal, Error> {
    let (api, owner) = (Api::namespaced(client, namespace), JournalOwner::of(orphan));
    let mut attempts = Attempts::new(attempts::WHOLE_JOURNAL_LIMITS);
    loop {
        match attempts.attempt(pages_up_to_limit(&api, &owner)).await {
            Ok(pages) => return Ok(owner.salvage(pages)),
            Err(error) => attempts.wait_before_retry(error).await?,
        }
    }
}

/// Marks a damaged journal: its pods have been thawed.
pub(crate) async fn mark_thawed(
    client: Client,
    namespace: &str,
    orphan: &Orphan,
) -> Result<(), Error> {
    let (api, owner) = (Api::namespaced(client, namespace), JournalOwner::of(orphan));
    let mut attempts = Attempts::new(attempts::WHOLE_JOURNAL_LIMITS);
    loop {
        let mark = async {
            let Some(page) =
                pages_up_to_limit(&api, &owner).await?.first().map(ResourceExt::name_any)
            else {
                return Ok(());
            };
            let mark = json!({ "metadata": { "annotations": { page::THAWED: "true" } } });
            match patch_page(&api, &page, None, mark).await {
                Err(source) if !patch::is_not_found(&source) => Err(Error::Write { page, source }),
                _ => Ok(()),
            }
        };
        match attempts.attempt(mark).await {
            Ok(()) => return Ok(()),
            Err(error) => attempts.wait_before_retry(error).await?,
        }
    }
}

/// All pages; an error if there are too many.
async fn all_pages(api: &Api<ConfigMap>, owner: &JournalOwner) -> Result<Vec<ConfigMap>, Error> {
    let (mut pages, mut bytes) = (Vec::new(), 0);
    let params = ListParams::default().labels(&owner.selector()).limit(PAGES_PER_LIST);
    let visit = |page: ConfigMap| {
        bytes += page::page_cost(&page);
        pages.push(page);
        let max_bytes = page::MAX_BYTES + page::READ_SLACK;
        let is_too_many = pages.len() > page::MAX_PAGES || bytes > max_bytes;
        if is_too_many { Err(Error::TooMany { run: owner.run.clone() }) } else { Ok(()) }
    };
    for_each_listed(params, |params| async move { api.list(&params).await }, visit).await?;
    Ok(pages)
}

/// All pages, or the first ones if there are too many.
async fn pages_up_to_limit(
    api: &Api<ConfigMap>,
    owner: &JournalOwner,
) -> Result<Vec<ConfigMap>, Error> {
    let (mut pages, mut bytes) = (Vec::new(), 0);
    let params = ListParams::default().labels(&owner.selector()).limit(PAGES_PER_LIST);
    let visit = |page: ConfigMap| {
        bytes += page::page_cost(&page);
        if pages.len() < page::MAX_PAGES && bytes <= page::MAX_BYTES + page::READ_SLACK {
            pages.push(page);
        }
        Ok(())
    };
    for_each_listed(params, |params| async move { api.list(&params).await }, visit).await?;
    Ok(pages)
}

/// Reads all pages, and signs the last one. Any earlier write to it that is still under way names
/// an older resource version, and is refused from then on.
async fn take_over(
    api: &Api<ConfigMap>,
    owner: &JournalOwner,
    writer: &str,
) -> Result<JournalContents, Error> {
    let pages = all_pages(api, owner).await?;
    if pages.iter().any(|page| owner.is_removed(page)) {
        delete_pages(api, owner).await?;
        return Ok(JournalContents::default());
    }
    let contents = owner.read(pages)?;
    let Some(last) = &contents.last else { return Ok(contents) };
    let page = last.name.clone();
    let signature = json!({ "metadata": { "annotations": { page::WRITER: writer } } });
    match patch_page(api, &page, last.version.as_deref(), signature).await {
        Ok(_) => Ok(contents),
        Err(error) if patch::is_conflict(&error) => Err(Error::Changed { page }),
        Err(source) => Err(Error::Write { page, source }),
    }
}

/// Deletes all pages, the first one last. The first page is marked before, so that the remains of
/// an interrupted deletion are never mistaken for a whole journal.
async fn delete_pages(api: &Api<ConfigMap>, owner: &JournalOwner) -> Result<(), Error> {
    let mut pages = BTreeSet::new();
    let params = ListParams::default().labels(&owner.selector()).limit(METADATA_PER_LIST);
    let visit = |page: kube::core::PartialObjectMeta<ConfigMap>| {
        pages.extend(owner.page_number(&page.name_any()));
        Ok(())
    };
    for_each_listed(params, |params| async move { api.list_metadata(&params).await }, visit)
        .await?;
    if pages.len() > 1 {
        let page = owner.page_name(0);
        let mark = json!({ "metadata": { "annotations": { page::REMOVED: "true" } } });
        match patch_page(api, &page, None, mark).await {
            Err(source) if !patch::is_not_found(&source) => {
                return Err(Error::Write { page, source });
            }
            _ => {}
        }
    }
    for number in pages.into_iter().rev() {
        let page = owner.page_name(number);
        match api.delete(&page, &DeleteParams::default()).await {
            Err(source) if !patch::is_not_found(&source) => {
                return Err(Error::Remove { page, source });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Patches a page. Requests an answer without the contents of the page, which may be large.
async fn patch_page(
    api: &Api<ConfigMap>,
    name: &str,
    resource_version: Option<&str>,
    mut change: Value,
) -> kube::Result<ObjectMeta> {
    if let Some(version) = resource_version {
        change["metadata"]["resourceVersion"] = json!(version);
    }
    let field_manager = Some(patch::FIELD_MANAGER.to_owned());
    let params = PatchParams { field_manager, ..PatchParams::default() };
    Ok(api.patch_metadata(name, &params, &Patch::Merge(change)).await?.metadata)
}

/// Calls a function for each object of a paginated list.
async fn for_each_listed<T, F>(
    params: ListParams,
    ask: impl Fn(ListParams) -> F,
    mut see: impl FnMut(T) -> Result<(), Error>,
) -> Result<(), Error>
where
    T: Clone,
    F: Future<Output = kube::Result<ObjectList<T>>>,
{
    let mut next = Some(params);
    while let Some(params) = next {
        let part = ask(params.clone()).await.map_err(Error::Read)?;
        part.items.into_iter().try_for_each(&mut see)?;
        next = next_page(params, &part.metadata);
    }
    Ok(())
}

fn append_result(outcome: Option<AppendResult>) -> Result<(), journal::Error> {
    let unknown = || journal::Error::Failed("nobody knows what came of it".to_owned());
    outcome.unwrap_or_else(|| Err(unknown()))
}
