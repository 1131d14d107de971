//! Backups by a running server, on a real API server and in real buckets.

use std::time::Duration;

use bowline_api::{Backup, BackupPhase, BackupSpec, BackupStatus};
use bowline_store::file::{BackupOperation, ResourceList, Results};
use bowline_store::{BackupFile, BackupName, BackupStore, Key};
use bowline_testbed::apply::apply;
use bowline_testbed::{Bed, ControlPlane, Node, node};
use flate2::read::MultiGzDecoder;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use std::io::Read as _;
use tokio_util::sync::CancellationToken;

use crate::bed::{World, eventually, shared};
use crate::support::runs::{application, back_up_and_wait, is_over_or_deleting, pod};

async fn results(store: &BackupStore, name: &str) -> Results {
    store.get(&BackupName::new(name).unwrap()).await.unwrap().expect("there are results")
}

async fn log_of(store: &BackupStore, name: &str) -> String {
    let key = Key::Backup(BackupName::new(name).unwrap(), BackupFile::Log);
    let stream = store.get_stream(&key).await.unwrap().expect("there is a log");
    let packed = stream.try_collect::<Vec<_>>().await.unwrap().concat();
    let mut text = String::new();
    MultiGzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
    text
}

#[tokio::test]
async fn backup_status_and_files_agree() {
    let world = World::start("taken").await;
    let store = world.s3_location("default").await;
    application(&world.client, "taken-app").await;
    let spec = json!({"includedNamespaces": ["taken-app"], "ttl": "1h0m0s"});
    let status = back_up_and_wait(&world, "nightly", spec).await;
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    assert_eq!((status.version, status.format_version.as_str()), (1, "1.1.0"));
    let hour = status.expiration.unwrap().0.duration_since(status.start_timestamp.unwrap().0);
    assert!((3590..=3600).contains(&hour.as_secs()), "{hour:?}");
    assert!(status.completion_timestamp.is_some());

    let name = BackupName::new("nightly").unwrap();
    let list: ResourceList = store.get(&name).await.unwrap().unwrap();
    assert!(list.0["v1/ConfigMap"].contains(&"taken-app/settings".to_owned()), "{list:?}");
    assert_eq!(list.0["v1/Namespace"], ["taken-app"]);
    let listed: usize = list.0.values().map(Vec::len).sum();
    let progress = status.progress.unwrap();
    assert_eq!(progress.items_backed_up, i64::try_from(listed).unwrap());
    assert_eq!(results(&store, "nightly").await, Results::default());
    assert!(log_of(&store, "nightly").await.contains("level=info msg=\"backup started\""));
    let record = store.backup(&name).await.unwrap().unwrap();
    assert_eq!(record.status.unwrap().phase, Some(BackupPhase::Completed));
    assert_eq!(record.spec.storage_location, "default");
    assert!(record.metadata.annotations.unwrap().contains_key("velero.io/resource-timeout"));
    assert!(std::fs::read_dir(world.path("scratch")).unwrap().all(|entry| {
        // The private files of locations stay while the server runs.
        entry.unwrap().file_type().unwrap().is_dir()
    }));
}

#[tokio::test]
async fn invalid_backup_is_refused_and_writes_nothing() {
    let world = World::start("wrong").await;
    let store = world.filesystem_location("default").await;
    let rows = [
        (json!({"storageLocation": "elsewhere"}), "elsewhere"),
        (json!({"snapshotMoveData": true}), "no data mover"),
        (json!({"includedNamespaces": ["a", "*"]}), "Invalid included/excluded namespace lists"),
        (json!({"labelSelector": {}, "orLabelSelectors": [{}]}), "only one can be specified"),
        (json!({"resourcePolicy": {"kind": "ConfigMap", "name": "none"}}), "none"),
        (
            json!({"includedResources": ["pods"], "includedClusterScopedResources": ["nodes"]}),
            "filter",
        ),
    ];
    for (number, (spec, reason)) in rows.into_iter().enumerate() {
        let name = format!("wrong-{number}");
        let status = back_up_and_wait(&world, &name, spec).await;
        assert_eq!(status.phase, Some(BackupPhase::FailedValidation), "{status:?}");
        let errors = status.validation_errors.join("\n");
        assert!(errors.contains(reason), "no {reason:?} in {errors}");
    }
    assert!(store.list().await.unwrap().backups.is_empty());
}

