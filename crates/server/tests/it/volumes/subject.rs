//! The snapshotters of the suite, each with its storage.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bowline_testbed::program::{self, Program};
use bowline_testbed::{Ec2, ec2, fixture};
use serde_json::{Value, json};

use crate::bed::{World, shared};

/// Contents of a disk.
pub(super) fn content(disk: &str) -> String {
    format!("the ledger of {disk}, ").repeat(500)
}

/// A disk, and the spec of its PersistentVolume.
pub(super) struct Disk {
    pub(super) name: &'static str,
    /// The part of the spec that says where it is.
    pub(super) source: Value,
    pub(super) labels: Value,
    pub(super) kind: &'static str,
    pub(super) iops: Option<i64>,
    pub(super) zone: &'static str,
}

/// A snapshotter under test.
pub(super) trait TestedSnapshotter {
    /// The provider of its location.
    fn provider(&self) -> String;
    fn config(&self) -> Value;
    /// Credentials of its location, and the parts that must not be shown.
    fn credentials(&self) -> Option<(String, Vec<String>)> {
        None
    }
    /// True if it has an upload stage.
    fn uploads(&self) -> bool;
    /// Its disks, with their [`content`].
    fn disks(&self) -> Vec<Disk>;
    /// Takes the disks away, as in a disaster.
    fn destroy_disks(&self);
    /// Contents of the disk that the spec of a PersistentVolume names.
    fn read(&self, spec: &Value) -> String;
    /// True if a snapshot is complete in the storage.
    fn has_snapshot(&self, snapshot: &str) -> bool;
    /// Snapshots in the storage.
    fn remaining_snapshots(&self) -> Vec<String>;
}

pub(super) fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().display().to_string()).collect()
}

fn install(world: &World, binary: &Path, name: &str) {
    symlink(binary, world.path("plugins").join(name)).unwrap();
}

/// One of the fixtures, with folders as disks.
pub(super) struct FixtureSnapshotter {
    provider: String,
    uploads: bool,
    root: PathBuf,
}

impl FixtureSnapshotter {
    /// Subject for a plugin set.
    pub(super) async fn of_set(world: &World, set: &str, plugin: &str) -> Self {
        world.install_sets().await;
        Self::new(world, format!("{set}.bowline.io/{plugin}"))
    }

    /// The one in Go that knows version 2, without any framework.
    pub(super) async fn in_go_without_framework(world: &World) -> Self {
        let [binary] = program::locate([Program::SnapshotterV2]).await.unwrap();
        install(world, &binary, "snapshotter-v2");
        Self::new(world, "fixture.bowline.io/vs-v2".to_owned())
    }

    fn new(world: &World, provider: String) -> Self {
        let root = world.path("disks");
        let fixture = Self { uploads: provider.ends_with("v2"), provider, root };
        for disk in fixture.disks() {
            let folder = fixture.root.join("volumes").join(disk.name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("ledger"), content(disk.name)).unwrap();
        }
        fixture
    }
}

impl TestedSnapshotter for FixtureSnapshotter {
    fn provider(&self) -> String {
        self.provider.clone()
    }

    fn config(&self) -> Value {
        json!({"root": self.root})
    }

    fn uploads(&self) -> bool {
        self.uploads
    }

    fn disks(&self) -> Vec<Disk> {
        let disk = |name, iops| Disk {
            name,
            source: json!({"csi": {"driver": "fixture.bowline.io", "volumeHandle": name}}),
            labels: json!({}),
            kind: "fixture",
            iops,
            zone: "",
        };
        vec![disk("one", None), disk("two-fast", Some(100))]
    }

    fn destroy_disks(&self) {
        fs::remove_dir_all(self.root.join("volumes")).unwrap();
    }

    fn read(&self, spec: &Value) -> String {
        let handle = spec["csi"]["volumeHandle"].as_str().unwrap();
        fs::read_to_string(self.root.join("volumes").join(handle).join("ledger")).unwrap()
    }

    fn has_snapshot(&self, snapshot: &str) -> bool {
        let is_there = |folder: &str| self.root.join(folder).join(snapshot).is_dir();
        is_there("snapshots") && (is_there("uploaded") || !self.uploads)
    }

