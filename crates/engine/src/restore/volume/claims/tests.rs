use serde_json::json;
use tokio::time::Instant;

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

fn claims(fake: &Arc<Fake>) -> Claims {
    Claims::new(Arc::clone(fake) as _, &fake.resources(), "r").unwrap()
}

fn operation() -> OperationId {
    OperationId::new("shop/data/u").unwrap()
}

/// What is said of the claim while it is followed, and how long that took.
async fn progress(claims: &Claims) -> (Progress, Duration) {
    let (began, operation) = (Instant::now(), operation());
    let progress = tokio::select! {
        progress = claims.progress(&operation) => progress.unwrap(),
        () = claims.run() => panic!("it does not end"),
    };
    (progress, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn the_end_is_known_when_it_comes() {
    let fake = Arc::new(Fake::usual().with(claim("u", "Pending")));
    let following = claims(&fake);
    let binding = async {
        sleep(Duration::from_secs(3)).await;
        fake.put(claim("u", "Bound"));
        std::future::pending::<()>().await;
    };
    let (progress, took) = tokio::select! {
        told = progress(&following) => told,
        () = binding => panic!("it does not end"),
    };
    assert_eq!(progress.state, State::Succeeded);
    assert_eq!(progress.description, "bound to pv-9");
    assert_eq!(took, Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_says_what_for() {
    let fake = Fake::usual()
        .with(claim("u", "Pending"))
        .with(event("u", "Warning", "2026-01-01T00:00:01Z", "the older one"))
        .with(event("u", "Warning", "2026-01-01T00:00:09Z", "no space"))
        .with(event("u", "Normal", "2026-01-01T00:00:10Z", "all is well"))
        .with(event("other", "Warning", "2026-01-01T00:00:11Z", "of another"));
    let fake = Arc::new(fake);
    let following = claims(&fake);
    let (progress, took) = progress(&following).await;
    assert_eq!(progress.state, State::Running);
    assert!(progress.started.is_some());
    assert_eq!(progress.description, "it has no volume yet: ProvisioningFailed: no space");
    assert_eq!(took, HOLD);

    let error = following.cancel(&operation()).await.unwrap_err();
    assert!(error.message().contains("no space"), "{error}");
    let (progress, took) = self::progress(&following).await;
    assert!(matches!(&progress.state, State::Failed(why) if why.contains("left as it is")));
    assert_eq!(took, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_gone_or_lost_or_another_has_failed() {
    for (objects, word) in [
        (vec![], "was deleted"),
        (vec![claim("other", "Bound")], "another has its name"),
        (vec![claim("u", "Lost")], "lost its volume"),
    ] {
        let fake = objects.into_iter().fold(Fake::usual(), Fake::with);
        let (progress, _) = progress(&claims(&Arc::new(fake))).await;
        assert!(
            matches!(&progress.state, State::Failed(why) if why.contains(word)),
            "{progress:?}"
        );
    }
    let fake = Arc::new(Fake::usual());
    let odd = OperationId::new("what").unwrap();
    assert!(claims(&fake).progress(&odd).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn one_that_is_left_alone_does_not_take_the_others_with_it() {
    let fake = Arc::new(Fake::usual().with(claim("u", "Pending")));
    let following = claims(&fake);
    let other = OperationId::new("shop/other/o").unwrap();
    assert!(following.cancel(&other).await.is_err());
    let (progress, took) = progress(&following).await;
    assert_eq!((progress.state, took), (State::Running, HOLD));
}

#[tokio::test(start_paused = true)]
async fn one_that_went_while_nobody_watched_is_gone() {
    let fake = Arc::new(Fake::usual().with(claim("u", "Pending")));
    let following = claims(&fake);
    let (progress, _) = progress(&following).await;
    assert_eq!(progress.state, State::Running);
    // The watch breaks, and begins again: what is gone is not told.
    fake.remove("persistentvolumeclaims", "shop", "data");
    let (progress, _) = self::progress(&following).await;
    assert!(
        matches!(&progress.state, State::Failed(why) if why.contains("was deleted")),
        "{progress:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_volume_of_one_that_was_read_is_known() {
    let fake = Arc::new(Fake::usual().with(claim("u", "Bound")));
    let following = claims(&fake);
    assert_eq!(following.volume(&operation()), None);
    // Nobody watches.
    assert_eq!(following.progress(&operation()).await.unwrap().state, State::Succeeded);
    assert_eq!(following.volume(&operation()).as_deref(), Some("pv-9"));
}
