//! The lock of a repository that is being upgraded to another format.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::json::nanoseconds;

/// An upgrade that was announced or is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeLock {
    /// Who upgrades.
    #[serde(rename = "ownerID", default)]
    pub owner_id: String,
    /// Time of the announcement.
    pub creation_time: Timestamp,
    /// Time between announcement and upgrade.
    #[serde(default, with = "nanoseconds")]
    pub advance_notice_duration: Duration,
    /// Time after which a client must have seen the lock.
    #[serde(rename = "ioDrainTimeout", default, with = "nanoseconds")]
    pub io_drain_timeout: Duration,
    /// Message for people.
    #[serde(default)]
    pub message: String,
    /// Greatest difference between clocks.
    #[serde(default, with = "nanoseconds")]
    pub max_permitted_clock_drift: Duration,
}

impl UpgradeLock {
    /// The time from which the repository is locked: before the upgrade, so that every client sees the lock in time; at
    /// once without enough notice.
    pub fn locked_from(&self) -> Timestamp {
        let drain = self.max_permitted_clock_drift.saturating_add(self.io_drain_timeout * 2);
        let wait = self.advance_notice_duration.saturating_sub(drain);
        let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
        self.creation_time.checked_add(wait).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(notice: u64) -> UpgradeLock {
        UpgradeLock {
            owner_id: "o".to_owned(),
            creation_time: Timestamp::UNIX_EPOCH,
            advance_notice_duration: Duration::from_secs(notice),
            io_drain_timeout: Duration::from_secs(100),
            message: String::new(),
            max_permitted_clock_drift: Duration::from_secs(10),
        }
    }

    #[test]
    fn lock_without_enough_notice_holds_at_once() {
        assert_eq!(lock(0).locked_from().as_second(), 0);
        assert_eq!(lock(209).locked_from().as_second(), 0);
    }

    #[test]
    fn announced_lock_begins_before_the_upgrade() {
        assert_eq!(lock(1000).locked_from().as_second(), 790);
    }
}
