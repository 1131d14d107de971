//! Two servers, one active: how the standby takes over, and what stops the other.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bowline_api::{Backup, BackupPhase, Schedule};
use bowline_server::lease::{LeaseTimings, NAME};
use bowline_server::{Error, Options, metrics};
use bowline_testbed::apply::apply;
use bowline_testbed::{kubeconfig, port};
use http::{Method, Uri};
use jiff::civil::DateTime;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bed::{LIMIT, World, eventually, shared};
use crate::support::runs::{application, back_up_and_wait, is_over_or_deleting};
use crate::{fault_injection, http as link};

/// Short, so that tests need not wait for long.
const SHORT: LeaseTimings = LeaseTimings {
    duration: Duration::from_secs(4),
    renew_interval: Duration::from_millis(200),
    renew_deadline: Duration::from_secs(3),
};

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

fn options(world: &World, identity: &str) -> Options {
    Options { identity: identity.to_owned(), lease: SHORT, ..world.options() }
}

/// A Schedule that fires all the time.
async fn schedule(world: &World, app: &str, expression: &str) {
    let object = json!({
        "metadata": {"name": "often"},
        "spec": {"schedule": expression, "template": {"includedNamespaces": [app]}},
    });
    world.create::<Schedule>(object).await;
}

/// The Backups that have ended.
async fn ended_backups(world: &World) -> Vec<Backup> {
    let backups = world.api::<Backup>().list(&ListParams::default()).await.unwrap().items;
    backups.into_iter().filter(is_over_or_deleting).collect()
}

/// Waits until so many more Backups have ended.
async fn until_ended(world: &World, count: usize) {
    eventually(&format!("{count} backups have ended"), async || {
        let found = ended_backups(world).await.len();
        if found >= count { Ok(()) } else { Err(found) }
    })
    .await;
}

#[tokio::test]
async fn standby_server_is_ready_and_takes_over_at_once() {
    let mut world = World::without_server("handover-end").await;
    world.run(Options { identity: "a".to_owned(), ..world.options() });
    world.filesystem_location("default").await;
    application(&world.client, "handover-end-app").await;
    let [port] = port::free_ports().unwrap();
    let metrics_address = metrics::Address::At((Ipv4Addr::LOCALHOST, port).into());
    let mut second = world.second_server_world();
    second.run(Options { identity: "b".to_owned(), metrics_address, ..world.options() });
    let readyz = format!("http://127.0.0.1:{port}/readyz");
    eventually("the second server is ready", async || {
        tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok()
            && link::get(&readyz).await.0 == 200
    })
    .await;
    let lease = world.until::<Lease>(NAME, |lease| holder(lease).is_some()).await;
    assert_eq!(holder(&lease), Some("a"), "the second only waits");
    world.end().await.unwrap();
    let before = Instant::now();
    world.until::<Lease>(NAME, |lease| holder(lease) == Some("b")).await;
    assert!(before.elapsed() < LeaseTimings::default().duration, "it was given back: {before:?}");
    let status =
        back_up_and_wait(&world, "b", json!({"includedNamespaces": ["handover-end-app"]})).await;
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    second.end().await.unwrap();
}

#[tokio::test]
async fn schedules_continue_through_handovers_without_duplicates() {
    const PAUSE: i64 = 2;
    let world = World::without_server("handover-schedule").await;
    let mut servers = [world.second_server_world(), world.second_server_world()];
    let mut is_cut = Arc::new(AtomicBool::new(false));
    let cut = Arc::clone(&is_cut);
    let judge = move |_: &Method, _: &Uri| cut.load(Ordering::SeqCst);
    servers[0]
        .run_through(options(&world, "0"), |client| fault_injection::faulty_client(client, judge));
    world.filesystem_location("default").await;
    application(&world.client, "handover-schedule-app").await;
    schedule(&world, "handover-schedule-app", &format!("@every {PAUSE}s")).await;
    until_ended(&world, 1).await;
    for round in 1..=4 {
        let (old, new) = ((round - 1) % 2, round % 2);
        let next = Arc::new(AtomicBool::new(false));
        let cut = Arc::clone(&next);
        let judge = move |_: &Method, _: &Uri| cut.load(Ordering::SeqCst);
        let identity = round.to_string();
        servers[new].run_through(options(&world, &identity), |client| {
            fault_injection::faulty_client(client, judge)
        });
        if round % 2 == 1 {
            // The API server is gone, for the first one.
            is_cut.store(true, Ordering::SeqCst);
            world.until::<Lease>(NAME, |lease| holder(lease) == Some(&identity)).await;
            let outcome = servers[old].end().await;
            assert!(matches!(outcome, Err(Error::LeaseLost)), "{outcome:?}");
        } else {
            servers[old].end().await.unwrap();
        }
        is_cut = next;
        let before = ended_backups(&world).await.len();
        until_ended(&world, before + 2).await;
    }
    world.patch::<Schedule>("often", json!({"spec": {"paused": true}})).await;
    eventually("all backups have ended", async || {
        let all = world.api::<Backup>().list(&ListParams::default()).await.unwrap().items;
        if all.iter().all(is_over_or_deleting) { Ok(()) } else { Err(all) }
    })
    .await;
    let mut times = Vec::new();
    for backup in ended_backups(&world).await {
        let phase = backup.status.as_ref().unwrap().phase.clone();
        assert_eq!(phase, Some(BackupPhase::Completed), "{backup:?}");
        let name = backup.name_any();
        let time = name.strip_prefix("often-").unwrap();
        times.push(DateTime::strptime("%Y%m%d%H%M%S", time).unwrap());
    }
    times.sort();
    for pair in times.windows(2) {
        let between = pair[1].duration_since(pair[0]).as_secs();
        assert!(between >= PAUSE, "{times:?}");
    }
    for server in &mut servers {
        if server.is_running() {
            server.end().await.unwrap();
        }
    }
}

