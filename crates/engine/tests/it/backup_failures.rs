//! Backups with failures: of lists, API groups, the bucket, hooks and plugins.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_engine::backup::{FatalError, finalize};
use bowline_engine::cluster::{Error, ExecOutcome, Fake};
use bowline_engine::operation::record::RunRef;
use bowline_plugin::Code;
use bowline_store::backend::Memory;
use bowline_store::backend::memory::StoreCall;
use bowline_store::file::Results;
use serde_json::json;

use crate::support::backup::{
    commands, fn_action, run_and_read, run_and_read_spec, run_of, store_in,
};
use crate::support::objects::{claim, config_map, namespace, object, pod, with_hooks};

fn unavailable() -> Error {
    Error::Refused { code: 503, reason: "ServiceUnavailable".into(), message: "not now".into() }
}

#[tokio::test]
async fn unlistable_kind_is_reported_and_the_rest_is_stored() {
    let cluster = Fake::usual()
        .with(namespace("shop"))
        .with(config_map("shop", "a"))
        .with(config_map("shop", "b"))
        .with(object("v1", "Secret", "shop", "s"));
    cluster.fail_list("configmaps", 1, unavailable);
    let run = run_and_read_spec(cluster, json!({})).await;
    // Items before the break are kept.
    assert_eq!(run.stored(), ["configmaps/shop/a", "namespaces/shop", "secrets/shop/s"]);
    let errors = run.errors();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("configmaps cannot be listed") && errors[0].contains("not now"));
}

#[tokio::test]
async fn failed_api_group_is_reported() {
    let cluster = Fake::usual().with(namespace("shop")).with_failed_group("shop.io/v1: gone");
    let run = run_and_read_spec(cluster, json!({})).await;
    assert!(run.errors()[0].contains("shop.io/v1"));
}

#[tokio::test]
async fn without_namespaces_there_is_no_backup() {
    let cluster = Arc::new(Fake::usual().with(namespace("shop")));
    let store = store_in(Memory::with_bucket("b"));
    let run = run_of(&cluster, json!({}), store).await;
    cluster.fail_list("namespaces", 0, unavailable);
    let run = run_and_read(run).await;
    assert!(
        matches!(run.outcome.archive, Err(FatalError::Namespaces(_))),
        "{:?}",
        run.outcome.archive
    );
    assert!(run.archive.is_empty());
}

#[tokio::test]
async fn unwritable_bucket_fails_the_backup() {
    let cluster = Arc::new(Fake::usual().with(namespace("shop")).with(config_map("shop", "a")));
    let full = Memory::with_bucket("b").failing(|call, _| {
        (call == StoreCall::Put)
            .then(|| bowline_plugin::Error::new(Code::ResourceExhausted, "full"))
    });
    let run = run_and_read(run_of(&cluster, json!({}), store_in(full)).await).await;
    let fatal = run.outcome.archive.as_ref().unwrap_err().error_chain();
    assert!(fatal.contains("cannot upload the archive") && fatal.contains("full"), "{fatal}");
    let status = finalize::status(&bowline_api::Backup::default(), &run.outcome);
    assert_eq!(status.phase, Some(bowline_api::BackupPhase::Failed));
    assert_eq!((status.failure_reason, status.errors), (fatal, 1));
}

#[tokio::test]
async fn existing_backup_is_not_overwritten() {
    let cluster = Arc::new(Fake::usual().with(namespace("shop")));
    let memory = Memory::with_bucket("b");
    let store = store_in(memory.clone());
    let run = run_of(&cluster, json!({}), store.clone()).await;
    let mut other = (*run.request.backup).clone();
    other.metadata.uid = Some("3f9f3c1e-0000-4000-8000-000000000002".into());
    other.status.get_or_insert_default().phase = Some(bowline_api::BackupPhase::Completed);
    store.commit(&other).await.unwrap();
    let run = run_and_read(run).await;
    assert!(matches!(run.outcome.archive, Err(FatalError::Exists)));
    assert!(run.archive.is_empty());
}

#[tokio::test]
async fn unknown_name_availability_at_the_end_does_not_fail_the_backup() {
    let cluster = Arc::new(Fake::usual().with(namespace("shop")).with(config_map("shop", "a")));
    let checks = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&checks);
    let memory = Memory::with_bucket("b").failing(move |call, _| {
        let is_later = call == StoreCall::Exists && count.fetch_add(1, Ordering::Relaxed) > 0;
        is_later.then(|| bowline_plugin::Error::new(Code::PermissionDenied, "not any more"))
    });
    let run = run_and_read(run_of(&cluster, json!({}), store_in(memory)).await).await;
    assert!(run.outcome.archive.is_ok(), "{:?}", run.outcome.archive);
    assert_eq!(run.stored(), ["configmaps/shop/a", "namespaces/shop"]);
    assert!(checks.load(Ordering::Relaxed) >= 2, "nobody looked at the end");
    // At the beginning it costs nothing.
    let away = Memory::with_bucket("b").failing(|call, _| {
        let is_look = call == StoreCall::Exists;
        is_look.then(|| bowline_plugin::Error::new(Code::PermissionDenied, "never"))
    });
    let run = run_and_read(run_of(&cluster, json!({}), store_in(away)).await).await;
    assert!(
        matches!(run.outcome.archive, Err(FatalError::ReadBucket(_))),
        "{:?}",
        run.outcome.archive
    );
}

