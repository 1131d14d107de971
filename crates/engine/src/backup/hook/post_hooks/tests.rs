//! Pods that are not reached at once, or not at all.

use bowline_plugin::Item;
use parking_lot::Mutex;
use serde_json::json;

use super::super::{Hooks, OnError};
use super::*;
use crate::cluster::{Error, Exec, ExecOutcome, Fake};

fn pod(name: &str) -> Object {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": name},
        "spec": {"containers": [{"name": "main"}]},
    });
    let resource = Fake::usual().resources().core("pods").unwrap().clone();
    Object::new(&resource, Item::from_object(&pod).unwrap()).unwrap()
}

fn plan(post: &[&str]) -> Plan {
    let hook = |command: &&str| Hook {
        source: Source::Spec("quiesce".into()),
        container: "main".into(),
        command: vec![(*command).to_owned()],
        on_error: OnError::Fail,
        timeout: Duration::from_secs(30),
    };
    Plan { pre: Vec::new(), post: post.iter().map(hook).collect() }
}

fn refused() -> Error {
    Error::Unreachable("connection refused".into())
}

fn refused_with(code: u16) -> Error {
    let (reason, message) = ("ServiceUnavailable".into(), "error dialing backend".into());
    Error::Refused { code, reason, message }
}

fn good() -> ExecOutcome {
    ExecOutcome { output: String::new(), failure: None }
}

/// Outcome of thawing pods.
struct ThawResult {
    /// The attempted commands, with their pods, and the seconds since the start.
    attempts: Vec<(String, u64)>,
    frozen: Vec<String>,
    errors: Vec<String>,
    tally: Tally,
}

impl ThawResult {
    fn commands(&self) -> Vec<&str> {
        self.attempts.iter().map(|(command, _)| command.as_str()).collect()
    }
}

/// Thaws pods as the block that froze them does, in a cluster that answers the n-th attempt as scripted.
async fn thaw(
    pods: &[&str],
    post: &[&str],
    stop: &CancellationToken,
    answer: impl Fn(usize, &Exec) -> Result<ExecOutcome, Error> + Send + Sync + 'static,
) -> ThawResult {
    let (started_at, attempts) = (Instant::now(), std::sync::Arc::new(Mutex::new(Vec::new())));
    let recorded = std::sync::Arc::clone(&attempts);
    let cluster = Fake::usual().with_exec_script(move |exec| {
        let mut recorded = recorded.lock();
        let command = format!("{} {}", exec.command[0], exec.pod);
        recorded.push((command, started_at.elapsed().as_secs()));
        answer(recorded.len() - 1, exec)
    });
    let (report, tally, plan) = (Report::default(), Tally::default(), plan(post));
    let context = HookContext { cluster: &cluster, report: &report, tally: &tally };
    let pods: Vec<Object> = pods.iter().map(|name| pod(name)).collect();
    let mut unreached = Vec::new();
    for pod in &pods {
        tally.freeze(&pod.id(), tally.now());
        unreached.extend(PodThaw::new(pod, &plan).run(context).await);
    }
    let frozen = retry_thaw_all(context, unreached, stop).await;
    let frozen = frozen.into_iter().map(|still_frozen| still_frozen.pod.name.clone()).collect();
    let errors = report.results().errors.namespaces.remove("shop").unwrap_or_default();
    let attempts = attempts.lock().clone();
    ThawResult { attempts, frozen, errors, tally }
}

