//! Pods that are not reached at once, or not at all.

use std::sync::Mutex;

use bowline_plugin::Item;
use serde_json::json;

use super::super::{Hooks, OnError};
use super::*;
use crate::cluster::{Error, Exec, Executed, Fake};

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

fn said(code: u16) -> Error {
    let (reason, message) = ("ServiceUnavailable".into(), "error dialing backend".into());
    Error::Refused { code, reason, message }
}

fn good() -> Executed {
    Executed { output: String::new(), failure: None }
}

/// What came of thawing pods.
struct Ran {
    /// The commands that were tried, with their pods, and after how many seconds.
    tries: Vec<(String, u64)>,
    frozen: Vec<String>,
    errors: Vec<String>,
    tally: Tally,
}

impl Ran {
    fn commands(&self) -> Vec<&str> {
        self.tries.iter().map(|(command, _)| command.as_str()).collect()
    }
}

/// Thaws pods as the block that froze them does, in a cluster that answers the n-th try as it is told to.
async fn thaw(
    pods: &[&str],
    post: &[&str],
    stop: &CancellationToken,
    answer: impl Fn(usize, &Exec) -> Result<Executed, Error> + Send + Sync + 'static,
) -> Ran {
    let (began, tries) = (Instant::now(), std::sync::Arc::new(Mutex::new(Vec::new())));
    let noted = std::sync::Arc::clone(&tries);
    let cluster = Fake::usual().answering(move |exec| {
        let mut noted = noted.lock().unwrap();
        let command = format!("{} {}", exec.command[0], exec.pod);
        noted.push((command, began.elapsed().as_secs()));
        answer(noted.len() - 1, exec)
    });
    let (report, tally, plan) = (Report::default(), Tally::default(), plan(post));
    let with = With { cluster: &cluster, report: &report, tally: &tally };
    let pods: Vec<Object> = pods.iter().map(|name| pod(name)).collect();
    let mut late = Vec::new();
    for pod in &pods {
        tally.freeze(&pod.id(), tally.now());
        late.extend(Thaw::new(pod, &plan).run(with).await);
    }
    let frozen = thaw_late(with, late, stop).await;
    let frozen = frozen.into_iter().map(|left| left.pod.name.clone()).collect();
    let errors = report.results().errors.namespaces.remove("shop").unwrap_or_default();
    let tries = tries.lock().unwrap().clone();
    Ran { tries, frozen, errors, tally }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_did_not_reach_its_pod_is_tried_again_and_counts_once() {
    let away: [fn() -> Error; 6] = [
        refused,
        || Error::Silent(Duration::from_secs(30)),
        || said(429),
        || said(500),
        || said(502),
        || said(503),
    ];
    for error in away {
        let answer = move |n, _: &Exec| if n < 2 { Err(error()) } else { Ok(good()) };
        let ran = thaw(&["db"], &["thaw"], &CancellationToken::new(), answer).await;
        let told = error().to_string();
        assert_eq!(ran.commands(), ["thaw db"; 3], "{told}");
        assert_eq!((ran.tally.counts(), ran.errors.len()), ((1, 0), 0), "{told}");
        assert_eq!(ran.frozen, [""; 0], "{told}");
        assert_eq!(ran.tally.windows().len(), 1, "{told}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_has_run_or_whose_pod_is_gone_is_not_tried_again() {
    let ends: [fn() -> Result<Executed, Error>; 4] = [
        || Ok(Executed { output: String::new(), failure: Some("exit code 1".into()) }),
        || Err(Error::ExecTimeout(Duration::from_secs(30))),
        || Err(said(404)),
        || Err(said(403)),
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
async fn an_outage_that_does_not_end_is_told_with_what_to_do_and_without_the_command() {
    let stop = CancellationToken::new();
    let ran = thaw(&["db"], &["-psecret", "resume"], &stop, |_, _| Err(refused())).await;
    let (last, others) = ran.tries.split_last().unwrap();
    assert_eq!(last.0, "resume db", "the others are tried once more before it ends");
    assert!(others.iter().all(|(command, _)| command == "-psecret db"), "{:?}", ran.tries);
    assert!((120..=130).contains(&last.1), "{last:?}");
    assert!(ran.tries.len() < 30, "{:?}", ran.tries);
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
async fn a_pod_on_a_node_that_is_away_keeps_no_other_frozen() {
    let answer = |n, exec: &Exec| match exec.pod.as_str() {
        "lost" => Err(said(500)),
        _ if n < 4 => Err(refused()),
        _ => Ok(good()),
    };
    let ran = thaw(&["lost", "db", "web"], &["thaw"], &CancellationToken::new(), answer).await;
    assert_eq!(ran.frozen, ["lost"]);
    for pod in ["thaw db", "thaw web"] {
        let last = ran.tries.iter().rfind(|(command, _)| command == pod).unwrap();
        assert!(last.1 < 10, "{:?}", ran.tries);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_asked_to_end_leaves_it_to_the_next() {
    let stop = CancellationToken::new();
    stop.cancel();
    let ran = thaw(&["db"], &["thaw"], &stop, |_, _| Err(refused())).await;
    assert_eq!(ran.commands(), ["thaw db"]);
    assert_eq!((ran.frozen.len(), ran.errors.len()), (1, 1));

    let (stop, asked) = (CancellationToken::new(), CancellationToken::new());
    let (stopping, asking) = (stop.clone(), asked.clone());
    let answer = move |n, _: &Exec| {
        if n == 3 {
            asking.cancel();
        }
        Err(refused())
    };
    let thawing = async { thaw(&["db"], &["thaw"], &stop, answer).await };
    let ending = async {
        asked.cancelled().await;
        stopping.cancel();
    };
    let both = futures::future::join(thawing, ending);
    let (ran, ()) = tokio::time::timeout(OUTAGE * 2, both).await.expect("it was tried four times");
    assert_eq!(ran.commands(), ["thaw db"; 4]);
    assert_eq!(ran.frozen, ["db"]);
}

#[tokio::test(start_paused = true)]
async fn annotations_are_named_as_the_place_of_a_command() {
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
    let cluster = Fake::usual().answering(|_| Err(refused()));
    let (report, tally) = (Report::default(), Tally::default());
    let with = With { cluster: &cluster, report: &report, tally: &tally };
    let left = Thaw::new(&pod, &plan).run(with).await.expect("it was not reached");
    left.give_up(with).await;
    let told = format!("{:?}", report.results().errors);
    assert!(told.contains("the pod's annotation post.hook.backup.velero.io/command"), "{told}");
}
