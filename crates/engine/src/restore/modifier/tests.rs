use std::fmt::Write as _;

use serde_json::json;

use super::*;
use crate::report::error_text;

fn parse(yaml: &str) -> Result<Modifiers, InvalidModifiers> {
    Modifiers::parse(&BTreeMap::from([("rules.yaml".to_owned(), yaml.to_owned())]))
}

/// A document with one rule.
fn rule(conditions: &str, patches: &str) -> String {
    format!(
        "version: v1\nresourceModifierRules:\n- conditions:\n    {conditions}\n  {patches}\n",
        conditions = conditions.replace('\n', "\n    "),
        patches = patches.replace('\n', "\n  "),
    )
}

fn kind(name: &str) -> GroupResource {
    let (resource, group) = name.split_once('.').unwrap_or((name, ""));
    GroupResource::new(group, resource)
}

fn claim() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data-0", "namespace": "shop", "labels": {"app": "db"}},
        "spec": {"storageClassName": "standard", "accessModes": ["ReadWriteOnce"]},
    })
}

const TO_GOLD: &str =
    "patches:\n- operation: replace\n  path: /spec/storageClassName\n  value: gold";

#[test]
fn a_document_is_read_strictly() {
    let good = rule("groupResource: pods", TO_GOLD);
    for (yaml, was_read, words) in [
        ("version: [", false, "failed to decode"),
        ("version1: v1", false, "version1"),
        (&good.replace("groupResource", "groupresource"), false, "groupresource"),
        (&good.replace("operation", "op"), false, "`op`"),
        (&format!("{good}version: v1\n"), false, "duplicate"),
        (
            &good.replace("version: v1", "version: v2"),
            true,
            "unsupported resource modifier version v2",
        ),
        (&good.replace("version: v1", ""), true, "unsupported resource modifier version"),
        ("version: v1", true, "rules cannot be empty"),
        ("version: v1\nresourceModifierRules: []", true, "rules cannot be empty"),
        (&rule("groupResource: \"\"", TO_GOLD), true, "groupResource cannot be empty"),
        (&rule("namespaces: [a]", TO_GOLD), true, "groupResource cannot be empty"),
        (&rule("groupResource: \"[a\"", TO_GOLD), true, "pattern"),
        (&rule("groupResource: pods\nnamespaces: [\"{a\"]", TO_GOLD), true, "pattern"),
        (
            &rule("groupResource: pods\nresourceNameRegex: \"(\"", TO_GOLD),
            true,
            "resourceNameRegex",
        ),
        (
            &rule("groupResource: pods\nlabelSelector:\n  matchLabels:\n    a b: c", TO_GOLD),
            true,
            "label selector",
        ),
        (&rule("groupResource: pods\nmatches:\n- value: x", TO_GOLD), true, "path cannot be empty"),
        (&rule("groupResource: pods", "patches: []"), true, "no patch data"),
        (
            &rule(
                "groupResource: pods",
                &format!("{TO_GOLD}\nmergePatches:\n- patchData: \"{{}}\""),
            ),
            true,
            "only one of",
        ),
        (&good.replace("replace", "change"), true, "unsupported operation change"),
        (&good.replace("operation: replace", "operation: \"\""), true, "operation cannot be empty"),
        (&good.replace("/spec/storageClassName", "\"\""), true, "path cannot be empty"),
        (&good.replace("/spec/storageClassName", "spec.x"), true, "not a JSON pointer"),
        (&good.replace("value: gold", "value: \"{gold\""), true, "not valid JSON"),
        (
            &rule("groupResource: pods", "patches:\n- operation: copy\n  path: /a"),
            true,
            "path cannot be empty",
        ),
        (&rule("groupResource: pods", "mergePatches:\n- patchData: \"a: b:\""), true, "patchData"),
        (&rule("groupResource: pods", "mergePatches:\n- patchData: \"[1]\""), true, "the fields"),
        (&rule("groupResource: pods", "strategicPatches:\n- patchData: \"\""), true, "the fields"),
    ] {
        let error = parse(yaml).expect_err(yaml);
        assert_eq!(error.is_decoded(), was_read, "{yaml}: {error}");
        let text = error_text(&error);
        assert!(text.contains(words), "{yaml}: {text}");
    }
    assert!(parse(&good).is_ok());
    assert!(parse(&good.replace("version: v1", "version: V1")).is_ok());
    assert!(parse(&good.replace("replace", "Replace")).is_ok());
}

