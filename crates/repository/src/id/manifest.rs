//! Names of manifests.

use std::fmt;
use std::str::FromStr;

use super::{IdKind, InvalidId, InvalidIdReason, serialize_as_text};

/// The name of a manifest: 16 random bytes. That of a snapshot is the snapshot ID in Velero's PodVolumeBackups and
/// DataUploads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManifestId([u8; 16]);

impl ManifestId {
    /// A name from random bytes.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl FromStr for ManifestId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let mut bytes = [0; 16];
        // Upper case would be the name of another manifest to kopia.
        let is_lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
        match hex::decode_to_slice(text, &mut bytes) {
            Ok(()) if is_lower => Ok(Self(bytes)),
            _ if text.is_empty() => {
                Err(InvalidId::new(IdKind::Manifest, text, InvalidIdReason::Empty))
            }
            _ => Err(InvalidId::new(IdKind::Manifest, text, InvalidIdReason::Hash)),
        }
    }
}

impl fmt::Display for ManifestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ManifestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

serialize_as_text!(ManifestId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_id_is_32_lower_case_digits() {
        let text = "00112233445566778899aabbccddeeff";
        assert_eq!(text.parse::<ManifestId>().unwrap().to_string(), text);
        for invalid in ["", "0", &text[1..], &text.to_uppercase(), &format!("{text}00")] {
            assert!(invalid.parse::<ManifestId>().is_err(), "{invalid:?}");
        }
    }
}
