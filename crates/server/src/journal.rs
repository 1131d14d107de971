//! The journals of runs, in ConfigMaps of our own namespace.
//!
//! In the cluster and not in the bucket: a frozen application must not depend on a bucket. A
//! ConfigMap is a page of the journal; at 32 KiB the next one is begun. They belong to no object, so
//! a deleted run leaves its journal, and [`orphans`] finds it.
//!
//! # Guarantees
//! - A record is in the cluster when its `append` has returned. One whose `append` failed, or was
//!   not waited for, may be there or not, but never twice.
//! - Many tasks may append at once: what waits is written together, by whoever's turn it is. If that
//!   task is dropped, the next one finishes what it began.
//! - Opening a journal takes it over, and writes on pages of its own. What somebody who had it open
//!   before was about to write is refused, however late it comes to the API server; or, where it was
//!   a new page, it is the later opening that is refused, and must be opened again to see that page.
//! - What is not a page as we write it is an error that names it; nothing is skipped. Only `salvage` reads
//!   what can still be read, for the sake of pods that may be frozen.
//! - A page is begun only when the one before it is there.
//!
//! # Caveats
//! - An append is tried for 18 seconds, after what was being written when it came.

mod hooks;
mod pack;
mod page;
mod state;
#[cfg(test)]
mod tests;
mod tries;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bowline_api::label;
use bowline_engine::journal::{self, Journal, Record};
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

use crate::patch;
use crate::story::one_line;
pub(crate) use hooks::KeptHooks;
use page::{Contents, Owner, Place};
use state::State;
pub(crate) use state::ThawClaim;
use tries::Tries;

/// How many pages are asked for at once, and how many descriptions of pages.
const PAGES_AT_ONCE: u32 = 32;
const DESCRIPTIONS_AT_ONCE: u32 = 250;
/// How many journals are listed at once. More are left for the next time, and that is told.
const MOST_JOURNALS: usize = 100_000;

/// Why a journal could not be read, written or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A record is too large.
    #[error(
        "a record of {bytes} bytes is too large: a journal takes {} at most",
        page::LARGEST_RECORD
    )]
    TooLarge {
        /// How large it is.
        bytes: usize,
    },
    /// A record is nothing that JSON can say.
    #[error("a record cannot be encoded")]
    Encode(#[source] serde_json::Error),
    /// No record fits any more.
    #[error(
        "the journal is full: it takes {} MiB at most, packed {}",
        page::MOST_UNPACKED >> 20,
        page::MOST_BYTES >> 20
    )]
    Full,
    /// There are more pages than were ever written.
    #[error("run {run} has a journal of more than {} ConfigMaps", page::MOST_PAGES)]
    TooMany {
        /// Whose journal it is.
        run: RunUid,
    },
    /// A ConfigMap is labelled as a page and is none.
    #[error(
        "ConfigMap {page} is not a page of the journal: {reason}; if it is of no use, delete it"
    )]
    Foreign {
        /// The ConfigMap.
        page: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A page is gone, though later ones are there.
    #[error("ConfigMap {page} of the journal is missing, and what was noted on it")]
    Missing {
        /// The ConfigMap.
        page: String,
    },
    /// The journal was opened by somebody else since, or what somebody wrote before came late.
    #[error("ConfigMap {page} of the journal is somebody else's by now: open the journal again")]
    TakenOver {
        /// The ConfigMap.
        page: String,
    },
    /// A page is another by now.
    #[error("ConfigMap {page} was changed by somebody else meanwhile")]
    Changed {
        /// The ConfigMap.
        page: String,
    },
    /// The API server did not answer.
    #[error("the API server did not answer in time")]
    Silent,
    /// The API server did not let us read.
    #[error("the ConfigMaps of the journal cannot be read")]
    Read(#[source] kube::Error),
    /// The API server did not let us write.
    #[error("ConfigMap {page} of the journal cannot be written")]
    Write {
        /// The ConfigMap.
        page: String,
        /// Why not.
        source: kube::Error,
    },
    /// The API server did not let us delete.
    #[error("ConfigMap {page} of the journal cannot be deleted")]
    Remove {
        /// The ConfigMap.
        page: String,
        /// Why not.
        source: kube::Error,
    },
}

impl Error {
    /// Whether it may be otherwise the next time, though nobody changed anything.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Changed { .. } | Self::Silent => true,
            // A list that took too long is begun anew.
            Self::Read(kube::Error::Api(status)) if status.code == 410 => true,
            Self::Read(source) | Self::Write { source, .. } | Self::Remove { source, .. } => {
                !patch::is_refused(source)
            }
            Self::TooLarge { .. }
            | Self::Encode(_)
            | Self::Full
            | Self::TooMany { .. }
            | Self::Foreign { .. }
            | Self::Missing { .. }
            | Self::TakenOver { .. } => false,
        }
    }
}

