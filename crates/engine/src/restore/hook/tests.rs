#![expect(clippy::needless_pass_by_value, reason = "`json!` makes values, not references")]

use bowline_plugin::Item;
use serde_json::{Value, json};

use super::pod_state::{HookStep, PodState};
use super::*;
use crate::cluster::Fake;

const COMMAND: &str = "post.hook.restore.velero.io/command";

fn hooks(spec: Value) -> Hooks {
    try_hooks(spec).unwrap()
}

fn try_hooks(spec: Value) -> Result<Hooks, InvalidHooks> {
    Hooks::new(&serde_json::from_value(json!({"resources": spec})).unwrap())
}

fn pod_with(annotations: Value, change: impl FnOnce(&mut Value)) -> Object {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "shop", "name": "db", "uid": "u", "labels": {"app": "db"},
            "annotations": annotations,
        },
        "spec": {
            "containers": [{"name": "main"}, {"name": "side"}],
            "initContainers": [
                {"name": "init"},
                {"name": "proxy", "restartPolicy": "Always"},
            ],
        },
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
    exec_in("", command)
}

fn exec_in(container: &str, command: &str) -> Value {
    json!({"exec": {"container": container, "command": [command]}})
}

fn commands(plan: &HookPlan) -> Vec<String> {
    plan.hooks.iter().map(|hook| hook.command.join(" ")).collect()
}

#[test]
fn hooks_of_all_entries_that_fit_run_in_order() {
    let hooks = hooks(json!([
        {"name": "one", "postHooks": [exec("a"), {"init": {}}, exec("b")]},
        {"name": "other", "includedNamespaces": ["blog"], "postHooks": [exec("c")]},
        {"name": "two", "postHooks": [{"exec": {
            "container": "side", "command": ["d", "e"], "onError": "Continue",
            "execTimeout": "1m", "waitTimeout": "5m", "waitForReady": true,
        }}]},
    ]));
    let plan = hooks.plan(&pod()).unwrap();
    assert_eq!(commands(&plan), ["a", "b", "d e"]);
    assert_eq!(
        plan.hooks[1],
        Hook {
            source: HookSource::Spec("one".into()),
            container: "main".into(),
            command: vec!["b".into()],
            on_error: OnError::Continue,
            exec_timeout: Duration::from_secs(30),
            wait_timeout: None,
            wait_for_ready: false,
        }
    );
    assert_eq!(
        plan.hooks[2],
        Hook {
            source: HookSource::Spec("two".into()),
            container: "side".into(),
            command: vec!["d".into(), "e".into()],
            on_error: OnError::Continue,
            exec_timeout: Duration::from_mins(1),
            wait_timeout: Some(Duration::from_mins(5)),
            wait_for_ready: true,
        }
    );
}

#[test]
fn hooks_of_a_container_are_grouped_and_share_wait_for_ready() {
    let ready = json!({"exec": {"container": "side", "command": ["d"], "waitForReady": true}});
    let hooks = hooks(json!([
        {"name": "one", "postHooks": [exec_in("side", "a"), exec("b"), exec_in("side", "c")]},
        {"name": "two", "postHooks": [ready, exec_in("main", "e")]},
    ]));
    let plan = hooks.plan(&pod()).unwrap();
    assert_eq!(commands(&plan), ["a", "c", "d", "b", "e"]);
    let waits: Vec<_> = plan.hooks.iter().map(|hook| hook.wait_for_ready).collect();
    assert_eq!(waits, [true, true, true, false, false]);
}

#[test]
fn hook_entry_applies_to_selected_pods() {
    for (selection, fits) in [
        (json!({}), true),
        (json!({"includedNamespaces": ["shop"]}), true),
        (json!({"includedNamespaces": ["sh*"]}), true),
        (json!({"includedNamespaces": ["blog"]}), false),
        (json!({"excludedNamespaces": ["s?op"]}), false),
        (json!({"includedNamespaces": ["*"], "excludedNamespaces": ["shop"]}), false),
        (json!({"labelSelector": {"matchLabels": {"app": "db"}}}), true),
        (json!({"labelSelector": {"matchLabels": {"app": "web"}}}), false),
        // Velero ignores the resources.
        (json!({"includedResources": ["deployments"]}), true),
        (json!({"excludedResources": ["pods"]}), true),
    ] {
        let mut entry = selection.clone();
        entry["name"] = "x".into();
        entry["postHooks"] = json!([exec("a")]);
        let plan = hooks(json!([entry])).plan(&pod()).unwrap();
        assert_eq!(!plan.is_empty(), fits, "{selection}");
    }
}

