use std::sync::Mutex;
use std::time::Duration;

use bowline_store::backend::Memory;
use bowline_store::{BackupName, BackupStore, Prefix};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::{Deadlines, Ended, Files, Opened, Plan, data};
use super::deletion::TRIES;
use super::sight::{ATTEMPT, FIRST_NUDGE};
use super::*;
use crate::cluster::{Change, Door, Fake, Query, fake};
use crate::csi::{BEING_DELETED, GROUP, GROUP_BEING_DELETED, GROUP_DELETION_SECRET};
use crate::resource::GroupResource;

const PLURAL: &str = "volumesnapshotcontents.snapshot.storage.k8s.io";
const OF_GROUPS: &str = "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io";

fn cluster() -> Fake {
    let served = |group: &str, kind: &str, plural: &str, is_namespaced| {
        let mut resource = fake::usual_resources().remove(0);
        resource.id = GroupResource::new(group, plural);
        resource.kind = kind.into();
        resource.is_namespaced = is_namespaced;
        resource
    };
    let more = [
        served(GROUP, "VolumeSnapshot", SNAPSHOTS, true),
        served(GROUP, "VolumeSnapshotContent", CONTENTS, false),
        served(GROUP_OF_GROUPS, "VolumeGroupSnapshotContent", GROUP_CONTENTS, false),
        served(GROUP_OF_GROUPS, "VolumeGroupSnapshot", GROUPS, true),
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
        ..Content::default()
    }
}

/// Two snapshots that were taken as a group, and one that was not.
fn group() -> Vec<Content> {
    let member = |handle: &str| Content {
        name: String::new(),
        handle: handle.into(),
        volume: format!("shop/{handle}"),
        group: "g".into(),
        ..doomed()
    };
    vec![member("m1"), doomed(), member("m2")]
}

struct World {
    fake: Arc<Fake>,
    store: BackupStore,
    stop: CancellationToken,
    deadlines: Deadlines,
    csi: Vec<Content>,
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
        let (fake, stop, csi) = (Arc::new(fake), CancellationToken::new(), vec![doomed()]);
        Self { fake, store, stop, deadlines, csi }
    }

    async fn delete(&self) -> Ended {
        let plan = Plan { files: Files::Own, snapshots: Vec::new(), csi: self.csi.clone() };
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
        self.delete_with(&Controllers::default()).await
    }

    async fn delete_with(&self, controllers: &Controllers) -> (Ended, Vec<String>) {
        let ended = tokio::select! {
            biased;
            ended = self.delete() => ended,
            () = controllers.work(&self.fake) => panic!("they do not end"),
        };
        (ended, controllers.deleted.lock().unwrap().clone())
    }
}

fn backup() -> bowline_api::Backup {
    serde_json::from_value(json!({
        "metadata": {"name": "b", "uid": "u"}, "spec": {},
        "status": {"phase": "Completed", "startTimestamp": "2026-01-02T03:04:05Z"},
    }))
    .unwrap()
}

/// What the snapshot controller and the sidecar of a driver do about contents.
#[derive(Default)]
struct Controllers {
    /// Whether the driver knows no snapshot that it is asked for.
    is_ignorant: bool,
    /// Whether the driver says of each snapshot that it is in a group.
    is_grouping: bool,
    /// Whether nobody does anything about contents that go.
    is_blind: bool,
    /// How many contents lose their name to an error before they go.
    wiped: Mutex<usize>,
    deleted: Mutex<Vec<String>>,
}

impl Controllers {
    async fn work(&self, fake: &Fake) {
        let of = |shape| self.work_on(fake, shape);
        tokio::join!(of(Shape::Snapshot), of(Shape::Group));
    }

