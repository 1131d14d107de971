//! Resources as a server leaves them: finished Backups and Restores with all fields that it sets, and Schedules that
//! have just run.

use std::time::Duration;

use jiff::{Timestamp, Unit, tz::TimeZone};
use serde_json::{Value, json};

use crate::contender::{BOWLINE_NAMESPACE, LOCATION};
use crate::fill::Object;

/// Field manager of all resources.
const MANAGER: &str = "bowline";

const HOUR: Duration = Duration::from_hours(1);
/// Retention of all backups. None expires during a measurement.
const TTL: Duration = Duration::from_hours(720);
/// A Schedule is due this long after the start of a measurement, at the earliest.
const DUE_AFTER: Duration = Duration::from_hours(3);

/// Backup that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinishedBackup {
    pub(super) number: usize,
    /// Number of Schedules, which have created most backups in turn.
    pub(super) schedules: usize,
    /// Time of the measurement. The backup ended before.
    pub(super) now: Timestamp,
}

impl FinishedBackup {
    /// Every tenth backup was created by a user.
    fn schedule(self) -> Option<String> {
        let is_scheduled = self.schedules > 0 && !self.number.is_multiple_of(10);
        is_scheduled.then(|| schedule_name(self.number % self.schedules))
    }

    /// Backups are an hour apart from each other in the order of their numbers, up to two weeks ago.
    fn started(self) -> Timestamp {
        let hours = 1 + self.number % 336;
        before(self.now, HOUR.saturating_mul(u32::try_from(hours).unwrap_or(u32::MAX)))
    }

    pub(super) fn name(self) -> String {
        let time = self.started().strftime("%Y%m%d%H%M%S");
        match self.schedule() {
            Some(schedule) => format!("{schedule}-{time}-{:05}", self.number),
            None => format!("by-hand-{:05}", self.number),
        }
    }

    pub(super) fn object(self) -> Object {
        object("backups", self.record())
    }

    /// Content of the commit record, which is the Backup itself.
    pub(super) fn record(self) -> Value {
        let mut labels = json!({"velero.io/storage-location": LOCATION});
        if let Some(schedule) = self.schedule() {
            labels["velero.io/schedule-name"] = json!(schedule);
        }
        let started = self.started();
        let ended = after(started, Duration::from_secs(40));
        let items = 800 + self.number % 700;
        // Every fiftieth backup has failed in part.
        let errors = usize::from(self.number.is_multiple_of(50));
        let phase = if errors == 0 { "Completed" } else { "PartiallyFailed" };
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "Backup",
            "metadata": {
                "name": self.name(),
                "namespace": BOWLINE_NAMESPACE,
                "labels": labels,
                "annotations": {
                    "velero.io/resource-timeout": "10m0s",
                    "velero.io/source-cluster-k8s-gitversion": "v1.36.3",
                    "velero.io/source-cluster-k8s-major-version": "1",
                    "velero.io/source-cluster-k8s-minor-version": "36",
                },
            },
            "spec": {
                "csiSnapshotTimeout": "10m0s",
                "defaultVolumesToFsBackup": false,
                "excludedNamespaces": ["kube-system", "kube-node-lease"],
                "hooks": {},
                "includedNamespaces": [format!("team-{:02}", self.number % 40)],
                "itemOperationTimeout": "4h0m0s",
                "metadata": {},
                "snapshotMoveData": false,
                "storageLocation": LOCATION,
                "ttl": "720h0m0s",
            },
            "status": {
                "completionTimestamp": ended,
                "errors": errors,
                "expiration": after(self.now, TTL),
                "formatVersion": "1.1.0",
                "hookStatus": {},
                "phase": phase,
                "progress": {"itemsBackedUp": items, "totalItems": items},
                "startTimestamp": started,
                "version": 1,
                "warnings": self.number % 3,
            },
        })
    }
}

fn schedule_name(number: usize) -> String {
    format!("nightly-team-{number:04}")
}

