use std::sync::Arc;

use bowline_api::{Backup, BackupSpec, Restore, RestoreSpec};
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::*;

/// Behaviour of the API server for each request.
#[derive(Clone, Copy)]
enum ApiBehavior {
    Takes,
    Refuses,
    Hangs,
}

/// Stand-in for the API server that records requests.
#[derive(Clone)]
struct Fake {
    behavior: ApiBehavior,
    requests: Arc<Mutex<Vec<(Method, String, Value)>>>,
}

impl Fake {
    fn new(behavior: ApiBehavior) -> Self {
        Self { behavior, requests: Arc::default() }
    }

    fn events(&self) -> Events {
        let fake = self.clone();
        let service = tower::service_fn(move |request| {
            let fake = fake.clone();
            async move { fake.answer(request).await }
        });
        Events::new(Client::new(service, "default"))
    }

    fn requests(&self) -> Vec<(Method, String, Value)> {
        self.requests.lock().clone()
    }

    async fn answer(&self, request: Request<Body>) -> kube::Result<Response<Body>> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let sent = serde_json::from_slice(&body).unwrap_or_default();
        let path = parts.uri.path().to_owned();
        self.requests.lock().push((parts.method, path, sent));
        let (status, answer) = match self.behavior {
            ApiBehavior::Takes => (StatusCode::CREATED, body.to_vec()),
            ApiBehavior::Refuses => (StatusCode::FORBIDDEN, b"no".to_vec()),
            ApiBehavior::Hangs => return std::future::pending().await,
        };
        let mut response = Response::new(Body::from(answer));
        *response.status_mut() = status;
        Ok(response)
    }
}

fn backup() -> Backup {
    let mut backup = Backup::new("nightly", BackupSpec::default());
    backup.metadata.namespace = Some("velero".to_owned());
    backup.metadata.uid = Some("u-1".to_owned());
    backup
}

#[test]
fn every_milestone_has_an_event_type_reason_and_note() {
    use EventType::{Normal, Warning};
    let progress = Milestone::Progress { percent: 50, items_done: 24, items_total: 40 };
    let ended = |phase| Milestone::Ended { phase };
    for (milestone, type_, reason, text, action) in [
        (Milestone::Started, Normal, "Started", "run started", "Started"),
        (progress, Normal, "Progress", "50 % done: 24 of 40 known items", "Progress50"),
        (
            Milestone::OperationsStarted { count: 1 },
            Normal,
            "OperationsStarted",
            "waiting for 1 plugin operation",
            "OperationsStarted",
        ),
        (
            Milestone::OperationsStarted { count: 3 },
            Normal,
            "OperationsStarted",
            "waiting for 3 plugin operations",
            "OperationsStarted",
        ),
        (
            Milestone::OperationsProgress { ended: 2, total: 3 },
            Normal,
            "OperationsProgress",
            "2 of 3 plugin operations have ended",
            "OperationsProgress50",
        ),
        (ended(TerminalPhase::Completed), Normal, "Completed", "run completed", "Completed"),
        (
            ended(TerminalPhase::PartiallyFailed),
            Warning,
            "PartiallyFailed",
            "run ended as PartiallyFailed; see `bowline backup describe nightly`",
            "PartiallyFailed",
        ),
        (
            ended(TerminalPhase::Failed),
            Warning,
            "Failed",
            "run ended as Failed; see `bowline backup describe nightly`",
            "Failed",
        ),
        (
            ended(TerminalPhase::FailedValidation),
            Warning,
            "FailedValidation",
            "run ended as FailedValidation; see `bowline backup describe nightly`",
            "FailedValidation",
        ),
        (Milestone::Canceling, Normal, "Canceling", "cancellation requested", "Canceling"),
        (Milestone::Canceled, Normal, "Canceled", "run canceled on request", "Canceled"),
        (Milestone::Deleting, Normal, "Deleting", "deletion started", "Deleting"),
        (
            Milestone::NotDeleted,
            Warning,
            "DeletionFailed",
            "deletion failed; see the status of the DeleteBackupRequest",
            "DeletionFailed",
        ),
        (
            Milestone::Resumed { attempt: 2 },
            Normal,
            "Resumed",
            "run resumed, attempt 2",
            "Resumed2",
        ),
    ] {
        assert_event(&milestone, type_, [reason, text, action]);
    }
}

