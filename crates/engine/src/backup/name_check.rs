//! Check for a backup of the same name in the bucket.
//!
//! A bucket that fails to answer once must not cost a backup that may have taken hours, so the check is retried for a
//! while.

use std::time::Duration;

use bowline_plugin::error_chain;
use bowline_store::{BackupName, BackupStore, Error};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;

/// Time to retry if nothing would be lost.
pub(super) const CHECK_FRESH: Duration = Duration::from_secs(20);
/// Time to retry if the run already has data.
pub(super) const CHECK_RESUMED: Duration = Duration::from_mins(5);
/// The first pause; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) enum NameAvailability {
    /// No backup has the name.
    Free,
    /// A backup has the name.
    Taken,
    /// The bucket does not answer.
    Unknown(Error),
}

/// Checks whether a name is free, with retries if those may help and the run is not about to end.
pub(super) async fn check_name(
    store: &BackupStore,
    name: &BackupName,
    retry_window: Duration,
    stop: &CancellationToken,
    cancel: &CancellationToken,
) -> NameAvailability {
    let started_at = Instant::now();
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    loop {
        let error = match store.exists(name).await {
            Ok(true) => return NameAvailability::Taken,
            Ok(false) => return NameAvailability::Free,
            Err(error) => error,
        };
        if !error.is_retryable() || started_at.elapsed() >= retry_window {
            return NameAvailability::Unknown(error);
        }
        let pause = backoff.next_pause();
        tracing::warn!(
            "cannot check the name in the bucket; retrying in {pause:?}: {}",
            error_chain(&error)
        );
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => return NameAvailability::Unknown(error),
            () = cancel.cancelled() => return NameAvailability::Unknown(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bowline_plugin::Code;
    use bowline_store::Prefix;
    use bowline_store::backend::Memory;
    use bowline_store::backend::memory::StoreCall;

    use super::*;

    /// A bucket that fails this many times with this code, and a counter of its requests.
    fn failing(times: usize, code: Code) -> (BackupStore, Arc<AtomicUsize>) {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let memory = Memory::with_bucket("b").failing(move |call, _| {
            let is_failure =
                call == StoreCall::Exists && counted.fetch_add(1, Ordering::SeqCst) < times;
            is_failure.then(|| bowline_plugin::Error::new(code, "no"))
        });
        (BackupStore::new(Arc::new(memory), "b", &Prefix::default()), requests)
    }

    async fn check(store: &BackupStore, stop: &CancellationToken) -> NameAvailability {
        check_name(store, &"a".parse().unwrap(), CHECK_RESUMED, stop, &CancellationToken::new())
            .await
    }

    #[tokio::test(start_paused = true)]
    async fn unreachable_bucket_is_retried() {
        let (store, requests) = failing(6, Code::Unavailable);
        let availability = check(&store, &CancellationToken::new()).await;
        assert!(matches!(availability, NameAvailability::Free), "{availability:?}");
        assert_eq!(requests.load(Ordering::SeqCst), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_are_bounded_and_skipped_for_permanent_errors() {
        for (code, least, most) in [(Code::Unavailable, 10, 30), (Code::PermissionDenied, 1, 1)] {
            let (store, requests) = failing(usize::MAX, code);
            let availability = check(&store, &CancellationToken::new()).await;
            assert!(matches!(availability, NameAvailability::Unknown(_)), "{availability:?}");
            let requests = requests.load(Ordering::SeqCst);
            assert!((least..=most).contains(&requests), "{code:?}: {requests}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_run_does_not_wait_for_the_bucket() {
        let (store, requests) = failing(usize::MAX, Code::Unavailable);
        let stop = CancellationToken::new();
        let stopping = async {
            while requests.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
            stop.cancel();
        };
        let (availability, ()) = tokio::join!(check(&store, &stop), stopping);
        assert!(matches!(availability, NameAvailability::Unknown(_)), "{availability:?}");
        assert_eq!(requests.load(Ordering::SeqCst), 1);
        // The bucket is asked at least once: a run that must end has to know what not to touch.
        let (store, _) = failing(0, Code::Unavailable);
        let availability = check(&store, &stop).await;
        assert!(matches!(availability, NameAvailability::Free), "{availability:?}");
    }
}
