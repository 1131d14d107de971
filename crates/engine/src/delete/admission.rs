//! Decides whether a backup may be deleted, before its bucket is read.
//!
//! Messages are Velero's where it has any. Velero refuses to delete a running backup; Bowline stops the backup first,
//! and deletes it when it has stopped.

use std::time::Duration;

use bowline_api::backup_storage_location::AccessMode;
use bowline_api::location::LocationPhase;
use bowline_api::{Backup, BackupPhase, BackupStorageLocation};

use crate::lookup::Lookup;

/// Maximum time for a backup to stop.
const STOP_TIMEOUT: Duration = Duration::from_hours(1);

/// Known facts about a requested deletion.
#[derive(Clone, Copy, Debug)]
pub struct DeletionFacts<'a> {
    /// The name in the request.
    pub name: &'a str,
    /// The uid of the backup that the request was made for, if specified.
    pub uid: Option<&'a str>,
    /// The backup of that name.
    pub backup: Option<&'a Backup>,
    /// True if this process is still working on the backup, whatever its phase says.
    pub is_running: bool,
    /// The location that the backup names.
    pub location: &'a Lookup<BackupStorageLocation>,
    /// Time since the backup was asked to stop because of the request; `None` if it was not.
    pub stopping: Option<Duration>,
}

/// Decision about a requested deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionVerdict {
    /// Delete the backup, unless its inventory gives rise to objections.
    Delete(Scope),
    /// Ask the backup to stop, and check again later.
    Wait,
    /// Do nothing, for this reason.
    Refuse(Refusal),
}

/// Extent of the deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Data, files and the Backup.
    Everything,
    /// The Backup alone: it failed validation and has not written anything.
    Object,
}

/// Why a backup is not deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request names no backup.
    #[error("spec.backupName is required")]
    NoName,
    /// The backup does not exist.
    #[error("backup not found")]
    NotFound,
    /// Another backup has the name.
    #[error("the request is for another backup of the same name, with uid {0}")]
    Other(String),
    /// The backup does not stop.
    #[error("backup is still in progress, although its cancellation was requested")]
    InProgress,
    /// The phase is unknown, so the backup may be running.
    #[error("backup has the phase {0:?}, which is unknown to this version")]
    UnknownPhase(String),
    /// The storage location does not exist.
    #[error("backup storage location {0} not found")]
    NoLocation(String),
    /// The storage location cannot be read.
    #[error("error getting backup storage location: {0}")]
    UnknownLocation(String),
    /// The storage location is read-only.
    #[error(
        "cannot delete backup because backup storage location {0} is currently in read-only mode"
    )]
    ReadOnly(String),
    /// The storage location is unavailable.
    #[error(
        "cannot delete backup because backup storage location {0} is currently in Unavailable state"
    )]
    Unavailable(String),
}

/// Decides whether a backup may be deleted.
pub fn check_deletion(facts: &DeletionFacts<'_>) -> DeletionVerdict {
    match decide(facts) {
        Ok(verdict) => verdict,
        Err(refusal) => DeletionVerdict::Refuse(refusal),
    }
}

fn decide(facts: &DeletionFacts<'_>) -> Result<DeletionVerdict, Refusal> {
    if facts.name.is_empty() {
        return Err(Refusal::NoName);
    }
    let backup = facts.backup.ok_or(Refusal::NotFound)?;
    match (facts.uid, backup.metadata.uid.as_deref()) {
        (Some(wanted), found) if found != Some(wanted) => {
            return Err(Refusal::Other(wanted.to_owned()));
        }
        _ => {}
    }
    let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
    if let Some(BackupPhase::Other(text)) = phase
        && !text.is_empty()
    {
        return Err(Refusal::UnknownPhase(text.clone()));
    }
    let has_ended = phase.is_some_and(BackupPhase::is_terminal) && !facts.is_running;
    // A backup without a location has no data in one.
    let has_location = !backup.spec.storage_location.is_empty();
    if has_ended && (phase == Some(&BackupPhase::FailedValidation) || !has_location) {
        return Ok(DeletionVerdict::Delete(Scope::Object));
    }
    if has_location {
        // Applies to a running backup too: it must not be stopped in vain.
        check_location(backup, facts.location)?;
    }
    match has_ended {
        true => Ok(DeletionVerdict::Delete(Scope::Everything)),
        // Not since the request was made: the request may have been queued.
        false if facts.stopping.is_none_or(|since| since < STOP_TIMEOUT) => {
            Ok(DeletionVerdict::Wait)
        }
        false => Err(Refusal::InProgress),
    }
}