#[test]
fn only_pods_have_hooks() {
    let hooks = hooks(json!([{"name": "x", "postHooks": [exec("a")]}]));
    let fake = Fake::usual();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"namespace": "shop", "name": "db", "annotations": {COMMAND: "own"}},
    });
    let resource = fake.resources().core("secrets").unwrap().clone();
    let secret = Object::new(&resource, Item::from_object(&secret).unwrap()).unwrap();
    assert!(hooks.plan(&secret).unwrap().is_empty());
}

#[test]
fn all_invalid_hooks_are_reported_together() {
    let errors = try_hooks(json!([
        {"name": "good", "postHooks": [exec("a"), {}]},
        {
            "name": "bad",
            "includedNamespaces": ["[a"],
            "excludedNamespaces": ["{b"],
            "labelSelector": {"matchLabels": {"-": "x"}},
            "postHooks": [
                exec("a"),
                {"exec": {"command": []}},
                {"exec": {"command": ["x"], "onError": "Panic"}},
                {"exec": {"command": ["x"], "execTimeout": "-1s"}},
                {"exec": {"command": ["x"], "waitTimeout": "-2s"}},
            ],
        },
    ]))
    .unwrap_err()
    .messages();
    let begins = [
        "hooks.resources[1] \"bad\": includedNamespaces: ",
        "hooks.resources[1] \"bad\": excludedNamespaces: ",
        "hooks.resources[1] \"bad\": labelSelector: ",
        "hooks.resources[1] \"bad\": postHooks[1]: no command is set",
        "hooks.resources[1] \"bad\": postHooks[2]: onError is \"Panic\"",
        "hooks.resources[1] \"bad\": postHooks[3]: execTimeout is -1s",
        "hooks.resources[1] \"bad\": postHooks[4]: waitTimeout is -2s",
    ];
    assert_eq!(errors.len(), begins.len(), "{errors:#?}");
    for (text, begin) in errors.iter().zip(begins) {
        assert!(text.starts_with(begin), "{text}");
    }
}

#[test]
fn annotations_replace_the_hooks_of_the_restore() {
    let hooks = hooks(json!([{"name": "x", "postHooks": [exec("a"), exec("b")]}]));
    for (annotations, expected) in [
        (json!({}), ["a", "b"].as_slice()),
        (json!({COMMAND: "own"}), &["own"]),
        (json!({COMMAND: ""}), &["a", "b"]),
        // Without a command the other annotations have no effect.
        (json!({"post.hook.restore.velero.io/wait-timeout": "nonsense"}), &["a", "b"]),
    ] {
        let plan = hooks.plan(&annotated(annotations.clone())).unwrap();
        assert_eq!(commands(&plan), expected, "{annotations}");
    }
}

#[test]
fn hook_is_fully_configured_by_annotations() {
    let annotations = json!({
        COMMAND: r#"["/bin/sh", "-c", "load it"]"#,
        "post.hook.restore.velero.io/container": "side",
        "post.hook.restore.velero.io/on-error": "Continue",
        "post.hook.restore.velero.io/exec-timeout": "45s",
        "post.hook.restore.velero.io/wait-timeout": "5m",
        "post.hook.restore.velero.io/wait-for-ready": "True",
    });
    let all = Hook {
        source: HookSource::Annotations,
        container: "side".into(),
        command: vec!["/bin/sh".into(), "-c".into(), "load it".into()],
        on_error: OnError::Continue,
        exec_timeout: Duration::from_secs(45),
        wait_timeout: Some(Duration::from_mins(5)),
        wait_for_ready: true,
    };
    let plan = Hooks::default().plan(&annotated(annotations)).unwrap();
    assert_eq!(plan.hooks, [all]);

    let annotations = json!({
        COMMAND: "/bin/load it",
        "post.hook.restore.velero.io/exec-timeout": "0s",
        "post.hook.restore.velero.io/wait-timeout": "0s",
        "post.hook.restore.velero.io/wait-for-ready": "false",
    });
    let least = Hook {
        source: HookSource::Annotations,
        container: "main".into(),
        command: vec!["/bin/load it".into()],
        on_error: OnError::Continue,
        exec_timeout: Duration::from_secs(30),
        wait_timeout: None,
        wait_for_ready: false,
    };
    let plan = Hooks::default().plan(&annotated(annotations)).unwrap();
    assert_eq!(plan.hooks, std::slice::from_ref(&least));
    let plan = Hooks::default().plan(&annotated(json!({COMMAND: "/bin/load it"}))).unwrap();
    assert_eq!(plan.hooks, [least]);
}

