//! An in-memory cluster with a simulated snapshot controller and CSI driver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_engine::backup::{self, Recovery};
use bowline_engine::cluster::fake::usual_resources;
use bowline_engine::cluster::{Cluster as _, Error, ExecOutcome, Fake, Query, WatchEvent};
use bowline_engine::journal::{InMemory, JournalEntry, recover};
use bowline_engine::operation::record::RunRef;
use bowline_engine::report::Report;
use bowline_engine::{GroupResource, Resource};
use bowline_store::backend::Memory;
use futures::StreamExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::backup::{FinishedBackup, run_and_read, run_of, store_in};
use super::objects::{claim, namespace, object};

pub(crate) const GROUP: &str = "snapshot.storage.k8s.io";
pub(crate) const SNAPSHOTS: &str = "volumesnapshots.snapshot.storage.k8s.io";
pub(crate) const CONTENTS: &str = "volumesnapshotcontents.snapshot.storage.k8s.io";
pub(crate) const GROUPS: &str = "volumegroupsnapshots.groupsnapshot.storage.k8s.io";
pub(crate) const GROUP_CONTENTS: &str = "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io";
pub(crate) const BACKUP: RunRef<'static> =
    RunRef { name: "b1", uid: "3f9f3c1e-0000-4000-8000-000000000001" };

/// Snapshots of a driver, and its behaviour for each claim.
#[derive(Default)]
pub(crate) struct FakeCsiDriver {
    calls: Arc<Mutex<Vec<String>>>,
    handles: Mutex<BTreeSet<String>>,
    behaviours: Mutex<BTreeMap<&'static str, DriverBehaviour>>,
    /// Releases what waits for it.
    pub(crate) gate: Notify,
}

#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum DriverBehaviour {
    /// Creates the snapshot, which is ready at once.
    #[default]
    Good,
    /// Creates the snapshot, which is never ready.
    Unready,
    /// Returns an error.
    Failing,
    /// Never answers.
    Silent,
    /// Creates the snapshot when the gate is opened.
    Gated,
    /// The driver creates the snapshot, while a user deletes the VolumeSnapshot.
    Leaving,
    /// Returns an error for a group, to which one write then fails.
    Stuck,
    /// Creates the snapshots of a group, and one of them has no VolumeSnapshot.
    Lacking,
}

impl FakeCsiDriver {
    fn record_call(&self, call: String) {
        self.calls.lock().push(call);
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }

    pub(crate) fn handles(&self) -> Vec<String> {
        self.handles.lock().iter().cloned().collect()
    }

    pub(crate) fn set_behaviour(&self, claim: &'static str, behaviour: DriverBehaviour) {
        self.behaviours.lock().insert(claim, behaviour);
    }

    /// Reaction of the snapshot controller and the driver to a VolumeSnapshot.
    async fn take_snapshot(&self, cluster: &Fake, snapshot: Value) {
        let meta = &snapshot["metadata"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (uid, name) = (text(&meta["uid"]), text(&meta["name"]));
        let claim = text(&snapshot["spec"]["source"]["persistentVolumeClaimName"]);
        self.record_call(format!("begin {claim}"));
        // The others of the block are made meanwhile.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let behaviour = self.behaviours.lock().get(claim.as_str()).copied().unwrap_or_default();
        let content = format!("snapcontent-{uid}");
        let handle = format!("handle-{name}");
        if behaviour == DriverBehaviour::Gated {
            self.gate.notified().await;
        }
        if behaviour == DriverBehaviour::Leaving {
            let mut leaving = snapshot.clone();
            leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            cluster.put(leaving);
        }
        let status = match behaviour {
            DriverBehaviour::Silent => return,
            DriverBehaviour::Failing | DriverBehaviour::Stuck => {
                json!({"error": {"message": "no luck"}})
            }
            DriverBehaviour::Good
            | DriverBehaviour::Unready
            | DriverBehaviour::Gated
            | DriverBehaviour::Leaving
            | DriverBehaviour::Lacking => {
                self.handles.lock().insert(handle.clone());
                json!({
                    "snapshotHandle": handle,
                    "creationTime": 1_700_000_000_000_000_000_i64,
                    "restoreSize": 1 << 30,
                    "readyToUse": behaviour != DriverBehaviour::Unready,
                })
            }
        };
        self.record_call(format!("end {claim}"));
        cluster.put(json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": content, "uid": format!("uid-{content}")},
            "spec": {
                "driver": "disk.example.com",
                "deletionPolicy": "Delete",
                "source": {"volumeHandle": "v"},
                "volumeSnapshotRef": {"namespace": "shop", "name": name, "uid": uid},
            },
            "status": status,
        }));
    }

    /// A content is deleted, and with it a snapshot that it does not retain.
    fn delete_snapshot(&self, content: &Value) {
        if content["spec"]["deletionPolicy"] == "Delete"
            && content["status"]["volumeGroupSnapshotHandle"].is_null()
            && let Some(handle) = content["status"]["snapshotHandle"].as_str()
        {
            self.handles.lock().remove(handle);
        }
    }
}

