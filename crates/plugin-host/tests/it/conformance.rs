//! Rules for plugins and hosts: one suite over both implementations of the fixture plugins, which
//! `plugins/fixture/README.md` documents.

use std::time::Duration;

use bowline_plugin::{
    Class, Code, Kind, OperationId, ResourceIdentifier, ResourceSelector, State, Wait,
};
use bowline_testbed::eventually;
use bytes::Bytes;
use futures::TryStreamExt as _;
use serde_json::json;

use crate::fixture::{Fixture, Set, annotation, backup, name, pick, pod, restore, write};

macro_rules! over_both {
    ($($rule:ident),+ $(,)?) => {
        mod go {
            $(#[tokio::test] async fn $rule() {
                super::in_time(super::$rule(crate::fixture::Set::Go)).await;
            })+
        }
        mod rust {
            $(#[tokio::test] async fn $rule() {
                super::in_time(super::$rule(crate::fixture::Set::Rust)).await;
            })+
        }
    };
}

over_both!(
    all_kinds_are_listed_without_problems,
    name_in_both_versions_runs_once_as_the_newest,
    actions_return_their_selectors,
    version_1_action_behaves_like_version_2_without_operations,
    operation_survives_restarts_until_it_completes,
    failed_operation_reports_its_reason,
    a_cancelled_operation_ends,
    an_unknown_operation_is_a_permanent_error,
    related_items_come_back,
    a_restore_action_can_skip_and_wait,
    readiness_is_polled_until_reached,
    a_delete_action_sees_the_item,
    errors_keep_their_text,
    a_large_item_passes,
    a_store_keeps_lists_and_returns_objects,
    a_failed_upload_leaves_no_object,
    a_snapshotter_of_version_1_snapshots_and_has_no_upload,
    a_snapshotter_of_version_2_creates_uploads_and_restores,
    an_upload_can_be_cancelled,
    the_same_request_gives_the_same_snapshot,
);

/// A rule that is broken may also show as a loop that does not end. Building the plugins counts, too.
async fn in_time(rule: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_mins(20), rule).await.expect("it takes too long");
}

