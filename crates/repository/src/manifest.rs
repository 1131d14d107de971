//! Manifests: small JSON documents with labels. Snapshots, policies and parameters are manifests.
//!
//! Each content with the letter `m` is a compressed list of entries. All lists are merged: of the entries with one ID
//! the last modified counts, and one that is marked as deleted removes the manifest.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::id::ManifestId;
use crate::json::{is_default, list_or_null};

/// Greatest length of one decompressed list.
const MAX_LIST_LENGTH: u64 = 256 << 20;

/// The label that says what a manifest is.
pub const TYPE_LABEL: &str = "type";

/// Damage of a list of manifests.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The gzip stream is damaged.
    #[error("the list of manifests cannot be decompressed")]
    Decompress(#[source] std::io::Error),
    /// The list is too long.
    #[error("the list of manifests is longer than {MAX_LIST_LENGTH} bytes")]
    TooLong,
    /// The list is not the JSON that it should be.
    #[error("the list of manifests is invalid")]
    Parse(#[source] serde_json::Error),
    /// The list cannot be compressed.
    #[error("cannot compress the list of manifests")]
    Compress(#[source] std::io::Error),
}

/// A manifest, or the deletion of one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ManifestEntry {
    /// Name.
    pub id: ManifestId,
    /// Labels.
    #[serde(default, deserialize_with = "map_or_null")]
    pub labels: BTreeMap<String, String>,
    /// Time of the last change.
    pub modified: Timestamp,
    /// True for a deletion.
    #[serde(default, skip_serializing_if = "is_default")]
    pub deleted: bool,
    /// The document.
    #[serde(default)]
    pub data: Option<Box<RawValue>>,
}

fn map_or_null<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Serialize, Deserialize)]
struct List {
    #[serde(default, deserialize_with = "list_or_null")]
    entries: Vec<ManifestEntry>,
}

/// Reads the entries of one content.
pub fn parse_list(content: &[u8]) -> Result<Vec<ManifestEntry>, Error> {
    let mut json = Vec::new();
    let decoder = MultiGzDecoder::new(content);
    decoder.take(MAX_LIST_LENGTH + 1).read_to_end(&mut json).map_err(Error::Decompress)?;
    if u64::try_from(json.len()).is_ok_and(|length| length > MAX_LIST_LENGTH) {
        return Err(Error::TooLong);
    }
    let list: List = serde_json::from_slice(&json).map_err(Error::Parse)?;
    Ok(list.entries)
}

/// A content with these entries.
pub fn encode_list(entries: Vec<ManifestEntry>) -> Result<Vec<u8>, Error> {
    let json = serde_json::to_vec(&List { entries }).map_err(Error::Parse)?;
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&json).and_then(|()| encoder.finish()).map_err(Error::Compress)
}

/// The manifests that the entries of all contents describe.
pub fn merge(
    entries: impl IntoIterator<Item = ManifestEntry>,
) -> BTreeMap<ManifestId, ManifestEntry> {
    let mut merged = BTreeMap::<ManifestId, ManifestEntry>::new();
    for entry in entries {
        if merged.get(&entry.id).is_none_or(|other| entry.modified > other.modified) {
            merged.insert(entry.id, entry);
        }
    }
    merged.retain(|_, entry| !entry.deleted);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u8, second: i64, deleted: bool) -> ManifestEntry {
        ManifestEntry {
            id: ManifestId::from_random([id; 16]),
            labels: [(TYPE_LABEL.to_owned(), "snapshot".to_owned())].into(),
            modified: Timestamp::from_second(second).unwrap(),
            deleted,
            data: (!deleted).then(|| RawValue::from_string(format!("{{\"n\":{second}}}")).unwrap()),
        }
    }

    #[test]
    fn list_that_was_written_is_read() {
        let content = encode_list(vec![entry(1, 5, false), entry(2, 6, true)]).unwrap();
        let read = parse_list(&content).unwrap();
        assert_eq!(read[0].data.as_ref().unwrap().get(), "{\"n\":5}");
        assert_eq!(read[0].labels[TYPE_LABEL], "snapshot");
        assert!(read[1].deleted && read[1].data.is_none());
    }

    #[test]
    fn last_modified_entry_counts_and_deletion_removes() {
        let entries = [
            entry(1, 5, false),
            entry(1, 7, false),
            entry(1, 6, true),
            entry(2, 5, false),
            entry(2, 6, true),
        ];
        for reversed in [false, true] {
            let mut entries = entries.to_vec();
            if reversed {
                entries.reverse();
            }
            let merged = merge(entries);
            let (id, newest) = merged.first_key_value().unwrap();
            assert_eq!((merged.len(), *id), (1, ManifestId::from_random([1; 16])));
            assert_eq!(newest.modified.as_second(), 7);
        }
    }

    #[test]
    fn damaged_list_is_refused() {
        assert!(matches!(parse_list(b"plain"), Err(Error::Decompress(_))));
        let gzip = |json: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(json).unwrap();
            encoder.finish().unwrap()
        };
        assert!(matches!(parse_list(&gzip(b"[]x")), Err(Error::Parse(_))));
        assert!(parse_list(&gzip(br#"{"entries":null}"#)).unwrap().is_empty());
        let whole = encode_list(vec![entry(1, 5, false)]).unwrap();
        assert!(matches!(parse_list(&whole[..whole.len() - 9]), Err(Error::Decompress(_))));
    }
}
