//! Compressed names: each is a record of its group, its length and its bytes. They are read back in batches of groups.

use std::borrow::Cow;
use std::io::{self, Read, Write as _};
use std::ops::Range;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use super::{Group, number_of};

/// Number of bytes of records that are compressed together.
const BLOCK_BYTES: usize = 64 << 10;

/// Names in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct NameRecords {
    /// Whole records, compressed.
    blocks: Vec<Box<[u8]>>,
    /// Records after the last block.
    open: Vec<u8>,
}

impl NameRecords {
    pub(super) fn push(&mut self, group: u32, name: &str) {
        self.open.extend_from_slice(&group.to_le_bytes());
        self.open.extend_from_slice(&number_of(name.len()).to_le_bytes());
        self.open.extend_from_slice(name.as_bytes());
        if self.open.len() < BLOCK_BYTES {
            return;
        }
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        // In memory, this cannot fail. If it did, the records would only stay larger.
        if let Ok(block) = encoder.write_all(&self.open).and_then(|()| encoder.finish()) {
            self.blocks.push(block.into());
            self.open.clear();
        }
    }

    /// Records, one block after another.
    fn blocks(&self) -> impl Iterator<Item = io::Result<Cow<'_, [u8]>>> {
        let packed = self.blocks.iter().map(|block| {
            let mut records = Vec::with_capacity(BLOCK_BYTES);
            DeflateDecoder::new(&**block).read_to_end(&mut records)?;
            Ok(Cow::Owned(records))
        });
        packed.chain(Some(Ok(Cow::Borrowed(&*self.open))))
    }

    /// Bytes in memory.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.blocks.iter().map(|block| block.len()).sum::<usize>() + self.open.len()
    }
}

/// Reads names in the order of their groups.
pub(super) struct NameReader<'a> {
    pub(super) records: &'a NameRecords,
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
        let mut name = Vec::new();
        for block in self.records.blocks() {
            let block = block?;
            let mut records = &*block;
            while let Some(group) = read_record(&mut records, &mut name)? {
                if let Some(rank) = rank_of.get(group as usize).copied().flatten() {
                    batch.add(rank, &name)?;
                }
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
