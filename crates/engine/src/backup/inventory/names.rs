//! Names on disk: each is a record of its group, its length and its bytes. They are read back in batches of groups.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use super::Group;

/// Number of bytes read from disk at a time.
const CHUNK_BYTES: usize = 64 << 10;

pub(super) fn write_record(to: &mut impl Write, group: u32, name: &str) -> io::Result<()> {
    let length = u32::try_from(name.len()).map_err(io::Error::other)?;
    to.write_all(&group.to_le_bytes())?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(name.as_bytes())
}

/// Reads names in the order of their groups.
pub(super) struct NameReader<'a> {
    /// None if there are no names.
    pub(super) records: Option<&'a File>,
    pub(super) groups: &'a [Group],
    /// All groups. The position of a group here is its rank.
    pub(super) order: &'a [u32],
    /// Bytes of names in a batch. A batch has at least one group.
    pub(super) batch_bytes: u64,
}

/// Sorted names of some groups.
#[derive(Debug, Default)]
pub(super) struct NameBatch {
    ranks: Range<usize>,
    text: String,
    names: Vec<BatchName>,
}

#[derive(Clone, Copy, Debug)]
struct BatchName {
    /// Rank of the group, from the first one of the batch.
    rank: u32,
    start: u32,
    length: u32,
}

impl BatchName {
    fn text(self, text: &str) -> &str {
        &text[self.start as usize..(self.start + self.length) as usize]
    }
}

impl NameReader<'_> {
    /// Reads the names of a group, and of those after it that fit into the batch.
    pub(super) fn read_batch(&self, first: usize) -> io::Result<NameBatch> {
        let bytes = |rank: usize| self.groups[self.order[rank] as usize].bytes;
        let (mut end, mut total) = (first + 1, bytes(first));
        while end < self.order.len() && total + bytes(end) <= self.batch_bytes {
            total += bytes(end);
            end += 1;
        }
        let ranks = first..end;
        let mut rank_of = vec![None; self.groups.len()];
        for (rank, group) in (0..).zip(&self.order[ranks.clone()]) {
            rank_of[*group as usize] = Some(rank);
        }
        let text = String::with_capacity(usize::try_from(total).unwrap_or_default());
        let mut batch = NameBatch { ranks, text, names: Vec::new() };
        let Some(file) = self.records else { return Ok(batch) };
        let mut records = BufReader::with_capacity(CHUNK_BYTES, FileReader { file, offset: 0 });
        let mut name = Vec::new();
        while let Some(group) = read_record(&mut records, &mut name)? {
            if let Some(rank) = rank_of.get(group as usize).copied().flatten() {
                batch.add(rank, &name)?;
            }
        }
        batch.sort();
        Ok(batch)
    }
}

/// Reads the next record, and returns its group. None at the end.
fn read_record(from: &mut impl Read, name: &mut Vec<u8>) -> io::Result<Option<u32>> {
    let mut group = [0; 4];
    match from.read_exact(&mut group) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    name.resize(u32::from_le_bytes(length) as usize, 0);
    from.read_exact(name)?;
    Ok(Some(u32::from_le_bytes(group)))
}

impl NameBatch {
    /// True if the batch has the names of the group with this rank.
    pub(super) fn contains(&self, rank: usize) -> bool {
        self.ranks.contains(&rank)
    }

    /// Names of the group with this rank, in order.
    pub(super) fn names(&self, rank: usize) -> impl Iterator<Item = &str> {
        let from = |rank: usize| {
            let rank = rank - self.ranks.start;
            self.names.partition_point(|name| (name.rank as usize) < rank)
        };
        self.names[from(rank)..from(rank + 1)].iter().map(|name| name.text(&self.text))
    }

    fn add(&mut self, rank: u32, name: &[u8]) -> io::Result<()> {
        let start = u32::try_from(self.text.len()).map_err(io::Error::other)?;
        let length = u32::try_from(name.len()).map_err(io::Error::other)?;
        self.text.push_str(std::str::from_utf8(name).map_err(io::Error::other)?);
        self.names.push(BatchName { rank, start, length });
        Ok(())
    }

    fn sort(&mut self) {
        let text = &self.text;
        self.names.sort_unstable_by(|one, other| {
            one.rank.cmp(&other.rank).then_with(|| one.text(text).cmp(other.text(text)))
        });
    }

    /// Bytes of all names.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.text.len()
    }
}

/// Reads a file from an offset of its own, whatever the file's position is.
struct FileReader<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for FileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}