fn check_location(
    backup: &Backup,
    location: &Lookup<BackupStorageLocation>,
) -> Result<(), Refusal> {
    let name = || backup.spec.storage_location.clone();
    let location = match location {
        Lookup::Found(location) => location,
        Lookup::Missing => return Err(Refusal::NoLocation(name())),
        Lookup::Failed(error) => return Err(Refusal::UnknownLocation(error.clone())),
    };
    if location.spec.access_mode == Some(AccessMode::ReadOnly) {
        return Err(Refusal::ReadOnly(name()));
    }
    let phase = location.status.as_ref().and_then(|status| status.phase.as_ref());
    if phase == Some(&LocationPhase::Available) {
        Ok(())
    } else {
        Err(Refusal::Unavailable(name()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn backup(phase: &str, location: &str) -> Backup {
        serde_json::from_value(json!({
            "metadata": {"name": "b", "uid": "u"},
            "spec": {"storageLocation": location},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn location(mode: &str, phase: &str) -> Lookup<BackupStorageLocation> {
        let location = json!({
            "metadata": {"name": "l"}, "spec": {"accessMode": mode}, "status": {"phase": phase},
        });
        Lookup::Found(serde_json::from_value(location).unwrap())
    }

    fn usable() -> Lookup<BackupStorageLocation> {
        location("ReadWrite", "Available")
    }

    fn facts<'a>(
        backup: &'a Backup,
        location: &'a Lookup<BackupStorageLocation>,
    ) -> DeletionFacts<'a> {
        let stopping = Some(Duration::from_secs(1));
        DeletionFacts {
            name: "b",
            uid: Some("u"),
            backup: Some(backup),
            is_running: false,
            location,
            stopping,
        }
    }

    #[test]
    fn ended_backup_is_deleted_and_running_one_is_stopped_first() {
        let usable = usable();
        for phase in BackupPhase::KNOWN {
            let backup = backup(phase, "l");
            let expected = match *phase {
                "Completed" | "PartiallyFailed" | "Failed" | "Deleting" => {
                    DeletionVerdict::Delete(Scope::Everything)
                }
                "FailedValidation" => DeletionVerdict::Delete(Scope::Object),
                _ => DeletionVerdict::Wait,
            };
            assert_eq!(check_deletion(&facts(&backup, &usable)), expected, "{phase}");
            let running = DeletionFacts { is_running: true, ..facts(&backup, &usable) };
            assert_eq!(check_deletion(&running), DeletionVerdict::Wait, "{phase}");
        }
        for phase in ["", "New"] {
            assert_eq!(
                check_deletion(&facts(&backup(phase, ""), &Lookup::Missing)),
                DeletionVerdict::Wait
            );
        }
        let strange = check_deletion(&facts(&backup("Teleporting", "l"), &usable));
        assert_eq!(
            strange,
            DeletionVerdict::Refuse(Refusal::UnknownPhase("Teleporting".to_owned()))
        );
    }

    #[test]
    fn backup_that_does_not_stop_is_refused_after_the_timeout() {
        let (backup, location) = (backup("InProgress", "l"), usable());
        let verdict_after =
            |stopping| check_deletion(&DeletionFacts { stopping, ..facts(&backup, &location) });
        assert_eq!(
            verdict_after(Some(STOP_TIMEOUT.saturating_sub(Duration::from_secs(1)))),
            DeletionVerdict::Wait
        );
        assert_eq!(verdict_after(Some(STOP_TIMEOUT)), DeletionVerdict::Refuse(Refusal::InProgress));
        // A backup that was never asked to stop is asked first, however old the request is.
        assert_eq!(verdict_after(None), DeletionVerdict::Wait);
    }

    #[test]
    fn refusals_use_veleros_messages() {
        let refused = |facts: DeletionFacts<'_>| match check_deletion(&facts) {
            DeletionVerdict::Refuse(refusal) => refusal.to_string(),
            other => panic!("{other:?}"),
        };
        let (whole, usable) = (backup("Completed", "l"), usable());
        let fine = facts(&whole, &usable);
        assert_eq!(refused(DeletionFacts { name: "", ..fine }), "spec.backupName is required");
        assert_eq!(refused(DeletionFacts { backup: None, ..fine }), "backup not found");
        let other = refused(DeletionFacts { uid: Some("v"), ..fine });
        assert!(other.contains("another backup of the same name, with uid v"), "{other}");
        let cannot = "cannot delete backup because backup storage location l is currently in";
        for (location, expected) in [
            (Lookup::Missing, "backup storage location l not found".to_owned()),
            (Lookup::Failed("no".to_owned()), "error getting backup storage location: no".into()),
            (location("ReadOnly", "Available"), format!("{cannot} read-only mode")),
            (location("", "Unavailable"), format!("{cannot} Unavailable state")),
            (location("", ""), format!("{cannot} Unavailable state")),
        ] {
            assert_eq!(refused(facts(&whole, &location)), expected);
            // A running backup is not stopped in vain.
            assert_eq!(refused(facts(&backup("InProgress", "l"), &location)), expected);
        }
    }

    #[test]
    fn backup_that_never_started_needs_no_location() {
        for (phase, location) in
            [("FailedValidation", "gone"), ("FailedValidation", ""), ("Failed", "")]
        {
            let verdict = check_deletion(&facts(&backup(phase, location), &Lookup::Missing));
            assert_eq!(verdict, DeletionVerdict::Delete(Scope::Object), "{phase} {location}");
        }
        let started = check_deletion(&facts(&backup("Failed", "gone"), &Lookup::Missing));
        assert_eq!(started, DeletionVerdict::Refuse(Refusal::NoLocation("gone".to_owned())));
    }

    #[test]
    fn request_without_uid_matches_by_name() {
        let (backup, location) = (backup("Completed", "l"), usable());
        let verdict = check_deletion(&DeletionFacts { uid: None, ..facts(&backup, &location) });
        assert_eq!(verdict, DeletionVerdict::Delete(Scope::Everything));
    }
}
