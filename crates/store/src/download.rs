//! Signed links to objects in a folder, since a folder cannot sign its own.
//!
//! A link is `<base>/<token>`. The token names an object and an expiry time, signed with a key of
//! the server: HMAC-SHA256 over all of it. The holder of the link can read that object until then,
//! as with a presigned S3 link, and nothing else. The server checks the token with [`verify`] and
//! serves the object.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use sha2::Sha256;

/// Part of the signed data, so that a token is valid for this purpose only.
const PURPOSE: &str = "bowline-download-v1";
/// Minimum length of a key, in bytes.
const MIN_KEY: usize = 32;

/// Key that signs links.
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

/// A key that is short enough to be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key that download links are signed with must have at least {MIN_KEY} bytes")]
pub struct KeyTooShort;

impl SigningKey {
    /// Creates a key from random bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyTooShort> {
        if bytes.len() < MIN_KEY {
            return Err(KeyTooShort);
        }
        Hmac::new_from_slice(bytes).map(Self).map_err(|_| KeyTooShort)
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

/// Permission to read one object for a limited time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The bucket: the folder below the root.
    pub bucket: String,
    /// The key of the object.
    pub key: String,
    /// Expiry time, to the second.
    pub expires: Timestamp,
}

/// Reasons why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedToken {
    /// Not a token.
    #[error("the link is incomplete; copy all of it")]
    Malformed,
    /// Not signed by this server, or modified.
    #[error("the link was not created by this server")]
    Forged,
    /// Expired.
    #[error("the link has expired; request a new one")]
    Expired,
}

/// The token for a grant.
pub fn sign(key: &SigningKey, grant: &Grant) -> String {
    let claim = format!(
        "{}.{}.{}",
        grant.expires.as_second(),
        hex::encode(&grant.bucket),
        hex::encode(&grant.key)
    );
    let signature = hex::encode(mac(key, &claim).finalize().into_bytes());
    format!("{claim}.{signature}")
}

/// The grant of a token at the time `now`. Runs in constant time with respect to the signature.
pub fn verify(key: &SigningKey, token: &str, now: Timestamp) -> Result<Grant, RefusedToken> {
    let (claim, signature) = token.rsplit_once('.').ok_or(RefusedToken::Malformed)?;
    let signature = hex::decode(signature).map_err(|_| RefusedToken::Malformed)?;
    mac(key, claim).verify_slice(&signature).map_err(|_| RefusedToken::Forged)?;
    let mut parts = claim.split('.');
    let (Some(expires), Some(bucket), Some(object), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(RefusedToken::Malformed);
    };
    let expires = expires.parse().ok().and_then(|second| Timestamp::from_second(second).ok());
    let expires = expires.ok_or(RefusedToken::Malformed)?;
    if now >= expires {
        return Err(RefusedToken::Expired);
    }
    Ok(Grant { bucket: text(bucket)?, key: text(object)?, expires })
}

fn mac(key: &SigningKey, claim: &str) -> Hmac<Sha256> {
    let mut mac = key.0.clone();
    mac.update(PURPOSE.as_bytes());
    mac.update(b"\0");
    mac.update(claim.as_bytes());
    mac
}

fn text(encoded: &str) -> Result<String, RefusedToken> {
    let bytes = hex::decode(encoded).map_err(|_| RefusedToken::Malformed)?;
    String::from_utf8(bytes).map_err(|_| RefusedToken::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SigningKey {
        SigningKey::new(&[byte; 32]).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn grant() -> Grant {
        let key = "p/backups/b/b ü.tar.gz".to_owned();
        Grant { bucket: "bucket".to_owned(), key, expires: at(1000) }
    }

    #[test]
    fn token_grants_its_object_until_it_expires() {
        let token = sign(&key(1), &grant());
        assert_eq!(verify(&key(1), &token, at(999)), Ok(grant()));
        assert_eq!(verify(&key(1), &token, at(1000)), Err(RefusedToken::Expired));
        assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.'), "{token}");
    }

    #[test]
    fn tampered_token_is_refused() {
        let token = sign(&key(1), &grant());
        let later = token.replacen("1000", "9000", 1);
        assert_eq!(verify(&key(1), &later, at(1)), Err(RefusedToken::Forged));
        for at_byte in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[at_byte] = if bytes[at_byte] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(verify(&key(1), &changed, at(1)).is_err(), "{changed}");
        }
        assert_eq!(verify(&key(2), &token, at(1)), Err(RefusedToken::Forged));
    }

    #[test]
    fn malformed_token_is_refused() {
        for text in ["", ".", "a", "1000", "....", "1000.ab.cd.zz"] {
            assert!(verify(&key(1), text, at(1)).is_err(), "{text:?}");
        }
    }

    #[test]
    fn key_must_be_long_and_is_never_printed() {
        assert_eq!(SigningKey::new(&[7; 31]).unwrap_err(), KeyTooShort);
        assert_eq!(format!("{:?}", key(7)), "SigningKey(…)");
    }
}