fn id(resource: &str, group: &str, namespace: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: group.into(),
        resource: resource.into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

async fn all_kinds_are_listed_without_problems(set: Set) {
    let fixture = Fixture::start(set).await;
    let registry = fixture.host.registry();
    assert_eq!(registry.problems(), []);
    let mut listed: Vec<(Kind, String)> =
        registry.plugins().iter().map(|p| (p.kind, p.name.to_string())).collect();
    listed.sort();
    let expected = [
        (Kind::BackupItemAction, "bia-v1"),
        (Kind::BackupItemAction, "both"),
        (Kind::BackupItemActionV2, "bia-v2"),
        (Kind::BackupItemActionV2, "both"),
        (Kind::VolumeSnapshotter, "vs-v1"),
        (Kind::VolumeSnapshotterV2, "vs-v2"),
        (Kind::ObjectStore, "os"),
        (Kind::RestoreItemAction, "ria-v1"),
        (Kind::RestoreItemActionV2, "ria-v2"),
        (Kind::DeleteItemAction, "dia"),
        (Kind::ItemBlockAction, "iba"),
    ];
    assert_eq!(listed, expected.map(|(kind, own)| (kind, name(own).to_string())));
}

async fn name_in_both_versions_runs_once_as_the_newest(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let actions = run.backup_item_actions();
    let mut names: Vec<String> = actions.iter().map(|action| action.name.to_string()).collect();
    names.sort();
    assert_eq!(names, ["bia-v1", "bia-v2", "both"].map(|own| name(own).to_string()));
    let both = pick(actions, "both");
    assert_eq!(both.kind, Kind::BackupItemActionV2);
    let output = both.plugin.execute(&pod(&[]), &backup()).await.unwrap();
    assert!(annotation(&output.item, "seen-by").unwrap().ends_with("both-v2"));
    run.shut_down().await;
}

async fn actions_return_their_selectors(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let strings = |names: &[&str]| names.iter().map(|&word| word.to_owned()).collect();
    let plain = ResourceSelector::resources(["pods"]);
    let rich = ResourceSelector {
        included_namespaces: strings(&["app-*"]),
        excluded_namespaces: strings(&["kube-system"]),
        included_resources: strings(&["pods", "persistentvolumeclaims"]),
        excluded_resources: strings(&["nodes"]),
        label_selector: "fixture!=no".into(),
    };
    let backup_v1 = pick(run.backup_item_actions(), "bia-v1").plugin;
    let backup_v2 = pick(run.backup_item_actions(), "bia-v2").plugin;
    let restore_v1 = pick(run.restore_item_actions(), "ria-v1").plugin;
    let restore_v2 = pick(run.restore_item_actions(), "ria-v2").plugin;
    assert_eq!(backup_v1.applies_to().await.unwrap(), plain);
    assert_eq!(backup_v2.applies_to().await.unwrap(), rich);
    assert_eq!(restore_v1.applies_to().await.unwrap(), plain);
    assert_eq!(restore_v2.applies_to().await.unwrap(), rich);
    let delete = pick(run.delete_item_actions(), "dia").plugin;
    assert_eq!(delete.applies_to().await.unwrap(), plain);
    let block = pick(run.item_block_actions(), "iba").plugin;
    assert_eq!(block.applies_to().await.unwrap(), plain);
    run.shut_down().await;
}

async fn version_1_action_behaves_like_version_2_without_operations(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let old = pick(run.backup_item_actions(), "bia-v1");
    assert_eq!(old.kind, Kind::BackupItemAction);
    let item = pod(&[("do", "operation=1000"), ("additional", "secrets/ns/s")]);
    let output = old.plugin.execute(&item, &backup()).await.unwrap();
    assert_eq!(output.operation, None);
    assert_eq!(output.post_operation_items, []);
    assert_eq!(output.additional_items, [id("secrets", "", "ns", "s")]);
    assert_eq!(annotation(&output.item, "seen-by"), Some(name("bia-v1").to_string()));
    let operation = OperationId::new("x").unwrap();
    let error = old.plugin.progress(&operation, &backup()).await.unwrap_err();
    assert_eq!(error.class(), Class::Permanent, "{error}");
    old.plugin.cancel(&operation, &backup()).await.unwrap();

    let old = pick(run.restore_item_actions(), "ria-v1");
    assert_eq!(old.kind, Kind::RestoreItemAction);
    let none = restore(&json!({}));
    let item = pod(&[("do", "wait=1000")]);
    let output = old.plugin.execute(&item, &item, &none).await.unwrap();
    assert_eq!((output.operation, output.wait), (None, None));
    let error = old.plugin.progress(&operation, &none).await.unwrap_err();
    assert_eq!(error.class(), Class::Permanent, "{error}");
    old.plugin.cancel(&operation, &none).await.unwrap();
    assert!(old.plugin.are_additional_items_ready(&[], &none).await.unwrap());
    run.shut_down().await;
}

async fn operation_survives_restarts_until_it_completes(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let item = pod(&[("do", "operation=2000"), ("post-operation", "pods/app-1/p,nodes//n")]);
    let action = pick(run.backup_item_actions(), "bia-v2").plugin;
    let output = action.execute(&item, &backup()).await.unwrap();
    let expected = [id("pods", "", "app-1", "p"), id("nodes", "", "", "n")];
    assert_eq!(output.post_operation_items, expected);
    let operation = output.operation.expect("it was started");
    let first = action.progress(&operation, &backup()).await.unwrap();
    assert_eq!(first.state, State::Running);
    assert_eq!((first.total, first.units.as_str()), (2000, "Milliseconds"));
    assert!(first.started.is_some() && first.updated >= first.started);
    run.shut_down().await;

    // Another process knows it, too.
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v2").plugin;
    let mut done = first.done;
    loop {
        let progress = action.progress(&operation, &backup()).await.unwrap();
        assert!(progress.done >= done && progress.done <= 2000);
        done = progress.done;
        if progress.state != State::Running {
            assert_eq!((progress.state, done), (State::Succeeded, 2000));
            break;
        }
    }
    run.shut_down().await;
}

async fn failed_operation_reports_its_reason(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let action = pick(run.restore_item_actions(), "ria-v2").plugin;
    let item = pod(&[("do", "operation=0,outcome=the disk is full")]);
    let none = restore(&json!({}));
    let output = action.execute(&item, &item, &none).await.unwrap();
    let progress = action.progress(&output.operation.unwrap(), &none).await.unwrap();
    assert_eq!(progress.state, State::Failed("the disk is full".into()));
    run.shut_down().await;
}

async fn a_cancelled_operation_ends(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v2").plugin;
    let item = pod(&[("do", "operation=600000")]);
    let operation = action.execute(&item, &backup()).await.unwrap().operation.unwrap();
    action.cancel(&operation, &backup()).await.unwrap();
    action.cancel(&operation, &backup()).await.unwrap();
    let progress = action.progress(&operation, &backup()).await.unwrap();
    assert_eq!(progress.state, State::Failed("canceled".into()));
    run.shut_down().await;
}

async fn an_unknown_operation_is_a_permanent_error(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v2").plugin;
    let unknown = OperationId::new("no-such-operation").unwrap();
    let error = action.progress(&unknown, &backup()).await.unwrap_err();
    assert_eq!(error.message(), "operation ID no-such-operation is invalid");
    assert_eq!(error.class(), Class::Permanent);
    action.cancel(&unknown, &backup()).await.unwrap();
    run.shut_down().await;
}

async fn related_items_come_back(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let action = pick(run.item_block_actions(), "iba").plugin;
    let item = pod(&[("additional", "deployments.apps/ns/d,persistentvolumes//pv")]);
    let related = action.get_related_items(&item, &backup()).await.unwrap();
    assert_eq!(
        related,
        [id("deployments", "apps", "ns", "d"), id("persistentvolumes", "", "", "pv")]
    );
    assert_eq!(action.get_related_items(&pod(&[]), &backup()).await.unwrap(), []);
    run.shut_down().await;
}

async fn a_restore_action_can_skip_and_wait(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let action = pick(run.restore_item_actions(), "ria-v2").plugin;
    let none = restore(&json!({}));
    let execute = async |verbs: &str| {
        let item = pod(&[("do", verbs)]);
        action.execute(&item, &item, &none).await.unwrap()
    };
    assert!(execute("skip").await.skip_restore);
    assert_eq!(execute("wait=0").await.wait, Some(Wait { timeout: None }));
    let timeout = Some(Duration::from_millis(1500));
    assert_eq!(execute("wait=1500").await.wait, Some(Wait { timeout }));
    let plain = execute("sleep=0").await;
    assert_eq!((plain.skip_restore, plain.wait), (false, None));
    run.shut_down().await;
}

async fn readiness_is_polled_until_reached(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let action = pick(run.restore_item_actions(), "ria-v2").plugin;
    let items = [id("pods", "", "ns", "p")];
    let later = restore(&json!({"fixture.bowline.io/ready-after-ms": "2000"}));
    assert!(!action.are_additional_items_ready(&items, &later).await.unwrap());
    eventually("the items are ready", Duration::from_mins(1), async || {
        action.are_additional_items_ready(&items, &later).await.unwrap()
    })
    .await;
    let never = restore(&json!({"fixture.bowline.io/ready-after-ms": "never"}));
    assert!(!action.are_additional_items_ready(&items, &never).await.unwrap());
    run.shut_down().await;
}

async fn a_delete_action_sees_the_item(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let action = pick(run.delete_item_actions(), "dia").plugin;
    action.execute(&pod(&[]), &backup()).await.unwrap();
    action.execute(&pod(&[]), &backup()).await.unwrap();
    let deleted = std::fs::read_to_string(fixture.state("deleted")).unwrap();
    assert_eq!(deleted, "Pod/app-1/p\nPod/app-1/p\n");
    run.shut_down().await;
}

async fn errors_keep_their_text(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let text = "no space: 100 % of /data — sorry";
    let item = pod(&[("do", &format!("error={text}"))]);
    let action = pick(run.backup_item_actions(), "bia-v1").plugin;
    let error = action.execute(&item, &backup()).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unknown, text));
    run.shut_down().await;
}

