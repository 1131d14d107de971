#![expect(clippy::needless_pass_by_value, reason = "`json!` makes values, not references")]

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use bowline_plugin::Item;
use serde_json::{Value, json};

use super::*;
use crate::cluster::{self, Delegate, ExecOutcome, Fake};

/// A cluster in which commands take as many seconds as their last word says, and that is unreachable at first.
struct SlowCluster {
    fake: Fake,
    /// Number of lookups that fail first.
    failures: AtomicUsize,
    concurrent_reads: AtomicUsize,
    /// Maximum number of concurrent lookups.
    most: AtomicUsize,
}

#[async_trait]
impl Delegate for SlowCluster {
    fn inner(&self) -> &dyn Cluster {
        &self.fake
    }

    async fn get(
        &self,
        of: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> cluster::Result<Option<Object>> {
        let concurrent = self.concurrent_reads.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(concurrent, Ordering::Relaxed);
        tokio::task::yield_now().await;
        self.concurrent_reads.fetch_sub(1, Ordering::Relaxed);
        let less = |failures: usize| failures.checked_sub(1);
        match self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => Err(cluster::Error::Unreachable("connection refused".into())),
            Err(_) => self.fake.get(of, namespace, name).await,
        }
    }

    async fn exec(&self, exec: &Exec) -> cluster::Result<ExecOutcome> {
        let executed = self.fake.exec(exec).await;
        if let Some(seconds) = exec.command.last().and_then(|last| last.parse().ok()) {
            sleep(Duration::from_secs(seconds)).await;
        }
        executed
    }
}

/// A restore with hooks.
struct HookFixture {
    cluster: Arc<SlowCluster>,
    report: Arc<Report>,
    watch: HookRunner,
    stop: CancellationToken,
    started_at: Instant,
}

type Script = fn(&Exec) -> cluster::Result<ExecOutcome>;

impl HookFixture {
    fn new(hooks: Value) -> Self {
        Self::answering(hooks, |_| Ok(ExecOutcome { output: "fine".into(), failure: None }))
    }

    fn answering(hooks: Value, script: Script) -> Self {
        let entry = json!({"name": "x", "postHooks": hooks});
        let restore = json!({
            "apiVersion": "velero.io/v1", "kind": "Restore", "metadata": {"name": "r"},
            "spec": {"backupName": "b", "hooks": {"resources": [entry]}},
        });
        Self {
            cluster: Arc::new(SlowCluster {
                fake: Fake::usual().with_exec_script(script),
                failures: AtomicUsize::new(0),
                concurrent_reads: AtomicUsize::new(0),
                most: AtomicUsize::new(0),
            }),
            report: Arc::default(),
            watch: HookRunner::new(&serde_json::from_value(restore).unwrap()).unwrap(),
            stop: CancellationToken::new(),
            started_at: Instant::now(),
        }
    }

    /// Adds a pod to the cluster and starts waiting for it.
    fn start(&self, pod: &Value) {
        self.put(pod);
        self.start_as(pod);
    }

    /// Starts waiting for a pod that already exists.
    fn start_as(&self, pod: &Value) {
        let resource = self.cluster.fake.resources().core("pods").unwrap().clone();
        let pod = Object::new(&resource, Item::from_object(pod).unwrap()).unwrap();
        let cluster: Arc<dyn Cluster> = self.cluster.clone();
        let limits = HookLimits { default_wait: Duration::from_mins(10) };
        self.watch.start(&cluster, &self.report, &pod, limits, &self.stop);
    }

    fn put(&self, pod: &Value) {
        self.cluster.fake.put(pod.clone());
    }

    async fn after(&self, seconds: u64) {
        tokio::time::sleep_until(self.started_at + Duration::from_secs(seconds)).await;
    }

