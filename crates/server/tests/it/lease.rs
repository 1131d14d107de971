//! One active server: the Lease, as several servers see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bowline_server::fence::Fence;
use bowline_server::lease::{Error, LeaseGuard, LeaseTimings, NAME};
use http::{HeaderValue, Request};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bed::World;
use crate::fault_injection;

const LIMIT: Duration = Duration::from_mins(1);
/// Short, for tests that wait for their end.
const SHORT: LeaseTimings = LeaseTimings {
    duration: Duration::from_secs(4),
    renew_interval: Duration::from_millis(200),
    renew_deadline: Duration::from_secs(3),
};
/// Far longer than any test waits: an acquisition within them is immediate.
const LONG: LeaseTimings = LeaseTimings {
    duration: Duration::from_mins(10),
    renew_interval: Duration::from_millis(200),
    renew_deadline: Duration::from_mins(5),
};

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, what).await.expect("in time")
}

/// Becomes the holder, with a client of its own choice.
async fn acquire_with(
    client: Client,
    world: &World,
    identity: &str,
    terms: LeaseTimings,
) -> LeaseGuard {
    let never = CancellationToken::new();
    let fence = Fence::default();
    let guard = LeaseGuard::acquire(client, &world.namespace, identity, terms, &fence, &never);
    in_time(guard).await.unwrap().expect("nobody asked to stop")
}

async fn acquire(world: &World, identity: &str, terms: LeaseTimings) -> LeaseGuard {
    acquire_with(world.client.clone(), world, identity, terms).await
}

fn spec(lease: &Lease) -> &LeaseSpec {
    lease.spec.as_ref().unwrap()
}

fn holder(lease: &Lease) -> Option<&str> {
    spec(lease).holder_identity.as_deref()
}

fn acquired(lease: &Lease) -> Option<Timestamp> {
    spec(lease).acquire_time.as_ref().map(|time| time.0)
}

fn renewed(lease: &Lease) -> Option<Timestamp> {
    spec(lease).renew_time.as_ref().map(|time| time.0)
}

/// A client between others and the API server. What `filter` does not return is never answered.
fn filtered_client(
    inner: Client,
    filter: impl Fn(Request<Body>) -> Option<Request<Body>> + Clone + Send + 'static,
) -> Client {
    let namespace = inner.default_namespace().to_owned();
    let service = tower::service_fn(move |request| {
        let (inner, request) = (inner.clone(), filter(request));
        async move {
            match request {
                Some(request) => inner.send(request).await,
                None => std::future::pending().await,
            }
        }
    });
    Client::new(service, namespace)
}

#[tokio::test]
async fn one_of_many_candidates_holds_the_lease() {
    let world = World::without_server("lease-contenders").await;
    let stop = CancellationToken::new();
    let mut contenders = JoinSet::new();
    for name in ["a", "b", "c", "d"] {
        let (client, namespace) = (world.client.clone(), world.namespace.clone());
        let stop = stop.clone();
        contenders.spawn(async move {
            let fence = Fence::default();
            (
                name,
                LeaseGuard::acquire(client, &namespace, name, SHORT, &fence, &stop).await.unwrap(),
            )
        });
    }
    let mut first_guard = in_time(contenders.join_next()).await.unwrap().unwrap();
    for transitions in 0..2 {
        let (name, guard) = (first_guard.0, first_guard.1.unwrap());
        let twice = 2 * SHORT.duration;
        let lease = world
            .until(NAME, |lease| {
                let acquired = acquired(lease).unwrap();
                renewed(lease).unwrap() > acquired + twice
            })
            .await;
        assert_eq!(holder(&lease), Some(name));
        assert_eq!(spec(&lease).lease_transitions, Some(transitions));
        assert_eq!(spec(&lease).lease_duration_seconds, Some(4));
        assert!(contenders.try_join_next().is_none(), "a second one has the lease");
        assert!(!guard.lost().is_cancelled());
        guard.release().await;
        first_guard = in_time(contenders.join_next()).await.unwrap().unwrap();
    }
    stop.cancel();
    let (_, last) = in_time(contenders.join_next()).await.unwrap().unwrap();
    assert!(last.is_none(), "cancellation requested");
}