#[tokio::test]
async fn concurrent_backups_end_and_share_no_namespace() {
    let mut world = World::without_server("many").await;
    world.install_fixture().await;
    world.run(world.options());
    world.filesystem_location("default").await;
    let apps = ["app-many-a", "app-many-b"];
    for app in apps {
        application(&world.client, app).await;
        apply(&world.client, pod(app, "slow", "sleep=300")).await.unwrap();
    }
    for number in 0..6 {
        let spec = json!({"includedNamespaces": [apps[number % 2]]});
        let name = format!("b{number}");
        world.create::<Backup>(json!({"metadata": {"name": name}, "spec": spec})).await;
    }
    let phase = |backup: &Backup| backup.status.as_ref().and_then(|status| status.phase.clone());
    let mut side_by_side = 0;
    let ended = eventually("all backups have ended", async || {
        // One list shows one moment.
        let backups = world.api::<Backup>().list(&ListParams::default()).await.unwrap().items;
        let runs_in = |app: &str| {
            let runs = backups.iter().filter(|backup| {
                backup.spec.included_namespaces == [app]
                    && matches!(
                        phase(backup),
                        Some(BackupPhase::ReadyToStart | BackupPhase::InProgress)
                    )
            });
            runs.count()
        };
        let running = apps.map(runs_in);
        assert!(running.iter().all(|count| *count <= 1), "{backups:?}");
        side_by_side += usize::from(running == [1, 1]);
        if backups.iter().all(is_over_or_deleting) { Ok(backups) } else { Err(backups) }
    })
    .await;
    assert!(side_by_side > 0, "those of different namespaces run at the same time");
    for backup in ended {
        let status = backup.status.unwrap();
        assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
        assert_eq!(status.queue_position, 0);
    }
}

#[tokio::test]
async fn missing_bucket_fails_the_backup_and_leaves_nothing() {
    let mut world = World::start_with("gone", |options| {
        // The location must still count as available.
        options.store_validation_frequency = Duration::from_hours(1);
    })
    .await;
    world.s3_location("default").await;
    let folder = shared().s3.create_bucket(&world.bucket("default")).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let status = back_up_and_wait(&world, "b", json!({"includedNamespaces": ["default"]})).await;
    assert_eq!(status.phase, Some(BackupPhase::Failed), "{status:?}");
    assert!(status.failure_reason.contains("bucket"), "{}", status.failure_reason);
    assert_eq!(status.errors, 1);
    assert!(!folder.exists());
    world.end().await.unwrap();
}

#[tokio::test]
async fn existing_backup_in_the_bucket_is_not_overwritten() {
    let world = World::start("taken-name").await;
    let store = world.filesystem_location("default").await;
    let mut other = Backup::new("mine", BackupSpec::default());
    other.metadata.uid = Some("3f9f3c1e-0000-4000-8000-000000000009".into());
    other.metadata.namespace = Some("elsewhere".into());
    let phase = Some(BackupPhase::Failed);
    other.status = Some(BackupStatus { phase, ..BackupStatus::default() });
    // Before the sync brings it in.
    world
        .create::<Backup>(
            json!({"metadata": {"name": "mine"}, "spec": {"includedNamespaces": ["x"]}}),
        )
        .await;
    store.commit(&other).await.unwrap();
    let status = world.until::<Backup>("mine", is_over_or_deleting).await.status.unwrap();
    let name = BackupName::new("mine").unwrap();
    let found = store.backup(&name).await.unwrap().unwrap();
    if found.metadata.uid == other.metadata.uid {
        assert_eq!(status.phase, Some(BackupPhase::Failed), "{status:?}");
        assert!(status.failure_reason.contains("already exists"), "{status:?}");
    } else {
        panic!("the record was replaced: {found:?}");
    }
}

