//! Restores on days when something is wrong, on a cluster in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::location::LocationPhase;
use bowline_api::{
    Backup, BackupPhase, BackupStorageLocation, BackupStorageLocationStatus, Restore,
};
use bowline_engine::cluster::{
    self, Cluster, Discovery, Error, Exec, ExecOutcome, Fake, Query, Subresource, WatchEvent,
};
use bowline_engine::item::Object;
use bowline_engine::journal::{InMemory, Recovered};
use bowline_engine::resource::Resource;
use bowline_engine::restore::order::Priorities;
use bowline_engine::restore::request::{self, Defaults, Facts, Lookup, Request};
use bowline_engine::restore::volume::NoReporter;
use bowline_engine::restore::{self, Options, Progress, RestoreOutcome, Run};
use bowline_engine::snapshotter::NoSnapshotters;
use bowline_plugin::Item;
use bowline_store::BackupName;
use bowline_store::backend::Memory;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream::{self, BoxStream};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::backup::{config_map, namespace, store_in};
use crate::restore_collisions::ONE_NAME;

/// An archive of objects, each with the folder of its kind.
pub(crate) fn archive(objects: &[(&str, Value)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (kind, object) in objects {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let folder = match text("namespace") {
            "" => "cluster".to_owned(),
            namespace => format!("namespaces/{namespace}"),
        };
        let path = format!("resources/{kind}/{folder}/{}.json", text("name"));
        let content = object.to_string();
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

fn request(spec: Value, started_at: Timestamp) -> Request {
    let mut restore = Restore::default();
    restore.metadata.name = Some("r".into());
    restore.metadata.namespace = Some("velero".into());
    restore.metadata.uid = Some("3f9f3c1e-0000-4000-8000-000000000001".into());
    restore.spec = serde_json::from_value(spec).unwrap();
    restore.spec.backup_name = "b1".into();
    let mut backup = Backup::default();
    backup.metadata.name = Some("b1".into());
    backup.status.get_or_insert_default().phase = Some(BackupPhase::Completed);
    let status = BackupStorageLocationStatus {
        phase: Some(LocationPhase::Available),
        ..BackupStorageLocationStatus::default()
    };
    let facts = Facts {
        backups: Ok(vec![backup]),
        location: Lookup::Found(BackupStorageLocation {
            status: Some(status),
            ..BackupStorageLocation::default()
        }),
        // Not looked at by a Restore that names none.
        modifiers: Lookup::Found([("rules.yaml".to_owned(), ONE_NAME.to_owned())].into()),
    };
    let prepared = request::prepare(&restore, &facts, &Defaults::default(), started_at);
    prepared.outcome.unwrap()
}

/// A restore of an archive with these objects.
pub(crate) async fn restore_of(
    cluster: Arc<dyn Cluster>,
    objects: &[(&str, Value)],
    stop: CancellationToken,
) -> RestoreOutcome {
    restore_with(cluster, objects, json!({}), Timestamp::now(), stop).await
}

/// The same, of a Restore with this spec that began at some time, maybe in another process.
pub(crate) async fn restore_with(
    cluster: Arc<dyn Cluster>,
    objects: &[(&str, Value)],
    spec: Value,
    started_at: Timestamp,
    stop: CancellationToken,
) -> RestoreOutcome {
    let store = store_in(Memory::with_bucket("b"));
    let archive = Box::pin(stream::iter([Ok(archive(objects).into())]));
    store.put_contents(&BackupName::new("b1").unwrap(), archive).await.unwrap();
    let options = Options {
        requests: 4,
        items: 8,
        scratch: std::env::temp_dir(),
        namespace: "velero".into(),
        priorities: Priorities::default(),
        resource_timeout: Duration::from_mins(1),
        terminating_timeout: Duration::from_mins(10),
    };
    let (actions, progress) = (Vec::new(), Arc::new(Progress::default()));
    let run = Run {
        request: request(spec, started_at),
        cluster,
        store,
        actions,
        snapshotters: Arc::new(NoSnapshotters),
        volume_reporter: Arc::new(NoReporter),
        options,
        progress,
        journal: Arc::new(InMemory::default()),
        recovered: Recovered::default(),
        stop,
        cancel: CancellationToken::new(),
    };
    restore::run(run, Timestamp::now()).await
}

/// A cluster in which every pod that is created is soon replaced by one of somebody else, which runs.
struct PodReplacingCluster {
    fake: Fake,
    /// Whether the answer to the next creation of a pod gets lost, and it is replaced later.
    loses_next_response: AtomicBool,
}

impl PodReplacingCluster {
    fn replace(&self, namespace: &str, name: &str) {
        let running = json!({"running": {}});
        self.fake.put(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "uid": "of somebody else"},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"containerStatuses": [{"name": "main", "ready": true, "state": running}]},
        }));
    }
}

