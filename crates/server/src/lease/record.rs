//! What a Lease says, and what follows from it. Nothing here asks anybody, or looks at a clock.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

/// How often the same is said again.
const REPEAT_INTERVAL: Duration = Duration::from_mins(1);

/// A Lease as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseRecord {
    /// Who holds it, and since when.
    pub(super) term: LeaseTerm,
    /// How long it lasts without a renewal.
    pub(super) duration: Duration,
    /// Changes with every write. A Lease cannot be written without, so an empty one is refused.
    pub(super) version: String,
}

/// One holder's time, from taking the lease to losing it. No two are equal: each taking is counted,
/// also one from a server of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseTerm {
    /// The name of the holder; empty for nobody.
    pub(super) holder: String,
    /// When it was taken, by the holder's clock.
    pub(super) acquired: Option<Timestamp>,
    /// How many there were before.
    pub(super) transitions: i32,
}

impl LeaseTerm {
    /// The term that follows.
    pub(super) fn after(record: Option<&LeaseRecord>, holder: &str, now: Timestamp) -> Self {
        let transitions = record.map_or(0, |record| record.term.transitions.saturating_add(1));
        Self { holder: holder.to_owned(), acquired: Some(now), transitions }
    }
}

impl LeaseRecord {
    /// What a Lease says. One that does not tell how long it lasts is taken to last as long as ours.
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

/// What an applicant does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseDecision<'a> {
    /// It takes the lease.
    Acquire(AcquireReason),
    /// It leaves it to its holder, for this long at least.
    Wait {
        /// Who holds it.
        holder: &'a str,
        /// What is left if it is not renewed.
        remaining: Duration,
    },
}

/// Why a lease may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcquireReason {
    /// There is none.
    Missing,
    /// Nobody holds it.
    Free,
    /// It is held in our name.
    OwnIdentity,
    /// It has not been renewed for this long.
    Expired(Duration),
}

impl fmt::Display for AcquireReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("there was none"),
            Self::Free => f.write_str("nobody held it"),
            Self::OwnIdentity => f.write_str("it was held in our own name, as before a restart"),
            Self::Expired(long) => write!(f, "its holder had not renewed it for {long:?}"),
        }
    }
}

/// Decides about a lease that has been as it is since some moment.
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

/// Since when a lease has been as it is, as far as we have seen.
#[derive(Debug, Default)]
pub(super) struct LeaseObservation(Option<(String, Instant)>);

impl LeaseObservation {
    /// Since when, given what has just been read.
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

/// Where we stand with a lease that was ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseOwnership {
    /// It still is, or is nobody's and has not been anybody's else: it can be written anew.
    Owned,
    /// It is not.
    Lost(LeaseLoss),
}

/// Why a lease is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LeaseLoss {
    /// It could not be renewed.
    #[error("it could not be renewed for {0:?}")]
    Expired(Duration),
    /// Somebody else has it.
    #[error("`{0}` holds it now")]
    HeldByOther(String),
    /// Somebody else of our name has it.
    #[error("another server of the same name took it; each server needs a name of its own")]
    SameIdentity,
    /// Somebody else has had it.
    #[error("another server took it, and gave it back")]
    TakenAndReleased,
}

/// Judges a lease that was ours by what it says now.
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

/// What is said once when it is new, and then now and then.
#[derive(Debug, Default)]
pub(super) struct LogThrottle(Option<(String, Instant)>);

impl LogThrottle {
    /// Whether to say it now.
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
