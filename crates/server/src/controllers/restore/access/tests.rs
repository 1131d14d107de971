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

/// Review for a user with these rules and those of every user.
fn rules_review(rules: Vec<PolicyRule>) -> SubjectRulesReviewStatus {
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
fn backup_only_profile_is_refused_and_any_write_permission_is_accepted() {
    let of_backups = || cluster_rules(Profile::BackupOnly);
    assert_eq!(write_permission(Some(&rules_review(Vec::new())), false), WritePermission::Denied);
    assert_eq!(write_permission(Some(&rules_review(of_backups())), false), WritePermission::Denied);
    assert_eq!(
        write_permission(Some(&rules_review(own_rules())), false),
        WritePermission::Possible
    );
    assert_eq!(
        write_permission(Some(&rules_review(cluster_rules(Profile::Full))), false),
        WritePermission::Possible
    );
    for (more, expected) in [
        (rule("", "services", "create"), WritePermission::Possible),
        (rule("example.io", "widgets", "create"), WritePermission::Possible),
        (rule("example.io", "*", "create"), WritePermission::Possible),
        (rule("snapshot.storage.k8s.io", "*", "create"), WritePermission::Possible),
        (rule("*", "*", "*"), WritePermission::Possible),
        (rule("", "configmaps", "patch"), WritePermission::Possible),
        (rule("", "pods", "get"), WritePermission::Denied),
        (rule("", "pods", "delete"), WritePermission::Denied),
        (rule("", "pods/eviction", "create"), WritePermission::Denied),
    ] {
        let case = format!("{more:?}");
        let rules = of_backups().into_iter().chain([more]).collect();
        assert_eq!(write_permission(Some(&rules_review(rules)), false), expected, "{case}");
    }
}

#[test]
fn snapshots_named_explicitly_can_be_restored_with_backup_permissions() {
    let of_backups = rules_review(cluster_rules(Profile::BackupOnly));
    for (resources, expected) in [
        (json!([]), WritePermission::Denied),
        (json!(["*"]), WritePermission::Denied),
        (json!(["services"]), WritePermission::Denied),
        (json!(["VolumeSnapshots.snapshot.storage.k8s.io"]), WritePermission::Possible),
        (json!(["pods", "vsc"]), WritePermission::Possible),
    ] {
        let asked = names_snapshots(&restore(json!({"includedResources": resources})));
        assert_eq!(write_permission(Some(&of_backups), asked), expected, "{resources}");
    }
}

#[test]
fn incomplete_rules_review_refuses_nothing() {
    let nothing = rules_review(Vec::new());
    let incomplete = SubjectRulesReviewStatus { incomplete: true, ..nothing.clone() };
    let error = Some("a webhook knows more".to_owned());
    let failed = SubjectRulesReviewStatus { evaluation_error: error, ..nothing };
    for answer in [None, Some(&incomplete), Some(&failed)] {
        assert_eq!(write_permission(answer, false), WritePermission::Possible, "{answer:?}");
    }
}

#[test]
fn target_namespaces_are_mapped_and_named_only() {
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
        let found =
            target_namespaces(&restore(spec), &backup(json!({"includedNamespaces": of_backup})));
        let found = found.as_ref().map(|names| names.iter().map(String::as_str).collect());
        assert_eq!(found, expected, "{of_restore} {of_backup}");
    }
}

#[test]
fn refusal_names_the_denied_namespaces_and_the_likely_cause() {
    let names: Vec<String> = ["a", "b", "c", "d", "e"].map(str::to_owned).into();
    for (targets, where_text) in [
        (None, "to create objects in any namespace, or cluster-scoped"),
        (Some(&names[..1]), r#"objects in the namespace "a", or"#),
        (Some(&names[..3]), r#"objects in the namespaces "a", "b", "c", or"#),
        (Some(&names[..]), r#"objects in the namespaces "a", "b", "c" and 2 more, or"#),
    ] {
        let text = refusal_message(targets);
        assert!(text.contains(where_text), "{text}");
        assert!(text.contains("the server was probably installed with `--profile=backup-only`"));
    }
}
