//! Next step for a request, derived from the request alone.

use std::time::Duration;

use bowline_api::delete_backup_request::DeleteBackupRequestPhase as Phase;
use bowline_api::{BackupPhase, DeleteBackupRequest, annotation, label};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::controllers::period::{self, Due};

/// Time for which an answered request is kept, as in Velero.
pub(super) const MAX_AGE: Duration = Duration::from_hours(24);

/// Next step for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestStep {
    /// Fulfil it, or resume that.
    Work,
    /// Remove it when due.
    Expire(Due),
    /// Leave it alone.
    Leave,
}

/// Decides the next step for a request.
pub(super) fn decide(request: &DeleteBackupRequest, now: Timestamp) -> RequestStep {
    if request.metadata.deletion_timestamp.is_some() {
        return RequestStep::Leave;
    }
    match phase(request) {
        // A request in progress was started by a server that is gone: this server does one thing at a time.
        None | Some(Phase::New | Phase::InProgress) => RequestStep::Work,
        Some(Phase::Processed) => match request.creation_timestamp() {
            Some(created) => RequestStep::Expire(period::due(Some(created.0), Some(MAX_AGE), now)),
            None => RequestStep::Leave,
        },
        Some(Phase::Other(text)) if text.is_empty() => RequestStep::Work,
        Some(Phase::Other(_)) => RequestStep::Leave,
    }
}

/// True if a server has started to fulfil a request.
pub(super) fn is_in_progress(request: &DeleteBackupRequest) -> bool {
    phase(request) == Some(&Phase::InProgress)
}

/// Time since the backup was asked to stop because of a request; none if it was not. Zero where clocks differ.
pub(super) fn stop_requested_for(
    request: &DeleteBackupRequest,
    now: Timestamp,
) -> Option<Duration> {
    let asked = request.annotations().get(annotation::STOP_ASKED)?.parse::<Timestamp>().ok()?;
    Some(Duration::try_from(now.duration_since(asked)).unwrap_or_default())
}

/// True if a request was made because a backup has expired.
pub(super) fn is_by_retention(request: &DeleteBackupRequest) -> bool {
    let by = request.labels().get(label::REQUESTED_BY);
    by.is_some_and(|by| by == label::BY_RETENTION)
}

/// True if a request for a backup makes another one superfluous, as in Velero. A request made by retention may be refused
/// where the request of a user is not, so it replaces none.
pub(super) fn replaces(request: &DeleteBackupRequest, other: &DeleteBackupRequest) -> bool {
    !is_by_retention(request) || is_by_retention(other)
}

/// True if a restore of the backup keeps a request from being fulfilled: one made by retention, for a backup whose
/// deletion has not started. `backup` is its phase before that. Users may stop a restore by deleting its backup, a clock may not; a deletion that has
/// started is completed, since the backup can no longer be restored.
pub(super) fn yields_to_restores(
    request: &DeleteBackupRequest,
    backup: Option<&BackupPhase>,
) -> bool {
    is_by_retention(request) && backup != Some(&BackupPhase::Deleting)
}

/// Number of times that the deletion was started and has not ended. Something in the backup may crash the server.
pub(super) fn attempts(request: &DeleteBackupRequest) -> u32 {
    let annotation_value = request.annotations().get(annotation::DELETION_ATTEMPTS);
    annotation_value.and_then(|count| count.parse().ok()).unwrap_or_default()
}

fn phase(request: &DeleteBackupRequest) -> Option<&Phase> {
    request.status.as_ref().and_then(|status| status.phase.as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(phase: &str) -> DeleteBackupRequest {
        serde_json::from_value(json!({
            "metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"backupName": "b"},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn unanswered_requests_are_processed_and_answered_ones_expire() {
        let now = at("2026-01-01T23:00:00Z");
        let hour = Duration::from_hours(1);
        for (phase, expected) in [
            ("", RequestStep::Work),
            ("New", RequestStep::Work),
            ("InProgress", RequestStep::Work),
            ("Processed", RequestStep::Expire(Due::In(hour))),
            ("Pondered", RequestStep::Leave),
        ] {
            assert_eq!(decide(&request(phase), now), expected, "{phase:?}");
        }
        assert_eq!(decide(&DeleteBackupRequest::default(), now), RequestStep::Work);
        let later = at("2026-01-02T00:00:00Z");
        assert_eq!(decide(&request("Processed"), later), RequestStep::Expire(Due::Now));
        // However long it takes.
        assert_eq!(decide(&request("InProgress"), at("2027-01-01T00:00:00Z")), RequestStep::Work);
        let mut leaving = request("New");
        leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
        assert_eq!(decide(&leaving, now), RequestStep::Leave);
    }

    #[test]
    fn stop_time_counts_from_the_stop_request() {
        let mut request = request("New");
        let now = at("2026-01-01T05:00:05Z");
        assert_eq!(stop_requested_for(&request, now), None, "it has waited for its turn");
        let asked = "2026-01-01T05:00:00Z".to_owned();
        request.annotations_mut().insert(annotation::STOP_ASKED.to_owned(), asked);
        assert_eq!(stop_requested_for(&request, now), Some(Duration::from_secs(5)));
        assert_eq!(stop_requested_for(&request, at("2025-12-31T00:00:00Z")), Some(Duration::ZERO));
    }

    #[test]
    fn request_records_its_requester_and_attempts() {
        let mut request = request("New");
        assert!(!is_by_retention(&request));
        assert_eq!(attempts(&request), 0);
        request.labels_mut().insert(label::REQUESTED_BY.to_owned(), "retention".to_owned());
        request.annotations_mut().insert(annotation::DELETION_ATTEMPTS.to_owned(), "3".to_owned());
        assert!(is_by_retention(&request));
        assert_eq!(attempts(&request), 3);
    }

    #[test]
    fn retention_yields_to_restores_and_users_do_not() {
        let by_user = request("New");
        let mut by_retention = request("New");
        by_retention.labels_mut().insert(label::REQUESTED_BY.to_owned(), "retention".to_owned());
        for phase in ["Completed", "PartiallyFailed", "Failed"] {
            let phase = BackupPhase::from(phase);
            assert!(yields_to_restores(&by_retention, Some(&phase)), "{phase}");
            assert!(!yields_to_restores(&by_user, Some(&phase)), "{phase}");
        }
        assert!(!yields_to_restores(&by_retention, Some(&BackupPhase::Deleting)), "it has begun");
    }

    #[test]
    fn request_made_by_retention_replaces_no_request_of_a_user() {
        let by_user = request("New");
        let mut by_retention = by_user.clone();
        let by = (label::REQUESTED_BY.to_owned(), label::BY_RETENTION.to_owned());
        by_retention.metadata.labels = Some([by].into());
        assert!(replaces(&by_user, &by_user) && replaces(&by_user, &by_retention));
        assert!(replaces(&by_retention, &by_retention));
        assert!(!replaces(&by_retention, &by_user));
    }
}
