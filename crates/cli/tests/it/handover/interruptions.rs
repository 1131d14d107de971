//! Instants at which servers are interrupted.

use std::time::Duration;

use super::log_line;
use super::recording_proxy::{HoldPoint, RequestMatcher};

const SEED_VARIABLE: &str = "BOWLINE_TEST_SEED";

pub(crate) const RECORD: &str = "/velero-backup.json";
const ARCHIVE: &str = ".tar.gz";
const LOG: &str = "-logs.gz";
const LIST: &str = "-resource-list.json.gz";

/// Instant of an interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterruptionPoint {
    /// After some time.
    Any,
    /// When the server has sent a request, which never returns.
    RequestSent(RequestMatcher),
    /// When the request of the server was broken off, and is about to be repeated.
    BeforeRetry(RequestMatcher),
    /// When the server has sent a request, which is held until the Lease has expired. Then the server continues, and
    /// first receives the answer.
    RequestDelayed(RequestMatcher),
}

const fn held_before(method: &'static str, end: &'static str) -> RequestMatcher {
    RequestMatcher { method, end, hold_point: HoldPoint::Before }
}

const fn held_after(method: &'static str, end: &'static str) -> RequestMatcher {
    RequestMatcher { method, end, hold_point: HoldPoint::After }
}

/// Instants at which servers are paused.
pub(crate) const PAUSES: [InterruptionPoint; 16] = [
    InterruptionPoint::Any,
    InterruptionPoint::Any,
    InterruptionPoint::Any,
    InterruptionPoint::RequestSent(held_before("PUT", RECORD)),
    InterruptionPoint::RequestSent(held_after("PUT", RECORD)),
    InterruptionPoint::RequestSent(held_before("PUT", ARCHIVE)),
    InterruptionPoint::BeforeRetry(held_before("PUT", RECORD)),
    InterruptionPoint::BeforeRetry(held_before("PUT", ARCHIVE)),
    InterruptionPoint::BeforeRetry(held_before("PUT", ARCHIVE)),
    InterruptionPoint::BeforeRetry(held_before("PUT", LOG)),
    // The bucket has answered that there is no record. The server receives the answer when there is one.
    InterruptionPoint::RequestDelayed(held_after("HEAD", RECORD)),
    InterruptionPoint::RequestDelayed(held_after("HEAD", RECORD)),
    InterruptionPoint::RequestDelayed(held_before("PUT", RECORD)),
    // Other files follow at once.
    InterruptionPoint::RequestDelayed(held_after("PUT", ARCHIVE)),
    InterruptionPoint::RequestDelayed(held_after("PUT", ARCHIVE)),
    InterruptionPoint::RequestDelayed(held_after("PUT", LIST)),
];

/// Instants at which servers are killed.
pub(crate) const KILLS: [InterruptionPoint; 16] = [
    InterruptionPoint::Any,
    InterruptionPoint::Any,
    InterruptionPoint::Any,
    InterruptionPoint::Any,
    InterruptionPoint::Any,
    InterruptionPoint::Any,
    InterruptionPoint::Any,
    InterruptionPoint::Any,
    InterruptionPoint::RequestSent(held_before("PUT", RECORD)),
    InterruptionPoint::RequestSent(held_before("PUT", RECORD)),
    InterruptionPoint::RequestSent(held_after("PUT", RECORD)),
    InterruptionPoint::RequestSent(held_after("PUT", RECORD)),
    InterruptionPoint::RequestSent(held_before("PUT", ARCHIVE)),
    InterruptionPoint::RequestSent(held_after("PUT", ARCHIVE)),
    InterruptionPoint::RequestSent(held_after("PUT", LOG)),
    InterruptionPoint::RequestSent(held_after("PUT", LIST)),
];

/// Pseudo-random numbers, the same for the same seed.
pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    pub(crate) fn from_environment() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = std::env::var(SEED_VARIABLE).map_or(now.as_secs(), |seed| seed.parse().unwrap());
        log_line(&format!("{SEED_VARIABLE}={seed}"));
        Self(seed)
    }

    /// A number below another.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % u64::try_from(end).unwrap()).unwrap()
    }

    /// A time shorter than another.
    pub(crate) fn time(&mut self, end: Duration) -> Duration {
        let micros = self.below(usize::try_from(end.as_micros()).unwrap());
        Duration::from_micros(u64::try_from(micros).unwrap())
    }

    pub(crate) fn shuffled<T: Copy>(&mut self, items: &[T]) -> Vec<T> {
        let mut items = items.to_vec();
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
        items
    }
}
