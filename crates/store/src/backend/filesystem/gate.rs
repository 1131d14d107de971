//! A file system that does not answer.
//!
//! A system call on a mount that hangs cannot be given up: whoever waits for it goes on after a deadline, its thread
//! stays. The threads for such calls are shared by the whole process, for names, archives and files of other locations,
//! and they are few hundred. So each bucket gets a few of them, and when one call has taken longer than anybody waits
//! for it, the next ones fail at once, until it has returned.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_plugin::{Code, Error, Result};
use tokio::sync::Semaphore;

/// How many calls to one bucket may be under way.
const AT_ONCE: usize = 8;
/// Nobody waits longer for a call that moves no data.
const PATIENCE: Duration = Duration::from_mins(1);

/// The calls to one bucket.
#[derive(Clone, Debug)]
pub(super) struct Gate(Arc<Calls>);

#[derive(Debug)]
struct Calls {
    patience: Duration,
    room: Arc<Semaphore>,
    /// Since when each call that is under way is.
    begun: Mutex<BTreeMap<u64, Instant>>,
}

/// A call that is under way until this is dropped.
struct Call {
    calls: Arc<Calls>,
    number: u64,
}

impl Gate {
    /// The gate of a bucket: the same for all that have it open, however often it was opened anew.
    pub(super) fn of(root: &Path, bucket: &str) -> Self {
        static GATES: Mutex<Option<HashMap<PathBuf, Gate>>> = Mutex::new(None);
        let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
        let gates = gates.get_or_insert_default();
        // Those that nobody uses, and that nothing hangs in, are forgotten.
        gates.retain(|_, gate| Arc::strong_count(&gate.0) > 1);
        gates.entry(root.join(bucket)).or_insert_with(|| Self::new(AT_ONCE, PATIENCE)).clone()
    }

    fn new(at_once: usize, patience: Duration) -> Self {
        let room = Arc::new(Semaphore::new(at_once));
        Self(Arc::new(Calls { patience, room, begun: Mutex::default() }))
    }

    /// Does something that may block, unless something else hangs.
    pub(super) async fn pass<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.0.check()?;
        let given_up = || Error::new(Code::Internal, "the access to the file system was given up");
        let room = if let Ok(room) = Arc::clone(&self.0.room).try_acquire_owned() {
            room
        } else {
            let room = Arc::clone(&self.0.room).acquire_owned();
            match tokio::time::timeout(self.0.patience, room).await {
                Ok(room) => room.map_err(|_| given_up())?,
                Err(_) => return Err(Calls::hangs(self.0.patience)),
            }
        };
        self.0.check()?;
        let call = Call::begin(&self.0);
        // Both go with the thread, not with whoever waits for it.
        let ended = tokio::task::spawn_blocking(move || {
            let outcome = job();
            drop((call, room));
            outcome
        });
        ended.await.map_err(|_| given_up())
    }
}

impl Calls {
    fn begun(&self) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Result<()> {
        let oldest = self.begun().values().map(Instant::elapsed).max();
        match oldest {
            Some(age) if age >= self.patience => Err(Self::hangs(age)),
            _ => Ok(()),
        }
    }

    fn hangs(since: Duration) -> Error {
        let message = format!(
            "the file system does not answer: a call to it has not returned for {} s; is the mount \
             there, and its server?",
            since.as_secs()
        );
        Error::new(Code::Unavailable, message)
    }
}

impl Call {
    fn begin(calls: &Arc<Calls>) -> Self {
        let mut begun = calls.begun();
        let number = begun.last_key_value().map_or(0, |(last, _)| last.wrapping_add(1));
        begun.insert(number, Instant::now());
        drop(begun);
        Self { calls: Arc::clone(calls), number }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.begun().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// A gate with a few calls in it that hang until the sender is dropped.
    async fn stuck(calls: usize) -> (Gate, mpsc::Sender<()>, Arc<AtomicUsize>) {
        let gate = Gate::new(4, Duration::from_millis(50));
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let begun = Arc::new(AtomicUsize::new(0));
        for _ in 0..calls {
            let (gate, hang, begun) = (gate.clone(), Arc::clone(&hang), Arc::clone(&begun));
            tokio::spawn(async move {
                gate.pass(move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                    let _ = hang.lock().unwrap().recv();
                })
                .await
            });
        }
        while begun.load(Ordering::SeqCst) < calls.min(4) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        (gate, release, begun)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_system_that_hangs_takes_few_threads_and_is_told_at_once() {
        let (gate, release, begun) = stuck(40).await;
        while gate.0.check().is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for _ in 0..100 {
            let error = gate.pass(|| ()).await.unwrap_err();
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            assert!(error.message().contains("does not answer"), "{error}");
        }
        assert_eq!(begun.load(Ordering::SeqCst), 4, "the others have not begun");
        // It comes back.
        drop(release);
        while gate.pass(|| ()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[test]
    fn all_that_open_a_bucket_share_its_gate() {
        let (root, other) = (Path::new("/nowhere/gate-a"), Path::new("/nowhere/gate-b"));
        let first = Gate::of(root, "b");
        assert!(Arc::ptr_eq(&first.0, &Gate::of(root, "b").0));
        assert!(!Arc::ptr_eq(&first.0, &Gate::of(root, "c").0));
        assert!(!Arc::ptr_eq(&first.0, &Gate::of(other, "b").0));
    }
}
