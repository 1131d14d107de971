#![expect(clippy::needless_pass_by_value, reason = "`json!` makes values, not references")]

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, Ordering};

use bowline_plugin::Item;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::cluster::fake::Fake;
use crate::cluster::{self, Exec, ExecOutcome};
use crate::report::Report;

fn hooks(spec: Value) -> Hooks {
    try_hooks(spec).unwrap()
}

fn try_hooks(spec: Value) -> Result<Hooks, InvalidHooks> {
    let hooks: BackupHooks = serde_json::from_value(json!({"resources": spec})).unwrap();
    Hooks::new(&hooks, &Fake::usual().resources())
}

fn pod_with(annotations: Value, change: impl FnOnce(&mut Value)) -> Object {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "shop", "name": "db", "labels": {"app": "db"}, "annotations": annotations,
        },
        "spec": {"containers": [{"name": "main"}, {"name": "side"}]},
        "status": {"phase": "Running"},
    });
    change(&mut pod);
    let resource = Fake::usual().resources().core("pods").unwrap().clone();
    Object::new(&resource, Item::from_object(&pod).unwrap()).unwrap()
}

fn annotated(annotations: Value) -> Object {
    pod_with(annotations, |_| {})
}

fn pod() -> Object {
    annotated(json!({}))
}

fn exec(command: &str) -> Value {
    json!({"exec": {"command": [command]}})
}

/// The commands of hooks, in short form.
fn commands(hooks: &[Hook]) -> Vec<String> {
    hooks.iter().map(|hook| hook.command.join(" ")).collect()
}

#[test]
fn hooks_of_all_entries_that_fit_run_in_order() {
    let hooks = hooks(json!([
        {"name": "one", "pre": [exec("a"), exec("b")], "post": [exec("c")]},
        {"name": "two", "pre": [exec("d")]},
    ]));
    let plan = hooks.plan(&pod()).unwrap();
    assert_eq!(commands(&plan.pre), ["a", "b", "d"]);
    assert_eq!(commands(&plan.post), ["c"]);
    assert_eq!(
        plan.pre[2],
        Hook {
            source: Source::Spec("two".into()),
            container: "main".into(),
            command: vec!["d".into()],
            on_error: OnError::Fail,
            timeout: Duration::from_secs(30),
        }
    );
}

#[test]
fn an_entry_is_for_the_pods_that_it_selects() {
    for (selection, fits) in [
        (json!({}), true),
        (json!({"includedNamespaces": ["shop"]}), true),
        (json!({"includedNamespaces": ["sh*"]}), true),
        (json!({"includedNamespaces": ["*"]}), true),
        (json!({"includedNamespaces": ["blog"]}), false),
        (json!({"excludedNamespaces": ["shop"]}), false),
        (json!({"excludedNamespaces": ["s?op"]}), false),
        (json!({"includedNamespaces": ["*"], "excludedNamespaces": ["shop"]}), false),
        (json!({"includedResources": ["pods"]}), true),
        (json!({"includedResources": ["po"]}), true),
        (json!({"includedResources": ["*"]}), true),
        (json!({"includedResources": ["deployments.apps", "Pod"]}), true),
        (json!({"includedResources": ["deployments.apps"]}), false),
        (json!({"includedResources": ["unknown"]}), false),
        (json!({"excludedResources": ["po"]}), false),
        (json!({"excludedResources": ["secrets"]}), true),
        (json!({"labelSelector": {"matchLabels": {"app": "db"}}}), true),
        (json!({"labelSelector": {"matchLabels": {"app": "web"}}}), false),
        (json!({"labelSelector": {}}), true),
    ] {
        let mut entry = selection.clone();
        entry["name"] = "x".into();
        entry["pre"] = json!([exec("a")]);
        let plan = hooks(json!([entry])).plan(&pod()).unwrap();
        assert_eq!(!plan.is_empty(), fits, "{selection}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let wrong = try_hooks(json!([
        {"name": "good", "pre": [exec("a"), {}]},
        {
            "name": "bad",
            "includedNamespaces": ["[a"],
            "labelSelector": {"matchLabels": {"-": "x"}},
            "pre": [exec("a"), {"exec": {"command": []}}],
            "post": [
                {"exec": {"command": ["x"], "onError": "Panic"}},
                {"exec": {"command": ["x"], "timeout": "-1s"}},
            ],
        },
        // An entry that does not apply to pods is still checked.
        {"name": "other", "includedResources": ["secrets"], "pre": [{"exec": {}}]},
    ]))
    .unwrap_err()
    .0;
    let begins = [
        "hooks.resources[1] \"bad\": includedNamespaces: ",
        "hooks.resources[1] \"bad\": labelSelector: ",
        "hooks.resources[1] \"bad\": pre[1]: no command is set",
        "hooks.resources[1] \"bad\": post[0]: onError is \"Panic\"",
        "hooks.resources[1] \"bad\": post[1]: timeout is -1s",
        "hooks.resources[2] \"other\": pre[0]: no command is set",
    ];
    assert_eq!(wrong.len(), begins.len(), "{wrong:#?}");
    for (text, begin) in wrong.iter().zip(begins) {
        assert!(text.starts_with(begin), "{text}");
    }
}

