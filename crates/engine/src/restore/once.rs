//! Each item once, whoever wants it.
//!
//! An item may be wanted by its turn and by items that need it. Who comes first does the work; an
//! item that needs it waits. Items that need each other in a circle do not wait for ever: the one
//! whose waiting would close the circle goes on as if the other were done.
//!
//! An item that must be shown to an action a second time is so alone ([`Once::alone`]).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_plugin::ResourceIdentifier;
use tokio::sync::watch;

/// Which items are being worked on, or done.
#[derive(Debug, Default)]
pub(super) struct Once {
    inner: Mutex<Inner>,
    /// Held by who does something again.
    again: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    states: HashMap<ResourceIdentifier, State>,
    /// Who waits for what.
    waits: HashMap<ResourceIdentifier, ResourceIdentifier>,
}

#[derive(Debug)]
enum State {
    Working(watch::Receiver<()>),
    Done {
        /// Whether it is in the cluster now.
        exists: bool,
    },
}

/// Whose turn it is.
pub(super) enum Turn<'a> {
    /// Ours.
    Mine(Working<'a>),
    /// Somebody else's, who is done, or need not be waited for.
    Done,
}

/// An item that is being worked on. It is done when this is dropped.
pub(super) struct Working<'a> {
    once: &'a Once,
    id: ResourceIdentifier,
    /// Who waits until it is done, because it is done for that one.
    needed_by: Option<Box<ResourceIdentifier>>,
    is_left: bool,
    exists: bool,
    _done: watch::Sender<()>,
}

