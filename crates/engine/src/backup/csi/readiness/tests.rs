use bowline_plugin::{OperationId, ResourceIdentifier};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use crate::backup::csi::object;
use crate::cluster::Fake;
use crate::cluster::fake::usual_resources;
use crate::operation::Kind;
use crate::resource::GroupResource;

fn cluster() -> Arc<Fake> {
    let like =
        usual_resources().into_iter().find(|one| one.id.resource == "storageclasses").unwrap();
    let contents = Resource {
        id: GroupResource::new("snapshot.storage.k8s.io", "volumesnapshotcontents"),
        kind: "VolumeSnapshotContent".into(),
        singular: "volumesnapshotcontent".into(),
        short_names: Vec::new(),
        ..like
    };
    Arc::new(Fake::new([contents]))
}

fn content(is_labelled: bool, status: &Value) -> Value {
    let label = if is_labelled { "nightly" } else { "other" };
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": "c", "labels": {"velero.io/backup-name": label}},
        "spec": {},
        "status": status,
    })
}

fn operation() -> Operation {
    let plugin = super::super::BACKUPPER.parse().unwrap();
    let item =
        ResourceIdentifier { name: "vs".into(), ..object::id("volumesnapshots", "shop", "") };
    let id = OperationId::new("shop/vs/2026-01-01T00:00:00Z").unwrap();
    let (now, long) = (Timestamp::now(), Duration::from_hours(1));
    Operation {
        post_operation_items: vec![item.clone(), object::id(CONTENTS, "", "c")],
        ..Operation::started(Kind::ItemBackup, plugin, item, id, now, long)
    }
}

fn readiness_watch(cluster: &Arc<Fake>) -> ReadinessWatch {
    ReadinessWatch::new(Arc::clone(cluster) as _, "nightly")
}

#[tokio::test(start_paused = true)]
async fn an_operation_ends_when_its_snapshot_can_be_used() {
    let cluster = cluster();
    cluster.put(content(true, &json!({"snapshotHandle": "s", "restoreSize": 2048})));
    let watch = readiness_watch(&cluster);
    let progress = watch.progress(&operation()).await.unwrap();
    assert_eq!((progress.state, progress.done, progress.total), (State::Running, 0, 2048));
    assert!(progress.description.contains("c is not ready to use"), "{}", progress.description);
    // A poll in progress is notified.
    let operation = operation();
    let polled = watch.progress(&operation);
    let later = async {
        sleep(Duration::from_secs(1)).await;
        cluster.put(content(true, &json!({"readyToUse": true, "restoreSize": 2048})));
    };
    let started_at = Instant::now();
    let (progress, ()) = tokio::join!(polled, later);
    let progress = progress.unwrap();
    assert_eq!(
        (progress.state, progress.done, progress.units.as_str()),
        (State::Succeeded, 2048, "Bytes")
    );
    assert!(started_at.elapsed() < POLL_TIMEOUT, "{:?}", started_at.elapsed());
    assert!(cluster.gets().is_empty(), "the watch answers");
}

#[tokio::test(start_paused = true)]
async fn driver_error_fails_after_the_grace_period_and_a_deleted_content_at_once() {
    let cluster = cluster();
    let failing = json!({"snapshotHandle": "s", "error": {"message": "the disk is on fire"}});
    cluster.put(content(true, &failing));
    let watch = readiness_watch(&cluster);
    let progress = watch.progress(&operation()).await.unwrap();
    assert_eq!(progress.state, State::Running);
    assert!(
        progress.description.ends_with("not ready to use: the disk is on fire"),
        "{progress:?}"
    );
    sleep(ERROR_GRACE / 2).await;
    let progress = watch.progress(&operation()).await.unwrap();
    assert_eq!(progress.state, State::Running, "the snapshotter tries again");
    sleep(ERROR_GRACE / 2).await;
    let progress = watch.progress(&operation()).await.unwrap();
    assert_eq!(progress.state, State::Failed("the disk is on fire".into()));
    cluster.remove("volumesnapshotcontents.snapshot.storage.k8s.io", "", "c");
    sleep(Duration::from_secs(1)).await;
    let gone = watch.progress(&operation()).await.unwrap_err();
    assert!(gone.to_string().contains("was deleted") && gone.code() == Code::NotFound, "{gone}");
}

