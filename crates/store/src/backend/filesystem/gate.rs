//! Protection from a file system that does not answer.
//!
//! A system call on a mount that hangs cannot be cancelled: the caller continues after a deadline,
//! but the thread stays blocked. The threads for such calls are shared by the whole process, for
//! names, archives and files of other locations, and there are only a few hundred. So each bucket
//! gets a few of them, and when one call has taken longer than any caller waits, the next ones fail
//! at once, until it has returned.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_plugin::{Code, Error, Result};
use tokio::sync::Semaphore;

/// Number of concurrent calls to one bucket.
const CONCURRENT_CALLS: usize = 8;
/// The longest time that a caller waits for a call that moves no data.
const CALL_TIMEOUT: Duration = Duration::from_mins(1);

/// The calls to one bucket.
#[derive(Clone, Debug)]
pub(super) struct BucketGate(Arc<RunningCalls>);

#[derive(Debug)]
struct RunningCalls {
    timeout: Duration,
    permits: Arc<Semaphore>,
    /// Start time of each running call.
    started_at: Mutex<BTreeMap<u64, Instant>>,
}

/// A call that is running until this is dropped.
struct RunningCall {
    calls: Arc<RunningCalls>,
    number: u64,
}

impl BucketGate {
    /// The gate of a bucket: shared by all users of the bucket, however often it was reopened.
    pub(super) fn for_bucket(root: &Path, bucket: &str) -> Self {
        static GATES: Mutex<Option<HashMap<PathBuf, BucketGate>>> = Mutex::new(None);
        let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
        let gates = gates.get_or_insert_default();
        // Gates without users and without running calls are removed.
        gates.retain(|_, gate| Arc::strong_count(&gate.0) > 1);
        gates
            .entry(root.join(bucket))
            .or_insert_with(|| Self::new(CONCURRENT_CALLS, CALL_TIMEOUT))
            .clone()
    }

    fn new(concurrency: usize, timeout: Duration) -> Self {
        let permits = Arc::new(Semaphore::new(concurrency));
        Self(Arc::new(RunningCalls { timeout, permits, started_at: Mutex::default() }))
    }

    /// Runs blocking work, unless a call hangs.
    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.0.check_not_hanging()?;
        let task_failed =
            || Error::new(Code::Internal, "the access to the file system was given up");
        let permit = if let Ok(room) = Arc::clone(&self.0.permits).try_acquire_owned() {
            room
        } else {
            let acquire = Arc::clone(&self.0.permits).acquire_owned();
            match tokio::time::timeout(self.0.timeout, acquire).await {
                Ok(room) => room.map_err(|_| task_failed())?,
                Err(_) => return Err(RunningCalls::hanging_error(self.0.timeout)),
            }
        };
        self.0.check_not_hanging()?;
        let call = RunningCall::start(&self.0);
        // Both belong to the thread, not to its caller.
        let ended = tokio::task::spawn_blocking(move || {
            let outcome = job();
            drop((call, permit));
            outcome
        });
        ended.await.map_err(|_| task_failed())
    }
}

impl RunningCalls {
    fn lock_started_at(&self) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
        self.started_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_not_hanging(&self) -> Result<()> {
        let oldest = self.lock_started_at().values().map(Instant::elapsed).max();
        match oldest {
            Some(age) if age >= self.timeout => Err(Self::hanging_error(age)),
            _ => Ok(()),
        }
    }

    fn hanging_error(age: Duration) -> Error {
        let message = format!(
            "the file system does not answer: a call to it has not returned for {} s; is the mount \
             there, and its server?",
            age.as_secs()
        );
        Error::new(Code::Unavailable, message)
    }
}

impl RunningCall {
    fn start(calls: &Arc<RunningCalls>) -> Self {
        let mut started_at = calls.lock_started_at();
        let number = started_at.last_key_value().map_or(0, |(last, _)| last.wrapping_add(1));
        started_at.insert(number, Instant::now());
        drop(started_at);
        Self { calls: Arc::clone(calls), number }
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.calls.lock_started_at().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// A gate with a few calls that hang until the sender is dropped.
    async fn gate_with_hanging_calls(
        calls: usize,
    ) -> (BucketGate, mpsc::Sender<()>, Arc<AtomicUsize>) {
        let gate = BucketGate::new(4, Duration::from_millis(50));
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let started = Arc::new(AtomicUsize::new(0));
        for _ in 0..calls {
            let (gate, hang, started) = (gate.clone(), Arc::clone(&hang), Arc::clone(&started));
            tokio::spawn(async move {
                gate.run_blocking(move || {
                    started.fetch_add(1, Ordering::SeqCst);
                    let _ = hang.lock().unwrap().recv();
                })
                .await
            });
        }
        while started.load(Ordering::SeqCst) < calls.min(4) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        (gate, release, started)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn hanging_file_system_uses_few_threads_and_later_calls_fail_fast() {
        let (gate, release, started) = gate_with_hanging_calls(40).await;
        while gate.0.check_not_hanging().is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for _ in 0..100 {
            let error = gate.run_blocking(|| ()).await.unwrap_err();
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            assert!(error.message().contains("does not answer"), "{error}");
        }
        assert_eq!(started.load(Ordering::SeqCst), 4, "the others have not begun");
        // The hanging calls return.
        drop(release);
        while gate.run_blocking(|| ()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[test]
    fn all_users_of_a_bucket_share_one_gate() {
        let (root, other) = (Path::new("/nowhere/gate-a"), Path::new("/nowhere/gate-b"));
        let first = BucketGate::for_bucket(root, "b");
        assert!(Arc::ptr_eq(&first.0, &BucketGate::for_bucket(root, "b").0));
        assert!(!Arc::ptr_eq(&first.0, &BucketGate::for_bucket(root, "c").0));
        assert!(!Arc::ptr_eq(&first.0, &BucketGate::for_bucket(other, "b").0));
    }
}