#[test]
fn annotations_replace_the_hooks_of_the_backup_for_their_phase() {
    let hooks = hooks(json!([{"name": "x", "pre": [exec("a")], "post": [exec("z")]}]));
    let pre = "pre.hook.backup.velero.io/command";
    let post = "post.hook.backup.velero.io/command";
    let old = "hook.backup.velero.io/command";
    for (annotations, expected_pre, expected_post) in [
        (json!({}), "a", "z"),
        (json!({pre: "own"}), "own", "z"),
        (json!({post: "own"}), "a", "own"),
        (json!({pre: "own", post: "back"}), "own", "back"),
        (json!({old: "old"}), "old", "z"),
        (json!({old: "old", pre: "own"}), "own", "z"),
        (json!({pre: ""}), "a", "z"),
        // Without a command the others have no effect.
        (json!({"pre.hook.backup.velero.io/timeout": "nonsense"}), "a", "z"),
    ] {
        let plan = hooks.plan(&annotated(annotations.clone())).unwrap();
        assert_eq!(commands(&plan.pre), [expected_pre], "{annotations}");
        assert_eq!(commands(&plan.post), [expected_post], "{annotations}");
    }
}

#[test]
fn annotations_say_all_that_a_hook_needs() {
    let none = Hooks::default();
    let plan = none
        .plan(&annotated(json!({
            "post.hook.backup.velero.io/command": r#"["/bin/sh", "-c", "thaw it"]"#,
            "post.hook.backup.velero.io/container": "side",
            "post.hook.backup.velero.io/on-error": "Continue",
            "post.hook.backup.velero.io/timeout": "1m30s",
            "hook.backup.velero.io/command": "/bin/freeze it",
            "hook.backup.velero.io/timeout": "0s",
        })))
        .unwrap();
    let post = Hook {
        source: Source::Annotations,
        container: "side".into(),
        command: vec!["/bin/sh".into(), "-c".into(), "thaw it".into()],
        on_error: OnError::Continue,
        timeout: Duration::from_secs(90),
    };
    let pre = Hook {
        source: Source::Annotations,
        container: "main".into(),
        command: vec!["/bin/freeze it".into()],
        on_error: OnError::Fail,
        timeout: Duration::from_secs(30),
    };
    assert_eq!(plan, Plan { pre: vec![pre], post: vec![post] });
}

