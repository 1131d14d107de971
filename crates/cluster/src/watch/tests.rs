use super::*;
use crate::Fake;
use serde_json::json;

fn map(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": "shop", "name": name},
    })
}

fn fake(names: &[&str]) -> Arc<Fake> {
    let fake = Fake::usual();
    for name in names {
        fake.put(map(name));
    }
    Arc::new(fake)
}

fn maps(fake: &Fake) -> Arc<Resource> {
    Arc::clone(fake.resources().core("configmaps").unwrap())
}

/// Reflector of all ConfigMaps, with its task.
fn follow_maps(fake: &Arc<Fake>) -> (Arc<Reflector<WatchedObjects>>, JoinSet<()>) {
    let sources = [(maps(fake), Query::default())];
    let reflector = Arc::new(Reflector::new(sources, WatchedObjects::default()));
    let task = reflector.spawn(&(Arc::clone(fake) as Arc<dyn Cluster>));
    (reflector, task)
}

fn in_a_minute() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

/// Waits until exactly these ConfigMaps are known.
async fn wait_for_names(reflector: &Reflector<WatchedObjects>, expected: &[&str]) {
    let has_names = |objects: &WatchedObjects| {
        let has_all = expected.iter().all(|name| objects.get("shop", name).is_some());
        (has_all && objects.iter().count() == expected.len()).then_some(())
    };
    let found = reflector.wait_for(in_a_minute(), has_names).await;
    assert!(
        found.is_some(),
        "{expected:?}: {:?}",
        reflector.read(|objects| format!("{objects:?}"))
    );
}

#[tokio::test(start_paused = true)]
async fn state_follows_the_objects() {
    let fake = fake(&["a"]);
    let (reflector, _task) = follow_maps(&fake);
    reflector.wait_until_open(in_a_minute()).await;
    wait_for_names(&reflector, &["a"]).await;
    let mut changes = reflector.subscribe();
    fake.put(map("b"));
    changes.changed().await;
    wait_for_names(&reflector, &["a", "b"]).await;
    fake.remove("configmaps", "shop", "a");
    wait_for_names(&reflector, &["b"]).await;
    assert!(reflector.failure().is_none());
}

#[tokio::test(start_paused = true)]
async fn watch_that_ends_is_opened_again_and_misses_no_deletion() {
    let fake = fake(&["a", "b"]);
    let (reflector, _task) = follow_maps(&fake);
    wait_for_names(&reflector, &["a", "b"]).await;
    fake.end_watches();
    // These events are lost: the watch is closed.
    fake.remove("configmaps", "shop", "a");
    fake.put(map("c"));
    wait_for_names(&reflector, &["b", "c"]).await;
    assert!(reflector.failure().is_none(), "an end is no failure");
}

#[tokio::test(start_paused = true)]
async fn watch_restarts_after_its_resource_version_has_expired() {
    let fake = fake(&["a"]);
    let (reflector, _task) = follow_maps(&fake);
    wait_for_names(&reflector, &["a"]).await;
    let mut changes = reflector.subscribe();
    fake.fail_watches(|| Error::Expired { next: None });
    changes.changed().await;
    let failure = reflector.failure().unwrap();
    assert!(matches!(*failure.error, Error::Expired { .. }), "{failure}");
    assert!(failure.to_string().starts_with("configmaps cannot be watched: "), "{failure}");
    wait_for_names(&reflector, &["a"]).await;
    fake.put(map("b"));
    wait_for_names(&reflector, &["a", "b"]).await;
    assert!(reflector.failure().is_none(), "it is over");
}

#[tokio::test(start_paused = true)]
async fn objects_that_cannot_be_listed_are_a_failure_and_are_tried_again_with_a_backoff() {
    let fake = fake(&["a"]);
    fake.fail_list("configmaps", 0, || Error::Unreachable("no route".to_owned()));
    let sources = [(maps(&fake), Query::default())];
    let reflector = Arc::new(Reflector::new(sources, FailureCount::default()));
    let _task = reflector.spawn(&(Arc::clone(&fake) as Arc<dyn Cluster>));
    reflector.wait_until_open(in_a_minute()).await;
    let twice = |count: &FailureCount| (count.0 >= 2).then_some(());
    assert!(reflector.wait_for(in_a_minute(), twice).await.is_some());
    assert!(reflector.failure().unwrap().to_string().ends_with("no route"));

    let (cluster, resource) = (&*fake, maps(&fake));
    let waited =
        wait_until(cluster, &resource, Query::default(), in_a_minute(), |_| None::<()>).await;
    assert!(matches!(waited, Err(Error::Unreachable(_))), "{waited:?}");
}

/// Number of failed watches.
#[derive(Debug, Default)]
struct FailureCount(usize);

impl ReflectedState for FailureCount {
    fn apply(&mut self, _event: WatchEvent) {}

    fn handle_failure(&mut self) {
        self.0 += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_with_a_value_a_timeout_or_the_watch() {
    let fake = fake(&["a"]);
    let resource = maps(&fake);
    let wait = |name: &'static str, deadline| {
        wait_until(&*fake, &resource, Query::default(), deadline, move |objects| {
            objects.get("shop", name).map(|_| ())
        })
    };
    // Existing objects are found after any delay.
    let found = wait("a", Instant::now()).await;
    assert!(matches!(found, Ok(WaitOutcome::Found(()))), "{found:?}");
    let started_at = Instant::now();
    let missing = wait("b", in_a_minute()).await;
    assert!(matches!(missing, Ok(WaitOutcome::TimedOut)), "{missing:?}");
    assert_eq!(started_at.elapsed(), Duration::from_mins(1));
    let ended = async {
        sleep(Duration::from_secs(1)).await;
        fake.end_watches();
    };
    let (waited, ()) = tokio::join!(wait("b", in_a_minute()), ended);
    assert!(matches!(waited, Err(Error::Unreachable(_))), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn several_sources_share_a_state_and_one_failure_is_enough() {
    let fake = fake(&["a"]);
    let secrets = Arc::clone(fake.resources().core("secrets").unwrap());
    fake.fail_list("secrets", 0, || Error::Unreachable("no route".to_owned()));
    let sources = [(maps(&fake), Query::default()), (secrets, Query::default())];
    let reflector = Arc::new(Reflector::new(sources, WatchedObjects::default()));
    let running = reflector.run(&*fake);
    let checked = async {
        reflector.wait_until_open(in_a_minute()).await;
        while reflector.failure().is_none() {
            reflector.subscribe().changed().await;
        }
        reflector.failure().unwrap().resource.to_string()
    };
    let failed = tokio::select! {
        () = running => panic!("it does not end"),
        failed = checked => failed,
    };
    assert_eq!(failed, "secrets");
}
