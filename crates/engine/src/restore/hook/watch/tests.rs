#![expect(clippy::needless_pass_by_value, reason = "`json!` makes values, not references")]

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use bowline_plugin::Item;
use futures::stream::BoxStream;
use serde_json::{Value, json};

use super::*;
use crate::cluster::{self, Change, Discovery, Door, Executed, Fake, Query};

/// A cluster in which commands take their time, as many seconds as their last word says, and that
/// cannot be reached at first.
struct Slow {
    fake: Fake,
    /// How many looks fail before one does not.
    failures: AtomicUsize,
    looking: AtomicUsize,
    /// How many looked at a time, at most.
    most: AtomicUsize,
}

#[async_trait]
impl Cluster for Slow {
    async fn discover(&self) -> cluster::Result<Discovery> {
        self.fake.discover().await
    }

    fn list(
        &self,
        of: &Arc<Resource>,
        query: Query,
    ) -> BoxStream<'static, cluster::Result<Object>> {
        self.fake.list(of, query)
    }

    async fn get(
        &self,
        of: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> cluster::Result<Option<Object>> {
        let looking = self.looking.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(looking, Ordering::Relaxed);
        tokio::task::yield_now().await;
        self.looking.fetch_sub(1, Ordering::Relaxed);
        let less = |failures: usize| failures.checked_sub(1);
        match self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => Err(cluster::Error::Unreachable("connection refused".into())),
            Err(_) => self.fake.get(of, namespace, name).await,
        }
    }

    async fn create(&self, of: &Arc<Resource>, at: &str, item: &Item) -> cluster::Result<Object> {
        self.fake.create(of, at, item).await
    }

    async fn patch(
        &self,
        of: &Arc<Resource>,
        namespace: &str,
        name: &str,
        door: Door,
        patch: &Value,
    ) -> cluster::Result<Object> {
        self.fake.patch(of, namespace, name, door, patch).await
    }

    async fn delete(
        &self,
        of: &Arc<Resource>,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> cluster::Result<()> {
        self.fake.delete(of, namespace, name, uid).await
    }

    fn watch(
        &self,
        of: &Arc<Resource>,
        query: Query,
    ) -> BoxStream<'static, cluster::Result<Change>> {
        self.fake.watch(of, query)
    }

    async fn exec(&self, exec: &Exec) -> cluster::Result<Executed> {
        let executed = self.fake.exec(exec).await;
        if let Some(seconds) = exec.command.last().and_then(|last| last.parse().ok()) {
            sleep(Duration::from_secs(seconds)).await;
        }
        executed
    }
}

/// A restore with hooks.
struct Bed {
    cluster: Arc<Slow>,
    report: Arc<Report>,
    watch: Watch,
    stop: CancellationToken,
    began: Instant,
}

type Script = fn(&Exec) -> cluster::Result<Executed>;

impl Bed {
    fn new(hooks: Value) -> Self {
        Self::answering(hooks, |_| Ok(Executed { output: "fine".into(), failure: None }))
    }

    fn answering(hooks: Value, script: Script) -> Self {
        let entry = json!({"name": "x", "postHooks": hooks});
        let restore = json!({
            "apiVersion": "velero.io/v1", "kind": "Restore", "metadata": {"name": "r"},
            "spec": {"backupName": "b", "hooks": {"resources": [entry]}},
        });
        Self {
            cluster: Arc::new(Slow {
                fake: Fake::usual().answering(script),
                failures: AtomicUsize::new(0),
                looking: AtomicUsize::new(0),
                most: AtomicUsize::new(0),
            }),
            report: Arc::default(),
            watch: Watch::new(&serde_json::from_value(restore).unwrap()).unwrap(),
            stop: CancellationToken::new(),
            began: Instant::now(),
        }
    }

    /// Puts a pod into the cluster and begins to wait for it.
    fn begin(&self, pod: &Value) {
        self.put(pod);
        self.begin_as(pod);
    }

    /// Begins to wait for a pod that is there already.
    fn begin_as(&self, pod: &Value) {
        let resource = self.cluster.fake.resources().core("pods").unwrap().clone();
        let pod = Object::new(&resource, Item::from_object(pod).unwrap()).unwrap();
        let cluster: Arc<dyn Cluster> = self.cluster.clone();
        let limits = Limits { default_wait: Duration::from_mins(10) };
        self.watch.begin(&cluster, &self.report, &pod, limits, &self.stop);
    }

    fn put(&self, pod: &Value) {
        self.cluster.fake.put(pod.clone());
    }

    async fn after(&self, seconds: u64) {
        tokio::time::sleep_until(self.began + Duration::from_secs(seconds)).await;
    }