#[tokio::test]
async fn a_backup_that_is_stopped_leaves_no_archive_and_no_frozen_pod() {
    let cluster = Arc::new(
        Fake::usual()
            .with(namespace("shop"))
            .with(with_hooks(pod("shop", "db", &[]), "freeze", "thaw"))
            .with(config_map("shop", "a")),
    );
    let store = store_in(Memory::with_bucket("b"));
    let mut run = run_of(&cluster, json!({}), store).await;
    // The run is stopped while the pod is frozen.
    let stop = run.stop.clone();
    let stopping = Fake::usual()
        .with(namespace("shop"))
        .with(with_hooks(pod("shop", "db", &[]), "freeze", "thaw"))
        .with_exec_script(move |_| {
            stop.cancel();
            Ok(ExecOutcome { output: String::new(), failure: None })
        });
    let stopping = Arc::new(stopping);
    run.cluster = Arc::clone(&stopping) as _;
    let run = run_and_read(run).await;
    assert!(matches!(run.outcome.archive, Err(FatalError::Stopped)), "{:?}", run.outcome.archive);
    assert!(run.archive.is_empty());
    let commands: Vec<String> =
        stopping.execs().into_iter().map(|exec| exec.command[0].clone()).collect();
    assert_eq!(commands, ["freeze", "thaw"]);
}

#[tokio::test]
async fn pod_deleted_during_its_hook_is_reported() {
    let gone = || Error::Refused {
        code: 404,
        reason: "NotFound".into(),
        message: "pods \"db\" not found".into(),
    };
    let cluster = Fake::usual()
        .with(namespace("shop"))
        .with(with_hooks(pod("shop", "db", &[]), "freeze", "thaw"))
        .with_exec_script(move |_| Err(gone()));
    let run = run_and_read_spec(cluster, json!({})).await;
    assert_eq!(run.stored(), ["namespaces/shop"], "a pod whose freeze failed is not stored");
    let errors = run.errors();
    assert!(errors.iter().any(|error| error.contains("pods/db") && error.contains("not found")));
    assert_eq!(run.outcome.hooks, (1, 1), "there is nothing to thaw");
}

#[tokio::test]
async fn results_say_why_a_backup_failed() {
    let cluster = Arc::new(Fake::usual().with(namespace("shop")));
    let puts = AtomicUsize::new(0);
    let memory = Memory::with_bucket("b").failing(move |call, _| {
        // The archive is the first object.
        (call == StoreCall::Put && puts.fetch_add(1, Ordering::Relaxed) == 0)
            .then(|| bowline_plugin::Error::new(Code::PermissionDenied, "read only"))
    });
    let store = store_in(memory);
    let run = run_of(&cluster, json!({}), store.clone()).await;
    let name = run.request.name.clone();
    let run = run_and_read(run).await;
    let run_ref = RunRef { name: name.as_str(), uid: "1" };
    finalize::write(&store, &name, &run.outcome, run_ref, bytes::Bytes::new()).await.unwrap();
    let results: Results = store.get(&name).await.unwrap().unwrap();
    assert!(results.errors.velero[0].contains("read only"), "{results:?}");
    assert!(!store.exists(&name).await.unwrap(), "no backup can be seen");
}

#[tokio::test]
async fn a_pod_whose_hooks_cannot_be_read_is_not_stored() {
    let mut broken = with_hooks(pod("shop", "db", &["data"]), "freeze", "thaw");
    broken["metadata"]["annotations"]["pre.hook.backup.velero.io/command"] = "[freeze".into();
    for others in [&["web"][..], &[]] {
        let mut cluster = Fake::usual().with(namespace("shop")).with(broken.clone());
        for other in others {
            // The pod shares the claim, and is frozen.
            cluster = cluster.with(with_hooks(pod("shop", other, &["data"]), "freeze", "thaw"));
        }
        let cluster = cluster.with(claim("shop", "data", "pv-1")).with(object(
            "v1",
            "PersistentVolume",
            "",
            "pv-1",
        ));
        let run = run_and_read_spec(cluster, json!({"snapshotVolumes": false})).await;
        let pods = run.stored().into_iter().filter(|path| path.starts_with("pods/"));
        assert_eq!(pods.count(), others.len(), "{:?}", run.stored());
        let errors = run.errors();
        assert_eq!(errors.len(), 1, "{errors:?}");
        for word in ["pods/db", "pre.hook.backup.velero.io/command", "not backed up"] {
            assert!(errors[0].contains(word), "no {word} in {errors:?}");
        }
    }
}

