//! Pages of a journal: names, contents and parsing.
//!
//! A page is one ConfigMap. Each record is one key in it: its number in the journal with leading
//! zeros, so that the order of the keys is the order of the records.

use std::collections::BTreeMap;

use bowline_api::label;
use bowline_engine::journal::JournalEntry;
use bowline_store::name::RunUid;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;

use super::{Error, SalvagedJournal, pack};
use pack::UnpackError;

/// Maximum size of a record, as JSON.
pub(super) const MAX_RECORD_BYTES: usize = 256 * 1024;
/// Maximum number of pages of a journal, and their total size: a whole journal is read at once.
pub(super) const MAX_PAGES: usize = 1024;
pub(super) const MAX_BYTES: usize = 32 * 1024 * 1024;
/// Maximum size when unpacked. The server that resumes the run holds it in memory.
pub(super) const MAX_UNPACKED_BYTES: usize = 128 * 1024 * 1024;
/// Excess over that limit that is still read, since a failed request may have been carried out.
pub(super) const READ_SLACK: usize = 1024 * 1024;
/// Size at which a page is full. Each record makes etcd keep the whole page once more until its
/// next compaction, so pages are short. A larger record has a page of its own; Kubernetes accepts a
/// mebibyte.
const PAGE_BYTES: usize = 32 * 1024;
/// Cost of a record beside its key and text: the API server stores the manager of each key.
const RECORD_OVERHEAD: usize = 32;
/// Number of digits of a key.
const KEY_DIGITS: usize = 8;
/// First number with too many digits.
const MAX_RECORDS: u64 = 100_000_000;

/// Name of the run, on each page.
pub(super) const RUN_NAME: &str = "bowline.io/run-name";
/// Opener that may write the page: a random word, new for each opening of a journal.
pub(super) const WRITER: &str = "bowline.io/journal-writer";
/// Storage location of the run, on each page.
pub(super) const LOCATION: &str = "bowline.io/storage-location";
/// Bucket that the location named when the page was started, beside the location.
pub(super) const BUCKET: &str = "bowline.io/storage-bucket";
/// On a page of a journal whose run has ended without its bucket, if that could not be appended:
/// the stage.
pub(super) const ENDED_WITHOUT_BUCKET: &str = "bowline.io/journal-abandoned";
/// On a page of a damaged journal whose pods have been thawed.
pub(super) const THAWED: &str = "bowline.io/journal-thawed";
/// On the first page of a journal that is being removed.
pub(super) const REMOVED: &str = "bowline.io/journal-removed";

/// Reason why a ConfigMap is not a page of a journal.
#[derive(Debug, thiserror::Error)]
pub enum PageDefect {
    /// It has another name than a page.
    #[error("the name is not that of a page")]
    Name,
    /// It does not have the label of this kind of run.
    #[error("the label does not name a {0}")]
    Kind(String),
    /// It does not have the annotation with the name of this run.
    #[error("the annotation does not name {0}")]
    Run(String),
    /// It has binary data that a page does not have.
    #[error("the binary data has the unexpected key {0:?}")]
    BinaryData(String),
    /// It has no records.
    #[error("the page is empty")]
    Empty,
    /// Its packed records cannot be unpacked.
    #[error(transparent)]
    Packed(#[from] UnpackError),
    /// One of its keys is not that of a record.
    #[error("the key {0:?} is not a record's number")]
    Key(String),
    /// One of its records has a lower number than the one before.
    #[error("record {0} follows a later one")]
    Order(String),
    /// One of its records cannot be decoded.
    #[error("record {key} cannot be read: {error}")]
    Record {
        /// Key of the record.
        key: String,
        /// Cause, which is part of the message.
        error: serde_json::Error,
    },
}

/// Identity of a journal: its run. [`ConfigMapJournal::open`](super::ConfigMapJournal::open) opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalId {
    /// Uid of the run.
    pub run: RunUid,
    /// Kind of the run: `Backup` or `Restore`.
    pub kind: String,
    /// Name of the run.
    pub name: String,
}

/// Position of the next record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WritePosition {
    /// Number of the page.
    pub(super) page: usize,
    /// Size of the page.
    used: usize,
    /// Total size of all pages.
    total: usize,
    /// Total size when unpacked.
    unpacked: usize,
    /// Number of the record.
    next: u64,
}

/// Parsed pages of a journal.
#[derive(Debug, Default)]
pub(super) struct JournalContents {
    pub(super) records: Vec<JournalEntry>,
    /// Position at which a new opener starts to write: on a page of its own.
    pub(super) position: WritePosition,
    /// Last page, if there is any.
    pub(super) last: Option<LastPage>,
}

#[derive(Debug)]
pub(super) struct LastPage {
    pub(super) name: String,
    pub(super) version: Option<String>,
}

