//! Prometheus metrics and health checks of a server, over HTTP.
//!
//! | file | contents |
//! |---|---|
//! | `label` | label values, all from closed sets; the number of plugin names is limited |
//! | `velero` | Velero's metrics, under its names |
//! | `gauges` | gauges from Backups, Restores, Schedules and locations |
//! | `address` | values of `--metrics-address` |
//! | `server` | `/metrics`, `/healthz` and `/readyz` |
//!
//! # Guarantees
//! - Each operation is counted once when it has ended, however often it is published.
//! - New operations of a run replace its previous ones; gauges are sums over all runs.
//! - The number of series is bounded, whatever the names of plugins.
//! - Gauges of objects show the objects at the time of the scrape, also after a restart or a change
//!   of the active server.
//!
//! Counters start at zero with each process, as Prometheus expects.

mod address;
mod gauges;
mod label;
mod server;
mod velero;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bowline_api::{Backup, BackupStatus, Restore, label::value};
use bowline_engine::operation::Operation;
use bowline_plugin::Name;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use parking_lot::Mutex;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

pub use address::{Address, InvalidAddress};
pub(crate) use gauges::ObjectSource;
pub use label::{CallOutcome, Method, RunKind};
pub use server::{Error, Readiness, Server};

use crate::run_state::TerminalPhase;
use gauges::{Intervals, ObjectSources, compute_gauges, schedule_of};
use label::{BoundedNames, CallLabels, OperationGroup, OperationLabels, RunLabels};
use velero::{Count, VeleroMetrics};

/// Upper bounds of histograms, in seconds: 5 ms to 10 min.
const BUCKETS: [f64; 16] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];

/// Outcome of the deletion of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The deletion was started.
    Attempt,
    /// The backup was deleted.
    Success,
    /// The backup was not deleted completely.
    Failure,
}

/// Metrics of a server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Velero's metrics.
    velero: VeleroMetrics,
    operations: Family<OperationLabels, Gauge>,
    oldest: Family<OperationGroup, Gauge<f64, AtomicU64>>,
    operations_ended: Family<OperationLabels, Counter>,
    calls: Family<CallLabels, Histogram, fn() -> Histogram>,
    runs_ended: Family<RunLabels, Counter>,
    freezes: Histogram,
    names: BoundedNames,
    hashes: RandomState,
    tracked: Mutex<TrackedRuns>,
    sources: Mutex<ObjectSources>,
    /// Lock of the renderer, with the state that it keeps between scrapes.
    rendering: Mutex<Intervals>,
}

/// Published operations of all runs.
#[derive(Debug, Default)]
struct TrackedRuns {
    runs: HashMap<String, TrackedRun>,
    /// All labels that ever had operations: a gauge falls to zero rather than vanish.
    known_labels: BTreeSet<OperationLabels>,
}

