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
    sleep(GRACE).await;
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
