//! Something that nobody else has.

use std::hash::{BuildHasher as _, RandomState};

/// Thirty-two hexadecimal digits, random enough to tell one request from another; not a secret.
pub(super) fn hex() -> String {
    let word = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", word(), word())
}
