//! What a Lease says, and what follows from it. Nothing here asks anybody, or looks at a clock.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

/// How often the same is said again.
const REMINDER: Duration = Duration::from_mins(1);

/// A Lease as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Who holds it, and since when.
    pub(super) term: Term,
    /// How long it lasts without a renewal.
    pub(super) duration: Duration,
    /// Changes with every write. A Lease cannot be written without, so an empty one is refused.
    pub(super) version: String,
}

/// One holder's time, from taking the lease to losing it. No two are equal: each taking is counted,
/// also one from a server of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Term {
    /// The name of the holder; empty for nobody.
    pub(super) holder: String,
    /// When it was taken, by the holder's clock.
    pub(super) acquired: Option<Timestamp>,
    /// How many there were before.
    pub(super) transitions: i32,
}

impl Term {
    /// The term that follows.
    pub(super) fn after(record: Option<&Record>, holder: &str, now: Timestamp) -> Self {
        let transitions = record.map_or(0, |record| record.term.transitions.saturating_add(1));
        Self { holder: holder.to_owned(), acquired: Some(now), transitions }
    }
}

impl Record {
    /// What a Lease says. One that does not tell how long it lasts is taken to last as long as ours.
    pub(super) fn of(lease: Lease, our_duration: Duration) -> Self {
        let spec = lease.spec.unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let term = Term {
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
pub(super) enum Verdict<'a> {
    /// It takes the lease.
    Take(Why),
    /// It leaves it to its holder, for this long at least.
    Wait {
        /// Who holds it.
        holder: &'a str,
        /// What is left if it is not renewed.
        left: Duration,
    },
}

/// Why a lease may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// There is none.
    Missing,
    /// Nobody holds it.
    Free,
    /// It is held in our name.
    OurOwn,
    /// It has not been renewed for this long.
    Silent(Duration),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("there was none"),
            Self::Free => f.write_str("nobody held it"),
            Self::OurOwn => f.write_str("it was held in our own name, as before a restart"),
            Self::Silent(long) => write!(f, "its holder had not renewed it for {long:?}"),
        }
    }
}

/// Decides about a lease that has been as it is since some moment.
pub(super) fn decide<'a>(
    record: Option<&'a Record>,
    identity: &str,
    unchanged_since: Instant,
    now: Instant,
) -> Verdict<'a> {
    let Some(record) = record else { return Verdict::Take(Why::Missing) };
    let holder = record.term.holder.as_str();
    if holder.is_empty() {
        return Verdict::Take(Why::Free);
    }
    if holder == identity {
        return Verdict::Take(Why::OurOwn);
    }
    let silent = now.saturating_duration_since(unchanged_since);
    match record.duration.checked_sub(silent) {
        None | Some(Duration::ZERO) => Verdict::Take(Why::Silent(silent)),
        Some(left) => Verdict::Wait { holder, left },
    }
}

/// Since when a lease has been as it is, as far as we have seen.
#[derive(Debug, Default)]
pub(super) struct Sight(Option<(String, Instant)>);

impl Sight {
    /// Since when, given what has just been read.
    pub(super) fn since(&mut self, record: Option<&Record>, now: Instant) -> Instant {
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
pub(super) enum Standing {
    /// It still is, or is nobody's and has not been anybody's else: it can be written anew.
    Ours,
    /// It is not.
    Lost(Loss),
}

/// Why a lease is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Loss {
    /// It could not be renewed.
    #[error("it could not be renewed for {0:?}")]
    Expired(Duration),
    /// Somebody else has it.
    #[error("`{0}` holds it now")]
    Taken(String),
    /// Somebody else of our name has it.
    #[error("another server of the same name took it; each server needs a name of its own")]
    Namesake,
    /// Somebody else has had it.
    #[error("another server took it, and gave it back")]
    Passed,
}

/// Judges a lease that was ours by what it says now.
pub(super) fn standing(record: Option<&Record>, ours: &Term) -> Standing {
    let Some(Record { term: found, .. }) = record else { return Standing::Ours };
    let is_same_term = found.acquired == ours.acquired && found.transitions == ours.transitions;
    match found.holder.as_str() {
        "" if is_same_term => Standing::Ours,
        "" => Standing::Lost(Loss::Passed),
        holder if holder != ours.holder => Standing::Lost(Loss::Taken(holder.to_owned())),
        _ if is_same_term => Standing::Ours,
        _ => Standing::Lost(Loss::Namesake),
    }
}

/// What is said once when it is new, and then now and then.
#[derive(Debug, Default)]
pub(super) struct Herald(Option<(String, Instant)>);

impl Herald {
    /// Whether to say it now.
    pub(super) fn is_due(&mut self, what: &str, now: Instant) -> bool {
        let is_due = match &self.0 {
            None => true,
            Some((said, when)) => said != what || now.saturating_duration_since(*when) >= REMINDER,
        };
        if is_due {
            self.0 = Some((what.to_owned(), now));
        }
        is_due
    }
}