#[test]
fn a_configmap_has_one_document() {
    let text = rule("groupResource: pods", TO_GOLD);
    for count in [0, 2] {
        let data = (0..count).map(|number| (number.to_string(), text.clone())).collect();
        assert!(matches!(Modifiers::parse(&data), Err(InvalidModifiers::Keys(_))), "{count}");
    }
}

#[test]
fn a_rule_is_for_objects_that_meet_all_its_conditions() {
    let claims = "groupResource: persistentvolumeclaims";
    let selector =
        |value: &str| format!("{claims}\nlabelSelector:\n  matchLabels:\n    app: {value}");
    let matches =
        |path: &str, value: &str| format!("{claims}\nmatches:\n- path: {path}\n  value: {value}");
    for (conditions, expected) in [
        (claims.to_owned(), true),
        ("groupResource: \"*\"".to_owned(), true),
        ("groupResource: \"*.apps\"".to_owned(), false),
        ("groupResource: persistentvolumeclaim".to_owned(), false),
        (format!("{claims}\nnamespaces: [shop]"), true),
        (format!("{claims}\nnamespaces: [\"sh*\"]"), true),
        (format!("{claims}\nnamespaces: [web]"), false),
        (format!("{claims}\nnamespaces: []"), true),
        (format!("{claims}\nresourceNameRegex: \"^data-.*$\""), true),
        (format!("{claims}\nresourceNameRegex: \"ata\""), true),
        (format!("{claims}\nresourceNameRegex: \"^ata\""), false),
        (format!("{claims}\nresourceNameRegex: \"\""), true),
        (selector("db"), true),
        (selector("web"), false),
        (matches("/spec/storageClassName", "standard"), true),
        (matches("/spec/storageClassName", "gold"), false),
        (matches("/spec/accessModes/0", "ReadWriteOnce"), true),
        (matches("/spec/accessModes/7", "ReadWriteOnce"), false),
        (matches("/spec/nothing/here", "x"), false),
        (matches("/spec/nothing", "\"null\""), true),
        (matches("/spec/storageClassName", "\"null\""), false),
    ] {
        let modifiers = parse(&rule(&conditions, TO_GOLD)).unwrap();
        let mut object = claim();
        assert!(modifiers.apply(&kind("persistentvolumeclaims"), &mut object).is_empty());
        let changed = object["spec"]["storageClassName"] == "gold";
        assert_eq!(changed, expected, "{conditions}");
    }
}

#[test]
fn cluster_scoped_object_matches_any_namespace() {
    let yaml = rule(
        "groupResource: storageclasses.storage.k8s.io\nnamespaces: [a]",
        "mergePatches:\n- patchData: '{\"reclaimPolicy\": \"Retain\"}'",
    );
    let mut object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "x"}});
    let errors = parse(&yaml).unwrap().apply(&kind("storageclasses.storage.k8s.io"), &mut object);
    assert!(errors.is_empty());
    assert_eq!(object["reclaimPolicy"], "Retain");
}

