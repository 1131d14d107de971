//! History of Schedules and Backups from the API server: every change, in the order of resource versions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bowline_api::{Backup, BackupPhase, Schedule};
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use crate::cluster::{TestEnv, cluster};

/// A second since the epoch.
type Second = i64;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    /// A Schedule says up to when it has done its work.
    ScheduleAdvanced { schedule: String, until: Second },
    /// A Backup is there.
    BackupCreated { backup: String },
    /// A change, with its position.
    BackupPhaseChanged { backup: String, phase: BackupPhase },
    /// A deletion.
    BackupDeleted { backup: String },
    /// The rest is not known.
    WatchFailed { reason: String },
}

/// All changes, by the version that each made. One API server counts them for all kinds.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(Arc<Mutex<BTreeSet<(u64, usize)>>>, Arc<Mutex<Vec<Change>>>);

/// Outcome of the times of a Schedule.
#[derive(Debug, Default)]
pub(crate) struct ScheduleSummary {
    /// Backups that were made.
    pub(crate) backups: usize,
    /// Times that had passed when a later one was kept, and that one stands for them.
    pub(crate) skipped_times: usize,
    /// Backups whose server ended before it recorded them in the Schedule.
    pub(crate) unrecorded: usize,
}

impl History {
    /// Begins to watch an empty namespace.
    pub(crate) fn watch_namespace(env: &TestEnv) -> Self {
        let history = Self::default();
        history.watch(env.api::<Schedule>(), |schedule: &Schedule, _| {
            let last_backup =
                schedule.status.as_ref().and_then(|status| status.last_backup.as_ref());
            let since = last_backup.or(schedule.metadata.creation_timestamp.as_ref())?;
            Some(Change::ScheduleAdvanced {
                schedule: schedule.name_any(),
                until: since.0.as_second(),
            })
        });
        history.watch(env.api::<Backup>(), |backup: &Backup, is_new| {
            let backup_name = backup.name_any();
            let phase = backup.status.as_ref().and_then(|status| status.phase.clone());
            match phase {
                _ if is_new => Some(Change::BackupCreated { backup: backup_name }),
                Some(phase) => Some(Change::BackupPhaseChanged { backup: backup_name, phase }),
                None => None,
            }
        });
        history
    }

