//! Checks the signature of a request: Signature Version 4, for a POST to `/` without a query.

use std::fmt::Write as _;

use axum::http::HeaderMap;
use sha2::{Digest as _, Sha256};

use crate::s3::Credentials;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// Block size of SHA-256, in bytes.
const BLOCK: usize = 64;

/// True if the request has the signature that only the owner of the key can make.
pub(super) fn is_valid(headers: &HeaderMap, body: &[u8], credentials: &Credentials) -> bool {
    check_signature(headers, body, credentials).unwrap_or_default()
}

/// None if the request is not signed in this way at all.
fn check_signature(headers: &HeaderMap, body: &[u8], credentials: &Credentials) -> Option<bool> {
    let value = |name: &str| headers.get(name)?.to_str().ok();
    let claim = value("authorization")?.strip_prefix(ALGORITHM)?;
    let part = |name: &str| claim.split(',').find_map(|part| part.trim().strip_prefix(name));
    let (key, scope) = part("Credential=")?.split_once('/')?;
    let names = part("SignedHeaders=")?;
    let mut request = "POST\n/\n\n".to_owned();
    for name in names.split(';') {
        let trimmed = value(name)?.split_whitespace().collect::<Vec<_>>().join(" ");
        writeln!(request, "{name}:{trimmed}").ok()?;
    }
    write!(request, "\n{names}\n{}", hex::encode(Sha256::digest(body))).ok()?;
    let hash = hex::encode(Sha256::digest(request));
    let text = format!("{ALGORITHM}\n{}\n{scope}\n{hash}", value("x-amz-date")?);
    let mut signing = format!("AWS4{}", credentials.secret_key).into_bytes();
    for step in scope.split('/') {
        signing = hmac(&signing, step.as_bytes()).to_vec();
    }
    let signature = hex::encode(hmac(&signing, text.as_bytes()));
    Some(key == credentials.access_key && part("Signature=")? == signature)
}

/// RFC 2104.
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let hashed = Sha256::digest(key);
    let key = if key.len() > BLOCK { &hashed[..] } else { key };
    let padded = |fill: u8| -> Vec<u8> {
        let rest = std::iter::repeat_n(&0, BLOCK - key.len());
        key.iter().chain(rest).map(|byte| byte ^ fill).collect()
    };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second and the sixth case of RFC 4231.
    #[test]
    fn hmac_matches_the_rfc_test_vector() {
        let short = hmac(b"Jefe", b"what do ya want for nothing?");
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex::encode(short), expected);
        let long = hmac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First");
        let expected = "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54";
        assert_eq!(hex::encode(long), expected);
    }

    #[test]
    fn unsigned_request_is_refused() {
        let credentials = Credentials { access_key: "a".into(), secret_key: "b".into() };
        assert!(!is_valid(&HeaderMap::new(), b"", &credentials));
        let mut headers = HeaderMap::new();
        let claim = format!("{ALGORITHM} Credential=a/x, SignedHeaders=, Signature=");
        headers.insert("authorization", claim.parse().unwrap());
        assert!(!is_valid(&headers, b"", &credentials));
    }
}