#[test]
fn rules_match_the_original_object_and_changes_accumulate() {
    let one = |from: &str, to: &str| {
        format!(
            "- conditions:\n    groupResource: persistentvolumeclaims\n    matches:\n    - path: \
             /spec/storageClassName\n      value: {from}\n  patches:\n  - operation: replace\n    \
             path: /spec/storageClassName\n    value: {to}\n"
        )
    };
    for (rules, expected) in [
        ([one("standard", "premium"), one("premium", "gold")], "premium"),
        ([one("standard", "premium"), one("standard", "gold")], "gold"),
    ] {
        let yaml = format!("version: v1\nresourceModifierRules:\n{}{}", rules[0], rules[1]);
        let mut object = claim();
        assert!(
            parse(&yaml).unwrap().apply(&kind("persistentvolumeclaims"), &mut object).is_empty()
        );
        assert_eq!(object["spec"]["storageClassName"], expected);
    }
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "labels": {"a": "b"}},
        "spec": {
            "replicas": 1,
            "template": {"spec": {"containers": [{"name": "nginx", "image": "nginx:1"}]}},
        },
    })
}

fn modified(patches: &str, mut object: Value) -> Result<Value, String> {
    let modifiers = parse(&rule("groupResource: \"**\"", patches)).unwrap();
    let mut errors = modifiers.apply(&kind("deployments.apps"), &mut object);
    match errors.pop() {
        Some(error) => Err(error.to_string()),
        None => Ok(object),
    }
}

/// The patches of a rule, from rows of operation, from, path and value.
fn json_patches(rows: &[(&str, &str, &str, &str)]) -> String {
    let mut yaml = String::from("patches:");
    for (operation, from, path, value) in rows {
        write!(yaml, "\n- operation: {operation}\n  path: {path}").unwrap();
        for (field, text) in [("from", from), ("value", value)] {
            if !text.is_empty() {
                write!(yaml, "\n  {field}: {}", json!(text)).unwrap();
            }
        }
    }
    yaml
}

#[test]
fn json_patch_is_all_or_nothing() {
    let containers = "/spec/template/spec/containers";
    let mysql = r#"{"name": "mysql", "image": "mysql:8"}"#;
    let first = format!("{containers}/0");
    let second = format!("{containers}/1");
    let last = format!("{containers}/-");
    for (rows, pointer, expected) in [
        (
            vec![("test", "", "/spec/replicas", "1"), ("replace", "", "/spec/replicas", "2")],
            "/spec/replicas",
            json!(2),
        ),
        (
            vec![("test", "", "/spec/replicas", "5"), ("replace", "", "/spec/replicas", "2")],
            "/spec/replicas",
            json!(1),
        ),
        // Operations before the test are rolled back.
        (
            vec![("replace", "", "/spec/replicas", "2"), ("test", "", "/spec/replicas", "5")],
            "/spec/replicas",
            json!(1),
        ),
        (
            vec![("test", "", "/spec/nothing/here", "5"), ("replace", "", "/spec/replicas", "2")],
            "/spec/replicas",
            json!(1),
        ),
        (vec![("add", "", &last, mysql)], "/spec/template/spec/containers/1/name", json!("mysql")),
        (vec![("add", "", &first, mysql)], "/spec/template/spec/containers/1/name", json!("nginx")),
        (
            vec![
                ("copy", &first, &second, ""),
                ("replace", "", "/spec/template/spec/containers/1/name", "b"),
            ],
            "/spec/template/spec/containers/1",
            json!({"name": "b", "image": "nginx:1"}),
        ),
        (
            vec![("move", "/metadata/labels/a", "/metadata/labels/c", "")],
            "/metadata/labels",
            json!({"c": "b"}),
        ),
        (vec![("remove", "", "/metadata/labels/a", "")], "/metadata/labels", json!({})),
        (
            vec![("add", "", "/metadata/labels/x~1y", "\"true\"")],
            "/metadata/labels/x~1y",
            json!("true"),
        ),
        (vec![("replace", "", "/spec/replicas", "null")], "/spec/replicas", json!(null)),
    ] {
        let object = modified(&json_patches(&rows), deployment()).unwrap();
        assert_eq!(object.pointer(pointer), Some(&expected), "{rows:?}");
    }
    for rows in [
        vec![("remove", "", "/metadata/labels/x", "")],
        vec![("replace", "", "/spec/nothing", "1")],
        vec![("add", "", "/spec/nothing/here", "1")],
        vec![("copy", "/spec/nothing", "/spec/x", "")],
        vec![("replace", "", "/kind", "\"\"")],
        vec![("remove", "", "/metadata/name", "")],
        vec![("replace", "", "/metadata", "1")],
    ] {
        let mut object = deployment();
        let modifiers = parse(&rule("groupResource: \"**\"", &json_patches(&rows))).unwrap();
        assert_eq!(modifiers.apply(&kind("pods"), &mut object).len(), 1, "{rows:?}");
        assert_eq!(object, deployment(), "{rows:?}");
    }
}

