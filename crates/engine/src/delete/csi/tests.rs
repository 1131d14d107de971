use std::time::Duration;

use bowline_store::backend::Memory;
use bowline_store::{BackupName, BackupStore, Prefix};
use futures::StreamExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::{
    Deadlines, DeletionPlan, DeletionResult, FileOwnership, OpenSnapshotters, delete_data,
};
use super::content_watch::{ATTEMPT_ANNOTATION, FIRST_NUDGE};
use super::deletion::MAX_ATTEMPTS;
use super::*;
use crate::cluster::{Fake, Query, Subresource, WatchEvent, fake};
use crate::csi::{
    BEING_DELETED, GROUP, GROUP_BEING_DELETED, GROUP_DELETION_SECRET, GROUP_SNAPSHOT_API_GROUP,
};
use crate::json::text;
use crate::resource::GroupResource;
use crate::unpack::UnpackLimits;

const PLURAL: &str = "volumesnapshotcontents.snapshot.storage.k8s.io";
const GROUP_PLURAL: &str = "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io";

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
        served(GROUP_SNAPSHOT_API_GROUP, "VolumeGroupSnapshotContent", GROUP_CONTENTS, false),
        served(GROUP_SNAPSHOT_API_GROUP, "VolumeGroupSnapshot", GROUPS, true),
        served("storage.k8s.io", "CSIDriver", "csidrivers", false),
    ];
    let fake = Fake::new(fake::usual_resources().into_iter().chain(more));
    fake.put(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "a.driver"},
    }));
    fake
}

fn csi_snapshot() -> DeletableCsiSnapshot {
    DeletableCsiSnapshot {
        name: "vsc".into(),
        driver: "a.driver".into(),
        handle: "s1".into(),
        volume: "shop/data".into(),
        group: String::new(),
        annotations: [("snapshot.storage.kubernetes.io/deletion-secret-name", "key")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..DeletableCsiSnapshot::default()
    }
}

/// Two snapshots of a group, and one outside of it.
fn group() -> Vec<DeletableCsiSnapshot> {
    let member = |handle: &str| DeletableCsiSnapshot {
        name: String::new(),
        handle: handle.into(),
        volume: format!("shop/{handle}"),
        group: "g".into(),
        ..csi_snapshot()
    };
    vec![member("m1"), csi_snapshot(), member("m2")]
}

struct World {
    fake: Arc<Fake>,
    store: BackupStore,
    stop: CancellationToken,
    deadlines: Deadlines,
    csi: Vec<DeletableCsiSnapshot>,
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
        let (fake, stop, csi) = (Arc::new(fake), CancellationToken::new(), vec![csi_snapshot()]);
        Self { fake, store, stop, deadlines, csi }
    }

    async fn delete(&self) -> DeletionResult {
        let plan = DeletionPlan {
            files: FileOwnership::Own,
            snapshots: Vec::new(),
            csi: self.csi.clone(),
        };
        let (backup, name): (_, BackupName) = (backup(), "b".parse().unwrap());
        let job = DeletionJob {
            backup: &backup,
            name: &name,
            store: &self.store,
            plan: &plan,
            snapshotters: &OpenSnapshotters::default(),
            actions: Vec::new(),
            cluster: &*self.fake,
            scratch: &std::env::temp_dir(),
            unpack_limits: UnpackLimits::default(),
            deadlines: self.deadlines,
            stop: &self.stop,
        };
        delete_data(job).await
    }

    /// Deletes with controllers that behave like the real ones. Returns the handles of the snapshots that they deleted.
    async fn delete_with_controllers(&self) -> (DeletionResult, Vec<String>) {
        self.delete_with(&Controllers::default()).await
    }

    async fn delete_with(&self, controllers: &Controllers) -> (DeletionResult, Vec<String>) {
        let ended = tokio::select! {
            biased;
            ended = self.delete() => ended,
            () = controllers.work(&self.fake) => panic!("they do not end"),
        };
        (ended, controllers.deleted.lock().clone())
    }
}

fn backup() -> bowline_api::Backup {
    serde_json::from_value(json!({
        "metadata": {"name": "b", "uid": "u"}, "spec": {},
        "status": {"phase": "Completed", "startTimestamp": "2026-01-02T03:04:05Z"},
    }))
    .unwrap()
}

