//! Whole restores, against an in-memory cluster.

mod additional;
mod archives;
mod namespaces;
mod objects;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::{Restore, annotation};
use bowline_plugin::{
    Encoded, Item, ResourceIdentifier, ResourceSelector, RestoreItemAction, RestoreOutput,
    Result as Answer,
};
use bowline_store::backend::Memory;
use bowline_store::{BackupName, BackupStore, Prefix};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::order::Priorities;
use super::request::{self, ALLOW_DAMAGED_ARCHIVE};
use super::volume::NoReporter;
use super::{FatalError, Options, Progress, RestoreOutcome, Run, finalize, run};
use crate::action::NamedAction;
use crate::cluster::{self, Cluster, Delegate, Discovery, Error, Fake};
use crate::item::Object;
use crate::journal::{InMemory, RecoveredRun};
use crate::resource::{GroupResource, Resource};
use crate::snapshotter::NoSnapshotters;
use crate::testing::ValidRestore;
use crate::unpack::UnpackLimits;

/// An archive entry: path and content.
type Entry = (String, Vec<u8>);

/// An object at its path in the archive.
fn entry(kind: &str, object: &Value) -> Entry {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let folder = match text("namespace") {
        "" => "cluster".to_owned(),
        namespace => format!("namespaces/{namespace}"),
    };
    let path = format!("resources/{kind}/{folder}/{}.json", text("name"));
    (path, serde_json::to_vec(object).unwrap())
}

fn packed(entries: &[Entry]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, content) in entries {
        let mut header = tar::Header::new_ustar();
        // Written directly, since the tar writer would validate the path.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append(&header, &content[..]).unwrap();
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&tar.into_inner().unwrap()).unwrap();
    gzip.finish().unwrap()
}

struct RestoreFixture {
    cluster: Arc<Fake>,
    archive: Vec<u8>,
    spec: Value,
    annotations: BTreeMap<String, String>,
    actions: Vec<NamedAction<dyn RestoreItemAction>>,
    modifiers: Option<String>,
    priorities: Priorities,
    items: usize,
    cancel: CancellationToken,
    progress: Arc<Progress>,
    /// Item count in the status of the backup.
    counted: i64,
    unpack_limits: UnpackLimits,
}

impl RestoreFixture {
    fn new(entries: &[Entry]) -> Self {
        Self::of(Fake::usual(), entries)
    }

    fn of(cluster: Fake, entries: &[Entry]) -> Self {
        Self {
            cluster: Arc::new(cluster),
            archive: packed(entries),
            spec: json!({}),
            annotations: BTreeMap::new(),
            actions: Vec::new(),
            modifiers: None,
            priorities: Priorities::default(),
            items: 8,
            cancel: CancellationToken::new(),
            progress: Arc::default(),
            counted: 0,
            unpack_limits: UnpackLimits::default(),
        }
    }

    fn request(&self) -> request::Request {
        let mut fixture = ValidRestore::new(self.spec.clone());
        fixture.restore.metadata.annotations = Some(self.annotations.clone());
        if let Some(modifiers) = &self.modifiers {
            let name = json!({"kind": "ConfigMap", "name": "rules"});
            fixture.restore.spec.resource_modifier = Some(serde_json::from_value(name).unwrap());
            fixture.modifiers.clone_from(modifiers);
        }
        let status = fixture.backup.status.get_or_insert_default();
        status.progress.get_or_insert_default().items_backed_up = self.counted;
        fixture.request()
    }

    async fn run(&self) -> RestoreOutcome {
        self.run_in(Arc::clone(&self.cluster) as _).await
    }

