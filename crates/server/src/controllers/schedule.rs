//! Schedules: makes their backups when they are due.
//!
//! What is due is decided by [`bowline_engine::schedule`]. Here the Schedule is read afresh, its backups are
//! listed, and the verdict is carried out:
//!
//! 1. the Backup is created, under a name that its time decides;
//! 2. the Schedule notes when.
//!
//! A server that ends in between has not noted it. The next one comes to the same name, finds the Backup, and
//! notes that. So no time is kept twice, and none is forgotten.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_api::schedule::SchedulePhase;
use bowline_api::{Backup, Schedule, label};
use bowline_engine::schedule::{
    self, Naming, Verdict, backup, holds, is_taken_in, naming, schedule_label,
};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use kube::api::ListParams;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::metrics::Source;
use crate::patch;
use crate::server::{Context, Error};
use crate::watch::{Next, Watch};

/// How many Schedules are worked on at a time.
const AT_ONCE: u16 = 8;
/// The longest pause between two looks at a Schedule: clocks can be set.
const LONGEST: Duration = Duration::from_mins(1);
/// The shortest one.
const SHORTEST: Duration = Duration::from_millis(10);
/// When to look again at a Schedule whose last backup has not got far enough, if few have to wait.
const HELD: Duration = Duration::from_secs(2);
/// The pause grows by [`HELD`] for each so many that wait, so that none starves.
const MANY: usize = 100;
/// How many Backups are listed at a time.
const PAGE: u32 = 500;

/// Works until asked to stop.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let watch = Watch::new(context.api::<Schedule>()).concurrency(AT_ONCE);
    context.metrics.see(Source::Schedules(watch.store()));
    let stop = context.stop.clone();
    let local = TimeZone::system();
    tracing::debug!(zone = local.iana_name(), "schedules that name no time zone mean this one");
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

