//! Limits an upload to a number of bytes per second.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::stop_signal::StopSignal;

/// Interval at which a wait checks whether the job has to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Limits the rate of bytes. All threads of an upload share one limiter.
#[derive(Debug)]
pub(crate) struct ByteRateLimiter {
    per_second: Option<NonZeroU64>,
    /// Time at which all requested bytes have passed.
    free_at: Mutex<Option<Instant>>,
}

impl ByteRateLimiter {
    /// `None` means no limit.
    pub(crate) fn new(per_second: Option<NonZeroU64>) -> Self {
        Self { per_second, free_at: Mutex::default() }
    }

    /// Returns when these bytes may have passed, or when the job has to stop. Blocks.
    pub(crate) fn wait_for(&self, bytes: u64, stop: &StopSignal) {
        let Some(per_second) = self.per_second else { return };
        let until = {
            let mut free = self.free_at.lock();
            let until = transfer_end(*free, Instant::now(), bytes, per_second);
            *free = Some(until);
            until
        };
        while !stop.is_set() {
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            std::thread::sleep(remaining.min(STOP_POLL_INTERVAL));
        }
    }
}

/// The time at which bytes requested now have passed, after all earlier ones. Idle time is not
/// credited.
fn transfer_end(
    free_at: Option<Instant>,
    now: Instant,
    bytes: u64,
    per_second: NonZeroU64,
) -> Instant {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(per_second.get());
    let duration = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    let begin = free_at.map_or(now, |free| free.max(now));
    // At most some centuries, which fit.
    begin.checked_add(duration).unwrap_or(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_queue_up_and_idle_time_is_not_credited() {
        let per_second = NonZeroU64::new(1000).unwrap();
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let first = transfer_end(None, now, 2000, per_second);
        assert_eq!(first, now + 2 * second);
        assert_eq!(transfer_end(Some(first), now, 500, per_second), now + second * 5 / 2);
        let later = now + 60 * second;
        assert_eq!(transfer_end(Some(first), later, 500, per_second), later + second / 2);
        assert_eq!(transfer_end(None, now, 0, per_second), now);
    }

    #[test]
    fn wait_ends_when_the_work_is_stopped() {
        let limiter = ByteRateLimiter::new(NonZeroU64::new(1));
        let stop = StopSignal::default();
        stop.cancel();
        let began = Instant::now();
        limiter.wait_for(1_000_000, &stop);
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