    async fn work_on(&self, fake: &Fake, shape: Shape) {
        let (plural, resource, field) = match shape {
            Shape::Snapshot => (PLURAL, resource(CONTENTS), "snapshotHandle"),
            Shape::Group => {
                (OF_GROUPS, resource_of_groups(GROUP_CONTENTS), "volumeGroupSnapshotHandle")
            }
        };
        let resources = fake.resources();
        let contents = resources.find(&resource).unwrap();
        let mut changes = fake.watch(contents, Query::default());
        let write = async |name: &str, change: Value| {
            fake.patch(contents, "", name, Door::Whole, &change).await.unwrap();
        };
        while let Some(change) = changes.next().await {
            let Change::There(object) = change.unwrap() else { continue };
            let (name, Some(now)) = (&object.name, fake.object(plural, "", &object.name)) else {
                continue;
            };
            let source = match shape {
                Shape::Snapshot => text(&now, "/spec/source/snapshotHandle"),
                Shape::Group => {
                    text(&now, "/spec/source/groupSnapshotHandles/volumeGroupSnapshotHandle")
                }
            };
            if text(&now, "/metadata/deletionTimestamp").is_empty() {
                if !source.is_empty() && now.get("status").is_none() {
                    let status = if self.is_ignorant {
                        json!({"readyToUse": false, "error": {"message": "no such snapshot"}})
                    } else if self.is_grouping && shape == Shape::Snapshot {
                        let group = "volumeGroupSnapshotHandle";
                        json!({field: source, group: "g9", "readyToUse": true})
                    } else {
                        json!({field: source, "readyToUse": true})
                    };
                    write(name, json!({"status": status})).await;
                }
                continue;
            }
            let is_bound = !text(&now, "/spec/volumeSnapshotRef/uid").is_empty();
            let mark = match shape {
                Shape::Snapshot => BEING_DELETED,
                Shape::Group => GROUP_BEING_DELETED,
            };
            let is_marked = now["metadata"]["annotations"].get(mark).is_some();
            if self.is_blind || ((is_bound || source.is_empty()) && !is_marked) {
                continue;
            }
            let handle = text(&now, &format!("/status/{field}"));
            let is_alone = shape.group(&now).is_none();
            if text(&now, "/spec/deletionPolicy") == "Delete" && !handle.is_empty() && is_alone {
                let is_wiped = {
                    let mut wiped = self.wiped.lock().unwrap();
                    let is_wiped = *wiped > 0;
                    *wiped = wiped.saturating_sub(1);
                    is_wiped
                };
                let cleared = if is_wiped {
                    json!({field: null, "readyToUse": false, "error": {"message": "late"}})
                } else {
                    self.deleted.lock().unwrap().push(handle.to_owned());
                    json!({field: null, "readyToUse": null})
                };
                write(name, json!({"status": cleared})).await;
            }
            write(name, json!({"metadata": {"finalizers": null}})).await;
        }
    }
}

fn left(policy: &str, handle: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "vsc", "uid": "c1", "finalizers": [Shape::Snapshot.finalizer()]},
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
    assert!(error.contains("nobody has looked at") && error.contains("within 60 s"), "{error}");
    let name = world.fake.creations()[0].name.clone();
    let content = world.fake.object(PLURAL, "", &name).unwrap();
    assert!(content["metadata"].get("deletionTimestamp").is_none(), "it would keep the snapshot");
    // Nobody works on those that go.
    let blind = Controllers { is_blind: true, ..Controllers::default() };
    let (Ended::Failed(errors), _) = world.delete_with(&blind).await else { panic!("not done") };
    assert!(errors[0].contains("nobody has let go of"), "{errors:?}");
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

#[tokio::test(start_paused = true)]
async fn a_content_that_went_without_a_deletion_is_made_again() {
    let world = World::new(cluster()).await;
    let hasty = Controllers { wiped: Mutex::new(2), ..Controllers::default() };
    assert_eq!(world.delete_with(&hasty).await, (Ended::Done, vec!["s1".to_owned()]));
    assert_eq!(world.fake.creations().len(), 3);
    // But not for ever.
    let world = World::new(cluster()).await;
    let never = Controllers { wiped: Mutex::new(usize::MAX), ..Controllers::default() };
    let (Ended::Failed(errors), deleted) = world.delete_with(&never).await else { panic!("done") };
    assert!(errors[0].contains("nothing proves that it is deleted"), "{errors:?}");
    assert_eq!((world.fake.creations().len(), deleted.len()), (TRIES, 0));
}