pub(crate) fn resources() -> Vec<Resource> {
    with_kinds(usual_resources(), GROUP, "v1", "VolumeSnapshot")
}

pub(crate) fn with_groups() -> Vec<Resource> {
    with_kinds(resources(), "groupsnapshot.storage.k8s.io", "v1beta2", "VolumeGroupSnapshot")
}

fn with_kinds(mut all: Vec<Resource>, group: &str, version: &str, kind: &str) -> Vec<Resource> {
    let like = all[0].clone();
    let kinds = [
        (kind.to_owned(), true),
        (format!("{kind}Content"), false),
        (format!("{kind}Class"), false),
    ];
    for (kind, is_namespaced) in kinds {
        let plural = if kind.ends_with('s') { "es" } else { "s" };
        let singular = kind.to_ascii_lowercase();
        all.push(Resource {
            id: GroupResource::new(group, format!("{singular}{plural}")),
            version: version.to_owned(),
            kind,
            singular,
            short_names: Vec::new(),
            is_namespaced,
            ..like.clone()
        });
    }
    all
}

pub(crate) fn volume(name: &str, claim: &str) -> Value {
    let mut volume = object("v1", "PersistentVolume", "", name);
    volume["spec"] = json!({
        "csi": {"driver": "disk.example.com", "volumeHandle": name},
        "claimRef": {"namespace": "shop", "name": claim},
        "persistentVolumeReclaimPolicy": "Delete",
    });
    volume["status"] = json!({"phase": "Bound"});
    volume
}

pub(crate) fn class(name: &str) -> Value {
    let mut class = object(&format!("{GROUP}/v1"), "VolumeSnapshotClass", "", name);
    class["driver"] = "disk.example.com".into();
    class["deletionPolicy"] = "Delete".into();
    class
}

/// A pod with hooks and two claims.
fn objects() -> Vec<Value> {
    let mut pod = object("v1", "Pod", "shop", "db");
    pod["metadata"]["uid"] = json!("pod-uid");
    pod["metadata"]["annotations"] = json!({
        "pre.hook.backup.velero.io/command": "freeze",
        "post.hook.backup.velero.io/command": "thaw",
    });
    let volumes = ["a", "b"];
    let volumes =
        volumes.map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
    pod["spec"] = json!({"containers": [{"name": "main"}], "volumes": volumes});
    pod["status"] = json!({"phase": "Running"});
    vec![
        namespace("shop"),
        pod,
        claim("shop", "a", "pv-a"),
        claim("shop", "b", "pv-b"),
        volume("pv-a", "a"),
        volume("pv-b", "b"),
    ]
}

pub(crate) fn cluster(driver: &Arc<FakeCsiDriver>, fake: Fake) -> Arc<Fake> {
    let calls = Arc::clone(&driver.calls);
    Arc::new(objects().into_iter().fold(fake, Fake::with).with_exec_script(move |exec| {
        calls.lock().push(exec.command[0].clone());
        Ok(ExecOutcome { output: String::new(), failure: None })
    }))
}