/// Behaviour of the snapshot controller and the sidecar of a driver.
#[derive(Default)]
struct Controllers {
    /// True if the driver does not know any of the snapshots.
    knows_no_snapshot: bool,
    /// True if the driver reports a group for each snapshot.
    reports_groups: bool,
    /// True if the controllers ignore contents that are being deleted.
    ignores_deletions: bool,
    /// Number of contents that lose their handle because of an error before they are released.
    status_wipes: Mutex<usize>,
    deleted: Mutex<Vec<String>>,
}

impl Controllers {
    async fn work(&self, fake: &Fake) {
        let of = |content_kind| self.work_on(fake, content_kind);
        tokio::join!(of(ContentKind::Snapshot), of(ContentKind::Group));
    }

    async fn work_on(&self, fake: &Fake, content_kind: ContentKind) {
        let (plural, resource, field) = match content_kind {
            ContentKind::Snapshot => (PLURAL, resource(CONTENTS), "snapshotHandle"),
            ContentKind::Group => {
                (GROUP_PLURAL, group_resource(GROUP_CONTENTS), "volumeGroupSnapshotHandle")
            }
        };
        let resources = fake.resources();
        let contents = resources.find(&resource).unwrap();
        let mut changes = fake.watch(contents, Query::default());
        let write = async |name: &str, change: Value| {
            fake.patch(contents, "", name, Subresource::None, &change).await.unwrap();
        };
        while let Some(change) = changes.next().await {
            let WatchEvent::Applied(object) = change.unwrap() else { continue };
            let (name, Some(current)) = (&object.name, fake.object(plural, "", &object.name))
            else {
                continue;
            };
            let source = match content_kind {
                ContentKind::Snapshot => text(&current, "/spec/source/snapshotHandle"),
                ContentKind::Group => {
                    text(&current, "/spec/source/groupSnapshotHandles/volumeGroupSnapshotHandle")
                }
            };
            if text(&current, "/metadata/deletionTimestamp").is_empty() {
                if !source.is_empty() && current.get("status").is_none() {
                    let status = if self.knows_no_snapshot {
                        json!({"readyToUse": false, "error": {"message": "no such snapshot"}})
                    } else if self.reports_groups && content_kind == ContentKind::Snapshot {
                        let group = "volumeGroupSnapshotHandle";
                        json!({field: source, group: "g9", "readyToUse": true})
                    } else {
                        json!({field: source, "readyToUse": true})
                    };
                    write(name, json!({"status": status})).await;
                }
                continue;
            }
            let is_bound = !text(&current, "/spec/volumeSnapshotRef/uid").is_empty();
            let mark = match content_kind {
                ContentKind::Snapshot => BEING_DELETED,
                ContentKind::Group => GROUP_BEING_DELETED,
            };
            let is_marked = current["metadata"]["annotations"].get(mark).is_some();
            if self.ignores_deletions || ((is_bound || source.is_empty()) && !is_marked) {
                continue;
            }
            let handle = text(&current, &format!("/status/{field}"));
            let is_not_in_group = content_kind.group(&current).is_none();
            if text(&current, "/spec/deletionPolicy") == "Delete"
                && !handle.is_empty()
                && is_not_in_group
            {
                let is_wiped = {
                    let mut wiped = self.status_wipes.lock();
                    let is_wiped = *wiped > 0;
                    *wiped = wiped.saturating_sub(1);
                    is_wiped
                };
                let cleared = if is_wiped {
                    json!({field: null, "readyToUse": false, "error": {"message": "late"}})
                } else {
                    self.deleted.lock().push(handle.to_owned());
                    json!({field: null, "readyToUse": null})
                };
                write(name, json!({"status": cleared})).await;
            }
            write(name, json!({"metadata": {"finalizers": null}})).await;
        }
    }
}

