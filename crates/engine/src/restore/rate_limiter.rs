//! Limits the concurrent requests to the API server, and the bytes of items in memory.
//!
//! The number of requests starts at a limit and is halved whenever the API server reports that it is overloaded; each
//! round of successful requests increases it by one. A task that waits for another item occupies no slot here.
//!
//! Most items are small, and many of them are processed concurrently. Large items are limited to a few by
//! [`RateLimiter::reserve_memory`].

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::backoff::doubling;
use crate::cluster::{Error, Result};

/// Retries if the API server is too busy or cannot be reached.
const RETRIES: ExponentialBuilder =
    doubling(Duration::from_millis(100), Duration::from_secs(10)).with_max_times(11);

/// Maximum total size of the items in progress, in KiB. Each is in memory several times: as stored, as JSON before and
/// after the actions, as a request and as its answer.
const MEMORY_KIB: u32 = 8 << 10;

/// An adaptive limit.
#[derive(Debug)]
pub(super) struct RateLimiter {
    memory: Semaphore,
    permits: Semaphore,
    state: Mutex<State>,
}

/// Actual and intended number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    limit: usize,
    highest: usize,
    /// Successful requests since the last change.
    good: usize,
    /// Slots to remove that are still in use.
    permits_to_remove: usize,
}

/// Change of the number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitChange {
    Same,
    More,
    Fewer(usize),
}

impl State {
    fn after_success(&mut self) -> LimitChange {
        self.good += 1;
        if self.good < self.limit || self.limit >= self.highest {
            return LimitChange::Same;
        }
        self.good = 0;
        self.limit += 1;
        LimitChange::More
    }

    fn after_busy(&mut self) -> LimitChange {
        self.good = 0;
        let limit = (self.limit / 2).max(1);
        let fewer = self.limit - limit;
        self.limit = limit;
        if fewer == 0 { LimitChange::Same } else { LimitChange::Fewer(fewer) }
    }
}

impl RateLimiter {
    pub(super) fn new(highest: usize) -> Self {
        let highest = highest.max(1);
        Self {
            memory: Semaphore::new(MEMORY_KIB as usize),
            permits: Semaphore::new(highest),
            state: Mutex::new(State { limit: highest, highest, good: 0, permits_to_remove: 0 }),
        }
    }

    /// Waits for memory for an item of this size, which is released on drop. An item that is larger than the total gets
    /// all of it.
    ///
    /// Must be called before acquiring anything that another item may wait for.
    pub(super) async fn reserve_memory(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(MEMORY_KIB).clamp(1, MEMORY_KIB);
        self.memory.acquire_many(kib).await.ok()
    }

    /// Sends a request, and retries if the API server is too busy or does not answer. The request must be
    /// idempotent.
    pub(super) async fn send<T, F>(&self, mut request: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let send = || self.send_once(request());
        send.retry(RETRIES)
            .when(is_retryable)
            .notify(|error, pause| tracing::debug!("retrying in {pause:.1?}: {error}"))
            .await
    }

    async fn send_once<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let permit = self.permits.acquire().await;
        let outcome = request.await;
        let change = {
            let mut state = self.state.lock();
            match &outcome {
                Err(error) if error.is_throttled() => state.after_busy(),
                _ => state.after_success(),
            }
        };
        if let Ok(permit) = permit {
            self.release(permit, change);
        }
        outcome
    }

    /// Releases a slot, unless the number of slots is to shrink: a released slot passes to the next waiter at once and
    /// cannot be removed any more.
    fn release(&self, permit: SemaphorePermit<'_>, change: LimitChange) {
        let mut state = self.state.lock();
        match change {
            LimitChange::Same => {}
            LimitChange::More if state.permits_to_remove > 0 => state.permits_to_remove -= 1,
            LimitChange::More => self.permits.add_permits(1),
            LimitChange::Fewer(count) => state.permits_to_remove += count,
        }
        if state.permits_to_remove > 0 {
            state.permits_to_remove -= 1;
            permit.forget();
        }
    }
}

/// True if a retry may succeed.
fn is_retryable(error: &Error) -> bool {
    match error {
        Error::Refused { code, .. } => matches!(code, 429 | 502 | 503 | 504),
        Error::Unreachable(_) | Error::Timeout(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn busy_halves_the_limit_and_success_adds_one() {
        let mut state = State { limit: 8, highest: 8, good: 0, permits_to_remove: 0 };
        assert_eq!(state.after_success(), LimitChange::Same, "it is at its highest");
        assert_eq!(state.after_busy(), LimitChange::Fewer(4));
        assert_eq!(state.after_busy(), LimitChange::Fewer(2));
        assert_eq!(state.after_busy(), LimitChange::Fewer(1));
        assert_eq!(state.after_busy(), LimitChange::Same, "one is the least");
        assert_eq!(state.after_success(), LimitChange::More);
        assert_eq!(
            [state.after_success(), state.after_success()],
            [LimitChange::Same, LimitChange::More]
        );
        assert_eq!(state.limit, 3);
    }

    #[tokio::test]
    async fn memory_fits_many_small_items_or_few_large_ones() {
        const MIB: usize = 1 << 20;
        let limiter = RateLimiter::new(1);
        let small: Vec<_> = (0..96).map(|_| limiter.reserve_memory(4000).now_or_never()).collect();
        assert!(small.iter().all(Option::is_some));
        drop(small);
        let large: Vec<_> = (0..8).map(|_| limiter.reserve_memory(MIB).now_or_never()).collect();
        assert!(large.iter().all(Option::is_some));
        assert!(limiter.reserve_memory(1).now_or_never().is_none(), "it is full");
        drop(large);
        let huge = limiter.reserve_memory(100 * MIB).now_or_never();
        assert!(huge.is_some() && limiter.reserve_memory(1).now_or_never().is_none());
        drop(huge);
        assert!(limiter.reserve_memory(usize::MAX).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn busy_server_gets_fewer_concurrent_requests_and_all_are_sent() {
        let limiter = RateLimiter::new(16);
        let (now, peak, calls) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let request = async || {
            let at_once = now.fetch_add(1, Ordering::Relaxed) + 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
            now.fetch_sub(1, Ordering::Relaxed);
            // The first sixteen requests find the server busy.
            if calls.fetch_add(1, Ordering::Relaxed) < 16 {
                return Err(Error::Refused {
                    code: 429,
                    reason: "TooManyRequests".into(),
                    message: String::new(),
                });
            }
            peak.fetch_max(at_once, Ordering::Relaxed);
            Ok(())
        };
        let all = (0..40).map(|_| limiter.send(request));
        let outcomes = futures::future::join_all(all).await;
        assert!(outcomes.iter().all(Result::is_ok));
        assert!(peak.load(Ordering::Relaxed) < 16, "{peak:?}");
    }
}