/// The snapshot controller. It ends when this is dropped.
fn run_snapshot_controller(cluster: &Arc<Fake>, driver: &Arc<FakeCsiDriver>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for plural in [SNAPSHOTS, CONTENTS] {
        let (cluster, driver) = (Arc::clone(cluster), Arc::clone(driver));
        let resource = cluster.resources().resolve(plural).cloned().unwrap();
        let mut changes = cluster.watch(&resource, Query::default());
        tasks.spawn(async move {
            let mut handled = BTreeSet::new();
            while let Some(Ok(change)) = changes.next().await {
                match change {
                    WatchEvent::Applied(object) if plural == SNAPSHOTS => {
                        let snapshot: Value = object.item.parse().unwrap();
                        let uid = snapshot["metadata"]["uid"].to_string();
                        let content = format!("snapcontent-{}", uid.trim_matches('"'));
                        let is_there = cluster.object(CONTENTS, "", &content).is_some();
                        if handled.insert(uid) && !is_there {
                            let (cluster, driver) = (Arc::clone(&cluster), Arc::clone(&driver));
                            tokio::spawn(
                                async move { driver.take_snapshot(&cluster, snapshot).await },
                            );
                        }
                    }
                    // The content of a deleted VolumeSnapshot is deleted with it, unless it is retained.
                    WatchEvent::Deleted(object) if plural == SNAPSHOTS => {
                        let snapshot: Value = object.item.parse().unwrap();
                        let name = format!(
                            "snapcontent-{}",
                            snapshot["metadata"]["uid"].as_str().unwrap()
                        );
                        let content = cluster.object(CONTENTS, "", &name).unwrap_or_default();
                        if content["spec"]["deletionPolicy"] == "Delete" {
                            cluster.remove(CONTENTS, "", &name);
                        }
                    }
                    WatchEvent::Deleted(object) => {
                        driver.delete_snapshot(&object.item.parse().unwrap());
                    }
                    WatchEvent::Started | WatchEvent::Applied(_) => {}
                }
            }
        });
    }
    tasks
}

/// Reaction of the snapshot controller to groups. It ends when this is dropped.
fn run_group_controller(cluster: &Arc<Fake>, driver: &Arc<FakeCsiDriver>) -> JoinSet<()> {
    let (cluster, driver) = (Arc::clone(cluster), Arc::clone(driver));
    let resource = cluster.resources().resolve(GROUPS).cloned().unwrap();
    let mut changes = cluster.watch(&resource, Query::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut handled = BTreeSet::new();
        while let Some(Ok(change)) = changes.next().await {
            match change {
                WatchEvent::Applied(object) => {
                    let group: Value = object.item.parse().unwrap();
                    if handled.insert(group["metadata"]["uid"].to_string()) {
                        take_group_snapshot(&cluster, &driver, &group);
                    }
                }
                WatchEvent::Deleted(object) => {
                    delete_group_snapshot(&cluster, &driver, &object.item.parse().unwrap());
                }
                WatchEvent::Started => {}
            }
        }
    });
    tasks
}

fn take_group_snapshot(cluster: &Fake, driver: &FakeCsiDriver, group: &Value) {
    let (name, uid) = (&group["metadata"]["name"], group["metadata"]["uid"].as_str().unwrap());
    driver.record_call("group".to_owned());
    let behaviour = driver.behaviours.lock().get("group").copied().unwrap_or_default();
    let status = match behaviour {
        DriverBehaviour::Good | DriverBehaviour::Lacking => {
            json!({"volumeGroupSnapshotHandle": "group-handle"})
        }
        _ => json!({"error": {"message": "no luck"}}),
    };
    if behaviour == DriverBehaviour::Stuck {
        cluster.fail_some_writes(GROUPS, 1, || Error::Unreachable("gone for a moment".into()));
    }
    cluster.put(json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2",
        "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": format!("groupsnapcontent-{uid}"), "uid": format!("content-{uid}")},
        "spec": {
            "driver": "disk.example.com",
            "deletionPolicy": "Delete",
            "volumeGroupSnapshotRef": {"namespace": "shop", "name": name, "uid": uid},
        },
        "status": status,
    }));
    if !matches!(behaviour, DriverBehaviour::Good | DriverBehaviour::Lacking) {
        return;
    }
    for claim in ["a", "b"] {
        let handle = format!("member-{uid}-{claim}");
        let member = format!("member-{uid}-{claim}-uid");
        driver.handles.lock().insert(handle.clone());
        if behaviour == DriverBehaviour::Lacking && claim == "b" {
            continue;
        }
        cluster.put(json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": format!("snapcontent-{member}"), "uid": format!("c-{member}")},
            "spec": {
                "driver": "disk.example.com",
                "deletionPolicy": "Delete",
                "volumeSnapshotRef": {"namespace": "shop", "name": member, "uid": member},
            },
            // A member is not deleted by itself.
            "status": {
                "snapshotHandle": handle,
                "volumeGroupSnapshotHandle": "group-handle",
                "readyToUse": true,
            },
        }));
        cluster.put(json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": "VolumeSnapshot",
            "metadata": {
                "name": member, "namespace": "shop", "uid": member,
                "ownerReferences": [{"kind": "VolumeGroupSnapshot", "name": name, "uid": uid}],
            },
            "spec": {"source": {"persistentVolumeClaimName": claim}},
            "status": {
                "boundVolumeSnapshotContentName": format!("snapcontent-{member}"),
                "volumeGroupSnapshotName": name,
            },
        }));
    }
}

