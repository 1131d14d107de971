//! Schedules: whether a backup is due, and what it is made of. Nothing here asks anybody, or looks at a
//! clock.
//!
//! # Guarantees
//! - **Each time is kept once.** A backup is called after the time that it is for, so that whoever makes it
//!   a second time, after a crash or in place of another server, finds that it is there. A backup that was
//!   taken in from a bucket is that of another cluster, and keeps no time of this one.
//! - **What was missed is made up for once**, for the last of the times that have passed.
//!
//! Velero calls a backup after the moment at which it is made. In quiet times this is the same second.

pub mod cron;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bowline_api::{Backup, BackupPhase, Schedule, annotation, label};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource as _, ResourceExt as _};

use self::cron::Cron;

/// What `kubectl apply` notes of an object is true of that object alone.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What is to be done with a Schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleDecision {
    /// Nothing: it is paused, or on its way out.
    Idle,
    /// Nothing, and it says why.
    Refuse(String),
    /// Write down whether the time until now is left out, which is asked for once.
    RecordSkip {
        /// Whether it is.
        skip: bool,
    },
    /// Look again then.
    Wait(Timestamp),
    /// Make the backup of this time.
    CreateBackup(Timestamp),
}

/// Decides about a Schedule. Where it does not name a time zone it means `local`; where it does not say
/// whether the time until now is left out, `skips` says it.
pub fn decide(
    schedule: &Schedule,
    local: &TimeZone,
    skips: bool,
    now: Timestamp,
) -> ScheduleDecision {
    let spec = &schedule.spec;
    if spec.paused || schedule.metadata.deletion_timestamp.is_some() {
        return ScheduleDecision::Idle;
    }
    let cron = match parse(&spec.schedule) {
        Ok(cron) => cron,
        Err(reason) => return ScheduleDecision::Refuse(reason),
    };
    match spec.skip_immediately {
        None => return ScheduleDecision::RecordSkip { skip: skips },
        Some(true) => return ScheduleDecision::RecordSkip { skip: true },
        Some(false) => {}
    }
    let last = last_run(schedule, now);
    match (cron.last_before(now, last, local), cron.next(last, local)) {
        (Some(time), _) => ScheduleDecision::CreateBackup(time),
        (None, Some(next)) => ScheduleDecision::Wait(next),
        (None, None) => ScheduleDecision::Refuse(refusal(&cron::Error::Never)),
    }
}

/// What a Schedule's expression means, or why it is refused, in Velero's words as far as it has any.
pub fn parse(expression: &str) -> Result<Cron, String> {
    if expression.is_empty() {
        return Err("Schedule must be a non-empty valid Cron expression".to_owned());
    }
    expression.parse().map_err(|error| refusal(&error))
}

fn refusal(error: &cron::Error) -> String {
    format!("invalid schedule: {error}")
}

/// How far ahead of ours the clock may be that wrote a time.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);
const DAY: Duration = Duration::from_hours(24);

/// Up to when a Schedule has done its work.
///
/// A time in the future was written by a clock that was ahead. It would stop the Schedule until then, without a word.
/// So it counts for nothing: the backup of the last time that has passed is there, or is made again, and with it a
/// new time is noted.
fn last_run(schedule: &Schedule, now: Timestamp) -> Timestamp {
    let status = schedule.status.as_ref();
    let backup = status.and_then(|status| status.last_backup.as_ref()).map(|time| time.0);
    let created = schedule.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let skipped = status.and_then(|status| status.last_skipped.as_ref()).map(|time| time.0);
    let latest = now.checked_add(MAX_CLOCK_SKEW).unwrap_or(Timestamp::MAX);
    let day_ago = now.checked_sub(DAY).unwrap_or(Timestamp::MIN);
    let last = backup.or(created).max(skipped).unwrap_or(now);
    if last <= latest { last } else { created.filter(|at| *at <= now).unwrap_or(day_ago) }
}

/// The name of the backup of a time.
pub fn backup_name(schedule: &Schedule, time: Timestamp) -> String {
    format!("{}-{}", schedule.name_any(), time.strftime("%Y%m%d%H%M%S"))
}

