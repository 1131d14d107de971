//! Tokens of download links.
//!
//! Three parts: the bucket and the key of an object, and a token. The first byte of the bucket is where the token of
//! that object is damaged.

use bowline_store::download::{Grant, SigningKey, sign, verify};
use jiff::Timestamp;

use super::texts;

pub(super) fn run(input: &[u8]) {
    let Some([bucket, object, forged]) = texts(input) else { return };
    let key = SigningKey::new(&[7; 32]).expect("a key of the right length");
    let other_key = SigningKey::new(&[8; 32]).expect("a key of the right length");
    let (now, expires) = (at(1_800_000_000), at(1_800_000_600));
    let grant = Grant { bucket: bucket.to_owned(), key: object.to_owned(), expires };
    let token = sign(&key, &grant);
    assert_eq!(verify(&key, &token, now), Ok(grant.clone()));
    assert!(verify(&key, &token, expires).is_err(), "an expired token is accepted");
    assert!(verify(&other_key, &token, now).is_err(), "the token of another server is accepted");

    let position = bucket.bytes().next().map_or(0, usize::from) * token.len() / 256;
    let damaged = [&token[..position], forged, &token[(position + 1).min(token.len())..]].concat();
    for text in [forged, &damaged, &format!("{token}{forged}"), &format!("{forged}{token}")] {
        // The signature may be spelled in capitals; nothing else may differ.
        if let Ok(accepted) = verify(&key, text, now) {
            assert_eq!(accepted, grant, "{text}");
            assert!(text.eq_ignore_ascii_case(&token), "{text}");
        }
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time in range")
}