#[test]
fn copies_cannot_grow_without_limit() {
    let paths: Vec<_> = (0..60).map(|number| format!("/spec/x{number}")).collect();
    let doubled: Vec<_> = paths.iter().map(|path| ("copy", "/spec", path.as_str(), "")).collect();
    let error = modified(&json_patches(&doubled), deployment()).unwrap_err();
    assert!(error.contains("copies more than"), "{error}");
    let nested = vec![("copy", "/spec", "/spec/x", ""); 200];
    let error = modified(&json_patches(&nested), deployment()).unwrap_err();
    assert!(error.contains("levels"), "{error}");
}

#[test]
fn merge_patches_set_and_remove() {
    let patch = "mergePatches:\n- patchData: |\n    metadata:\n      labels:\n        a: null\n        \
                 c: d\n- patchData: '{\"spec\": {\"template\": {\"spec\": {\"containers\": []}}}}'";
    let object = modified(patch, deployment()).unwrap();
    assert_eq!(object["metadata"]["labels"], json!({"c": "d"}));
    assert_eq!(object["spec"], json!({"replicas": 1, "template": {"spec": {"containers": []}}}));
}

#[test]
fn failed_rule_does_not_block_other_rules() {
    let yaml = "version: v1\nresourceModifierRules:\n- conditions: {groupResource: '**'}\n  patches: \
                [{operation: remove, path: /x}]\n- conditions: {groupResource: '**'}\n  mergePatches: \
                [{patchData: '{\"spec\": {\"replicas\": 3}}'}]\n";
    let mut object = deployment();
    let errors = parse(yaml).unwrap().apply(&kind("deployments.apps"), &mut object);
    assert_eq!(errors.len(), 1);
    assert_eq!(object["spec"]["replicas"], 3);
}