impl From<Error> for journal::Error {
    fn from(error: Error) -> Self {
        let reason = one_line(&error);
        match error {
            Error::Full => Self::Full(reason),
            _ => Self::Failed(reason),
        }
    }
}

/// The journal of a run.
pub struct ConfigMaps {
    api: Api<ConfigMap>,
    owner: Owner,
    /// Our name among those who ever opened the journal.
    writer: String,
    /// The storage location of the run, if somebody said so, and the bucket that it names.
    location: Option<String>,
    bucket: Option<String>,
    /// What nobody has begun to write. Each entry has a caller who waits, so callers bound it.
    waiting: Mutex<VecDeque<Waiting>>,
    pen: tokio::sync::Mutex<Pen>,
    /// Which pods may be frozen and which snapshots are in flight, as the records say, written or not.
    state: State,
}

/// A journal in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Whose it is.
    pub(crate) orphan: Orphan,
    /// What changes with each record.
    pub(crate) fingerprint: u64,
}

/// What can be read of a journal, damaged or not.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    /// The records that can be read, in order.
    pub(crate) records: Vec<Record>,
    /// Whether the pods that a damaged one names have been thawed, and that could not be noted in it.
    pub(crate) is_thawed: bool,
}

/// A journal whose run is gone. [`ConfigMaps::open`] reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The uid of the run.
    pub run: RunUid,
    /// What it was: `Backup` or `Restore`.
    pub kind: String,
    /// What it was called.
    pub name: String,
    /// Its storage location, if the journal says so.
    pub location: Option<String>,
    /// The bucket that the location named when the run began.
    pub bucket: Option<String>,
    /// The stage at which it ended without its bucket, if that could not be appended.
    pub abandoned: Option<Stage>,
}

/// What came of an append.
type Outcome = Result<(), journal::Error>;

/// A record, and who waits for it.
struct Waiting {
    text: String,
    /// Whether it may be packed.
    is_packable: bool,
    done: oneshot::Sender<Outcome>,
}

/// What one needs in order to write; only one has it.
#[derive(Default)]
struct Pen {
    place: Place,
    /// The resource version of the page; none if it may not be there yet.
    version: Option<String>,
    /// What is on the page for sure.
    written: Written,
    /// What is packed together with what is written next.
    packed: Option<Packed>,
    /// What is being written. It stays here until its outcome is known, whoever writes it.
    batch: Option<Batch>,
}

impl Written {
    /// Packs what can be packed, if that is worth while. Returns as well how much room the page takes then.
    fn pack(&self) -> Option<(Packed, usize)> {
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
        let used = self.readable + page::cost(bytes.len());
        let packed = Packed { bytes: ByteString(bytes), keys: self.plain.clone() };
        (used <= page::WELL_PACKED).then_some((packed, used))
    }

    /// Takes note of what was written.
    fn add(&mut self, batch: &Batch) {
        for key in batch.packed.iter().flat_map(|packed| &packed.keys) {
            self.plain.remove(key);
        }
        for (key, text) in &batch.records {
            if batch.packable.contains(key) {
                self.plain.insert(key.clone());
                self.packable.insert(key.clone(), text.clone());
            } else {
                self.readable += page::cost(text.len());
            }
        }
    }
}

impl Batch {
    /// What is changed on the page.
    fn as_patch(&self) -> Value {
        let Some(Packed { bytes, keys }) = &self.packed else {
            return json!({ "data": self.records });
        };
        let gone = keys.iter().map(|key| (key.clone(), Value::Null));
        let new = self.records.iter().map(|(key, text)| (key.clone(), json!(text)));
        let data: serde_json::Map<String, Value> = gone.chain(new).collect();
        json!({ "data": data, "binaryData": { pack::KEY: bytes } })
    }
}

/// What somebody has written on a page.
#[derive(Default)]
struct Written {
    /// Records that may be packed, packed or not.
    packable: BTreeMap<String, String>,
    /// Those of them that are not.
    plain: BTreeSet<String>,
    /// How much room the others take, which stay as they are.
    readable: usize,
}

