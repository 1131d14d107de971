use super::super::tests::{execute, restore};
use super::*;

fn annotated(annotations: &Value, init_containers: &Value) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {
            "namespace": "shop",
            "name": "web",
            "uid": "1-2-3",
            "labels": {"app": "web"},
            "annotations": annotations,
        },
        "spec": {"containers": [{"name": "main"}], "initContainers": init_containers},
    })
}

fn init(name: &str) -> Value {
    json!({"name": name, "image": "busybox", "command": ["/bin/true"]})
}

/// The resulting init containers of a pod.
async fn init_containers(pod: &Value, spec: &Value) -> Result<Value> {
    let restore = restore(spec.clone());
    let action = InitRestoreHook::new(&restore.spec.hooks);
    let output = execute(&action, pod, &restore).await?;
    let pod: Value = output.item.parse().unwrap();
    Ok(pod["spec"]["initContainers"].clone())
}

/// A restore with hooks, each with a selection and the names of its init containers.
fn hooks(hooks: &[(Value, &[&str])]) -> Value {
    let hook = |(selection, names): &(Value, &[&str])| {
        let containers: Vec<_> = names.iter().map(|name| init(name)).collect();
        let mut hook = selection.clone();
        hook["name"] = "h".into();
        hook["postHooks"] = json!([
            {"exec": {"command": ["/bin/true"]}},
            {"init": {"initContainers": containers}},
        ]);
        hook
    };
    json!({"hooks": {"resources": hooks.iter().map(hook).collect::<Vec<_>>()}})
}

#[tokio::test]
async fn annotations_add_one_container() {
    let image = "init.hook.restore.velero.io/container-image";
    let name = "init.hook.restore.velero.io/container-name";
    let command = "init.hook.restore.velero.io/command";
    for (annotations, expected) in [
        (
            json!({image: "busybox", name: "mine", command: "[\"/bin/sh\", \"-c\"]"}),
            json!({"name": "mine", "image": "busybox", "command": ["/bin/sh", "-c"]}),
        ),
        (
            json!({image: "busybox", name: "mine", command: "/bin/fix all"}),
            json!({"name": "mine", "image": "busybox", "command": ["/bin/fix all"]}),
        ),
        (
            json!({image: "busybox", name: "mine", command: "[]"}),
            json!({"name": "mine", "image": "busybox"}),
        ),
        (
            json!({image: "busybox", command: "/bin/true"}),
            json!({"name": "velero-restore-init-90955540", "image": "busybox", "command": ["/bin/true"]}),
        ),
    ] {
        let pod = annotated(&annotations, &json!([init("own")]));
        let after = init_containers(&pod, &json!({})).await.unwrap();
        assert_eq!(after, json!([expected, init("own")]), "{annotations}");
    }
}

