//! Backups of an in-memory cluster.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::location::LocationPhase;
use bowline_api::{
    Backup, BackupSpec, BackupStorageLocation, BackupStorageLocationSpec,
    BackupStorageLocationStatus,
};
use bowline_engine::Object;
use bowline_engine::action::NamedAction;
use bowline_engine::backup::filter::namespaces::Namespace;
use bowline_engine::backup::request::{Defaults, Facts, Lookup, Request, prepare};
use bowline_engine::backup::{self, BackupOutcome, Options, Progress, Recovery};
use bowline_engine::cluster::{Cluster as _, Fake, Query};
use bowline_engine::compression::CompressionMode;
use bowline_engine::journal::InMemory;
use bowline_engine::snapshotter::NoSnapshotters;
use bowline_engine::unpack::UnpackLimits;
use bowline_plugin::{BackupItemAction, BackupOutput, Encoded, Item, ResourceSelector};
use bowline_store::backend::Memory;
use bowline_store::{BackupName, BackupStore, Prefix};
use futures::TryStreamExt as _;
use jiff::Timestamp;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// A finished backup, and its archive.
pub(crate) struct FinishedBackup {
    pub(crate) outcome: BackupOutcome,
    /// The paths as they lie in the archive.
    pub(crate) order: Vec<String>,
    pub(crate) archive: BTreeMap<String, Value>,
}

impl FinishedBackup {
    /// The paths without a version, shortened: `pods/shop/web`, `namespaces/shop`.
    pub(crate) fn stored(&self) -> Vec<String> {
        let plain = self.archive.keys().filter(|path| !path.contains("-preferredversion"));
        let short = plain.filter_map(|path| path.strip_prefix("resources/"));
        short
            .map(|path| {
                path.replace("/namespaces/", "/").replace("/cluster/", "/").replace(".json", "")
            })
            .collect()
    }

    pub(crate) fn errors(&self) -> Vec<String> {
        messages(self.outcome.report.results().errors)
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        messages(self.outcome.report.results().warnings)
    }
}

fn messages(messages: bowline_store::file::Messages) -> Vec<String> {
    let namespaces = messages.namespaces.into_values().flatten();
    messages.velero.into_iter().chain(messages.cluster).chain(namespaces).collect()
}

/// A store in memory.
pub(crate) fn store_in(memory: Memory) -> BackupStore {
    BackupStore::new(Arc::new(memory), "b", &Prefix::new("").unwrap())
}

/// A valid request for a backup of this cluster.
pub(crate) async fn request(cluster: &Fake, spec: Value) -> Request {
    let mut backup = Backup::new("b1", serde_json::from_value::<BackupSpec>(spec).unwrap());
    backup.metadata.namespace = Some("velero".into());
    backup.metadata.uid = Some("3f9f3c1e-0000-4000-8000-000000000001".into());
    let mut location = BackupStorageLocation::new("default", BackupStorageLocationSpec::default());
    location.status = Some(BackupStorageLocationStatus {
        phase: Some(LocationPhase::Available),
        ..BackupStorageLocationStatus::default()
    });
    let namespaces = cluster.resources().core("namespaces").cloned().unwrap();
    let namespaces: Vec<Object> =
        cluster.list(&namespaces, Query::default()).try_collect().await.unwrap();
    let live = namespaces.into_iter().map(|namespace| Namespace {
        name: namespace.name,
        labels: namespace.labels,
        is_active: true,
    });
    let facts = Facts {
        storage_location: Lookup::Found(location),
        default_storage_location: None,
        storage_locations: Ok(Vec::new()),
        snapshot_locations: Ok(Vec::new()),
        namespaces: Ok(live.collect()),
        policy: Lookup::Missing,
    };
    let now = Timestamp::UNIX_EPOCH;
    prepare(&backup, &facts, &Defaults::default(), now).outcome.unwrap()
}