#[tokio::test]
async fn dead_server_is_replaced_only_after_the_lease_duration() {
    let world = World::without_server("lease-death").await;
    let first = acquire(&world, "a", SHORT).await;
    let lost = first.lost().clone();
    let mut last_renewal = None;
    let follows = async {
        let second = acquire(&world, "b", LONG).await;
        assert!(lost.is_cancelled());
        second
    };
    let dies = async {
        // Renewals are under way by then.
        world.until(NAME, |lease| renewed(lease) > acquired(lease)).await;
        drop(first);
        in_time(lost.cancelled()).await;
        // The second server sees the last renewal of the first.
        let first_observed = std::cell::Cell::new(None);
        let lease = world
            .until(NAME, |lease| {
                if holder(lease) == Some("a") {
                    first_observed.set(renewed(lease));
                }
                holder(lease) == Some("b")
            })
            .await;
        last_renewal = first_observed.get();
        lease
    };
    let (second, lease) = tokio::join!(follows, dies);
    let silence = acquired(&lease).unwrap().duration_since(last_renewal.unwrap());
    assert!(silence >= SHORT.duration.try_into().unwrap(), "{silence:?}");
    assert_eq!(spec(&lease).lease_transitions, Some(1));
    assert!(!second.lost().is_cancelled());
}

#[tokio::test]
async fn released_lease_is_acquired_at_once() {
    let world = World::without_server("lease-release").await;
    let first = acquire(&world, "a", LONG).await;
    let lost = first.lost().clone();
    first.release().await;
    assert!(lost.is_cancelled(), "nothing may be done outside after that");
    let lease = world.until(NAME, |_: &Lease| true).await;
    assert_eq!(holder(&lease), None);
    let _second = acquire(&world, "b", LONG).await;
    let lease = world.until(NAME, |_: &Lease| true).await;
    assert_eq!((holder(&lease), spec(&lease).lease_transitions), (Some("b"), Some(1)));
}

#[tokio::test]
async fn restarted_server_reacquires_its_own_lease() {
    let world = World::without_server("lease-restart").await;
    let first = acquire(&world, "a", LONG).await;
    drop(first);
    let second = acquire(&world, "a", LONG).await;
    // If the earlier server is still alive, the earlier server ends.
    let third = acquire(&world, "a", LONG).await;
    in_time(second.lost().cancelled()).await;
    // It can no longer release the Lease that it believes to hold.
    second.release().await;
    let before = world.until(NAME, |_: &Lease| true).await;
    assert_eq!((holder(&before), spec(&before).lease_transitions), (Some("a"), Some(2)));
    world.until(NAME, |lease: &Lease| renewed(lease) > renewed(&before)).await;
    assert!(!third.lost().is_cancelled());
}

#[tokio::test]
async fn guard_is_lost_before_another_server_acquires_the_lease() {
    let world = World::without_server("lease-cut").await;
    for hangs in [true, false] {
        let is_cut = Arc::new(AtomicBool::new(false));
        let client = {
            let is_cut = Arc::clone(&is_cut);
            let is_cut = move || is_cut.load(Ordering::SeqCst);
            if hangs {
                let passes = move |request| (!is_cut()).then_some(request);
                filtered_client(world.client.clone(), passes)
            } else {
                fault_injection::faulty_client(world.client.clone(), move |_, _| is_cut())
            }
        };
        let first = acquire_with(client, &world, "a", SHORT).await;
        let follows = async {
            let second = acquire(&world, "b", LONG).await;
            (second, first.lost().is_cancelled())
        };
        let cut = async {
            world.until(NAME, |lease| renewed(lease) > acquired(lease)).await;
            is_cut.store(true, Ordering::SeqCst);
            let cut = tokio::time::Instant::now();
            in_time(first.lost().cancelled()).await;
            cut.elapsed()
        };
        let ((second, was_lost_before), took) = tokio::join!(follows, cut);
        assert!(was_lost_before, "two servers at once");
        assert!(took < SHORT.duration, "{took:?}");
        // Giving it back fails, and does not hang.
        in_time(first.release()).await;
        second.release().await;
    }
}

