//! Sessions: while a writer has packs that no index names, a blob says so.

use jiff::Timestamp;
use serde::Serialize;

use super::Error;
use crate::crypto::{self, Crypter, NONCE_LENGTH};
use crate::id::BlobId;

/// Start of the year 2000, from which the months in session IDs are counted.
const FIRST_SECOND: i64 = 946_684_800;
/// Length of the months in session IDs.
const MONTH_SECONDS: i64 = 30 * 24 * 3600;

/// Who writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOwner {
    /// User: `default` for Velero.
    pub user: String,
    /// Host: `default` for Velero.
    pub host: String,
}

impl SessionOwner {
    /// The owner that Velero names.
    pub fn velero() -> Self {
        Self { user: "default".to_owned(), host: "default".to_owned() }
    }
}

/// What the marker of a session contains.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Marker<'a> {
    id: &'a str,
    start_time: Timestamp,
    checkpoint_time: Timestamp,
    username: &'a str,
    hostname: &'a str,
}

/// A session with packs.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    /// The blob that marks the session.
    pub(super) marker: BlobId,
}

impl Session {
    /// A new session, and the blob to write before its first pack.
    pub(super) fn begin(
        owner: &SessionOwner,
        now: Timestamp,
        random: [u8; 8],
        crypter: &Crypter,
        nonce: [u8; NONCE_LENGTH],
    ) -> Result<(Self, Vec<u8>), Error> {
        let id = session_id(now, random);
        let marker = Marker {
            id: &id,
            start_time: now,
            checkpoint_time: now,
            username: &owner.user,
            hostname: &owner.host,
        };
        let json = serde_json::to_vec(&marker).map_err(Error::Session)?;
        let hash = crypter.hash(&json);
        let iv = crypto::initialization_vector(&hash).map_err(Error::Encrypt)?;
        let blob = crypter.encrypt(&json, &iv, nonce).map_err(Error::Encrypt)?;
        let marker = super::blob_id(&format!("s{}-{id}", hex::encode(hash)))?;
        Ok((Self { id, marker }, blob))
    }
}

fn session_id(now: Timestamp, random: [u8; 8]) -> String {
    let months = (now.as_second() - FIRST_SECOND).max(0) / MONTH_SECONDS;
    format!("s{}{months:x}", hex::encode(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_id_ends_with_the_months_since_2000() {
        let id = |time: &str| session_id(time.parse().unwrap(), [0xab; 8]);
        assert_eq!(id("2000-01-30T23:59:59Z"), "sabababababababab0");
        assert_eq!(id("2026-11-19T21:00:00Z"), "sabababababababab147");
    }
}
