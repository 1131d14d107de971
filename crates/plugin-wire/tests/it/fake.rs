//! A plugin of all kinds that answers as configured and records its calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::{Backup, Restore};
use bowline_plugin::{
    BackupItemAction, BackupOutput, ByteStream, Config, DeleteItemAction, Encoded, Error, Item,
    ItemBlockAction, Name, ObjectStore, OperationId, Progress, ResourceIdentifier,
    ResourceSelector, RestoreItemAction, RestoreOutput, Result, SnapshotId, State, VolumeId,
    VolumeInfo, VolumeSnapshotter, Wait,
};
use bowline_plugin_wire::Connection;
use bowline_plugin_wire::server::Plugins;
use futures::{TryStreamExt as _, stream};
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// Behaviour of every call.
#[derive(Default)]
pub(crate) enum Behaviour {
    /// The answer of this module.
    #[default]
    Answer,
    /// Return this error.
    Fail(Error),
    /// A panic.
    Panic,
}

#[derive(Default)]
pub(crate) struct Fake {
    pub behaviour: Behaviour,
    calls: Mutex<Vec<String>>,
}

impl Fake {
    pub(crate) fn new(behaviour: Behaviour) -> Arc<Self> {
        Arc::new(Self { behaviour, ..Self::default() })
    }

    /// Calls since the last call of this function.
    pub(crate) fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock())
    }

    fn record_call(&self, call: String) -> Result<()> {
        self.calls.lock().push(call);
        match &self.behaviour {
            Behaviour::Answer => Ok(()),
            Behaviour::Fail(error) => Err(error.clone()),
            Behaviour::Panic => panic!("index out of bounds"),
        }
    }
}

pub(crate) fn name() -> Name {
    "example.io/fake".parse().unwrap()
}

/// A server, and the way to it.
pub(crate) struct Plugin {
    pub connection: Connection,
    pub serving: JoinHandle<std::io::Result<()>>,
    pub folder: tempfile::TempDir,
}

/// Serves plugins on a socket of their own.
pub(crate) async fn serve(plugins: Plugins) -> Plugin {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let serving = tokio::spawn(plugins.serve(listener, std::future::pending()));
    let connection = Connection::unix(&path).await.unwrap();
    Plugin { connection, serving, folder }
}

/// Serves one fake as every kind and version. As version 1 it has only the features of version 1.
pub(crate) async fn serve_fake(fake: &Arc<Fake>) -> Plugin {
    let mut plugins = Plugins::new("/plugins/fake");
    plugins.item_block_action(name(), fake.clone()).unwrap();
    plugins.delete_item_action(name(), fake.clone()).unwrap();
    plugins.restore_item_action_v2(name(), fake.clone()).unwrap();
    plugins.restore_item_action_v1(name(), Arc::new(Version1(fake.clone()))).unwrap();
    plugins.object_store(name(), fake.clone()).unwrap();
    plugins.volume_snapshotter_v2(name(), fake.clone()).unwrap();
    plugins.volume_snapshotter_v1(name(), fake.clone()).unwrap();
    plugins.backup_item_action_v2(name(), fake.clone()).unwrap();
    plugins.backup_item_action_v1(name(), Arc::new(Version1(fake.clone()))).unwrap();
    serve(plugins).await
}

pub(crate) fn item(json: &str) -> Item {
    Item::from_json(json.as_bytes().to_vec()).unwrap()
}

pub(crate) fn identifier(name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: "apps".into(),
        resource: "deployments".into(),
        namespace: "ns".into(),
        name: name.into(),
    }
}

pub(crate) fn selector() -> ResourceSelector {
    ResourceSelector {
        included_namespaces: vec!["in-ns".into()],
        excluded_namespaces: vec!["ex-ns".into()],
        included_resources: vec!["in-r".into()],
        excluded_resources: vec!["ex-r".into()],
        label_selector: "a=b".into(),
    }
}

