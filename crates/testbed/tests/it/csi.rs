//! Volumes and snapshots of a CSI driver, with the controllers of a real cluster.

use bowline_testbed::csi::{self, Switches};
use bowline_testbed::{Bed, ControlPlane, Csi, Kwok, Node, Options, apply, node};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::{eventually, run_for_output};

const NAMESPACE: &str = "default";
const SNAPSHOTS: &str = "snapshot.storage.k8s.io/v1";
const GROUPS: &str = "groupsnapshot.storage.k8s.io/v1beta2";

#[tokio::test]
async fn snapshot_restores_what_a_pod_wrote() {
    if !node::require_for_test("a_snapshot_gives_back_what_a_pod_wrote") {
        return;
    }
    let bed = Bed::isolated().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let node = Node::start(&plane).await.unwrap();
    let csi = Csi::start(&plane, Some(&node), csi::Options::default()).await.unwrap();
    let cluster = Cluster::of(&plane).await;
    let exec = async |pod: &str, script: &str| {
        let mut kubectl = plane.kubectl().await.unwrap();
        run_for_output(kubectl.args(["exec", pod, "--", "sh", "-c", script])).await
    };

    cluster.apply(claim("data", csi::WAIT_FOR_CONSUMER_CLASS, &Value::Null)).await;
    cluster.run_pod("writer", "data").await;
    exec("writer", "echo first > /data/text && chown 7:8 /data/text").await.unwrap();
    cluster.apply(snapshot("before", "data")).await;
    cluster.until_ready("before").await;
    exec("writer", "echo second > /data/text").await.unwrap();

    cluster
        .apply(claim("restored", csi::WAIT_FOR_CONSUMER_CLASS, &snapshot_source("before")))
        .await;
    cluster.run_pod("reader", "restored").await;
    let read = exec("reader", "cat /data/text && stat -c %u:%g /data/text").await;
    assert_eq!(read.unwrap(), "first\n7:8");

    let source = json!({"kind": "PersistentVolumeClaim", "name": "data"});
    cluster.apply(claim("cloned", csi::WAIT_FOR_CONSUMER_CLASS, &source)).await;
    cluster.run_pod("twin", "cloned").await;
    assert_eq!(exec("twin", "cat /data/text").await.unwrap(), "second");

    // Snapshots that are deleted in the cluster are deleted in the driver, and others stay.
    assert_eq!(csi.snapshots().unwrap().len(), 1);
    cluster.delete(SNAPSHOTS, "VolumeSnapshot", "before").await;
    cluster.delete("v1", "Pod", "reader").await;
    cluster.delete("v1", "PersistentVolumeClaim", "restored").await;
    eventually("the snapshot and a volume are gone", async || {
        let remaining = (csi.snapshots().ok()?.len(), csi.volumes().ok()?.len());
        (remaining == (0, 2)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn switches_delay_or_fail_snapshots() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let never_ready = vec!["default/slow".to_owned()];
    let switches = Switches { never_ready, ..Switches::default() };
    let options = csi::Options { switches, ..csi::Options::default() };
    let mut csi = Csi::start(&plane, None, options).await.unwrap();
    let cluster = Cluster::of(&plane).await;
    for name in ["one", "two"] {
        cluster.apply(claim(name, csi::CLASS, &Value::Null)).await;
    }
    let volume = csi.volume(&cluster.volume_of("one").await);
    std::fs::write(volume.join("text"), "no pod was here").unwrap();

    // One snapshot has a handle and is not ready, however old the other is.
    cluster.apply(snapshot("slow", "one")).await;
    cluster.apply(snapshot("quick", "one")).await;
    cluster.until_ready("quick").await;
    let handle = cluster.until_handle("slow").await;
    assert_eq!(cluster.status("slow").await["readyToUse"], false);
    let text = std::fs::read_to_string(csi.snapshot(&handle).join("text"));
    assert_eq!(text.unwrap(), "no pod was here");
    let poll_count = |csi: &Csi| completed_calls_for(csi, &handle);
    let before = poll_count(&csi);
    eventually("the snapshotter asks again", async || (poll_count(&csi) > before).then_some(()))
        .await;
    assert_eq!(cluster.status("slow").await["readyToUse"], false);
    csi.set_switches(&Switches::default()).unwrap();
    cluster.until_ready("slow").await;

    // The snapshot also becomes ready after a time.
    csi.set_switches(&Switches { ready_after_ms: 1500, ..Switches::default() }).unwrap();
    cluster.apply(snapshot("aging", "one")).await;
    cluster.until_ready("aging").await;
    let call = |name: &str| {
        let name = format!("default/{name}");
        csi.calls().unwrap().into_iter().find(|call| call.names.contains(&name)).unwrap()
    };
    assert!(call("aging").began.elapsed().unwrap().as_millis() >= 1500);

    // The creation itself is slow.
    csi.set_switches(&Switches { create_takes_ms: 1000, ..Switches::default() }).unwrap();
    cluster.apply(snapshot("long", "one")).await;
    cluster.until_ready("long").await;
    let long = call("long");
    assert_eq!((&*long.method, &long.error), ("CreateSnapshot", &None));
    let took = long.ended.unwrap().duration_since(long.began).unwrap();
    assert!(took.as_millis() >= 1000, "{took:?}");

    // The driver fails for one claim, and only as long as configured.
    let fail_create = vec!["default/two".to_owned()];
    csi.set_switches(&Switches { fail_create, ..Switches::default() }).unwrap();
    cluster.apply(snapshot("unlucky", "two")).await;
    cluster.apply(snapshot("lucky", "one")).await;
    let failure = cluster.until_failed("unlucky").await;
    assert!(failure.contains("fails as told"), "{failure}");
    cluster.until_ready("lucky").await;
    csi.set_switches(&Switches::default()).unwrap();
    cluster.until_ready("unlucky").await;

    // The content cannot be deleted now, and is deleted once that is possible.
    let handle = cluster.until_handle("lucky").await;
    csi.set_switches(&Switches { fail_delete: vec!["*".to_owned()], ..Switches::default() })
        .unwrap();
    cluster.delete(SNAPSHOTS, "VolumeSnapshot", "lucky").await;
    eventually("a deletion fails", async || {
        let calls = csi.calls().ok()?;
        let is_failed = |call: &csi::Call| call.method == "DeleteSnapshot" && call.error.is_some();
        calls.iter().any(|call| call.id == handle && is_failed(call)).then_some(())
    })
    .await;
    assert!(csi.snapshots().unwrap().contains(&handle));
    csi.set_switches(&Switches::default()).unwrap();
    eventually("the snapshot is gone", async || {
        (!csi.snapshots().ok()?.contains(&handle)).then_some(())
    })
    .await;

    // A volume fails as well, and takes its time.
    let fail_volume = vec!["default/three".to_owned()];
    csi.set_switches(&Switches { fail_volume, ..Switches::default() }).unwrap();
    cluster.apply(claim("three", csi::CLASS, &Value::Null)).await;
    eventually("a volume fails", async || {
        let calls = csi.calls().ok()?;
        calls.iter().any(|call| call.method == "CreateVolume" && call.error.is_some()).then_some(())
    })
    .await;
    csi.set_switches(&Switches { volume_takes_ms: 1500, ..Switches::default() }).unwrap();
    cluster.volume_of("three").await;
    assert!(call("three").began.elapsed().unwrap().as_millis() >= 1500);
    csi.check().unwrap();
}

#[tokio::test]
async fn fifty_unmounted_claims_are_snapshotted_and_every_second_one_may_fail() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let switches = Switches { fail_create_every: 2, ..Switches::default() };
    let options = csi::Options { switches, ..csi::Options::default() };
    let csi = Csi::start(&plane, None, options).await.unwrap();
    let cluster = Cluster::of(&plane).await;
    let names: Vec<String> = (0..50).map(|n| format!("claim-{n}")).collect();
    let start = std::time::Instant::now();
    for name in &names {
        cluster.apply(claim(name, csi::CLASS, &Value::Null)).await;
    }
    for name in &names {
        cluster.volume_of(name).await;
    }
    println!("{} claims bound after {:?}", names.len(), start.elapsed());

    for name in &names {
        cluster.apply(snapshot(name, name)).await;
    }
    let start = std::time::Instant::now();
    let statuses = eventually("each snapshot is ready or failed", async || {
        let all = cluster.snapshots().await?;
        let is_decided =
            |s: &Value| s["status"]["readyToUse"] == true || s["status"]["error"].is_object();
        (all.len() == 50 && all.iter().all(is_decided)).then_some(all)
    })
    .await;
    println!("{} snapshots decided after {:?}", names.len(), start.elapsed());
    let ready = statuses.iter().filter(|s| s["status"]["readyToUse"] == true).count();
    assert_eq!(ready, 25);
    assert_eq!(csi.snapshots().unwrap().len(), 25);
    csi.set_switches(&Switches::default()).unwrap();
    for name in &names {
        cluster.until_ready(name).await;
    }
}

#[tokio::test]
async fn snapshot_known_only_by_its_handle_is_restored() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let _kwok = Kwok::start(&plane).await.unwrap();
    let csi = Csi::start(&plane, None, csi::Options::default()).await.unwrap();
    let cluster = Cluster::of(&plane).await;
    // Bound because of a pod, though that only seems to run.
    cluster.apply(claim("data", csi::WAIT_FOR_CONSUMER_CLASS, &Value::Null)).await;
    cluster.run_pod("writer", "data").await;
    let volume = csi.volume(&cluster.volume_of("data").await);
    std::fs::write(volume.join("text"), "precious").unwrap();
    cluster.apply(snapshot("taken", "data")).await;
    let handle = cluster.until_handle("taken").await;

    // As if in another cluster with the same storage.
    cluster
        .apply(json!({
            "apiVersion": SNAPSHOTS,
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": "found"},
            "spec": {
                "deletionPolicy": "Retain",
                "driver": csi::DRIVER,
                "source": {"snapshotHandle": handle},
                "volumeSnapshotRef": {"name": "found", "namespace": NAMESPACE},
            },
        }))
        .await;
    let mut found = snapshot("found", "");
    found["spec"]["source"] = json!({"volumeSnapshotContentName": "found"});
    cluster.apply(found).await;
    cluster.until_ready("found").await;
    cluster.apply(claim("restored", csi::CLASS, &snapshot_source("found"))).await;
    let restored = csi.volume(&cluster.volume_of("restored").await);
    assert_eq!(std::fs::read_to_string(restored.join("text")).unwrap(), "precious");
    assert!(csi.calls().unwrap().iter().any(|call| call.method == "ListSnapshots"));

    // The snapshot stays when its content is deleted, because of its policy.
    cluster.delete(SNAPSHOTS, "VolumeSnapshot", "found").await;
    let snapshots = cluster.api(SNAPSHOTS, "VolumeSnapshot");
    eventually("the snapshot's object is gone", async || {
        snapshots.get_opt("found").await.ok()?.is_none().then_some(())
    })
    .await;
    assert_eq!(csi.snapshots().unwrap(), [handle]);
}

#[tokio::test]
async fn group_of_claims_is_snapshotted_together() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let options = csi::Options { groups: true, ..csi::Options::default() };
    let csi = Csi::start(&plane, None, options).await.unwrap();
    let cluster = Cluster::of(&plane).await;
    for name in ["one", "two", "apart"] {
        let mut claim = claim(name, csi::CLASS, &Value::Null);
        claim["metadata"]["labels"] = json!({"group": (name != "apart").to_string()});
        cluster.apply(claim).await;
        cluster.volume_of(name).await;
    }

    cluster
        .apply(json!({
            "apiVersion": GROUPS,
            "kind": "VolumeGroupSnapshot",
            "metadata": {"name": "both", "namespace": NAMESPACE},
            "spec": {
                "volumeGroupSnapshotClassName": csi::SNAPSHOT_CLASS,
                "source": {"selector": {"matchLabels": {"group": "true"}}},
            },
        }))
        .await;
    let groups = cluster.api(GROUPS, "VolumeGroupSnapshot");
    eventually("the group is ready", async || {
        let group = groups.get("both").await.ok()?;
        (group.data["status"]["readyToUse"] == true).then_some(())
    })
    .await;
    eventually("each claim of the group has a snapshot", async || {
        let all = cluster.snapshots().await?;
        let ready = all.iter().filter(|s| s["status"]["readyToUse"] == true).count();
        (ready == 2 && csi.snapshots().ok()?.len() == 2).then_some(())
    })
    .await;
    let calls = csi.calls().unwrap();
    assert!(calls.iter().all(|call| call.method != "CreateSnapshot"));

    cluster.delete(GROUPS, "VolumeGroupSnapshot", "both").await;
    eventually("the snapshots of the group are gone", async || {
        csi.snapshots().ok()?.is_empty().then_some(())
    })
    .await;
}

