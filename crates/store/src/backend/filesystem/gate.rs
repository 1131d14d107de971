//! Protection from a file system that does not answer.
//!
//! A system call on a mount that hangs cannot be cancelled: the caller continues after a deadline,
//! but the thread stays blocked. The threads for such calls are shared by the whole process, for
//! names, archives and files of other locations, and there are only a few hundred. So each bucket
//! gets a few of them:
//!
//! - A call that hangs keeps its thread. Others go on with the remaining ones, except those for the
//!   same path, which fail at once: a path that is tried again and again costs one thread.
//! - When all threads hang, the next calls fail at once, until one has returned.
//! - Finished uploads have threads of their own: other calls that hang do not keep them from being
//!   published.
//! - Other calls for a path wait while an upload to it is being published, and fail if that hangs:
//!   an object that is absent now could appear as soon as the file system responds. An upload whose
//!   caller has gone is not published.
//! - Files that were given up are deleted by one thread, one after the other.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bowline_plugin::{Code, Error, Result};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Number of concurrent calls to one bucket.
const CONCURRENT_CALLS: usize = 8;
/// Number of uploads to one bucket that are published concurrently.
const CONCURRENT_PUBLICATIONS: usize = 8;
/// The longest time that a caller waits for a call that moves no data.
const CALL_TIMEOUT: Duration = Duration::from_mins(1);

/// The calls to one bucket.
#[derive(Clone, Debug)]
pub(super) struct BucketGate(Arc<GateState>);

#[derive(Debug)]
struct GateState {
    timeout: Duration,
    calls: CallPool,
    publications: CallPool,
    publication_ended: Notify,
    discarded: Mutex<DiscardedValues>,
}

/// Shows the end of an upload whether its caller still waits for it.
#[derive(Clone, Debug)]
pub(super) struct CallerToken(Weak<()>);

impl CallerToken {
    /// Token, and the value that the caller holds while it waits.
    pub(super) fn new() -> (Self, Arc<()>) {
        let caller = Arc::new(());
        (Self(Arc::downgrade(&caller)), caller)
    }

    /// True if the caller has gone: it takes the upload for failed, or for unknown.
    pub(super) fn has_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Calls that share a number of threads.
#[derive(Debug)]
struct CallPool {
    size: usize,
    permits: Arc<Semaphore>,
    running: Mutex<BTreeMap<u64, StartedCall>>,
}

#[derive(Debug)]
struct StartedCall {
    path: String,
    at: Instant,
}

/// Values that wait to be dropped.
#[derive(Debug, Default)]
struct DiscardedValues {
    values: VecDeque<Box<dyn Any + Send>>,
    has_cleaner: bool,
}

#[derive(Clone, Copy)]
enum CallKind {
    /// A call that can be repeated.
    Ordinary,
    /// The last call of an upload.
    Publication,
}

/// A call that is running until this is dropped.
struct RunningCall {
    gate: Arc<GateState>,
    kind: CallKind,
    number: u64,
    _permit: OwnedSemaphorePermit,
}

impl BucketGate {
    /// The gate of a bucket: shared by all users of the bucket, however often it was reopened.
    pub(super) fn for_bucket(root: &Path, bucket: &str) -> Self {
        static GATES: Mutex<Option<HashMap<PathBuf, BucketGate>>> = Mutex::new(None);
        let mut gates = GATES.lock();
        let gates = gates.get_or_insert_default();
        // Gates without users and without running calls are removed.
        gates.retain(|_, gate| Arc::strong_count(&gate.0) > 1);
        gates
            .entry(root.join(bucket))
            .or_insert_with(|| Self::new(CONCURRENT_CALLS, CONCURRENT_PUBLICATIONS, CALL_TIMEOUT))
            .clone()
    }

    fn new(calls: usize, publications: usize, timeout: Duration) -> Self {
        let (calls, publications) = (CallPool::new(calls), CallPool::new(publications));
        let (publication_ended, discarded) = (Notify::new(), Mutex::default());
        Self(Arc::new(GateState { timeout, calls, publications, publication_ended, discarded }))
    }

    /// Runs blocking work for a path, unless an earlier call for it hangs, or all calls.
    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        path: &str,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.wait_for_publication(path).await?;
        self.run(CallKind::Ordinary, path, job).await
    }

    /// Waits until no upload to a path is being published. Fails if that hangs.
    async fn wait_for_publication(&self, path: &str) -> Result<()> {
        let GateState { timeout, publications, publication_ended, .. } = &*self.0;
        loop {
            let mut ended = std::pin::pin!(publication_ended.notified());
            ended.as_mut().enable();
            let Some(age) = publications.oldest_of_path(path) else { return Ok(()) };
            if age >= *timeout {
                return Err(hanging_error(age));
            }
            // After the rest of the time it hangs.
            let _ = tokio::time::timeout(timeout.saturating_sub(age), ended).await;
        }
    }

