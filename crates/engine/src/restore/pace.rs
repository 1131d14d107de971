//! How many requests the API server gets at a time, and how many bytes of items are in memory.
//!
//! The number of requests starts at a limit and is halved whenever the API server says that it has too
//! much to do; with each round of requests that went well it grows again by one. Whoever waits for
//! another item holds no place here.
//!
//! Most items are small, and many of them are worked on side by side. Of large ones there is only
//! [room](Pace::room) for a few.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::cluster::{Error, Result};

/// How often a request is made that the API server is too busy for, or that did not reach it.
const TRIES: u32 = 12;
/// The pause before the second try; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How large the items in work may be together, in KiB. Each is in memory several times over: as it
/// was stored, as JSON before and after the actions, as a request and as its answer.
const ROOM: u32 = 8 << 10;

/// A limit that learns.
#[derive(Debug)]
pub(super) struct Pace {
    room: Semaphore,
    places: Semaphore,
    state: Mutex<State>,
}

/// How many places there are, and should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    limit: usize,
    highest: usize,
    /// Requests that went well since the last change.
    good: usize,
    /// Places that should go but are taken.
    owed: usize,
}

/// What follows for the places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Same,
    More,
    Fewer(usize),
}

impl State {
    fn after_good(&mut self) -> Change {
        self.good += 1;
        if self.good < self.limit || self.limit >= self.highest {
            return Change::Same;
        }
        self.good = 0;
        self.limit += 1;
        Change::More
    }

    fn after_busy(&mut self) -> Change {
        self.good = 0;
        let limit = (self.limit / 2).max(1);
        let fewer = self.limit - limit;
        self.limit = limit;
        if fewer == 0 { Change::Same } else { Change::Fewer(fewer) }
    }
}

impl Pace {
    pub(super) fn new(highest: usize) -> Self {
        let highest = highest.max(1);
        Self {
            room: Semaphore::new(ROOM as usize),
            places: Semaphore::new(highest),
            state: Mutex::new(State { limit: highest, highest, good: 0, owed: 0 }),
        }
    }

    /// Waits for room for an item of so many bytes, which is free again when this is dropped. One that
    /// is larger than all the room has it for itself.
    ///
    /// It must be asked for before anything that another item may wait for.
    pub(super) async fn room(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let wanted = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(ROOM).clamp(1, ROOM);
        self.room.acquire_many(wanted).await.ok()
    }

    /// Makes a request, again where the API server is too busy or did not answer. So it must be one
    /// that may be made twice.
    pub(super) async fn ask<T, F>(&self, mut request: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut pause = FIRST_PAUSE;
        for _ in 1..TRIES {
            match self.ask_once(&mut request).await {
                Err(error) if may_pass(&error) => {
                    tracing::debug!("asking again in {pause:?}: {error}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                outcome => return outcome,
            }
        }
        self.ask_once(&mut request).await
    }

    async fn ask_once<T, F>(&self, request: &mut impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let place = self.places.acquire().await;
        let outcome = request().await;
        let change = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            match &outcome {
                Err(error) if error.is_busy() => state.after_busy(),
                _ => state.after_good(),
            }
        };
        if let Ok(place) = place {
            self.leave(place, change);
        }
        outcome
    }

    /// Gives a place back, unless there should be fewer: one that is given back goes to who waits for
    /// it, and cannot be taken away any more.
    fn leave(&self, place: SemaphorePermit<'_>, change: Change) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match change {
            Change::Same => {}
            Change::More if state.owed > 0 => state.owed -= 1,
            Change::More => self.places.add_permits(1),
            Change::Fewer(count) => state.owed += count,
        }
        if state.owed > 0 {
            state.owed -= 1;
            place.forget();
        }
    }
}

/// Whether a request may be made again with hope.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Refused { code, .. } => matches!(code, 429 | 502 | 503 | 504),
        Error::Unreachable(_) | Error::Silent(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn busy_halves_and_good_rounds_add_one() {
        let mut state = State { limit: 8, highest: 8, good: 0, owed: 0 };
        assert_eq!(state.after_good(), Change::Same, "it is at its highest");
        assert_eq!(state.after_busy(), Change::Fewer(4));
        assert_eq!(state.after_busy(), Change::Fewer(2));
        assert_eq!(state.after_busy(), Change::Fewer(1));
        assert_eq!(state.after_busy(), Change::Same, "one is the least");
        assert_eq!(state.after_good(), Change::More);
        assert_eq!([state.after_good(), state.after_good()], [Change::Same, Change::More]);
        assert_eq!(state.limit, 3);
    }

    #[tokio::test]
    async fn there_is_room_for_many_small_items_and_few_large_ones() {
        const MIB: usize = 1 << 20;
        let pace = Pace::new(1);
        let small: Vec<_> = (0..96).map(|_| pace.room(4000).now_or_never()).collect();
        assert!(small.iter().all(Option::is_some));
        drop(small);
        let large: Vec<_> = (0..8).map(|_| pace.room(MIB).now_or_never()).collect();
        assert!(large.iter().all(Option::is_some));
        assert!(pace.room(1).now_or_never().is_none(), "it is full");
        drop(large);
        let huge = pace.room(100 * MIB).now_or_never();
        assert!(huge.is_some() && pace.room(1).now_or_never().is_none());
        drop(huge);
        assert!(pace.room(usize::MAX).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_server_gets_fewer_requests_at_a_time_and_all_are_made() {
        let pace = Pace::new(16);
        let (now, peak, calls) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let request = async || {
            let at_once = now.fetch_add(1, Ordering::Relaxed) + 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
            now.fetch_sub(1, Ordering::Relaxed);
            // The first sixteen find it busy.
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
        let all = (0..40).map(|_| pace.ask(request));
        let outcomes = futures::future::join_all(all).await;
        assert!(outcomes.iter().all(Result::is_ok));
        assert!(peak.load(Ordering::Relaxed) < 16, "{peak:?}");
    }
}