pub(crate) fn backup_output() -> BackupOutput {
    BackupOutput {
        item: item(r#"{"kind":"Changed"}"#),
        additional_items: vec![identifier("before"), identifier("too")],
        operation: OperationId::new("op-1"),
        post_operation_items: vec![identifier("after")],
    }
}

pub(crate) fn restore_output() -> RestoreOutput {
    RestoreOutput {
        item: item(r#"{"kind":"Changed"}"#),
        additional_items: vec![identifier("before")],
        skip_restore: true,
        operation: OperationId::new("op-2"),
        wait: Some(Wait { timeout: Some(Duration::from_millis(1500)) }),
    }
}

pub(crate) fn progress() -> Progress {
    Progress {
        state: State::Failed("disk full".into()),
        done: 5,
        total: 10,
        units: "Bytes".into(),
        description: "uploading".into(),
        started: None,
        updated: Some("2026-01-02T03:04:05.000000006Z".parse().unwrap()),
    }
}

fn text(item: &Item) -> &str {
    std::str::from_utf8(item.json()).unwrap()
}

fn of_backup(backup: &Encoded<Backup>) -> &str {
    backup.metadata.name.as_deref().unwrap()
}

fn of_restore(restore: &Encoded<Restore>) -> &str {
    restore.metadata.name.as_deref().unwrap()
}

#[async_trait]
impl BackupItemAction for Fake {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        self.record_call("applies_to".into())?;
        Ok(selector())
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<BackupOutput> {
        self.record_call(format!("execute {} {}", text(item), of_backup(backup)))?;
        Ok(backup_output())
    }

    async fn progress(&self, id: &OperationId, backup: &Encoded<Backup>) -> Result<Progress> {
        self.record_call(format!("progress {id} {}", of_backup(backup)))?;
        Ok(progress())
    }

    async fn cancel(&self, id: &OperationId, backup: &Encoded<Backup>) -> Result<()> {
        self.record_call(format!("cancel {id} {}", of_backup(backup)))
    }
}

#[async_trait]
impl RestoreItemAction for Fake {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        self.record_call("applies_to".into())?;
        Ok(selector())
    }

    async fn execute(
        &self,
        item: &Item,
        before: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        self.record_call(format!(
            "execute {} {} {}",
            text(item),
            text(before),
            of_restore(restore)
        ))?;
        Ok(restore_output())
    }

    async fn progress(&self, id: &OperationId, restore: &Encoded<Restore>) -> Result<Progress> {
        self.record_call(format!("progress {id} {}", of_restore(restore)))?;
        Ok(progress())
    }

    async fn cancel(&self, id: &OperationId, restore: &Encoded<Restore>) -> Result<()> {
        self.record_call(format!("cancel {id} {}", of_restore(restore)))
    }

    async fn are_additional_items_ready(
        &self,
        items: &[ResourceIdentifier],
        restore: &Encoded<Restore>,
    ) -> Result<bool> {
        let items: Vec<String> = items.iter().map(ToString::to_string).collect();
        self.record_call(format!("ready {} {}", items.join(","), of_restore(restore)))?;
        Ok(false)
    }
}

/// The same without fields that version 1 lacks.
struct Version1(Arc<Fake>);

#[async_trait]
impl BackupItemAction for Version1 {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        BackupItemAction::applies_to(&*self.0).await
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<BackupOutput> {
        let output = BackupItemAction::execute(&*self.0, item, backup).await?;
        Ok(BackupOutput { operation: None, post_operation_items: Vec::new(), ..output })
    }
}

#[async_trait]
impl RestoreItemAction for Version1 {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        RestoreItemAction::applies_to(&*self.0).await
    }

    async fn execute(
        &self,
        item: &Item,
        before: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let output = RestoreItemAction::execute(&*self.0, item, before, restore).await?;
        Ok(RestoreOutput { operation: None, wait: None, ..output })
    }
}

#[async_trait]
impl DeleteItemAction for Fake {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        self.record_call("applies_to".into())?;
        Ok(selector())
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<()> {
        self.record_call(format!("execute {} {}", text(item), of_backup(backup)))
    }
}

