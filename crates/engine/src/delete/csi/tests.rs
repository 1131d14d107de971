use bowline_store::backend::Memory;
use bowline_store::{BackupName, BackupStore, Prefix};
use tokio_util::sync::CancellationToken;

use super::super::{Deadlines, Ended, Files, Opened, Plan, data};
use super::*;
use crate::cluster::{Fake, fake};
use crate::resource::GroupResource;

const PLURAL: &str = "volumesnapshotcontents.snapshot.storage.k8s.io";

fn cluster() -> Fake {
    let served = |group: &str, kind: &str, plural: &str, is_namespaced| {
        let mut resource = fake::usual_resources().remove(0);
        resource.id = GroupResource::new(group, plural);
        resource.kind = kind.into();
        resource.is_namespaced = is_namespaced;
        resource
    };
    let snapshots = "snapshot.storage.k8s.io";
    let more = [
        served(snapshots, "VolumeSnapshot", SNAPSHOTS, true),
        served(snapshots, "VolumeSnapshotContent", CONTENTS, false),
        served("storage.k8s.io", "CSIDriver", "csidrivers", false),
    ];
    let fake = Fake::new(fake::usual_resources().into_iter().chain(more));
    fake.put(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "a.driver"},
    }));
    fake
}

fn doomed() -> Content {
    Content {
        name: "vsc".into(),
        driver: "a.driver".into(),
        handle: "s1".into(),
        volume: "shop/data".into(),
        group: String::new(),
        annotations: [("snapshot.storage.kubernetes.io/deletion-secret-name", "key")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    }
}

struct World {
    fake: Arc<Fake>,
    store: BackupStore,
    stop: CancellationToken,
    deadlines: Deadlines,
}

impl World {
    async fn new(fake: Fake) -> Self {
        let memory = Memory::with_bucket("bucket");
        let store = BackupStore::new(Arc::new(memory), "bucket", &Prefix::default());
        store.commit(&backup()).await.unwrap();
        let deadlines = Deadlines {
            content: Duration::from_mins(1),
            complaint: Duration::from_secs(5),
            ..Deadlines::default()
        };
        Self { fake: Arc::new(fake), store, stop: CancellationToken::new(), deadlines }
    }

    async fn delete(&self) -> Ended {
        let plan = Plan { files: Files::Own, snapshots: Vec::new(), csi: vec![doomed()] };
        let (backup, name): (_, BackupName) = (backup(), "b".parse().unwrap());
        let job = Job {
            backup: &backup,
            name: &name,
            store: &self.store,
            plan: &plan,
            snapshotters: &Opened::default(),
            actions: Vec::new(),
            cluster: &*self.fake,
            scratch: &std::env::temp_dir(),
            deadlines: self.deadlines,
            stop: &self.stop,
        };
        data(job).await
    }

    /// Deletes beside controllers that behave as the real ones do. Returns the handles of the snapshots
    /// that these have deleted.
    async fn delete_with_controllers(&self) -> (Ended, Vec<String>) {
        let mut deleted = Vec::new();
        let ended = tokio::select! {
            biased;
            ended = self.delete() => ended,
            () = controllers(&self.fake, &mut deleted) => panic!("they do not end"),
        };
        (ended, deleted)
    }
}

fn backup() -> bowline_api::Backup {
    serde_json::from_value(json!({
        "metadata": {"name": "b", "uid": "u"}, "spec": {},
        "status": {"phase": "Completed", "startTimestamp": "2026-01-02T03:04:05Z"},
    }))
    .unwrap()
}

/// What the snapshot controller and the sidecar of a driver do about contents that go.
async fn controllers(fake: &Fake, deleted: &mut Vec<String>) {
    let resources = fake.resources();
    let contents = resources.find(&kind(CONTENTS)).unwrap();
    let mut changes = fake.watch(contents, Query::default());
    while let Some(change) = changes.next().await {
        let Change::There(object) = change.unwrap() else { continue };
        let Some(now) = fake.object(PLURAL, "", &object.name) else { continue };
        if text(&now, "/metadata/deletionTimestamp").is_empty() {
            continue;
        }
        let is_static = !text(&now, "/spec/source/snapshotHandle").is_empty();
        let is_bound = !text(&now, "/spec/volumeSnapshotRef/uid").is_empty();
        let is_marked = now["metadata"]["annotations"].get(BEING_DELETED).is_some();
        if (is_bound || !is_static) && !is_marked {
            continue;
        }
        let handle = text(&now, "/status/snapshotHandle");
        if text(&now, "/spec/deletionPolicy") == "Delete" && !handle.is_empty() {
            deleted.push(handle.to_owned());
        }
        let release = json!({"metadata": {"finalizers": null}});
        fake.patch(contents, "", &object.name, Door::Whole, &release).await.unwrap();
    }
}

fn left(policy: &str, handle: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "vsc", "uid": "c1", "finalizers": [FINALIZER]},
        "spec": {
            "deletionPolicy": policy, "driver": "a.driver", "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"namespace": "shop", "name": "vs", "uid": "v1"},
        },
        "status": {"snapshotHandle": handle},
    })
}

fn snapshot(uid: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"namespace": "shop", "name": "vs", "uid": uid},
    })
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_goes_also_when_its_content_is_gone() {
    let world = World::new(cluster()).await;
    let (ended, deleted) = world.delete_with_controllers().await;
    assert_eq!(ended, Ended::Done);
    assert_eq!(deleted, ["s1"]);
    let [made] = &world.fake.creations()[..] else { panic!("not one") };
    assert!(made.name.starts_with("vsc-") && made.name.len() == 36, "{made}");
    assert!(world.fake.object(PLURAL, "", &made.name).is_none());
    // Again, as after a kill: the driver is asked again, under the same name.
    let (ended, deleted) = world.delete_with_controllers().await;
    assert_eq!((ended, deleted), (Ended::Done, vec!["s1".to_owned()]));
    assert_eq!(world.fake.creations()[1], *made);
}

