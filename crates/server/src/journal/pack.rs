//! Packed records, which make room on a full page.
//!
//! A large run repeats the same words: plugins, kinds, namespaces. Packed, they take a fraction of
//! the space. Records about pods that may be frozen stay unpacked, so that people can read them.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};

use bowline_engine::journal::JournalEntry;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

/// Key of packed records in the binary data of a page.
pub(super) const KEY: &str = "packed";

/// Reason why packed records cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The data is damaged.
    #[error("the binary data cannot be unpacked: {0}")]
    Damaged(io::Error),
    /// The records are larger than allowed.
    #[error("the binary data has more than {max_bytes} bytes of records")]
    TooLarge {
        /// Allowed size.
        max_bytes: usize,
    },
    /// The data is not that of records.
    #[error("the binary data does not contain records")]
    NotRecords,
}

/// True for a record about pods that may be frozen.
pub(super) fn must_stay_readable(record: &JournalEntry) -> bool {
    match record {
        JournalEntry::BlockStarted(started) => !started.pods.is_empty(),
        JournalEntry::BlockEnded(ended) => !ended.frozen.is_empty(),
        JournalEntry::Thawed { .. } | JournalEntry::PostHooks { .. } => true,
        _ => false,
    }
}

pub(super) fn pack<'a>(
    records: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> io::Result<Vec<u8>> {
    // A page is packed repeatedly while it fills up.
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    for (key, text) in records {
        // JSON has only escaped line breaks.
        writeln!(encoder, "{key} {text}")?;
    }
    encoder.finish()
}

/// Unpacks records up to this total size.
pub(super) fn unpack(
    bytes: &[u8],
    max_bytes: usize,
) -> Result<BTreeMap<String, String>, UnpackError> {
    let mut text = String::new();
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    let read = DeflateDecoder::new(bytes).take(limit).read_to_string(&mut text);
    read.map_err(UnpackError::Damaged)?;
    if text.len() > max_bytes {
        return Err(UnpackError::TooLarge { max_bytes });
    }
    let record = |line: &str| {
        let (key, text) = line.split_once(' ')?;
        Some((key.to_owned(), text.to_owned()))
    };
    let records: Option<_> = text.lines().map(record).collect();
    records.ok_or(UnpackError::NotRecords)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_records_unpack_up_to_the_limit() {
        let records: BTreeMap<String, String> =
            (0..100).map(|n| (format!("{n:08}"), format!(r#"{{"n":"{n} a\nb"}}"#))).collect();
        let packed = pack(&records).unwrap();
        let plain: usize = records.iter().map(|(key, text)| key.len() + text.len() + 2).sum();
        assert!(packed.len() * 2 < plain, "{} of {plain}", packed.len());
        assert_eq!(unpack(&packed, plain).unwrap(), records);
        assert!(unpack(&packed, plain - 1).unwrap_err().to_string().contains("more than"));
        for (bad, words) in [(&packed[..20], "cannot be unpacked"), (&[0xff; 9], "unpacked")] {
            let error = unpack(bad, plain).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let lines = pack([(&"a".to_owned(), &String::new())]).unwrap();
        assert_eq!(unpack(&lines, 10).unwrap()["a"], "");
    }
}