#[test]
fn unreadable_command_is_an_error_that_does_not_show_the_command() {
    for (key, value) in [
        ("pre.hook.backup.velero.io/command", r#"["mysql", "-psecret""#),
        ("pre.hook.backup.velero.io/command", r#"["mysql", 7, "secret"]"#),
        ("pre.hook.backup.velero.io/command", "[]"),
        ("post.hook.backup.velero.io/command", "[secret"),
        ("hook.backup.velero.io/command", "[secret"),
    ] {
        let mut annotations = json!({"post.hook.backup.velero.io/command": "x"});
        let old = key.starts_with("hook");
        annotations
            [if old { "hook" } else { "pre.hook" }.to_owned() + ".backup.velero.io/command"] =
            "x".into();
        annotations[key] = value.into();
        let error = Hooks::default().plan(&annotated(annotations)).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn a_setting_that_cannot_be_read_means_the_default_and_is_a_warning() {
    for (key, value) in [
        ("pre.hook.backup.velero.io/timeout", "soon"),
        ("pre.hook.backup.velero.io/timeout", "-3s"),
        ("pre.hook.backup.velero.io/on-error", "fail"),
        ("post.hook.backup.velero.io/timeout", "3"),
        ("hook.backup.velero.io/on-error", "Ignore"),
    ] {
        let old = if key.starts_with("hook") { "hook" } else { "pre.hook" };
        let mut annotations = json!({"post.hook.backup.velero.io/command": "x"});
        annotations[format!("{old}.backup.velero.io/command")] = "x".into();
        let expected = Hooks::default().plan_and_warn(&annotated(annotations.clone())).unwrap();
        annotations[key] = value.into();
        let planned = Hooks::default().plan_and_warn(&annotated(annotations)).unwrap();
        assert_eq!(planned.0, expected.0, "{key}: {value}");
        assert_eq!((planned.1.len(), expected.1.len()), (1, 0), "{planned:?}");
        assert!(planned.1[0].contains(key), "{planned:?}");
    }
}

#[test]
fn a_pod_that_has_ended_has_no_hooks() {
    let hooks = hooks(json!([{"name": "x", "pre": [exec("a")]}]));
    for (phase, has_hooks) in [
        ("Pending", true),
        ("Running", true),
        ("Unknown", true),
        ("Succeeded", false),
        ("Failed", false),
    ] {
        let own = json!({"post.hook.backup.velero.io/command": "x"});
        let pod = pod_with(own, |pod| pod["status"]["phase"] = phase.into());
        assert_eq!(!hooks.plan(&pod).unwrap().is_empty(), has_hooks, "{phase}");
    }
}

#[test]
fn a_pod_without_containers_cannot_have_hooks() {
    let hooks = hooks(json!([{"name": "x", "pre": [exec("a")]}]));
    let pod = pod_with(json!({}), |pod| pod["spec"] = json!({}));
    assert!(matches!(hooks.plan(&pod), Err(Error::NoContainer)));
    assert!(Hooks::default().plan(&pod).unwrap().is_empty());
}

/// Result of running the hooks of `spec` in a pod in which commands end as `script` says, and whether the pod is
/// backed up.
struct HookRunResult {
    outcome: PreOutcome,
    commands: Vec<String>,
    report: Report,
    tally: Tally,
}

type Script = fn(&Exec) -> cluster::Result<ExecOutcome>;

async fn run(spec: Value, script: Script) -> HookRunResult {
    let plan = hooks(json!([spec])).plan(&pod()).unwrap();
    let fake = Fake::usual().with_exec_script(script);
    let report = Report::default();
    // Every reading of the clock is a second later.
    let clock = AtomicI64::new(100);
    let now = move || Timestamp::from_second(clock.fetch_add(1, Ordering::Relaxed)).unwrap();
    let tally = Tally::new(now);
    let outcome = run_pre(&fake, &pod(), &plan, &report, &tally).await;
    thaw(&fake, &plan, &report, &tally).await;
    let commands = fake.execs().iter().map(|exec| exec.command.join(" ")).collect();
    HookRunResult { outcome, commands, report, tally }
}

/// Thaws the pod, once.
async fn thaw(fake: &Fake, plan: &Plan, report: &Report, tally: &Tally) {
    let pod = pod();
    let remaining =
        PodThaw::new(&pod, plan).run(HookContext { cluster: fake, report, tally }).await;
    assert!(remaining.is_none(), "everything was heard of");
}

fn good() -> ExecOutcome {
    ExecOutcome { output: "fine".into(), failure: None }
}

fn bad() -> ExecOutcome {
    let output = format!("{}the table is locked\n", "é".repeat(1000));
    ExecOutcome { output, failure: Some("exit code 1".into()) }
}

fn hook(command: &str, on_error: &str) -> Value {
    json!({"exec": {"command": [command], "onError": on_error}})
}

fn errors(report: &Report) -> Vec<String> {
    report.results().errors.namespaces.remove("shop").unwrap_or_default()
}

#[tokio::test]
async fn hooks_run_one_after_the_other_where_and_as_they_are_asked_for() {
    let fake = Fake::usual().with_exec_script(|_| Ok(good()));
    let spec = json!([{
        "name": "x",
        "pre": [exec("a"), {"exec": {"container": "side", "command": ["b", "c"], "timeout": "5s"}}],
        "post": [exec("d")],
    }]);
    let plan = hooks(spec).plan(&pod()).unwrap();
    let (report, tally) = (Report::default(), Tally::default());
    let outcome = run_pre(&fake, &pod(), &plan, &report, &tally).await;
    assert_eq!(outcome, PreOutcome { started: true, may_be_stored: true });
    let exec = |container: &str, command: &[&str], seconds| Exec {
        namespace: "shop".into(),
        pod: "db".into(),
        container: container.into(),
        command: command.iter().map(ToString::to_string).collect(),
        timeout: Duration::from_secs(seconds),
    };
    assert_eq!(fake.execs(), [exec("main", &["a"], 30), exec("side", &["b", "c"], 5)]);
    thaw(&fake, &plan, &report, &tally).await;
    assert_eq!(fake.execs()[2..], [exec("main", &["d"], 30)]);
    assert_eq!((report.error_count(), tally.counts()), (0, (3, 0)));
}

#[tokio::test]
async fn failed_pre_hook_with_on_error_fail_stops_hooks_and_excludes_the_pod() {
    let script: Script = |exec| Ok(if exec.command == ["b"] { bad() } else { good() });
    for on_error in [Some("Fail"), None] {
        let mut b = hook("b", "Fail");
        b["exec"]["onError"] = on_error.into();
        let spec =
            json!({"name": "x", "pre": [exec("a"), b, exec("c")], "post": [exec("y"), exec("z")]});
        let ran = run(spec, script).await;
        assert_eq!(ran.outcome, PreOutcome { started: true, may_be_stored: false });
        assert_eq!(ran.commands, ["a", "b", "y", "z"]);
        assert_eq!(ran.tally.counts(), (4, 1));
        let errors = errors(&ran.report);
        assert_eq!(errors.len(), 1);
        let begin = "pods/db: the pre-hook \"x\" of the backup in the container \"main\" failed: \
                     exit code 1: ";
        assert!(errors[0].starts_with(begin), "{errors:?}");
        let end = "the table is locked; the pod is not backed up";
        assert!(errors[0].ends_with(end), "{errors:?}");
        assert!(errors[0].len() < 800, "the output is cut: {errors:?}");
    }
}

#[tokio::test]
async fn failed_pre_hook_with_on_error_continue_is_reported_and_the_rest_runs() {
    let script: Script = |exec| Ok(if exec.command == ["a"] { bad() } else { good() });
    let spec = json!({"name": "x", "pre": [hook("a", "Continue"), exec("b")], "post": [exec("z")]});
    let ran = run(spec, script).await;
    assert_eq!(ran.outcome, PreOutcome { started: true, may_be_stored: true });
    assert_eq!(ran.commands, ["a", "b", "z"]);
    assert_eq!(ran.tally.counts(), (3, 1));
    let errors = errors(&ran.report);
    assert!(
        errors[0].ends_with("; the backup continues with the pod (onError: Continue)"),
        "{errors:?}"
    );
}

#[tokio::test]
async fn a_hook_that_does_not_end_in_time_has_been_started() {
    let script: Script = |exec| match exec.command[0].as_str() {
        "a" => Err(cluster::Error::ExecTimeout(exec.timeout)),
        _ => Ok(good()),
    };
    let spec = json!({"name": "x", "pre": [exec("a"), exec("b")], "post": [exec("z")]});
    let ran = run(spec, script).await;
    assert_eq!(ran.outcome, PreOutcome { started: true, may_be_stored: false });
    assert_eq!(ran.commands, ["a", "z"]);
    assert!(errors(&ran.report)[0].contains("did not end within 30 s"), "{:?}", ran.report);
}

#[tokio::test]
async fn a_pod_that_is_gone_has_nothing_started() {
    let script: Script = |_| {
        let (reason, message) = ("NotFound".into(), "pods \"db\" not found".into());
        Err(cluster::Error::Refused { code: 404, reason, message })
    };
    for (on_error, may_be_stored) in [("Fail", false), ("Continue", true)] {
        let ran = run(json!({"name": "x", "pre": [hook("a", on_error)]}), script).await;
        assert_eq!(ran.outcome, PreOutcome { started: false, may_be_stored });
        assert_eq!(errors(&ran.report).len(), 1);
        assert_eq!(ran.tally.take_freeze(&pod().id()), None);
    }
}

#[tokio::test]
async fn broken_connection_may_have_started_the_hook() {
    let script: Script = |_| Err(cluster::Error::Unreachable("connection reset".into()));
    let ran = run(json!({"name": "x", "pre": [exec("a")]}), script).await;
    assert_eq!(ran.outcome, PreOutcome { started: true, may_be_stored: false });
}

#[tokio::test]
async fn all_post_hooks_run_even_if_one_fails() {
    let script: Script = |exec| match exec.command[0].as_str() {
        "x" => Err(cluster::Error::ExecTimeout(exec.timeout)),
        "y" => Ok(bad()),
        _ => Ok(good()),
    };
    let post = json!([hook("x", "Fail"), hook("y", "Continue"), exec("z")]);
    let ran = run(json!({"name": "x", "post": post}), script).await;
    assert_eq!(ran.outcome, PreOutcome { started: false, may_be_stored: true });
    assert_eq!(ran.commands, ["x", "y", "z"]);
    assert_eq!(ran.tally.counts(), (3, 2));
    assert_eq!(errors(&ran.report).len(), 2);
}

#[tokio::test]
async fn the_freeze_lasts_from_the_first_pre_hook_to_the_end_of_the_last_post_hook() {
    let script: Script = |_| Ok(good());
    let pre = json!([exec("a"), exec("b")]);
    let ran = run(json!({"name": "x", "pre": pre, "post": [exec("y"), exec("z")]}), script).await;
    let windows = ran.tally.windows();
    assert_eq!(windows.len(), 1);
    let from = windows[0].start_timestamp.as_ref().unwrap().0;
    assert_eq!((from.as_second(), windows[0].milliseconds), (100, 3000));
    assert_eq!((windows[0].namespace.as_str(), windows[0].pod.as_str()), ("shop", "db"));

    let ran = run(json!({"name": "x", "pre": [exec("a")]}), script).await;
    assert_eq!(ran.tally.windows(), [], "its end is not known");
    let ran = run(json!({"name": "x", "post": [exec("z")]}), script).await;
    assert_eq!(ran.tally.windows(), [], "it was never frozen");
}

#[tokio::test]
async fn commands_are_never_logged_or_reported() {
    static COMMANDS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let script: Script = |exec| {
        COMMANDS.lock().push(exec.command[0].clone());
        Ok(ExecOutcome { output: String::new(), failure: Some("exit code 2".into()) })
    };
    let spec = json!({"name": "x", "pre": [exec("-psecret")], "post": [exec("-psecret")]});
    let ran = run(spec, script).await;
    assert_eq!(*COMMANDS.lock(), ["-psecret", "-psecret"]);
    assert!(!format!("{:?}", ran.report).contains("secret"));
}

thread_local! {
    /// Log lines of the test on this thread, while the test captures them.
    static CAPTURED_LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Subscriber of the whole test binary, which keeps the lines of threads that capture them.
///
/// A subscriber for one thread would miss lines: while it is the only one, `tracing` asks just the thread that reaches
/// a log statement first, so a test on another thread would disable that statement for good.
struct LogCapture;

impl LogCapture {
    fn start() {
        static INSTALLED: std::sync::Once = std::sync::Once::new();
        INSTALLED.call_once(|| {
            tracing::subscriber::set_global_default(Self).unwrap();
            // Statements that were reached while the subscriber was being installed are asked again.
            tracing::callsite::rebuild_interest_cache();
        });
        CAPTURED_LINES.set(Some(Vec::new()));
    }

    fn finish() -> Vec<String> {
        CAPTURED_LINES.take().unwrap()
    }
}

impl tracing::Subscriber for LogCapture {
    fn register_callsite(
        &self,
        _: &'static tracing::Metadata<'static>,
    ) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::sometimes()
    }

    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        CAPTURED_LINES.with_borrow(Option::is_some)
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut |field: &tracing::field::Field, value: &dyn fmt::Debug| {
            write!(line, " {field}={value:?}").unwrap();
        });
        CAPTURED_LINES.with_borrow_mut(|lines| lines.as_mut().unwrap().push(line));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn hook_output_is_logged_even_on_success() {
    let script: Script = |exec| {
        let output = format!("{} says hello\n", exec.command[0]);
        let failure = (exec.command[0] == "bad").then(|| "exit code 1".to_owned());
        Ok(ExecOutcome { output, failure })
    };
    let pre = json!([hook("good", "Fail"), hook("bad", "Continue")]);
    let spec = json!({"name": "x", "pre": pre, "post": [exec("thaw")]});
    LogCapture::start();
    run(spec, script).await;
    let lines = LogCapture::finish();
    for hook in ["good", "bad", "thaw"] {
        let words = ["INFO", "pods/shop/db", "main", &format!("{hook} says hello")];
        let is_reported = |line: &&String| words.iter().all(|word| line.contains(word));
        assert_eq!(lines.iter().filter(is_reported).count(), 1, "{hook}: {lines:#?}");
    }
}
