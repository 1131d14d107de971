//! Limit on how often one plugin is polled.

use std::collections::HashMap;
use std::time::Duration;

use bowline_plugin::Name;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Minimum time between two polls of one plugin: 50 per second.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of plugins to remember; there are only a few.
const MAX_REMEMBERED_PLUGINS: usize = 256;

/// Prevents many operations from polling one plugin at once. Shared by all runs.
#[derive(Debug, Default)]
pub struct PollRateLimiter {
    next: Mutex<HashMap<Name, Instant>>,
}

impl PollRateLimiter {
    /// Waits until a plugin may be polled.
    pub async fn wait(&self, plugin: &Name) {
        let at = self.reserve(plugin, Instant::now());
        sleep_until(at).await;
    }

    /// Reserves the next free time.
    fn reserve(&self, plugin: &Name, now: Instant) -> Instant {
        let mut next = self.next.lock();
        if next.len() >= MAX_REMEMBERED_PLUGINS {
            next.retain(|_, free| *free > now);
        }
        let free = next.entry(plugin.clone()).or_insert(now);
        let reserved = (*free).max(now);
        *free = reserved + MIN_POLL_INTERVAL;
        reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_limited_to_fifty_per_second_for_each_plugin() {
        let (limiter, now) = (PollRateLimiter::default(), Instant::now());
        let [a, b] = ["x.io/a", "x.io/b"].map(|name| name.parse::<Name>().unwrap());
        let reserved: Vec<_> = (0..51).map(|_| limiter.reserve(&a, now)).collect();
        assert_eq!(reserved[0], now);
        assert_eq!(reserved[50] - reserved[0], Duration::from_secs(1));
        assert_eq!(limiter.reserve(&b, now), now);
        let later = now + Duration::from_mins(1);
        assert_eq!(limiter.reserve(&a, later), later, "turns that nobody took are not saved up");
    }
}
