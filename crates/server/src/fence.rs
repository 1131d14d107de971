//! Fence between a server and everything outside: closed as soon as its lease has ended.
//!
//! A server that has lost its lease stops. But a process that was paused, by the system or in a
//! virtual machine, does not know of the loss when it resumes, and its tasks are in the middle of
//! their work. So each request that changes something checks the clock before it is sent:
//!
//! | target | permitted when closed |
//! |---|---|
//! | the API server ([`Fence::client`]) | reads and watches; no commands in pods |
//! | object stores ([`Fence::store`]) | reads; a running write is aborted before its end |
//! | built-in object stores ([`Fence::permit`]) | the same, for each attempt of a request and each chunk of its body |
//! | plugins ([`PluginCalls`](crate::controllers)) | nothing |
//!
//! The clock is one that keeps running while a process is paused. A request sent a moment before
//! cannot be called back; that is why writes name resource versions, and the names of new objects
//! follow from their purpose.

mod client;
mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_store::backend::{Backend, Permit, PermitDenied};
use kube::Client;
use tokio::time::Instant;

/// Instant until which external changes are permitted. Clones share it. Closed until a lease opens
/// it.
#[derive(Clone, Debug)]
pub struct Fence {
    begin: Instant,
    /// Nanoseconds since then.
    open_for: Arc<AtomicU64>,
}

/// Closed fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this server no longer holds the Lease, so the write was not sent")]
pub struct FenceClosed;

impl Default for Fence {
    fn default() -> Self {
        Self { begin: Instant::now(), open_for: Arc::default() }
    }
}

impl Fence {
    /// Opens the fence until an instant.
    pub(crate) fn open_until(&self, end: Instant) {
        let open_for = end.saturating_duration_since(self.begin).as_nanos();
        let open_for = u64::try_from(open_for).unwrap_or(u64::MAX);
        self.open_for.store(open_for, Ordering::SeqCst);
    }

    pub(crate) fn close(&self) {
        self.open_for.store(0, Ordering::SeqCst);
    }

    /// Fails if the fence is closed.
    pub fn check(&self) -> Result<(), FenceClosed> {
        let open_for = Duration::from_nanos(self.open_for.load(Ordering::SeqCst));
        if self.begin.elapsed() < open_for { Ok(()) } else { Err(FenceClosed) }
    }

    /// Client that refuses changes while the fence is closed.
    pub fn client(&self, client: Client) -> Client {
        client::fenced_client(client, self.clone())
    }

    /// Permit for built-in stores, which check until the last moment.
    pub fn permit(&self) -> Permit {
        let fence = self.clone();
        Permit::new(move || fence.check().map_err(|closed| PermitDenied(closed.to_string())))
    }

    /// Store that refuses changes while the fence is closed.
    pub fn store(&self, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(store::FencedStore::new(backend, self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn fence_is_open_until_its_deadline_for_all_clones() {
        let fence = Fence::default();
        let shared = fence.clone();
        assert_eq!(shared.check(), Err(FenceClosed), "nobody has opened it");
        fence.open_until(Instant::now() + SECOND);
        assert_eq!(shared.check(), Ok(()));
        tokio::time::advance(SECOND).await;
        assert_eq!(shared.check(), Err(FenceClosed));
        fence.open_until(Instant::now() + SECOND);
        assert_eq!(shared.check(), Ok(()), "a lease that was renewed after all");
        shared.close();
        assert_eq!(fence.check(), Err(FenceClosed));
        fence.open_until(fence.begin);
        assert_eq!(fence.check(), Err(FenceClosed));
    }
}
