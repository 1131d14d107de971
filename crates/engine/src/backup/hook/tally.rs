//! What is counted and measured of hooks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_plugin::ResourceIdentifier;
use bowline_store::file::FreezeWindow;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// Counts the hooks of a run, and measures for how long pods were quiesced.
pub struct Tally {
    attempted: AtomicU64,
    failed: AtomicU64,
    freezes: Mutex<BTreeMap<ResourceIdentifier, Freeze>>,
    windows: Mutex<Vec<FreezeWindow>>,
    now: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

/// For how long a pod was quiesced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freeze {
    /// When its first pre-hook was started.
    pub from: Timestamp,
    /// When its last post-hook ended; none if none has run.
    pub until: Option<Timestamp>,
}

impl Freeze {
    /// How long it was, if its end is known.
    pub fn milliseconds(&self) -> Option<i64> {
        self.until.map(|until| until.as_millisecond() - self.from.as_millisecond())
    }
}

/// With the clock of the machine.
impl Default for Tally {
    fn default() -> Self {
        Self::new(Timestamp::now)
    }
}

impl Tally {
    /// With a clock.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self {
            attempted: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            freezes: Mutex::default(),
            windows: Mutex::default(),
            now: Box::new(now),
        }
    }

    /// How many hooks were run, and how many of them failed.
    pub fn counts(&self) -> (u64, u64) {
        (self.attempted.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Counts hooks that were run and counted elsewhere.
    pub(in crate::backup) fn add_counts(&self, (attempted, failed): (u64, u64)) {
        self.attempted.fetch_add(attempted, Ordering::Relaxed);
        self.failed.fetch_add(failed, Ordering::Relaxed);
    }

    /// For how long pods were quiesced, of those whose windows have ended.
    pub fn windows(&self) -> Vec<FreezeWindow> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes windows that were measured elsewhere.
    pub(in crate::backup) fn add_windows(&self, windows: Vec<FreezeWindow>) {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner).extend(windows);
    }

    /// For how long a pod was quiesced, if it was. It is forgotten then.
    pub fn take_freeze(&self, pod: &ResourceIdentifier) -> Option<Freeze> {
        let freeze = self.lock().remove(pod);
        if let Some((freeze, milliseconds)) =
            freeze.and_then(|one| Some((one, one.milliseconds()?)))
        {
            self.add_windows(vec![FreezeWindow {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                start_timestamp: Some(MicroTime(freeze.from)),
                // A clock may have been set back meanwhile.
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

    /// A pre-hook of a pod was started at this time; the first one counts.
    pub(super) fn freeze(&self, pod: &ResourceIdentifier, from: Timestamp) {
        self.lock().entry(pod.clone()).or_insert(Freeze { from, until: None });
    }

    /// A post-hook of a pod has ended; the last one counts.
    pub(super) fn thaw(&self, pod: &ResourceIdentifier) {
        let now = self.now();
        if let Some(freeze) = self.lock().get_mut(pod) {
            freeze.until = Some(now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ResourceIdentifier, Freeze>> {
        self.freezes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
