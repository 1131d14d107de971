//! Contents of a Lease and the decisions that follow from it. Pure: no I/O, no clock.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

/// Interval at which the same message is logged again.
const REPEAT_INTERVAL: Duration = Duration::from_mins(1);

/// Parsed Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseRecord {
    /// Holder and start of its term.
    pub(super) term: LeaseTerm,
    /// Duration without a renewal.
    pub(super) duration: Duration,
    /// Resource version. A write needs it, so a Lease without one is refused.
    pub(super) version: String,
}

/// Term of one holder, from acquiring the lease to losing it. No two are equal: each acquisition is
/// counted, also one by a server of the same identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseTerm {
    /// Identity of the holder; empty for none.
    pub(super) holder: String,
    /// Time of the acquisition, by the holder's clock.
    pub(super) acquired: Option<Timestamp>,
    /// Number of earlier terms.
    pub(super) transitions: i32,
}

impl LeaseTerm {
    /// Term that follows.
    pub(super) fn after(record: Option<&LeaseRecord>, holder: &str, now: Timestamp) -> Self {
        let transitions = record.map_or(0, |record| record.term.transitions.saturating_add(1));
        Self { holder: holder.to_owned(), acquired: Some(now), transitions }
    }
}

impl LeaseRecord {
    /// Parses a Lease. A Lease without a duration is assumed to have ours.
    pub(super) fn of(lease: Lease, our_duration: Duration) -> Self {
        let spec = lease.spec.unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let term = LeaseTerm {
            holder: spec.holder_identity.unwrap_or_default(),
            acquired: spec.acquire_time.map(|time| time.0),
            transitions: spec.lease_transitions.unwrap_or_default(),
        };
        Self {
            term,
            duration: seconds.map_or(our_duration, Duration::from_secs),
            version: lease.metadata.resource_version.unwrap_or_default(),
        }
    }
}

/// Decision of a standby server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseDecision<'a> {
    /// Acquire the lease.
    Acquire(AcquireReason),
    /// Leave the lease to its holder, for this long at least.
    Wait {
        /// Current holder.
        holder: &'a str,
        /// Remaining time if the lease is not renewed.
        remaining: Duration,
    },
}

/// Reason why a lease may be acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcquireReason {
    /// The Lease does not exist.
    Missing,
    /// The Lease has no holder.
    Free,
    /// The holder has our identity.
    OwnIdentity,
    /// The Lease has not been renewed for this long.
    Expired(Duration),
}

impl fmt::Display for AcquireReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no Lease existed"),
            Self::Free => f.write_str("no server held the Lease"),
            Self::OwnIdentity => {
                f.write_str("the Lease was held under this server's identity, as after a restart")
            }
            Self::Expired(long) => {
                write!(f, "the previous holder had not renewed the Lease for {long:?}")
            }
        }
    }
}

/// Decides about a lease that has been unchanged since a given instant.
pub(super) fn decide<'a>(
    record: Option<&'a LeaseRecord>,
    identity: &str,
    unchanged_since: Instant,
    now: Instant,
) -> LeaseDecision<'a> {
    let Some(record) = record else { return LeaseDecision::Acquire(AcquireReason::Missing) };
    let holder = record.term.holder.as_str();
    if holder.is_empty() {
        return LeaseDecision::Acquire(AcquireReason::Free);
    }
    if holder == identity {
        return LeaseDecision::Acquire(AcquireReason::OwnIdentity);
    }
    let silent = now.saturating_duration_since(unchanged_since);
    match record.duration.checked_sub(silent) {
        None | Some(Duration::ZERO) => LeaseDecision::Acquire(AcquireReason::Expired(silent)),
        Some(remaining) => LeaseDecision::Wait { holder, remaining },
    }
}

/// Version of a lease, and the instant at which this server first saw it.
#[derive(Debug, Default)]
pub(super) struct LeaseObservation(Option<(String, Instant)>);

impl LeaseObservation {
    /// Instant since which the lease that has just been read is unchanged.
    pub(super) fn unchanged_since(
        &mut self,
        record: Option<&LeaseRecord>,
        now: Instant,
    ) -> Instant {
        let Some(record) = record else {
            self.0 = None;
            return now;
        };
        match &self.0 {
            Some((version, since)) if *version == record.version => *since,
            _ => {
                self.0 = Some((record.version.clone(), now));
                now
            }
        }
    }
}

/// Ownership of a lease that was ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseOwnership {
    /// Still ours, or released without another holder in between: it can be written again.
    Owned,
    /// Lost, for this reason.
    Lost(LeaseLoss),
}

/// Reason why a lease is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LeaseLoss {
    /// The lease could not be renewed.
    #[error("the Lease could not be renewed for {0:?}")]
    Expired(Duration),
    /// Another server holds the lease.
    #[error("`{0}` holds the Lease now")]
    HeldByOther(String),
    /// Another server with our identity holds the lease.
    #[error(
        "another server with the same identity took the Lease; each server needs its own identity"
    )]
    SameIdentity,
    /// Another server has held the lease meanwhile.
    #[error("another server took the Lease and released it")]
    TakenAndReleased,
}

/// Ownership of a lease that was ours, given its current contents.
pub(super) fn ownership(record: Option<&LeaseRecord>, own_term: &LeaseTerm) -> LeaseOwnership {
    let Some(LeaseRecord { term: found, .. }) = record else { return LeaseOwnership::Owned };
    let is_same_term =
        found.acquired == own_term.acquired && found.transitions == own_term.transitions;
    match found.holder.as_str() {
        "" if is_same_term => LeaseOwnership::Owned,
        "" => LeaseOwnership::Lost(LeaseLoss::TakenAndReleased),
        holder if holder != own_term.holder => {
            LeaseOwnership::Lost(LeaseLoss::HeldByOther(holder.to_owned()))
        }
        _ if is_same_term => LeaseOwnership::Owned,
        _ => LeaseOwnership::Lost(LeaseLoss::SameIdentity),
    }
}

/// Logs a message when it is new, and then at intervals.
#[derive(Debug, Default)]
pub(super) struct LogThrottle(Option<(String, Instant)>);

impl LogThrottle {
    /// True if the message is to be logged now.
    pub(super) fn is_due(&mut self, what: &str, now: Instant) -> bool {
        let is_due = match &self.0 {
            None => true,
            Some((last_text, when)) => {
                last_text != what || now.saturating_duration_since(*when) >= REPEAT_INTERVAL
            }
        };
        if is_due {
            self.0 = Some((what.to_owned(), now));
        }
        is_due
    }
}
