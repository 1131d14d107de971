//! Items that wait until their related items are known, on disk instead of in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_plugin::Item;

/// An unnamed file, which disappears with its last user, even after a kill.
#[derive(Clone, Debug)]
pub(super) struct Spool {
    file: Arc<File>,
    end: Arc<AtomicU64>,
}

/// Position of an item in the spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpoolRange {
    offset: u64,
    length: usize,
}

impl Spool {
    /// Creates a spool in a folder for temporary files.
    pub(super) fn create(scratch: &Path) -> io::Result<Self> {
        let file = Arc::new(tempfile::tempfile_in(scratch)?);
        Ok(Self { file, end: Arc::default() })
    }

    /// Writes an item to the spool.
    pub(super) fn put(&self, item: &Item) -> io::Result<SpoolRange> {
        let length = item.json().len();
        let offset = self.end.fetch_add(length as u64, Ordering::Relaxed);
        self.file.write_all_at(item.json(), offset)?;
        Ok(SpoolRange { offset, length })
    }

    /// Reads an item back.
    pub(super) fn get(&self, range: SpoolRange) -> io::Result<Item> {
        let mut json = vec![0; range.length];
        self.file.read_exact_at(&mut json, range.offset)?;
        Item::from_json(json).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_back_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::create(folder.path()).unwrap();
        let items = ["a", "b"].map(|kind| {
            Item::from_json(format!(r#"{{"kind":"{kind}","pad":"{}"}}"#, kind.repeat(9))).unwrap()
        });
        let ranges = items.each_ref().map(|item| spool.put(item).unwrap());
        for (item, range) in items.iter().zip(ranges).rev() {
            assert_eq!(spool.get(range).unwrap(), *item);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
