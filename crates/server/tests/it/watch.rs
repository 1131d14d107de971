//! The watch that all controllers use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_server::watch::{Requeue, Watch};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::bed::{World, eventually};

const LIMIT: Duration = Duration::from_mins(1);

#[derive(Debug, thiserror::Error)]
#[error("for this test")]
struct Failed;

/// Record of the work on objects.
#[derive(Default)]
struct ReconcileLog {
    calls: HashMap<String, usize>,
    at_once: HashMap<String, usize>,
    most_at_once: usize,
    most_of_one: usize,
}

impl ReconcileLog {
    fn begin(&mut self, name: &str) -> usize {
        let of_one = self.at_once.entry(name.to_owned()).or_default();
        *of_one += 1;
        self.most_of_one = self.most_of_one.max(*of_one);
        self.most_at_once = self.most_at_once.max(self.at_once.values().sum());
        let calls = self.calls.entry(name.to_owned()).or_default();
        *calls += 1;
        *calls
    }

    fn end(&mut self, name: &str) {
        *self.at_once.get_mut(name).unwrap() -= 1;
    }
}

/// Only those of the test: the cluster puts some of its own into each namespace.
fn watch_test_config_maps(world: &World) -> Watch<ConfigMap> {
    let api: Api<ConfigMap> = world.api();
    Watch::with_config(api, watcher::Config::default().labels("test"))
}

async fn create(world: &World, name: &str) {
    let map = json!({"metadata": {"name": name, "labels": {"test": ""}}});
    world.create::<ConfigMap>(map).await;
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, what).await.expect("in time")
}

#[tokio::test]
async fn each_object_has_one_reconciler_and_concurrency_is_limited() {
    let world = World::without_server("watch-bounds").await;
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        create(&world, name).await;
    }
    let log = Arc::new(Mutex::new(ReconcileLog::default()));
    let (open, gate) = watch::channel(false);
    let stop = CancellationToken::new();
    let watch = watch_test_config_maps(&world).concurrency(2);
    let store = watch.store();
    let work = {
        let log = Arc::clone(&log);
        move |map: Arc<ConfigMap>| {
            let (log, mut gate) = (Arc::clone(&log), gate.clone());
            async move {
                let name = map.name_any();
                let call = log.lock().begin(&name);
                gate.wait_for(|is_open| *is_open).await.unwrap();
                log.lock().end(&name);
                // Each object fails once, and is worked on once more after that.
                match call {
                    1 => Err(Failed),
                    2 => Ok(Requeue::After(Duration::from_millis(1))),
                    _ => Ok(Requeue::OnChange),
                }
            }
        }
    };
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { watch.run(&stop, work).await }
    });
    let calls = |log: &ReconcileLog| log.calls.values().sum::<usize>();
    eventually("two are worked on", async || calls(&log.lock()) >= 2).await;
    // Changes while they are worked on.
    for name in names {
        world.patch::<ConfigMap>(name, json!({"data": {"changed": "yes"}})).await;
    }
    assert_eq!(calls(&log.lock()), 2, "the others wait");
    open.send(true).unwrap();
    eventually("each was worked on three times", async || {
        let log = log.lock();
        names.iter().all(|name| log.calls.get(*name).is_some_and(|calls| *calls >= 3))
    })
    .await;
    assert_eq!(store.len(), names.len());
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
    let log = log.lock();
    assert_eq!((log.most_of_one, log.most_at_once), (1, 2));
}

#[tokio::test]
async fn all_objects_are_resynced_periodically() {
    let world = World::without_server("watch-resync").await;
    create(&world, "a").await;
    let (count, mut counted) = watch::channel(0);
    let stop = CancellationToken::new();
    let work = move |_: Arc<ConfigMap>| {
        count.send_modify(|count| *count += 1);
        async { Ok::<_, Failed>(Requeue::OnChange) }
    };
    let watch = watch_test_config_maps(&world).resync(Duration::from_millis(100));
    let running = watch.run(&stop, work);
    tokio::select! {
        ended = running => panic!("{ended:?}"),
        counted = in_time(counted.wait_for(|count| *count >= 3)) => drop(counted.unwrap()),
    }
}

#[tokio::test]
async fn stop_finishes_running_reconciles_and_starts_none() {
    let world = World::without_server("watch-stop").await;
    create(&world, "a").await;
    let (started, mut has_started) = watch::channel(0);
    let stop = CancellationToken::new();
    let ended = Arc::new(Mutex::new(0));
    let work = {
        let (stop, ended) = (stop.clone(), Arc::clone(&ended));
        move |_: Arc<ConfigMap>| {
            started.send_modify(|count| *count += 1);
            let (stop, ended) = (stop.clone(), Arc::clone(&ended));
            async move {
                stop.cancelled().await;
                tokio::task::yield_now().await;
                *ended.lock() += 1;
                Ok::<_, Failed>(Requeue::After(Duration::ZERO))
            }
        }
    };
    let watch = watch_test_config_maps(&world);
    let asked = async {
        has_started.wait_for(|count| *count == 1).await.unwrap();
        stop.cancel();
    };
    let (outcome, ()) = in_time(async { tokio::join!(watch.run(&stop, work), asked) }).await;
    outcome.unwrap();
    assert_eq!((*has_started.borrow(), *ended.lock()), (1, 1));
}

#[tokio::test]
async fn watch_stopped_before_its_first_list_ends() {
    let world = World::without_server("watch-early").await;
    create(&world, "a").await;
    let stop = CancellationToken::new();
    stop.cancel();
    let work = |_: Arc<ConfigMap>| async { Ok::<_, Failed>(Requeue::OnChange) };
    in_time(watch_test_config_maps(&world).run(&stop, work)).await.unwrap();
}