    fn watch<K>(&self, api: Api<K>, change: impl Fn(&K, bool) -> Option<Change> + Send + 'static)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
    {
        let history = self.clone();
        let runtime = &cluster().runtime;
        let listed = runtime.block_on(api.list(&ListParams::default())).unwrap();
        assert!(listed.items.is_empty(), "it begins too late: {:?}", listed.items);
        let mut version = listed.metadata.resource_version.unwrap();
        // It ends with this process.
        runtime.spawn(async move {
            loop {
                let watch = api.watch(&WatchParams::default(), &version).await;
                let mut events = match watch {
                    Ok(events) => events.boxed(),
                    Err(error) => return history.record_failure(error.to_string()),
                };
                // The API server ends each after some minutes.
                loop {
                    let (object, is_new) = match events.try_next().await {
                        Ok(Some(WatchEvent::Added(object))) => (object, true),
                        Ok(Some(WatchEvent::Modified(object))) => (object, false),
                        Ok(Some(WatchEvent::Deleted(object))) => {
                            history
                                .add(&object, Change::BackupDeleted { backup: object.name_any() });
                            (object, false)
                        }
                        Ok(Some(WatchEvent::Bookmark(_))) => continue,
                        Ok(Some(WatchEvent::Error(error))) => {
                            return history.record_failure(error.to_string());
                        }
                        Ok(None) => break,
                        Err(error) => return history.record_failure(error.to_string()),
                    };
                    version = object.resource_version().unwrap();
                    if let Some(change) = change(&object, is_new) {
                        history.add(&object, change);
                    }
                }
            }
        });
    }

    fn add(&self, object: &impl Resource, change: Change) {
        let version = object.resource_version().unwrap().parse().unwrap();
        self.insert(version, change);
    }

    fn record_failure(&self, reason: String) {
        self.insert(u64::MAX, Change::WatchFailed { reason });
    }

    fn insert(&self, version: u64, change: Change) {
        let mut changes = self.1.lock();
        self.0.lock().insert((version, changes.len()));
        changes.push(change);
    }

    fn changes(&self) -> Vec<Change> {
        let changes = self.1.lock();
        let order = self.0.lock();
        order.iter().map(|(_, number)| changes[*number].clone()).collect()
    }

    /// Number of times that a Schedule has recorded a backup.
    pub(crate) fn advance_count(&self, name: &str) -> usize {
        let changes = self.changes();
        let advances: BTreeSet<Second> = changes
            .iter()
            .filter_map(|change| match change {
                Change::ScheduleAdvanced { schedule, until } if schedule == name => Some(*until),
                _ => None,
            })
            .collect();
        advances.len().saturating_sub(1)
    }

    /// Each Backup was made once, has ended once, and was never touched again.
    pub(crate) fn assert_each_backup_ends_once(&self) {
        let mut phases = BTreeMap::<String, Option<BackupPhase>>::new();
        for change in self.changes() {
            match change {
                Change::BackupCreated { backup } => {
                    assert_eq!(phases.insert(backup.clone(), None), None, "{backup} came twice");
                }
                Change::BackupPhaseChanged { backup, phase } => {
                    let current = phases.get_mut(&backup);
                    let Some(current) = current else { panic!("{backup} came from nowhere") };
                    if let Some(before) = current.as_ref().filter(|phase| phase.is_terminal()) {
                        assert_eq!(*before, phase, "{backup} had ended");
                    }
                    *current = Some(phase);
                }
                Change::BackupDeleted { backup } => panic!("{backup} is gone"),
                Change::WatchFailed { reason } => panic!("what happened is not known: {reason}"),
                Change::ScheduleAdvanced { .. } => {}
            }
        }
        let unfinished: Vec<_> =
            phases.iter().filter(|(_, phase)| **phase != Some(BackupPhase::Completed)).collect();
        assert!(unfinished.is_empty(), "{unfinished:?}");
    }

    /// No time of a Schedule with a fixed interval is missed or used twice.
    ///
    /// The times follow from the recorded ones, one interval after the other. When all times until some moment are
    /// recorded, the Backup of the last time before that moment exists. It stands for earlier times without a Backup,
    /// because no server was active then, or an earlier Backup was still running.
    pub(crate) fn assert_schedule_is_kept(&self, name: &str, interval: Second) -> ScheduleSummary {
        let mut summary = ScheduleSummary::default();
        let mut last_time = None;
        let mut pending = BTreeSet::new();
        for change in self.changes() {
            match change {
                Change::BackupCreated { backup } => {
                    let Some(time) = time_of(&backup, name) else { continue };
                    let since: Second = last_time.expect("the Schedule was there before");
                    let is_due = time > since && (time - since) % interval == 0;
                    assert!(is_due, "{backup} is for no time of {name}, which had noted {since}");
                    assert!(pending.insert(time), "{backup} came twice");
                    summary.backups += 1;
                }
                Change::ScheduleAdvanced { schedule, until }
                    if schedule == name && last_time != Some(until) =>
                {
                    if let Some(since) = last_time.replace(until) {
                        let intervals = (until - since) / interval;
                        let last = since + intervals * interval;
                        assert!(
                            intervals > 0 && pending.contains(&last),
                            "{name} noted {until} after {since}, and has no backup for {last}: {pending:?}"
                        );
                        let own = pending.iter().filter(|time| **time <= last).count();
                        summary.skipped_times += usize::try_from(intervals).unwrap() - own;
                        summary.unrecorded += pending.len() - 1;
                        pending.clear();
                    }
                }
                _ => {}
            }
        }
        summary.unrecorded += pending.len();
        summary
    }
}

/// The time that a Backup of a Schedule is for, which is in its name.
fn time_of(backup: &str, schedule: &str) -> Option<Second> {
    let time = backup.strip_prefix(schedule)?.strip_prefix('-')?;
    let time = DateTime::strptime("%Y%m%d%H%M%S", time).unwrap();
    Some(time.to_zoned(TimeZone::UTC).unwrap().timestamp().as_second())
}