#[tokio::test]
async fn interrupted_runs_are_resumed_or_ended() {
    let mut world = World::without_server("orphans").await;
    let store = world.filesystem_store("default").await;
    let mut uids = Vec::new();
    for name in ["lost", "committed", "written", "nowhere"] {
        let location = if name == "nowhere" { "gone" } else { "default" };
        let spec = json!({"storageLocation": location, "includedNamespaces": ["orphans"]});
        let backup = json!({"metadata": {"name": name}, "spec": spec});
        uids.push(world.create::<Backup>(backup).await.metadata.uid);
        let phase = if name == "written" { "Finalizing" } else { "InProgress" };
        world.patch::<Backup>(name, json!({"status": {"phase": phase}})).await;
    }
    let mut record = Backup::new("committed", BackupSpec::default());
    record.metadata.uid.clone_from(&uids[1]);
    let phase = Some(BackupPhase::PartiallyFailed);
    record.status = Some(BackupStatus { phase, errors: 3, ..BackupStatus::default() });
    store.commit(&record).await.unwrap();
    let written = BackupName::new("written").unwrap();
    store.put(&written, &Vec::<BackupOperation>::new()).await.unwrap();
    world.location("default", crate::bed::filesystem_spec("default")).await;
    let bucket_wait_timeout = std::time::Duration::from_secs(2);
    let options = bowline_server::Options { bucket_wait_timeout, ..world.options() };
    world.run(options);

    let status = world.until::<Backup>("lost", is_over_or_deleting).await.status.unwrap();
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    let lost = store.backup(&BackupName::new("lost").unwrap()).await.unwrap().unwrap();
    assert_eq!(lost.metadata.uid, uids[0]);
    let status = world.until::<Backup>("nowhere", is_over_or_deleting).await.status.unwrap();
    assert_eq!(status.phase, Some(BackupPhase::Failed));
    for words in ["in the bucket cannot be read", "does not exist"] {
        assert!(status.failure_reason.contains(words), "{status:?}");
    }
    let status = world.until::<Backup>("committed", is_over_or_deleting).await.status.unwrap();
    assert_eq!((status.phase, status.errors), (Some(BackupPhase::PartiallyFailed), 3));
    let status = world.until::<Backup>("written", is_over_or_deleting).await.status.unwrap();
    assert_eq!(status.phase, Some(BackupPhase::Completed));
    let written = store.backup(&written).await.unwrap().unwrap();
    assert_eq!(written.metadata.uid, uids[2], "the record was written at last");
}

#[tokio::test]
async fn crashing_plugin_fails_its_item_and_its_output_is_logged() {
    let mut world = World::without_server("plugins").await;
    world.install_fixture().await;
    // One block at a time, so that a killed plugin interrupts no other call.
    let options = bowline_server::Options { item_block_worker_count: 1, ..world.options() };
    world.run(options);
    let store = world.filesystem_location("default").await;
    application(&world.client, "app-plugins").await;
    for (name, verbs) in [("deadly", "die"), ("wrong", "error=no luck"), ("fine", "log=info")] {
        apply(&world.client, pod("app-plugins", name, verbs)).await.unwrap();
    }
    let status =
        back_up_and_wait(&world, "b", json!({"includedNamespaces": ["app-plugins"]})).await;
    assert_eq!(status.phase, Some(BackupPhase::PartiallyFailed), "{status:?}");
    let name = BackupName::new("b").unwrap();
    let list: ResourceList = store.get(&name).await.unwrap().unwrap();
    assert_eq!(list.0["v1/Pod"], ["app-plugins/fine"]);
    let errors = results(&store, "b").await.errors.namespaces["app-plugins"].join("\n");
    for words in ["pods/deadly", "exit status: 3", "pods/wrong", "no luck", "bia-v1", "iba"] {
        assert!(errors.contains(words), "no {words:?} in {errors}");
    }
    assert_eq!(status.errors, 4, "one of each kind of action for each of the two pods: {errors}");
    assert!(log_of(&store, "b").await.contains("fixture says hello"));
}

/// A pod of a real container that does nothing.
fn hooked_pod(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "hooked", "annotations": annotations},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": node::IMAGE, "imagePullPolicy": "Never",
                "command": ["sleep", "1000"],
            }],
        },
    })
}