async fn a_large_item_passes(set: Set) {
    let fixture = Fixture::start(set).await;
    let run = fixture.host.run();
    let size = 6 << 20;
    let item = pod(&[("do", &format!("grow={size}"))]);
    let action = pick(run.backup_item_actions(), "bia-v2").plugin;
    let output = action.execute(&item, &backup()).await.unwrap();
    assert_eq!(annotation(&output.item, "ballast").unwrap().len(), size);
    run.shut_down().await;
}

async fn a_store_keeps_lists_and_returns_objects(set: Set) {
    let fixture = Fixture::start(set).await;
    let store = fixture.host.object_store("fixture.bowline.io/os", fixture.config(&[])).await;
    let store = store.unwrap().expect("it is listed");
    let put = async |key: &str, pieces: Vec<Bytes>| {
        let body = Box::pin(futures::stream::iter(pieces.into_iter().map(Ok)));
        store.put_object("b", key, body).await.unwrap();
    };
    let get = async |key: &str| -> Vec<u8> {
        let stream = store.get_object("b", key).await.unwrap();
        stream.try_collect::<Vec<Bytes>>().await.unwrap().concat()
    };
    // More than a message, and more than a window.
    let large: Vec<Bytes> = (0..5).map(|n| Bytes::from(vec![n; 700_000])).collect();
    put("x/large", large.clone()).await;
    put("x/y/small", vec![Bytes::from("small")]).await;
    put("empty", Vec::new()).await;
    assert_eq!(get("x/large").await, large.concat());
    assert_eq!(get("x/y/small").await, b"small");
    assert_eq!(get("empty").await, b"");
    assert!(store.object_exists("b", "empty").await.unwrap());
    assert!(!store.object_exists("b", "none").await.unwrap());
    assert_eq!(store.list_objects("b", "x/").await.unwrap(), ["x/large", "x/y/small"]);
    assert_eq!(store.list_common_prefixes("b", "x/", "/").await.unwrap(), ["x/y/"]);
    let url = store.create_signed_url("b", "empty", Duration::from_secs(90)).await.unwrap();
    assert!(url.ends_with("?ttl=90000000000"), "{url}");
    store.delete_object("b", "empty").await.unwrap();
    let Err(error) = store.get_object("b", "empty").await else { panic!("it is gone") };
    assert_eq!(error.message(), "object empty not found");
}

