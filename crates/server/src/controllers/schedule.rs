//! Schedules: creates their backups when they are due.
//!
//! [`bowline_engine::schedule`] decides when a backup is due. This controller reads the Schedule afresh, lists its
//! backups, and carries out the decision:
//!
//! 1. the Backup is created, under a name derived from its time;
//! 2. the time is recorded in the Schedule.
//!
//! A server that ends in between has not recorded the time. The next server derives the same name, finds the Backup,
//! and records it. So no time gets two backups, and none is missed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::schedule::SchedulePhase;
use bowline_api::{Backup, Schedule, label};
use bowline_engine::report::error_text;
use bowline_engine::schedule::{
    self, BackupNaming, ScheduleDecision, backup, blocks_next, is_imported, naming, schedule_label,
};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use kube::api::ListParams;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::list::list_all;
use crate::metrics::ObjectSource;
use crate::patch;
use crate::server::{Context, Error};
use crate::watch::{Requeue, Watch};

const CONCURRENT_SCHEDULES: u16 = 8;
/// Longest pause between two checks of a Schedule: clocks can be set.
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// Shortest pause between two checks of a Schedule.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// Pause between checks of a Schedule whose last backup is not far enough yet, if few Schedules wait.
const HELD_PAUSE: Duration = Duration::from_secs(2);
/// Number of waiting Schedules for which the pause grows by one [`HELD_PAUSE`], so that none starves.
const HELD_PAUSE_STEP: usize = 100;

/// Creates backups of Schedules until the server stops.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let watch = Watch::new(context.api::<Schedule>()).concurrency(CONCURRENT_SCHEDULES);
    context.metrics.add_source(ObjectSource::Schedules(watch.store()));
    let stop = context.stop.clone();
    let local = TimeZone::system();
    tracing::debug!(zone = local.iana_name(), "time zone for schedules that do not specify one");
    let controller = Arc::new(Controller {
        schedules: context.api(),
        backups: context.api(),
        skips: context.options.schedule_skip_immediately,
        local,
        waits_for: Mutex::default(),
        all: watch.store(),
    });
    let work = move |schedule: Arc<Schedule>| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&schedule).await }
    };
    Ok(watch.run(&stop, work).await?)
}

