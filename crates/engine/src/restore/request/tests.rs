use bowline_api::location::LocationPhase;
use bowline_api::restore::{
    InitRestoreHook, RestoreResourceHook, RestoreResourceHooks, RestoreStatusSpec,
};
use bowline_api::{BackupPhase, BackupStorageLocationStatus};
use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde_json::json;

use super::*;
use crate::glob::Glob;
use crate::restore::filter::Lists;

fn now() -> Timestamp {
    "2026-02-03T04:05:06Z".parse().unwrap()
}

fn backup(name: &str, phase: BackupPhase, start: Option<&str>) -> Backup {
    let mut backup = Backup::default();
    backup.metadata.name = Some(name.into());
    backup.metadata.labels = Some(BTreeMap::from([(label::SCHEDULE_NAME.into(), "daily".into())]));
    backup.spec.storage_location = "main".into();
    let status = backup.status.get_or_insert_default();
    status.phase = Some(phase);
    status.start_timestamp = start.map(|start| Time(start.parse().unwrap()));
    backup
}

fn location(phase: Option<LocationPhase>) -> BackupStorageLocation {
    BackupStorageLocation {
        status: Some(BackupStorageLocationStatus { phase, ..Default::default() }),
        ..Default::default()
    }
}

fn facts() -> Facts {
    Facts {
        backups: Ok(vec![backup("b", BackupPhase::Completed, None)]),
        location: Lookup::Found(location(Some(LocationPhase::Available))),
        modifiers: Lookup::Missing,
    }
}

fn restore() -> Restore {
    let mut restore = Restore::default();
    restore.metadata.name = Some("r".into());
    restore.metadata.namespace = Some("velero".into());
    restore.metadata.uid = Some("0a1b".into());
    restore.spec.backup_name = "b".into();
    restore
}

fn prepared(change: impl FnOnce(&mut Restore, &mut Facts)) -> PreparedRestore {
    let (mut restore, mut facts) = (restore(), facts());
    change(&mut restore, &mut facts);
    prepare(&restore, &facts, &Defaults::default(), now())
}