/// A real node, since hooks run in real containers.
#[tokio::test(flavor = "multi_thread")]
async fn hooks_run_in_pods_and_hanging_hook_times_out() {
    if !node::require_for_test("hooks_run_in_real_pods_and_one_that_never_ends_is_not_waited_for") {
        return;
    }
    let bed = Bed::isolated().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    let _node = Node::start(&plane).await.unwrap();
    let client = plane.client().await.unwrap();
    for crd in bowline_api::crds::all() {
        apply(&client, serde_json::to_value(crd).unwrap()).await.unwrap();
    }
    let hooks = |pre: &str, post: &str| {
        json!({
            "pre.hook.backup.velero.io/command": json!(["sh", "-c", pre]).to_string(),
            "pre.hook.backup.velero.io/timeout": "2s",
            "post.hook.backup.velero.io/command": json!(["sh", "-c", post]).to_string(),
        })
    };
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "velero"}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hooked"}}),
        hooked_pod("good", &hooks("echo frozen > /tmp/state", "echo thawed >> /tmp/state")),
        hooked_pod("stuck", &hooks("sleep 1000", "echo thawed > /tmp/state")),
    ] {
        apply(&client, object).await.unwrap();
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "hooked");
    for name in ["good", "stuck"] {
        let running = kube::runtime::conditions::is_pod_running();
        let running = kube::runtime::wait::await_condition(pods.clone(), name, running);
        tokio::time::timeout(Duration::from_mins(2), running).await.unwrap().unwrap();
    }
    let root = bed.subdir("root").unwrap();
    std::fs::create_dir(root.join("bucket")).unwrap();
    let options = bowline_server::Options {
        filesystem_root: Some(root),
        plugin_dir: bed.subdir("plugins").unwrap(),
        scratch_dir: bed.subdir("scratch").unwrap(),
        ..bowline_server::Options::default()
    };
    let stop = CancellationToken::new();
    // In this runtime, whose threads are in the network of the bed.
    let server = crate::bed::server_of(&plane, "velero").await;
    let server = bowline_server::run(server, options, stop.clone().cancelled_owned());
    let work = async {
        let location = json!({
            "apiVersion": "velero.io/v1",
            "kind": "BackupStorageLocation",
            "metadata": {"name": "default", "namespace": "velero"},
            "spec": crate::bed::filesystem_spec("bucket"),
        });
        apply(&client, location).await.unwrap();
        let locations: Api<bowline_api::BackupStorageLocation> =
            Api::namespaced(client.clone(), "velero");
        eventually("the location is available", async || {
            crate::bed::is_available(&locations.get("default").await.unwrap())
        })
        .await;
        let backup = json!({
            "apiVersion": "velero.io/v1",
            "kind": "Backup",
            "metadata": {"name": "b", "namespace": "velero"},
            "spec": {"includedNamespaces": ["hooked"]},
        });
        apply(&client, backup).await.unwrap();
        let backups: Api<Backup> = Api::namespaced(client.clone(), "velero");
        eventually("the backup has ended", async || {
            is_over_or_deleting(&backups.get("b").await.unwrap())
        })
        .await;
        stop.cancel();
        backups.get("b").await.unwrap().status.unwrap()
    };
    let (ended, status) = tokio::join!(server, work);
    ended.unwrap();
    assert_eq!(status.phase, Some(BackupPhase::PartiallyFailed), "{status:?}");
    let hooks = status.hook_status.unwrap();
    assert_eq!((hooks.hooks_attempted, hooks.hooks_failed), (4, 1));
    let state = async |pod: &str| {
        let exec = bowline_engine::cluster::Exec {
            namespace: "hooked".into(),
            pod: pod.into(),
            container: "main".into(),
            command: ["cat", "/tmp/state"].map(str::to_owned).to_vec(),
            timeout: Duration::from_secs(30),
        };
        let cluster = bowline_engine::cluster::ApiServer::new(client.clone(), 500);
        bowline_engine::Cluster::exec(&cluster, &exec).await.unwrap().output
    };
    assert_eq!(state("good").await, "frozen\nthawed");
    assert_eq!(state("stuck").await, "thawed", "what may be frozen is thawed");
}