#[tokio::test]
async fn an_annotation_without_a_command_or_with_a_broken_one_is_an_error() {
    for (command, words) in [
        (None, "without a command"),
        (Some(""), "without a command"),
        (Some("[ -f secret ]"), "is not a JSON list of strings"),
        (Some("[1]"), "is not a JSON list of strings"),
    ] {
        let mut annotations = json!({"init.hook.restore.velero.io/container-image": "busybox"});
        if let Some(command) = command {
            annotations["init.hook.restore.velero.io/command"] = command.into();
        }
        let pod = annotated(&annotations, &json!([]));
        let error = init_containers(&pod, &json!({})).await.unwrap_err();
        assert!(error.message().contains(words), "{error}");
        assert!(!error.message().contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn generated_name_depends_only_on_the_pod() {
    let name = |namespace: &str, name: &str, uid: &str| {
        let metadata =
            Metadata { namespace: namespace.into(), name: name.into(), ..<_>::default() };
        generated_name(&Pod { metadata }, uid)
    };
    assert_eq!(name("shop", "web", "1"), name("shop", "web", "1"));
    let names =
        [("shop", "web", "1"), ("shop", "web", "2"), ("shop", "api", "1"), ("x", "web", "1")];
    let names: std::collections::HashSet<_> =
        names.into_iter().map(|(space, pod, uid)| name(space, pod, uid)).collect();
    assert_eq!(names.len(), 4);
}

#[tokio::test]
async fn restore_hooks_apply_to_selected_pods() {
    let pod = annotated(&json!({}), &json!([init("own")]));
    for (selection, fits) in [
        (json!({}), true),
        (json!({"includedNamespaces": ["*"]}), true),
        // The target namespace of the pod counts.
        (json!({"includedNamespaces": ["new"]}), true),
        (json!({"includedNamespaces": ["n*"]}), true),
        (json!({"includedNamespaces": ["shop"]}), false),
        (json!({"excludedNamespaces": ["new"]}), false),
        (json!({"includedNamespaces": ["*"], "excludedNamespaces": ["n*"]}), false),
        (json!({"labelSelector": {"matchLabels": {"app": "web"}}}), true),
        (json!({"labelSelector": {"matchLabels": {"app": "db"}}}), false),
        (json!({"includedResources": ["deployments"]}), true),
    ] {
        let mut spec = hooks(&[(selection.clone(), &["one", "two"])]);
        spec["namespaceMapping"] = json!({"shop": "new"});
        let after = init_containers(&pod, &spec).await.unwrap();
        let expected = if fits {
            json!([init("one"), init("two"), init("own")])
        } else {
            json!([init("own")])
        };
        assert_eq!(after, expected, "{selection}");
    }
}

#[tokio::test]
async fn hook_containers_follow_restore_wait_and_precede_the_pods_own() {
    let spec = hooks(&[(json!({}), &["one"]), (json!({}), &["two", "three"])]);
    let own = |names: &[&str]| names.iter().map(|name| init(name)).collect::<Value>();
    for (before, after) in [
        (json!(null), own(&["one", "two", "three"])),
        (own(&["a", "b"]), own(&["one", "two", "three", "a", "b"])),
        (own(&["restore-wait", "b"]), own(&["restore-wait", "one", "two", "three", "b"])),
        (own(&["a", "restore-wait"]), own(&["one", "two", "three", "a", "restore-wait"])),
    ] {
        let pod = annotated(&json!({}), &before);
        assert_eq!(init_containers(&pod, &spec).await.unwrap(), after, "{before}");
    }
}

#[tokio::test]
async fn pod_annotations_replace_restore_hooks() {
    let annotations = json!({
        "init.hook.restore.velero.io/container-image": "busybox",
        "init.hook.restore.velero.io/container-name": "mine",
        "init.hook.restore.velero.io/command": "/bin/true",
    });
    let pod = annotated(&annotations, &json!([]));
    let after = init_containers(&pod, &hooks(&[(json!({}), &["one"])])).await.unwrap();
    assert_eq!(after, json!([init("mine")]));
}

#[tokio::test]
async fn containers_of_an_earlier_restore_are_replaced() {
    let named =
        |name: &str, command: &str| json!({"name": name, "image": "old", "command": [command]});
    let spec = hooks(&[(json!({}), &["one"])]);
    for (before, after) in [
        (json!([named("one", "/bin/true")]), json!([init("one")])),
        // Another container of this name belongs to the pod and must not be removed.
        (json!([named("one", "/bin/own")]), json!([init("one"), named("one", "/bin/own")])),
        (json!([named("two", "/bin/true")]), json!([init("one"), named("two", "/bin/true")])),
    ] {
        let pod = annotated(&json!({}), &before);
        assert_eq!(init_containers(&pod, &spec).await.unwrap(), after, "{before}");
    }
    let annotations = json!({
        "init.hook.restore.velero.io/container-image": "busybox",
        "init.hook.restore.velero.io/command": "/bin/true",
    });
    let before = json!([named("velero-restore-init-0", "/bin/true"), init("own")]);
    let after = init_containers(&annotated(&annotations, &before), &json!({})).await.unwrap();
    assert_eq!(after, json!([init("velero-restore-init-90955540"), init("own")]));
}

#[tokio::test]
async fn invalid_hook_is_an_error_on_pods() {
    let pod = annotated(&json!({}), &json!([]));
    let with = |hook: Value| {
        let mut spec = hooks(&[(json!({}), &["one"])]);
        for (key, value) in hook.as_object().unwrap() {
            spec["hooks"]["resources"][0][key] = value.clone();
        }
        spec
    };
    let of =
        |container: Value| with(json!({"postHooks": [{"init": {"initContainers": [container]}}]}));
    let incomplete = "restore hook \"h\": invalid InitContainer in restore hook, it doesn't have \
                      Command, Name or Image field";
    for (spec, words) in [
        (of(json!({"name": "a", "image": "b"})), incomplete),
        (of(json!({"name": "a", "image": "b", "command": []})), incomplete),
        (of(json!({"image": "b", "command": ["c"]})), incomplete),
        (of(json!({"name": "a", "command": ["c"]})), incomplete),
        (of(json!("a")), incomplete),
        (with(json!({"includedNamespaces": ["[a"]})), "restore hook \"h\": "),
        (with(json!({"labelSelector": {"matchLabels": {"-": "b"}}})), "restore hook \"h\": "),
    ] {
        let error = init_containers(&pod, &spec).await.unwrap_err();
        assert!(error.message().starts_with(words), "{error}");
    }
    // This action ignores exec hooks.
    let only_exec = json!({"postHooks": [{"exec": {"command": []}}], "includedNamespaces": ["[a"]});
    assert!(init_containers(&pod, &with(only_exec)).await.is_ok());
}