/// Schedule that runs once a day, at an hour that is far from now.
pub(super) fn schedule(number: usize, now: Timestamp) -> Object {
    let hours = u32::try_from(number % 18).unwrap_or_default();
    let due = after(now, DUE_AFTER + HOUR.saturating_mul(hours)).to_zoned(TimeZone::UTC);
    object(
        "schedules",
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "Schedule",
            "metadata": {"name": schedule_name(number), "namespace": BOWLINE_NAMESPACE},
            "spec": {
                "schedule": format!("CRON_TZ=UTC {} {} * * *", number % 60, due.hour()),
                "skipImmediately": false,
                "template": {
                    "includedNamespaces": [format!("team-{:02}", number % 40)],
                    "storageLocation": LOCATION,
                    "ttl": "720h0m0s",
                },
            },
            "status": {"lastBackup": before(now, HOUR), "phase": "Enabled"},
        }),
    )
}

/// Restore of a backup.
pub(super) fn restore(number: usize, backup: &FinishedBackup) -> Object {
    let started = after(backup.started(), Duration::from_mins(10));
    let items = 800 + backup.number % 700;
    object(
        "restores",
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "Restore",
            "metadata": {
                "name": format!("restore-{number:05}"),
                "namespace": BOWLINE_NAMESPACE,
                "labels": {"example.com/ticket": format!("OPS-{number}")},
            },
            "spec": {
                "backupName": backup.name(),
                "excludedResources": ["nodes", "events", "events.events.k8s.io"],
                "hooks": {},
                "itemOperationTimeout": "4h0m0s",
                "namespaceMapping": {"team-00": format!("drill-{:03}", number % 300)},
            },
            "status": {
                "completionTimestamp": after(started, Duration::from_secs(70)),
                "errors": 0,
                "hookStatus": {},
                "phase": "Completed",
                "progress": {"itemsRestored": items, "totalItems": items},
                "startTimestamp": started,
                "warnings": number % 4,
            },
        }),
    )
}

fn object(plural: &str, body: Value) -> Object {
    let collection = format!("/apis/velero.io/v1/namespaces/{BOWLINE_NAMESPACE}/{plural}");
    Object { collection, manager: MANAGER, body }
}

/// Times in Kubernetes are whole seconds.
fn after(time: Timestamp, span: Duration) -> Timestamp {
    let time = time.checked_add(span).unwrap_or(time);
    time.round(Unit::Second).unwrap_or(time)
}

fn before(time: Timestamp, span: Duration) -> Timestamp {
    after(time.checked_sub(span).unwrap_or(time), Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bowline_api::{Backup, BackupPhase, Restore, Schedule};
    use bowline_engine::schedule::{ScheduleDecision, decide};
    use bowline_store::BackupName;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn backup(number: usize) -> FinishedBackup {
        FinishedBackup { number, schedules: 500, now: at(1_800_000_000) }
    }

    #[test]
    fn backups_have_names_of_their_own_that_a_bucket_may_have() {
        let names: BTreeSet<String> = (0..5000).map(|number| backup(number).name()).collect();
        assert_eq!(names.len(), 5000);
        assert!(names.iter().all(|name| BackupName::new(name.as_str()).is_ok()));
        let alone = FinishedBackup { schedules: 0, ..backup(3) };
        assert_eq!(alone.name(), "by-hand-00003");
    }

    #[test]
    fn backup_has_ended_and_expires_long_after_the_measurement() {
        for number in [0, 1, 50, 4999] {
            let read: Backup = serde_json::from_value(backup(number).record()).unwrap();
            let status = read.status.unwrap();
            assert!(status.phase.as_ref().is_some_and(BackupPhase::is_terminal));
            let month = at(1_800_000_000 + 720 * 3600);
            assert_eq!(status.expiration.unwrap().0, month);
            let (started, ended) = (status.start_timestamp, status.completion_timestamp);
            assert!(started.unwrap().0 < ended.unwrap().0);
        }
    }

    #[test]
    fn no_schedule_is_due_for_hours() {
        for (number, second) in (0..500).zip((1_800_000_000..).step_by(977)) {
            let created = schedule(number, at(second)).body;
            let mut read: Schedule = serde_json::from_value(created).unwrap();
            read.metadata.creation_timestamp = None;
            let later = at(second + 2 * 3600 - 60);
            let decision = decide(&read, &TimeZone::UTC, false, later);
            assert!(matches!(decision, ScheduleDecision::Wait(_)), "{number}: {decision:?}");
        }
    }

    #[test]
    fn restore_has_ended() {
        let read: Restore = serde_json::from_value(restore(7, &backup(3)).body).unwrap();
        assert!(read.status.unwrap().phase.unwrap().is_terminal());
        assert_eq!(read.spec.backup_name, backup(3).name());
    }
}
