//! Gauges computed from the resources of a namespace. No state is kept, so a server that has just
//! started or become active shows the same values as its predecessor.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::condition::SYNCED;
use bowline_api::location::LocationPhase;
use bowline_api::{Backup, BackupStorageLocation, Restore, Schedule, label};
use bowline_engine::schedule::{parse, schedule_label};
use futures::FutureExt as _;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use kube::ResourceExt as _;
use kube::runtime::reflector::Store;

use crate::run_state::{RunState, TerminalPhase};

const DAY: Duration = Duration::from_hours(24);
/// Number of times of one day to search for the longest interval of a Schedule: one per minute.
const MAX_TIMES_PER_DAY: usize = 24 * 60;
/// Number of further days with times to search: a week, and one more.
const SEARCHED_DAYS: usize = 8;
/// Limit of the search, before and after now.
const SEARCH_HORIZON: Duration = Duration::from_hours(24 * 400);

/// Objects of a kind that a controller watches.
#[derive(Debug)]
pub(crate) enum ObjectSource {
    Backups(Store<Backup>),
    Restores(Store<Restore>),
    Schedules(Store<Schedule>),
    Locations(Store<BackupStorageLocation>),
}

/// Objects that controllers watch. A standby server watches none.
#[derive(Debug, Default)]
pub(super) struct ObjectSources {
    backups: Option<Store<Backup>>,
    restores: Option<Store<Restore>>,
    schedules: Option<Store<Schedule>>,
    locations: Option<Store<BackupStorageLocation>>,
}

/// All objects that gauges are computed from.
#[derive(Debug, Default)]
pub(super) struct ObservedObjects {
    pub(super) backups: Vec<Arc<Backup>>,
    pub(super) restores: Vec<Arc<Restore>>,
    pub(super) schedules: Vec<Arc<Schedule>>,
    pub(super) locations: Vec<Arc<BackupStorageLocation>>,
}

impl ObjectSources {
    pub(super) fn add(&mut self, source: ObjectSource) {
        match source {
            ObjectSource::Backups(store) => self.backups = Some(store),
            ObjectSource::Restores(store) => self.restores = Some(store),
            ObjectSource::Schedules(store) => self.schedules = Some(store),
            ObjectSource::Locations(store) => self.locations = Some(store),
        }
    }

    /// Current objects. `None` before all kinds have been listed: partial values would be wrong.
    pub(super) fn snapshot(&self) -> Option<ObservedObjects> {
        Some(ObservedObjects {
            backups: ready_state(self.backups.as_ref()?)?,
            restores: ready_state(self.restores.as_ref()?)?,
            schedules: ready_state(self.schedules.as_ref()?)?,
            locations: ready_state(self.locations.as_ref()?)?,
        })
    }
}

fn ready_state<K>(store: &Store<K>) -> Option<Vec<Arc<K>>>
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    let is_ready = matches!(store.wait_until_ready().now_or_never(), Some(Ok(())));
    is_ready.then(|| store.state())
}

/// Gauges of all objects.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gauges {
    pub(super) backups: usize,
    pub(super) restores: usize,
    /// Gauges by the Schedule label of backups. Those of no Schedule always exist; a deleted
    /// Schedule has none, although it may have left backups.
    pub(super) schedules: BTreeMap<String, ScheduleGauges>,
    /// Availability of each location; without those that have not been validated.
    pub(super) locations: BTreeMap<String, bool>,
    /// Success of the last synchronization of each location.
    pub(super) synced: BTreeMap<String, bool>,
}

/// Gauges of the backups of a Schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScheduleGauges {
    /// True if the last backup that ended was completed. True if there is none, as in Velero.
    pub(super) last_succeeded: bool,
    /// Time of the last completed backup.
    pub(super) last_success: Option<Timestamp>,
    /// Number of items and of errors of the last backup that ran.
    pub(super) items: i64,
    pub(super) errors: i64,
    /// Longest interval between two of its times, if there are times to come.
    pub(super) interval: Option<Duration>,
    /// Creation time of the Schedule.
    pub(super) created: Option<Timestamp>,
}

impl Default for ScheduleGauges {
    fn default() -> Self {
        Self {
            last_succeeded: true,
            last_success: None,
            items: 0,
            errors: 0,
            interval: None,
            created: None,
        }
    }
}

/// Time for which the longest interval of a Schedule is cached.
const INTERVAL_TTL: Duration = Duration::from_mins(10);
/// Maximum number of Schedules with this gauge.
const INTERVALS_MAX: usize = 1024;

/// Longest intervals of Schedules. Each takes up to a thousand searches to compute, and is needed
/// at every scrape.
#[derive(Debug, Default)]
pub(super) struct Intervals(HashMap<String, Interval>);

#[derive(Debug)]
struct Interval {
    expression: String,
    at: Timestamp,
    longest: Option<Duration>,
}

impl Intervals {
    fn get(&mut self, schedule: &Schedule, local: &TimeZone, now: Timestamp) -> Option<Duration> {
        if schedule.spec.paused {
            return None;
        }
        let name = schedule.name_any();
        let expression = &schedule.spec.schedule;
        if let Some(known) = self.0.get(&name)
            && known.expression == *expression
            && Duration::try_from(now.duration_since(known.at)).is_ok_and(|age| age < INTERVAL_TTL)
        {
            return known.longest;
        }
        if self.0.len() >= INTERVALS_MAX && !self.0.contains_key(&name) {
            return None;
        }
        let longest = longest_interval(schedule, local, now);
        self.0.insert(name, Interval { expression: expression.clone(), at: now, longest });
        longest
    }

