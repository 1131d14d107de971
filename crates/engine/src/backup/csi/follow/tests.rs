use bowline_plugin::{OperationId, ResourceIdentifier};
use serde_json::{Value, json};

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
        ..Operation::begun(Kind::ItemBackup, plugin, item, id, now, long)
    }
}

fn follower(cluster: &Arc<Fake>) -> Follower {
    Follower::new(Arc::clone(cluster) as _, "nightly")
}

#[tokio::test(start_paused = true)]
async fn an_operation_ends_when_its_snapshot_can_be_used() {
    let cluster = cluster();
    cluster.put(content(true, &json!({"snapshotHandle": "s", "restoreSize": 2048})));
    let follower = follower(&cluster);
    let told = follower.progress(&operation()).await.unwrap();
    assert_eq!((told.state, told.done, told.total), (State::Running, 0, 2048));
    assert!(told.description.contains("c is not ready to use"), "{}", told.description);
    // A poll that is under way hears of it.
    let operation = operation();
    let polled = follower.progress(&operation);
    let later = async {
        sleep(Duration::from_secs(1)).await;
        cluster.put(content(true, &json!({"readyToUse": true, "restoreSize": 2048})));
    };
    let begun = Instant::now();
    let (told, ()) = tokio::join!(polled, later);
    let told = told.unwrap();
    assert_eq!((told.state, told.done, told.units.as_str()), (State::Succeeded, 2048, "Bytes"));
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    assert!(cluster.gets().is_empty(), "the watch answers");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_driver_counts_after_a_while_and_a_content_that_is_gone_at_once() {
    let cluster = cluster();
    let failing = json!({"snapshotHandle": "s", "error": {"message": "the disk is on fire"}});
    cluster.put(content(true, &failing));
    let follower = follower(&cluster);
    let told = follower.progress(&operation()).await.unwrap();
    assert_eq!(told.state, State::Running);
    assert!(told.description.ends_with("not ready to use: the disk is on fire"), "{told:?}");
    sleep(GRACE / 2).await;
    let told = follower.progress(&operation()).await.unwrap();
    assert_eq!(told.state, State::Running, "the snapshotter tries again");
    sleep(GRACE / 2).await;
    let told = follower.progress(&operation()).await.unwrap();
    assert_eq!(told.state, State::Failed("the disk is on fire".into()));
    cluster.remove("volumesnapshotcontents.snapshot.storage.k8s.io", "", "c");
    sleep(Duration::from_secs(1)).await;
    let gone = follower.progress(&operation()).await.unwrap_err();
    assert!(gone.to_string().contains("is gone") && gone.code() == Code::NotFound, "{gone}");
}

#[tokio::test(start_paused = true)]
async fn one_without_the_label_is_read_and_one_that_is_canceled_ends() {
    let cluster = cluster();
    cluster.put(content(false, &json!({"readyToUse": true})));
    assert_eq!(follower(&cluster).progress(&operation()).await.unwrap().state, State::Succeeded);
    cluster.put(content(true, &json!({"readyToUse": false})));
    let follower = follower(&cluster);
    assert!(follower.cancel(&operation()).is_err(), "nobody can tell a driver to stop");
    let told = follower.progress(&operation()).await.unwrap();
    assert!(matches!(told.state, State::Failed(_)), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_content_that_does_not_change_is_nudged_less_and_less_often() {
    let cluster = cluster();
    cluster.put(content(true, &json!({"snapshotHandle": "s"})));
    let (follower, operation) = (follower(&cluster), operation());
    let opened = follower.opened.get_or_try_init(|| follower.open()).await.unwrap();
    let resource = Arc::clone(&opened.contents);
    let begun = Instant::now();
    let mut nudges = Vec::new();
    let mut before = Value::Null;
    while begun.elapsed() < Duration::from_mins(3) {
        let told = follower.progress(&operation).await.unwrap();
        assert_eq!(told.state, State::Running);
        let found = cluster.get(&resource, "", "c").await.unwrap().unwrap();
        let found: Value = found.item.parse().unwrap();
        let mark = found["metadata"]["annotations"][NUDGED].clone();
        if mark != before {
            nudges.push(begun.elapsed().as_secs());
            before = mark;
        }
    }
    assert!((2..=5).contains(&nudges.len()), "{nudges:?}");
    let pauses: Vec<u64> = nudges.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.is_sorted() && nudges[0] >= 10, "{nudges:?}");
}

#[tokio::test(start_paused = true)]
async fn an_error_counts_from_its_beginning_also_where_the_watch_does_not_tell() {
    let cluster = cluster();
    let failing = json!({"snapshotHandle": "s", "error": {"message": "the disk is on fire"}});
    cluster.put(content(false, &failing));
    let follower = follower(&cluster);
    assert_eq!(follower.progress(&operation()).await.unwrap().state, State::Running);
    // The watch is opened again, and tells of nothing.
    follower.shared.take(Change::Began);
    sleep(GRACE).await;
    let told = follower.progress(&operation()).await.unwrap();
    assert_eq!(told.state, State::Failed("the disk is on fire".into()));
}

#[tokio::test(start_paused = true)]
async fn a_content_that_has_changed_is_nudged_only_after_a_while_again() {
    let read = |status: &Value, mark: &str| {
        let mut content = content(true, status);
        content["metadata"]["annotations"] = json!({NUDGED: mark});
        Content::read(&bowline_plugin::Item::from_object(&content).unwrap()).unwrap()
    };
    let (shared, now) = (Shared::default(), Instant::now());
    let taken = json!({"snapshotHandle": "s"});
    shared.lock().view("c", read(&taken, "1"), now);
    assert!(!shared.is_time_to_nudge("c", now));
    assert!(shared.is_time_to_nudge("c", now + FIRST_NUDGE));
    let later = now + FIRST_NUDGE * 3;
    // A nudge is no change.
    shared.lock().view("c", read(&taken, "2"), later);
    assert!(shared.is_time_to_nudge("c", later));
    let later = later + FIRST_NUDGE * 4;
    shared.lock().view("c", read(&json!({"snapshotHandle": "s", "restoreSize": 1}), "2"), later);
    assert!(!shared.is_time_to_nudge("c", later), "it has just changed");
    assert!(shared.is_time_to_nudge("c", later + FIRST_NUDGE), "the pauses begin anew");
}