#[tokio::test]
async fn lease_survives_a_short_outage() {
    let world = World::without_server("lease-outage").await;
    let is_cut = Arc::new(AtomicBool::new(true));
    let (count, mut refused) = watch::channel(0);
    let client = {
        let is_cut = Arc::clone(&is_cut);
        fault_injection::faulty_client(world.client.clone(), move |_, _| {
            let is_cut = is_cut.load(Ordering::SeqCst);
            count.send_modify(|count| *count += u32::from(is_cut));
            is_cut
        })
    };
    // First an acquisition is refused a few times, then a renewal.
    let (guard, ()) = tokio::join!(acquire_with(client, &world, "a", LONG), async {
        in_time(refused.wait_for(|count| *count >= 2)).await.unwrap();
        is_cut.store(false, Ordering::SeqCst);
    });
    is_cut.store(true, Ordering::SeqCst);
    in_time(refused.wait_for(|count| *count >= 5)).await.unwrap();
    let before = world.until(NAME, |_: &Lease| true).await;
    is_cut.store(false, Ordering::SeqCst);
    world.until(NAME, |lease: &Lease| renewed(lease) > renewed(&before)).await;
    assert!(!guard.lost().is_cancelled());
}

#[tokio::test]
async fn deleted_emptied_or_edited_lease_is_kept() {
    let world = World::without_server("lease-edited").await;
    let guard = acquire(&world, "a", LONG).await;
    let before: Lease = world.until(NAME, |_| true).await;
    let is_kept = async |before: &Lease| {
        let again = |lease: &Lease| holder(lease) == Some("a") && renewed(lease) > renewed(before);
        let lease = world.until(NAME, again).await;
        assert_eq!(acquired(&lease), acquired(before));
        assert_eq!(spec(&lease).lease_transitions, Some(0));
        assert!(!guard.lost().is_cancelled());
        lease
    };
    world.delete::<Lease>(NAME).await;
    let again = is_kept(&before).await;
    assert_ne!(again.metadata.uid, before.metadata.uid);
    let emptied = json!({"spec": {"holderIdentity": null, "leaseDurationSeconds": 1}});
    let emptied: Lease = world.patch(NAME, emptied).await;
    let again = is_kept(&emptied).await;
    assert_eq!(spec(&again).lease_duration_seconds, Some(600));
    let labelled = json!({"metadata": {"labels": {"test": "yes"}}});
    let labelled: Lease = world.patch(NAME, labelled).await;
    let again = is_kept(&labelled).await;
    assert_eq!(again.metadata.labels, labelled.metadata.labels);
}

#[tokio::test]
async fn lease_held_by_another_server_is_lost() {
    let world = World::without_server("lease-taken").await;
    let guard = acquire(&world, "a", LONG).await;
    world.patch::<Lease>(NAME, json!({"spec": {"holderIdentity": "b"}})).await;
    in_time(guard.lost().cancelled()).await;
    guard.release().await;
    let lease = world.until(NAME, |_: &Lease| true).await;
    assert_eq!(holder(&lease), Some("b"), "it is not ours to give back");
}

#[tokio::test]
async fn missing_lease_permissions_are_named() {
    let world = World::without_server("lease-forbidden").await;
    let unauthorized = filtered_client(world.client.clone(), |mut request: Request<Body>| {
        let name = HeaderValue::from_static("nobody");
        request.headers_mut().insert("impersonate-user", name);
        Some(request)
    });
    let never = CancellationToken::new();
    let acquire = async |client: &Client, namespace: &str, identity: &str, terms: LeaseTimings| {
        let fence = Fence::default();
        let guard = LeaseGuard::acquire(client.clone(), namespace, identity, terms, &fence, &never);
        in_time(guard).await.unwrap_err()
    };
    let error = acquire(&unauthorized, &world.namespace, "a", SHORT).await;
    assert!(matches!(error, Error::Forbidden { .. }), "{error:?}");
    let error = error.to_string();
    for part in ["`get`, `create` and `patch`", "coordination.k8s.io", "`lease-forbidden`"] {
        assert!(error.contains(part), "{error}");
    }
    let error = acquire(&world.client, "lease-nowhere", "a", SHORT).await;
    assert!(matches!(&error, Error::Refused { .. }), "{error:?}");
    let error = acquire(&world.client, &world.namespace, "", SHORT).await;
    assert!(matches!(&error, Error::NoIdentity), "{error:?}");
    let terms = LeaseTimings { renew_deadline: SHORT.duration, ..SHORT };
    let error = acquire(&world.client, &world.namespace, "a", terms).await;
    assert!(matches!(&error, Error::Timings(_)), "{error:?}");
    assert!(world.api::<Lease>().get_opt(NAME).await.unwrap().is_none());
}