/// Maximum size of a page after packing for which packing is worthwhile.
pub(super) const MAX_PACKED_BYTES: usize = PAGE_BYTES / 4 * 3;

/// Size that a record of this many bytes takes.
pub(super) fn record_cost(bytes: usize) -> usize {
    KEY_DIGITS + bytes + RECORD_OVERHEAD
}

/// Encodes a record, unless it is too large.
pub(super) fn encode(record: &JournalEntry) -> Result<String, Error> {
    let text = serde_json::to_string(record).map_err(Error::Encode)?;
    match text.len() {
        bytes if bytes > MAX_RECORD_BYTES => Err(Error::TooLarge { bytes }),
        _ => Ok(text),
    }
}

impl WritePosition {
    /// Key for a record of this many bytes; `None` if it needs a new page.
    pub(super) fn next_key(&mut self, bytes: usize) -> Result<Option<String>, Error> {
        let cost = record_cost(bytes);
        if self.used > 0 && self.used + cost > PAGE_BYTES {
            return Ok(None);
        }
        let is_full = self.total + cost > MAX_BYTES || self.unpacked + cost > MAX_UNPACKED_BYTES;
        if self.next >= MAX_RECORDS || is_full {
            return Err(Error::Full);
        }
        let key = format!("{:0KEY_DIGITS$}", self.next);
        self.used += cost;
        self.total += cost;
        self.unpacked += cost;
        self.next += 1;
        Ok(Some(key))
    }

    /// Sets the size of the current page.
    pub(super) fn resize(&mut self, used: usize) {
        self.total = self.total.saturating_sub(self.used) + used;
        self.used = used;
    }

    /// Empties the current page.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// Moves to the next page.
    pub(super) fn next_page(&mut self) -> Result<(), Error> {
        if self.page + 1 >= MAX_PAGES {
            return Err(Error::Full);
        }
        (self.page, self.used) = (self.page + 1, 0);
        Ok(())
    }
}

impl JournalId {
    /// Parses the readable part of the pages. Skips records of a later version of the server, and
    /// missing pages.
    pub(super) fn salvage(&self, pages: Vec<ConfigMap>) -> SalvagedJournal {
        let is_thawed = pages.iter().any(|page| page.annotations().contains_key(THAWED));
        if pages.iter().any(|page| self.is_removed(page)) {
            return SalvagedJournal { is_thawed, ..SalvagedJournal::default() };
        }
        let number = |page: ConfigMap| Some((self.page_number(&page.name_any())?, page));
        let numbered: BTreeMap<usize, ConfigMap> = pages.into_iter().filter_map(number).collect();
        let mut records: Vec<_> = numbered.values().filter_map(ended_without_bucket_mark).collect();
        let mut room = MAX_UNPACKED_BYTES + READ_SLACK;
        for page in numbered.into_values() {
            // Records about pods are never packed.
            let plain = || page.data.clone().unwrap_or_default();
            for (_, text) in record_texts(&page, room).unwrap_or_else(|_| plain()) {
                room = room.saturating_sub(text.len());
                records.extend(serde_json::from_str::<JournalEntry>(&text).ok());
            }
        }
        SalvagedJournal { records, is_thawed }
    }

    /// Label selector for all pages.
    pub(super) fn selector(&self) -> String {
        format!("{}={}", label::JOURNAL, self.run)
    }

    /// Name of a page.
    pub(super) fn page_name(&self, number: usize) -> String {
        format!("bowline-journal-{}-{number}", self.run)
    }

    /// Number of the page with this name, if it is one.
    pub(super) fn page_number(&self, name: &str) -> Option<usize> {
        let number = name.rsplit_once('-')?.1.parse().ok()?;
        (self.page_name(number) == name).then_some(number)
    }

