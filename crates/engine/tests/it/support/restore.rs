//! Restores to an in-memory cluster.

use std::sync::Arc;
use std::time::Duration;

use bowline_engine::cluster::Cluster;
use bowline_engine::journal::{InMemory, RecoveredRun};
use bowline_engine::restore::order::Priorities;
use bowline_engine::restore::volume::NoReporter;
use bowline_engine::restore::{self, Options, Progress, RestoreOutcome, Run};
use bowline_engine::snapshotter::NoSnapshotters;
use bowline_engine::testing::{ValidRestore, archive};
use bowline_engine::unpack::UnpackLimits;
use bowline_store::BackupName;
use bowline_store::backend::Memory;
use futures::stream;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::backup::store_in;

/// Modifiers that give every StorageClass the same name.
pub(crate) const ONE_NAME: &str = "version: v1\nresourceModifierRules:\n- conditions:\n    \
    groupResource: storageclasses.storage.k8s.io\n  patches:\n  - operation: replace\n    \
    path: /metadata/name\n    value: new\n";

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
        unpack_limits: UnpackLimits::default(),
        namespace: "velero".into(),
        priorities: Priorities::default(),
        resource_timeout: Duration::from_mins(1),
        terminating_timeout: Duration::from_mins(10),
    };
    let valid = ValidRestore::new(spec);
    let (actions, progress) = (Vec::new(), Arc::new(Progress::default()));
    let run = Run {
        request: ValidRestore { modifiers: ONE_NAME.to_owned(), started_at, ..valid }.request(),
        cluster,
        store,
        actions,
        snapshotters: Arc::new(NoSnapshotters),
        volume_reporter: Arc::new(NoReporter),
        options,
        progress,
        journal: Arc::new(InMemory::default()),
        recovered: RecoveredRun::default(),
        stop,
        cancel: CancellationToken::new(),
    };
    restore::run(run, Timestamp::now()).await
}
