use serde_json::json;
use tokio::time::sleep;

use super::*;
use crate::cluster::Fake;

fn claim(uid: &str, phase: &str) -> Value {
    let volume = if phase == "Pending" { "" } else { "pv-9" };
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "namespace": "shop", "name": "data", "uid": uid,
            "labels": {"velero.io/restore-name": "r"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"volumeName": volume},
        "status": {"phase": phase},
    })
}

fn event(uid: &str, kind: &str, time: &str, message: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": "shop", "name": format!("e-{uid}-{kind}-{}", message.len())},
        "involvedObject": {"uid": uid}, "type": kind, "lastTimestamp": time,
        "reason": "ProvisioningFailed", "message": message,
    })
}

fn tracker(fake: &Arc<Fake>) -> ClaimTracker {
    ClaimTracker::new(Arc::clone(fake) as _, &fake.resources(), "r").unwrap()
}

fn operation() -> OperationId {
    OperationId::new("shop/data/u").unwrap()
}

/// Progress of the claim while it is tracked, and the time that the query took.
async fn progress(claims: &ClaimTracker) -> (Progress, Duration) {
    let (started_at, operation) = (Instant::now(), operation());
    let progress = tokio::select! {
        progress = claims.progress(&operation) => progress.unwrap(),
        () = claims.run() => panic!("it does not end"),
    };
    (progress, started_at.elapsed())
}

#[tokio::test(start_paused = true)]
async fn bound_claim_is_reported_immediately() {
    let fake = Arc::new(Fake::usual().with(claim("u", "Pending")));
    let following = tracker(&fake);
    let binding = async {
        sleep(Duration::from_secs(3)).await;
        fake.put(claim("u", "Bound"));
        std::future::pending::<()>().await;
    };
    let (progress, took) = tokio::select! {
        progress = progress(&following) => progress,
        () = binding => panic!("it does not end"),
    };
    assert_eq!(progress.state, State::Succeeded);
    assert_eq!(progress.description, "bound to pv-9");
    assert_eq!(took, Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn pending_claim_reports_its_last_warning() {
    let fake = Fake::usual()
        .with(claim("u", "Pending"))
        .with(event("u", "Warning", "2026-01-01T00:00:01Z", "the older one"))
        .with(event("u", "Warning", "2026-01-01T00:00:09Z", "no space"))
        .with(event("u", "Normal", "2026-01-01T00:00:10Z", "all is well"))
        .with(event("other", "Warning", "2026-01-01T00:00:11Z", "of another"));
    let fake = Arc::new(fake);
    let following = tracker(&fake);
    let (progress, took) = progress(&following).await;
    assert_eq!(progress.state, State::Running);
    assert!(progress.started.is_some());
    assert_eq!(progress.description, "the claim has no volume yet: ProvisioningFailed: no space");
    assert_eq!(took, PROGRESS_WAIT);

    let error = following.cancel(&operation()).await.unwrap_err();
    assert!(error.message().contains("no space"), "{error}");
    let (progress, took) = self::progress(&following).await;
    assert!(
        matches!(&progress.state, State::Failed(reason) if reason.contains("the claim is kept"))
    );
    assert_eq!(took, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn deleted_lost_or_replaced_claim_has_failed() {
    for (objects, word) in [
        (vec![], "was deleted"),
        (vec![claim("other", "Bound")], "replaced by another"),
        (vec![claim("u", "Lost")], "is in phase Lost"),
    ] {
        let fake = objects.into_iter().fold(Fake::usual(), Fake::with);
        let (progress, _) = progress(&tracker(&Arc::new(fake))).await;
        assert!(
            matches!(&progress.state, State::Failed(reason) if reason.contains(word)),
            "{progress:?}"
        );
    }
    let fake = Arc::new(Fake::usual());
    let odd = OperationId::new("what").unwrap();
    assert!(tracker(&fake).progress(&odd).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn canceled_claim_does_not_affect_others() {
    let fake = Arc::new(Fake::usual().with(claim("u", "Pending")));
    let following = tracker(&fake);
    let other = OperationId::new("shop/other/o").unwrap();
    assert!(following.cancel(&other).await.is_err());
    let (progress, took) = progress(&following).await;
    assert_eq!((progress.state, took), (State::Running, PROGRESS_WAIT));
}

#[tokio::test(start_paused = true)]
async fn claim_deleted_while_unwatched_has_failed() {
    let fake = Arc::new(Fake::usual().with(claim("u", "Pending")));
    let following = tracker(&fake);
    let (progress, _) = progress(&following).await;
    assert_eq!(progress.state, State::Running);
    // The watch breaks and restarts: the deletion is not reported.
    fake.remove("persistentvolumeclaims", "shop", "data");
    let (progress, _) = self::progress(&following).await;
    assert!(
        matches!(&progress.state, State::Failed(reason) if reason.contains("was deleted")),
        "{progress:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn volume_of_a_read_claim_is_cached() {
    let fake = Arc::new(Fake::usual().with(claim("u", "Bound")));
    let following = tracker(&fake);
    assert_eq!(following.volume(&operation()), None);
    // No watch is running.
    assert_eq!(following.progress(&operation()).await.unwrap().state, State::Succeeded);
    assert_eq!(following.volume(&operation()).as_deref(), Some("pv-9"));
}

#[tokio::test(start_paused = true)]
async fn claim_is_read_while_its_watch_fails() {
    let fake = Arc::new(Fake::usual().with(claim("u", "Pending")));
    let following = tracker(&fake);
    let (progress, _) = progress(&following).await;
    assert_eq!(progress.state, State::Running);
    let unwatched = async {
        sleep(Duration::from_secs(1)).await;
        fake.fail_watches(|| crate::cluster::Error::Unreachable("away".to_owned()));
        sleep(Duration::from_millis(1)).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = following.run() => panic!("it does not end"),
        () = unwatched => panic!("it does not end"),
        () = sleep(Duration::from_millis(1500)) => {}
    }
    // The watch has not started again.
    fake.put(claim("u", "Bound"));
    let progress = following.progress(&operation()).await.unwrap();
    assert_eq!(progress.state, State::Succeeded);
}