    /// The counts, the seconds until all was done, and the commands that were run.
    async fn finish(&self) -> ((u64, u64), u64, Vec<String>) {
        let counts = self.watch.finish().await;
        let execs = self.cluster.fake.execs();
        let commands = execs.iter().map(|exec| format!("{}:{}", exec.pod, exec.command.join(" ")));
        (counts, self.began.elapsed().as_secs(), commands.collect())
    }

    fn errors(&self) -> Vec<String> {
        self.report.results().errors.namespaces.remove("shop").unwrap_or_default()
    }
}

/// A pod whose containers `main` and `side` are in these states: `-`, `running` or `ready`.
fn pod(name: &str, main: &str, side: &str) -> Value {
    let status = |container: &str, state: &str| {
        let name = if state == "-" { "waiting" } else { "running" };
        json!({"name": container, "ready": state == "ready", "state": {name: {}}})
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "main"}, {"name": "side"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [status("main", main), status("side", side)],
        },
    })
}

fn hook(container: &str, command: &str, on_error: &str) -> Value {
    let command: Vec<_> = command.split(' ').collect();
    json!({"exec": {"container": container, "command": command, "onError": on_error}})
}

#[tokio::test(start_paused = true)]
async fn a_hook_waits_until_its_container_runs() {
    let bed = Bed::new(json!([{"exec": {"command": ["a", "b"], "execTimeout": "7s"}}]));
    let mut unscheduled = pod("db", "-", "-");
    unscheduled["status"] = json!({"phase": "Pending"});
    bed.begin(&unscheduled);
    bed.after(5).await;
    assert!(bed.cluster.fake.execs().is_empty());
    bed.put(&pod("db", "running", "-"));
    let ended = bed.finish().await;
    assert_eq!(ended, ((1, 0), 5, vec!["db:a b".into()]));
    let exec = Exec {
        namespace: "shop".into(),
        pod: "db".into(),
        container: "main".into(),
        command: vec!["a".into(), "b".into()],
        timeout: Duration::from_secs(7),
    };
    assert_eq!(bed.cluster.fake.execs(), [exec]);
    assert_eq!(bed.report.errors(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_asks_for_it_waits_until_its_container_is_ready() {
    let bed = Bed::new(json!([{"exec": {"command": ["a"], "waitForReady": true}}]));
    bed.begin(&pod("db", "running", "-"));
    bed.after(9).await;
    assert!(bed.cluster.fake.execs().is_empty());
    bed.put(&pod("db", "ready", "-"));
    assert_eq!(bed.finish().await, ((1, 0), 9, vec!["db:a".into()]));
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_hooks_is_not_looked_at() {
    let bed = Bed::new(json!([]));
    bed.begin(&pod("db", "running", "running"));
    assert_eq!(bed.finish().await, ((0, 0), 0, vec![]));
    assert!(bed.cluster.fake.gets().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_up_first_goes_first_and_keeps_its_hooks_together() {
    let bed = Bed::new(json!([
        hook("main", "a", "Fail"),
        hook("side", "b 3", "Fail"),
        hook("side", "c", "Fail"),
    ]));
    bed.begin(&pod("db", "-", "running"));
    // `main` comes up while the first hook of `side` runs.
    bed.after(1).await;
    bed.put(&pod("db", "running", "running"));
    let (counts, _, commands) = bed.finish().await;
    assert_eq!((counts, commands), ((3, 0), vec!["db:b 3".into(), "db:c".into(), "db:a".into()]));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_expires_is_a_failure_and_the_rest_is_up_to_it() {
    for (on_error, counts, commands, seconds, end) in [
        ("Fail", (3, 3), vec![], 20, "; the 2 hooks after it are not run"),
        ("Continue", (3, 2), vec!["db:c".to_owned()], 601, ": it waits"),
    ] {
        let bed = Bed::new(json!([
            {"exec": {"command": ["a"], "waitTimeout": "20s", "onError": on_error}},
            {"exec": {"command": ["b"], "onError": on_error}},
            {"exec": {"command": ["c"], "waitTimeout": "1h"}},
        ]));
        bed.begin(&pod("db", "-", "-"));
        if on_error == "Continue" {
            bed.after(601).await;
            bed.put(&pod("db", "running", "-"));
        }
        assert_eq!(bed.finish().await, (counts, seconds, commands));
        let errors = bed.errors();
        let begin = "pods/db: the hook \"x\" of the restore in the container \"main\" was not run: \
                     its container was not running within 20 s: it waits";
        assert!(errors[0].starts_with(begin) && errors[0].ends_with(end), "{errors:?}");
        let within = errors.get(1).is_none_or(|error| error.contains("within 600 s"));
        assert!(within, "the server's limit: {errors:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_never_becomes_ready_is_waited_for_until_the_limit_of_the_server() {
    let bed = Bed::new(json!([{"exec": {"command": ["a"], "waitForReady": true}}]));
    bed.begin(&pod("db", "running", "-"));
    assert_eq!(bed.finish().await, ((1, 1), 600, vec![]));
    let errors = bed.errors();
    assert!(errors[0].ends_with("within 600 s: it runs, but is not ready"), "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_hook_does_not_count_as_waiting_of_the_next() {
    let bed = Bed::new(json!([
        {"exec": {"command": ["a", "50"]}},
        {"exec": {"container": "side", "command": ["b"], "waitTimeout": "20s"}},
    ]));
    bed.begin(&pod("db", "running", "-"));
    bed.after(65).await;
    bed.put(&pod("db", "running", "running"));
    assert_eq!(bed.finish().await, ((2, 0), 65, vec!["db:a 50".into(), "db:b".into()]));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_away_is_told() {
    let bed = Bed::new(json!([hook("", "a", "Continue"), hook("", "b", "Continue")]));
    bed.begin(&pod("db", "-", "-"));
    bed.begin(&pod("ended", "-", "-"));
    bed.begin(&pod("replaced", "-", "-"));
    bed.after(30).await;
    bed.cluster.fake.remove("pods", "shop", "db");
    let mut ended = pod("ended", "-", "-");
    ended["status"]["phase"] = "Failed".into();
    bed.put(&ended);
    let mut other = pod("replaced", "ready", "ready");
    other["metadata"]["uid"] = "another".into();
    bed.put(&other);
    assert_eq!(bed.finish().await, ((6, 6), 30, vec![]));
    let mut errors = bed.errors();
    errors.sort();
    let told = |pod: &str, why: &str| {
        format!(
            "pods/{pod}: the hook \"x\" of the restore in the container \"main\" was not run: the \
             pod {why}; the hook after it is not run"
        )
    };
    assert_eq!(
        errors,
        [
            told("db", "has been deleted"),
            told("ended", "has ended with the phase Failed"),
            told("replaced", "has been deleted, and another has taken its place"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_a_uid_is_the_one_that_is_seen_first() {
    let bed = Bed::new(json!([hook("", "a", "Fail")]));
    bed.put(&pod("db", "-", "-"));
    let mut sent = pod("db", "-", "-");
    sent["metadata"]["uid"] = json!("");
    bed.begin_as(&sent);
    bed.after(3).await;
    let mut other = pod("db", "running", "running");
    other["metadata"]["uid"] = "another".into();
    bed.put(&other);
    assert_eq!(bed.finish().await, ((1, 1), 3, vec![]));
    let errors = bed.errors();
    assert!(errors[0].ends_with("and another has taken its place"), "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn a_missing_container_is_told_at_once() {
    for (on_error, counts, commands) in [
        ("Continue", (3, 1), vec!["db:a".to_owned(), "db:c".into()]),
        // What comes before it is none of its business.
        ("Fail", (3, 2), vec!["db:a".into()]),
    ] {
        let hooks = [hook("", "a", "Fail"), hook("no", "b", on_error), hook("side", "c", "Fail")];
        let bed = Bed::new(json!(hooks));
        bed.begin(&pod("db", "-", "-"));
        bed.after(1).await;
        let errors = bed.errors();
        let begin = "pods/db: the hook \"x\" of the restore in the container \"no\" was not run: the \
                     pod has no such container";
        assert!(errors.len() == 1 && errors[0].starts_with(begin), "{errors:?}");
        bed.put(&pod("db", "running", "running"));
        assert_eq!(bed.finish().await, (counts, 1, commands));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_fails_stops_those_after_it_unless_it_says_continue() {
    let script: Script = |exec| match exec.command[0].as_str() {
        "bad" => Ok(Executed { output: "no table\n".into(), failure: Some("exit code 1".into()) }),
        "slow" => Err(cluster::Error::ExecTimeout(exec.timeout)),
        _ => Ok(Executed { output: String::new(), failure: None }),
    };
    for (command, why) in
        [("bad", "exit code 1: no table"), ("slow", "the command did not end within 30 s")]
    {
        for (on_error, counts, commands) in [
            (Some("Continue"), (3, 1), vec!["db:a", &format!("db:{command}"), "db:c"]),
            (Some("Fail"), (3, 2), vec!["db:a", &format!("db:{command}")]),
            (None, (3, 1), vec!["db:a", &format!("db:{command}"), "db:c"]),
        ] {
            let mut failing = hook("", command, "Fail");
            failing["exec"]["onError"] = on_error.into();
            let hooks = json!([hook("", "a", "Fail"), failing, hook("side", "c", "Fail")]);
            let bed = Bed::answering(hooks, script);
            bed.begin(&pod("db", "running", "running"));
            let (counted, _, ran) = bed.finish().await;
            assert_eq!(
                (counted, ran),
                (counts, commands.iter().map(ToString::to_string).collect())
            );
            let errors = bed.errors();
            let begin = format!(
                "pods/db: the hook \"x\" of the restore in the container \"main\" failed: {why}"
            );
            assert!(errors.len() == 1 && errors[0].starts_with(&begin), "{errors:?}");
            let stops = errors[0].ends_with("; the hook after it is not run");
            assert_eq!(stops, on_error == Some("Fail"), "{errors:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_pod_never_touches_the_hooks_of_another() {
    let script: Script = |exec| match exec.pod.as_str() {
        "bad" => Ok(Executed { output: String::new(), failure: Some("exit code 1".into()) }),
        "broken" => panic!("a defect"),
        _ => Ok(Executed { output: String::new(), failure: None }),
    };
    let hooks = json!([hook("", "a 9", "Fail"), hook("", "b", "Fail")]);
    let bed = Bed::answering(hooks, script);
    bed.begin(&pod("stuck", "-", "-"));
    bed.begin(&pod("bad", "running", "-"));
    bed.begin(&pod("broken", "running", "-"));
    let mut unreadable = pod("unreadable", "running", "-");
    unreadable["metadata"]["annotations"] = json!({
        "post.hook.restore.velero.io/command": "[\"x\"",
    });
    bed.begin(&unreadable);
    bed.begin(&pod("one", "running", "-"));
    bed.begin(&pod("two", "running", "-"));
    bed.after(1).await;
    let execs = bed.cluster.fake.execs();
    let pods: BTreeSet<_> = execs.iter().map(|exec| exec.pod.as_str()).collect();
    assert_eq!(pods, BTreeSet::from(["bad", "broken", "one", "two"]), "side by side");
    let (counts, seconds, mut commands) = bed.finish().await;
    assert_eq!((counts, seconds), ((11, 7), 600));
    commands[4..].sort();
    assert_eq!(commands[4..], ["one:b", "two:b"]);
    let errors = bed.errors();
    for pod in ["stuck", "bad", "broken", "unreadable"] {
        let of_pod = errors.iter().filter(|error| error.starts_with(&format!("pods/{pod}: ")));
        assert_eq!(of_pod.count(), 1, "{errors:?}");
    }
    assert_eq!(errors.len(), 4, "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_cannot_be_reached_is_asked_until_the_wait_ends() {
    for (failures, ended) in [(5, ((1, 0), 5, vec!["db:a".into()])), (9999, ((1, 1), 600, vec![]))]
    {
        let bed = Bed::new(json!([hook("", "a", "Fail")]));
        bed.cluster.failures.store(failures, Ordering::Relaxed);
        bed.begin(&pod("db", "running", "-"));
        assert_eq!(bed.finish().await, ended);
        let told = bed.errors().iter().all(|error| error.ends_with("reached: connection refused"));
        assert!(told, "{:?}", bed.errors());
    }
}

#[tokio::test(start_paused = true)]
async fn many_pods_are_not_looked_at_all_at_once() {
    let bed = Bed::new(json!([hook("", "a", "Fail")]));
    for number in 0..100 {
        bed.begin(&pod(&format!("db-{number}"), "running", "-"));
    }
    assert_eq!(bed.finish().await.0, (100, 0));
    assert_eq!(bed.cluster.most.load(Ordering::Relaxed), LOOKS);
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_all_waiting_at_once() {
    let long = json!({"exec": {"command": ["a", "100"], "onError": "Fail"}});
    let bed = Bed::new(json!([long, {"exec": {"command": ["b"]}}]));
    bed.begin(&pod("waits", "-", "-"));
    bed.begin(&pod("runs", "running", "-"));
    bed.after(3).await;
    // Between two looks.
    sleep(Duration::from_millis(500)).await;
    bed.stop.cancel();
    bed.begin(&pod("late", "running", "-"));
    assert_eq!(bed.finish().await, ((6, 6), 3, vec!["runs:a 100".into()]));
    let mut errors = bed.errors();
    errors.sort();
    let hook = "the hook \"x\" of the restore in the container \"main\"";
    let rest = "; the hook after it is not run";
    assert_eq!(
        errors,
        [
            format!("pods/late: {hook} was not run: the restore was stopped{rest}"),
            format!(
                "pods/runs: {hook} was broken off: the restore was stopped; it may still be running \
                 in the container{rest}"
            ),
            format!("pods/waits: {hook} was not run: the restore was stopped{rest}"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn commands_are_never_told() {
    let script: Script =
        |_| Ok(Executed { output: String::new(), failure: Some("exit code 2".into()) });
    let bed = Bed::answering(
        json!([hook("", "-psecret", "Continue"), hook("no", "secret", "Fail")]),
        script,
    );
    bed.begin(&pod("db", "running", "-"));
    assert_eq!(bed.finish().await.0, (2, 2));
    assert!(!format!("{:?}", bed.report).contains("secret"));
}
