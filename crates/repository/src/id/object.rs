//! Names of objects.

use std::fmt;
use std::str::FromStr;

use super::{ContentId, IdKind, InvalidId, InvalidIdReason, serialize_as_text};

/// Deepest list of lists. One list of 20 MiB names more than 200,000 contents of 4 MiB, so that two are enough.
const MAX_DEPTH: u8 = 8;

/// The name of an object: one content, or the content that lists the parts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    depth: u8,
    is_compressed: bool,
    content: ContentId,
}

impl ObjectId {
    /// The object that is one content.
    pub fn direct(content: ContentId) -> Self {
        Self { depth: 0, is_compressed: false, content }
    }

    /// The object whose parts this object lists. `None` if it is too deep, or compressed.
    pub fn indirect(list: Self) -> Option<Self> {
        let depth = list.depth.checked_add(1).filter(|&depth| depth <= MAX_DEPTH)?;
        (!list.is_compressed).then_some(Self { depth, ..list })
    }

    /// The object that lists the parts of this one, if it is more than one content.
    pub fn list(self) -> Option<Self> {
        self.depth.checked_sub(1).map(|depth| Self { depth, ..self })
    }

    /// Number of lists on the way to the data.
    pub fn depth(self) -> u8 {
        self.depth
    }

    /// True if the object was compressed before it became a content, as kopia did before index version 2.
    pub fn is_compressed(self) -> bool {
        self.is_compressed
    }

    /// The content, which is the object itself or the innermost list.
    pub fn content(self) -> ContentId {
        self.content
    }
}

impl FromStr for ObjectId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = |reason| InvalidId::new(IdKind::Object, text, reason);
        let rest = text.trim_start_matches('I');
        let depth = u8::try_from(text.len() - rest.len())
            .ok()
            .filter(|&depth| depth <= MAX_DEPTH)
            .ok_or_else(|| invalid(InvalidIdReason::TooLong))?;
        let uncompressed = rest.strip_prefix('Z');
        let is_compressed = uncompressed.is_some();
        if depth > 0 && is_compressed {
            return Err(invalid(InvalidIdReason::IndirectAndCompressed));
        }
        let rest = uncompressed.unwrap_or(rest);
        // Early versions of kopia wrote `D` before the content of a direct object.
        let content = rest.strip_prefix('D').unwrap_or(rest).parse();
        let content = content.map_err(|error: InvalidId| invalid(error.reason))?;
        Ok(Self { depth, is_compressed, content })
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.depth).try_for_each(|_| f.write_str("I"))?;
        let compressed = if self.is_compressed { "Z" } else { "" };
        write!(f, "{compressed}{}", self.content)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

serialize_as_text!(ObjectId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_an_object_is_one_level_less_deep() {
        let object: ObjectId = "IIx00ff".parse().unwrap();
        assert_eq!(object.depth(), 2);
        let list = object.list().unwrap();
        assert_eq!(list.to_string(), "Ix00ff");
        assert_eq!(ObjectId::indirect(list), Some(object));
        assert_eq!(list.list().unwrap().list(), None);
    }

    #[test]
    fn legacy_forms_are_read() {
        let compressed: ObjectId = "Z00ff".parse().unwrap();
        assert!(compressed.is_compressed());
        assert_eq!(compressed.to_string(), "Z00ff");
        assert_eq!("D00ff".parse::<ObjectId>().unwrap().to_string(), "00ff");
        assert_eq!("IDx00ff".parse::<ObjectId>().unwrap().to_string(), "Ix00ff");
    }

    #[test]
    fn objects_that_kopia_cannot_write_are_refused() {
        let deep = "I".repeat(9) + "00";
        for invalid in ["", "I", "IZ00", "ZI00", "xyz", "I 00", &deep] {
            assert!(invalid.parse::<ObjectId>().is_err(), "{invalid:?}");
        }
    }
}
