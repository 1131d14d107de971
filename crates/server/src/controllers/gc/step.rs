//! Next step for a Backup that may have expired. Pure functions.

use std::time::Duration;

use bowline_api::backup_storage_location::AccessMode;
use bowline_api::delete_backup_request::DeleteBackupRequestPhase;
use bowline_api::location::LocationPhase;
use bowline_api::{
    Backup, BackupPhase, BackupStorageLocation, DeleteBackupRequest, Restore, RestorePhase,
};
use bowline_engine::backup::request::Lookup;
use jiff::Timestamp;

use crate::controllers::period::{self, Due};

/// Next step for a Backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetentionStep {
    Leave,
    /// Delete it when due.
    Expire(Due),
}

/// Decides when a Backup is deleted.
pub(super) fn decide(backup: &Backup, now: Timestamp) -> RetentionStep {
    let status = backup.status.as_ref();
    let is_over =
        status.and_then(|status| status.phase.as_ref()).is_some_and(BackupPhase::is_terminal);
    let expiration = status.and_then(|status| status.expiration.as_ref()).map(|time| time.0);
    match expiration {
        Some(expiration) if is_over && backup.metadata.deletion_timestamp.is_none() => {
            match Duration::try_from(expiration.duration_since(now)) {
                Ok(rest) if !rest.is_zero() => RetentionStep::Expire(Due::In(rest)),
                _ => RetentionStep::Expire(Due::Now),
            }
        }
        _ => RetentionStep::Leave,
    }
}

/// Reason why an expired Backup cannot be deleted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The location is gone.
    NotFound,
    /// The location cannot be read.
    CannotGet,
    /// The location is read-only.
    ReadOnly,
    /// The location cannot be reached, which may be temporary.
    Unavailable,
}

impl Obstacle {
    /// Value of Velero's label.
    pub(super) fn label(self) -> Option<&'static str> {
        match self {
            Self::NotFound => Some("BSLNotFound"),
            Self::CannotGet => Some("BSLCannotGet"),
            Self::ReadOnly => Some("BSLReadOnly"),
            Self::Unavailable => None,
        }
    }
}

/// Obstacle to the deletion of a Backup, from its location.
pub(super) fn obstacle_of(
    backup: &Backup,
    location: &Lookup<BackupStorageLocation>,
) -> Option<Obstacle> {
    let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
    if phase == Some(&BackupPhase::FailedValidation) {
        // The backup has stored nothing anywhere.
        return None;
    }
    let location = match location {
        Lookup::Found(location) => location,
        Lookup::Missing => return Some(Obstacle::NotFound),
        Lookup::Failed(_) => return Some(Obstacle::CannotGet),
    };
    let phase = location.status.as_ref().and_then(|status| status.phase.as_ref());
    if phase != Some(&LocationPhase::Available) {
        return Some(Obstacle::Unavailable);
    }
    (location.spec.access_mode == Some(AccessMode::ReadOnly)).then_some(Obstacle::ReadOnly)
}

/// An active Restore of a Backup.
pub(super) fn restore_using<'a>(backup: &Backup, restores: &'a [Restore]) -> Option<&'a Restore> {
    let name = backup.metadata.name.as_deref().unwrap_or_default();
    restores.iter().find(|restore| {
        let phase = restore.status.as_ref().and_then(|status| status.phase.as_ref());
        restore.spec.backup_name == name && !phase.is_some_and(RestorePhase::is_terminal)
    })
}

