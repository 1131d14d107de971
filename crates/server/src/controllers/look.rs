//! For how long objects have stood still.
//!
//! What cannot be begun is tried again, and not for ever, if others wait for it. An object that nobody
//! has changed since tells for how long it has been tried.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::{Resource, ResourceExt as _};
use tokio::time::Instant;

/// How long an object must stand still.
const STILL: Duration = Duration::from_secs(15);
/// When to look again at one that moves.
const AGAIN: Duration = Duration::from_secs(30);
/// How many objects are remembered before those that nobody asks for are forgotten, and when nobody
/// asks for one any more.
const REMEMBERED: usize = 1000;
const FORGOTTEN: Duration = Duration::from_hours(1);

/// What was seen of objects, by their uids.
#[derive(Debug, Default)]
pub(super) struct Looks(Mutex<HashMap<String, Look>>);

/// An object that has not changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Look {
    version: String,
    since: Instant,
}

/// Whether an object moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It does, or that is not known yet: look again after this long.
    Moves(Duration),
    /// It has not for this long.
    Still(Duration),
}

impl Looks {
    /// Looks at an object, and remembers it.
    pub(super) fn look<K: Resource<DynamicType = ()>>(&self, object: &K) -> Life {
        let now = Instant::now();
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if looks.len() >= REMEMBERED {
            looks.retain(|_, look| now.duration_since(look.since) < FORGOTTEN);
        }
        let uid = object.uid().unwrap_or_default();
        let version = object.resource_version().unwrap_or_default();
        let (look, life) = decide(looks.get(&uid), version, now);
        looks.insert(uid, look);
        life
    }
}

fn decide(before: Option<&Look>, version: String, now: Instant) -> (Look, Life) {
    match before {
        Some(before) if before.version == version => {
            let still = now.duration_since(before.since);
            let rest = STILL.saturating_sub(still);
            let life = if rest.is_zero() { Life::Still(still) } else { Life::Moves(rest) };
            (before.clone(), life)
        }
        Some(_) => (Look { version, since: now }, Life::Moves(AGAIN)),
        None => (Look { version, since: now }, Life::Moves(STILL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_still_for_a_while_is_taken_for_dead() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let seconds = Duration::from_secs;
        let mut look = None;
        for (at, version, expected) in [
            (0, "1", Life::Moves(seconds(15))),
            (5, "1", Life::Moves(seconds(10))),
            (14, "2", Life::Moves(seconds(30))),
            (28, "2", Life::Moves(seconds(1))),
            (29, "3", Life::Moves(seconds(30))),
            (44, "3", Life::Still(seconds(15))),
            (90, "3", Life::Still(seconds(61))),
            (91, "4", Life::Moves(seconds(30))),
        ] {
            let (next, life) = decide(look.as_ref(), version.to_owned(), after(at));
            assert_eq!(life, expected, "at {at}");
            look = Some(next);
        }
    }
}
