//! Unique names for requests.

use std::hash::{BuildHasher as _, RandomState};

/// Thirty-two hexadecimal digits, random enough to distinguish requests; not a secret.
pub(super) fn hex() -> String {
    let word = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", word(), word())
}