    /// The counts, the seconds until everything was done, and the commands that ran.
    async fn finish(&self) -> ((u64, u64), u64, Vec<String>) {
        let counts = self.watch.finish().await;
        let execs = self.cluster.fake.execs();
        let commands = execs.iter().map(|exec| format!("{}:{}", exec.pod, exec.command.join(" ")));
        (counts, self.started_at.elapsed().as_secs(), commands.collect())
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
    let fixture = HookFixture::new(json!([{"exec": {"command": ["a", "b"], "execTimeout": "7s"}}]));
    let mut unscheduled = pod("db", "-", "-");
    unscheduled["status"] = json!({"phase": "Pending"});
    fixture.start(&unscheduled);
    fixture.after(5).await;
    assert!(fixture.cluster.fake.execs().is_empty());
    fixture.put(&pod("db", "running", "-"));
    let ended = fixture.finish().await;
    assert_eq!(ended, ((1, 0), 5, vec!["db:a b".into()]));
    let exec = Exec {
        namespace: "shop".into(),
        pod: "db".into(),
        container: "main".into(),
        command: vec!["a".into(), "b".into()],
        timeout: Duration::from_secs(7),
    };
    assert_eq!(fixture.cluster.fake.execs(), [exec]);
    assert_eq!(fixture.report.error_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_asks_for_it_waits_until_its_container_is_ready() {
    let fixture = HookFixture::new(json!([{"exec": {"command": ["a"], "waitForReady": true}}]));
    fixture.start(&pod("db", "running", "-"));
    fixture.after(9).await;
    assert!(fixture.cluster.fake.execs().is_empty());
    fixture.put(&pod("db", "ready", "-"));
    assert_eq!(fixture.finish().await, ((1, 0), 9, vec!["db:a".into()]));
}

#[tokio::test(start_paused = true)]
async fn pod_without_hooks_is_not_read() {
    let fixture = HookFixture::new(json!([]));
    fixture.start(&pod("db", "running", "running"));
    assert_eq!(fixture.finish().await, ((0, 0), 0, vec![]));
    assert!(fixture.cluster.fake.gets().is_empty());
}

#[tokio::test(start_paused = true)]
async fn first_running_container_runs_all_its_hooks_first() {
    let fixture = HookFixture::new(json!([
        hook("main", "a", "Fail"),
        hook("side", "b 3", "Fail"),
        hook("side", "c", "Fail"),
    ]));
    fixture.start(&pod("db", "-", "running"));
    // `main` starts while the first hook of `side` runs.
    fixture.after(1).await;
    fixture.put(&pod("db", "running", "running"));
    let (counts, _, commands) = fixture.finish().await;
    assert_eq!((counts, commands), ((3, 0), vec!["db:b 3".into(), "db:c".into(), "db:a".into()]));
}

#[tokio::test(start_paused = true)]
async fn expired_wait_fails_and_on_error_decides_about_the_rest() {
    for (on_error, counts, commands, seconds, end) in [
        ("Fail", (3, 3), vec![], 20, "; the 2 following hooks are skipped"),
        ("Continue", (3, 2), vec!["db:c".to_owned()], 601, ": waiting"),
    ] {
        let fixture = HookFixture::new(json!([
            {"exec": {"command": ["a"], "waitTimeout": "20s", "onError": on_error}},
            {"exec": {"command": ["b"], "onError": on_error}},
            {"exec": {"command": ["c"], "waitTimeout": "1h"}},
        ]));
        fixture.start(&pod("db", "-", "-"));
        if on_error == "Continue" {
            fixture.after(601).await;
            fixture.put(&pod("db", "running", "-"));
        }
        assert_eq!(fixture.finish().await, (counts, seconds, commands));
        let errors = fixture.errors();
        let begin = "pods/db: the hook \"x\" (spec.hooks) in the container \"main\" was not run: \
                     the container was not running within 20 s: waiting";
        assert!(errors[0].starts_with(begin) && errors[0].ends_with(end), "{errors:?}");
        let within = errors.get(1).is_none_or(|error| error.contains("within 600 s"));
        assert!(within, "the server's limit: {errors:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unready_container_is_waited_for_until_the_server_timeout() {
    let fixture = HookFixture::new(json!([{"exec": {"command": ["a"], "waitForReady": true}}]));
    fixture.start(&pod("db", "running", "-"));
    assert_eq!(fixture.finish().await, ((1, 1), 600, vec![]));
    let errors = fixture.errors();
    assert!(errors[0].ends_with("within 600 s: running, but not ready"), "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn hook_run_time_does_not_count_as_wait_of_the_next() {
    let fixture = HookFixture::new(json!([
        {"exec": {"command": ["a", "50"]}},
        {"exec": {"container": "side", "command": ["b"], "waitTimeout": "20s"}},
    ]));
    fixture.start(&pod("db", "running", "-"));
    fixture.after(65).await;
    fixture.put(&pod("db", "running", "running"));
    assert_eq!(fixture.finish().await, ((2, 0), 65, vec!["db:a 50".into(), "db:b".into()]));
}

#[tokio::test(start_paused = true)]
async fn deleted_pod_is_an_error() {
    let fixture = HookFixture::new(json!([hook("", "a", "Continue"), hook("", "b", "Continue")]));
    fixture.start(&pod("db", "-", "-"));
    fixture.start(&pod("ended", "-", "-"));
    fixture.start(&pod("replaced", "-", "-"));
    fixture.after(30).await;
    fixture.cluster.fake.remove("pods", "shop", "db");
    let mut ended = pod("ended", "-", "-");
    ended["status"]["phase"] = "Failed".into();
    fixture.put(&ended);
    let mut other = pod("replaced", "ready", "ready");
    other["metadata"]["uid"] = "another".into();
    fixture.put(&other);
    assert_eq!(fixture.finish().await, ((6, 6), 30, vec![]));
    let mut errors = fixture.errors();
    errors.sort();
    let expected_error = |pod: &str, reason: &str| {
        format!(
            "pods/{pod}: the hook \"x\" (spec.hooks) in the container \"main\" was not run: the \
             pod {reason}; the following hook is skipped"
        )
    };
    assert_eq!(
        errors,
        [
            expected_error("db", "has been deleted"),
            expected_error("ended", "ended in phase Failed"),
            expected_error("replaced", "was deleted and replaced by another"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn pod_without_uid_is_identified_by_the_first_read() {
    let fixture = HookFixture::new(json!([hook("", "a", "Fail")]));
    fixture.put(&pod("db", "-", "-"));
    let mut sent = pod("db", "-", "-");
    sent["metadata"]["uid"] = json!("");
    fixture.start_as(&sent);
    fixture.after(3).await;
    let mut other = pod("db", "running", "running");
    other["metadata"]["uid"] = "another".into();
    fixture.put(&other);
    assert_eq!(fixture.finish().await, ((1, 1), 3, vec![]));
    let errors = fixture.errors();
    assert!(errors[0].ends_with("and replaced by another"), "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn missing_container_fails_immediately() {
    for (on_error, counts, commands) in [
        ("Continue", (3, 1), vec!["db:a".to_owned(), "db:c".into()]),
        // Hooks before the failed one are not affected.
        ("Fail", (3, 2), vec!["db:a".into()]),
    ] {
        let hooks = [hook("", "a", "Fail"), hook("no", "b", on_error), hook("side", "c", "Fail")];
        let fixture = HookFixture::new(json!(hooks));
        fixture.start(&pod("db", "-", "-"));
        fixture.after(1).await;
        let errors = fixture.errors();
        let begin = "pods/db: the hook \"x\" (spec.hooks) in the container \"no\" was not run: the \
                     pod has no such container";
        assert!(errors.len() == 1 && errors[0].starts_with(begin), "{errors:?}");
        fixture.put(&pod("db", "running", "running"));
        assert_eq!(fixture.finish().await, (counts, 1, commands));
    }
}

#[tokio::test(start_paused = true)]
async fn failed_hook_stops_later_hooks_unless_on_error_continue() {
    let script: Script = |exec| match exec.command[0].as_str() {
        "bad" => {
            Ok(ExecOutcome { output: "no table\n".into(), failure: Some("exit code 1".into()) })
        }
        "slow" => Err(cluster::Error::ExecTimeout(exec.timeout)),
        _ => Ok(ExecOutcome { output: String::new(), failure: None }),
    };
    for (command, reason) in
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
            let fixture = HookFixture::answering(hooks, script);
            fixture.start(&pod("db", "running", "running"));
            let (counted, _, ran) = fixture.finish().await;
            assert_eq!(
                (counted, ran),
                (counts, commands.iter().map(ToString::to_string).collect())
            );
            let errors = fixture.errors();
            let begin = format!(
                "pods/db: the hook \"x\" (spec.hooks) in the container \"main\" failed: {reason}"
            );
            assert!(errors.len() == 1 && errors[0].starts_with(&begin), "{errors:?}");
            let stops = errors[0].ends_with("; the following hook is skipped");
            assert_eq!(stops, on_error == Some("Fail"), "{errors:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_pod_never_touches_the_hooks_of_another() {
    let script: Script = |exec| match exec.pod.as_str() {
        "bad" => Ok(ExecOutcome { output: String::new(), failure: Some("exit code 1".into()) }),
        "broken" => panic!("a defect"),
        _ => Ok(ExecOutcome { output: String::new(), failure: None }),
    };
    let hooks = json!([hook("", "a 9", "Fail"), hook("", "b", "Fail")]);
    let fixture = HookFixture::answering(hooks, script);
    fixture.start(&pod("stuck", "-", "-"));
    fixture.start(&pod("bad", "running", "-"));
    fixture.start(&pod("broken", "running", "-"));
    let mut unreadable = pod("unreadable", "running", "-");
    unreadable["metadata"]["annotations"] = json!({
        "post.hook.restore.velero.io/command": "[\"x\"",
    });
    fixture.start(&unreadable);
    fixture.start(&pod("one", "running", "-"));
    fixture.start(&pod("two", "running", "-"));
    fixture.after(1).await;
    let execs = fixture.cluster.fake.execs();
    let pods: BTreeSet<_> = execs.iter().map(|exec| exec.pod.as_str()).collect();
    assert_eq!(pods, BTreeSet::from(["bad", "broken", "one", "two"]), "side by side");
    let (counts, seconds, mut commands) = fixture.finish().await;
    assert_eq!((counts, seconds), ((11, 7), 600));
    commands[4..].sort();
    assert_eq!(commands[4..], ["one:b", "two:b"]);
    let errors = fixture.errors();
    for pod in ["stuck", "bad", "broken", "unreadable"] {
        let of_pod = errors.iter().filter(|error| error.starts_with(&format!("pods/{pod}: ")));
        assert_eq!(of_pod.count(), 1, "{errors:?}");
    }
    assert_eq!(errors.len(), 4, "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn unreachable_api_server_is_retried_until_the_wait_ends() {
    for (failures, ended) in [(5, ((1, 0), 5, vec!["db:a".into()])), (9999, ((1, 1), 600, vec![]))]
    {
        let fixture = HookFixture::new(json!([hook("", "a", "Fail")]));
        fixture.cluster.failures.store(failures, Ordering::Relaxed);
        fixture.start(&pod("db", "running", "-"));
        assert_eq!(fixture.finish().await, ended);
        let has_expected_errors =
            fixture.errors().iter().all(|error| error.ends_with("reached: connection refused"));
        assert!(has_expected_errors, "{:?}", fixture.errors());
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_pod_reads_are_limited() {
    let fixture = HookFixture::new(json!([hook("", "a", "Fail")]));
    for number in 0..100 {
        fixture.start(&pod(&format!("db-{number}"), "running", "-"));
    }
    assert_eq!(fixture.finish().await.0, (100, 0));
    assert_eq!(fixture.cluster.most.load(Ordering::Relaxed), MAX_CONCURRENT_CHECKS);
}

#[tokio::test(start_paused = true)]
async fn stop_ends_all_waits_immediately() {
    let long = json!({"exec": {"command": ["a", "100"], "onError": "Fail"}});
    let fixture = HookFixture::new(json!([long, {"exec": {"command": ["b"]}}]));
    fixture.start(&pod("waits", "-", "-"));
    fixture.start(&pod("runs", "running", "-"));
    fixture.after(3).await;
    // Between two checks.
    sleep(Duration::from_millis(500)).await;
    fixture.stop.cancel();
    fixture.start(&pod("late", "running", "-"));
    assert_eq!(fixture.finish().await, ((6, 6), 3, vec!["runs:a 100".into()]));
    let mut errors = fixture.errors();
    errors.sort();
    let hook = "the hook \"x\" (spec.hooks) in the container \"main\"";
    let rest = "; the following hook is skipped";
    assert_eq!(
        errors,
        [
            format!("pods/late: {hook} was not run: the restore was stopped{rest}"),
            format!(
                "pods/runs: {hook} was aborted: the restore was stopped; the command may still \
                 be running in the container{rest}"
            ),
            format!("pods/waits: {hook} was not run: the restore was stopped{rest}"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn commands_are_never_reported() {
    let script: Script =
        |_| Ok(ExecOutcome { output: String::new(), failure: Some("exit code 2".into()) });
    let fixture = HookFixture::answering(
        json!([hook("", "-psecret", "Continue"), hook("no", "secret", "Fail")]),
        script,
    );
    fixture.start(&pod("db", "running", "-"));
    assert_eq!(fixture.finish().await.0, (2, 2));
    assert!(!format!("{:?}", fixture.report).contains("secret"));
}
