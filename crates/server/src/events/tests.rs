use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bowline_api::{Backup, BackupSpec, Restore, RestoreSpec};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::Value;
use tokio::time::Instant;
use tower_service::Service;

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
        Events::new(Client::new(self.clone(), "default"))
    }

    fn requests(&self) -> Vec<(Method, String, Value)> {
        self.requests.lock().unwrap().clone()
    }
}

impl Service<Request<Body>> for Fake {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, kube::Result<Response<Body>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<kube::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let fake = self.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let sent = serde_json::from_slice(&body).unwrap_or_default();
            let path = parts.uri.path().to_owned();
            fake.requests.lock().unwrap().push((parts.method, path, sent));
            let (status, answer) = match fake.behavior {
                ApiBehavior::Takes => (StatusCode::CREATED, body.to_vec()),
                ApiBehavior::Refuses => (StatusCode::FORBIDDEN, b"no".to_vec()),
                ApiBehavior::Hangs => return std::future::pending().await,
            };
            let mut response = Response::new(Body::from(answer));
            *response.status_mut() = status;
            Ok(response)
        }
        .boxed()
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
    for (milestone, type_, reason, note, action) in [
        (Milestone::Started, Normal, "Started", "it has started", "Started"),
        (progress, Normal, "Progress", "past 50 %: 24 of 40 items known so far", "Progress50"),
        (
            Milestone::OperationsStarted { count: 1 },
            Normal,
            "OperationsStarted",
            "waits for 1 operation of plugins",
            "OperationsStarted",
        ),
        (
            Milestone::OperationsStarted { count: 3 },
            Normal,
            "OperationsStarted",
            "waits for 3 operations of plugins",
            "OperationsStarted",
        ),
        (
            Milestone::OperationsProgress { ended: 2, total: 3 },
            Normal,
            "OperationsProgress",
            "2 of 3 operations of plugins have ended",
            "OperationsProgress50",
        ),
        (
            ended(TerminalPhase::Completed),
            Normal,
            "Completed",
            "it has ended as Completed",
            "Completed",
        ),
        (
            ended(TerminalPhase::PartiallyFailed),
            Warning,
            "PartiallyFailed",
            "it has ended as PartiallyFailed; its status says why",
            "PartiallyFailed",
        ),
        (
            ended(TerminalPhase::Failed),
            Warning,
            "Failed",
            "it has ended as Failed; its status says why",
            "Failed",
        ),
        (
            ended(TerminalPhase::FailedValidation),
            Warning,
            "FailedValidation",
            "it has ended as FailedValidation; its status says why",
            "FailedValidation",
        ),
        (Milestone::Canceling, Normal, "Canceling", "it was asked to stop", "Canceling"),
        (
            Milestone::Canceled,
            Normal,
            "Canceled",
            "it has stopped, because it was asked to",
            "Canceled",
        ),
        (Milestone::Deleting, Normal, "Deleting", "it is being deleted", "Deleting"),
        (
            Milestone::NotDeleted,
            Warning,
            "NotDeleted",
            "it could not be deleted; its DeleteBackupRequest says why",
            "NotDeleted",
        ),
        (
            Milestone::Resumed { attempt: 2 },
            Normal,
            "Resumed",
            "it goes on after an interruption, attempt 2",
            "Resumed2",
        ),
    ] {
        assert_event(&milestone, type_, [reason, note, action]);
    }
}

#[test]
fn waiting_milestones_are_warnings() {
    use EventType::Warning;
    for (milestone, type_, reason, note, action) in [
        (
            Milestone::WaitingForNamespaces { count: 1 },
            Warning,
            "WaitingForNamespaces",
            "the restore waits until 1 namespace that it restores into, and that is being deleted, is gone; \
             its log names it",
            "WaitingForNamespaces1",
        ),
        (
            Milestone::WaitingForNamespaces { count: 2 },
            Warning,
            "WaitingForNamespaces",
            "the restore waits until 2 namespaces that it restores into, and that are being deleted, are \
             gone; its log names them",
            "WaitingForNamespaces2",
        ),
        (
            Milestone::BucketLost,
            Warning,
            "BucketLost",
            "waiting for the bucket, which cannot be used; the server's log says why",
            "BucketLost",
        ),
        (
            Milestone::NotSynced,
            Warning,
            "NotSynced",
            "its backups could not be brought into the cluster; the condition Synced says why",
            "NotSynced",
        ),
        (
            Milestone::RetentionHeld,
            Warning,
            "RetentionHeld",
            "it has expired and is not deleted for now: too many expire at once, or the clocks of the server \
             and of the API server differ; the log of the server says which",
            "RetentionHeld",
        ),
    ] {
        assert_event(&milestone, type_, [reason, note, action]);
    }
}

fn assert_event(milestone: &Milestone, type_: EventType, [reason, note, action]: [&str; 3]) {
    let event = milestone.event();
    let actual = (event.type_, event.reason.as_str(), event.note.as_deref());
    assert_eq!(actual, (type_, reason, Some(note)), "{milestone:?}");
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
