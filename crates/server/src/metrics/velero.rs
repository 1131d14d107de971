//! Velero's metrics, with its names and labels, so that existing dashboards and alerts work
//! unchanged.
//!
//! Metrics of pod volumes, data movers and repositories are not included: this server has none of
//! these.
//!
//! This module also has Bowline's own metrics with a Schedule label. Velero counts CSI snapshots by
//! backup: such a series starts with its final value, so an increase never shows.
//!
//! # Limits
//! Series have a Schedule label, and those of CSI snapshots a backup label as well. The number of
//! Schedules and backups with series of their own is limited, and the series of a deleted Schedule
//! or Backup are removed.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use bowline_api::{Backup, BackupStatus};
use kube::ResourceExt as _;
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::gauges::{Gauges, schedule_of};
use super::label::{BoundedNames, OTHER_SCHEDULES, ScheduleLabels};
use crate::run_state::TerminalPhase;

/// Upper bounds of backup durations, in seconds: 1 min to 4 h.
const BUCKETS: [f64; 9] = [60.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10_800.0, 14_400.0];
/// Maximum number of backups with series of their own.
const MAX_BACKUP_SERIES: usize = 512;
/// Maximum number of locations with series of their own.
const MAX_LOCATION_SERIES: usize = 1024;

/// Declares the counters with a Schedule label.
macro_rules! counts {
    ($($count:ident $name:literal $help:literal,)+) => {
        /// Counter of each Schedule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Count {
            $($count,)+
        }

        impl Count {
            const ALL: &[(Self, &str, &str)] = &[$((Self::$count, $name, $help),)+];
        }
    };
}

counts! {
    BackupAttempt "backup_attempt" "Attempted backups",
    BackupSuccess "backup_success" "Completed backups",
    BackupPartialFailure "backup_partial_failure" "Partially failed backups",
    BackupFailure "backup_failure" "Failed backups",
    BackupValidationFailure "backup_validation_failure" "Backups that failed validation",
    BackupWarning "backup_warning" "Backups that ended with warnings",
    BackupDeletionAttempt "backup_deletion_attempt" "Attempted backup deletions",
    BackupDeletionSuccess "backup_deletion_success" "Successful backup deletions",
    BackupDeletionFailure "backup_deletion_failure" "Failed backup deletions",
    RestoreAttempt "restore_attempt" "Attempted restores",
    RestoreSuccess "restore_success" "Completed restores",
    RestorePartialFailure "restore_partial_failure" "Partially failed restores",
    RestoreFailed "restore_failed" "Failed restores",
    RestoreValidationFailed "restore_validation_failed" "Restores that failed validation",
    VolumeSnapshotAttempt "volume_snapshot_attempt" "Attempted volume snapshots of plugins",
    VolumeSnapshotSuccess "volume_snapshot_success" "Successful volume snapshots of plugins",
    VolumeSnapshotFailure "volume_snapshot_failure" "Failed volume snapshots of plugins",
    CsiSnapshotAttempt "csi_snapshot_attempt" "Attempted CSI snapshots of a schedule",
    CsiSnapshotFailure "csi_snapshot_failure" "Failed CSI snapshots of a schedule",
}

impl Count {
    /// True if Velero has no such counter with a Schedule label.
    fn is_bowline_only(self) -> bool {
        matches!(self, Self::CsiSnapshotAttempt | Self::CsiSnapshotFailure)
    }
}

/// Counters of each backup with CSI snapshots: name and help text.
const CSI_COUNTERS: [(&str, &str); 3] = [
    ("csi_snapshot_attempt", "Attempted CSI snapshots"),
    ("csi_snapshot_success", "Successful CSI snapshots"),
    ("csi_snapshot_failure", "Failed CSI snapshots"),
];