#[tokio::test(start_paused = true)]
async fn what_the_backup_left_in_the_cluster_goes_too_and_the_snapshot_once() {
    for policy in ["Retain", "Delete"] {
        let world = World::new(cluster().with(left(policy, "s1")).with(snapshot("v1"))).await;
        let (ended, deleted) = world.delete_with_controllers().await;
        assert_eq!((ended, deleted), (Ended::Done, vec!["s1".to_owned()]), "{policy}");
        assert!(world.fake.object(PLURAL, "", "vsc").is_none());
        assert!(
            world.fake.object("volumesnapshots.snapshot.storage.k8s.io", "shop", "vs").is_none()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_of_this_backup_stays() {
    // Others have its names.
    let world = World::new(cluster().with(left("Delete", "s9")).with(snapshot("v9"))).await;
    let (ended, deleted) = world.delete_with_controllers().await;
    assert_eq!((ended, deleted), (Ended::Done, vec!["s1".to_owned()]));
    assert_eq!(world.fake.object(PLURAL, "", "vsc"), Some(left("Delete", "s9")));
    let world = World::new(cluster().with(left("Delete", "s1")).with(snapshot("v9"))).await;
    let (ended, _) = world.delete_with_controllers().await;
    assert_eq!(ended, Ended::Done);
    let plural = "volumesnapshots.snapshot.storage.k8s.io";
    assert_eq!(world.fake.object(plural, "shop", "vs"), Some(snapshot("v9")));
}

#[tokio::test(start_paused = true)]
async fn nobody_takes_for_done_what_is_not_and_a_retry_finishes_it() {
    let world = World::new(cluster()).await;
    // Nobody works on contents.
    let Ended::Failed(errors) = world.delete().await else { panic!("it is not done") };
    let [error] = &errors[..] else { panic!("{errors:?}") };
    assert!(error.contains("error deleting CSI snapshot s1 of shop/data: "), "{error}");
    assert!(error.contains("still there after 60 s"), "{error}");
    let name = world.fake.creations()[0].name.clone();
    let content = world.fake.object(PLURAL, "", &name).unwrap();
    assert_eq!(content["status"]["snapshotHandle"], "s1");
    // The driver fails, and says so.
    let uid = content["metadata"]["uid"].clone();
    world.fake.put(json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"namespace": "default", "name": "e"},
        "involvedObject": {"uid": uid}, "type": "Warning", "lastTimestamp": "9999-01-01T00:00:00Z",
        "reason": "SnapshotDeleteError", "message": "Failed to delete snapshot",
    }));
    let began = Instant::now();
    let Ended::Failed(errors) = world.delete().await else { panic!("it is not done") };
    assert!(errors[0].contains("SnapshotDeleteError: Failed to delete snapshot"), "{errors:?}");
    assert_eq!(began.elapsed(), Duration::from_secs(5));
    let (ended, deleted) = world.delete_with_controllers().await;
    assert_eq!((ended, deleted), (Ended::Done, vec!["s1".to_owned()]));
    assert_eq!(world.fake.creations().len(), 1, "it goes on with what is there");
}

/// Waits until a content has an annotation that changes with every attempt.
async fn nudged(fake: &Fake) {
    let resources = fake.resources();
    let contents = resources.find(&kind(CONTENTS)).unwrap();
    let mut changes = fake.watch(contents, Query::default());
    while let Some(change) = changes.next().await {
        let Change::There(object) = change.unwrap() else { continue };
        let now = fake.object(PLURAL, "", &object.name).unwrap();
        if now["metadata"]["annotations"].get(ATTEMPT).is_some() {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn controllers_that_have_missed_a_deletion_are_made_to_look_again() {
    let world = World::new(cluster()).await;
    let (mut deleted, began) = (Vec::new(), Instant::now());
    let late = async {
        nudged(&world.fake).await;
        controllers(&world.fake, &mut deleted).await;
    };
    let ended = tokio::select! {
        biased;
        ended = world.delete() => ended,
        () = late => panic!("they do not end"),
    };
    assert_eq!((ended, deleted), (Ended::Done, vec!["s1".to_owned()]));
    assert_eq!(began.elapsed(), FIRST_NUDGE);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_does_not_wait() {
    let world = World::new(cluster()).await;
    let ending = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.stop.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = world.delete() => assert_eq!(ended, Ended::Stopped),
        () = ending => {}
    }
}

#[tokio::test]
async fn without_the_driver_nothing_is_begun() {
    assert_eq!(ready(&cluster(), &[]).await, Ok(()));
    assert_eq!(ready(&cluster(), &[doomed()]).await, Ok(()));
    let other = Content { driver: "b.driver".into(), handle: "s2".into(), ..doomed() };
    let reasons = ready(&cluster(), &[doomed(), other]).await.unwrap_err();
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    assert!(
        reason.contains("b.driver is not installed") && reason.ends_with("left: s2"),
        "{reason}"
    );
    let reasons = ready(&Fake::usual(), &[doomed()]).await.unwrap_err();
    assert!(reasons[0].contains("does not serve VolumeSnapshotContents"), "{reasons:?}");
}

#[tokio::test]
async fn what_was_taken_as_a_group_is_not_touched() {
    let of_group = Content { group: "g".into(), ..doomed() };
    let reasons = ready(&cluster(), &[of_group]).await.unwrap_err();
    assert!(reasons[0].contains("taken as a group") && reasons[0].contains("s1"), "{reasons:?}");
    ready(&cluster(), &[doomed()]).await.unwrap();
}
