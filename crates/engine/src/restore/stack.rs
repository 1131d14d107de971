//! A larger stack for objects with deeply nested values.
//!
//! All code that traverses such an object, even to drop it, is recursive: `serde_json`, the actions, the comparison
//! with the object in the cluster. The API server accepts objects of several thousand levels, and the stack of a
//! thread is small. So all work on such an item happens on a stack of sufficient size. Most items are not nested
//! deeply and do not need it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bowline_plugin::nesting;
use futures::future::BoxFuture;

/// Stack for the work on an item, apart from its nesting.
const BASE_STACK_BYTES: usize = 4 << 20;

/// Continues the work on an item of this nesting depth with enough stack.
pub(super) async fn with_stack_for(levels: usize, work: BoxFuture<'_, ()>) {
    if levels <= nesting::SERDE_MAX_LEVELS {
        return work.await;
    }
    let size = BASE_STACK_BYTES + nesting::stack_for(levels);
    GrownStack { work: Some(work), size }.await;
}

/// Work that is polled and dropped on a stack of its own.
struct GrownStack<'a> {
    work: Option<BoxFuture<'a, ()>>,
    size: usize,
}

impl Future for GrownStack<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let size = self.size;
        let Some(work) = &mut self.work else { return Poll::Ready(()) };
        stacker::grow(size, || work.as_mut().poll(context))
    }
}

impl Drop for GrownStack<'_> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            stacker::grow(self.size, || drop(work));
        }
    }
}