    /// Runs the blocking end of an upload to a path, unless the ends of other uploads hang.
    pub(super) async fn run_publication<T: Send + 'static>(
        &self,
        path: &str,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.run(CallKind::Publication, path, job).await
    }

    async fn run<T: Send + 'static>(
        &self,
        kind: CallKind,
        path: &str,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let task_failed =
            || Error::new(Code::Internal, "the access to the file system was aborted");
        let (pool, timeout) = (self.0.pool(kind), self.0.timeout);
        let permit = loop {
            pool.check_not_hanging(path, timeout)?;
            // Without waiting, a call needs no timer of the runtime.
            if let Ok(permit) = Arc::clone(&pool.permits).try_acquire_owned() {
                break permit;
            }
            let acquire = Arc::clone(&pool.permits).acquire_owned();
            // Calls that are only slow end at some time. Those that hang are noticed above.
            if let Ok(permit) = tokio::time::timeout(timeout, acquire).await {
                break permit.map_err(|_| task_failed())?;
            }
        };
        // Waiting may have taken long.
        pool.check_not_hanging(path, timeout)?;
        let call = RunningCall::start(&self.0, kind, path, permit);
        // The call belongs to the thread, not to its caller.
        let ended = tokio::task::spawn_blocking(move || {
            let outcome = job();
            drop(call);
            outcome
        });
        ended.await.map_err(|_| task_failed())
    }

    /// Drops a value on a thread for blocking calls, because dropping it may hang. Without a
    /// runtime, which that would block, it is dropped at once.
    pub(super) fn discard(&self, value: impl Send + 'static) {
        let mut discarded = self.0.lock_discarded();
        discarded.values.push_back(Box::new(value));
        if std::mem::replace(&mut discarded.has_cleaner, true) {
            return;
        }
        drop(discarded);
        let cleaner = Cleaner(Arc::clone(&self.0));
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(cleaner))),
            Err(_) => drop(cleaner),
        }
    }
}

/// Drops all discarded values when it is dropped: also if a runtime that shuts down does not start
/// its task.
struct Cleaner(Arc<GateState>);

impl Drop for Cleaner {
    fn drop(&mut self) {
        while let Some(value) = self.0.next_discarded() {
            drop(value);
        }
    }
}

impl GateState {
    fn pool(&self, kind: CallKind) -> &CallPool {
        match kind {
            CallKind::Ordinary => &self.calls,
            CallKind::Publication => &self.publications,
        }
    }

    fn lock_discarded(&self) -> MutexGuard<'_, DiscardedValues> {
        self.discarded.lock()
    }

    /// The next value to drop. After the last one, the cleaner ends.
    fn next_discarded(&self) -> Option<Box<dyn Any + Send>> {
        let mut discarded = self.lock_discarded();
        let next = discarded.values.pop_front();
        discarded.has_cleaner = next.is_some();
        next
    }
}

impl CallPool {
    fn new(size: usize) -> Self {
        Self { size, permits: Arc::new(Semaphore::new(size)), running: Mutex::default() }
    }

    fn lock_running(&self) -> MutexGuard<'_, BTreeMap<u64, StartedCall>> {
        self.running.lock()
    }

    /// Age of the oldest running call for a path.
    fn oldest_of_path(&self, path: &str) -> Option<Duration> {
        let running = self.lock_running();
        running.values().filter(|call| call.path == path).map(|call| call.at.elapsed()).max()
    }

    /// Fails if a call for the same path hangs, or if all calls hang.
    fn check_not_hanging(&self, path: &str, timeout: Duration) -> Result<()> {
        let (mut hanging, mut oldest, mut oldest_of_path) = (0, None, None);
        for StartedCall { path: of, at } in self.lock_running().values() {
            let age = at.elapsed();
            if age < timeout {
                continue;
            }
            hanging += 1;
            oldest = oldest.max(Some(age));
            if of == path {
                oldest_of_path = oldest_of_path.max(Some(age));
            }
        }
        let all = oldest.filter(|_| hanging >= self.size);
        match oldest_of_path.or(all) {
            Some(age) => Err(hanging_error(age)),
            None => Ok(()),
        }
    }
}

fn hanging_error(age: Duration) -> Error {
    let message = format!(
        "the file system does not respond: a call has not returned for {} s; check the mount and \
         its server",
        age.as_secs()
    );
    Error::new(Code::Unavailable, message)
}

impl RunningCall {
    fn start(
        gate: &Arc<GateState>,
        kind: CallKind,
        path: &str,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let mut running = gate.pool(kind).lock_running();
        let number = running.last_key_value().map_or(0, |(last, _)| last.wrapping_add(1));
        running.insert(number, StartedCall { path: path.to_owned(), at: Instant::now() });
        drop(running);
        Self { gate: Arc::clone(gate), kind, number, _permit: permit }
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.gate.pool(self.kind).lock_running().remove(&self.number);
        self.gate.publication_ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
