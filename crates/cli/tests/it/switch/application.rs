//! An application with a volume at a cloud that both servers take snapshots of.

use std::path::PathBuf;

use bowline_api::Backup;
use bowline_testbed::{Ec2, ec2, velero};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use serde_json::{Value, json};

use super::stage::Stage;

pub(super) const NAMESPACE: &str = "shop";
const VOLUME: &str = "ledger";
const DISK: &str = "vol-0aaaaaaaaaaaaaaaa";
const ZONE: &str = "us-east-1b";
const DATA: &str = "a page of the ledger";

/// The cloud that its volume is at.
pub(super) struct Application {
    ec2: Ec2,
}

impl Application {
    pub(super) fn create(stage: &Stage) -> Self {
        let ec2 = stage.runtime.block_on(Ec2::start()).unwrap();
        let disk = ec2::Volume {
            volume_type: "gp3".to_owned(),
            zone: ZONE.to_owned(),
            content: DATA.to_owned(),
            ..ec2::Volume::default()
        };
        ec2.put_volume(DISK, disk);
        let namespace = json!({"name": NAMESPACE});
        stage.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace}));
        stage.apply(json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": VOLUME, "labels": {"failure-domain.beta.kubernetes.io/zone": ZONE},
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "disks",
                "awsElasticBlockStore": {"volumeID": format!("aws://{ZONE}/{DISK}")},
            },
        }));
        for object in parts() {
            stage.apply(object);
        }
        is_bound(stage);
        Self { ec2 }
    }

    /// The Secret with which snapshots can be taken.
    pub(super) fn locate(&self, stage: &Stage) {
        let profile = self.ec2.profile(self.ec2.credentials());
        stage.apply(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "ec2", "namespace": velero::NAMESPACE},
            "stringData": {"cloud": profile},
        }));
    }

    /// Deletes it, its volume, and the disk.
    pub(super) fn lose(&self, stage: &Stage) {
        let disk = disk(stage);
        stage.kubectl(&["delete", "namespace", NAMESPACE, "--wait=true", "--timeout=300s"]);
        stage.kubectl(&["delete", "persistentvolume", VOLUME, "--wait=true", "--timeout=300s"]);
        self.ec2.remove_volume(&disk);
    }

    /// Its volume is another disk, with the same on it.
    pub(super) fn has_its_data(&self, stage: &Stage) {
        let disk = disk(stage);
        assert_ne!(disk, DISK);
        assert_eq!(self.ec2.volume(&disk).unwrap().content, DATA);
    }

    /// The ids of all snapshots.
    pub(super) fn snapshots(&self) -> Vec<String> {
        self.ec2.snapshots().into_keys().collect()
    }

    /// Waits until a backup is gone from the cluster, its files from the bucket, and its snapshot from
    /// the cloud.
    pub(super) fn lets_go_of(&self, stage: &Stage, name: &str) {
        let is_its = |snapshot: &ec2::Snapshot| {
            snapshot.tags.get("velero.io/backup").is_some_and(|backup| backup == name)
        };
        let has_snapshot = || self.ec2.snapshots().values().any(is_its);
        let bucket = stage.s3.create_bucket(velero::NAMESPACE).unwrap();
        let folder: PathBuf = bucket.join("backups").join(name);
        stage.until(&format!("{name} is gone"), || {
            let backup = stage.runtime.block_on(stage.api::<Backup>().get_opt(name)).unwrap();
            let is_gone = backup.is_none() && !folder.exists() && !has_snapshot();
            is_gone.then_some(())
        });
    }
}

/// Its objects as they are, without what any restore changes.
pub(super) fn objects(stage: &Stage) -> Vec<Value> {
    is_bound(stage);
    let read = |object: &Value| {
        let text = |field: &Value| field.as_str().unwrap().to_lowercase();
        let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
        let read = stage.kubectl(&["get", &kind, &name, "-n", NAMESPACE, "-o", "json"]);
        reduced(serde_json::from_str(&read).unwrap())
    };
    parts().iter().map(read).collect()
}

/// Waits until the claim has its volume.
fn is_bound(stage: &Stage) {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(stage.client.clone(), NAMESPACE);
    stage.until("the claim is bound", || {
        let claim = stage.runtime.block_on(claims.get_opt("data")).unwrap()?;
        (claim.status?.phase? == "Bound").then_some(())
    });
}

/// The disk that the volume is now.
fn disk(stage: &Stage) -> String {
    let volumes: Api<PersistentVolume> = Api::all(stage.client.clone());
    let volume = stage.runtime.block_on(volumes.get(VOLUME)).unwrap();
    let id = volume.spec.unwrap().aws_elastic_block_store.unwrap().volume_id;
    id.rsplit('/').next().unwrap().to_owned()
}

/// What is in its namespace.
fn parts() -> [Value; 5] {
    let metadata = |name: &str| json!({"name": name, "namespace": NAMESPACE});
    let labels = json!({"app": "shop"});
    let container = json!({"name": "main", "image": "example.io/none:1"});
    [
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("settings"),
            "data": {"currency": "thaler"},
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata("key"),
            "stringData": {"key": "opens the till"},
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata("web"),
            "spec": {"selector": labels, "ports": [{"port": 80}]},
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata("web"),
            "spec": {
                "replicas": 0, "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels}, "spec": {"containers": [container]},
                },
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata("data"),
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "disks",
                "resources": {"requests": {"storage": "1Gi"}}, "volumeName": VOLUME,
            },
        }),
    ]
}

/// An object without what any restore changes.
fn reduced(mut object: Value) -> Value {
    object.as_object_mut().unwrap().remove("status");
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
        metadata.remove(field);
    }
    for kept in ["labels", "annotations"] {
        let Some(entries) = metadata.get_mut(kept).and_then(Value::as_object_mut) else { continue };
        entries.retain(|key, _| {
            !["velero.io/", "pv.kubernetes.io/", "deployment.kubernetes.io/"]
                .iter()
                .any(|prefix| key.starts_with(prefix))
        });
        if entries.is_empty() {
            metadata.remove(kept);
        }
    }
    if object["kind"] == "Service" {
        let spec = object["spec"].as_object_mut().unwrap();
        // It is given another one.
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    object
}