fn errors(change: impl FnOnce(&mut Restore, &mut Facts)) -> Vec<String> {
    let prepared = prepared(change);
    let errors = prepared.outcome.expect_err("it is not valid").messages();
    let status = prepared.restore.status.unwrap();
    assert_eq!(status.validation_errors, errors);
    assert_eq!(status.start_timestamp, None);
    errors
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn globs(patterns: &[&str]) -> Vec<Glob> {
    patterns.iter().map(|pattern| Glob::new(pattern).unwrap()).collect()
}

#[test]
fn defaults_are_filled_in() {
    let prepared = prepared(|restore, _| {
        restore.spec.excluded_resources = texts(&["secrets", "nodes"]);
    });
    let request = prepared.outcome.unwrap();
    let spec = &prepared.restore.spec;
    assert_eq!(
        spec.excluded_resources,
        [
            "secrets",
            "nodes",
            "events",
            "events.events.k8s.io",
            "backups.velero.io",
            "restores.velero.io",
            "resticrepositories.velero.io",
            "csinodes.storage.k8s.io",
            "volumeattachments.storage.k8s.io",
            "backuprepositories.velero.io",
            "volumepluginbackups.velero.io",
            "volumepluginrestores.velero.io",
            "deletebackuprequests.velero.io",
            "downloadrequests.velero.io",
            "serverstatusrequests.velero.io",
            "podvolumebackups.velero.io",
            "podvolumerestores.velero.io",
            "datauploads.velero.io",
            "datadownloads.velero.io",
        ]
    );
    assert_eq!(spec.item_operation_timeout.to_string(), "4h0m0s");
    assert_eq!(spec.schedule_name, "daily", "it is that of the backup");
    let status = prepared.restore.status.as_ref().unwrap();
    assert_eq!(status.start_timestamp, Some(Time(now())));
    assert_eq!(status.phase, None);

    assert_eq!((request.name.as_str(), request.uid.as_str()), ("r", "0a1b"));
    assert_eq!(request.backup_name.as_str(), "b");
    assert_eq!(request.namespace, "velero");
    assert_eq!(*request.restore, prepared.restore);
    assert_eq!(request.existing_policy, ExistingResourcePolicy::Unset);
    assert!(request.volumes.restore_pvs && !request.volumes.allow_empty);
    assert!(!request.preserve_node_ports && request.modifiers.is_none());
    assert_eq!(request.timeouts.item_operation, time::Duration::from_hours(4));
    assert_eq!(request.timeouts.resource, time::Duration::from_mins(10));
    assert_eq!(request.filter.status, None);
}

#[test]
fn operation_timeout_comes_from_the_server_unless_the_restore_has_one() {
    let item_operation_timeout = Duration::from_seconds(6 * 3600);
    let defaults = Defaults { item_operation_timeout, ..Defaults::default() };
    for (seconds, hours) in [(0, 6), (3600, 1)] {
        let mut restore = restore();
        restore.spec.item_operation_timeout = Duration::from_seconds(seconds);
        let request = prepare(&restore, &facts(), &defaults, now()).outcome.unwrap();
        assert_eq!(request.timeouts.item_operation, time::Duration::from_hours(hours));
    }
}

#[test]
fn explicit_settings_are_kept() {
    let request = prepared(|restore, facts| {
        let annotations = BTreeMap::from([(ALLOW_EMPTY_VOLUMES.into(), "true".into())]);
        restore.metadata.annotations = Some(annotations);
        let spec = &mut restore.spec;
        spec.restore_pvs = Some(false);
        spec.preserve_node_ports = Some(true);
        spec.include_cluster_resources = Some(true);
        spec.included_namespaces = texts(&["a*"]);
        spec.included_resources = texts(&["po"]);
        spec.namespace_mapping = BTreeMap::from([("a".into(), "b".into())]);
        spec.existing_resource_policy = Some(restore::ExistingResourcePolicy::Update);
        spec.item_operation_timeout = Duration::from_seconds(60);
        spec.or_label_selectors = vec![LabelSelector::default(); 2];
        spec.restore_status = Some(RestoreStatusSpec {
            included_resources: texts(&["workflows"]),
            ..RestoreStatusSpec::default()
        });
        spec.resource_modifier = Some(TypedLocalObjectReference {
            kind: "ConfigMap".into(),
            name: "mods".into(),
            api_group: None,
        });
        let rules = "version: v1\nresourceModifierRules:\n- conditions: {groupResource: pods}\n  \
                     mergePatches: [{patchData: '{}'}]\n";
        facts.modifiers = Lookup::Found(BTreeMap::from([("rules".into(), rules.into())]));
    });
    let request = request.outcome.unwrap();
    assert!(!request.volumes.restore_pvs && request.volumes.allow_empty);
    assert!(request.preserve_node_ports && request.modifiers.is_some());
    assert_eq!(request.existing_policy, ExistingResourcePolicy::Update);
    assert_eq!(request.timeouts.item_operation, time::Duration::from_mins(1));
    assert_eq!(request.filter.namespaces.included, globs(&["a*"]));
    assert_eq!(request.filter.kinds.included, globs(&["po"]));
    assert_eq!(request.filter.cluster_resources, Some(true));
    assert_eq!(request.filter.selectors.len(), 2);
    assert_eq!(request.filter.status.unwrap().included, globs(&["workflows"]));
    assert_eq!(request.namespace_mapping.get("a").map(String::as_str), Some("b"));
}

#[test]
fn unmapped_namespaces_keep_their_name() {
    let request = prepared(|restore, _| {
        restore.spec.namespace_mapping = BTreeMap::from([("a".into(), "b".into())]);
    });
    let request = request.outcome.unwrap();
    assert_eq!((request.target("a"), request.target("c"), request.target("")), ("b", "c", ""));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn each_broken_rule_has_its_message() {
    type Change = fn(&mut Restore, &mut Facts);
    let rules: [(Change, &[&str]); 24] = [
        (
            |restore, _| restore.spec.included_resources = texts(&["nodes", "pods"]),
            &[
                "nodes are non-restorable resources",
                "Invalid included/excluded resource lists: excludes list cannot contain an item in \
                 the includes list: nodes",
            ],
        ),
        (
            |restore, _| restore.spec.included_resources = texts(&["*", "pods"]),
            &["Invalid included/excluded resource lists: includes list must either contain '*' \
                 only, or a non-empty list of items"],
        ),
        (
            |restore, _| restore.spec.excluded_resources = texts(&["*"]),
            &["Invalid included/excluded resource lists: excludes list cannot contain '*'"],
        ),
        (
            |restore, _| {
                restore.spec.included_namespaces = texts(&["a", "b"]);
                restore.spec.excluded_namespaces = texts(&["b"]);
            },
            &["Invalid included/excluded namespace lists: excludes list cannot contain an item \
                 in the includes list: b"],
        ),
        (
            |restore, _| restore.spec.included_namespaces = texts(&["a**"]),
            &["Invalid included/excluded namespace lists: wildcard pattern contains consecutive \
               asterisks (only single * allowed)"],
        ),
        (
            |restore, _| restore.spec.included_namespaces = texts(&["[c-a]"]),
            &["Invalid included/excluded namespace lists: pattern \"[c-a]\" has a range that \
                 ends before it begins"],
        ),
        (
            |restore, _| {
                restore.spec.label_selector = Some(LabelSelector::default());
                restore.spec.or_label_selectors = vec![LabelSelector::default()];
            },
            &["encountered labelSelector as well as orLabelSelectors in restore spec, only one \
                 can be specified"],
        ),
        (
            |restore, _| {
                let expression = LabelSelectorRequirement {
                    key: "a".into(),
                    operator: "Near".into(),
                    values: None,
                };
                restore.spec.label_selector = Some(LabelSelector {
                    match_expressions: Some(vec![expression]),
                    ..LabelSelector::default()
                });
            },
            &["invalid labelSelector: \"Near\" is not an operator for a: expected In, NotIn, \
               Exists or DoesNotExist"],
        ),
        (
            |restore, _| restore.spec.item_operation_timeout = Duration::from_seconds(-1),
            &["invalid itemOperationTimeout -1s: it must not be negative"],
        ),
        (
            |restore, _| {
                restore.spec.namespace_mapping = BTreeMap::from([("a".into(), "B/..".into())]);
            },
            &["invalid namespaceMapping of \"a\": \"B/..\" is not the name of a namespace"],
        ),
        (
            |restore, _| restore.spec.backup_name.clear(),
            &["Either a backup or schedule must be specified as a source for the restore, but \
                 not both"],
        ),
        (
            |restore, _| restore.spec.schedule_name = "daily".into(),
            &["Either a backup or schedule must be specified as a source for the restore, but \
                 not both"],
        ),
        (
            |restore, _| {
                restore.spec.existing_resource_policy =
                    Some(restore::ExistingResourcePolicy::Other("merge".into()));
            },
            &["Invalid ExistingResourcePolicy: merge"],
        ),
        (
            |restore, facts| {
                by_schedule(restore);
                facts.backups = Err("no".into());
            },
            &["Unable to list backups for schedule"],
        ),
        (
            |restore, facts| {
                by_schedule(restore);
                facts.backups = Ok(Vec::new());
            },
            &["No backups found for schedule", "No completed backups found for schedule"],
        ),
        (
            |restore, facts| {
                by_schedule(restore);
                facts.backups = Ok(vec![backup("b", BackupPhase::PartiallyFailed, None)]);
            },
            &["No completed backups found for schedule"],
        ),
        (
            |_, facts| facts.backups = Ok(Vec::new()),
            &["Error retrieving backup: can't find backup velero/b: backups.velero.io \"b\" not \
               found"],
        ),
        (
            |_, facts| facts.backups = Err("no answer".into()),
            &["Error retrieving backup: can't find backup velero/b: no answer"],
        ),
        (
            |_, facts| facts.location = Lookup::Missing,
            &["Error retrieving backup: backupstoragelocations.velero.io \"main\" not found"],
        ),
        (
            |_, facts| facts.location = Lookup::Found(location(Some(LocationPhase::Unavailable))),
            &["The BSL main is unavailable, cannot retrieve the backup"],
        ),
        (
            |_, facts| facts.location = Lookup::Found(location(None)),
            &["The BSL main is unavailable, cannot retrieve the backup"],
        ),
        (
            |restore, _| restore.spec.resource_policy = Some(reference("ConfigMap")),
            &["invalid restore resource policies: this version does not support resourcePolicy \
               (mods) for restores; use includedResources, includedNamespaces and labelSelector"],
        ),
        (
            |restore, _| restore.metadata.name = Some("../r".into()),
            &["invalid restore name: invalid name \"../r\": expected at most 253 lower-case \
               letters, digits, `-` and `.`, starting and ending with a letter or digit"],
        ),
        (
            |restore, facts| {
                restore.spec.included_namespaces = texts(&["a("]);
                restore.spec.existing_resource_policy =
                    Some(restore::ExistingResourcePolicy::Other("x".into()));
                facts.location = Lookup::Missing;
            },
            &[
                "Invalid included/excluded namespace lists: wildcard pattern contains unsupported \
                 characters: |, (, ), !, {, }, ,",
                "Invalid ExistingResourcePolicy: x",
                "Error retrieving backup: backupstoragelocations.velero.io \"main\" not found",
            ],
        ),
    ];
    for (change, expected) in rules {
        assert_eq!(errors(change), expected);
    }
}

fn by_schedule(restore: &mut Restore) {
    restore.spec.backup_name.clear();
    restore.spec.schedule_name = "daily".into();
}

fn reference(kind: &str) -> TypedLocalObjectReference {
    TypedLocalObjectReference { kind: kind.into(), name: "mods".into(), api_group: None }
}

#[test]
fn modifiers_must_exist_and_be_valid() {
    let data = |text: &str| Lookup::Found(BTreeMap::from([("rules".into(), text.into())]));
    for (kind, modifiers, expected) in [
        ("configmap", Lookup::Missing, "failed to get resource modifiers configmap velero/mods"),
        (
            "ConfigMap",
            data("version: ["),
            "Error in parsing resource modifiers provided in configmap velero/mods: ",
        ),
        (
            "ConfigMap",
            Lookup::Found(BTreeMap::new()),
            "Error in parsing resource modifiers provided in configmap velero/mods: expected exactly",
        ),
        (
            "ConfigMap",
            data("version: v2"),
            "Validation error in resource modifiers provided in configmap velero/mods: unsupported \
             resource modifier version v2",
        ),
        ("Secret", Lookup::Missing, "invalid resourceModifier kind \"Secret\", only \"configmap\""),
    ] {
        let errors = errors(|restore, facts| {
            restore.spec.resource_modifier = Some(reference(kind));
            facts.modifiers = modifiers;
        });
        assert_eq!(errors.len(), 1);
        assert!(errors[0].starts_with(expected), "{errors:?}");
    }
}

#[test]
fn init_containers_need_a_name_an_image_and_a_command() {
    let good = json!({"name": "a", "image": "i", "command": ["c"]});
    for (container, is_good) in [
        (good.clone(), true),
        (json!({"image": "i", "command": ["c"]}), false),
        (json!({"name": "a", "command": ["c"]}), false),
        (json!({"name": "a", "image": "i"}), false),
        (json!({"name": "a", "image": "i", "command": []}), false),
        (json!({"name": "a", "image": "i", "command": "c"}), false),
        (json!("container"), false),
    ] {
        let init = InitRestoreHook {
            init_containers: vec![good.clone(), container.clone()],
            ..InitRestoreHook::default()
        };
        let hook = RestoreResourceHook { init: Some(init), ..RestoreResourceHook::default() };
        let hooks = RestoreResourceHooks {
            name: "prepare".into(),
            post_hooks: vec![hook],
            ..RestoreResourceHooks::default()
        };
        let prepared = prepared(|restore, _| restore.spec.hooks.resources = vec![hooks]);
        let expected = "invalid init container in restore hook \"prepare\": invalid InitContainer \
                        in restore hook, it doesn't have Command, Name or Image field";
        match prepared.outcome {
            Ok(request) => assert!(is_good && request.hooks.resources.len() == 1, "{container}"),
            Err(invalid) => {
                let errors = invalid.messages();
                assert!(!is_good && errors == [expected], "{container}: {errors:?}");
            }
        }
    }
}

#[test]
fn latest_completed_backup_of_a_schedule_is_used() {
    let completed = BackupPhase::Completed;
    let backups = vec![
        backup("unknown", completed.clone(), None),
        backup("old", completed.clone(), Some("2026-01-01T00:00:00Z")),
        backup("new", completed, Some("2026-01-03T00:00:00Z")),
        backup("failed", BackupPhase::PartiallyFailed, Some("2026-01-04T00:00:00Z")),
    ];
    let prepared = prepared(|restore, facts| {
        by_schedule(restore);
        facts.backups = Ok(backups);
    });
    assert_eq!(prepared.restore.spec.backup_name, "new");
    assert_eq!(prepared.outcome.unwrap().backup.metadata.name.as_deref(), Some("new"));
}

#[test]
fn backup_without_a_complete_archive_is_refused() {
    let still = |phase: &str| {
        format!(
            "The backup b is still {phase}, cannot restore from it before all its objects are in \
             the storage location"
        )
    };
    let deleting = "The backup b is being deleted, cannot restore from it".to_owned();
    for (phase, expected) in [
        (None, Some(still("New"))),
        (Some("New"), Some(still("New"))),
        (Some("Queued"), Some(still("Queued"))),
        (Some("ReadyToStart"), Some(still("ReadyToStart"))),
        (Some("InProgress"), Some(still("InProgress"))),
        (Some("WaitingForPluginOperations"), None),
        (Some("WaitingForPluginOperationsPartiallyFailed"), None),
        (Some("Finalizing"), None),
        (Some("FinalizingPartiallyFailed"), None),
        (Some("Completed"), None),
        (Some("PartiallyFailed"), None),
        (Some("Failed"), None),
        (Some("FailedValidation"), None),
        (Some("Teleported"), None),
        (Some("Deleting"), Some(deleting)),
    ] {
        let of_phase = |facts: &mut Facts| {
            let mut backup = backup("b", BackupPhase::Completed, None);
            backup.status.as_mut().unwrap().phase = phase.map(BackupPhase::from);
            facts.backups = Ok(vec![backup]);
        };
        let refused = prepared(|_, facts| of_phase(facts)).outcome.err();
        let refused = refused.map(|invalid| invalid.messages());
        assert_eq!(refused, expected.clone().map(|text| vec![text]), "{phase:?}");

        // A location that cannot be read at all is reported first, as always.
        let unavailable = errors(|_, facts| {
            of_phase(facts);
            facts.location = Lookup::Found(location(None));
        });
        assert_eq!(unavailable, ["The BSL main is unavailable, cannot retrieve the backup"]);

        // A restore that has started continues.
        let started = prepared(|restore, facts| {
            of_phase(facts);
            restore.status.get_or_insert_default().phase = Some(RestorePhase::InProgress);
        });
        assert!(started.outcome.is_ok(), "{phase:?}");
    }
}

#[test]
fn started_restore_can_be_prepared_again() {
    let first = prepared(|restore, _| by_schedule(restore)).restore;
    let mut started = first.clone();
    started.status.as_mut().unwrap().phase = Some(RestorePhase::InProgress);
    let later = "2026-02-04T00:00:00Z".parse().unwrap();
    let again = prepare(&started, &facts(), &Defaults::default(), later);
    assert_eq!(again.restore, started, "nothing is changed");
    assert!(again.outcome.is_ok());
}

#[test]
fn namespaces_are_those_of_the_backup() {
    let names = ["app-1", "app-2", "web"];
    for (included, excluded, expected, warnings) in [
        (&[][..], &[][..], &["app-1", "app-2", "web"][..], 0),
        (&["*"], &["web"], &["app-1", "app-2"], 0),
        (&["app-*"], &[], &["app-1", "app-2"], 0),
        (&["app-*"], &["*-1"], &["app-2"], 0),
        (&["web", "typo"], &[], &["web"], 1),
        (&["x*"], &[], &[], 1),
        (&[""], &[], &[], 0),
    ] {
        let lists = Lists { included: globs(included), excluded: globs(excluded) };
        let found = select_namespaces(&lists, &names);
        assert_eq!(found.names, expected, "{included:?}");
        assert_eq!(found.warnings.len(), warnings, "{found:?}");
    }
}

#[test]
fn a_list_of_alternatives_is_a_pattern_of_namespaces() {
    let prepared = prepared(|restore, _| {
        restore.spec.included_namespaces = vec!["{shop,team-*}".into()];
    });
    let request = prepared.outcome.unwrap();
    let included = &request.filter.namespaces.included;
    assert!(["shop", "team-a"].iter().all(|name| included[0].matches(name)));
    assert!(!included[0].matches("other"));
}