    /// New page. It has no owner reference: a deleted run may leave pods to thaw.
    pub(super) fn page(
        &self,
        number: usize,
        writer: &str,
        records: BTreeMap<String, String>,
    ) -> ConfigMap {
        let labels = [
            (label::JOURNAL, self.run.as_str()),
            (label::RUN_KIND, &self.kind),
            (label::EXCLUDE_FROM_BACKUP, "true"),
        ];
        let annotations = [(RUN_NAME, self.name.as_str()), (WRITER, writer)];
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.page_name(number)),
                labels: Some(owned_map(labels)),
                annotations: Some(owned_map(annotations)),
                ..ObjectMeta::default()
            },
            data: Some(records),
            ..ConfigMap::default()
        }
    }

    /// True for the first page of a journal that is being removed.
    pub(super) fn is_removed(&self, page: &ConfigMap) -> bool {
        page.name_any() == self.page_name(0) && page.annotations().contains_key(REMOVED)
    }

    /// Parses all pages, given in any order.
    pub(super) fn read(&self, pages: Vec<ConfigMap>) -> Result<JournalContents, Error> {
        if pages.len() > MAX_PAGES {
            return Err(Error::TooMany { run: self.run.clone() });
        }
        let mut numbered = BTreeMap::new();
        for page in pages {
            numbered.insert(self.check_page(&page)?, page);
        }
        let mut contents = JournalContents::default();
        contents.records.extend(numbered.values().filter_map(ended_without_bucket_mark));
        for (expected, (number, page)) in numbered.into_iter().enumerate() {
            if number != expected {
                return Err(Error::Missing { page: self.page_name(expected) });
            }
            let name = page.name_any();
            contents.position.total += page_cost(&page);
            let room = (MAX_UNPACKED_BYTES + READ_SLACK).saturating_sub(contents.position.unpacked);
            let texts =
                record_texts(&page, room).map_err(|error| invalid_page(&name, error.into()))?;
            for (key, text) in texts {
                contents.position.unpacked += record_cost(text.len());
                let record = contents.read_record(&key, &text);
                let record = record.map_err(|defect| invalid_page(&name, defect))?;
                contents.records.push(record);
            }
            // A page of another writer counts as full.
            (contents.position.page, contents.position.used) = (number, PAGE_BYTES);
            contents.last = Some(LastPage { name, version: page.metadata.resource_version });
        }
        Ok(contents)
    }

    /// Checks that a page is one of ours, and returns its number.
    fn check_page(&self, page: &ConfigMap) -> Result<usize, Error> {
        let name = page.name_any();
        let number = self.page_number(&name);
        let number = number.ok_or_else(|| invalid_page(&name, PageDefect::Name))?;
        if page.labels().get(label::RUN_KIND) != Some(&self.kind) {
            return Err(invalid_page(&name, PageDefect::Kind(self.kind.clone())));
        }
        if page.annotations().get(RUN_NAME) != Some(&self.name) {
            return Err(invalid_page(&name, PageDefect::Run(self.name.clone())));
        }
        let mut binary = page.binary_data.iter().flat_map(BTreeMap::keys);
        if let Some(key) = binary.find(|key| *key != pack::KEY) {
            return Err(invalid_page(&name, PageDefect::BinaryData(key.clone())));
        }
        let is_packed = page.binary_data.as_ref().is_some_and(|data| !data.is_empty());
        if !is_packed && page.data.as_ref().is_none_or(BTreeMap::is_empty) {
            return Err(invalid_page(&name, PageDefect::Empty));
        }
        Ok(number)
    }
}

/// Entry that a page is marked with, since it could not be appended: the page that was the last one
/// then, or the first one by earlier servers. An entry that was appended later counts instead. The
/// mark does not say when the run ended.
fn ended_without_bucket_mark(page: &ConfigMap) -> Option<JournalEntry> {
    let stage = page.annotations().get(ENDED_WITHOUT_BUCKET)?.as_str();
    let stage = serde_json::from_value(stage.into()).ok()?;
    Some(JournalEntry::EndedWithoutBucket { stage, at: Timestamp::UNIX_EPOCH })
}

impl JournalContents {
    /// Parses a record, which must follow the previous ones.
    fn read_record(&mut self, key: &str, text: &str) -> Result<JournalEntry, PageDefect> {
        let is_key = key.len() == KEY_DIGITS && key.bytes().all(|byte| byte.is_ascii_digit());
        let number: Option<u64> = key.parse().ok().filter(|_| is_key);
        let number = number.ok_or_else(|| PageDefect::Key(key.to_owned()))?;
        if number < self.position.next {
            return Err(PageDefect::Order(key.to_owned()));
        }
        let record = serde_json::from_str(text)
            .map_err(|error| PageDefect::Record { key: key.to_owned(), error })?;
        self.position.next = number + 1;
        Ok(record)
    }
}

/// Size of a page.
pub(super) fn page_cost(page: &ConfigMap) -> usize {
    let plain = page.data.iter().flatten().map(|(_, text)| record_cost(text.len()));
    let packed = page.binary_data.iter().flatten().map(|(_, bytes)| record_cost(bytes.0.len()));
    plain.chain(packed).sum()
}

/// Records of a page, packed or not.
fn record_texts(page: &ConfigMap, room: usize) -> Result<BTreeMap<String, String>, UnpackError> {
    let packed = page.binary_data.as_ref().and_then(|data| data.get(pack::KEY));
    let mut texts = match packed {
        Some(packed) => pack::unpack(&packed.0, room)?,
        None => BTreeMap::new(),
    };
    texts.extend(page.data.clone().unwrap_or_default());
    Ok(texts)
}

fn invalid_page(page: &str, defect: PageDefect) -> Error {
    Error::InvalidPage { page: page.to_owned(), defect }
}

fn owned_map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}