/// Inputs of a backup.
pub(crate) async fn run_of(cluster: &Arc<Fake>, spec: Value, store: BackupStore) -> backup::Run {
    backup::Run {
        request: request(cluster, spec).await,
        cluster: Arc::clone(cluster) as _,
        store,
        backup_item_actions: Vec::new(),
        item_block_actions: Vec::new(),
        snapshotters: Arc::new(NoSnapshotters),
        options: Options {
            connections: 4,
            block_workers: 2,
            scratch: std::env::temp_dir(),
            freeze_timeout: None,
            compression: CompressionMode::default(),
            restore_limits: UnpackLimits::default(),
        },
        progress: Arc::new(Progress::default()),
        journal: Arc::new(InMemory::default()),
        recovery: Recovery::default(),
        stop: CancellationToken::new(),
        cancel: CancellationToken::new(),
    }
}

/// Takes a backup and reads it back.
pub(crate) async fn run_and_read(run: backup::Run) -> FinishedBackup {
    let (store, name) = (run.store.clone(), run.request.name.clone());
    let outcome = backup::run(run, Timestamp::UNIX_EPOCH).await;
    let entries = entries_of(&store, &name).await;
    let order = entries.iter().map(|(path, _)| path.clone()).collect();
    FinishedBackup { outcome, order, archive: entries.into_iter().collect() }
}

/// Entries of the archive of a backup, in order.
async fn entries_of(store: &BackupStore, name: &BackupName) -> Vec<(String, Value)> {
    match store.contents(name).await.unwrap() {
        Some(stream) => read(&stream.try_collect::<Vec<_>>().await.unwrap().concat()),
        None => Vec::new(),
    }
}

/// Entries of the archive of a backup.
pub(crate) async fn archive_of(store: &BackupStore, name: &BackupName) -> BTreeMap<String, Value> {
    entries_of(store, name).await.into_iter().collect()
}

pub(crate) async fn run_and_read_spec(cluster: Fake, spec: Value) -> FinishedBackup {
    let store = store_in(Memory::with_bucket("b"));
    run_and_read(run_of(&Arc::new(cluster), spec, store).await).await
}

fn read(archive: &[u8]) -> Vec<(String, Value)> {
    let mut tar = tar::Archive::new(flate2::read::MultiGzDecoder::new(archive));
    let entries = tar.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        let content = serde_json::from_str(&text).unwrap_or(Value::String(text));
        (path, content)
    });
    entries.collect()
}

/// The commands that were run, and where: `freeze db`.
pub(crate) fn commands(cluster: &Fake) -> Vec<String> {
    cluster.execs().iter().map(|exec| format!("{} {}", exec.command[0], exec.pod)).collect()
}

/// An action that calls a function.
pub(crate) struct FnAction<F> {
    resource: &'static str,
    execute: F,
}

/// An action on a resource.
pub(crate) fn fn_action<F>(resource: &'static str, execute: F) -> NamedAction<dyn BackupItemAction>
where
    F: Fn(&Value, &mut BackupOutput) -> bowline_plugin::Result<()> + Send + Sync + 'static,
{
    NamedAction::new(
        format!("test.io/does-{resource}").parse().unwrap(),
        Arc::new(FnAction { resource, execute }),
    )
}

#[async_trait]
impl<F> BackupItemAction for FnAction<F>
where
    F: Fn(&Value, &mut BackupOutput) -> bowline_plugin::Result<()> + Send + Sync,
{
    async fn applies_to(&self) -> bowline_plugin::Result<ResourceSelector> {
        Ok(ResourceSelector::resources([self.resource]))
    }

    async fn execute(
        &self,
        item: &Item,
        _: &Encoded<Backup>,
    ) -> bowline_plugin::Result<BackupOutput> {
        let mut output = BackupOutput::unchanged(item);
        (self.execute)(&item.parse().unwrap(), &mut output)?;
        Ok(output)
    }
}