    async fn run_in(&self, cluster: Arc<dyn Cluster>) -> RestoreOutcome {
        let store =
            BackupStore::new(Arc::new(Memory::with_bucket("b")), "b", &Prefix::new("").unwrap());
        let archive = Box::pin(stream::iter([Ok(self.archive.clone().into())]));
        store.put_contents(&BackupName::new("b1").unwrap(), archive).await.unwrap();
        let options = Options {
            requests: 4,
            items: self.items,
            scratch: std::env::temp_dir(),
            unpack_limits: self.unpack_limits,
            namespace: "velero".into(),
            priorities: self.priorities.clone(),
            resource_timeout: Duration::from_mins(1),
            terminating_timeout: Duration::from_mins(10),
        };
        let restore_run = Run {
            request: self.request(),
            cluster,
            store,
            actions: self.actions.clone(),
            snapshotters: Arc::new(NoSnapshotters),
            volume_reporter: Arc::new(NoReporter),
            options,
            progress: Arc::clone(&self.progress),
            journal: Arc::new(InMemory::default()),
            recovered: RecoveredRun::default(),
            stop: CancellationToken::new(),
            cancel: self.cancel.clone(),
        };
        Box::pin(run(restore_run, Timestamp::now())).await
    }

    /// Runs a restore that must end without errors and warnings.
    async fn run_well(&self) -> RestoreOutcome {
        let restored = self.run().await;
        let results = restored.report.results();
        assert!(restored.fatal.is_none(), "{:?}", restored.fatal);
        assert_eq!((results.errors.count(), results.warnings.count()), (0, 0), "{results:?}");
        restored
    }

    fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.cluster.object(kind, namespace, name)
    }
}

/// Messages of a restore, errors first.
fn messages(outcome: &RestoreOutcome) -> (Vec<String>, Vec<String>) {
    let results = outcome.report.results();
    let all = |part: bowline_store::file::Messages| {
        let namespaces = part.namespaces.into_values().flatten();
        part.velero.into_iter().chain(part.cluster).chain(namespaces).collect()
    };
    (all(results.errors), all(results.warnings))
}

/// An action with a test-defined function.
struct FnAction<F> {
    kinds: &'static [&'static str],
    execute: F,
}

#[async_trait]
impl<F> RestoreItemAction for FnAction<F>
where
    F: Fn(&mut Value, &mut RestoreOutput) + Send + Sync,
{
    async fn applies_to(&self) -> Answer<ResourceSelector> {
        Ok(ResourceSelector::resources(self.kinds.iter().copied()))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Answer<RestoreOutput> {
        let mut object: Value = item.parse().unwrap();
        let mut output = RestoreOutput::unchanged(item);
        (self.execute)(&mut object, &mut output);
        output.item = Item::from_object(&object).unwrap();
        Ok(output)
    }
}

fn action(
    kinds: &'static [&'static str],
    execute: impl Fn(&mut Value, &mut RestoreOutput) + Send + Sync + 'static,
) -> NamedAction<dyn RestoreItemAction> {
    NamedAction::new("example.io/act".parse().unwrap(), Arc::new(FnAction { kinds, execute }) as _)
}

fn id(group: &str, resource: &str, namespace: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: group.into(),
        resource: resource.into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn map(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name}, "data": {"key": "value"},
    })
}

fn maps(namespace: &str, names: &[&str]) -> Vec<Entry> {
    names.iter().map(|name| entry("configmaps", &map(namespace, name))).collect()
}

fn refused(code: u16, reason: &str) -> Error {
    Error::Refused { code, reason: reason.into(), message: "no".into() }
}

/// A custom resource, which may have any fields.
fn widgets(versions: &[&str]) -> impl Iterator<Item = Resource> {
    versions.iter().map(|version| Resource {
        id: GroupResource::new("example.io", "widgets"),
        version: (*version).to_owned(),
        kind: "Widget".into(),
        singular: "widget".into(),
        short_names: vec!["wd".into()],
        is_namespaced: true,
        verbs: ["create", "get", "list", "patch"].map(str::to_owned).to_vec(),
    })
}

fn with_widgets(versions: &[&str]) -> Fake {
    let usual = crate::cluster::fake::usual_resources();
    Fake::new(usual.into_iter().chain(widgets(versions)))
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!("core"), |inner, _| json!({ "a": inner }))
}