async fn a_failed_upload_leaves_no_object(set: Set) {
    let fixture = Fixture::start(set).await;
    let store = fixture.host.object_store("fixture.bowline.io/os", fixture.config(&[])).await;
    let store = store.unwrap().expect("it is listed");
    let pieces = (0..20).map(|n| match n {
        19 => Err(std::io::Error::other("the source broke")),
        _ => Ok(Bytes::from(vec![7; 100_000])),
    });
    let body = Box::pin(futures::stream::iter(pieces));
    let error = store.put_object("b", "half", body).await.unwrap_err();
    assert!(error.message().contains("the source broke"), "{error}");
    assert!(!store.object_exists("b", "half").await.unwrap());
}

async fn a_snapshotter_of_version_1_snapshots_and_has_no_upload(set: Set) {
    let fixture = Fixture::start(set).await;
    let provider = "fixture.bowline.io/vs-v1";
    let plugin = fixture.host.volume_snapshotter(provider, fixture.config(&[])).await;
    let plugin = plugin.unwrap().expect("it is listed");
    exercise_snapshot_lifecycle(&fixture, plugin.as_ref()).await;

    write(&fixture.root().join("volumes/v1/file"), "data");
    let volume = bowline_plugin::VolumeId::new("v1").unwrap();
    let snapshot = plugin.create_snapshot(&volume, "", &tags("r")).await.unwrap();
    let error = plugin.upload_snapshot(&snapshot).await.unwrap_err();
    assert_eq!(error.class(), Class::Unimplemented, "{error}");
    let error = plugin.progress(&snapshot).await.unwrap_err();
    assert_eq!(error.class(), Class::Unimplemented, "{error}");
    plugin.cancel(&snapshot).await.unwrap();
}

async fn a_snapshotter_of_version_2_creates_uploads_and_restores(set: Set) {
    let fixture = Fixture::start(set).await;
    let provider = "fixture.bowline.io/vs-v2";
    let config = fixture.config(&[("create-ms", "2000"), ("upload-ms", "100")]);
    let plugin = fixture.host.volume_snapshotter(provider, config).await;
    let plugin = plugin.unwrap().expect("it is listed");

    write(&fixture.root().join("volumes/v2/file"), "0123456789");
    let volume = bowline_plugin::VolumeId::new("v2").unwrap();
    let snapshot = plugin.create_snapshot(&volume, "z", &tags("r2")).await.unwrap();
    let progress = plugin.progress(&snapshot).await.unwrap();
    assert_eq!((progress.state, progress.description.as_str()), (State::Running, "creating"));
    assert_eq!((progress.total, progress.units.as_str()), (10, "Bytes"));
    loop {
        let progress = plugin.progress(&snapshot).await.unwrap();
        if progress.state != State::Running {
            assert_eq!((progress.state, progress.done), (State::Succeeded, 10));
            assert_eq!(progress.description, "created");
            break;
        }
    }
    let uploaded = fixture.root().join("uploaded").join(snapshot.as_str());
    assert!(!uploaded.exists());
    plugin.upload_snapshot(&snapshot).await.unwrap();
    assert!(uploaded.exists());
    // Once more, as after a restart: it is there already.
    plugin.upload_snapshot(&snapshot).await.unwrap();
    let progress = plugin.progress(&snapshot).await.unwrap();
    assert_eq!((progress.state, progress.description.as_str()), (State::Succeeded, "uploaded"));
    let unknown = bowline_plugin::SnapshotId::new("none").unwrap();
    let error = plugin.progress(&unknown).await.unwrap_err();
    assert_eq!(error.class(), Class::Permanent, "{error}");
    plugin.cancel(&unknown).await.unwrap();

    let plain = fixture.host.volume_snapshotter(provider, fixture.config(&[])).await;
    exercise_snapshot_lifecycle(&fixture, plain.unwrap().unwrap().as_ref()).await;
}