#[tokio::test(start_paused = true)]
async fn what_the_driver_does_not_know_it_is_told_to_delete_all_the_same() {
    let world = World { csi: group(), ..World::new(cluster()).await };
    let ignorant = Controllers { is_ignorant: true, ..Controllers::default() };
    let (ended, mut deleted) = world.delete_with(&ignorant).await;
    deleted.sort();
    assert_eq!((ended, deleted), (Ended::Done, vec!["g".to_owned(), "s1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn the_snapshots_of_a_group_are_deleted_by_one_call() {
    let world = World { csi: group(), ..World::new(cluster()).await };
    // One that stays tells how it was made.
    let blind = Controllers { is_blind: true, ..Controllers::default() };
    let (Ended::Failed(errors), _) = world.delete_with(&blind).await else { panic!("not done") };
    let told = "error deleting group of CSI snapshots g of shop/m1, shop/m2: ";
    assert!(errors.iter().any(|error| error.contains(told)), "{errors:?}");
    let made = world.fake.creations();
    let made = made.iter().find(|id| id.resource == GROUP_CONTENTS).unwrap();
    assert!(made.name.starts_with("vgsc-"), "{made}");
    let content = world.fake.object(OF_GROUPS, "", &made.name).unwrap();
    let source = &content["spec"]["source"]["groupSnapshotHandles"];
    assert_eq!(source["volumeSnapshotHandles"], json!(["m1", "m2"]));
    assert_eq!(content["metadata"]["annotations"][GROUP_DELETION_SECRET[0]], "key");
    // The next try goes on with it.
    let (ended, mut deleted) = world.delete_with_controllers().await;
    deleted.sort();
    assert_eq!((ended, deleted), (Ended::Done, vec!["g".to_owned(), "s1".to_owned()]));
    assert_eq!(world.fake.creations().len(), 2);
    assert!(world.fake.object(OF_GROUPS, "", &made.name).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_group_that_the_backup_left_goes_before_its_members() {
    let of_group = |name: &str, source: &Value| {
        json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotContent",
            "metadata": {"name": name, "uid": name, "finalizers": [Shape::Group.finalizer()]},
            "spec": {
                "deletionPolicy": "Delete", "driver": "a.driver", "source": source,
                "volumeGroupSnapshotRef": {"namespace": "shop", "name": "vgs", "uid": "vgs1"},
            },
            "status": {"volumeGroupSnapshotHandle": "g", "readyToUse": true},
        })
    };
    let restored = of_group(
        "restored",
        &json!({"groupSnapshotHandles": {
            "volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["m1", "m2"],
        }}),
    );
    let fake = cluster()
        .with(of_group("taken", &json!({"volumeHandles": ["v1", "v2"]})))
        .with(restored.clone())
        .with(json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
            "metadata": {"namespace": "shop", "name": "vgs", "uid": "vgs1"},
        }))
        .with(left("Delete", "m1"))
        .with(snapshot("v1"));
    let mut csi = group();
    csi.retain(|one| !one.group.is_empty());
    csi[0].name = "vsc".into();
    let world = World { csi, ..World::new(fake).await };
    let (ended, deleted) = world.delete_with_controllers().await;
    assert_eq!((ended, deleted), (Ended::Done, vec!["g".to_owned()]));
    assert!(world.fake.object(OF_GROUPS, "", "taken").is_none());
    assert_eq!(world.fake.object(OF_GROUPS, "", "restored"), Some(restored));
    let gone = world.fake.deletions();
    let place = |name: &str| gone.iter().position(|id| id.name == name).unwrap();
    assert!(place("vgs") < place("vs") && place("taken") < place("vsc"), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_content_that_is_going_already_is_let_go() {
    let mut going = left("Retain", "s1");
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let world = World::new(cluster().with(going)).await;
    let (ended, deleted) = world.delete_with_controllers().await;
    assert_eq!((ended, deleted), (Ended::Done, vec!["s1".to_owned()]));
    assert!(world.fake.object(PLURAL, "", "vsc").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_member_of_a_group_that_the_backup_does_not_know_is_told_at_once() {
    let world = World::new(cluster()).await;
    let grouping = Controllers { is_grouping: true, ..Controllers::default() };
    let (Ended::Failed(errors), deleted) = world.delete_with(&grouping).await else {
        panic!("it is not done")
    };
    assert!(errors[0].contains("it is a member of the group g9, which the backup"), "{errors:?}");
    assert_eq!((world.fake.creations().len(), deleted.len()), (1, 0));
}

/// Waits until a content has an annotation that changes with every attempt.
async fn nudged(fake: &Fake) {
    let resources = fake.resources();
    let contents = resources.find(&resource(CONTENTS)).unwrap();
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
    let blind = Controllers { is_blind: true, ..Controllers::default() };
    let (seeing, began) = (Controllers::default(), Instant::now());
    let late = async {
        tokio::select! {
            () = nudged(&world.fake) => {}
            () = blind.work(&world.fake) => {}
        }
        seeing.work(&world.fake).await;
    };
    let ended = tokio::select! {
        biased;
        ended = world.delete() => ended,
        () = late => panic!("they do not end"),
    };
    assert_eq!(ended, Ended::Done);
    assert_eq!(*seeing.deleted.lock().unwrap(), ["s1"]);
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
    assert_eq!(ready(&cluster(), &mut []).await, Ok(()));
    assert_eq!(ready(&cluster(), &mut [doomed()]).await, Ok(()));
    let other = Content { driver: "b.driver".into(), handle: "s2".into(), ..doomed() };
    let reasons = ready(&cluster(), &mut [doomed(), other]).await.unwrap_err();
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    assert!(
        reason.contains("b.driver is not installed") && reason.ends_with("left: s2"),
        "{reason}"
    );
    let reasons = ready(&Fake::usual(), &mut [doomed()]).await.unwrap_err();
    assert!(reasons[0].contains("does not serve VolumeSnapshotContents"), "{reasons:?}");
}

#[tokio::test]
async fn a_group_is_not_touched_where_nobody_deletes_groups() {
    ready(&cluster(), &mut group()).await.unwrap();
    let fake = cluster();
    let served = fake.discover().await.unwrap().resources.into_iter();
    let fake = Fake::new(served.filter(|resource| resource.id.group != GROUP_OF_GROUPS));
    fake.put(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "a.driver"},
    }));
    let reasons = ready(&fake, &mut group()).await.unwrap_err();
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    assert!(reason.contains("VolumeGroupSnapshotContents") && reason.ends_with("left: m1, m2"));
    ready(&fake, &mut [doomed()]).await.unwrap();
    // One that does not answer may serve them.
    let fake = cluster().with_failed_group("groupsnapshot.storage.k8s.io/v1beta1: no answer");
    let reasons = ready(&fake, &mut [doomed()]).await.unwrap_err();
    assert!(reasons[0].contains("it is not known"), "{reasons:?}");
}
