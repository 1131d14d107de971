//! Keeps an upload below a number of bytes per second.

use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::stop::Stop;

/// How long a wait goes on before it looks whether it has to end.
const LOOK: Duration = Duration::from_millis(50);

/// Lets bytes pass, at most so many in a second. All threads of an upload share one.
#[derive(Debug)]
pub(crate) struct Pace {
    per_second: Option<NonZeroU64>,
    /// When all that has been asked for has passed.
    free: Mutex<Option<Instant>>,
}

impl Pace {
    /// Without a number there is no limit.
    pub(crate) fn new(per_second: Option<NonZeroU64>) -> Self {
        Self { per_second, free: Mutex::default() }
    }

    /// Returns when these bytes may have passed, or when the work has to stop. Blocks.
    pub(crate) fn pass(&self, bytes: u64, stop: &Stop) {
        let Some(per_second) = self.per_second else { return };
        let until = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let until = after(*free, Instant::now(), bytes, per_second);
            *free = Some(until);
            until
        };
        while !stop.is_set() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}

/// When bytes have passed that come now, behind all that came before. Time in which nothing came is
/// not made up for.
fn after(free: Option<Instant>, now: Instant, bytes: u64, per_second: NonZeroU64) -> Instant {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(per_second.get());
    let long = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    let begin = free.map_or(now, |free| free.max(now));
    // Some centuries at most, for which there is room.
    begin.checked_add(long).unwrap_or(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_queue_up_and_idle_time_is_lost() {
        let per_second = NonZeroU64::new(1000).unwrap();
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let first = after(None, now, 2000, per_second);
        assert_eq!(first, now + 2 * second);
        assert_eq!(after(Some(first), now, 500, per_second), now + second * 5 / 2);
        let later = now + 60 * second;
        assert_eq!(after(Some(first), later, 500, per_second), later + second / 2);
        assert_eq!(after(None, now, 0, per_second), now);
    }

    #[test]
    fn a_wait_ends_when_the_work_has_to_stop() {
        let pace = Pace::new(NonZeroU64::new(1));
        let stop = Stop::default();
        stop.cancel();
        let began = Instant::now();
        pace.pass(1_000_000, &stop);
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
