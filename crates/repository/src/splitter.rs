//! Cuts a file into contents: where depends on the data, so that an insertion changes the contents near it alone.
//!
//! Kopia's `DYNAMIC-…-BUZHASH` is a rolling hash over the last 64 bytes. A content ends where its low bits are zero, but
//! is no shorter than half of the average and no longer than its double. The hash goes on from one content to the next.

mod table;

use self::table::TABLE;

/// Bytes that the rolling hash covers.
const WINDOW: usize = 64;

/// How files are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitterAlgorithm {
    /// Contents of one size.
    Fixed {
        /// The size.
        size: usize,
    },
    /// By a rolling hash.
    Buzhash {
        /// Average size, a power of two.
        average: usize,
    },
}

impl SplitterAlgorithm {
    /// The default, which Velero uses.
    pub const DYNAMIC_4M_BUZHASH: Self = Self::Buzhash { average: 4 << 20 };

    /// Reads kopia's name. `None` for `DYNAMIC-…-RABINKARP`, which Velero never used, and for unknown names.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "FIXED" => return Some(Self::Fixed { size: 4 << 20 }),
            "DYNAMIC" => return Some(Self::DYNAMIC_4M_BUZHASH),
            _ => {}
        }
        let (kind, rest) = name.split_once('-')?;
        let (size, hash) = rest.split_once('-').unwrap_or((rest, ""));
        let size = match size {
            "128K" => 128 << 10,
            "256K" => 256 << 10,
            "512K" => 512 << 10,
            "1M" => 1 << 20,
            "2M" => 2 << 20,
            "4M" => 4 << 20,
            "8M" => 8 << 20,
            _ => return None,
        };
        match (kind, hash) {
            ("FIXED", "") => Some(Self::Fixed { size }),
            ("DYNAMIC", "BUZHASH") => Some(Self::Buzhash { average: size }),
            _ => None,
        }
    }

    /// Longest content.
    pub fn max_size(self) -> usize {
        match self {
            Self::Fixed { size } => size,
            Self::Buzhash { average } => average * 2,
        }
    }
}

/// Finds the ends of the contents of one file.
#[derive(Debug)]
pub struct Splitter {
    min_size: usize,
    max_size: usize,
    /// `None` where every content has the largest size.
    mask: Option<u32>,
    /// Bytes of the content so far.
    length: usize,
    /// The last bytes, as a ring that begins at `oldest`.
    window: [u8; WINDOW],
    oldest: usize,
    sum: u32,
}

impl Splitter {
    /// A splitter for a new file.
    pub fn new(algorithm: SplitterAlgorithm) -> Self {
        let (min_size, mask) = match algorithm {
            SplitterAlgorithm::Fixed { size } => (size, None),
            SplitterAlgorithm::Buzhash { average } => {
                (average / 2, u32::try_from(average.saturating_sub(1)).ok())
            }
        };
        // The sum over a window of zeros is zero: each word is added twice.
        let (window, oldest, sum) = ([0; WINDOW], 0, 0);
        Self { min_size, max_size: algorithm.max_size(), mask, length: 0, window, oldest, sum }
    }

    /// The number of bytes of `data` after which the content ends. `None` if it goes on after them; then the next call
    /// continues with the data that follows.
    pub fn next_cut(&mut self, data: &[u8]) -> Option<usize> {
        // No cut is possible there, and only the last bytes of it matter to the hash.
        let skipped = self.min_size.saturating_sub(self.length + 1).min(data.len());
        let (head, tail) = data.split_at(skipped);
        head.iter().skip(head.len().saturating_sub(WINDOW)).for_each(|&byte| self.roll(byte));
        self.length += skipped;
        for (position, &byte) in tail.iter().enumerate() {
            self.roll(byte);
            self.length += 1;
            let is_cut = self.mask.is_some_and(|mask| self.sum & mask == 0);
            if is_cut || self.length >= self.max_size {
                self.length = 0;
                return Some(skipped + position + 1);
            }
        }
        None
    }

