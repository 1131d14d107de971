//! How often one plugin is asked.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bowline_plugin::Name;
use tokio::time::{Instant, sleep_until};

/// The shortest time between two polls of one plugin: 50 in a second.
const BETWEEN: Duration = Duration::from_millis(20);
/// How many plugins are remembered; there are a few.
const REMEMBERED: usize = 256;

/// Keeps many operations from asking one plugin all at once. Shared by all runs.
#[derive(Debug, Default)]
pub struct Rate {
    next: Mutex<HashMap<Name, Instant>>,
}

impl Rate {
    /// Waits for a turn to ask a plugin.
    pub async fn turn(&self, plugin: &Name) {
        let turn = self.take(plugin, Instant::now());
        sleep_until(turn).await;
    }

    /// The next free time.
    fn take(&self, plugin: &Name, now: Instant) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.len() >= REMEMBERED {
            next.retain(|_, free| *free > now);
        }
        let free = next.entry(plugin.clone()).or_insert(now);
        let turn = (*free).max(now);
        *free = turn + BETWEEN;
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_plugin_is_asked_fifty_times_a_second_and_others_do_not_wait_for_it() {
        let (rate, now) = (Rate::default(), Instant::now());
        let [a, b] = ["x.io/a", "x.io/b"].map(|name| name.parse::<Name>().unwrap());
        let turns: Vec<_> = (0..51).map(|_| rate.take(&a, now)).collect();
        assert_eq!(turns[0], now);
        assert_eq!(turns[50] - turns[0], Duration::from_secs(1));
        assert_eq!(rate.take(&b, now), now);
        let later = now + Duration::from_mins(1);
        assert_eq!(rate.take(&a, later), later, "turns that nobody took are not saved up");
    }
}