/// Published operations of one run.
#[derive(Debug, Default)]
struct TrackedRun {
    under_way: BTreeMap<OperationLabels, i64>,
    oldest: BTreeMap<OperationGroup, Timestamp>,
    /// Hashes of the operations that are counted as ended. Among a million operations of a run, the
    /// probability that two share a hash is one in thirty million.
    counted_ended: HashSet<u64>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Metrics of a new server.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("bowline");
        let operations = Family::default();
        registry.register("operations", "Unfinished plugin operations", operations.clone());
        let oldest = Family::default();
        registry.register_with_unit(
            "operation_oldest_age",
            "Age of the oldest operation that has not ended; 0 if there is none",
            Unit::Seconds,
            oldest.clone(),
        );
        let operations_ended = Family::default();
        registry.register(
            "operations_ended",
            "Finished plugin operations",
            operations_ended.clone(),
        );
        let calls = Family::new_with_constructor(histogram as fn() -> Histogram);
        registry.register_with_unit(
            "plugin_call_duration",
            "Duration of plugin calls",
            Unit::Seconds,
            calls.clone(),
        );
        let runs_ended = Family::<RunLabels, Counter>::default();
        registry.register(
            "runs_ended",
            "Backups and restores that have ended, by phase",
            runs_ended.clone(),
        );
        // From the start, so that the first failure shows as an increase.
        for kind in [RunKind::Backup, RunKind::Restore] {
            for end in [
                TerminalPhase::Completed,
                TerminalPhase::PartiallyFailed,
                TerminalPhase::Failed,
                TerminalPhase::FailedValidation,
            ] {
                let labels = RunLabels { kind, phase: end.as_str() };
                drop(runs_ended.get_or_create(&labels));
            }
        }
        let freezes = histogram();
        registry.register_with_unit(
            "freeze_window",
            "Duration of the freeze windows of pods in backups",
            Unit::Seconds,
            freezes.clone(),
        );
        Self {
            registry,
            velero: VeleroMetrics::new(),
            operations,
            oldest,
            operations_ended,
            calls,
            runs_ended,
            freezes,
            names: BoundedNames::default(),
            hashes: RandomState::new(),
            tracked: Mutex::default(),
            sources: Mutex::default(),
            rendering: Mutex::default(),
        }
    }

    /// Publishes the operations of a run in place of its previous ones, and counts those that have
    /// ended since. A run is remembered until it is [removed](Self::remove_run).
    pub fn set_operations(&self, run_uid: &str, operations: &[Operation]) {
        self.replace_operations(run_uid, operations, |ended| {
            self.operations_ended.get_or_create(ended).inc();
        });
    }

    /// Like [`set_operations`](Self::set_operations), for a run that another process has started:
    /// operations that had ended by then were counted by that process.
    pub fn adopt_operations(&self, run_uid: &str, operations: &[Operation]) {
        self.replace_operations(run_uid, operations, |_| {});
    }

    /// Removes a run. To be called when the run has ended: operations published later count again.
    pub fn remove_run(&self, run_uid: &str) {
        self.tracked.lock().runs.remove(run_uid);
    }

    /// Records a call of a plugin.
    pub fn observe_plugin_call(
        &self,
        plugin: &Name,
        method: Method,
        outcome: CallOutcome,
        took: Duration,
    ) {
        let labels = CallLabels { plugin: self.names.plugin_label(plugin), method, outcome };
        self.calls.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Records the start of a backup.
    pub fn backup_began(&self, backup: &Backup) {
        self.velero.count(Count::BackupAttempt, schedule_of(backup), 1);
    }

    /// Records the end of a backup and its status.
    pub fn backup_ended(&self, backup: &Backup, status: &BackupStatus, end: TerminalPhase) {
        self.run_ended(RunKind::Backup, end);
        self.velero.backup_ended(backup, status, end);
    }

    /// Records the compressed size of the archive of a backup.
    pub fn archive_written(&self, backup: &Backup, bytes: u64) {
        self.velero.archive_written(backup, bytes);
    }

    /// Records the start or the refusal of a restore.
    pub fn restore_began(&self, restore: &Restore) {
        self.velero.count(Count::RestoreAttempt, &value(&restore.spec.schedule_name), 1);
    }

    /// Records the end of a restore.
    pub fn restore_ended(&self, restore: &Restore, end: TerminalPhase) {
        self.run_ended(RunKind::Restore, end);
        let count = match end {
            TerminalPhase::Completed => Count::RestoreSuccess,
            TerminalPhase::PartiallyFailed => Count::RestorePartialFailure,
            TerminalPhase::Failed => Count::RestoreFailed,
            TerminalPhase::FailedValidation => Count::RestoreValidationFailed,
        };
        self.velero.count(count, &value(&restore.spec.schedule_name), 1);
    }

    fn run_ended(&self, kind: RunKind, end: TerminalPhase) {
        self.runs_ended.get_or_create(&RunLabels { kind, phase: end.as_str() }).inc();
    }

    /// Records how long a pod was frozen.
    pub fn observe_freeze(&self, window: Duration) {
        self.freezes.observe(window.as_secs_f64());
    }

    /// Records the outcome of the deletion of a backup; `schedule` is empty for none.
    pub fn count_deletion(&self, schedule: &str, deletion: Deletion) {
        let count = match deletion {
            Deletion::Attempt => Count::BackupDeletionAttempt,
            Deletion::Success => Count::BackupDeletionSuccess,
            Deletion::Failure => Count::BackupDeletionFailure,
        };
        self.velero.count(count, schedule, 1);
    }

    /// Adds objects to the gauges.
    pub(crate) fn add_source(&self, source: ObjectSource) {
        self.sources.lock().add(source);
    }

    /// Renders all metrics in the OpenMetrics text format.
    pub fn render(&self, now: Timestamp) -> Result<String, fmt::Error> {
        // Held until everything is written: a concurrent scrape would change the gauges meanwhile.
        // Runs do not wait for it.
        let mut intervals = self.rendering.lock();
        let tracked = self.tracked.lock();
        for labels in &tracked.known_labels {
            let counts = tracked.runs.values().filter_map(|run| run.under_way.get(labels));
            self.operations.get_or_create(labels).set(counts.sum());
            let row = labels.group();
            let oldest = tracked.runs.values().filter_map(|run| run.oldest.get(&row)).min();
            let age = oldest.map_or(0.0, |oldest| now.duration_since(*oldest).as_secs_f64());
            // A clock that was set back must not lead to a negative age.
            self.oldest.get_or_create(&row).set(age.max(0.0));
        }
        drop(tracked);
        let objects = self.sources.lock().snapshot();
        let local = TimeZone::system();
        let current =
            objects.as_ref().map(|seen| compute_gauges(seen, &mut intervals, &local, now));
        self.velero
            .update_gauges(current.as_ref(), objects.as_ref().map_or(&[], |seen| &seen.backups));
        let mut text = String::new();
        self.velero.render(&mut text)?;
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn replace_operations(
        &self,
        run_uid: &str,
        operations: &[Operation],
        ended: impl Fn(&OperationLabels),
    ) {
        let mut tracked = self.tracked.lock();
        let TrackedRuns { runs, known_labels: seen } = &mut *tracked;
        let run = runs.entry(run_uid.to_owned()).or_default();
        run.under_way.clear();
        run.oldest.clear();
        for operation in operations {
            let row = OperationGroup::of(operation, &self.names);
            let labels = row.with_state(&operation.state);
            if operation.state.is_terminal() {
                let Operation { kind, plugin, item, id, .. } = operation;
                if run.counted_ended.insert(self.hashes.hash_one((kind, plugin, item, id))) {
                    ended(&labels);
                }
                continue;
            }
            seen.insert(labels.clone());
            *run.under_way.entry(labels).or_default() += 1;
            let oldest = run.oldest.entry(row).or_insert(operation.created);
            *oldest = operation.created.min(*oldest);
        }
    }
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

#[cfg(test)]
mod tests;