#[tokio::test]
async fn a_backup_that_is_stopped_freezes_no_other_pod() {
    let cluster = || {
        let with = |cluster: Fake, name| {
            cluster.with(with_hooks(pod("shop", name, &["data"]), "freeze", "thaw"))
        };
        let cluster = ["a", "b"].into_iter().fold(Fake::usual().with(namespace("shop")), with);
        cluster.with(claim("shop", "data", "pv-1")).with(object(
            "v1",
            "PersistentVolume",
            "",
            "pv-1",
        ))
    };
    let store = store_in(Memory::with_bucket("b"));
    let mut run = run_of(&Arc::new(cluster()), json!({}), store).await;
    let stop = run.stop.clone();
    let stopping = Arc::new(cluster().with_exec_script(move |_| {
        stop.cancel();
        Ok(ExecOutcome { output: String::new(), failure: None })
    }));
    run.cluster = Arc::clone(&stopping) as _;
    let run = run_and_read(run).await;
    assert!(matches!(run.outcome.archive, Err(FatalError::Stopped)), "{:?}", run.outcome.archive);
    assert_eq!(commands(&stopping), ["freeze a", "thaw a"]);
    let status = finalize::status(&bowline_api::Backup::default(), &run.outcome);
    assert_eq!(status.progress.unwrap().items_backed_up, 0);
}

#[tokio::test]
async fn panic_leaves_no_frozen_pod() {
    let cluster = Arc::new(
        Fake::usual()
            .with(namespace("shop"))
            .with(with_hooks(pod("shop", "a", &["data"]), "freeze", "thaw"))
            .with(with_hooks(pod("shop", "b", &["data"]), "freeze", "thaw"))
            .with(claim("shop", "data", "pv-1"))
            .with(object("v1", "PersistentVolume", "", "pv-1"))
            .with(config_map("shop", "m")),
    );
    let mut run = run_of(&cluster, json!({}), store_in(Memory::with_bucket("b"))).await;
    run.backup_item_actions = vec![fn_action("pods", |pod, _| {
        assert_eq!(pod["metadata"]["name"], "nothing", "this is the defect");
        Ok(())
    })];
    let run = run_and_read(run).await;
    assert_eq!(commands(&cluster), ["freeze a", "freeze b", "thaw a", "thaw b"]);
    // The claim had come in with the first pod before the action saw that.
    assert_eq!(
        run.stored(),
        [
            "configmaps/shop/m",
            "namespaces/shop",
            "persistentvolumeclaims/shop/data",
            "persistentvolumes/pv-1",
        ]
    );
    let errors = run.errors();
    for pod in ["pods/a", "pods/b"] {
        assert!(errors.iter().any(|error| error.contains(pod)), "no {pod} in {errors:?}");
    }
}

#[tokio::test]
async fn item_that_crashes_a_plugin_fails_alone() {
    let cluster = Arc::new(
        Fake::usual()
            .with(namespace("shop"))
            .with(config_map("shop", "bystander"))
            .with(config_map("shop", "killer"))
            .with(config_map("shop", "slow")),
    );
    let mut run = run_of(&cluster, json!({}), store_in(Memory::with_bucket("b"))).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    run.backup_item_actions = vec![fn_action("configmaps", move |map, _| {
        let calls = counted.fetch_add(1, Ordering::Relaxed);
        match map["metadata"]["name"].as_str() {
            Some("slow") => Err(bowline_plugin::Error::new(Code::DeadlineExceeded, "too slow")),
            // All calls are in flight when the plugin dies.
            Some("bystander") if calls >= 3 => Ok(()),
            _ => Err(bowline_plugin::Error::new(Code::Unavailable, "the plugin died")),
        }
    })];
    let run = run_and_read(run).await;
    assert_eq!(run.stored(), ["configmaps/shop/bystander", "namespaces/shop"]);
    assert_eq!(calls.load(Ordering::Relaxed), 5, "two of them twice");
    let errors = run.errors();
    assert_eq!(errors.len(), 2, "{errors:?}");
    let warnings = run.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let warned = |name: &str| {
        let words = [name, "test.io/does-configmaps", "may be duplicates"];
        warnings.iter().any(|warning| words.iter().all(|word| warning.contains(word)))
    };
    assert!(warned("configmaps/shop/bystander") && warned("killer"), "{warnings:?}");
    let status = finalize::status(&bowline_api::Backup::default(), &run.outcome);
    let progress = status.progress.unwrap();
    assert_eq!((progress.total_items, progress.items_backed_up), (4, 2));
}