#[test]
fn waiting_milestones_are_warnings() {
    use EventType::Warning;
    for (milestone, type_, reason, text, action) in [
        (
            Milestone::WaitingForNamespaces { count: 1 },
            Warning,
            "WaitingForNamespaces",
            "waiting for 1 terminating namespace; see the log of the restore",
            "WaitingForNamespaces1",
        ),
        (
            Milestone::WaitingForNamespaces { count: 2 },
            Warning,
            "WaitingForNamespaces",
            "waiting for 2 terminating namespaces; see the log of the restore",
            "WaitingForNamespaces2",
        ),
        (
            Milestone::BucketLost,
            Warning,
            "BucketUnavailable",
            "the bucket is unavailable, and the run waits for it; see the server's log",
            "BucketUnavailable",
        ),
        (
            Milestone::NotSynced,
            Warning,
            "SyncFailed",
            "backups could not be synced into the cluster; see the condition Synced",
            "SyncFailed",
        ),
        (
            Milestone::RetentionHeld,
            Warning,
            "RetentionDelayed",
            "the deletion of the expired backup is delayed: the rate limit is reached, or clocks \
             differ; see the server's log",
            "RetentionDelayed",
        ),
        (
            Milestone::ScratchFilesLeft,
            Warning,
            "ScratchFilesRemain",
            "scratch files stay in the bucket, because they cannot be deleted; the server's log names them",
            "ScratchFilesRemain",
        ),
    ] {
        assert_event(&milestone, type_, [reason, text, action]);
    }
}

fn assert_event(milestone: &Milestone, type_: EventType, [reason, text, action]: [&str; 3]) {
    let event = milestone.event(&backup());
    let actual = (event.type_, event.reason.as_str(), event.note.as_deref());
    assert_eq!(actual, (type_, reason, Some(text)), "{milestone:?}");
    assert_eq!(event.action, action, "{milestone:?}");
}

#[test]
fn progress_is_reported_once_per_quarter() {
    for (last_reported, done, total, expected) in [
        (0, 0, 0, None),
        (0, 5, 0, None),
        (0, 0, 100, None),
        (0, 24, 100, None),
        (0, 25, 100, Some(25)),
        (25, 26, 100, None),
        (25, 49, 100, None),
        (25, 50, 100, Some(50)),
        // Skipped quarters are not reported later.
        (0, 80, 100, Some(75)),
        (75, 99, 100, None),
        // More items were found, and the share went down.
        (50, 30, 100, None),
        (0, 100, 100, None),
        (0, 101, 100, None),
        (0, 1, 3, Some(25)),
        (25, 2, 3, Some(50)),
        (0, u64::MAX / 2 + 1, u64::MAX, Some(50)),
    ] {
        assert_eq!(
            newly_passed_quarter(last_reported, done, total),
            expected,
            "{last_reported} {done}/{total}"
        );
    }
}

#[tokio::test]
async fn event_is_written_to_the_namespace_of_the_run() {
    let fake = Fake::new(ApiBehavior::Takes);
    fake.events().publish(&backup(), Milestone::Started).await;
    let mut restore = Restore::new("back", RestoreSpec::default());
    restore.metadata.namespace = Some("velero".to_owned());
    fake.events().publish(&restore, Milestone::Ended { phase: TerminalPhase::Failed }).await;
    let requests = fake.requests();
    for ((method, path, sent), (kind, name, type_, reason)) in requests
        .iter()
        .zip([("Backup", "nightly", "Normal", "Started"), ("Restore", "back", "Warning", "Failed")])
    {
        assert_eq!(method, Method::POST);
        assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/velero/events");
        assert_eq!((&sent["type"], &sent["reason"]), (&type_.into(), &reason.into()));
        assert_eq!(sent["regarding"]["kind"], kind);
        assert_eq!(sent["regarding"]["name"], name);
        assert_eq!(sent["regarding"]["apiVersion"], "velero.io/v1");
        assert_eq!(sent["reportingController"], "bowline");
    }
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].2["regarding"]["uid"], "u-1");
}

#[tokio::test]
async fn each_progress_step_is_a_new_event_and_repeated_milestones_share_one() {
    let fake = Fake::new(ApiBehavior::Takes);
    let events = fake.events();
    for percent in [25, 50, 75] {
        let progress = Milestone::Progress { percent, items_done: 1, items_total: 2 };
        events.publish(&backup(), progress).await;
    }
    for _ in 0..2 {
        events.publish(&backup(), Milestone::Canceling).await;
    }
    let methods: Vec<_> = fake.requests().into_iter().map(|(method, ..)| method).collect();
    let post = Method::POST;
    assert_eq!(methods, [post.clone(), post.clone(), post.clone(), post, Method::PATCH]);
}

#[tokio::test(start_paused = true)]
async fn unwritable_event_does_not_block_the_run() {
    for (behavior, expected) in [
        (ApiBehavior::Takes, Duration::ZERO),
        (ApiBehavior::Refuses, Duration::ZERO),
        (ApiBehavior::Hangs, PUBLISH_TIMEOUT),
    ] {
        let fake = Fake::new(behavior);
        let started = Instant::now();
        let publishing = async { fake.events().publish(&backup(), Milestone::Started).await };
        tokio::time::timeout(Duration::from_hours(1), publishing).await.expect("in time");
        let took = started.elapsed();
        assert!(took >= expected && took < expected + PUBLISH_TIMEOUT / 2, "{took:?}");
        assert_eq!(fake.requests().len(), 1);
    }
}