fn claim(name: &str, class: &str, source: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}},
            "dataSource": source,
        },
    })
}

/// The source of a claim that is restored from a snapshot.
fn snapshot_source(name: &str) -> Value {
    json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name})
}

fn snapshot(name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": SNAPSHOTS,
        "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "volumeSnapshotClassName": csi::SNAPSHOT_CLASS,
            "source": {"persistentVolumeClaimName": claim},
        },
    })
}

/// Number of times that the snapshotter has polled a snapshot, which it does by creating it again.
fn completed_calls_for(csi: &Csi, handle: &str) -> usize {
    let calls = csi.calls().unwrap();
    calls.iter().filter(|call| call.id == handle && call.ended.is_some()).count()
}

/// Helpers for these tests.
struct Cluster(Client);

impl Cluster {
    async fn of(plane: &ControlPlane) -> Self {
        Self(plane.client().await.unwrap())
    }

    async fn apply(&self, object: Value) {
        apply::apply(&self.0, object).await.unwrap();
    }

    fn api(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.0.clone(), NAMESPACE, &resource)
    }

    async fn delete(&self, version: &str, kind: &str, name: &str) {
        self.api(version, kind).delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn status(&self, snapshot: &str) -> Value {
        let found = self.api(SNAPSHOTS, "VolumeSnapshot").get(snapshot).await.unwrap();
        found.data["status"].clone()
    }

    /// All snapshots, without their metadata.
    async fn snapshots(&self) -> Option<Vec<Value>> {
        let snapshots = self.api(SNAPSHOTS, "VolumeSnapshot");
        let found = snapshots.list(&ListParams::default()).await.ok()?;
        Some(found.items.into_iter().map(|snapshot| snapshot.data).collect())
    }

    /// Waits until a snapshot is ready. A controller that failed because of a concurrent write can forget the snapshot
    /// for a quarter of an hour, so it is triggered now and then.
    async fn until_ready(&self, snapshot: &str) {
        let mut polls = 0;
        eventually(&format!("snapshot {snapshot} is ready"), async || {
            let status = self.status(snapshot).await;
            if status["readyToUse"] == true {
                return Some(());
            }
            polls += 1;
            if polls % 20 == 0 {
                self.trigger_reconcile(snapshot, &status, polls).await;
            }
            None
        })
        .await;
    }

    /// Changes a snapshot and its content slightly, so that all controllers reconcile them.
    async fn trigger_reconcile(&self, snapshot: &str, status: &Value, number: u32) {
        let change = json!({"metadata": {"annotations": {"nudged": number.to_string()}}});
        let (change, params) = (Patch::Merge(change), PatchParams::default());
        self.api(SNAPSHOTS, "VolumeSnapshot").patch(snapshot, &params, &change).await.unwrap();
        if let Some(content) = status["boundVolumeSnapshotContentName"].as_str() {
            self.contents().patch(content, &params, &change).await.unwrap();
        }
    }

    fn contents(&self) -> Api<DynamicObject> {
        let resource =
            GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent");
        Api::all_with(self.0.clone(), &ApiResource::from_gvk(&resource))
    }

    /// Waits until a snapshot has failed; returns its error.
    async fn until_failed(&self, snapshot: &str) -> String {
        eventually(&format!("snapshot {snapshot} fails"), async || {
            Some(self.status(snapshot).await["error"]["message"].as_str()?.to_owned())
        })
        .await
    }

    /// Waits until the driver has created a snapshot, ready or not.
    async fn until_handle(&self, snapshot: &str) -> String {
        let contents = self.contents();
        eventually(&format!("snapshot {snapshot} has a handle"), async || {
            let status = self.status(snapshot).await;
            let content = contents.get(status["boundVolumeSnapshotContentName"].as_str()?).await;
            Some(content.ok()?.data["status"]["snapshotHandle"].as_str()?.to_owned())
        })
        .await
    }

    /// Waits until a claim has its volume; the handle of that.
    async fn volume_of(&self, claim: &str) -> String {
        let claims = self.api("v1", "PersistentVolumeClaim");
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "PersistentVolume"));
        let volumes: Api<DynamicObject> = Api::all_with(self.0.clone(), &resource);
        eventually(&format!("claim {claim} is bound"), async || {
            let claim = claims.get(claim).await.ok()?;
            (claim.data["status"]["phase"] == "Bound").then_some(())?;
            let volume = volumes.get(claim.data["spec"]["volumeName"].as_str()?).await.ok()?;
            Some(volume.data["spec"]["csi"]["volumeHandle"].as_str()?.to_owned())
        })
        .await
    }

    /// Creates a pod with a claim mounted at `/data`, and waits until it runs.
    async fn run_pod(&self, name: &str, claim: &str) {
        self.apply(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main",
                    "image": node::IMAGE,
                    "imagePullPolicy": "Never",
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            },
        }))
        .await;
        let pods = self.api("v1", "Pod");
        eventually(&format!("pod {name} runs"), async || {
            let pod = pods.get(name).await.ok()?;
            (pod.data["status"]["containerStatuses"][0]["ready"] == true).then_some(())
        })
        .await;
    }
}
