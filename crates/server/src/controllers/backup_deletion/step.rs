//! What is to be done with a request, from what it says of itself.

use std::time::Duration;

use bowline_api::DeleteBackupRequest;
use bowline_api::delete_backup_request::DeleteBackupRequestPhase as Phase;
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::controllers::period::{self, Due};

/// How long a request is kept that was answered, as in Velero.
pub(super) const MAX_AGE: Duration = Duration::from_hours(24);

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Fulfil it, or go on with that.
    Work,
    /// Remove it then.
    Expire(Due),
    /// It is none of our business.
    Leave,
}

/// What is to be done with a request.
pub(super) fn decide(request: &DeleteBackupRequest, now: Timestamp) -> Step {
    if request.metadata.deletion_timestamp.is_some() {
        return Step::Leave;
    }
    match phase(request) {
        // One in progress was begun by a server that is gone: this one does one thing at a time.
        None | Some(Phase::New | Phase::InProgress) => Step::Work,
        Some(Phase::Processed) => match request.creation_timestamp() {
            Some(created) => Step::Expire(period::due(Some(created.0), Some(MAX_AGE), now)),
            None => Step::Leave,
        },
        Some(Phase::Other(text)) if text.is_empty() => Step::Work,
        Some(Phase::Other(_)) => Step::Leave,
    }
}

/// Whether a server has begun to fulfil a request.
pub(super) fn is_in_progress(request: &DeleteBackupRequest) -> bool {
    phase(request) == Some(&Phase::InProgress)
}

/// How long ago a request was made. Where clocks differ it was made now.
pub(super) fn age(request: &DeleteBackupRequest, now: Timestamp) -> Duration {
    let created = request.creation_timestamp().map_or(now, |created| created.0);
    Duration::try_from(now.duration_since(created)).unwrap_or_default()
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
    fn what_was_not_answered_is_worked_on_and_what_was_goes_after_a_day() {
        let now = at("2026-01-01T23:00:00Z");
        let hour = Duration::from_hours(1);
        for (phase, expected) in [
            ("", Step::Work),
            ("New", Step::Work),
            ("InProgress", Step::Work),
            ("Processed", Step::Expire(Due::In(hour))),
            ("Pondered", Step::Leave),
        ] {
            assert_eq!(decide(&request(phase), now), expected, "{phase:?}");
        }
        assert_eq!(decide(&DeleteBackupRequest::default(), now), Step::Work);
        let later = at("2026-01-02T00:00:00Z");
        assert_eq!(decide(&request("Processed"), later), Step::Expire(Due::Now));
        // However long it takes.
        assert_eq!(decide(&request("InProgress"), at("2027-01-01T00:00:00Z")), Step::Work);
        let mut leaving = request("New");
        leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
        assert_eq!(decide(&leaving, now), Step::Leave);
    }

    #[test]
    fn nobody_asked_in_the_future() {
        let request = request("New");
        assert_eq!(age(&request, at("2026-01-01T00:00:05Z")), Duration::from_secs(5));
        assert_eq!(age(&request, at("2025-12-31T00:00:00Z")), Duration::ZERO);
    }
}