/// Records that are packed together with what is written, and so are not on the page for themselves any more.
struct Packed {
    bytes: ByteString,
    keys: BTreeSet<String>,
}

/// Records that are written by one request, on one page.
#[derive(Default)]
struct Batch {
    records: BTreeMap<String, String>,
    /// The keys of those that may be packed later.
    packable: BTreeSet<String>,
    packed: Option<Packed>,
    done: Vec<oneshot::Sender<Outcome>>,
}

impl ConfigMaps {
    /// Opens the journal of a run and takes it over: whoever had it open before cannot write it any
    /// more. Returns also what is in it, in order. Nothing is created before the first append.
    pub async fn open(
        client: Client,
        namespace: &str,
        run: &RunUid,
        kind: &str,
        name: &str,
    ) -> Result<(Self, Vec<Record>), Error> {
        let api = Api::namespaced(client, namespace);
        let owner = Owner { run: run.clone(), kind: kind.to_owned(), name: name.to_owned() };
        let writer = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let mut tries = Tries::new(tries::WHOLE);
        let contents = loop {
            match tries.one(take_over(&api, &owner, &writer)).await {
                Ok(contents) => break contents,
                Err(error) => tries.again(error).await?,
            }
        };
        let pen = Pen { place: contents.place, ..Pen::default() };
        let (waiting, pen) = (Mutex::default(), tokio::sync::Mutex::new(pen));
        let state = State::recover(&contents.records);
        let (location, bucket) = (None, None);
        Ok((Self { api, owner, writer, location, bucket, waiting, pen, state }, contents.records))
    }

    /// Whether something is left of the run that only the journal knows of: pods that may be frozen, or
    /// snapshots that may yet come.
    pub(crate) fn is_needed(&self) -> bool {
        self.state.is_needed()
    }

