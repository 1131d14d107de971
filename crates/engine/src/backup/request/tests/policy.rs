use serde_json::json;

use super::*;

const KINDS: &str = "version: v1\nincludeExcludePolicy: {excludedNamespaceScopedResources: [pods]}";

fn reference(kind: &str) -> Value {
    json!({"resourcePolicy": {"kind": kind, "name": "rules"}})
}

fn policy(yaml: &str) -> Facts {
    let data = BTreeMap::from([("policy".to_owned(), yaml.to_owned())]);
    Facts { policy: Lookup::Found(data), ..facts() }
}

#[test]
fn policies_are_read_from_a_config_map() {
    for kind in ["configmap", "ConfigMap"] {
        let yaml = "version: v1\nvolumePolicies:\n- conditions: {volumeTypes: [none]}\n  action: \
                    {type: skip}";
        let request = prepared(reference(kind), &policy(yaml)).outcome.unwrap();
        assert!(request.policies.is_some());
        assert_eq!(
            request.warnings,
            ["the resource policy has the volume type none, which no volume has"]
        );
    }
    assert!(prepared(json!({}), &policy("version: v1")).outcome.unwrap().policies.is_none());
    let request = prepared(reference("configmap"), &policy(KINDS)).outcome.unwrap();
    let Kinds::New { policy, .. } = request.filter.kinds else { panic!("old") };
    assert_eq!(policy.namespaced.excluded[0].as_str(), "pods");
}

#[test]
fn policies_that_cannot_be_used_are_errors() {
    let failed = Facts { policy: Lookup::Failed("no route".into()), ..facts() };
    for (kind, facts, words) in [
        (
            "configmap",
            facts(),
            "fail to get ResourcePolicies velero/rules ConfigMap: configmaps \"rules\" not found",
        ),
        ("configmap", failed, "fail to get ResourcePolicies velero/rules ConfigMap: no route"),
        (
            "configmap",
            policy("version: ["),
            "fail to read the ResourcePolicies from ConfigMap velero/rules: ",
        ),
        (
            "configmap",
            policy("version: v2"),
            "fail to validate ResourcePolicies in ConfigMap velero/rules: incompatible version \
             number v2 with supported version v1",
        ),
        (
            "Secret",
            policy("version: v1"),
            "invalid ResourcePolicy kind \"Secret\", only \"configmap\" is supported",
        ),
    ] {
        let errors = errors(reference(kind), &facts);
        assert_eq!(errors.len(), 1, "{errors:?}");
        let expected = format!("invalid resource policies: {words}");
        assert!(errors[0].starts_with(&expected), "{errors:?}");
    }
}

#[test]
fn a_policy_about_kinds_does_not_go_with_old_filters() {
    let mut spec = reference("configmap");
    spec["includeClusterResources"] = json!(true);
    assert_eq!(
        errors(spec.clone(), &policy(KINDS)),
        ["include-resources, exclude-resources and include-cluster-resources are old filter \
          parameters.\nThey cannot be used with include-exclude policies."]
    );
    assert!(prepared(spec, &policy("version: v1")).outcome.is_ok());
}