/// What is known of the backup of a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupNaming {
    /// It is there.
    Exists,
    /// It is to be made under this name.
    Create(String),
    /// The same, since a backup that was taken in has the usual name.
    CreateRenamed {
        /// The name that it gets.
        name: String,
        /// The usual one.
        usual_name: String,
    },
    /// There is no name for it: this one was the last.
    NoFreeName(String),
}

/// What is known of the backup of a time; `backups` are those with the label of the Schedule.
///
/// Where two clusters share a bucket, the same Schedule in both comes to the same name. Whoever finds that the
/// other was first appends a part of the uid of its Schedule. That also follows from the time alone, so that it
/// is found after a crash, and it is another one in each cluster.
pub fn naming(schedule: &Schedule, time: Timestamp, backups: &[Backup]) -> BackupNaming {
    let usual = backup_name(schedule, time);
    let uid = schedule.uid().unwrap_or_default();
    let part = uid.split('-').next().filter(|part| !part.is_empty());
    let other = part.map(|part| format!("{usual}-{part}"));
    let find = |name: &str| backups.iter().find(|backup| backup.name_any() == name);
    let exists = |name: &String| find(name).is_some_and(|backup| !is_imported(backup));
    if exists(&usual) || other.as_ref().is_some_and(exists) {
        return BackupNaming::Exists;
    }
    match other {
        _ if find(&usual).is_none() => BackupNaming::Create(usual),
        Some(name) if find(&name).is_none() => {
            BackupNaming::CreateRenamed { name, usual_name: usual }
        }
        Some(name) => BackupNaming::NoFreeName(name),
        None => BackupNaming::NoFreeName(usual),
    }
}

/// Whether a Backup was taken in from a bucket, so that no Schedule here has made it.
pub fn is_imported(backup: &Backup) -> bool {
    backup.annotations().contains_key(annotation::RECORD_UID)
}

/// The backup of a time.
///
/// Labels come from the template, or from the Schedule if it has none; annotations from the Schedule.
pub fn backup(schedule: &Schedule, time: Timestamp) -> Backup {
    let template = &schedule.spec.template;
    let labels = match &template.metadata.labels {
        labels if labels.is_empty() => schedule.labels(),
        labels => labels,
    };
    let mut labels = labels.clone();
    labels.insert(label::SCHEDULE_NAME.to_owned(), schedule_label(schedule));
    let mut annotations = schedule.annotations().clone();
    // These are about the Schedule itself.
    for key in [LAST_APPLIED, annotation::CANCEL, annotation::RECORD_UID] {
        annotations.remove(key);
    }
    let owner = schedule.spec.use_owner_references_in_backup.unwrap_or_default();
    let owner = owner.then(|| schedule.owner_ref(&())).flatten();
    let owner = owner.map(|owner| vec![OwnerReference { controller: Some(true), ..owner }]);
    let metadata = ObjectMeta {
        name: Some(backup_name(schedule, time)),
        namespace: schedule.namespace(),
        labels: Some(labels),
        annotations: (!annotations.is_empty()).then_some(annotations),
        owner_references: owner,
        ..ObjectMeta::default()
    };
    Backup { metadata, spec: template.clone(), status: None }
}

/// What the backups of a Schedule are labelled with.
pub fn schedule_label(schedule: &Schedule) -> String {
    label::value(&schedule.name_any()).into_owned()
}

/// Whether a Schedule's next backup has to wait for this one.
///
/// Velero lets it wait for those that are new or in progress. In between they can be queued: those count
/// here as well, or a queue that does not move would grow for ever.
pub fn blocks_next(backup: &Backup) -> bool {
    use BackupPhase as Phase;
    match backup.status.as_ref().and_then(|status| status.phase.as_ref()) {
        None | Some(Phase::New | Phase::Queued | Phase::ReadyToStart | Phase::InProgress) => true,
        Some(Phase::Other(phase)) => phase.is_empty(),
        Some(_) => false,
    }
}
