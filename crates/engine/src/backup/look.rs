//! Whether the bucket holds a backup of the same name.
//!
//! A bucket that does not answer once must not cost a backup that may have taken hours, so it is asked again
//! for a while.

use std::time::Duration;

use bowline_plugin::one_line;
use bowline_store::{BackupName, BackupStore, Error};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// For how long it is asked again if nothing would be lost.
pub(super) const BRIEFLY: Duration = Duration::from_secs(20);
/// For how long it is asked again if something was taken.
pub(super) const PATIENTLY: Duration = Duration::from_mins(5);
/// The first pause; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest one.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What is known of a name.
#[derive(Debug)]
pub(super) enum Name {
    /// No backup has it.
    Free,
    /// A backup has it.
    Taken,
    /// The bucket does not say.
    Unknown(Error),
}

/// Asks whether a name is free; for a while again and again if that may help, and the run is not to end.
pub(super) async fn look(
    store: &BackupStore,
    name: &BackupName,
    patience: Duration,
    stop: &CancellationToken,
    cancel: &CancellationToken,
) -> Name {
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match store.exists(name).await {
            Ok(true) => return Name::Taken,
            Ok(false) => return Name::Free,
            Err(error) => error,
        };
        if !error.is_retryable() || began.elapsed() >= patience {
            return Name::Unknown(error);
        }
        tracing::warn!("the bucket is asked again in {pause:?}: {}", one_line(&error));
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => return Name::Unknown(error),
            () = cancel.cancelled() => return Name::Unknown(error),
        }
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bowline_plugin::Code;
    use bowline_store::Prefix;
    use bowline_store::backend::Memory;
    use bowline_store::backend::memory::Call;

    use super::*;

    /// A bucket that fails so often, with this, and how often it was asked.
    fn failing(times: usize, code: Code) -> (BackupStore, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let memory = Memory::with_bucket("b").failing(move |call, _| {
            let is_failure = call == Call::Exists && counted.fetch_add(1, Ordering::SeqCst) < times;
            is_failure.then(|| bowline_plugin::Error::new(code, "no"))
        });
        (BackupStore::new(Arc::new(memory), "b", &Prefix::default()), asked)
    }

    async fn ask(store: &BackupStore, stop: &CancellationToken) -> Name {
        look(store, &"a".parse().unwrap(), PATIENTLY, stop, &CancellationToken::new()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_that_is_away_for_a_while_is_asked_again() {
        let (store, asked) = failing(6, Code::Unavailable);
        let known = ask(&store, &CancellationToken::new()).await;
        assert!(matches!(known, Name::Free), "{known:?}");
        assert_eq!(asked.load(Ordering::SeqCst), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_asked_for_ever_or_when_that_does_not_help() {
        for (code, least, most) in [(Code::Unavailable, 10, 30), (Code::PermissionDenied, 1, 1)] {
            let (store, asked) = failing(usize::MAX, code);
            let known = ask(&store, &CancellationToken::new()).await;
            assert!(matches!(known, Name::Unknown(_)), "{known:?}");
            let asked = asked.load(Ordering::SeqCst);
            assert!((least..=most).contains(&asked), "{code:?}: {asked}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_is_to_end_does_not_wait_for_an_answer() {
        let (store, asked) = failing(usize::MAX, Code::Unavailable);
        let stop = CancellationToken::new();
        let stopping = async {
            while asked.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
            stop.cancel();
        };
        let (known, ()) = tokio::join!(ask(&store, &stop), stopping);
        assert!(matches!(known, Name::Unknown(_)), "{known:?}");
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        // Once is asked in any case: whoever is told to end must know what not to touch.
        let (store, _) = failing(0, Code::Unavailable);
        let known = ask(&store, &stop).await;
        assert!(matches!(known, Name::Free), "{known:?}");
    }
}
