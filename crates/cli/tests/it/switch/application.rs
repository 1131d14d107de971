//! An application with a cloud volume that both servers snapshot.

use std::path::PathBuf;

use bowline_api::Backup;
use bowline_testbed::{Ec2, ec2, velero};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use serde_json::{Value, json};

use super::stage::MigrationEnv;

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
    pub(super) fn create(env: &MigrationEnv) -> Self {
        let ec2 = env.runtime.block_on(Ec2::start()).unwrap();
        let disk = ec2::Volume {
            volume_type: "gp3".to_owned(),
            zone: ZONE.to_owned(),
            content: DATA.to_owned(),
            ..ec2::Volume::default()
        };
        ec2.put_volume(DISK, disk);
        let namespace = json!({"name": NAMESPACE});
        env.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace}));
        env.apply(json!({
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
        for object in namespace_objects() {
            env.apply(object);
        }
        wait_until_bound(env);
        Self { ec2 }
    }

    /// The Secret with the credentials for snapshots.
    pub(super) fn create_snapshot_secret(&self, env: &MigrationEnv) {
        let profile = self.ec2.profile(self.ec2.credentials());
        env.apply(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "ec2", "namespace": velero::NAMESPACE},
            "stringData": {"cloud": profile},
        }));
    }

    /// Deletes it, its volume, and the disk.
    pub(super) fn delete_all(&self, env: &MigrationEnv) {
        let disk = current_disk_id(env);
        env.kubectl(&["delete", "namespace", NAMESPACE, "--wait=true", "--timeout=300s"]);
        env.kubectl(&["delete", "persistentvolume", VOLUME, "--wait=true", "--timeout=300s"]);
        self.ec2.remove_volume(&disk);
    }

    /// Its volume is another disk, with the same on it.
    pub(super) fn assert_data_restored(&self, env: &MigrationEnv) {
        let disk = current_disk_id(env);
        assert_ne!(disk, DISK);
        assert_eq!(self.ec2.volume(&disk).unwrap().content, DATA);
    }

    /// The ids of all snapshots.
    pub(super) fn snapshots(&self) -> Vec<String> {
        self.ec2.snapshots().into_keys().collect()
    }

    /// Waits until a backup is gone from the cluster, its files from the bucket, and its snapshot from
    /// the cloud.
    pub(super) fn wait_until_backup_deleted(&self, env: &MigrationEnv, name: &str) {
        let belongs_to_backup = |snapshot: &ec2::Snapshot| {
            snapshot.tags.get("velero.io/backup").is_some_and(|backup| backup == name)
        };
        let has_snapshot = || self.ec2.snapshots().values().any(belongs_to_backup);
        let bucket = env.s3.create_bucket(velero::NAMESPACE).unwrap();
        let folder: PathBuf = bucket.join("backups").join(name);
        env.eventually(&format!("{name} is gone"), || {
            let backup = env.runtime.block_on(env.api::<Backup>().get_opt(name)).unwrap();
            let is_gone = backup.is_none() && !folder.exists() && !has_snapshot();
            is_gone.then_some(())
        });
    }
}

/// Its objects, without fields that every restore changes.
pub(super) fn objects(env: &MigrationEnv) -> Vec<Value> {
    wait_until_bound(env);
    let read = |object: &Value| {
        let text = |field: &Value| field.as_str().unwrap().to_lowercase();
        let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
        let read = env.kubectl(&["get", &kind, &name, "-n", NAMESPACE, "-o", "json"]);
        without_restore_changes(serde_json::from_str(&read).unwrap())
    };
    namespace_objects().iter().map(read).collect()
}

/// Waits until the claim has its volume.
fn wait_until_bound(env: &MigrationEnv) {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(env.client.clone(), NAMESPACE);
    env.eventually("the claim is bound", || {
        let claim = env.runtime.block_on(claims.get_opt("data")).unwrap()?;
        (claim.status?.phase? == "Bound").then_some(())
    });
}

/// The disk that the volume is now.
fn current_disk_id(env: &MigrationEnv) -> String {
    let volumes: Api<PersistentVolume> = Api::all(env.client.clone());
    let volume = env.runtime.block_on(volumes.get(VOLUME)).unwrap();
    let id = volume.spec.unwrap().aws_elastic_block_store.unwrap().volume_id;
    id.rsplit('/').next().unwrap().to_owned()
}

/// Objects in its namespace.
fn namespace_objects() -> [Value; 5] {
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

/// An object without fields that every restore changes.
fn without_restore_changes(mut object: Value) -> Value {
    object.as_object_mut().unwrap().remove("status");
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
        metadata.remove(field);
    }
    for map_key in ["labels", "annotations"] {
        let Some(entries) = metadata.get_mut(map_key).and_then(Value::as_object_mut) else {
            continue;
        };
        entries.retain(|key, _| {
            !["velero.io/", "pv.kubernetes.io/", "deployment.kubernetes.io/"]
                .iter()
                .any(|prefix| key.starts_with(prefix))
        });
        if entries.is_empty() {
            metadata.remove(map_key);
        }
    }
    if object["kind"] == "Service" {
        let spec = object["spec"].as_object_mut().unwrap();
        // The API server gives it another one.
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    object
}
