//! Limit on concurrent uploads, over all runs of a server.
//!
//! A single limit would let a location whose storage hangs hold every slot for hours, and the
//! uploads of healthy locations would time out before they start. So a location without a running
//! upload may always start one, whatever the others hold. See `docs/decisions/045`.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Slots for uploads.
#[derive(Debug)]
pub struct UploadSlots {
    limit: usize,
    queue: Mutex<Queue>,
    changed: Notify,
}

impl UploadSlots {
    /// Number of slots for all locations together, but at least one for each.
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), queue: Mutex::default(), changed: Notify::new() }
    }

    /// Waits for a slot, which is free again when the returned value is dropped.
    pub(super) async fn acquire<'a>(&'a self, location: &'a str) -> UploadSlot<'a> {
        let position = QueuePosition { slots: self, number: self.queue.lock().enqueue(location) };
        loop {
            // Before the check, so that a slot freed in between is not missed.
            let changed = self.changed.notified();
            if self.queue.lock().start(position.number, self.limit) {
                drop(position);
                return UploadSlot { slots: self, location };
            }
            changed.await;
        }
    }
}

/// Slot held by an upload of a location.
#[derive(Debug)]
pub(super) struct UploadSlot<'a> {
    slots: &'a UploadSlots,
    location: &'a str,
}

impl Drop for UploadSlot<'_> {
    fn drop(&mut self) {
        self.slots.queue.lock().finish(self.location);
        self.slots.changed.notify_waiters();
    }
}

/// Position in the queue, given up on drop.
struct QueuePosition<'a> {
    slots: &'a UploadSlots,
    number: u64,
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        self.slots.queue.lock().remove(self.number);
        // The next in the queue may start.
        self.slots.changed.notify_waiters();
    }
}

/// Running and waiting uploads. Pure.
#[derive(Debug, Default)]
struct Queue {
    /// Number of running uploads, by location.
    running: BTreeMap<String, usize>,
    /// Waiting uploads, in the order of arrival.
    waiting: VecDeque<(u64, String)>,
    next_number: u64,
}

impl Queue {
    fn enqueue(&mut self, location: &str) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.waiting.push_back((number, location.to_owned()));
        number
    }

    fn remove(&mut self, number: u64) {
        self.waiting.retain(|(waiting, _)| *waiting != number);
    }

    /// First waiting upload that may start: there is a free slot, or its location has no running
    /// upload.
    fn next(&self, limit: usize) -> Option<u64> {
        let has_room = self.running.values().sum::<usize>() < limit;
        let may_begin = |(_, location): &&(u64, String)| {
            has_room || !self.running.contains_key(location.as_str())
        };
        self.waiting.iter().find(may_begin).map(|(number, _)| *number)
    }

    /// Starts an upload if it is next.
    fn start(&mut self, number: u64, limit: usize) -> bool {
        if self.next(limit) != Some(number) {
            return false;
        }
        let location = self.waiting.iter().find(|(waiting, _)| *waiting == number);
        if let Some((_, location)) = location {
            *self.running.entry(location.clone()).or_default() += 1;
        }
        self.remove(number);
        true
    }

    fn finish(&mut self, location: &str) {
        if let Some(count) = self.running.get_mut(location) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(location);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queues uploads in order and starts those that may start; returns these.
    fn start_all(queue: &mut Queue, limit: usize, locations: &[&str]) -> Vec<u64> {
        for location in locations {
            queue.enqueue(location);
        }
        let mut started = Vec::new();
        while let Some(number) = queue.next(limit) {
            assert!(queue.start(number, limit));
            started.push(number);
        }
        started
    }

    #[test]
    fn hung_location_does_not_block_uploads_of_other_locations() {
        let mut queue = Queue::default();
        let stuck = start_all(&mut queue, 2, &["stuck"; 5]);
        assert_eq!(stuck, [0, 1], "no more than the limit of one location");
        assert_eq!(
            start_all(&mut queue, 2, &["good", "good", "other"]),
            [5, 7],
            "one of each other"
        );
        queue.finish("good");
        assert_eq!(start_all(&mut queue, 2, &[]), [6], "and then the next of it");
        queue.finish("stuck");
        assert_eq!(start_all(&mut queue, 2, &[]), Vec::<u64>::new(), "three still run");
        queue.finish("other");
        queue.finish("good");
        assert_eq!(start_all(&mut queue, 2, &[]), [2], "in the order in which they came");
    }

    #[test]
    fn slots_are_given_in_order_of_arrival() {
        let mut queue = Queue::default();
        assert_eq!(start_all(&mut queue, 1, &["a", "a", "a"]), [0]);
        assert!(!queue.start(1, 1), "there is none");
        queue.remove(1);
        queue.finish("a");
        assert!(queue.start(2, 1));
        assert!(!queue.start(2, 1), "it does not wait any more");
    }

    #[tokio::test]
    async fn a_slot_is_free_again_when_its_upload_is_dropped() {
        let slots = UploadSlots::new(0);
        let first = slots.acquire("a").await;
        let waiting = slots.acquire("a");
        tokio::pin!(waiting);
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        let _other = slots.acquire("b").await;
        drop(first);
        let _second = waiting.await;
        assert!(futures::poll!(std::pin::pin!(slots.acquire("a"))).is_pending());
        assert!(slots.queue.lock().waiting.is_empty(), "whoever gives up does not wait any more");
    }
}
