use serde_json::json;

use super::*;

#[test]
fn lists_that_contradict_themselves_are_errors() {
    let old = "Invalid included/excluded resource lists: ";
    let cluster = "Invalid cluster-scoped included/excluded resource lists: ";
    let namespaced = "Invalid namespace-scoped included/excluded resource lists: ";
    let names = "Invalid included/excluded namespace lists: ";
    let star = "includes list must either contain '*' only, or a non-empty list of items";
    let both = "excludes list cannot contain an item in the includes list: a";
    let no_star = "excludes list cannot contain '*'";
    let lone_star = "excludes list must either contain '*' only, or a non-empty list of items";
    let star_excluded = "when exclude is '*', include cannot have value";
    let unclosed = "pattern \"[a\" has a `[` without its `]`";
    for (spec, prefix, expected) in [
        (json!({"includedResources": ["a", "*"]}), old, star),
        (json!({"excludedResources": ["*"]}), old, no_star),
        (json!({"includedResources": ["a"], "excludedResources": ["b", "a"]}), old, both),
        (json!({"includedResources": ["[a"]}), old, unclosed),
        (json!({"includedClusterScopedResources": ["a", "*"]}), cluster, star),
        (json!({"excludedClusterScopedResources": ["a", "*"]}), cluster, lone_star),
        (
            json!({
                "includedClusterScopedResources": ["a"], "excludedClusterScopedResources": ["*"]
            }),
            cluster,
            star_excluded,
        ),
        (
            json!({
                "includedClusterScopedResources": ["a"], "excludedClusterScopedResources": ["a"]
            }),
            cluster,
            both,
        ),
        (json!({"excludedClusterScopedResources": ["[a"]}), cluster, unclosed),
        (json!({"includedNamespaceScopedResources": ["a", "*"]}), namespaced, star),
        (
            json!({
                "includedNamespaceScopedResources": ["a"], "excludedNamespaceScopedResources": ["a"]
            }),
            namespaced,
            both,
        ),
        (json!({"includedNamespaces": ["a", "*"]}), names, star),
        (json!({"includedNamespaces": ["a"], "excludedNamespaces": ["*"]}), names, no_star),
        (json!({"includedNamespaces": ["a"], "excludedNamespaces": ["a"]}), names, both),
        (
            json!({"includedNamespaces": ["{a,b}"]}),
            names,
            "wildcard pattern contains unsupported characters: |, (, ), !, {, }, ,",
        ),
        (
            json!({"excludedNamespaces": ["a**"]}),
            names,
            "wildcard pattern contains consecutive asterisks (only single * allowed)",
        ),
        (
            json!({"includedNamespaces": ["[c-a]"]}),
            names,
            "pattern \"[c-a]\" has a range that ends before it begins",
        ),
        (
            json!({"includedNamespaces": ["My_NS"]}),
            names,
            "invalid namespace \"My_NS\": a lowercase RFC 1123 label must consist of lower case \
             alphanumeric characters or '-', and must start and end with an alphanumeric character",
        ),
        (
            json!({"excludedNamespaces": ["a-"]}),
            names,
            "invalid namespace \"a-\": a lowercase RFC 1123 label must consist of lower case \
             alphanumeric characters or '-', and must start and end with an alphanumeric character",
        ),
        (
            json!({"includedNamespaces": ["x".repeat(64)]}),
            names,
            &format!("invalid namespace {:?}: must be no more than 63 characters", "x".repeat(64)),
        ),
    ] {
        assert_eq!(errors(spec.clone(), &facts()), [format!("{prefix}{expected}")], "{spec}");
    }
}

#[test]
fn lists_that_are_allowed_are_no_errors() {
    for spec in [
        json!({"includedResources": ["*"], "excludedResources": ["a"]}),
        json!({"excludedClusterScopedResources": ["*"]}),
        json!({"excludedNamespaceScopedResources": ["*"]}),
        json!({"includedClusterScopedResources": ["*"], "includedNamespaceScopedResources": ["*"]}),
        json!({"includedNamespaces": ["*"], "excludedNamespaces": ["kube-*", "*-[ab]?"]}),
        json!({"includedNamespaces": [""]}),
    ] {
        assert!(prepared(spec.clone(), &facts()).outcome.is_ok(), "{spec}");
    }
}

#[test]
fn old_and_new_filters_do_not_mix() {
    for old in [
        json!({"includedResources": ["a"]}),
        json!({"excludedResources": ["a"]}),
        json!({"includeClusterResources": false}),
    ] {
        for new in [
            "includedClusterScopedResources",
            "excludedClusterScopedResources",
            "includedNamespaceScopedResources",
            "excludedNamespaceScopedResources",
        ] {
            let mut spec = old.clone();
            spec[new] = json!(["b"]);
            assert_eq!(
                errors(spec.clone(), &facts()),
                ["include-resources, exclude-resources and include-cluster-resources are old \
                  filter parameters.\ninclude-cluster-scoped-resources, \
                  exclude-cluster-scoped-resources, include-namespace-scoped-resources and \
                  exclude-namespace-scoped-resources are new filter parameters.\nThey cannot be \
                  used together"],
                "{spec}"
            );
        }
    }
}

#[test]
fn the_mode_of_the_filters_is_the_one_that_is_used() {
    for (spec, is_old) in [
        (json!({}), false),
        (json!({"includedClusterScopedResources": ["a"]}), false),
        (json!({"includedResources": ["a"]}), true),
        (json!({"excludedResources": ["a"]}), true),
        (json!({"includeClusterResources": true}), true),
    ] {
        let kinds = request(spec.clone()).filter.kinds;
        assert_eq!(matches!(kinds, Kinds::Old { .. }), is_old, "{spec}");
    }
}

#[test]
fn ordered_resources_are_names_by_plural() {
    let request = request(json!({"orderedResources": {
        "pods": "shop/a, shop/b",
        "persistentvolumes": "v1",
        "secrets": "",
    }}));
    let expected = json!({"pods": ["shop/a", "shop/b"], "persistentvolumes": ["v1"]});
    assert_eq!(serde_json::to_value(&request.ordered).unwrap(), expected);
    for (key, names) in [
        ("", "a"),
        ("deployments.apps", "a"),
        ("Pods", "a"),
        ("po ds", "a"),
        ("pods", "a,,b"),
        ("pods", "a,"),
        ("pods", "a/b/c"),
        ("pods", "/b"),
        ("pods", "a/"),
        ("pods", "a b"),
    ] {
        let errors = errors(json!({"orderedResources": {key: names}}), &facts());
        let expected = format!("invalid OrderedResources '{key}={names}': ");
        assert!(errors.len() == 1 && errors[0].starts_with(&expected), "{errors:?}");
    }
}