/// Reason why a Schedule could not be processed this time. It is retried.
#[derive(Debug, thiserror::Error)]
enum ScheduleError {
    #[error("cannot read the Schedule")]
    ReadSchedule(#[source] kube::Error),
    #[error("cannot read the Backup that the Schedule waits for")]
    ReadBackup(#[source] kube::Error),
    #[error("cannot write the status of the Schedule")]
    WriteSchedule(#[source] kube::Error),
    #[error("cannot list the Backups of the Schedule")]
    List(#[source] kube::Error),
    #[error("cannot create the Backup `{0}`")]
    Create(String, #[source] kube::Error),
    #[error(
        "cannot create the Backup `{0}`: a Backup of that name exists and does not belong to \
         this Schedule"
    )]
    NameTaken(String),
}

struct Controller {
    schedules: Api<Schedule>,
    backups: Api<Backup>,
    /// Default of `skipImmediately` for Schedules that do not set it.
    skips: bool,
    local: TimeZone,
    /// The Backup that each Schedule was seen to wait for. Only that one is checked until it is far enough: a Schedule
    /// may have thousands.
    waits_for: Mutex<HashMap<String, String>>,
    /// All Schedules that the watch knows of.
    all: Store<Schedule>,
}

impl Controller {
    async fn reconcile(&self, watched: &Schedule) -> Result<Requeue, ScheduleError> {
        let now = Timestamp::now();
        let decision = self.decide(watched, now);
        if let ScheduleDecision::Idle | ScheduleDecision::Wait(_) = decision {
            return self.apply_decision(watched, decision, now).await;
        }
        // The watch may be behind this server's own last write.
        let read = self
            .schedules
            .get_opt(&watched.name_any())
            .await
            .map_err(ScheduleError::ReadSchedule)?;
        let Some(schedule) = read else { return Ok(Requeue::OnChange) };
        let now = Timestamp::now();
        self.apply_decision(&schedule, self.decide(&schedule, now), now).await
    }

    fn decide(&self, schedule: &Schedule, now: Timestamp) -> ScheduleDecision {
        schedule::decide(schedule, &self.local, self.skips, now)
    }

    async fn apply_decision(
        &self,
        schedule: &Schedule,
        decision: ScheduleDecision,
        now: Timestamp,
    ) -> Result<Requeue, ScheduleError> {
        match decision {
            ScheduleDecision::Idle => Ok(Requeue::OnChange),
            ScheduleDecision::Refuse(reason) => {
                let reason = error_text(&reason);
                if let Some(change) = phase_patch(schedule, Some(&reason)) {
                    tracing::warn!(reason, "the schedule is not valid");
                    self.patch_schedule(schedule, json!({ "status": change })).await?;
                }
                Ok(Requeue::OnChange)
            }
            ScheduleDecision::RecordSkip { skip } => {
                let mut change = json!({ "spec": { "skipImmediately": false } });
                if skip {
                    change["status"] = json!({ "lastSkipped": patch::truncate_to_second(now) });
                }
                self.patch_schedule(schedule, change).await?;
                // The change triggers another call; the pause covers a watch that is late.
                Ok(Requeue::After(HELD_PAUSE))
            }
            ScheduleDecision::Wait(next) => {
                self.enable(schedule).await?;
                Ok(Requeue::After(pause(next, Timestamp::now())))
            }
            ScheduleDecision::CreateBackup(time) => self.make_backup(schedule, time, now).await,
        }
    }

    /// Creates the backup of a time, unless it exists or has to wait for another.
    async fn make_backup(
        &self,
        schedule: &Schedule,
        time: Timestamp,
        now: Timestamp,
    ) -> Result<Requeue, ScheduleError> {
        if self.is_still_held(schedule).await? {
            return Ok(Requeue::After(held_pause(self.waits_for.lock().len())));
        }
        let others = self.backups_of(schedule).await.map_err(ScheduleError::List)?;
        let name = match naming(schedule, time, &others) {
            BackupNaming::Exists => None,
            BackupNaming::Create(name) => Some((name, None)),
            BackupNaming::CreateRenamed { name, usual_name: name_in_use } => {
                Some((name, Some(name_in_use)))
            }
            BackupNaming::NoFreeName(name) => return Err(ScheduleError::NameTaken(name)),
        };
        if let Some((name, name_in_use)) = name {
            if let Some(other) = others.iter().find(|backup| blocks_next(backup)) {
                self.enable(schedule).await?;
                tracing::debug!(
                    backup = other.name_any(),
                    "the previous backup is still in progress; the next one waits"
                );
                self.record_wait(schedule, other);
                return Ok(Requeue::After(held_pause(self.waits_for.lock().len())));
            }
            if let Some(name_in_use) = name_in_use {
                tracing::warn!(
                    backup = name,
                    name_in_use,
                    "the backup gets another name, because another cluster that uses the same \
                     bucket and prefix has created one with the usual name; use a separate prefix \
                     for each cluster"
                );
            }
            let wanted = backup(schedule, time);
            self.create(schedule, with_name(wanted, name)).await?;
        }
        let mut status = phase_patch(schedule, None).unwrap_or_else(|| json!({}));
        // Not the creation time of the Backup, which may be past the next scheduled time.
        status["lastBackup"] = json!(patch::truncate_to_second(now));
        self.patch_schedule(schedule, json!({ "status": status })).await?;
        Ok(Requeue::After(HELD_PAUSE))
    }

    /// True if a Schedule still has to wait for the Backup that it was seen to wait for.
    async fn is_still_held(&self, schedule: &Schedule) -> Result<bool, ScheduleError> {
        let name = schedule.name_any();
        let Some(other) = self.waits_for.lock().get(&name).cloned() else { return Ok(false) };
        let other = self.backups.get_opt(&other).await.map_err(ScheduleError::ReadBackup)?;
        let is_held = other.as_ref().is_some_and(blocks_next);
        if !is_held {
            self.waits_for.lock().remove(&name);
        }
        Ok(is_held)
    }

    fn record_wait(&self, schedule: &Schedule, other: &Backup) {
        let mut waiting = self.waits_for.lock();
        // Entries of deleted Schedules are dropped, so that there are never more entries than Schedules.
        if waiting.len() > self.all.len() {
            let all: HashSet<String> = self.all.state().iter().map(|one| one.name_any()).collect();
            waiting.retain(|name, _| all.contains(name));
        }
        waiting.insert(schedule.name_any(), other.name_any());
    }

    async fn create(&self, schedule: &Schedule, wanted: Backup) -> Result<(), ScheduleError> {
        let name = wanted.name_any();
        match self.backups.create(&patch::post_params(), &wanted).await {
            Ok(_) => {
                tracing::info!(backup = name, "backup created by its schedule");
                Ok(())
            }
            // Not in the list a moment ago: another server has just created it, or it is not of this Schedule. If it
            // was imported meanwhile, the next attempt uses another name.
            Err(error) if patch::is_already_exists(&error) => {
                let found = self.backups.get_opt(&name).await.map_err(ScheduleError::ReadBackup)?;
                let label = schedule_label(schedule);
                let is_ours = |found: &Backup| {
                    found.labels().get(label::SCHEDULE_NAME) == Some(&label) && !is_imported(found)
                };
                if found.as_ref().is_none_or(is_ours) {
                    Ok(())
                } else {
                    Err(ScheduleError::NameTaken(name))
                }
            }
            Err(error) => Err(ScheduleError::Create(name, error)),
        }
    }

    async fn backups_of(&self, schedule: &Schedule) -> kube::Result<Vec<Backup>> {
        let selector = format!("{}={}", label::SCHEDULE_NAME, schedule_label(schedule));
        list_all(&self.backups, ListParams::default().labels(&selector)).await
    }

    /// Sets the phase `Enabled`, if it is not set.
    async fn enable(&self, schedule: &Schedule) -> Result<(), ScheduleError> {
        match phase_patch(schedule, None) {
            Some(change) => self.patch_schedule(schedule, json!({ "status": change })).await,
            None => Ok(()),
        }
    }

    /// Patches a Schedule, provided that it has not changed since it was read.
    async fn patch_schedule(
        &self,
        schedule: &Schedule,
        change: Value,
    ) -> Result<(), ScheduleError> {
        let version = schedule.resource_version();
        let name = schedule.name_any();
        match patch::patch(&self.schedules, &name, version.as_deref(), change).await {
            Err(error) if !patch::is_not_found(&error) => Err(ScheduleError::WriteSchedule(error)),
            _ => Ok(()),
        }
    }
}

fn with_name(mut backup: Backup, name: String) -> Backup {
    backup.metadata.name = Some(name);
    backup
}

/// Patch of the status, if it has to change: the Schedule is enabled, or why it is invalid.
fn phase_patch(schedule: &Schedule, refusal: Option<&str>) -> Option<Value> {
    let status = schedule.status.clone().unwrap_or_default();
    let phase = match refusal {
        Some(_) => SchedulePhase::FailedValidation,
        None => SchedulePhase::Enabled,
    };
    let errors: Vec<String> = refusal.map(str::to_owned).into_iter().collect();
    let is_said = status.phase.as_ref() == Some(&phase) && status.validation_errors == errors;
    let errors = if errors.is_empty() { Value::Null } else { json!(errors) };
    (!is_said).then(|| json!({ "phase": phase, "validationErrors": errors }))
}

/// Pause until a time. A backup is due only after its time.
fn pause(next: Timestamp, now: Timestamp) -> Duration {
    let rest = Duration::try_from(next.duration_since(now)).unwrap_or_default();
    (rest + MIN_PAUSE).min(MAX_PAUSE)
}

/// Pause of a held Schedule, given the number of Schedules that wait.
fn held_pause(waiting: usize) -> Duration {
    let times = u32::try_from(waiting / HELD_PAUSE_STEP).unwrap_or(u32::MAX).saturating_add(1);
    HELD_PAUSE.saturating_mul(times).min(MAX_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_schedules_poll_less_often_when_many_wait() {
        for (waiting, seconds) in [(0, 2), (99, 2), (100, 4), (1000, 22), (1_000_000, 60)] {
            assert_eq!(held_pause(waiting), Duration::from_secs(seconds), "{waiting}");
        }
    }

    #[test]
    fn status_is_written_only_on_change() {
        let mut schedule = Schedule::default();
        let enabled = json!({"phase": "Enabled", "validationErrors": null});
        assert_eq!(phase_patch(&schedule, None), Some(enabled.clone()));
        schedule.status = Some(serde_json::from_value(json!({"phase": "Enabled"})).unwrap());
        assert_eq!(phase_patch(&schedule, None), None);
        let refused = json!({"phase": "FailedValidation", "validationErrors": ["no"]});
        assert_eq!(phase_patch(&schedule, Some("no")), Some(refused.clone()));
        schedule.status = Some(serde_json::from_value(refused).unwrap());
        assert_eq!(phase_patch(&schedule, Some("no")), None);
        assert!(phase_patch(&schedule, Some("not at all")).is_some());
        assert_eq!(phase_patch(&schedule, None), Some(enabled));
    }

    #[test]
    fn pause_ends_just_after_the_due_time_and_is_capped() {
        let at = |millisecond| Timestamp::from_millisecond(millisecond).unwrap();
        for (next, now, expected) in
            [(5000, 4000, 1010), (5000, 5000, 10), (5000, 9000, 10), (900_000, 0, 60_000)]
        {
            assert_eq!(pause(at(next), at(now)), Duration::from_millis(expected));
        }
    }
}
