//! Journals of runs, in ConfigMaps of the server's namespace.
//!
//! Journals are in the cluster and not in the bucket: a frozen application must not depend on a
//! bucket. One ConfigMap is one page of the journal; at 32 KiB a new page starts. Pages have no
//! owner reference, so a deleted run leaves its journal behind, and [`list_journals`] finds it.
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
mod error;
mod hooks;
mod listing;
mod pack;
mod page;
mod page_writer;
mod requests;
mod state;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};

use async_trait::async_trait;
use bowline_engine::journal::{self, Journal, JournalEntry};
use bowline_engine::phase::Stage;
use bowline_store::name::RunUid;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::oneshot;

use crate::patch;
use attempts::Attempts;
pub use error::Error;
pub(crate) use hooks::{SavedHooks, SavedHooksError};
pub use listing::{ListedJournal, list_journals};
pub(crate) use listing::{SalvagedJournal, mark_thawed, read, salvage};
pub use pack::UnpackError;
pub use page::{JournalId, PageDefect};
use page_writer::{AppendResult, PageWriter, PendingRecord};
use requests::{delete_pages, patch_page, take_over};
use state::JournalState;
pub(crate) use state::ThawLock;

/// Journal of a run.
pub struct ConfigMapJournal {
    api: Api<ConfigMap>,
    id: JournalId,
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
        let id = JournalId { run: run.clone(), kind: kind.to_owned(), name: name.to_owned() };
        let writer = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let mut attempts = Attempts::new(attempts::WHOLE_JOURNAL_LIMITS);
        let contents = loop {
            match attempts.attempt(take_over(&api, &id, &writer)).await {
                Ok(contents) => break contents,
                Err(error) => attempts.wait_before_retry(error).await?,
            }
        };
        let page_writer = PageWriter { place: contents.position, ..PageWriter::default() };
        let (waiting, page_writer) = (Mutex::default(), tokio::sync::Mutex::new(page_writer));
        let state = JournalState::recover(&contents.records);
        let (location, bucket) = (None, None);
        Ok((
            Self { api, id, writer, location, bucket, waiting, page_writer, state },
            contents.records,
        ))
    }

    /// True if the run has leftovers that only the journal knows of: pods that may be frozen, or
    /// snapshots that may still appear.
    pub(crate) fn has_unfinished_work(&self) -> bool {
        self.state.has_unfinished_work()
    }

    /// Claims the pods that may be frozen and that no other task is about to thaw. No block with
    /// one of them starts meanwhile. Waits until no other task has a lock.
    pub(crate) async fn lock_frozen(&self) -> ThawLock<'_> {
        self.state.lock().await
    }

    /// Like [`lock_frozen`](Self::lock_frozen), but returns `None` if another task has a lock.
    pub(crate) fn try_lock_frozen(&self) -> Option<ThawLock<'_>> {
        self.state.try_lock()
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
    pub async fn end_without_bucket(&self, stage: Stage) -> Result<(), Error> {
        let record = JournalEntry::EndedWithoutBucket { stage, at: Timestamp::now() };
        let Err(error) = self.append(&record).await else { return Ok(()) };
        tracing::warn!("{error}; marking the first page of the journal instead");
        let page = self.id.page_name(0);
        let mark = json!({ "metadata": { "annotations": { page::ENDED_WITHOUT_BUCKET: stage } } });
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
            match attempts.attempt(delete_pages(&self.api, &self.id)).await {
                Ok(()) => return Ok(()),
                Err(error) => attempts.wait_before_retry(error).await?,
            }
        }
    }

    /// Writes the current batch, or else the waiting records that fit on a page, and notifies the
    /// callers.
    async fn write(&self, page_writer: &mut PageWriter) {
        if page_writer.batch.is_none() {
            page_writer.begin_batch(&mut self.waiting.lock());
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
        let name = self.id.page_name(page_writer.place.page);
        let written = if let Some(version) = &page_writer.version {
            patch_page(&self.api, &name, Some(version), batch.as_patch()).await
        } else {
            let mut new = self.id.page(page_writer.place.page, &self.writer, batch.records.clone());
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
        self.waiting.lock().push_back(PendingRecord { text, is_packable, done });
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

fn append_result(outcome: Option<AppendResult>) -> Result<(), journal::Error> {
    let unknown = || journal::Error::Failed("the outcome of the write is unknown".to_owned());
    outcome.unwrap_or_else(|| Err(unknown()))
}
