//! A root with a volume, a repository beside it, and the plugin in this process.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bowline_plugin_local_volume::Snapshotter;
use bowline_plugin_sdk::{
    Config, Item, Result, SnapshotId, VolumeId, VolumeInfo, VolumeSnapshotter as _,
};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const PASSWORD: &str = "hunter2-and-more";

pub(crate) struct TestEnv {
    folder: TempDir,
    pub(crate) plugin: Snapshotter,
    pub(crate) config: Config,
}

impl TestEnv {
    /// With an empty volume `vol`.
    pub(crate) async fn new() -> Self {
        Self::with(&[]).await
    }

    /// With more settings, or others.
    pub(crate) async fn with(more: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("root/vol")).unwrap();
        fs::write(base.join("password"), PASSWORD).unwrap();
        let text = |path: &str| base.join(path).to_str().unwrap().to_owned();
        let (root, repository, password) = (text("root"), text("repository"), text("password"));
        let defaults =
            [("roots", &*root), ("repository", &*repository), ("passwordFile", &*password)];
        let config = defaults.into_iter().chain(more.iter().copied());
        let config: Config =
            config.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let plugin = Snapshotter::default();
        plugin.init(&config).await.unwrap();
        Self { folder, plugin, config }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    pub(crate) fn volume(&self) -> PathBuf {
        self.path("root/vol")
    }

    /// Where clones are.
    pub(crate) fn state(&self) -> PathBuf {
        match self.config.get("stateDir") {
            Some(path) => path.into(),
            None => self.path("root/.bowline-snapshots"),
        }
    }

    pub(crate) fn clone_of(&self, snapshot: &SnapshotId) -> PathBuf {
        self.state().join(snapshot.as_str()).join("data")
    }

    pub(crate) fn record_of(&self, snapshot: &SnapshotId) -> Value {
        let path = self.state().join(snapshot.as_str()).join("record.json");
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    /// Another process with the same settings, as far as the plugin can tell.
    pub(crate) async fn restart(&mut self) {
        self.plugin = Snapshotter::default();
        self.plugin.init(&self.config).await.unwrap();
    }

    pub(crate) async fn snapshot(&self, request: &str) -> Result<SnapshotId> {
        self.snapshot_of(&self.volume(), request).await
    }

    pub(crate) async fn snapshot_of(&self, volume: &Path, request: &str) -> Result<SnapshotId> {
        let tags = if request.is_empty() {
            BTreeMap::new()
        } else {
            BTreeMap::from([("bowline.io/request-id".to_owned(), request.to_owned())])
        };
        self.plugin.create_snapshot(&id_of(volume), "", &tags).await
    }

    /// A new volume from a snapshot.
    pub(crate) async fn restore(&self, snapshot: &SnapshotId) -> Result<PathBuf> {
        let info = VolumeInfo::default();
        let volume = self.plugin.create_volume_from_snapshot(snapshot, &info, "").await?;
        Ok(volume.as_str().into())
    }
}

pub(crate) fn id_of(volume: &Path) -> VolumeId {
    VolumeId::new(volume.to_str().unwrap()).unwrap()
}

/// A PersistentVolume of one of our types.
pub(crate) fn persistent_volume(kind: &str, path: &str) -> Item {
    Item::from_object(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
        "spec": {kind: {"path": path}, "capacity": {"storage": "1Gi"}},
    }))
    .unwrap()
}