impl Once {
    /// Takes an item, or waits until whoever has it is done with it. Without somebody who needs it
    /// there is no reason to wait.
    pub(super) async fn take(
        &self,
        id: &ResourceIdentifier,
        needed_by: Option<&ResourceIdentifier>,
    ) -> Turn<'_> {
        loop {
            let mut done = match self.begin(id, needed_by) {
                Begun::Turn(turn) => return turn,
                Begun::Wait(done) => done,
            };
            // An error means that the sender is gone, which is the end that is waited for.
            let _ = done.changed().await;
            if let Some(needed_by) = needed_by {
                self.lock().waits.remove(needed_by);
            }
        }
    }

    /// Whether an item is done and in the cluster.
    pub(super) fn exists(&self, id: &ResourceIdentifier) -> bool {
        matches!(self.lock().states.get(id), Some(State::Done { exists: true }))
    }

    /// Waits until nobody else does something again, and keeps it so.
    pub(super) async fn alone(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.again.lock().await
    }

    fn begin(&self, id: &ResourceIdentifier, needed_by: Option<&ResourceIdentifier>) -> Begun<'_> {
        let mut inner = self.lock();
        match inner.states.get(id) {
            None => {
                let (sender, receiver) = watch::channel(());
                inner.states.insert(id.clone(), State::Working(receiver));
                // Who has an item done for itself waits for it as well, and must not be waited for.
                if let Some(needed_by) = needed_by {
                    inner.waits.insert(needed_by.clone(), id.clone());
                }
                let (id, needed_by) = (id.clone(), needed_by.cloned().map(Box::new));
                Begun::Turn(Turn::Mine(Working {
                    once: self,
                    id,
                    needed_by,
                    is_left: false,
                    exists: false,
                    _done: sender,
                }))
            }
            Some(State::Done { .. }) => Begun::Turn(Turn::Done),
            Some(State::Working(done)) => match needed_by {
                Some(needed_by) if !inner.leads_to(id, needed_by) => {
                    let done = done.clone();
                    inner.waits.insert(needed_by.clone(), id.clone());
                    Begun::Wait(done)
                }
                _ => Begun::Turn(Turn::Done),
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Begun<'a> {
    Turn(Turn<'a>),
    Wait(watch::Receiver<()>),
}

impl Inner {
    /// Whether an item waits, maybe through others, for another. No item waits for two, and no
    /// circle is ever closed, so that this ends.
    fn leads_to(&self, from: &ResourceIdentifier, to: &ResourceIdentifier) -> bool {
        let mut next = Some(from);
        while let Some(id) = next {
            if id == to {
                return true;
            }
            next = self.waits.get(id);
        }
        false
    }
}

impl Working<'_> {
    /// Notes that the item is in the cluster.
    pub(super) fn exists(&mut self) {
        self.exists = true;
    }

    /// Leaves the item as if it had never been taken: what has no turn of its own may still be needed.
    pub(super) fn leave(mut self) {
        self.is_left = true;
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut inner = self.once.lock();
        if let Some(needed_by) = &self.needed_by {
            inner.waits.remove(&**needed_by);
        }
        if self.is_left {
            inner.states.remove(&self.id);
        } else {
            inner.states.insert(self.id.clone(), State::Done { exists: self.exists });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use futures::future::join;

    fn id(name: &str) -> ResourceIdentifier {
        ResourceIdentifier {
            group: String::new(),
            resource: "things".into(),
            namespace: String::new(),
            name: name.into(),
        }
    }

    #[tokio::test]
    async fn who_needs_an_item_waits_for_it_and_who_passes_by_does_not() {
        let once = Once::default();
        let Turn::Mine(mut working) = once.take(&id("a"), None).await else { panic!() };
        assert!(matches!(once.take(&id("a"), None).now_or_never(), Some(Turn::Done)));
        let (a, b) = (id("a"), id("b"));
        let mut waiting = Box::pin(once.take(&a, Some(&b)));
        assert!((&mut waiting).now_or_never().is_none());
        assert!(!once.exists(&a));
        working.exists();
        drop(working);
        assert!(once.exists(&a));
        assert!(matches!(waiting.await, Turn::Done));
        assert!(matches!(once.take(&id("a"), Some(&id("c"))).now_or_never(), Some(Turn::Done)));
    }

    #[tokio::test]
    async fn an_item_that_was_left_can_be_taken_by_who_needs_it() {
        let once = Once::default();
        let Turn::Mine(working) = once.take(&id("a"), None).await else { panic!() };
        let (a, b) = (id("a"), id("b"));
        let mut waiting = Box::pin(once.take(&a, Some(&b)));
        assert!((&mut waiting).now_or_never().is_none());
        working.leave();
        let Turn::Mine(working) = waiting.await else { panic!("nobody has done it") };
        drop(working);
        assert!(!once.exists(&a));
        assert!(matches!(once.take(&id("a"), None).now_or_never(), Some(Turn::Done)));
    }

    #[tokio::test]
    async fn an_item_that_is_done_for_another_does_not_wait_for_that_one() {
        let once = Once::default();
        let (a, b, c) = (id("a"), id("b"), id("c"));
        let Turn::Mine(first) = once.take(&a, None).await else { panic!() };
        let Turn::Mine(second) = once.take(&b, Some(&a)).await else { panic!() };
        let Turn::Mine(third) = once.take(&c, Some(&b)).await else { panic!() };
        for needed in [&a, &b, &c] {
            let turn = once.take(needed, Some(&c)).now_or_never();
            assert!(matches!(turn, Some(Turn::Done)), "{needed} waits for this one itself");
        }
        drop((third, second));
        // Once it is done, the others may be waited for again.
        let other = id("d");
        assert!(once.take(&a, Some(&other)).now_or_never().is_none());
        drop(first);
    }

    #[tokio::test]
    async fn a_circle_does_not_wait_for_itself() {
        let once = Once::default();
        let work = async |own: &str, needs: &str| {
            let Turn::Mine(_working) = once.take(&id(own), None).await else { return };
            tokio::task::yield_now().await;
            once.take(&id(needs), Some(&id(own))).await;
        };
        // Three in a circle, side by side, and one that needs itself.
        join(join(work("a", "b"), work("b", "c")), join(work("c", "a"), work("d", "d"))).await;
    }
}
