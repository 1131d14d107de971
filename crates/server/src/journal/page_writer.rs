//! Writing records to pages: batches, and packing of full pages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bowline_engine::journal;
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::page::{self, WritePosition};
use super::{Error, pack};

pub(super) type AppendResult = Result<(), journal::Error>;

/// Record with the channel of its waiting caller.
pub(super) struct PendingRecord {
    pub(super) text: String,
    /// True if the record may be packed.
    pub(super) is_packable: bool,
    pub(super) done: oneshot::Sender<AppendResult>,
}

/// State that is needed to write; only one task holds it.
#[derive(Default)]
pub(super) struct PageWriter {
    pub(super) place: WritePosition,
    /// Resource version of the page; `None` if the page may not exist yet.
    pub(super) version: Option<String>,
    /// Records that are certainly on the page.
    pub(super) written: WrittenRecords,
    /// Records to pack with the next write.
    pub(super) packed: Option<PackedRecords>,
    /// Batch being written. It stays here until its outcome is known, whichever task writes it.
    pub(super) batch: Option<Batch>,
}

/// Records that one writer has put on a page.
#[derive(Default)]
pub(super) struct WrittenRecords {
    /// Records that may be packed, packed or not.
    packable: BTreeMap<String, String>,
    /// Keys of packable records that are not packed yet.
    plain: BTreeSet<String>,
    /// Size of the other records, which stay unpacked.
    readable: usize,
}

/// Records that the next write packs, so that they no longer have keys of their own on the page.
pub(super) struct PackedRecords {
    pub(super) bytes: ByteString,
    pub(super) keys: BTreeSet<String>,
}

/// Records written by one request, to one page.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) records: BTreeMap<String, String>,
    /// Keys of the records that may be packed later.
    pub(super) packable: BTreeSet<String>,
    pub(super) packed: Option<PackedRecords>,
    pub(super) done: Vec<oneshot::Sender<AppendResult>>,
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

    pub(super) fn record_batch(&mut self, batch: &Batch) {
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
    pub(super) fn as_patch(&self) -> Value {
        let Some(PackedRecords { bytes, keys }) = &self.packed else {
            return json!({ "data": self.records });
        };
        let removed = keys.iter().map(|key| (key.clone(), Value::Null));
        let new = self.records.iter().map(|(key, text)| (key.clone(), json!(text)));
        let data: serde_json::Map<String, Value> = removed.chain(new).collect();
        json!({ "data": data, "binaryData": { pack::KEY: bytes } })
    }
}

impl PageWriter {
    /// Moves the waiting records that fit on the page into a batch, or onto the next page if none
    /// fits.
    pub(super) fn begin_batch(&mut self, waiting: &mut VecDeque<PendingRecord>) {
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
    pub(super) fn abandon_batch(&mut self) {
        if self.version.is_none() {
            self.place.clear();
        }
    }

    /// Key for a record, if it fits. Moves to the next page only if this batch is still empty.
    pub(super) fn next_key(
        &mut self,
        bytes: usize,
        may_turn: bool,
    ) -> Result<Option<String>, Error> {
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
