//! Time for which objects have been unchanged.
//!
//! A start that fails is retried, but not forever if others wait for it. The time for which an object has been
//! unchanged shows how long it has been retried.

use std::collections::HashMap;
use std::time::Duration;

use kube::{Resource, ResourceExt as _};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Time after which an object counts as unchanged.
const UNCHANGED_THRESHOLD: Duration = Duration::from_secs(15);
/// Pause before checking an object that changes.
const CHANGED_RECHECK: Duration = Duration::from_secs(30);
/// Number of objects that are remembered before unused ones are dropped, and the time after which one counts as unused.
const MAX_TRACKED: usize = 1000;
const TRACKING_TTL: Duration = Duration::from_hours(1);

/// Observations of objects, by uid.
#[derive(Debug, Default)]
pub(super) struct StalenessTracker(Mutex<HashMap<String, VersionObservation>>);

/// Version of an object, and the time since which it is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
struct VersionObservation {
    version: String,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Staleness {
    /// Changing, or not known yet: check again after this time.
    Changing(Duration),
    /// Unchanged for this time.
    Unchanged(Duration),
}

impl StalenessTracker {
    /// Observes an object, and remembers its version.
    pub(super) fn observe<K: Resource<DynamicType = ()>>(&self, object: &K) -> Staleness {
        let now = Instant::now();
        let mut observations = self.0.lock();
        if observations.len() >= MAX_TRACKED {
            observations
                .retain(|_, observation| now.duration_since(observation.since) < TRACKING_TTL);
        }
        let uid = object.uid().unwrap_or_default();
        let version = object.resource_version().unwrap_or_default();
        let (observation, staleness) = decide(observations.get(&uid), version, now);
        observations.insert(uid, observation);
        staleness
    }
}

fn decide(
    before: Option<&VersionObservation>,
    version: String,
    now: Instant,
) -> (VersionObservation, Staleness) {
    match before {
        Some(before) if before.version == version => {
            let unchanged_for = now.duration_since(before.since);
            let rest = UNCHANGED_THRESHOLD.saturating_sub(unchanged_for);
            let staleness = if rest.is_zero() {
                Staleness::Unchanged(unchanged_for)
            } else {
                Staleness::Changing(rest)
            };
            (before.clone(), staleness)
        }
        Some(_) => {
            (VersionObservation { version, since: now }, Staleness::Changing(CHANGED_RECHECK))
        }
        None => {
            (VersionObservation { version, since: now }, Staleness::Changing(UNCHANGED_THRESHOLD))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_unchanged_only_after_the_threshold() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let seconds = Duration::from_secs;
        let mut observation = None;
        for (at, version, expected) in [
            (0, "1", Staleness::Changing(seconds(15))),
            (5, "1", Staleness::Changing(seconds(10))),
            (14, "2", Staleness::Changing(seconds(30))),
            (28, "2", Staleness::Changing(seconds(1))),
            (29, "3", Staleness::Changing(seconds(30))),
            (44, "3", Staleness::Unchanged(seconds(15))),
            (90, "3", Staleness::Unchanged(seconds(61))),
            (91, "4", Staleness::Changing(seconds(30))),
        ] {
            let (next, life) = decide(observation.as_ref(), version.to_owned(), after(at));
            assert_eq!(life, expected, "at {at}");
            observation = Some(next);
        }
    }
}
