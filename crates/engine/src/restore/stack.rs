//! A larger stack for objects whose values are nested deeply.
//!
//! Whoever walks through such an object, and be it to drop it, does so by recursion: `serde_json`, the
//! actions, the comparison with what is in the cluster. The API server takes objects of some thousand
//! levels, and the stack of a thread is small. So everything that is done with such an item happens on a
//! stack that fits it. Of most items nothing is deep, and nothing is done for them.

use std::pin::Pin;
use std::task::{Context, Poll};

use bowline_plugin::nesting;
use futures::future::BoxFuture;

/// What the work on an item takes beside its levels.
const BASE_STACK_BYTES: usize = 4 << 20;

/// Lets the work on an item whose values have so many levels go on with enough stack.
pub(super) async fn with_stack_for(levels: usize, work: BoxFuture<'_, ()>) {
    if levels <= nesting::SERDE_MAX_LEVELS {
        return work.await;
    }
    let size = BASE_STACK_BYTES + nesting::stack_for(levels);
    GrownStack { work: Some(work), size }.await;
}

/// Work that is polled, and dropped, on a stack of its own.
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