#[async_trait]
impl ItemBlockAction for Fake {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        self.record_call("applies_to".into())?;
        Ok(selector())
    }

    async fn get_related_items(
        &self,
        item: &Item,
        backup: &Encoded<Backup>,
    ) -> Result<Vec<ResourceIdentifier>> {
        self.record_call(format!("get_related_items {} {}", text(item), of_backup(backup)))?;
        Ok(vec![identifier("related")])
    }
}

#[async_trait]
impl VolumeSnapshotter for Fake {
    async fn init(&self, config: &Config) -> Result<()> {
        self.record_call(format!("init {config:?}"))
    }

    async fn get_volume_id(&self, volume: &Item) -> Result<Option<VolumeId>> {
        self.record_call(format!("get_volume_id {}", text(volume)))?;
        Ok(VolumeId::new("vol-1"))
    }

    async fn set_volume_id(&self, volume: &Item, id: &VolumeId) -> Result<Item> {
        self.record_call(format!("set_volume_id {} {id}", text(volume)))?;
        Ok(item(r#"{"kind":"Changed"}"#))
    }

    async fn get_volume_info(&self, volume: &VolumeId, zone: &str) -> Result<VolumeInfo> {
        self.record_call(format!("get_volume_info {volume} {zone}"))?;
        Ok(VolumeInfo { volume_type: "gp3".into(), iops: Some(3000) })
    }

    async fn create_snapshot(
        &self,
        volume: &VolumeId,
        zone: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        self.record_call(format!("create_snapshot {volume} {zone} {tags:?}"))?;
        Ok(SnapshotId::new("snap-1").unwrap())
    }

    async fn create_volume_from_snapshot(
        &self,
        snapshot: &SnapshotId,
        info: &VolumeInfo,
        zone: &str,
    ) -> Result<VolumeId> {
        let VolumeInfo { volume_type, iops } = info;
        self.record_call(format!("create_volume {snapshot} {volume_type} {iops:?} {zone}"))?;
        Ok(VolumeId::new("vol-2").unwrap())
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        self.record_call(format!("delete_snapshot {snapshot}"))
    }

    async fn progress(&self, snapshot: &SnapshotId) -> Result<Progress> {
        self.record_call(format!("progress {snapshot}"))?;
        Ok(progress())
    }

    async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
        self.record_call(format!("cancel {snapshot}"))
    }

    async fn upload_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        self.record_call(format!("upload_snapshot {snapshot}"))
    }
}

#[async_trait]
impl ObjectStore for Fake {
    async fn init(&self, config: &Config) -> Result<()> {
        self.record_call(format!("init {config:?}"))
    }

    async fn put_object(&self, bucket: &str, key: &str, body: ByteStream) -> Result<()> {
        let pieces: Vec<_> = body.try_collect().await.map_err(|e| Error::unknown(e.to_string()))?;
        self.record_call(format!("put_object {bucket} {key} {:?}", pieces.concat()))
    }

    async fn object_exists(&self, bucket: &str, key: &str) -> Result<bool> {
        self.record_call(format!("object_exists {bucket} {key}"))?;
        Ok(true)
    }

    async fn get_object(&self, bucket: &str, key: &str) -> Result<ByteStream> {
        self.record_call(format!("get_object {bucket} {key}"))?;
        Ok(Box::pin(stream::iter(["con", "", "tent"].map(|piece| Ok(piece.into())))))
    }

    async fn list_common_prefixes(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
    ) -> Result<Vec<String>> {
        self.record_call(format!("list_common_prefixes {bucket} {prefix} {delimiter}"))?;
        Ok(vec!["a/".into(), "b/".into()])
    }

    async fn list_objects(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        self.record_call(format!("list_objects {bucket} {prefix}"))?;
        Ok(vec!["a/1".into()])
    }

    async fn delete_object(&self, bucket: &str, key: &str) -> Result<()> {
        self.record_call(format!("delete_object {bucket} {key}"))
    }

    async fn create_signed_url(&self, bucket: &str, key: &str, ttl: Duration) -> Result<String> {
        self.record_call(format!("create_signed_url {bucket} {key} {ttl:?}"))?;
        Ok("https://example.io/o".into())
    }
}