/// Time at which another request may be made for a Backup that has these; never while one is
/// unanswered.
pub(super) fn next_request_due(
    requests: &[DeleteBackupRequest],
    frequency: Duration,
    now: Timestamp,
) -> Due {
    let is_answered = |request: &DeleteBackupRequest| {
        let phase = request.status.as_ref().and_then(|status| status.phase.as_ref());
        phase.is_some_and(DeleteBackupRequestPhase::is_terminal)
    };
    if !requests.iter().all(is_answered) {
        return Due::Never;
    }
    let last = requests.iter().filter_map(kube::ResourceExt::creation_timestamp).max();
    period::due(last.map(|last| last.0), Some(frequency), now)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn backup(phase: &str) -> Backup {
        serde_json::from_value(json!({
            "apiVersion": "velero.io/v1",
            "kind": "Backup",
            "metadata": {"name": "b"},
            "spec": {"storageLocation": "l"},
            "status": {"phase": phase, "expiration": "2026-01-02T00:00:00Z"},
        }))
        .unwrap()
    }

    #[test]
    fn backup_is_in_use_while_it_is_restored() {
        let restore = |of: &str, phase: Option<&str>| -> Restore {
            let status = phase.map(|phase| json!({"phase": phase}));
            let object = json!({
                "apiVersion": "velero.io/v1", "kind": "Restore", "metadata": {"name": "r"},
                "spec": {"backupName": of}, "status": status,
            });
            serde_json::from_value(object).unwrap()
        };
        for (of, phase, is_used) in [
            ("b", None, true),
            ("b", Some("InProgress"), true),
            ("b", Some("Finalizing"), true),
            ("b", Some("Completed"), false),
            ("b", Some("FailedValidation"), false),
            ("other", Some("InProgress"), false),
        ] {
            let restores = [restore(of, phase)];
            let found = restore_using(&backup("Completed"), &restores);
            assert_eq!(found.is_some(), is_used, "{of} {phase:?}");
        }
    }

    #[test]
    fn only_finished_backups_expire() {
        for phase in BackupPhase::KNOWN {
            let step = decide(&backup(phase), at("2026-01-02T00:00:00Z"));
            let is_over = BackupPhase::from(*phase).is_terminal();
            assert_eq!(step == RetentionStep::Expire(Due::Now), is_over, "{phase}");
            assert_eq!(step == RetentionStep::Leave, !is_over, "{phase}");
        }
        let hour = Duration::from_hours(1);
        let before = decide(&backup("Completed"), at("2026-01-01T23:00:00Z"));
        assert_eq!(before, RetentionStep::Expire(Due::In(hour)));
        let mut changed = backup("Completed");
        changed.status.as_mut().unwrap().expiration = None;
        assert_eq!(
            decide(&changed, at("2036-01-01T00:00:00Z")),
            RetentionStep::Leave,
            "kept for ever"
        );
        let mut leaving = backup("Completed");
        leaving.metadata.deletion_timestamp = leaving.status.as_ref().unwrap().expiration.clone();
        assert_eq!(decide(&leaving, at("2036-01-01T00:00:00Z")), RetentionStep::Leave);
    }

    #[test]
    fn obstacle_labels_match_velero() {
        let location = |spec: &Value, phase: &str| {
            let mut spec = spec.clone();
            spec["provider"] = json!("aws");
            let location = json!({
                "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
                "metadata": {"name": "l"}, "spec": spec, "status": {"phase": phase},
            });
            Lookup::Found(serde_json::from_value(location).unwrap())
        };
        let read_only = json!({"accessMode": "ReadOnly"});
        for (location, expected, label) in [
            (Lookup::Missing, Some(Obstacle::NotFound), Some("BSLNotFound")),
            (Lookup::Failed("no".to_owned()), Some(Obstacle::CannotGet), Some("BSLCannotGet")),
            (location(&read_only, "Available"), Some(Obstacle::ReadOnly), Some("BSLReadOnly")),
            (location(&read_only, "Unavailable"), Some(Obstacle::Unavailable), None),
            (location(&json!({}), ""), Some(Obstacle::Unavailable), None),
            (location(&json!({}), "Available"), None, None),
        ] {
            let found = obstacle_of(&backup("Completed"), &location);
            assert_eq!(found, expected, "{location:?}");
            assert_eq!(found.and_then(Obstacle::label), label);
            assert_eq!(obstacle_of(&backup("FailedValidation"), &location), None);
        }
    }

    #[test]
    fn deletion_requests_are_sequential_and_rate_limited() {
        let request = |phase: &str, created: &str| -> DeleteBackupRequest {
            serde_json::from_value(json!({
                "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
                "metadata": {"name": "r", "creationTimestamp": created},
                "spec": {"backupName": "b"}, "status": {"phase": phase},
            }))
            .unwrap()
        };
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:50:00Z");
        let hour = Duration::from_hours(1);
        let rest = Due::In(Duration::from_mins(50));
        for (requests, expected) in [
            (vec![], Due::Now),
            (vec![request("", early)], Due::Never),
            (vec![request("New", early)], Due::Never),
            (vec![request("InProgress", early)], Due::Never),
            (vec![request("Processed", early)], Due::Now),
            (vec![request("Processed", late)], rest),
            (vec![request("Processed", late), request("Processed", early)], rest),
            (vec![request("Processed", early), request("New", late)], Due::Never),
        ] {
            let found = next_request_due(&requests, hour, at("2026-01-01T01:00:00Z"));
            assert_eq!(found, expected, "{requests:?}");
        }
    }
}