#[tokio::test(start_paused = true)]
async fn unreached_hook_is_retried_and_counted_once() {
    let away: [fn() -> Error; 6] = [
        refused,
        || Error::Timeout(Duration::from_secs(30)),
        || refused_with(429),
        || refused_with(500),
        || refused_with(502),
        || refused_with(503),
    ];
    for error in away {
        let answer = move |n, _: &Exec| if n < 2 { Err(error()) } else { Ok(good()) };
        let ran = thaw(&["db"], &["thaw"], &CancellationToken::new(), answer).await;
        let message = error().to_string();
        assert_eq!(ran.commands(), ["thaw db"; 3], "{message}");
        assert_eq!((ran.tally.counts(), ran.errors.len()), ((1, 0), 0), "{message}");
        assert_eq!(ran.frozen, [""; 0], "{message}");
        assert_eq!(ran.tally.windows().len(), 1, "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn finished_hook_or_deleted_pod_is_not_retried() {
    let ends: [fn() -> Result<ExecOutcome, Error>; 4] = [
        || Ok(ExecOutcome { output: String::new(), failure: Some("exit code 1".into()) }),
        || Err(Error::ExecTimeout(Duration::from_secs(30))),
        || Err(refused_with(404)),
        || Err(refused_with(403)),
    ];
    for end in ends {
        let answer = move |_, _: &Exec| end();
        let ran = thaw(&["db"], &["thaw"], &CancellationToken::new(), answer).await;
        assert_eq!(ran.commands(), ["thaw db"], "{:?}", ran.errors);
        assert_eq!((ran.tally.counts(), ran.errors.len()), ((1, 1), 1), "{:?}", ran.errors);
        assert_eq!(ran.frozen, [""; 0], "{:?}", ran.errors);
    }
}

#[tokio::test(start_paused = true)]
async fn endless_outage_is_reported_with_a_hint_and_without_the_command() {
    let stop = CancellationToken::new();
    let ran = thaw(&["db"], &["-psecret", "resume"], &stop, |_, _| Err(refused())).await;
    let (last, others) = ran.attempts.split_last().unwrap();
    assert_eq!(last.0, "resume db", "the others are tried once more before it ends");
    assert!(others.iter().all(|(command, _)| command == "-psecret db"), "{:?}", ran.attempts);
    assert!((120..=130).contains(&last.1), "{last:?}");
    assert!(ran.attempts.len() < 30, "{:?}", ran.attempts);
    assert_eq!(ran.frozen, ["db"]);
    assert_eq!(ran.tally.counts(), (2, 2));
    assert_eq!(ran.tally.windows(), [], "nobody knows when it ended");
    assert_eq!(ran.errors.len(), 2);
    for part in [
        "connection refused",
        "the pod may still be frozen",
        "kubectl -n shop exec db -c main -- COMMAND",
        "the post-hook \"quiesce\" in the Backup's spec.hooks",
    ] {
        assert!(ran.errors[0].contains(part), "{part} in {:?}", ran.errors);
    }
    assert!(!format!("{:?}", ran.errors).contains("secret"));
}

#[tokio::test(start_paused = true)]
async fn the_hooks_of_a_pod_keep_their_order() {
    let answer = |n, _: &Exec| if n == 1 { Err(refused()) } else { Ok(good()) };
    let ran = thaw(&["db"], &["a", "b", "c"], &CancellationToken::new(), answer).await;
    assert_eq!(ran.commands(), ["a db", "b db", "b db", "c db"]);
    assert_eq!((ran.tally.counts(), ran.errors.len()), ((3, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn unreachable_node_does_not_delay_thawing_other_pods() {
    let answer = |n, exec: &Exec| match exec.pod.as_str() {
        "lost" => Err(refused_with(500)),
        _ if n < 4 => Err(refused()),
        _ => Ok(good()),
    };
    let ran = thaw(&["lost", "db", "web"], &["thaw"], &CancellationToken::new(), answer).await;
    assert_eq!(ran.frozen, ["lost"]);
    for pod in ["thaw db", "thaw web"] {
        let last = ran.attempts.iter().rfind(|(command, _)| command == pod).unwrap();
        assert!(last.1 < 10, "{:?}", ran.attempts);
    }
}

#[tokio::test(start_paused = true)]
async fn stopping_server_leaves_pods_to_the_next_server() {
    let stop = CancellationToken::new();
    stop.cancel();
    let ran = thaw(&["db"], &["thaw"], &stop, |_, _| Err(refused())).await;
    assert_eq!(ran.commands(), ["thaw db"]);
    assert_eq!((ran.frozen.len(), ran.errors.len()), (1, 1));

    let (stop, attempted) = (CancellationToken::new(), CancellationToken::new());
    let (stopping, asking) = (stop.clone(), attempted.clone());
    let answer = move |n, _: &Exec| {
        if n == 3 {
            asking.cancel();
        }
        Err(refused())
    };
    let thawing = async { thaw(&["db"], &["thaw"], &stop, answer).await };
    let ending = async {
        attempted.cancelled().await;
        stopping.cancel();
    };
    let both = futures::future::join(thawing, ending);
    let (ran, ()) =
        tokio::time::timeout(RETRY_WINDOW * 2, both).await.expect("it was tried four times");
    assert_eq!(ran.commands(), ["thaw db"; 4]);
    assert_eq!(ran.frozen, ["db"]);
}

#[tokio::test(start_paused = true)]
async fn report_names_the_annotation_that_holds_the_command() {
    let annotated = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "shop", "name": "db",
            "annotations": {"post.hook.backup.velero.io/command": "thaw"},
        },
        "spec": {"containers": [{"name": "main"}]},
    });
    let resource = Fake::usual().resources().core("pods").unwrap().clone();
    let pod = Object::new(&resource, Item::from_object(&annotated).unwrap()).unwrap();
    let plan = Hooks::default().plan(&pod).unwrap();
    let cluster = Fake::usual().with_exec_script(|_| Err(refused()));
    let (report, tally) = (Report::default(), Tally::default());
    let context = HookContext { cluster: &cluster, report: &report, tally: &tally };
    let remaining = PodThaw::new(&pod, &plan).run(context).await.expect("it was not reached");
    remaining.give_up(context).await;
    let message = format!("{:?}", report.results().errors);
    assert!(
        message.contains("the pod's annotation post.hook.backup.velero.io/command"),
        "{message}"
    );
}