async fn an_upload_can_be_cancelled(set: Set) {
    let fixture = Fixture::start(set).await;
    let config = fixture.config(&[("upload-ms", "600000")]);
    let plugin = fixture.host.volume_snapshotter("fixture.bowline.io/vs-v2", config).await;
    let plugin = plugin.unwrap().expect("it is listed");
    write(&fixture.root().join("volumes/v/file"), "data");
    let volume = bowline_plugin::VolumeId::new("v").unwrap();
    let snapshot = plugin.create_snapshot(&volume, "", &tags("c")).await.unwrap();
    let upload = plugin.upload_snapshot(&snapshot);
    let cancel = async {
        // The upload may not have begun yet when we ask.
        while plugin.progress(&snapshot).await.unwrap().description != "uploading" {}
        plugin.cancel(&snapshot).await.unwrap();
    };
    let (uploaded, ()) = tokio::join!(upload, cancel);
    assert!(uploaded.unwrap_err().message().contains("canceled"));
    let progress = plugin.progress(&snapshot).await.unwrap();
    assert_eq!(progress.state, State::Failed("canceled".into()));
    assert!(!fixture.root().join("uploaded").join(snapshot.as_str()).exists());
}

async fn the_same_request_gives_the_same_snapshot(set: Set) {
    let fixture = Fixture::start(set).await;
    let config = fixture.config(&[]);
    let plugin = fixture.host.volume_snapshotter("fixture.bowline.io/vs-v2", config).await;
    let plugin = plugin.unwrap().expect("it is listed");
    write(&fixture.root().join("volumes/v/file"), "data");
    let volume = bowline_plugin::VolumeId::new("v").unwrap();
    let first = plugin.create_snapshot(&volume, "", &tags("same")).await.unwrap();
    assert_eq!(plugin.create_snapshot(&volume, "", &tags("same")).await.unwrap(), first);
    assert_ne!(plugin.create_snapshot(&volume, "", &tags("other")).await.unwrap(), first);
}

fn tags(request: &str) -> std::collections::BTreeMap<String, String> {
    [("bowline.io/request-id".to_owned(), request.to_owned())].into()
}

/// Common behaviour of both versions of a snapshotter.
async fn exercise_snapshot_lifecycle(
    fixture: &Fixture,
    plugin: &dyn bowline_plugin::VolumeSnapshotter,
) {
    use bowline_plugin::{Item, VolumeId, VolumeInfo};
    let pv = |driver: &str| {
        let csi = json!({"driver": driver, "volumeHandle": "vol-fast"});
        Item::from_object(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": "pv"}, "spec": {"csi": csi},
        }))
        .unwrap()
    };
    assert_eq!(plugin.get_volume_id(&pv("other.io")).await.unwrap(), None);
    let volume = plugin.get_volume_id(&pv("fixture.bowline.io")).await.unwrap().unwrap();
    assert_eq!(volume.as_str(), "vol-fast");

    let error = plugin.get_volume_info(&volume, "z").await.unwrap_err();
    assert_eq!(error.message(), "volume vol-fast not found");
    write(&fixture.root().join("volumes/vol-fast/a/file"), "precious");
    let info = plugin.get_volume_info(&volume, "z").await.unwrap();
    assert_eq!(info, VolumeInfo { volume_type: "fixture".into(), iops: Some(100) });

    let snapshot = plugin.create_snapshot(&volume, "z", &tags("life")).await.unwrap();
    write(&fixture.root().join("volumes/vol-fast/a/file"), "changed since");
    let restored = plugin.create_volume_from_snapshot(&snapshot, &info, "z").await.unwrap();
    let file = fixture.root().join("volumes").join(restored.as_str()).join("a/file");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "precious");
    let plain = plugin.get_volume_info(&restored, "z").await.unwrap();
    assert_eq!(plain.iops, None);

    let moved = plugin.set_volume_id(&pv("fixture.bowline.io"), &restored).await.unwrap();
    assert_eq!(plugin.get_volume_id(&moved).await.unwrap(), Some(restored));
    plugin.delete_snapshot(&snapshot).await.unwrap();
    plugin.delete_snapshot(&snapshot).await.unwrap();
    let error = plugin.create_volume_from_snapshot(&snapshot, &info, "z").await.unwrap_err();
    assert!(error.message().contains("not found"), "{error}");
    let missing = VolumeId::new("missing").unwrap();
    let error = plugin.create_snapshot(&missing, "z", &tags("m")).await.unwrap_err();
    assert_eq!(error.message(), "volume missing not found");
}
