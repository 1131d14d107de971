//! Names of contents.

use std::fmt;
use std::str::FromStr;

use super::{IdKind, InvalidId, InvalidIdReason, serialize_as_text};

/// Longest hash of kopia.
const MAX_HASH: usize = 32;

/// The purpose of a content, as a letter before its hash. A content without a prefix is data of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentPrefix(u8);

impl ContentPrefix {
    /// Directories.
    pub const DIRECTORY: Self = Self(b'k');
    /// Lists of the contents of an object.
    pub const INDIRECT: Self = Self(b'x');
    /// Manifests.
    pub const MANIFEST: Self = Self(b'm');

    /// Checks a letter.
    pub fn new(letter: u8) -> Option<Self> {
        (b'g'..=b'z').contains(&letter).then_some(Self(letter))
    }

    /// The letter.
    pub fn letter(self) -> u8 {
        self.0
    }
}

/// The name of a content: its hash, and a letter for what it contains. Contents without a letter come first in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId {
    prefix: Option<ContentPrefix>,
    hash: [u8; MAX_HASH],
    length: u8,
}

impl ContentId {
    /// Name of a content with a hash. `None` if the hash is empty, or longer than any of kopia's.
    pub fn from_hash(prefix: Option<ContentPrefix>, hash: &[u8]) -> Option<Self> {
        let length = u8::try_from(hash.len()).ok().filter(|&length| length > 0)?;
        let mut bytes = [0; MAX_HASH];
        bytes.get_mut(..hash.len())?.copy_from_slice(hash);
        Some(Self { prefix, hash: bytes, length })
    }

    /// The letter.
    pub fn prefix(&self) -> Option<ContentPrefix> {
        self.prefix
    }

    /// The hash of the content.
    pub fn hash(&self) -> &[u8] {
        self.hash.get(..usize::from(self.length)).unwrap_or_default()
    }

    /// Reads the key of an index: one byte for the letter, or zero, and the hash.
    pub(crate) fn from_key(key: &[u8]) -> Option<Self> {
        let (&letter, hash) = key.split_first()?;
        let prefix = if letter == 0 { None } else { Some(ContentPrefix::new(letter)?) };
        Self::from_hash(prefix, hash)
    }

    /// The key of an index.
    pub(crate) fn key(&self) -> Vec<u8> {
        let mut key = vec![self.prefix.map_or(0, ContentPrefix::letter)];
        key.extend_from_slice(self.hash());
        key
    }
}

impl FromStr for ContentId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = |reason| InvalidId::new(IdKind::Content, text, reason);
        let (prefix, digits) = match text.as_bytes() {
            [] => return Err(invalid(InvalidIdReason::Empty)),
            [letter, digits @ ..] if digits.len() % 2 == 0 => {
                let prefix = ContentPrefix::new(*letter);
                (Some(prefix.ok_or_else(|| invalid(InvalidIdReason::Prefix))?), digits)
            }
            digits => (None, digits),
        };
        if digits.len() > 2 * MAX_HASH {
            return Err(invalid(InvalidIdReason::TooLong));
        }
        let hash = hex::decode(digits).map_err(|_| invalid(InvalidIdReason::Hash))?;
        Self::from_hash(prefix, &hash).ok_or_else(|| invalid(InvalidIdReason::Hash))
    }
}

impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(prefix) = self.prefix {
            write!(f, "{}", char::from(prefix.0))?;
        }
        self.hash().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

serialize_as_text!(ContentId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_id_has_a_letter_or_not() {
        let plain: ContentId = "00ff".parse().unwrap();
        assert_eq!((plain.prefix(), plain.hash()), (None, &[0, 0xff][..]));
        let directory: ContentId = "k00ff".parse().unwrap();
        assert_eq!(directory.prefix(), Some(ContentPrefix::DIRECTORY));
        assert_eq!(directory.to_string(), "k00ff");
        assert_eq!(ContentId::from_key(&directory.key()), Some(directory));
        assert_eq!(ContentId::from_key(&plain.key()), Some(plain));
    }

    #[test]
    fn content_ids_that_kopia_cannot_write_are_refused() {
        for invalid in ["", "k", "a00", "000", "K00", "0g", "kk0", &"00".repeat(33)] {
            assert!(invalid.parse::<ContentId>().is_err(), "{invalid:?}");
        }
        assert_eq!(ContentId::from_key(&[b'a', 1]), None);
        assert_eq!(ContentId::from_key(&[0]), None);
        assert_eq!(ContentId::from_hash(None, &[0; 33]), None);
    }

    #[test]
    fn contents_without_a_letter_come_first() {
        let mut ids: Vec<ContentId> =
            ["x00", "k01", "ff", "k00", "00"].map(|id| id.parse().unwrap()).into();
        ids.sort();
        assert_eq!(
            ids.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["00", "ff", "k00", "k01", "x00"]
        );
    }
}
