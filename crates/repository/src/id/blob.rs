//! Names of blobs.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{IdKind, InvalidId, InvalidIdReason};

/// Longest name of a blob: kopia's longest have about 80 bytes, and an index stores the length in one byte.
const MAX_LENGTH: usize = 255;

/// The name of a blob: letters, digits, `.`, `_` and `-`, so that it is one path element in any store.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(Arc<str>);

impl BlobId {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last 32 hexadecimal digits before the first `-`: half of the hash, or all of it, of a blob that is encrypted
    /// as a whole. They are the initialization vector.
    pub fn hash_suffix(&self) -> Option<[u8; 16]> {
        let hashed = self.0.split('-').next()?;
        let digits = hashed.get(hashed.len().checked_sub(32)?..)?;
        let mut iv = [0; 16];
        hex::decode_to_slice(digits, &mut iv).ok()?;
        Some(iv)
    }
}

impl FromStr for BlobId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let reason = match text.len() {
            0 => InvalidIdReason::Empty,
            length if length > MAX_LENGTH => InvalidIdReason::TooLong,
            // A leading dot would be `.` or `..`, or a file that other programs hide.
            _ if text.starts_with('.') || !text.bytes().all(is_allowed) => {
                InvalidIdReason::Character
            }
            _ => return Ok(Self(text.into())),
        };
        Err(InvalidId::new(IdKind::Blob, text, reason))
    }
}

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blob_id_is_one_path_element() {
        for valid in ["kopia.repository", "p00ff-s1", "_log_2026", "xe0", "udmrepo.Repository"] {
            assert_eq!(valid.parse::<BlobId>().unwrap().as_str(), valid);
        }
        for invalid in ["", ".", "..", "a/b", "../p1", "a b", "ä", "a\0"] {
            assert!(invalid.parse::<BlobId>().is_err(), "{invalid:?}");
        }
        assert!("p".repeat(256).parse::<BlobId>().is_err());
    }

    #[test]
    fn initialization_vector_is_the_last_32_digits_before_the_dash() {
        let iv = |name: &str| name.parse::<BlobId>().unwrap().hash_suffix().map(hex::encode);
        let hash = "00112233445566778899aabbccddeeff";
        assert_eq!(iv(&format!("xn0_{hash}-s1-c1")).as_deref(), Some(hash));
        assert_eq!(iv(&format!("xn0_ffff{hash}-s1-c1")).as_deref(), Some(hash));
        assert_eq!(iv(&format!("s{hash}-s1")).as_deref(), Some(hash));
        assert_eq!(iv("kopia.repository"), None);
        assert_eq!(iv("xe0"), None);
    }
}