/// Why a Schedule could not be worked on this time. It is tried again.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot read it")]
    Read(#[source] kube::Error),
    #[error("cannot note what became of it")]
    Note(#[source] kube::Error),
    #[error("cannot list its backups")]
    List(#[source] kube::Error),
    #[error("cannot create the Backup `{0}`")]
    Create(String, #[source] kube::Error),
    #[error(
        "cannot create the Backup `{0}`: there is one of this name that is not of this Schedule"
    )]
    Taken(String),
}

struct Controller {
    schedules: Api<Schedule>,
    backups: Api<Backup>,
    /// Whether Schedules that do not say so leave out the time until they are first seen.
    skips: bool,
    local: TimeZone,
    /// Which Backup a Schedule was seen to wait for. It is looked at alone until it has got far enough: a Schedule
    /// may have thousands.
    waits_for: Mutex<HashMap<String, String>>,
    /// All Schedules, as far as the watch knows.
    all: Store<Schedule>,
}

impl Controller {
    async fn reconcile(&self, seen: &Schedule) -> Result<Next, Failure> {
        let now = Timestamp::now();
        let verdict = self.decide(seen, now);
        if let Verdict::Rest | Verdict::Wait(_) = verdict {
            return self.carry_out(seen, verdict, now).await;
        }
        // The watch may be behind what we wrote ourselves a moment ago.
        let read = self.schedules.get_opt(&seen.name_any()).await.map_err(Failure::Read)?;
        let Some(schedule) = read else { return Ok(Next::Done) };
        let now = Timestamp::now();
        self.carry_out(&schedule, self.decide(&schedule, now), now).await
    }

    fn decide(&self, schedule: &Schedule, now: Timestamp) -> Verdict {
        schedule::decide(schedule, &self.local, self.skips, now)
    }

    /// Carries out what was decided at a time.
    async fn carry_out(
        &self,
        schedule: &Schedule,
        verdict: Verdict,
        now: Timestamp,
    ) -> Result<Next, Failure> {
        match verdict {
            Verdict::Rest => Ok(Next::Done),
            Verdict::Refuse(reason) => {
                if let Some(change) = phase(schedule, Some(&reason)) {
                    tracing::warn!(reason, "the schedule is refused");
                    self.note(schedule, json!({ "status": change })).await?;
                }
                Ok(Next::Done)
            }
            Verdict::Settle { skip } => {
                let mut change = json!({ "spec": { "skipImmediately": false } });
                if skip {
                    change["status"] = json!({ "lastSkipped": patch::to_the_second(now) });
                }
                self.note(schedule, change).await?;
                // It is seen again, since it changed; this is for a watch that is late.
                Ok(Next::Again(HELD))
            }
            Verdict::Wait(next) => {
                self.enable(schedule).await?;
                Ok(Next::Again(pause(next, Timestamp::now())))
            }
            Verdict::Make(time) => self.make(schedule, time, now).await,
        }
    }

    /// Makes the backup of a time, unless it is there or has to wait for another.
    async fn make(
        &self,
        schedule: &Schedule,
        time: Timestamp,
        now: Timestamp,
    ) -> Result<Next, Failure> {
        if self.still_waits(schedule).await? {
            return Ok(Next::Again(held_pause(self.waiting().len())));
        }
        let others = self.backups_of(schedule).await.map_err(Failure::List)?;
        let name = match naming(schedule, time, &others) {
            Naming::Made => None,
            Naming::Make(name) => Some((name, None)),
            Naming::MakeInstead { name, taken } => Some((name, Some(taken))),
            Naming::Taken(name) => return Err(Failure::Taken(name)),
        };
        if let Some((name, taken)) = name {
            if let Some(other) = others.iter().find(|backup| holds(backup)) {
                self.enable(schedule).await?;
                tracing::debug!(
                    backup = other.name_any(),
                    "is not past its items, so the next waits"
                );
                self.waits_for(schedule, other);
                return Ok(Next::Again(held_pause(self.waiting().len())));
            }
            if let Some(taken) = taken {
                tracing::warn!(
                    backup = name,
                    taken,
                    "is called so, since another cluster that writes to the same place has made one of \
                     the usual name; give each cluster a prefix of its own"
                );
            }
            let wanted = backup(schedule, time);
            self.create(schedule, named(wanted, name)).await?;
        }
        let mut status = phase(schedule, None).unwrap_or_else(|| json!({}));
        // Not when it was made, which may be past the next time.
        status["lastBackup"] = json!(patch::to_the_second(now));
        self.note(schedule, json!({ "status": status })).await?;
        Ok(Next::Again(HELD))
    }

    /// Whether the Backup that a Schedule was seen to wait for is still one to wait for.
    async fn still_waits(&self, schedule: &Schedule) -> Result<bool, Failure> {
        let name = schedule.name_any();
        let Some(other) = self.waiting().get(&name).cloned() else { return Ok(false) };
        let other = self.backups.get_opt(&other).await.map_err(Failure::Read)?;
        let is_held = other.as_ref().is_some_and(holds);
        if !is_held {
            self.waiting().remove(&name);
        }
        Ok(is_held)
    }

    fn waits_for(&self, schedule: &Schedule, other: &Backup) {
        let mut waiting = self.waiting();
        // Those that are gone are forgotten, so that there are no more than Schedules.
        if waiting.len() > self.all.len() {
            let all: HashSet<String> = self.all.state().iter().map(|one| one.name_any()).collect();
            waiting.retain(|name, _| all.contains(name));
        }
        waiting.insert(schedule.name_any(), other.name_any());
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.waits_for.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn create(&self, schedule: &Schedule, wanted: Backup) -> Result<(), Failure> {
        let name = wanted.name_any();
        match self.backups.create(&patch::post_params(), &wanted).await {
            Ok(_) => {
                tracing::info!(backup = name, "made by its schedule");
                Ok(())
            }
            // Not in the list a moment ago: another server has just made it, or it is not of ours. If it was
            // taken in meanwhile, the next try finds another name.
            Err(error) if patch::is_taken(&error) => {
                let found = self.backups.get_opt(&name).await.map_err(Failure::Read)?;
                let label = schedule_label(schedule);
                let is_ours = |found: &Backup| {
                    found.labels().get(label::SCHEDULE_NAME) == Some(&label) && !is_taken_in(found)
                };
                if found.as_ref().is_none_or(is_ours) { Ok(()) } else { Err(Failure::Taken(name)) }
            }
            Err(error) => Err(Failure::Create(name, error)),
        }
    }

    /// All Backups of a Schedule.
    async fn backups_of(&self, schedule: &Schedule) -> kube::Result<Vec<Backup>> {
        let selector = format!("{}={}", label::SCHEDULE_NAME, schedule_label(schedule));
        let mut params = ListParams::default().labels(&selector).limit(PAGE);
        let mut backups = Vec::new();
        loop {
            let page = self.backups.list(&params).await?;
            backups.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(backups),
            }
        }
    }

    /// Writes that a Schedule works, if it does not say so.
    async fn enable(&self, schedule: &Schedule) -> Result<(), Failure> {
        match phase(schedule, None) {
            Some(change) => self.note(schedule, json!({ "status": change })).await,
            None => Ok(()),
        }
    }

    /// Changes a Schedule that nobody else has changed since.
    async fn note(&self, schedule: &Schedule, change: Value) -> Result<(), Failure> {
        let version = schedule.resource_version();
        let name = schedule.name_any();
        match patch::patch(&self.schedules, &name, version.as_deref(), change).await {
            Err(error) if !patch::is_missing(&error) => Err(Failure::Note(error)),
            _ => Ok(()),
        }
    }
}

/// A Backup under another name.
fn named(mut backup: Backup, name: String) -> Backup {
    backup.metadata.name = Some(name);
    backup
}

/// What the status must say, if it does not yet: that the Schedule works, or why it does not.
fn phase(schedule: &Schedule, refusal: Option<&str>) -> Option<Value> {
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

/// How long to wait for a time. It is due only after it.
fn pause(next: Timestamp, now: Timestamp) -> Duration {
    let rest = Duration::try_from(next.duration_since(now)).unwrap_or_default();
    (rest + SHORTEST).min(LONGEST)
}

/// How long to wait for a backup, if so many Schedules wait for theirs.
fn held_pause(waiting: usize) -> Duration {
    let times = u32::try_from(waiting / MANY).unwrap_or(u32::MAX).saturating_add(1);
    HELD.saturating_mul(times).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_wait_the_less_often_each_looks() {
        for (waiting, seconds) in [(0, 2), (99, 2), (100, 4), (1000, 22), (1_000_000, 60)] {
            assert_eq!(held_pause(waiting), Duration::from_secs(seconds), "{waiting}");
        }
    }

    #[test]
    fn the_status_is_written_only_when_it_says_something_else() {
        let mut schedule = Schedule::default();
        let enabled = json!({"phase": "Enabled", "validationErrors": null});
        assert_eq!(phase(&schedule, None), Some(enabled.clone()));
        schedule.status = Some(serde_json::from_value(json!({"phase": "Enabled"})).unwrap());
        assert_eq!(phase(&schedule, None), None);
        let refused = json!({"phase": "FailedValidation", "validationErrors": ["no"]});
        assert_eq!(phase(&schedule, Some("no")), Some(refused.clone()));
        schedule.status = Some(serde_json::from_value(refused).unwrap());
        assert_eq!(phase(&schedule, Some("no")), None);
        assert!(phase(&schedule, Some("not at all")).is_some());
        assert_eq!(phase(&schedule, None), Some(enabled));
    }

    #[test]
    fn a_pause_ends_just_after_the_time_and_is_never_long() {
        let at = |millisecond| Timestamp::from_millisecond(millisecond).unwrap();
        for (next, now, expected) in
            [(5000, 4000, 1010), (5000, 5000, 10), (5000, 9000, 10), (900_000, 0, 60_000)]
        {
            assert_eq!(pause(at(next), at(now)), Duration::from_millis(expected));
        }
    }
}