/// A server whose whole process can be stopped for a while, as by SIGSTOP: it has one thread.
struct StoppableServer {
    is_stopped: Arc<AtomicBool>,
    writes: Arc<Mutex<Vec<(std::time::Instant, Method, String)>>>,
    outcome: oneshot::Receiver<Result<(), Error>>,
    end: CancellationToken,
}

impl StoppableServer {
    fn start(options: Options) -> Self {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let writes = Arc::<Mutex<Vec<_>>>::default();
        let (ended, outcome) = oneshot::channel();
        let end = CancellationToken::new();
        let (stopped, recorded, until) =
            (Arc::clone(&is_stopped), Arc::clone(&writes), end.clone().cancelled_owned());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let server = async {
                let record_request = move |method: &Method, uri: &Uri| {
                    let is_lease = uri.path().contains("/leases");
                    if *method != Method::GET && !is_lease {
                        let write = (std::time::Instant::now(), method.clone(), uri.to_string());
                        recorded.lock().push(write);
                    }
                    false
                };
                let client = fault_injection::faulty_client(
                    kubeconfig::client(&shared().server).await.unwrap(),
                    record_request,
                );
                tokio::spawn(async move {
                    loop {
                        while stopped.load(Ordering::SeqCst) {
                            // Nothing else runs on this thread meanwhile.
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                });
                bowline_server::run(client, options, until).await
            };
            let _ = ended.send(runtime.unwrap().block_on(server));
        });
        Self { is_stopped, writes, outcome, end }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_paused_past_its_lease_writes_nothing() {
    let world = World::without_server("handover-pause").await;
    let mut first = StoppableServer::start(options(&world, "a"));
    world.filesystem_location("default").await;
    application(&world.client, "handover-pause-app").await;
    schedule(&world, "handover-pause-app", "@every 1s").await;
    until_ended(&world, 2).await;
    let mut second = world.second_server_world();
    second.run(options(&world, "b"));
    // In the middle of a backup, so that there is work to continue.
    let deadline = Instant::now() + LIMIT;
    loop {
        let all = world.api::<Backup>().list(&ListParams::default()).await.unwrap().items;
        if all.iter().any(|backup| !is_over_or_deleting(backup)) {
            break;
        }
        assert!(Instant::now() < deadline, "no backup is ever under way");
    }
    first.is_stopped.store(true, Ordering::SeqCst);
    world.until::<Lease>(NAME, |lease| holder(lease) == Some("b")).await;
    let before = ended_backups(&world).await.len();
    until_ended(&world, before + 2).await;
    let resumed_at = std::time::Instant::now();
    first.is_stopped.store(false, Ordering::SeqCst);
    let outcome = tokio::time::timeout(LIMIT, &mut first.outcome).await.unwrap().unwrap();
    assert!(matches!(outcome, Err(Error::LeaseLost)), "{outcome:?}");
    let mut writes = std::mem::take(&mut *first.writes.lock());
    assert!(!writes.is_empty(), "the harness sees writes");
    writes.retain(|(when, ..)| *when >= resumed_at);
    assert!(writes.is_empty(), "{writes:?}");
    drop(first.end);
    for backup in ended_backups(&world).await {
        let status = backup.status.unwrap();
        assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    }
    second.end().await.unwrap();
}

#[tokio::test]
async fn running_velero_server_is_detected_and_refused() {
    let mut world = World::without_server("handover-velero").await;
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "velero-0", "namespace": world.namespace},
        "spec": {"containers": [{
            "name": "velero", "image": "velero/velero:v1.18.3",
            "command": ["/velero"], "args": ["server", "--features="],
        }]},
    });
    apply(&world.client, pod).await.unwrap();
    world.run(world.options());
    let error = world.outcome().await.unwrap_err();
    assert!(matches!(&error, Error::VeleroRuns { pod, .. } if pod == "velero-0"), "{error}");
    assert!(error.to_string().contains("scale deployment/velero --replicas=0"), "{error}");
    assert!(world.api::<Lease>().get_opt(NAME).await.unwrap().is_none(), "nothing was begun");

    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    world.api::<Pod>().delete("velero-0", &at_once).await.unwrap();
    world.until_gone::<Pod>("velero-0").await;
    world.run(world.options());
    world.filesystem_location("default").await;
}