#[test]
fn unreadable_annotation_uses_the_default_with_a_warning() {
    let default = Hooks::default().plan(&annotated(json!({COMMAND: "x"}))).unwrap();
    assert!(default.warnings.is_empty());
    for (key, value) in [
        ("on-error", "fail"),
        ("exec-timeout", "soon"),
        ("exec-timeout", "30"),
        ("exec-timeout", "-3s"),
        ("wait-timeout", "3"),
        ("wait-timeout", "-1m"),
        ("wait-for-ready", "yes"),
    ] {
        let key = format!("post.hook.restore.velero.io/{key}");
        let mut annotations = json!({COMMAND: "x"});
        annotations[&key] = value.into();
        let plan = Hooks::default().plan(&annotated(annotations)).unwrap();
        assert_eq!(plan.hooks, default.hooks, "{key}: {value}");
        let [warning] = &plan.warnings[..] else { panic!("{key}: {:?}", plan.warnings) };
        assert!(warning.contains(&key) && warning.contains("the default"), "{warning}");
    }
}

#[test]
fn unreadable_command_is_an_error_without_the_command_text() {
    for (key, value) in [
        ("command", r#"["mysql", "-psecret""#),
        ("command", r#"["mysql", 7, "secret"]"#),
        ("command", "[]"),
    ] {
        let key = format!("post.hook.restore.velero.io/{key}");
        let mut annotations = json!({COMMAND: "x"});
        annotations[&key] = value.into();
        let error = Hooks::default().plan(&annotated(annotations)).unwrap_err().to_string();
        assert!(error.contains(&key), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn a_pod_without_containers_cannot_have_hooks() {
    let pod = pod_with(json!({COMMAND: "x"}), |pod| pod["spec"] = json!({}));
    assert!(matches!(Hooks::default().plan(&pod), Err(Error::NoContainer)));
}

const DEFAULT: Duration = Duration::from_mins(10);

/// The next step for the hooks of a pod with a status, after a time of waiting. If hooks cannot run: the hook, unless
/// it is all of them, and the text of the reason.
fn step(hooks: Value, status: Value, waited: u64) -> Result<HookStep, (Option<usize>, String)> {
    let plan = self::hooks(json!([{"name": "x", "postHooks": hooks}])).plan(&pod()).unwrap();
    let pod = pod_with(json!({}), |pod| pod["status"] = status);
    let state = PodState::new(Some(&pod), Some("u"));
    match state.step(&plan.hooks, Duration::from_secs(waited), DEFAULT) {
        HookStep::GiveUp(at, reason) => Err((Some(at), reason.to_string())),
        HookStep::GiveUpAll(end) => Err((None, end.to_string())),
        step => Ok(step),
    }
}

fn up(name: &str, ready: bool) -> Value {
    json!({"name": name, "ready": ready, "state": {"running": {"startedAt": "now"}}})
}

#[test]
fn next_hook_is_the_first_with_a_running_container() {
    let ready =
        |name: &str| json!({"exec": {"container": name, "command": ["r"], "waitForReady": true}});
    let waiting = |name: &str| json!({"name": name, "state": {"waiting": {"reason": "Slow"}}});
    let both = json!([exec("a"), exec_in("side", "b")]);
    let second = Duration::from_secs(1);
    for (hooks, containers, expected) in [
        (&both, json!(null), HookStep::Wait(second)),
        (&both, json!([waiting("main"), waiting("side")]), HookStep::Wait(second)),
        (&both, json!([up("main", false), up("side", false)]), HookStep::Run(0)),
        (&both, json!([waiting("main"), up("side", false)]), HookStep::Run(1)),
        (&json!([ready("main")]), json!([up("main", false)]), HookStep::Wait(second)),
        (&json!([ready("main")]), json!([up("main", true)]), HookStep::Run(0)),
        (&json!([exec("a"), ready("side")]), json!([up("side", true)]), HookStep::Run(1)),
    ] {
        let status = json!({"phase": "Pending", "containerStatuses": containers});
        assert_eq!(step(hooks.clone(), status.clone(), 0), Ok(expected), "{hooks} {status}");
    }
    let status = json!({"initContainerStatuses": [up("proxy", true)]});
    assert_eq!(step(json!([ready("proxy")]), status, 0), Ok(HookStep::Run(0)), "a sidecar");
}

#[test]
fn a_container_that_the_pod_does_not_have_is_never_waited_for() {
    let up = json!({"containerStatuses": [up("main", true)]});
    let give_up = |at| Err((Some(at), "the pod has no such container".to_owned()));
    for name in ["nobody", "init"] {
        assert_eq!(step(json!([exec_in(name, "a")]), json!({}), 0), give_up(0));
        assert_eq!(step(json!([exec("a"), exec_in(name, "b")]), up.clone(), 0), give_up(1));
    }
}

#[test]
fn wait_ends_at_the_hook_or_server_timeout() {
    let wait = |seconds: &str| json!({"exec": {"command": ["w"], "waitTimeout": seconds}});
    let within = |seconds: &str, reason: &str| {
        format!("the container was not running within {seconds} s: {reason}")
    };
    let terminated = json!({"name": "main", "state": {"terminated": {"reason": "Error"}}});
    let pulls = json!({"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}});
    let empty = json!({"name": "main", "state": {"waiting": {}}});
    for (hooks, container, waited, expected) in [
        (json!([exec("a")]), json!({}), 599, Ok(1000)),
        (json!([exec("a")]), json!({}), 600, Err((0, within("600", "not started")))),
        (json!([wait("1500ms")]), json!({}), 1, Ok(500)),
        (json!([wait("2s")]), pulls, 2, Err((0, within("2", "waiting: ImagePullBackOff")))),
        (json!([wait("2s")]), empty, 2, Err((0, within("2", "waiting")))),
        (json!([wait("5s"), wait("2s")]), terminated, 3, {
            Err((1, within("2", "terminated: Error")))
        }),
        (json!([wait("1h")]), json!({}), 700, Ok(1000)),
        // A hook whose container is up runs, however late.
        (json!([wait("1s")]), up("main", false), 9, Err((0, String::new()))),
    ] {
        let case = format!("{hooks} {container} {waited}");
        let expected = match expected {
            Ok(milliseconds) => Ok(HookStep::Wait(Duration::from_millis(milliseconds))),
            Err((at, reason)) if reason.is_empty() => Ok(HookStep::Run(at)),
            Err((at, reason)) => Err((Some(at), reason)),
        };
        let status = json!({"containerStatuses": [container]});
        assert_eq!(step(hooks, status, waited), expected, "{case}");
    }
    let ready = json!([{"exec": {"command": ["r"], "waitForReady": true}}]);
    let status = json!({"containerStatuses": [up("main", false)]});
    let reason = "the container was not ready within 600 s: running, but not ready";
    assert_eq!(step(ready, status, 600), Err((Some(0), reason.into())));
}

#[test]
fn no_hook_runs_in_an_ended_pod() {
    let ended_reason = |found: Option<Object>, uid| match PodState::new(found.as_ref(), Some(uid)) {
        PodState::Ended(end) => end.to_string(),
        other => panic!("{other:?}"),
    };
    let with = |change: fn(&mut Value)| Some(pod_with(json!({}), change));
    assert_eq!(ended_reason(None, "u"), "the pod has been deleted");
    assert_eq!(ended_reason(with(|_| {}), "v"), "the pod was deleted and replaced by another");
    let deleted = with(|pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    assert_eq!(ended_reason(deleted, "u"), "the pod is being deleted");
    let ended = with(|pod| pod["status"]["phase"] = "Succeeded".into());
    assert_eq!(ended_reason(ended, "u"), "the pod ended in phase Succeeded");
    let failed = json!({"phase": "Failed", "containerStatuses": [up("main", true)]});
    let reason = "the pod ended in phase Failed";
    assert_eq!(step(json!([exec("a")]), failed, 0), Err((None, reason.into())));
}
