//! Pauses between attempts, which double from the first to the longest.
//!
//! A call that is repeated because it failed uses [`Retryable`](backon::Retryable) with [`doubling`]. A loop that waits
//! for more than a success, or ends during a pause, uses [`Backoff`].

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::sleep;

/// Pauses without end; the caller adds a limit.
pub const fn doubling(first: Duration, longest: Duration) -> ExponentialBuilder {
    ExponentialBuilder::new().with_min_delay(first).with_max_delay(longest).without_max_times()
}

/// Pauses of a loop.
#[derive(Debug)]
pub struct Backoff {
    pauses: ExponentialBackoff,
    longest: Duration,
}

impl Backoff {
    /// Starts with the first pause.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { pauses: doubling(first, longest).build(), longest }
    }

    /// Returns the next pause.
    pub fn next_pause(&mut self) -> Duration {
        self.pauses.next().unwrap_or(self.longest)
    }

    /// Waits for the next pause.
    pub async fn wait(&mut self) {
        sleep(self.next_pause()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(3));
        let pauses: Vec<u128> = (0..5).map(|_| backoff.next_pause().as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 3000, 3000]);
    }
}
