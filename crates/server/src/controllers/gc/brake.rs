//! How many backups expire at once.
//!
//! Backups expire about as often as they are made. If suddenly many do, a clock may be wrong, or somebody has planted
//! them. So there are so many in an hour and no more; the rest follows later, and there is time to look.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What the limit is for.
const WINDOW: Duration = Duration::from_hours(1);

/// Counts the deletions that were asked for.
#[derive(Debug)]
pub(super) struct Brake {
    /// How many may be asked for in a window; none is no limit.
    limit: Option<usize>,
    asked: Mutex<VecDeque<Instant>>,
}

impl Brake {
    /// Zero is no limit.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: (limit > 0).then_some(limit), asked: Mutex::default() }
    }

    /// Takes the right to ask for one deletion, or says when to look again. `all` is how many Backups there are: where many
    /// are made, many expire.
    pub(super) fn take(&self, all: usize, now: Instant) -> Result<(), Duration> {
        let Some(limit) = self.limit else { return Ok(()) };
        let limit = limit.max(all / 10);
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        while asked.front().is_some_and(|at| now.duration_since(*at) >= WINDOW) {
            asked.pop_front();
        }
        if asked.len() < limit {
            asked.push_back(now);
            return Ok(());
        }
        let oldest = asked.front().map_or(WINDOW, |at| now.duration_since(*at));
        Err(WINDOW.saturating_sub(oldest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn so_many_expire_in_an_hour_and_the_rest_later() {
        let (brake, start) = (Brake::new(3), Instant::now());
        let take = |minutes: u64, all| brake.take(all, start + Duration::from_mins(minutes));
        assert!((0..3).all(|_| take(0, 20).is_ok()));
        assert_eq!(take(10, 20), Err(Duration::from_mins(50)));
        assert_eq!(take(60, 20), Ok(()));
        // A tenth of many is more than a few.
        assert!((0..9).all(|_| take(61, 100).is_ok()));
        assert!(take(61, 100).is_err());
        let unlimited = Brake::new(0);
        assert!((0..1000).all(|_| unlimited.take(0, start).is_ok()));
    }
}