fn leftover_content(policy: &str, handle: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "vsc", "uid": "c1", "finalizers": [ContentKind::Snapshot.finalizer()]},
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
async fn snapshot_is_deleted_though_its_content_is_gone() {
    let world = World::new(cluster()).await;
    let (ended, deleted) = world.delete_with_controllers().await;
    assert_eq!(ended, DeletionResult::Done);
    assert_eq!(deleted, ["s1"]);
    let [created] = &world.fake.creations()[..] else { panic!("not one") };
    assert!(created.name.starts_with("vsc-") && created.name.len() == 36, "{created}");
    assert!(world.fake.object(PLURAL, "", &created.name).is_none());
    // Repeated, as after a kill: the driver is called again, under the same name.
    let (ended, deleted) = world.delete_with_controllers().await;
    assert_eq!((ended, deleted), (DeletionResult::Done, vec!["s1".to_owned()]));
    assert_eq!(world.fake.creations()[1], *created);
}

#[tokio::test(start_paused = true)]
async fn leftover_content_is_deleted_and_the_snapshot_once() {
    for policy in ["Retain", "Delete"] {
        let world =
            World::new(cluster().with(leftover_content(policy, "s1")).with(snapshot("v1"))).await;
        let (ended, deleted) = world.delete_with_controllers().await;
        assert_eq!((ended, deleted), (DeletionResult::Done, vec!["s1".to_owned()]), "{policy}");
        assert!(world.fake.object(PLURAL, "", "vsc").is_none());
        assert!(
            world.fake.object("volumesnapshots.snapshot.storage.k8s.io", "shop", "vs").is_none()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn objects_of_another_backup_are_kept() {
    // Other objects have its names.
    let world =
        World::new(cluster().with(leftover_content("Delete", "s9")).with(snapshot("v9"))).await;
    let (ended, deleted) = world.delete_with_controllers().await;
    assert_eq!((ended, deleted), (DeletionResult::Done, vec!["s1".to_owned()]));
    assert_eq!(world.fake.object(PLURAL, "", "vsc"), Some(leftover_content("Delete", "s9")));
    let world =
        World::new(cluster().with(leftover_content("Delete", "s1")).with(snapshot("v9"))).await;
    let (ended, _) = world.delete_with_controllers().await;
    assert_eq!(ended, DeletionResult::Done);
    let plural = "volumesnapshots.snapshot.storage.k8s.io";
    assert_eq!(world.fake.object(plural, "shop", "vs"), Some(snapshot("v9")));
}

#[tokio::test(start_paused = true)]
async fn unfinished_deletion_is_an_error_and_a_retry_finishes_it() {
    let world = World::new(cluster()).await;
    // No controller handles contents.
    let DeletionResult::Failed(errors) = world.delete().await else { panic!("it is not done") };
    let [error] = &errors[..] else { panic!("{errors:?}") };
    assert!(error.contains("error deleting CSI snapshot s1 of shop/data: "), "{error}");
    assert!(
        error.contains("was not reconciled within") && error.contains("within 60 s"),
        "{error}"
    );
    let name = world.fake.creations()[0].name.clone();
    let content = world.fake.object(PLURAL, "", &name).unwrap();
    assert!(content["metadata"].get("deletionTimestamp").is_none(), "it would keep the snapshot");
    // No controller handles contents that are being deleted.
    let blind = Controllers { ignores_deletions: true, ..Controllers::default() };
    let (DeletionResult::Failed(errors), _) = world.delete_with(&blind).await else {
        panic!("not done")
    };
    assert!(errors[0].contains("was not released within"), "{errors:?}");
    // The driver fails and reports it.
    let uid = content["metadata"]["uid"].clone();
    world.fake.put(json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"namespace": "default", "name": "e"},
        "involvedObject": {"uid": uid}, "type": "Warning", "lastTimestamp": "9999-01-01T00:00:00Z",
        "reason": "SnapshotDeleteError", "message": "Failed to delete snapshot",
    }));
    let started_at = Instant::now();
    let DeletionResult::Failed(errors) = world.delete().await else { panic!("it is not done") };
    assert!(errors[0].contains("SnapshotDeleteError: Failed to delete snapshot"), "{errors:?}");
    assert_eq!(started_at.elapsed(), Duration::from_secs(5));
    let (ended, deleted) = world.delete_with_controllers().await;
    assert_eq!((ended, deleted), (DeletionResult::Done, vec!["s1".to_owned()]));
    assert_eq!(world.fake.creations().len(), 1, "it goes on with what is there");
}