/// Backup of a Schedule. Both are empty for none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[expect(non_snake_case, reason = "it is the name of the label")]
struct BackupLabels {
    schedule: Arc<str>,
    backupName: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LocationLabels {
    backup_location_name: String,
}

/// Gauges with a Schedule label.
type ScheduleGaugeFamily = Family<ScheduleLabels, Gauge>;

#[derive(Debug)]
pub(super) struct VeleroMetrics {
    registry: Registry,
    /// Metrics that Velero does not have.
    bowline_registry: Registry,
    /// In the order of [`Count`].
    counts: Vec<Family<ScheduleLabels, Counter>>,
    durations: Family<ScheduleLabels, Histogram, fn() -> Histogram>,
    /// In the order of [`CSI_COUNTERS`].
    csi: [Family<BackupLabels, Counter>; 3],
    archive_sizes: ScheduleGaugeFamily,
    /// Metrics without labels. They are not rendered before their values are known.
    totals: Registry,
    backups: Gauge,
    restores: Gauge,
    last_statuses: ScheduleGaugeFamily,
    last_successes: ScheduleGaugeFamily,
    items: ScheduleGaugeFamily,
    errors: ScheduleGaugeFamily,
    intervals: ScheduleGaugeFamily,
    creations: ScheduleGaugeFamily,
    locations: Family<LocationLabels, Gauge>,
    synced: Family<LocationLabels, Gauge>,
    names: BoundedNames,
    served: Mutex<ServedSeries>,
}

/// Labels that have series.
#[derive(Debug, Default)]
struct ServedSeries {
    /// True once the objects have been listed.
    is_known: bool,
    schedules: BTreeSet<String>,
    /// Oldest first.
    backups: VecDeque<BackupLabels>,
}

impl VeleroMetrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix("velero");
        let mut bowline_registry = Registry::with_prefix("bowline");
        let counts = Count::ALL.iter().map(|(count, name, help)| {
            let family = Family::default();
            let registry =
                if count.is_bowline_only() { &mut bowline_registry } else { &mut registry };
            registry.register(*name, *help, family.clone());
            family
        });
        let counts = counts.collect();
        let creations = ScheduleGaugeFamily::default();
        let help = "Creation time of a schedule, in Unix seconds";
        bowline_registry.register("schedule_created_timestamp_seconds", help, creations.clone());
        let synced = Family::default();
        let help = "1 if the last sync of the location succeeded, 0 if not";
        bowline_registry.register("backup_location_synced", help, synced.clone());
        let csi = CSI_COUNTERS.map(|(name, help)| {
            let family = Family::default();
            registry.register(name, help, family.clone());
            family
        });
        let durations = Family::new_with_constructor(histogram as fn() -> Histogram);
        let help = "Duration of backups that ended";
        registry.register("backup_duration_seconds", help, durations.clone());
        let mut by_schedule = |name: &str, help: &str| {
            let family = ScheduleGaugeFamily::default();
            registry.register(name, help, family.clone());
            family
        };
        let size = "Size of the last archive that this process wrote";
        let archive_sizes = by_schedule("backup_tarball_size_bytes", size);
        let status = "1 if the last backup is Completed, 0 if not";
        let last_statuses = by_schedule("backup_last_status", status);
        let success = "Completion time of the last completed backup, in Unix seconds";
        let last_successes = by_schedule("backup_last_successful_timestamp", success);
        let items = by_schedule("backup_items_total", "Items of the last backup");
        let errors = by_schedule("backup_items_errors", "Errors of the last backup");
        let pause = "Longest interval between two backups of a schedule";
        let intervals = by_schedule("schedule_expected_interval_seconds", pause);
        let locations = Family::default();
        let help = "1 if the location is available, 0 if not";
        registry.register("backup_location_status_gauge", help, locations.clone());
        let (backups, restores) = <(Gauge, Gauge)>::default();
        let mut totals = Registry::with_prefix("velero");
        totals.register("backup_total", "Existing backups", backups.clone());
        totals.register("restore_total", "Existing restores", restores.clone());
        let velero = Self {
            registry,
            bowline_registry,
            counts,
            durations,
            csi,
            archive_sizes,
            totals,
            backups,
            restores,
            last_statuses,
            last_successes,
            items,
            errors,
            intervals,
            creations,
            locations,
            synced,
            names: BoundedNames::default(),
            served: Mutex::default(),
        };
        // From the start, so that the first count shows as an increase.
        velero.init_schedule("");
        velero
    }

    /// Adds to a counter of a Schedule.
    pub(super) fn count(&self, count: Count, schedule: &str, times: i64) {
        let Ok(times) = u64::try_from(times) else { return };
        if let Some(family) = self.counts.get(count as usize) {
            family.get_or_create(&self.labels(schedule)).inc_by(times);
        }
    }

    /// Counts the outcome of a backup.
    pub(super) fn backup_ended(&self, backup: &Backup, status: &BackupStatus, end: TerminalPhase) {
        let schedule = schedule_of(backup);
        let count = match end {
            TerminalPhase::Completed => Count::BackupSuccess,
            TerminalPhase::PartiallyFailed => Count::BackupPartialFailure,
            TerminalPhase::Failed => Count::BackupFailure,
            TerminalPhase::FailedValidation => Count::BackupValidationFailure,
        };
        self.count(count, schedule, 1);
        let (Some(began), Some(ended)) = (&status.start_timestamp, &status.completion_timestamp)
        else {
            // The backup never started.
            return;
        };
        let seconds = ended.0.duration_since(began.0).as_secs();
        let seconds = u32::try_from(seconds).unwrap_or_default();
        self.durations.get_or_create(&self.labels(schedule)).observe(f64::from(seconds));
        self.count(Count::BackupWarning, schedule, i64::from(status.warnings > 0));
        let (attempted, done) =
            (status.volume_snapshots_attempted, status.volume_snapshots_completed);
        self.count(Count::VolumeSnapshotAttempt, schedule, attempted);
        self.count(Count::VolumeSnapshotSuccess, schedule, done);
        self.count(Count::VolumeSnapshotFailure, schedule, attempted.saturating_sub(done));
        let attempted = status.csi_volume_snapshots_attempted;
        let done = status.csi_volume_snapshots_completed;
        self.count(Count::CsiSnapshotAttempt, schedule, attempted);
        self.count(Count::CsiSnapshotFailure, schedule, attempted.saturating_sub(done));
        if attempted > 0 {
            self.csi_ended(backup, attempted, done);
        }
    }

    /// Records the compressed size of the archive of a backup.
    pub(super) fn archive_written(&self, backup: &Backup, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.archive_sizes.get_or_create(&self.labels(schedule_of(backup))).set(bytes);
    }

    /// Replaces the gauges by those of the current objects; by none if these are not known.
    pub(super) fn update_gauges(&self, gauges: Option<&Gauges>, backups: &[Arc<Backup>]) {
        let states = [&self.last_statuses, &self.last_successes, &self.items, &self.errors];
        let times = [&self.intervals, &self.creations];
        states.into_iter().chain(times).for_each(Family::clear);
        self.locations.clear();
        self.synced.clear();
        self.served.lock().is_known = gauges.is_some();
        let Some(gauges) = gauges else { return };
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.backups.set(count(gauges.backups));
        self.restores.set(count(gauges.restores));
        self.sync_series(gauges, backups);
        for (schedule, schedule_gauges) in &gauges.schedules {
            // All Schedules over the limit share one label, which has no last backup.
            let Some(schedule) = self.names.own_schedule_label(schedule) else { continue };
            let labels = ScheduleLabels { schedule };
            self.last_statuses
                .get_or_create(&labels)
                .set(i64::from(schedule_gauges.last_succeeded));
            self.items.get_or_create(&labels).set(schedule_gauges.items);
            self.errors.get_or_create(&labels).set(schedule_gauges.errors);
            if let Some(at) = schedule_gauges.last_success {
                self.last_successes.get_or_create(&labels).set(at.as_second());
            }
            if let Some(interval) = schedule_gauges.interval {
                let seconds = i64::try_from(interval.as_secs()).unwrap_or(i64::MAX);
                self.intervals.get_or_create(&labels).set(seconds);
            }
            if let Some(at) = schedule_gauges.created {
                self.creations.get_or_create(&labels).set(at.as_second());
            }
        }
        for (name, is_available) in gauges.locations.iter().take(MAX_LOCATION_SERIES) {
            let labels = LocationLabels { backup_location_name: name.clone() };
            self.locations.get_or_create(&labels).set(i64::from(*is_available));
        }
        for (name, is_synced) in gauges.synced.iter().take(MAX_LOCATION_SERIES) {
            let labels = LocationLabels { backup_location_name: name.clone() };
            self.synced.get_or_create(&labels).set(i64::from(*is_synced));
        }
    }

    pub(super) fn render(&self, text: &mut String) -> fmt::Result {
        text::encode_registry(text, &self.registry)?;
        text::encode_registry(text, &self.bowline_registry)?;
        if self.served.lock().is_known { text::encode_registry(text, &self.totals) } else { Ok(()) }
    }

    /// Creates the counters of a Schedule, at zero.
    fn init_schedule(&self, schedule: &str) {
        let labels = self.labels(schedule);
        for family in &self.counts {
            drop(family.get_or_create(&labels));
        }
        let labels = BackupLabels { schedule: labels.schedule, backupName: "".into() };
        for family in &self.csi {
            drop(family.get_or_create(&labels));
        }
    }

    /// Removes the series of objects deleted since the last call, and creates those of new ones.
    fn sync_series(&self, gauges: &Gauges, backups: &[Arc<Backup>]) {
        let mut served = self.served.lock();
        // First, to make room for new ones.
        for name in self.names.all() {
            if !gauges.schedules.contains_key(&*name) {
                let was_served = served.schedules.contains(&*name);
                self.remove_schedule(name, was_served);
            }
        }
        if backups.iter().any(|backup| !gauges.schedules.contains_key(schedule_of(backup))) {
            let rest = ScheduleLabels { schedule: OTHER_SCHEDULES.into() };
            for family in &self.counts {
                drop(family.get_or_create(&rest));
            }
        }
        for new in gauges.schedules.keys().filter(|name| !served.schedules.contains(*name)) {
            self.init_schedule(new);
        }
        served.schedules = gauges.schedules.keys().cloned().collect();
        if served.backups.is_empty() {
            return;
        }
        let names: HashSet<&str> =
            backups.iter().filter_map(|backup| backup.metadata.name.as_deref()).collect();
        served.backups.retain(|labels| {
            let is_there = names.contains(&*labels.backupName);
            if !is_there {
                self.remove_backup(labels);
            }
            is_there
        });
    }

    /// Removes the series of a Schedule. Counts for a Schedule that was deleted before they were
    /// ever rendered move to the shared label.
    fn remove_schedule(&self, schedule: Arc<str>, was_served: bool) {
        self.names.remove(&schedule);
        let labels = ScheduleLabels { schedule: Arc::clone(&schedule) };
        let rest = ScheduleLabels { schedule: OTHER_SCHEDULES.into() };
        for family in &self.counts {
            let counted = family.get(&labels).map(|counter| counter.get());
            if let Some(counted) = counted.filter(|_| !was_served) {
                family.get_or_create(&rest).inc_by(counted);
            }
            family.remove(&labels);
        }
        self.durations.remove(&labels);
        self.archive_sizes.remove(&labels);
        self.remove_backup(&BackupLabels { schedule, backupName: "".into() });
    }

    fn csi_ended(&self, backup: &Backup, attempted: i64, done: i64) {
        let schedule = self.names.schedule_label(schedule_of(backup));
        let labels = BackupLabels { schedule, backupName: backup.name_any().into() };
        let mut served = self.served.lock();
        if !served.backups.contains(&labels) {
            if served.backups.len() >= MAX_BACKUP_SERIES
                && let Some(oldest) = served.backups.pop_front()
            {
                self.remove_backup(&oldest);
            }
            served.backups.push_back(labels.clone());
        }
        for (family, times) in
            self.csi.iter().zip([attempted, done, attempted.saturating_sub(done)])
        {
            family.get_or_create(&labels).inc_by(u64::try_from(times).unwrap_or_default());
        }
    }

    fn remove_backup(&self, labels: &BackupLabels) {
        for family in &self.csi {
            family.remove(labels);
        }
    }

    fn labels(&self, schedule: &str) -> ScheduleLabels {
        ScheduleLabels { schedule: self.names.schedule_label(schedule) }
    }
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

#[cfg(test)]
mod tests;
