use bowline_api::access::own_rules;
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};

use super::*;

fn restore(mut spec: Value) -> RestoreSpec {
    spec["backupName"] = json!("b");
    serde_json::from_value(spec).unwrap()
}

fn backup(spec: Value) -> BackupSpec {
    serde_json::from_value(spec).unwrap()
}

/// What the API server says of somebody who has these rules, and those that everybody has.
fn answer(rules: Vec<PolicyRule>) -> SubjectRulesReviewStatus {
    let everybody = ResourceRule {
        api_groups: Some(vec!["authorization.k8s.io".to_owned()]),
        resources: Some(vec!["selfsubjectaccessreviews".to_owned()]),
        verbs: vec!["create".to_owned()],
        resource_names: None,
    };
    let rule = |rule: PolicyRule| ResourceRule {
        api_groups: rule.api_groups,
        resources: rule.resources,
        verbs: rule.verbs,
        resource_names: rule.resource_names,
    };
    let resource_rules = std::iter::once(everybody).chain(rules.into_iter().map(rule)).collect();
    SubjectRulesReviewStatus { resource_rules, ..SubjectRulesReviewStatus::default() }
}

fn rule(group: &str, resource: &str, verb: &str) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: vec![verb.to_owned()],
        ..PolicyRule::default()
    }
}

#[test]
fn the_profile_for_backups_restores_nothing_and_whoever_may_write_any_kind_may_go_on() {
    let of_backups = || cluster_rules(Profile::BackupOnly);
    assert_eq!(rights(Some(&answer(Vec::new())), false), Rights::Nothing);
    assert_eq!(rights(Some(&answer(of_backups())), false), Rights::Nothing);
    assert_eq!(rights(Some(&answer(own_rules())), false), Rights::Perhaps);
    assert_eq!(rights(Some(&answer(cluster_rules(Profile::Full))), false), Rights::Perhaps);
    for (more, expected) in [
        (rule("", "services", "create"), Rights::Perhaps),
        (rule("example.io", "widgets", "create"), Rights::Perhaps),
        (rule("example.io", "*", "create"), Rights::Perhaps),
        (rule("snapshot.storage.k8s.io", "*", "create"), Rights::Perhaps),
        (rule("*", "*", "*"), Rights::Perhaps),
        (rule("", "configmaps", "patch"), Rights::Perhaps),
        (rule("", "pods", "get"), Rights::Nothing),
        (rule("", "pods", "delete"), Rights::Nothing),
        (rule("", "pods/eviction", "create"), Rights::Nothing),
    ] {
        let case = format!("{more:?}");
        let rules = of_backups().into_iter().chain([more]).collect();
        assert_eq!(rights(Some(&answer(rules)), false), expected, "{case}");
    }
}

#[test]
fn snapshots_that_are_asked_for_by_name_can_be_restored_with_the_rights_to_take_them() {
    let of_backups = answer(cluster_rules(Profile::BackupOnly));
    for (resources, expected) in [
        (json!([]), Rights::Nothing),
        (json!(["*"]), Rights::Nothing),
        (json!(["services"]), Rights::Nothing),
        (json!(["VolumeSnapshots.snapshot.storage.k8s.io"]), Rights::Perhaps),
        (json!(["pods", "vsc"]), Rights::Perhaps),
    ] {
        let asked = names_snapshots(&restore(json!({"includedResources": resources})));
        assert_eq!(rights(Some(&of_backups), asked), expected, "{resources}");
    }
}

#[test]
fn an_answer_that_does_not_say_all_refuses_nothing() {
    let nothing = answer(Vec::new());
    let incomplete = SubjectRulesReviewStatus { incomplete: true, ..nothing.clone() };
    let error = Some("a webhook knows more".to_owned());
    let failed = SubjectRulesReviewStatus { evaluation_error: error, ..nothing };
    for answer in [None, Some(&incomplete), Some(&failed)] {
        assert_eq!(rights(answer, false), Rights::Perhaps, "{answer:?}");
    }
}

#[test]
fn it_is_asked_where_objects_go_to_as_far_as_anybody_says() {
    for (of_restore, of_backup, expected) in [
        (json!(["shop", "bank"]), json!(["x"]), Some(vec!["shop-2", "bank"])),
        (json!([]), json!(["shop"]), Some(vec!["shop-2"])),
        (json!(["*"]), json!(["shop"]), Some(vec!["shop-2"])),
        (json!(["team-*"]), json!(["*"]), None),
        (json!(["shop", "team-?"]), json!([]), None),
        (json!([]), json!([]), None),
    ] {
        let spec = json!({
            "includedNamespaces": of_restore, "namespaceMapping": {"shop": "shop-2"},
        });
        let found = targets(&restore(spec), &backup(json!({"includedNamespaces": of_backup})));
        let found = found.as_ref().map(|names| names.iter().map(String::as_str).collect());
        assert_eq!(found, expected, "{of_restore} {of_backup}");
    }
}

#[test]
fn users_are_told_what_was_denied_and_what_is_likely_the_cause() {
    let names: Vec<String> = ["a", "b", "c", "d", "e"].map(str::to_owned).into();
    for (targets, place) in [
        (None, "neither in any namespace nor"),
        (Some(&names[..1]), r#"neither in the namespace "a" nor"#),
        (Some(&names[..3]), r#"neither in the namespaces "a", "b", "c" nor"#),
        (Some(&names[..]), r#"neither in the namespaces "a", "b", "c" and 2 more nor"#),
    ] {
        let text = told(targets);
        assert!(text.contains(place), "{text}");
        assert!(text.contains("most likely it was installed with the profile `backup-only`"));
    }
}
