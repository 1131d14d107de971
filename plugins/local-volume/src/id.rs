//! The id of a snapshot: `lv-` and 32 hexadecimal digits. Nothing else becomes part of a path.

use std::fmt;
use std::io;
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const PREFIX: &str = "lv-";
/// Bytes that make an id; each is two digits.
const LENGTH: usize = 16;
const DIGITS: usize = 2 * LENGTH;

/// The id of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Id(String);

/// A text that is not one of our ids.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a snapshot of this plugin: ids are {PREFIX} and {DIGITS} digits")]
pub(crate) struct InvalidId(String);

impl Id {
    /// The same id for the same request.
    pub(crate) fn from_request(request: &str) -> Self {
        let hash = Sha256::new().chain_update("bowline.io/request-id\0").chain_update(request);
        Self::from_bytes(&hash.finalize()[..LENGTH])
    }

    pub(crate) fn random() -> io::Result<Self> {
        Ok(Self::from_bytes(&random_bytes::<LENGTH>()?))
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        Self(format!("{PREFIX}{}", hex::encode(bytes)))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The first digits, for names that people read.
    pub(crate) fn short_form(&self) -> &str {
        &self.0[PREFIX.len()..PREFIX.len() + 8]
    }
}

/// Unique digits for the name of a folder.
pub(crate) fn unique_suffix() -> io::Result<String> {
    Ok(hex::encode(random_bytes::<8>()?))
}

fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if filled == N { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

impl FromStr for Id {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        let digits = text.strip_prefix(PREFIX).map(str::as_bytes);
        match digits {
            Some(digits) if digits.len() == DIGITS && digits.iter().copied().all(is_digit) => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(InvalidId(text.chars().take(100).collect())),
        }
    }
}

impl TryFrom<String> for Id {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        text.parse()
    }
}

impl From<Id> for String {
    fn from(Id(text): Id) -> Self {
        text
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_not_an_id() {
        let digits = "0123456789abcdef0123456789abcdef";
        assert!(format!("lv-{digits}").parse::<Id>().is_ok());
        for bad in [
            String::new(),
            digits.to_owned(),
            format!("lv-{digits}0"),
            format!("lv-{}", &digits[1..]),
            format!("lv-{}", digits.to_uppercase()),
            format!("LV-{digits}"),
            format!("lv-{}/", &digits[1..]),
            "lv-../../../../../../../../etc/passwd".to_owned(),
            format!("lv-{}é", &digits[2..]),
            format!("lv-{digits}\n"),
            "snap-1".to_owned(),
        ] {
            assert!(bad.parse::<Id>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn id_follows_from_the_request_or_is_random() {
        assert_eq!(Id::from_request("a"), Id::from_request("a"));
        assert_ne!(Id::from_request("a"), Id::from_request("b"));
        assert_ne!(Id::random().unwrap(), Id::random().unwrap());
        for id in [Id::from_request(""), Id::random().unwrap()] {
            assert_eq!(id.as_str().parse(), Ok(id));
        }
    }
}