/// Applies a strategic patch to an object with this spec, and returns the resulting spec.
fn merged(
    api_version: &str,
    of_kind: &str,
    before: &Value,
    patch: &Value,
) -> Result<Value, String> {
    let object = json!({"apiVersion": api_version, "kind": of_kind,
        "metadata": {"name": "x", "finalizers": ["a", "b"]}, "spec": before});
    let patch = json!({"spec": patch}).to_string().replace('\'', "''");
    let object = modified(&format!("strategicPatches:\n- patchData: '{patch}'"), object)?;
    Ok(object["spec"].clone())
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn strategic_patches_merge_lists_by_their_keys() {
    let pod = |before, patch, after| ("v1", "Pod", before, patch, after);
    for (api_version, of_kind, before, patch, after) in [
        pod(
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}),
            json!({"containers": [{"name": "b", "image": "2"}]}),
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}),
        ),
        // New elements come first, as in Kubernetes.
        pod(
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"name": "c"}]}),
            json!({"containers": [{"name": "c"}, {"name": "a"}]}),
        ),
        pod(
            json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y"}],
                "ports": [{"containerPort": 80}], "volumeMounts": [{"mountPath": "/a",
                    "name": "v"}],
                "args": ["x", "y"]}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}],
                "ports": [{"containerPort": 80, "name": "http"}],
                "volumeMounts": [{"mountPath": "/a", "name": "w"}], "args": ["z"]}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}, {"name": "Y"}],
                "ports": [{"containerPort": 80, "name": "http"}],
                "volumeMounts": [{"mountPath": "/a", "name": "w"}], "args": ["z"]}]}),
        ),
        pod(
            json!({"tolerations": [{"key": "a"}], "imagePullSecrets": [{"name": "a"}],
                "hostAliases": [{"ip": "1", "hostnames": ["x"]}]}),
            json!({"tolerations": [{"key": "b"}], "imagePullSecrets": [{"name": "b"}],
                "hostAliases": [{"ip": "1", "hostnames": ["y"]}]}),
            json!({"tolerations": [{"key": "b"}],
                "imagePullSecrets": [{"name": "b"}, {"name": "a"}],
                "hostAliases": [{"ip": "1", "hostnames": ["y"]}]}),
        ),
        pod(
            json!({"volumes": [{"name": "v", "nfs": {"path": "/"}}, {"name": "w"}]}),
            json!({"volumes": [{"name": "v", "nfs": null,
                "persistentVolumeClaim": {"claimName": "c"}}]}),
            json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}},
                {"name": "w"}]}),
        ),
        pod(
            json!({"volumes": [{"name": "v", "nfs": {"path": "/"}}]}),
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "emptyDir"],
                "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
        ),
        pod(
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"name": "a", "$patch": "delete"}]}),
            json!({"containers": [{"name": "b"}]}),
        ),
        pod(
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
            json!({"containers": [{"name": "c"}]}),
        ),
        pod(
            json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
            json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}],
                "containers": [{"name": "b", "image": "2"}]}),
            json!({"containers": [{"name": "c"}, {"name": "b", "image": "2"}, {"name": "a"}]}),
        ),
        pod(
            json!({"securityContext": {"runAsUser": 1, "fsGroup": 2}, "nodeSelector": {"a": "b"}}),
            json!({"securityContext": {"$patch": "replace", "fsGroup": 3},
                "nodeSelector": {"$patch": "delete"}}),
            json!({"securityContext": {"fsGroup": 3}, "nodeSelector": {}}),
        ),
        // Directives do not end up in the object.
        pod(
            json!({}),
            json!({"containers": [{"name": "a", "image": null, "$retainKeys": ["name"]},
                {"$patch": "replace"}]}),
            json!({"containers": [{"name": "a"}]}),
        ),
        (
            "v1",
            "Service",
            json!({"ports": [{"port": 80, "nodePort": 30080}, {"port": 443}],
                "externalIPs": ["1"]}),
            json!({"ports": [{"port": 80, "name": "web"}], "externalIPs": ["2"]}),
            json!({"ports": [{"port": 80, "nodePort": 30080, "name": "web"}, {"port": 443}],
                "externalIPs": ["2"]}),
        ),
        (
            "apps/v1",
            "StatefulSet",
            json!({"template": {"metadata": {"finalizers": ["x"]},
                "spec": {"containers": [{"name": "a"}]}},
                "volumeClaimTemplates": [{"metadata": {"name": "d"}}]}),
            json!({"template": {"metadata": {"finalizers": ["y"]},
                "spec": {"containers": [{"name": "a", "image": "2"}]}},
                "volumeClaimTemplates": []}),
            json!({"template": {"metadata": {"finalizers": ["y", "x"]},
                "spec": {"containers": [{"name": "a", "image": "2"}]}},
                "volumeClaimTemplates": []}),
        ),
        (
            "batch/v1",
            "CronJob",
            json!({"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "a",
                "x": 1}]}}}}}),
            json!({"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "a",
                "y": 2}]}}}}}),
            json!({"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "a",
                "x": 1, "y": 2}]}}}}}),
        ),
        // Velero's kinds have no lists that are merged.
        (
            "velero.io/v1",
            "Schedule",
            json!({"template": {"includedNamespaces": ["a"]}}),
            json!({"template": {"includedNamespaces": ["b"]}}),
            json!({"template": {"includedNamespaces": ["b"]}}),
        ),
    ] {
        let found = merged(api_version, of_kind, &before, &patch);
        assert_eq!(found, Ok(after), "{before} {patch}");
    }
}