    fn remaining_snapshots(&self) -> Vec<String> {
        ["snapshots", "uploaded"].iter().flat_map(|folder| names(&self.root.join(folder))).collect()
    }
}

/// Velero's own plugin for Amazon, unmodified, and the part of EC2 that it talks to.
pub(super) struct AwsSnapshotter {
    pub(super) ec2: Ec2,
}

/// The disks there, with their names.
const VOLUMES: [(&str, &str); 2] =
    [("vol-0aaaaaaaaaaaaaaaa", "fast"), ("vol-0bbbbbbbbbbbbbbbb", "in-tree")];

impl AwsSnapshotter {
    pub(super) async fn new(world: &World) -> Self {
        let [binary] = program::locate([Program::VeleroPluginForAws]).await.unwrap();
        install(world, &binary, "velero-plugin-for-aws");
        let ec2 = Ec2::start().await.unwrap();
        for ((id, name), (volume_type, iops, zone)) in
            VOLUMES.into_iter().zip([("io1", Some(300), "us-east-1a"), ("gp3", None, "us-east-1b")])
        {
            let volume = ec2::Volume {
                volume_type: volume_type.to_owned(),
                iops,
                zone: zone.to_owned(),
                tags: [("team".to_owned(), name.to_owned())].into(),
                content: content(name),
            };
            ec2.put_volume(id, volume);
        }
        Self { ec2 }
    }

    /// A disk that was made from a snapshot.
    pub(super) fn restored_volume(&self, spec: &Value) -> ec2::Volume {
        let csi = spec["csi"]["volumeHandle"].as_str();
        // In the form `aws://zone/id`.
        let in_tree = || spec["awsElasticBlockStore"]["volumeID"].as_str()?.rsplit('/').next();
        self.ec2.volume(csi.or_else(in_tree).unwrap()).unwrap()
    }
}

impl TestedSnapshotter for AwsSnapshotter {
    fn provider(&self) -> String {
        "aws".to_owned()
    }

    fn config(&self) -> Value {
        json!({"region": ec2::REGION})
    }

    fn credentials(&self) -> Option<(String, Vec<String>)> {
        let credentials = self.ec2.credentials();
        Some((self.ec2.profile(credentials), vec![credentials.secret_key.clone()]))
    }

    fn uploads(&self) -> bool {
        false
    }

    fn disks(&self) -> Vec<Disk> {
        let [(fast, _), (in_tree, _)] = VOLUMES;
        let is_in_zone = json!({
            "key": "topology.ebs.csi.aws.com/zone", "operator": "In", "values": ["us-east-1a"],
        });
        let terms = json!([{"matchExpressions": [is_in_zone]}]);
        vec![
            Disk {
                name: "fast",
                source: json!({
                    "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": fast},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                }),
                labels: json!({}),
                kind: "io1",
                iops: Some(300),
                zone: "us-east-1a",
            },
            Disk {
                name: "in-tree",
                source: json!({
                    "awsElasticBlockStore": {"volumeID": format!("aws://us-east-1b/{in_tree}")},
                }),
                labels: json!({"failure-domain.beta.kubernetes.io/zone": "us-east-1b"}),
                kind: "gp3",
                iops: None,
                zone: "us-east-1b",
            },
        ]
    }

    fn destroy_disks(&self) {
        for (id, _) in VOLUMES {
            self.ec2.remove_volume(id);
        }
    }

    fn read(&self, spec: &Value) -> String {
        self.restored_volume(spec).content
    }

    fn has_snapshot(&self, snapshot: &str) -> bool {
        self.ec2.snapshots().contains_key(snapshot)
    }

    fn remaining_snapshots(&self) -> Vec<String> {
        self.ec2.snapshots().into_keys().collect()
    }
}

/// Our plugin for folders of a node.
pub(super) struct LocalVolumeSnapshotter {
    pub(super) root: PathBuf,
    /// Target of uploads, as a setting, and as a folder that the tests can read.
    pub(super) repository: (String, PathBuf),
    pub(super) credentials: Vec<(&'static str, String)>,
    /// Settings besides.
    pub(super) more: Value,
}

/// Password of its repositories.
pub(super) const PASSWORD: &str = "correct-horse-battery-staple";

impl LocalVolumeSnapshotter {
    /// With a repository in a folder.
    pub(super) async fn with_folder(world: &World) -> Self {
        let folder = world.path("repository");
        Self::new(world, (folder.display().to_string(), folder), Vec::new()).await
    }