#[async_trait]
impl Cluster for PodReplacingCluster {
    async fn discover(&self) -> cluster::Result<Discovery> {
        self.fake.discover().await
    }

    fn list(
        &self,
        of: &Arc<Resource>,
        query: Query,
    ) -> BoxStream<'static, cluster::Result<Object>> {
        self.fake.list(of, query)
    }

    async fn get(
        &self,
        of: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> cluster::Result<Option<Object>> {
        let found = self.fake.get(of, namespace, name).await;
        if of.is_core("pods") {
            self.replace(namespace, name);
        }
        found
    }

    async fn create(
        &self,
        of: &Arc<Resource>,
        namespace: &str,
        item: &Item,
    ) -> cluster::Result<Object> {
        let created = self.fake.create(of, namespace, item).await?;
        if !of.is_core("pods") {
            return Ok(created);
        }
        if self.loses_next_response.swap(false, Ordering::Relaxed) {
            let mut pod: Value = created.item.parse().unwrap();
            pod["metadata"]["creationTimestamp"] = json!(Timestamp::now());
            self.fake.put(pod);
            return Err(Error::Unreachable("connection reset".into()));
        }
        self.replace(namespace, &created.name);
        Ok(created)
    }

    async fn patch(
        &self,
        of: &Arc<Resource>,
        namespace: &str,
        name: &str,
        door: Subresource,
        patch: &Value,
    ) -> cluster::Result<Object> {
        self.fake.patch(of, namespace, name, door, patch).await
    }

    async fn delete(
        &self,
        of: &Arc<Resource>,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> cluster::Result<()> {
        self.fake.delete(of, namespace, name, uid).await
    }

    fn watch(
        &self,
        of: &Arc<Resource>,
        query: Query,
    ) -> BoxStream<'static, cluster::Result<WatchEvent>> {
        self.fake.watch(of, query)
    }

    async fn exec(&self, exec: &Exec) -> cluster::Result<ExecOutcome> {
        self.fake.exec(exec).await
    }
}

#[tokio::test]
async fn hooks_never_run_in_another_pod_of_the_same_name() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "db", "namespace": "shop",
            "annotations": {"post.hook.restore.velero.io/command": "load"},
        },
        "spec": {"containers": [{"name": "main"}]},
    });
    for loses in [false, true] {
        let usurped = Arc::new(PodReplacingCluster {
            fake: Fake::usual(),
            loses_next_response: AtomicBool::new(loses),
        });
        let restored =
            restore_of(usurped.clone(), &[("pods", pod.clone())], CancellationToken::new()).await;
        assert_eq!(usurped.fake.execs(), [], "an answer is lost: {loses}");
        assert_eq!(restored.hooks, (1, 1));
        assert_eq!(restored.resources.0["v1/Pod"], ["shop/db(created)"]);
        let errors = restored.report.results().errors.namespaces;
        let [error] = &errors["shop"][..] else { panic!("not one error: {errors:?}") };
        assert!(error.contains("another has taken its place"), "{error}");
    }
}

#[tokio::test]
async fn terminating_namespace_does_not_delay_a_stop() {
    let mut terminating = namespace("shop");
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let fake = Arc::new(Fake::usual().with(terminating));
    let stop = CancellationToken::new();
    let objects = [("configmaps", config_map("shop", "a"))];
    let restored = restore_of(fake.clone(), &objects, stop.clone());
    let stopped = async {
        while fake.gets().is_empty() {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    };
    let both = futures::future::join(restored, stopped);
    let (restored, ()) = tokio::time::timeout(Duration::from_mins(1), both).await.unwrap();
    assert!(matches!(restored.fatal, Some(restore::Fatal::Stopped)), "{:?}", restored.fatal);
    assert_eq!(fake.creations(), []);
}