    fn retain_schedules(&mut self, schedules: &[Arc<Schedule>]) {
        if self.0.len() > schedules.len() {
            let names: HashSet<String> = schedules.iter().map(|one| one.name_any()).collect();
            self.0.retain(|name, _| names.contains(name));
        }
    }
}

/// Gauges of objects at a given time.
pub(super) fn compute_gauges(
    objects: &ObservedObjects,
    intervals: &mut Intervals,
    local: &TimeZone,
    now: Timestamp,
) -> Gauges {
    intervals.retain_schedules(&objects.schedules);
    let mut schedules = BTreeMap::from([(String::new(), ScheduleGauges::default())]);
    for schedule in &objects.schedules {
        let interval = intervals.get(schedule, local, now);
        let created = schedule.metadata.creation_timestamp.as_ref().map(|at| at.0);
        let fresh = ScheduleGauges { interval, created, ..ScheduleGauges::default() };
        schedules.insert(schedule_label(schedule), fresh);
    }
    let mut ended: Vec<_> =
        objects.backups.iter().filter_map(|one| Some((end_of(one)?, one))).collect();
    // Scheduled backups are named after their times, which orders those that ended in the same
    // second.
    ended.sort_by_cached_key(|((at, _), backup)| (*at, backup.name_any()));
    for ((at, end), backup) in ended {
        let Some(schedule_gauges) = schedules.get_mut(schedule_of(backup)) else { continue };
        schedule_gauges.last_succeeded = end == TerminalPhase::Completed;
        if end == TerminalPhase::Completed {
            schedule_gauges.last_success = at.or(schedule_gauges.last_success);
        }
        if end != TerminalPhase::FailedValidation
            && let Some(status) = &backup.status
        {
            schedule_gauges.items =
                status.progress.as_ref().map_or(0, |progress| progress.total_items);
            schedule_gauges.errors = status.errors;
        }
    }
    let availability = |location: &Arc<BackupStorageLocation>| {
        let is_available = match location.status.as_ref()?.phase.as_ref()? {
            LocationPhase::Available => true,
            LocationPhase::Unavailable => false,
            LocationPhase::Other(_) => return None,
        };
        Some((location.name_any(), is_available))
    };
    Gauges {
        backups: objects.backups.len(),
        restores: objects.restores.len(),
        schedules,
        locations: objects.locations.iter().filter_map(availability).collect(),
        synced: objects.locations.iter().filter_map(|location| sync_state(location)).collect(),
    }
}

/// Success of the last synchronization of a location.
fn sync_state(location: &BackupStorageLocation) -> Option<(String, bool)> {
    let mut conditions = location.status.as_ref()?.conditions.iter();
    let synced = conditions.find(|condition| condition.type_ == SYNCED)?;
    Some((location.name_any(), synced.status == "True"))
}

/// Schedule of a backup, from its label; empty for none.
pub(super) fn schedule_of(backup: &Backup) -> &str {
    backup.labels().get(label::SCHEDULE_NAME).map_or("", String::as_str)
}

/// Final phase of a backup, and its time. A refused backup never started, so it only has a creation
/// time.
fn end_of(backup: &Backup) -> Option<(Option<Timestamp>, TerminalPhase)> {
    let status = backup.status.as_ref()?;
    let RunState::Ended(end) = RunState::from(status.phase.as_ref()) else { return None };
    let created = || backup.metadata.creation_timestamp.as_ref();
    let at = status.completion_timestamp.as_ref().or_else(created);
    Some((at.map(|at| at.0), end))
}

/// Longest interval between the last time that has passed and those of more than a week to come.
/// The current interval is included: a scrape in the evening sees the interval over night.
fn longest_interval(schedule: &Schedule, local: &TimeZone, now: Timestamp) -> Option<Duration> {
    if schedule.spec.paused {
        return None;
    }
    let cron = parse(&schedule.spec.schedule).ok()?;
    let (past, far) =
        (now.checked_sub(SEARCH_HORIZON).ok()?, now.checked_add(SEARCH_HORIZON).ok()?);
    let passed = cron.last_before(now, past, local);
    let mut last = passed.or_else(|| cron.next(now, local))?;
    let mut longest = None;
    let mut pause = |from: Timestamp| {
        let next = cron.next(from, local)?;
        longest = longest.max(Duration::try_from(next.duration_since(from)).ok());
        Some(next)
    };
    // One day, time by time. All days with times have the same times.
    let day = last.checked_add(DAY).ok()?;
    for _ in 0..MAX_TIMES_PER_DAY {
        let Some(next) = pause(last) else { return longest };
        last = next;
        if last >= day {
            break;
        }
    }
    // So only intervals of more than a day can be longer, and at most one of those starts within a
    // day: after its last time.
    for _ in 0..SEARCHED_DAYS {
        if last > far {
            break;
        }
        let day = last.checked_add(DAY).ok()?;
        let Some(next) = pause(cron.last_before(day, last, local).unwrap_or(last)) else { break };
        last = next;
    }
    longest
}

#[cfg(test)]
mod tests;