    /// With a repository in a bucket.
    pub(super) async fn with_bucket(world: &World) -> Self {
        let (s3, bucket) = (&shared().s3, format!("{}-repository", world.namespace));
        let folder = s3.create_bucket(&bucket).unwrap().join("edge");
        let keys = s3.credentials();
        let credentials = vec![
            ("AWS_ACCESS_KEY_ID", keys.access_key.clone()),
            ("AWS_SECRET_ACCESS_KEY", keys.secret_key.clone()),
        ];
        let address = format!("s3:{}/{bucket}/edge", s3.url());
        Self::new(world, (address, folder), credentials).await
    }

    async fn new(
        world: &World,
        repository: (String, PathBuf),
        mut credentials: Vec<(&'static str, String)>,
    ) -> Self {
        install(world, &fixture::local_volume().await.unwrap(), "local-volume");
        let root = world.path("plugins").parent().unwrap().canonicalize().unwrap().join("disks");
        fs::create_dir(&root).unwrap();
        credentials.push(("RUSTIC_PASSWORD", PASSWORD.to_owned()));
        let local = Self { root, repository, credentials, more: json!({}) };
        for disk in local.disks() {
            let folder = local.root.join(disk.name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("ledger"), content(disk.name)).unwrap();
        }
        local
    }

    /// Folder of clones and records.
    pub(super) fn state(&self) -> PathBuf {
        let own = self.more["stateDir"].as_str().map(PathBuf::from);
        own.unwrap_or_else(|| self.root.join(".bowline-snapshots"))
    }

    /// Existing files, without lock files.
    pub(super) fn records(&self) -> Vec<String> {
        let mut names = names(&self.state());
        names.retain(|name| !name.starts_with(".lock"));
        names
    }

    pub(super) fn uploaded(&self) -> Vec<String> {
        names(&self.repository.1.join("snapshots"))
    }
}

impl TestedSnapshotter for LocalVolumeSnapshotter {
    fn provider(&self) -> String {
        "bowline.io/local-volume".to_owned()
    }

    fn config(&self) -> Value {
        let mut config =
            json!({"roots": self.root, "repository": self.repository.0, "node": "node-1"});
        for (key, value) in self.more.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    fn credentials(&self) -> Option<(String, Vec<String>)> {
        let lines = self.credentials.iter().map(|(key, value)| format!("{key}={value}\n"));
        let is_secret = |(key, _): &&(&str, String)| *key != "AWS_ACCESS_KEY_ID";
        let secrets = self.credentials.iter().filter(is_secret).map(|(_, value)| value.clone());
        Some((lines.collect(), secrets.collect()))
    }

    fn uploads(&self) -> bool {
        true
    }

    fn disks(&self) -> Vec<Disk> {
        let on_node = json!({
            "key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"],
        });
        let terms = json!([{"matchExpressions": [on_node]}]);
        let disk = |name, source| Disk {
            name,
            source,
            labels: json!({}),
            kind: "local",
            iops: None,
            zone: "",
        };
        vec![
            disk("host", json!({"hostPath": {"path": self.root.join("host")}})),
            disk(
                "local",
                json!({
                    "local": {"path": self.root.join("local")},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                }),
            ),
        ]
    }

    fn destroy_disks(&self) {
        for disk in self.disks() {
            fs::remove_dir_all(self.root.join(disk.name)).unwrap();
        }
    }

    fn read(&self, spec: &Value) -> String {
        let path = |kind: &str| spec[kind]["path"].as_str();
        let path = path("hostPath").or_else(|| path("local")).unwrap();
        assert!(Path::new(path).starts_with(&self.root), "{path}");
        fs::read_to_string(Path::new(path).join("ledger")).unwrap()
    }

    fn has_snapshot(&self, snapshot: &str) -> bool {
        let folder = self.state().join(snapshot);
        let is_uploaded = !self.uploaded().is_empty();
        // The clone is deleted after the upload.
        folder.join("record.json").is_file() && !folder.join("data").exists() && is_uploaded
    }

    fn remaining_snapshots(&self) -> Vec<String> {
        [self.records(), self.uploaded()].concat()
    }
}