fn delete_group_snapshot(cluster: &Fake, driver: &FakeCsiDriver, group: &Value) {
    let uid = group["metadata"]["uid"].as_str().unwrap();
    let name = format!("groupsnapcontent-{uid}");
    let content = cluster.object(GROUP_CONTENTS, "", &name).unwrap_or_default();
    if content["spec"]["deletionPolicy"] == "Delete" {
        cluster.remove(GROUP_CONTENTS, "", &name);
        driver.handles.lock().retain(|handle| !handle.contains(uid));
    }
    for claim in ["a", "b"] {
        cluster.remove(SNAPSHOTS, "shop", &format!("member-{uid}-{claim}-uid"));
    }
}

pub(crate) struct CsiTest {
    pub(crate) driver: Arc<FakeCsiDriver>,
    pub(crate) cluster: Arc<Fake>,
    pub(crate) memory: Memory,
    _controllers: [JoinSet<()>; 2],
}

impl CsiTest {
    pub(crate) fn new() -> Self {
        let driver = Arc::new(FakeCsiDriver::default());
        let cluster = cluster(&driver, Fake::new(resources()).with(class("fast")));
        Self::with_controllers(driver, cluster)
    }

    fn with_controllers(driver: Arc<FakeCsiDriver>, cluster: Arc<Fake>) -> Self {
        let has_groups = cluster.resources().resolve(GROUPS).is_some();
        let groups =
            if has_groups { run_group_controller(&cluster, &driver) } else { JoinSet::default() };
        let controllers = [run_snapshot_controller(&cluster, &driver), groups];
        Self { driver, cluster, memory: Memory::with_bucket("b"), _controllers: controllers }
    }

    /// Both claims in a volume group, with a class for groups or without.
    pub(crate) fn grouped(resources: Vec<Resource>, has_class: bool) -> Self {
        let driver = Arc::new(FakeCsiDriver::default());
        let mut fake = Fake::new(resources).with(class("fast"));
        if has_class {
            let version = "groupsnapshot.storage.k8s.io/v1beta2";
            let mut class = object(version, "VolumeGroupSnapshotClass", "", "groups");
            class["driver"] = "disk.example.com".into();
            fake = fake.with(class);
        }
        let cluster = cluster(&driver, fake);
        for (name, volume) in [("a", "pv-a"), ("b", "pv-b")] {
            let mut claim = claim("shop", name, volume);
            claim["metadata"]["labels"] = json!({"velero.io/volume-group": "db"});
            cluster.put(claim);
        }
        Self::with_controllers(driver, cluster)
    }

    pub(crate) fn count(&self, plural: &str) -> usize {
        let resource = self.cluster.resources().resolve(plural).cloned().unwrap();
        let listed = self.cluster.list(&resource, Query::default()).count();
        futures::FutureExt::now_or_never(listed).unwrap()
    }

    pub(crate) async fn run(&self, records: Vec<JournalEntry>) -> (backup::Run, Arc<InMemory>) {
        let spec = json!({"includeClusterResources": true, "csiSnapshotTimeout": "30s"});
        let mut run = run_of(&self.cluster, spec, store_in(self.memory.clone())).await;
        let journal = Arc::new(InMemory::default());
        run.journal = Arc::clone(&journal) as _;
        run.recovery = Recovery { recovered: recover(records), report: Report::default() };
        (run, journal)
    }

    pub(crate) async fn run_backup(&self) -> FinishedBackup {
        run_and_read(self.run(Vec::new()).await.0).await
    }

    /// Stops the simulated snapshot controller.
    pub(crate) fn without_controllers(self) -> Self {
        Self { _controllers: [JoinSet::new(), JoinSet::new()], ..self }
    }

    /// The VolumeSnapshots that are there.
    pub(crate) fn snapshots(&self) -> Vec<Value> {
        let names = self.cluster.creations();
        let created = names.iter().filter(|id| id.resource == "volumesnapshots");
        created.filter_map(|id| self.cluster.object(SNAPSHOTS, &id.namespace, &id.name)).collect()
    }
}