    /// Takes on those pods that may be frozen and that nobody is about to thaw. No block with one of them is
    /// begun meanwhile. Waits until nobody else has taken them on.
    pub(crate) async fn claim_frozen(&self) -> ThawClaim<'_> {
        self.state.claim().await
    }

    /// The same, unless somebody else is at it.
    pub(crate) fn try_claim_frozen(&self) -> Option<ThawClaim<'_>> {
        self.state.try_claim()
    }

    /// The same, and it says on the pages that it writes in which storage location the run has its files.
    /// Whoever finds it when the run's object is gone could not know otherwise.
    #[must_use]
    pub fn with_location(mut self, location: &str) -> Self {
        self.location = Some(location.to_owned()).filter(|name| !name.is_empty());
        self
    }

    /// The same, and it says beside the location which bucket that names, so that whoever cleans up does not ask
    /// another.
    #[must_use]
    pub fn with_bucket(self, bucket: Option<String>) -> Self {
        Self { bucket, ..self }
    }

    /// Appends that the run ends at a stage without its bucket. If it cannot be appended, the first page is marked.
    pub async fn abandon(&self, stage: Stage) -> Result<(), Error> {
        let record = Record::Abandoned { stage, at: Timestamp::now() };
        let Err(error) = self.append(&record).await else { return Ok(()) };
        tracing::warn!("{error}; the first page is marked instead");
        let page = self.owner.page_name(0);
        let mark = json!({ "metadata": { "annotations": { page::ABANDONED: stage } } });
        let mut tries = Tries::new(tries::WHOLE);
        loop {
            let marking = async {
                let marked = change(&self.api, &page, None, mark.clone()).await;
                marked.map_err(|source| Error::Write { page: page.clone(), source })
            };
            match tries.one(marking).await {
                Ok(_) => return Ok(()),
                Err(error) => tries.again(error).await?,
            }
        }
    }

    /// Removes it: the run has ended and nothing of it may be needed.
    pub async fn remove(&self) -> Result<(), Error> {
        let mut tries = Tries::new(tries::WHOLE);
        loop {
            match tries.one(erase(&self.api, &self.owner)).await {
                Ok(()) => return Ok(()),
                Err(error) => tries.again(error).await?,
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what was begun, else what waits and fits on a page, and tells those who wait.
    async fn write(&self, pen: &mut Pen) {
        if pen.batch.is_none() {
            pen.take(&mut self.waiting());
        }
        let mut tries = Tries::new(tries::WRITING);
        let outcome = loop {
            match tries.one(self.write_once(pen)).await {
                Ok(()) => break Ok(()),
                Err(error) => {
                    if let Err(error) = tries.again(error).await {
                        pen.take_back();
                        break Err(error.into());
                    }
                }
            }
        };
        let batch = pen.batch.take().unwrap_or_default();
        if outcome.is_ok() {
            pen.written.add(&batch);
        }
        for done in batch.done {
            // Who is gone does not want to know.
            let _ = done.send(outcome.clone());
        }
    }

    /// One try. That of another before may have been carried out, or may yet be: both would change
    /// the resource version, so only one of them ever is.
    async fn write_once(&self, pen: &mut Pen) -> Result<(), Error> {
        let Some(batch) = &pen.batch else { return Ok(()) };
        let name = self.owner.page_name(pen.place.page);
        let written = if let Some(version) = &pen.version {
            change(&self.api, &name, Some(version), batch.as_patch()).await
        } else {
            let mut new = self.owner.page(pen.place.page, &self.writer, batch.records.clone());
            let places = [(page::LOCATION, &self.location), (page::BUCKET, &self.bucket)];
            for (key, value) in places {
                let place = value.iter().map(|value| (key.to_owned(), value.clone()));
                new.annotations_mut().extend(place);
            }
            self.api.create(&patch::post_params(), &new).await.map(|page| page.metadata)
        };
        match written {
            Ok(meta) => {
                pen.version = meta.resource_version;
                return Ok(());
            }
            Err(error) if patch::is_conflict(&error) || patch::is_taken(&error) => {}
            Err(source) => return Err(Error::Write { page: name, source }),
        }
        let found = self.api.get(&name).await.map_err(Error::Read)?;
        if found.annotations().get(page::WRITER) != Some(&self.writer) {
            return Err(Error::TakenOver { page: name });
        }
        let has = |(key, text)| found.data.as_ref().and_then(|data| data.get(key)) == Some(text);
        let is_written = batch.records.iter().all(has);
        pen.version = found.metadata.resource_version;
        if is_written { Ok(()) } else { Err(Error::Changed { page: name }) }
    }
}

#[async_trait]
impl Journal for ConfigMaps {
    async fn append(&self, record: &Record) -> Result<(), journal::Error> {
        self.state.see(record).await;
        let written = self.put(record).await;
        if written.is_err() {
            self.state.not_written(record);
        }
        written
    }
}

impl ConfigMaps {
    async fn put(&self, record: &Record) -> Result<(), journal::Error> {
        let text = page::encode(record)?;
        let is_packable = !pack::stays_readable(record);
        let (done, mut outcome) = oneshot::channel();
        self.waiting().push_back(Waiting { text, is_packable, done });
        let mut pen = tokio::select! {
            biased;
            outcome = &mut outcome => return told(outcome.ok()),
            pen = self.pen.lock() => pen,
        };
        // Ours is written after what was begun, and after what waited before it.
        loop {
            match outcome.try_recv() {
                Ok(outcome) => return told(Some(outcome)),
                Err(oneshot::error::TryRecvError::Empty) => self.write(&mut pen).await,
                Err(oneshot::error::TryRecvError::Closed) => return told(None),
            }
        }
    }
}

impl Pen {
    /// Takes what waits and fits on the page, or on the next one if nothing fits.
    fn take(&mut self, waiting: &mut VecDeque<Waiting>) {
        // Nobody was told that these are written, and nobody will ask.
        waiting.retain(|waiting| !waiting.done.is_closed());
        let mut batch = Batch::default();
        while let Some(first) = waiting.pop_front() {
            match self.key(first.text.len(), batch.records.is_empty()) {
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

    /// Records could not be written. If their page may not be there, the next ones go to the same page: no
    /// page may be missing. Their numbers are not given again, since they may be there after all.
    fn take_back(&mut self) {
        if self.version.is_none() {
            self.place.clear();
        }
    }

    /// The key for a record, if it fits. The page is turned only if nothing was put on it just now.
    fn key(&mut self, bytes: usize, may_turn: bool) -> Result<Option<String>, Error> {
        let key = self.place.key(bytes)?;
        if key.is_some() || !may_turn {
            return Ok(key);
        }
        if let Some((packed, used)) = self.written.pack() {
            self.place.resize(used);
            if let Some(key) = self.place.key(bytes)? {
                self.packed = Some(packed);
                return Ok(Some(key));
            }
        }
        self.place.turn()?;
        self.version = None;
        self.written = Written::default();
        self.place.key(bytes)
    }
}

/// Journals whose run is not in `live`: the uids of all Backups and Restores that there are, and of
/// those that this process still runs though they were deleted.
pub async fn orphans(
    client: Client,
    namespace: &str,
    live: &BTreeSet<String>,
) -> Result<Vec<Orphan>, Error> {
    let all = list(client, namespace).await?.into_iter().map(|listed| listed.orphan);
    Ok(all.filter(|orphan| !live.contains(orphan.run.as_str())).collect())
}

/// All journals.
pub(crate) async fn list(client: Client, namespace: &str) -> Result<Vec<Listed>, Error> {
    let api = Api::namespaced(client, namespace);
    let mut tries = Tries::new(tries::WHOLE);
    loop {
        match tries.one(find_all(&api)).await {
            Ok(found) => return Ok(found),
            Err(error) => tries.again(error).await?,
        }
    }
}

async fn find_all(api: &Api<ConfigMap>) -> Result<Vec<Listed>, Error> {
    let mut found: BTreeMap<String, (Orphan, DefaultHasher)> = BTreeMap::new();
    let mut is_more = false;
    let params = ListParams::default().labels(label::JOURNAL).limit(DESCRIPTIONS_AT_ONCE);
    let see = |page: kube::core::PartialObjectMeta<ConfigMap>| {
        let value = |values: &BTreeMap<String, String>, key| values.get(key).cloned();
        let uid = value(page.labels(), label::JOURNAL).unwrap_or_default();
        let location = value(page.annotations(), page::LOCATION);
        let bucket = value(page.annotations(), page::BUCKET);
        let abandoned = value(page.annotations(), page::ABANDONED);
        let abandoned = abandoned.and_then(|stage| serde_json::from_value(stage.into()).ok());
        let version = (page.name_any(), page.resource_version());
        // Pages of an older server do not say.
        if let Some((known, hasher)) = found.get_mut(&uid) {
            // What the location names later is another matter.
            if known.location.is_none() {
                (known.location, known.bucket) = (location, bucket);
            }
            known.abandoned = known.abandoned.or(abandoned);
            version.hash(hasher);
            return Ok(());
        }
        if found.len() >= MOST_JOURNALS {
            is_more = true;
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
    each(params, |params| async move { api.list_metadata(&params).await }, see).await?;
    if is_more {
        tracing::error!("more than {MOST_JOURNALS} journals are in the namespace: some wait");
    }
    let listed =
        |(orphan, hasher): (Orphan, DefaultHasher)| Listed { orphan, fingerprint: hasher.finish() };
    Ok(found.into_values().map(listed).collect())
}

/// Reads a journal that nobody may have open, and does not take it over.
pub(crate) async fn read(
    client: Client,
    namespace: &str,
    orphan: &Orphan,
) -> Result<Vec<Record>, Error> {
    let (api, owner) = (Api::namespaced(client, namespace), Owner::of(orphan));
    let mut tries = Tries::new(tries::WHOLE);
    loop {
        match tries.one(all_pages(&api, &owner)).await {
            Ok(pages) if pages.iter().any(|page| owner.is_removed(page)) => return Ok(Vec::new()),
            Ok(pages) => return Ok(owner.read(pages)?.records),
            Err(error) => tries.again(error).await?,
        }
    }
}

/// Reads what can be read of a journal, and leaves out the rest.
pub(crate) async fn salvage(
    client: Client,
    namespace: &str,
    orphan: &Orphan,
) -> Result<Salvaged, Error> {
    let (api, owner) = (Api::namespaced(client, namespace), Owner::of(orphan));
    let mut tries = Tries::new(tries::WHOLE);
    loop {
        match tries.one(some_pages(&api, &owner)).await {
            Ok(pages) => return Ok(owner.salvage(pages)),
            Err(error) => tries.again(error).await?,
        }
    }
}

/// Notes on a journal that is damaged that the pods are thawed that it names.
pub(crate) async fn mark_thawed(
    client: Client,
    namespace: &str,
    orphan: &Orphan,
) -> Result<(), Error> {
    let (api, owner) = (Api::namespaced(client, namespace), Owner::of(orphan));
    let mut tries = Tries::new(tries::WHOLE);
    loop {
        let mark = async {
            let Some(page) = some_pages(&api, &owner).await?.first().map(ResourceExt::name_any)
            else {
                return Ok(());
            };
            let mark = json!({ "metadata": { "annotations": { page::THAWED: "true" } } });
            match change(&api, &page, None, mark).await {
                Err(source) if !patch::is_missing(&source) => Err(Error::Write { page, source }),
                _ => Ok(()),
            }
        };
        match tries.one(mark).await {
            Ok(()) => return Ok(()),
            Err(error) => tries.again(error).await?,
        }
    }
}

/// All pages, if they are not too many.
async fn all_pages(api: &Api<ConfigMap>, owner: &Owner) -> Result<Vec<ConfigMap>, Error> {
    let (mut pages, mut bytes) = (Vec::new(), 0);
    let params = ListParams::default().labels(&owner.selector()).limit(PAGES_AT_ONCE);
    let see = |page: ConfigMap| {
        bytes += page::used(&page);
        pages.push(page);
        let most = page::MOST_BYTES + page::SLACK;
        let is_too_many = pages.len() > page::MOST_PAGES || bytes > most;
        if is_too_many { Err(Error::TooMany { run: owner.run.clone() }) } else { Ok(()) }
    };
    each(params, |params| async move { api.list(&params).await }, see).await?;
    Ok(pages)
}

/// The pages, or the first of too many.
async fn some_pages(api: &Api<ConfigMap>, owner: &Owner) -> Result<Vec<ConfigMap>, Error> {
    let (mut pages, mut bytes) = (Vec::new(), 0);
    let params = ListParams::default().labels(&owner.selector()).limit(PAGES_AT_ONCE);
    let see = |page: ConfigMap| {
        bytes += page::used(&page);
        if pages.len() < page::MOST_PAGES && bytes <= page::MOST_BYTES + page::SLACK {
            pages.push(page);
        }
        Ok(())
    };
    each(params, |params| async move { api.list(&params).await }, see).await?;
    Ok(pages)
}

/// Reads all pages, and signs the last one. What was sent to be written on it before that names an
/// older resource version, and is refused from then on.
async fn take_over(api: &Api<ConfigMap>, owner: &Owner, writer: &str) -> Result<Contents, Error> {
    let pages = all_pages(api, owner).await?;
    if pages.iter().any(|page| owner.is_removed(page)) {
        erase(api, owner).await?;
        return Ok(Contents::default());
    }
    let contents = owner.read(pages)?;
    let Some(last) = &contents.last else { return Ok(contents) };
    let page = last.name.clone();
    let signature = json!({ "metadata": { "annotations": { page::WRITER: writer } } });
    match change(api, &page, last.version.as_deref(), signature).await {
        Ok(_) => Ok(contents),
        Err(error) if patch::is_conflict(&error) => Err(Error::Changed { page }),
        Err(source) => Err(Error::Write { page, source }),
    }
}

/// Deletes all pages, the first one last. It is marked before, so that the beginning of a journal
/// that somebody did not delete to its end is never taken for a whole one.
async fn erase(api: &Api<ConfigMap>, owner: &Owner) -> Result<(), Error> {
    let mut pages = BTreeSet::new();
    let params = ListParams::default().labels(&owner.selector()).limit(DESCRIPTIONS_AT_ONCE);
    let see = |page: kube::core::PartialObjectMeta<ConfigMap>| {
        pages.extend(owner.page_number(&page.name_any()));
        Ok(())
    };
    each(params, |params| async move { api.list_metadata(&params).await }, see).await?;
    if pages.len() > 1 {
        let page = owner.page_name(0);
        let mark = json!({ "metadata": { "annotations": { page::REMOVED: "true" } } });
        match change(api, &page, None, mark).await {
            Err(source) if !patch::is_missing(&source) => {
                return Err(Error::Write { page, source });
            }
            _ => {}
        }
    }
    for number in pages.into_iter().rev() {
        let page = owner.page_name(number);
        match api.delete(&page, &DeleteParams::default()).await {
            Err(source) if !patch::is_missing(&source) => {
                return Err(Error::Remove { page, source });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Changes a page. The answer is asked to leave out what is on it, which may be much.
async fn change(
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

/// Shows each object of a list that comes in parts.
async fn each<T, F>(
    mut params: ListParams,
    ask: impl Fn(ListParams) -> F,
    mut see: impl FnMut(T) -> Result<(), Error>,
) -> Result<(), Error>
where
    T: Clone,
    F: Future<Output = kube::Result<ObjectList<T>>>,
{
    loop {
        let part = ask(params.clone()).await.map_err(Error::Read)?;
        part.items.into_iter().try_for_each(&mut see)?;
        match part.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => return Ok(()),
        }
    }
}

fn told(outcome: Option<Outcome>) -> Result<(), journal::Error> {
    let unknown = || journal::Error::Failed("nobody knows what came of it".to_owned());
    outcome.unwrap_or_else(|| Err(unknown()))
}