#[tokio::test(start_paused = true)]
async fn unlabelled_content_is_read_and_canceled_operation_ends() {
    let cluster = cluster();
    cluster.put(content(false, &json!({"readyToUse": true})));
    assert_eq!(
        readiness_watch(&cluster).progress(&operation()).await.unwrap().state,
        State::Succeeded
    );
    cluster.put(content(true, &json!({"readyToUse": false})));
    let watch = readiness_watch(&cluster);
    assert!(watch.cancel(&operation()).is_err(), "nobody can tell a driver to stop");
    let progress = watch.progress(&operation()).await.unwrap();
    assert!(matches!(progress.state, State::Failed(_)), "{progress:?}");
}

#[tokio::test(start_paused = true)]
async fn a_content_that_does_not_change_is_nudged_less_and_less_often() {
    let cluster = cluster();
    cluster.put(content(true, &json!({"snapshotHandle": "s"})));
    let (watch, operation) = (readiness_watch(&cluster), operation());
    let session = watch.session.get_or_try_init(|| watch.open()).await.unwrap();
    let resource = Arc::clone(&session.contents);
    let started_at = Instant::now();
    let mut nudges = Vec::new();
    let mut before = Value::Null;
    while started_at.elapsed() < Duration::from_mins(3) {
        let progress = watch.progress(&operation).await.unwrap();
        assert_eq!(progress.state, State::Running);
        let found = cluster.get(&resource, "", "c").await.unwrap().unwrap();
        let found: Value = found.item.parse().unwrap();
        let mark = found["metadata"]["annotations"][NUDGED_ANNOTATION].clone();
        if mark != before {
            nudges.push(started_at.elapsed().as_secs());
            before = mark;
        }
    }
    assert!((2..=5).contains(&nudges.len()), "{nudges:?}");
    let pauses: Vec<u64> = nudges.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.is_sorted() && nudges[0] >= 10, "{nudges:?}");
}

#[tokio::test(start_paused = true)]
async fn grace_period_starts_at_the_first_error_even_without_watch_events() {
    let cluster = cluster();
    let failing = json!({"snapshotHandle": "s", "error": {"message": "the disk is on fire"}});
    cluster.put(content(false, &failing));
    let watch = readiness_watch(&cluster);
    assert_eq!(watch.progress(&operation()).await.unwrap().state, State::Running);
    // The watch is opened again, and reports nothing.
    let session = watch.session.get().unwrap();
    session.reflector.modify(|views| views.apply(WatchEvent::Started));
    sleep(ERROR_GRACE).await;
    let progress = watch.progress(&operation()).await.unwrap();
    assert_eq!(progress.state, State::Failed("the disk is on fire".into()));
}

#[tokio::test(start_paused = true)]
async fn changed_content_is_nudged_only_after_a_new_pause() {
    let read = |status: &Value, mark: &str| {
        let mut content = content(true, status);
        content["metadata"]["annotations"] = json!({NUDGED_ANNOTATION: mark});
        Content::read(&bowline_plugin::Item::from_object(&content).unwrap()).unwrap()
    };
    let (mut views, now) = (ContentViews::default(), Instant::now());
    let with_handle = json!({"snapshotHandle": "s"});
    views.update_view("c", read(&with_handle, "1"), now);
    assert!(!views.is_time_to_nudge("c", now));
    assert!(views.is_time_to_nudge("c", now + FIRST_NUDGE));
    let later = now + FIRST_NUDGE * 3;
    // A nudge does not count as a change.
    views.update_view("c", read(&with_handle, "2"), later);
    assert!(views.is_time_to_nudge("c", later));
    let later = later + FIRST_NUDGE * 4;
    views.update_view("c", read(&json!({"snapshotHandle": "s", "restoreSize": 1}), "2"), later);
    assert!(!views.is_time_to_nudge("c", later), "it has just changed");
    assert!(views.is_time_to_nudge("c", later + FIRST_NUDGE), "the pauses begin anew");
}
