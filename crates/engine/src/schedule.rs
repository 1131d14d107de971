//! Schedules: when a backup is due, and the Backup to create. Pure: no I/O, no clock.
//!
//! # Guarantees
//! - **Each time leads to one backup.** A backup is named after its scheduled time, so that a
//!   second attempt, after a crash or by another server, finds it. A backup imported from a bucket
//!   belongs to another cluster, and does not count for a time of this one.
//! - **Missed times are made up for once**, by a backup for the last time that has passed.
//!
//! Velero names a backup after the moment of its creation. On an idle server this is the same
//! second.

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

/// Annotation of `kubectl apply`, which describes only the object that carries it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Next action for a Schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleDecision {
    /// Nothing: the Schedule is paused or being deleted.
    Idle,
    /// Nothing: the Schedule is invalid, for this reason.
    Refuse(InvalidSchedule),
    /// Record whether the time until now is skipped, which is decided once.
    RecordSkip {
        /// True to skip the time until now.
        skip: bool,
    },
    /// Check again at this time.
    Wait(Timestamp),
    /// Create the backup of this time.
    CreateBackup(Timestamp),
}

/// Why the expression of a Schedule is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSchedule {
    /// There is none. The text is Velero's.
    #[error("Schedule must be a non-empty valid Cron expression")]
    Empty,
    /// It is no cron expression, or has no time.
    #[error("invalid schedule")]
    Cron(#[from] cron::Error),
}

/// Decides about a Schedule. `local` is the zone of an expression without one; `skips` is the
/// default of a Schedule without `skipImmediately`.
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
        (None, None) => ScheduleDecision::Refuse(cron::Error::Never.into()),
    }
}

/// Parses the expression of a Schedule.
pub fn parse(expression: &str) -> Result<Cron, InvalidSchedule> {
    if expression.is_empty() {
        return Err(InvalidSchedule::Empty);
    }
    Ok(expression.parse::<Cron>()?)
}

/// Maximum lead of the clock that wrote a time over ours.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);
const DAY: Duration = Duration::from_hours(24);

/// Time up to which a Schedule is done.
///
/// A time in the future was written by a clock that was ahead. It would silently stop the Schedule
/// until then. So it is ignored: the backup of the last time that has passed exists, or is created,
/// and with it a new time is recorded.
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

/// Name of the backup of a time.
pub fn backup_name(schedule: &Schedule, time: Timestamp) -> String {
    format!("{}-{}", schedule.name_any(), time.strftime("%Y%m%d%H%M%S"))
}

/// State of the backup of a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupNaming {
    /// The backup exists.
    Exists,
    /// The backup is to be created under this name.
    Create(String),
    /// The backup is to be created under another name, since an imported backup has the usual one.
    CreateRenamed {
        /// Name of the new backup.
        name: String,
        /// Usual name.
        usual_name: String,
    },
    /// All candidate names are in use; this was the last.
    NoFreeName(String),
}

/// State of the backup of a time; `backups` are those with the label of the Schedule.
///
/// If two clusters share a bucket, the same Schedule in both leads to the same name. The cluster
/// that comes second appends a part of the uid of its Schedule. That name also follows from the
/// time alone, so that it is found after a crash, and it differs between clusters.
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

/// True for a Backup that was imported from a bucket, so that no Schedule here has created it.
pub fn is_imported(backup: &Backup) -> bool {
    backup.annotations().contains_key(annotation::RECORD_UID)
}

/// Backup of a time.
///
/// Labels come from the template, or from the Schedule if the template has none; annotations from
/// the Schedule.
pub fn backup(schedule: &Schedule, time: Timestamp) -> Backup {
    let template = &schedule.spec.template;
    let labels = match &template.metadata.labels {
        labels if labels.is_empty() => schedule.labels(),
        labels => labels,
    };
    let mut labels = labels.clone();
    labels.insert(label::SCHEDULE_NAME.to_owned(), schedule_label(schedule));
    let mut annotations = schedule.annotations().clone();
    // These concern the Schedule itself.
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

/// Label value of the backups of a Schedule.
pub fn schedule_label(schedule: &Schedule) -> String {
    label::value(&schedule.name_any()).into_owned()
}

/// True if the next backup of a Schedule has to wait for this one.
///
/// Velero waits for backups that are new or in progress. In between, backups can be queued: those
/// count here as well, or a stuck queue would grow without bound.
pub fn blocks_next(backup: &Backup) -> bool {
    use BackupPhase as Phase;
    match backup.status.as_ref().and_then(|status| status.phase.as_ref()) {
        None | Some(Phase::New | Phase::Queued | Phase::ReadyToStart | Phase::InProgress) => true,
        Some(Phase::Other(phase)) => phase.is_empty(),
        Some(_) => false,
    }
}
