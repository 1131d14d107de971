//! The names of things in a repository. Each is checked when it is parsed, so that a value is always valid.

mod blob;
mod content;
mod manifest;
mod object;

pub use blob::BlobId;
pub use content::{ContentId, ContentPrefix};
pub use manifest::ManifestId;
pub use object::ObjectId;

/// Text that is not the id that it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid {kind}: {reason}")]
pub struct InvalidId {
    /// Kind of id.
    pub kind: IdKind,
    /// The text, shortened.
    pub text: String,
    /// Reason.
    pub reason: InvalidIdReason,
}

/// Kind of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    /// Name of a blob.
    Blob,
    /// Hash of a content.
    Content,
    /// Object.
    Object,
    /// Manifest.
    Manifest,
}

impl std::fmt::Display for IdKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Blob => "blob ID",
            Self::Content => "content ID",
            Self::Object => "object ID",
            Self::Manifest => "manifest ID",
        })
    }
}

/// Reason for which an id is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIdReason {
    /// There is no text.
    #[error("it is empty")]
    Empty,
    /// There is too much text.
    #[error("it is too long")]
    TooLong,
    /// A letter that may not be there.
    #[error("it contains a character that is not allowed")]
    Character,
    /// The part after the prefix is not a hash.
    #[error("its hash is not hexadecimal")]
    Hash,
    /// The prefix is unknown.
    #[error("its prefix is not a letter from g to z")]
    Prefix,
    /// Both list of contents and compressed.
    #[error("it cannot be both indirect and compressed")]
    IndirectAndCompressed,
}

/// Length of an invalid id in an error.
const QUOTED_LENGTH: usize = 80;

impl InvalidId {
    fn new(kind: IdKind, text: &str, reason: InvalidIdReason) -> Self {
        Self { kind, text: text.chars().take(QUOTED_LENGTH).collect(), reason }
    }
}

/// Gives an id its text form and JSON form, both through `FromStr` and `Display`.
macro_rules! serialize_as_text {
    ($name:ty) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
use serialize_as_text;