    fn roll(&mut self, byte: u8) {
        let Some(slot) = self.window.get_mut(self.oldest) else { return };
        let leaving = std::mem::replace(slot, byte);
        self.oldest = (self.oldest + 1) % WINDOW;
        // The word of the leaving byte was rotated 64 times, which is a full turn.
        self.sum = self.sum.rotate_left(1) ^ word(leaving) ^ word(byte);
    }
}

fn word(byte: u8) -> u32 {
    TABLE.get(usize::from(byte)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use ring::digest;

    use super::*;

    /// Numbers of a small generator, the same on every machine.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        (0..length).map(|_| next()).collect()
    }

    fn lengths(algorithm: SplitterAlgorithm, data: &[u8], piece: usize) -> Vec<usize> {
        let mut splitter = Splitter::new(algorithm);
        let mut lengths = vec![0];
        for mut rest in data.chunks(piece) {
            while !rest.is_empty() {
                let cut = splitter.next_cut(rest);
                let consumed = cut.unwrap_or(rest.len());
                *lengths.last_mut().unwrap() += consumed;
                if cut.is_some() {
                    lengths.push(0);
                }
                rest = &rest[consumed..];
            }
        }
        lengths
    }

    #[test]
    fn table_is_that_of_kopia() {
        let bytes: Vec<u8> = TABLE.iter().flat_map(|word| word.to_be_bytes()).collect();
        let hash = hex::encode(digest::digest(&digest::SHA256, &bytes));
        assert!(hash.starts_with("9f95254d") && hash.ends_with("e218f6dd"), "{hash}");
    }

    #[test]
    fn cuts_do_not_depend_on_how_the_data_arrives() {
        let algorithm = SplitterAlgorithm::Buzhash { average: 128 << 10 };
        let data = noise(1 << 20);
        let whole = lengths(algorithm, &data, data.len());
        assert!(whole.len() > 5, "{whole:?}");
        for piece in [1, 63, 64, 65, 1000, 65_536] {
            assert_eq!(lengths(algorithm, &data, piece), whole, "pieces of {piece}");
        }
        let (_, full) = whole.split_last().unwrap();
        assert!(full.iter().all(|length| (64 << 10..=256 << 10).contains(length)), "{whole:?}");
    }

    #[test]
    fn insertion_changes_the_contents_near_it_alone() {
        let algorithm = SplitterAlgorithm::Buzhash { average: 128 << 10 };
        let data = noise(2 << 20);
        let changed = [b"inserted".as_slice(), &data].concat();
        let (before, after) =
            (lengths(algorithm, &data, 1 << 20), lengths(algorithm, &changed, 1 << 20));
        assert_eq!(before[before.len() - 5..], after[after.len() - 5..]);
    }

    #[test]
    fn data_without_a_cut_ends_at_the_greatest_size() {
        // All bytes alike: the sum never changes after the window is full, and is zero there as at the start.
        let zeros = vec![0; 1 << 20];
        let algorithm = SplitterAlgorithm::Buzhash { average: 128 << 10 };
        assert_eq!(lengths(algorithm, &zeros, 1 << 20)[0], 64 << 10);
        let fixed = SplitterAlgorithm::Fixed { size: 128 << 10 };
        assert_eq!(lengths(fixed, &noise(300 << 10), 1000), [128 << 10, 128 << 10, 44 << 10]);
    }

    #[test]
    fn names_of_kopia_are_known() {
        let name = SplitterAlgorithm::from_name;
        assert_eq!(name("DYNAMIC-4M-BUZHASH"), Some(SplitterAlgorithm::DYNAMIC_4M_BUZHASH));
        assert_eq!(name("FIXED-1M"), Some(SplitterAlgorithm::Fixed { size: 1 << 20 }));
        for unknown in ["", "DYNAMIC-4M-RABINKARP", "DYNAMIC-3M-BUZHASH", "FIXED-1M-BUZHASH"] {
            assert_eq!(name(unknown), None, "{unknown}");
        }
    }
}