#[test]
fn values_are_deleted_from_lists_of_values() {
    let patch =
        r#"{"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}}"#;
    let object = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "x", "finalizers": ["a", "b"]}, "data": {"$key": "kept"}});
    let object = modified(&format!("strategicPatches:\n- patchData: '{patch}'"), object).unwrap();
    assert_eq!(object["metadata"]["finalizers"], json!(["c", "b"]));
    assert_eq!(object["data"]["$key"], "kept");
}

#[test]
fn invalid_strategic_patches_are_refused() {
    let containers = json!({"containers": [{"name": "a"}]});
    for (api_version, of_kind, before, patch, words) in [
        ("example.io/v1", "Pod", json!({}), json!({}), "use mergePatches"),
        ("v1", "BadKind", json!({}), json!({}), "BadKind"),
        ("extensions/v1beta1", "Deployment", json!({}), json!({}), "Deployment"),
        (
            "v1",
            "Pod",
            containers.clone(),
            json!({"containers": [{"image": "x"}]}),
            "lacks the merge key \"name\"",
        ),
        (
            "v1",
            "Pod",
            containers.clone(),
            json!({"containers": [{"$patch": "delete"}]}),
            "lacks the merge key",
        ),
        ("v1", "Pod", containers.clone(), json!({"containers": ["x"]}), "several types"),
        (
            "v1",
            "Pod",
            containers.clone(),
            json!({"containers": [{"name": "a", "$patch": "merge"}]}),
            "merge",
        ),
        ("v1", "Pod", containers.clone(), json!({"$patch": "melt"}), "melt"),
        ("v1", "Pod", containers.clone(), json!({"$retainKeys": "x"}), "$retainKeys"),
        (
            "v1",
            "Pod",
            containers.clone(),
            json!({"$retainKeys": [], "nodeName": "x"}),
            "$retainKeys",
        ),
        ("v1", "Pod", containers, json!({"$setElementOrder/containers": 1}), "must be a list"),
    ] {
        let error = merged(api_version, of_kind, &before, &patch).unwrap_err();
        assert!(error.contains(words), "{patch}: {error}");
    }
}

#[test]
fn elements_are_counted_from_the_end_as_veleros_library_does() {
    let list = || json!({"spec": {"list": ["a", "b", "c"], "-1": "name"}});
    for (operation, expected) in [
        ("{operation: replace, path: /spec/list/-1, value: z}", json!(["a", "b", "z"])),
        ("{operation: remove, path: /spec/list/-3}", json!(["b", "c"])),
        // An element that is added at the last position becomes the last.
        ("{operation: add, path: /spec/list/-1, value: z}", json!(["a", "b", "c", "z"])),
        ("{operation: add, path: /spec/list/-2, value: z}", json!(["a", "b", "z", "c"])),
        ("{operation: add, path: /spec/list/-, value: z}", json!(["a", "b", "c", "z"])),
        (
            "{operation: copy, from: /spec/list/-3, path: /spec/list/-1}",
            json!(["a", "b", "c", "a"]),
        ),
    ] {
        let mut object = patched(operation, list());
        assert_eq!(object["spec"]["list"].take(), expected, "{operation}");
    }
    let object = patched("{operation: replace, path: /spec/-1, value: z}", list());
    assert_eq!(object["spec"]["-1"], "z", "it is the name of a field");
    let object = patched("{operation: remove, path: /spec/list/-4}", list());
    assert_eq!(object["spec"]["list"], json!(["a", "b", "c"]), "there are only three");
}

/// An object that a JSON patch changed, if it applies.
fn patched(operation: &str, mut object: Value) -> Value {
    object["apiVersion"] = "v1".into();
    object["kind"] = "Pod".into();
    object["metadata"] = json!({"name": "x", "namespace": "a"});
    let rules = format!(
        "version: v1\nresourceModifierRules:\n- conditions: {{groupResource: pods}}\n  patches:\n  - \
         {operation}\n"
    );
    let modifiers = Modifiers::parse(&[("rules.yaml".to_owned(), rules)].into()).unwrap();
    modifiers.apply(&GroupResource::new("", "pods"), &mut object);
    object
}