#[tokio::test(start_paused = true)]
async fn content_gone_without_proof_is_created_again() {
    let world = World::new(cluster()).await;
    let hasty = Controllers { status_wipes: Mutex::new(2), ..Controllers::default() };
    assert_eq!(world.delete_with(&hasty).await, (DeletionResult::Done, vec!["s1".to_owned()]));
    assert_eq!(world.fake.creations().len(), 3);
    // The number of attempts is limited.
    let world = World::new(cluster()).await;
    let never = Controllers { status_wipes: Mutex::new(usize::MAX), ..Controllers::default() };
    let (DeletionResult::Failed(errors), deleted) = world.delete_with(&never).await else {
        panic!("done")
    };
    assert!(errors[0].contains("without confirming that the snapshot is deleted"), "{errors:?}");
    assert_eq!((world.fake.creations().len(), deleted.len()), (MAX_ATTEMPTS, 0));
}

#[tokio::test(start_paused = true)]
async fn snapshot_unknown_to_the_driver_is_deleted_anyway() {
    let world = World { csi: group(), ..World::new(cluster()).await };
    let ignorant = Controllers { knows_no_snapshot: true, ..Controllers::default() };
    let (ended, mut deleted) = world.delete_with(&ignorant).await;
    deleted.sort();
    assert_eq!((ended, deleted), (DeletionResult::Done, vec!["g".to_owned(), "s1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn the_snapshots_of_a_group_are_deleted_by_one_call() {
    let world = World { csi: group(), ..World::new(cluster()).await };
    // A content that remains shows how it was created.
    let blind = Controllers { ignores_deletions: true, ..Controllers::default() };
    let (DeletionResult::Failed(errors), _) = world.delete_with(&blind).await else {
        panic!("not done")
    };
    let expected = "error deleting group of CSI snapshots g of shop/m1, shop/m2: ";
    assert!(errors.iter().any(|error| error.contains(expected)), "{errors:?}");
    let created = world.fake.creations();
    let created = created.iter().find(|id| id.resource == GROUP_CONTENTS).unwrap();
    assert!(created.name.starts_with("vgsc-"), "{created}");
    let content = world.fake.object(GROUP_PLURAL, "", &created.name).unwrap();
    let source = &content["spec"]["source"]["groupSnapshotHandles"];
    assert_eq!(source["volumeSnapshotHandles"], json!(["m1", "m2"]));
    assert_eq!(content["metadata"]["annotations"][GROUP_DELETION_SECRET[0]], "key");
    // The next attempt continues with it.
    let (ended, mut deleted) = world.delete_with_controllers().await;
    deleted.sort();
    assert_eq!((ended, deleted), (DeletionResult::Done, vec!["g".to_owned(), "s1".to_owned()]));
    assert_eq!(world.fake.creations().len(), 2);
    assert!(world.fake.object(GROUP_PLURAL, "", &created.name).is_none());
}

#[tokio::test(start_paused = true)]
async fn leftover_group_is_deleted_before_its_members() {
    let of_group = |name: &str, source: &Value| {
        json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotContent",
            "metadata": {"name": name, "uid": name, "finalizers": [ContentKind::Group.finalizer()]},
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
        .with(leftover_content("Delete", "m1"))
        .with(snapshot("v1"));
    let mut csi = group();
    csi.retain(|one| !one.group.is_empty());
    csi[0].name = "vsc".into();
    let world = World { csi, ..World::new(fake).await };
    let (ended, deleted) = world.delete_with_controllers().await;
    assert_eq!((ended, deleted), (DeletionResult::Done, vec!["g".to_owned()]));
    assert!(world.fake.object(GROUP_PLURAL, "", "taken").is_none());
    assert_eq!(world.fake.object(GROUP_PLURAL, "", "restored"), Some(restored));
    let gone = world.fake.deletions();
    let position = |name: &str| gone.iter().position(|id| id.name == name).unwrap();
    assert!(position("vgs") < position("vs") && position("taken") < position("vsc"), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn terminating_content_is_released() {
    let mut terminating = leftover_content("Retain", "s1");
    terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let world = World::new(cluster().with(terminating)).await;
    let (ended, deleted) = world.delete_with_controllers().await;
    assert_eq!((ended, deleted), (DeletionResult::Done, vec!["s1".to_owned()]));
    assert!(world.fake.object(PLURAL, "", "vsc").is_none());
}

#[tokio::test(start_paused = true)]
async fn member_of_an_unknown_group_is_an_error() {
    let world = World::new(cluster()).await;
    let grouping = Controllers { reports_groups: true, ..Controllers::default() };
    let (DeletionResult::Failed(errors), deleted) = world.delete_with(&grouping).await else {
        panic!("it is not done")
    };
    assert!(
        errors[0].contains("the snapshot belongs to group g9, which is not in the backup"),
        "{errors:?}"
    );
    assert_eq!((world.fake.creations().len(), deleted.len()), (1, 0));
}

/// Waits until a content has an annotation that changes with every attempt.
async fn wait_until_nudged(fake: &Fake) {
    let resources = fake.resources();
    let contents = resources.find(&resource(CONTENTS)).unwrap();
    let mut changes = fake.watch(contents, Query::default());
    while let Some(change) = changes.next().await {
        let WatchEvent::Applied(object) = change.unwrap() else { continue };
        let current = fake.object(PLURAL, "", &object.name).unwrap();
        if current["metadata"]["annotations"].get(ATTEMPT_ANNOTATION).is_some() {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn controllers_that_missed_a_deletion_are_nudged() {
    let world = World::new(cluster()).await;
    let blind = Controllers { ignores_deletions: true, ..Controllers::default() };
    let (seeing, started_at) = (Controllers::default(), Instant::now());
    let late = async {
        tokio::select! {
            () = wait_until_nudged(&world.fake) => {}
            () = blind.work(&world.fake) => {}
        }
        seeing.work(&world.fake).await;
    };
    let ended = tokio::select! {
        biased;
        ended = world.delete() => ended,
        () = late => panic!("they do not end"),
    };
    assert_eq!(ended, DeletionResult::Done);
    assert_eq!(*seeing.deleted.lock(), ["s1"]);
    assert_eq!(started_at.elapsed(), FIRST_NUDGE);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_the_wait() {
    let world = World::new(cluster()).await;
    let ending = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.stop.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = world.delete() => assert_eq!(ended, DeletionResult::Stopped),
        () = ending => {}
    }
}

#[tokio::test]
async fn missing_driver_is_found_before_deletion() {
    check_csi_ready(&cluster(), &mut []).await.unwrap();
    check_csi_ready(&cluster(), &mut [csi_snapshot()]).await.unwrap();
    let other =
        DeletableCsiSnapshot { driver: "b.driver".into(), handle: "s2".into(), ..csi_snapshot() };
    let reasons =
        check_csi_ready(&cluster(), &mut [csi_snapshot(), other]).await.unwrap_err().messages();
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    assert!(
        reason.contains("b.driver is not installed") && reason.ends_with("left over: s2"),
        "{reason}"
    );
    let reasons =
        check_csi_ready(&Fake::usual(), &mut [csi_snapshot()]).await.unwrap_err().messages();
    assert!(reasons[0].contains("does not serve VolumeSnapshotContents"), "{reasons:?}");
}

#[tokio::test]
async fn groups_are_not_deleted_without_the_group_api() {
    check_csi_ready(&cluster(), &mut group()).await.unwrap();
    let fake = cluster();
    let served = fake.discover().await.unwrap().resources.into_iter();
    let fake = Fake::new(served.filter(|resource| resource.id.group != GROUP_SNAPSHOT_API_GROUP));
    fake.put(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "a.driver"},
    }));
    let reasons = check_csi_ready(&fake, &mut group()).await.unwrap_err().messages();
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    assert!(
        reason.contains("VolumeGroupSnapshotContents") && reason.ends_with("left over: m1, m2")
    );
    check_csi_ready(&fake, &mut [csi_snapshot()]).await.unwrap();
    // A group that does not answer may serve them.
    let fake = cluster().with_failed_group("groupsnapshot.storage.k8s.io/v1beta1: no answer");
    let reasons = check_csi_ready(&fake, &mut [csi_snapshot()]).await.unwrap_err().messages();
    assert!(
        reasons[0].contains("cannot check whether CSI snapshots can be deleted"),
        "{reasons:?}"
    );
}
