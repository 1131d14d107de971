//! The helper that all controllers stand on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_server::watch::{Next, Watch};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::bed::World;

const LIMIT: Duration = Duration::from_mins(1);

#[derive(Debug, thiserror::Error)]
#[error("for this test")]
struct Failed;

/// What the work on objects looked like.
#[derive(Default)]
struct Seen {
    calls: HashMap<String, usize>,
    at_once: HashMap<String, usize>,
    most_at_once: usize,
    most_of_one: usize,
}

impl Seen {
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
fn ours(world: &World) -> Watch<ConfigMap> {
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
async fn an_object_is_worked_on_by_one_at_a_time_and_few_are_at_once() {
    let world = World::idle("watch-bounds").await;
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        create(&world, name).await;
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (open, gate) = watch::channel(false);
    let stop = CancellationToken::new();
    let watch = ours(&world).concurrency(2);
    let store = watch.store();
    let work = {
        let seen = Arc::clone(&seen);
        move |map: Arc<ConfigMap>| {
            let (seen, mut gate) = (Arc::clone(&seen), gate.clone());
            async move {
                let name = map.name_any();
                let call = seen.lock().unwrap().begin(&name);
                gate.wait_for(|is_open| *is_open).await.unwrap();
                seen.lock().unwrap().end(&name);
                // Each object fails once, and is worked on once more after that.
                match call {
                    1 => Err(Failed),
                    2 => Ok(Next::Again(Duration::from_millis(1))),
                    _ => Ok(Next::Done),
                }
            }
        }
    };
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { watch.run(&stop, work).await }
    });
    let calls = |seen: &Seen| seen.calls.values().sum::<usize>();
    in_time(async {
        while calls(&seen.lock().unwrap()) < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // Changes while they are worked on.
    for name in names {
        world.patch::<ConfigMap>(name, json!({"data": {"changed": "yes"}})).await;
    }
    assert_eq!(calls(&seen.lock().unwrap()), 2, "the others wait");
    open.send(true).unwrap();
    in_time(async {
        let all_done = || {
            let seen = seen.lock().unwrap();
            names.iter().all(|name| seen.calls.get(*name).is_some_and(|calls| *calls >= 3))
        };
        while !all_done() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(store.len(), names.len());
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!((seen.most_of_one, seen.most_at_once), (1, 2));
}

#[tokio::test]
async fn all_objects_are_worked_on_again_now_and_then() {
    let world = World::idle("watch-resync").await;
    create(&world, "a").await;
    let (count, mut counted) = watch::channel(0);
    let stop = CancellationToken::new();
    let work = move |_: Arc<ConfigMap>| {
        count.send_modify(|count| *count += 1);
        async { Ok::<_, Failed>(Next::Done) }
    };
    let watch = ours(&world).resync(Duration::from_millis(100));
    let running = watch.run(&stop, work);
    tokio::select! {
        ended = running => panic!("{ended:?}"),
        counted = in_time(counted.wait_for(|count| *count >= 3)) => drop(counted.unwrap()),
    }
}

#[tokio::test]
async fn work_under_way_is_finished_when_asked_to_stop_and_none_is_begun() {
    let world = World::idle("watch-stop").await;
    create(&world, "a").await;
    let (begun, mut has_begun) = watch::channel(0);
    let stop = CancellationToken::new();
    let ended = Arc::new(Mutex::new(0));
    let work = {
        let (stop, ended) = (stop.clone(), Arc::clone(&ended));
        move |_: Arc<ConfigMap>| {
            begun.send_modify(|count| *count += 1);
            let (stop, ended) = (stop.clone(), Arc::clone(&ended));
            async move {
                stop.cancelled().await;
                tokio::task::yield_now().await;
                *ended.lock().unwrap() += 1;
                Ok::<_, Failed>(Next::Again(Duration::ZERO))
            }
        }
    };
    let watch = ours(&world);
    let asked = async {
        has_begun.wait_for(|count| *count == 1).await.unwrap();
        stop.cancel();
    };
    let (outcome, ()) = in_time(async { tokio::join!(watch.run(&stop, work), asked) }).await;
    outcome.unwrap();
    assert_eq!((*has_begun.borrow(), *ended.lock().unwrap()), (1, 1));
}

#[tokio::test]
async fn a_watch_that_is_stopped_before_it_has_begun_ends() {
    let world = World::idle("watch-early").await;
    create(&world, "a").await;
    let stop = CancellationToken::new();
    stop.cancel();
    let work = |_: Arc<ConfigMap>| async { Ok::<_, Failed>(Next::Done) };
    in_time(ours(&world).run(&stop, work)).await.unwrap();
}
