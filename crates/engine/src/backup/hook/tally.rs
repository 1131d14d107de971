//! Counts of hooks, and freeze windows.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_plugin::ResourceIdentifier;
use bowline_store::file::FreezeWindow;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use parking_lot::Mutex;

/// Counts the hooks of a run, and measures the freeze windows of pods.
pub struct Tally {
    attempted: AtomicU64,
    failed: AtomicU64,
    freezes: Mutex<BTreeMap<ResourceIdentifier, Freeze>>,
    windows: Mutex<Vec<FreezeWindow>>,
    now: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

/// Freeze window of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freeze {
    /// Start of its first pre-hook.
    pub from: Timestamp,
    /// End of its last post-hook; none if none has run.
    pub until: Option<Timestamp>,
}

impl Freeze {
    /// Length of the window, if its end is known.
    pub fn milliseconds(&self) -> Option<i64> {
        self.until.map(|until| until.as_millisecond() - self.from.as_millisecond())
    }
}

/// A tally with the system clock.
impl Default for Tally {
    fn default() -> Self {
        Self::new(Timestamp::now)
    }
}

impl Tally {
    /// A tally with a clock.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self {
            attempted: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            freezes: Mutex::default(),
            windows: Mutex::default(),
            now: Box::new(now),
        }
    }

    /// Number of hooks that ran, and number of those that failed.
    pub fn counts(&self) -> (u64, u64) {
        (self.attempted.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Adds hooks that were run and counted elsewhere.
    pub(in crate::backup) fn add_counts(&self, (attempted, failed): (u64, u64)) {
        self.attempted.fetch_add(attempted, Ordering::Relaxed);
        self.failed.fetch_add(failed, Ordering::Relaxed);
    }

    /// Freeze windows that have ended.
    pub fn windows(&self) -> Vec<FreezeWindow> {
        self.windows.lock().clone()
    }

    /// Adds windows that were measured elsewhere.
    pub(in crate::backup) fn add_windows(&self, windows: Vec<FreezeWindow>) {
        self.windows.lock().extend(windows);
    }

    /// Removes and returns the freeze window of a pod, if it has one.
    pub fn take_freeze(&self, pod: &ResourceIdentifier) -> Option<Freeze> {
        let freeze = self.freezes.lock().remove(pod);
        if let Some((freeze, milliseconds)) =
            freeze.and_then(|one| Some((one, one.milliseconds()?)))
        {
            self.add_windows(vec![FreezeWindow {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                start_timestamp: Some(MicroTime(freeze.from)),
                // The clock may have been set back meanwhile.
                milliseconds: milliseconds.max(0),
                ..FreezeWindow::default()
            }]);
        }
        freeze
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.now)()
    }

    pub(super) fn count(&self, has_failed: bool) {
        self.attempted.fetch_add(1, Ordering::Relaxed);
        self.failed.fetch_add(u64::from(has_failed), Ordering::Relaxed);
    }

    /// Records the start of a pre-hook of a pod; the first one counts.
    pub(super) fn freeze(&self, pod: &ResourceIdentifier, from: Timestamp) {
        self.freezes.lock().entry(pod.clone()).or_insert(Freeze { from, until: None });
    }

    /// Records the end of a post-hook of a pod; the last one counts.
    pub(super) fn record_thaw(&self, pod: &ResourceIdentifier) {
        let now = self.now();
        if let Some(freeze) = self.freezes.lock().get_mut(pod) {
            freeze.until = Some(now);
        }
    }
}
