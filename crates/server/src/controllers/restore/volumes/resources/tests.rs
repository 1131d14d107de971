use serde_json::json;

use super::*;

fn creation() -> VolumeCreation {
    VolumeCreation {
        persistent_volume: "pv-1".into(),
        target: "velero-clone-1".into(),
        snapshot: bowline_plugin::SnapshotId::new("snap-1").unwrap(),
        plugin: "velero.io/disk".parse().unwrap(),
        started_at: Timestamp::UNIX_EPOCH,
    }
}

#[test]
fn plugin_resource_is_matched_by_snapshot_backup_plugin_and_volume() {
    let own = json!({
        "apiVersion": "velero.io/v1", "kind": "VolumePluginRestore", "metadata": {"name": "x"},
        "spec": {"snapshotID": "snap-1", "backup": "b", "plugin": "velero.io/disk"},
        "status": {"phase": "done", "volumeID": "vol-1"},
    });
    for (change, expected) in [
        (json!({}), true),
        (json!({"spec": {"plugin": "disk"}}), true),
        (json!({"status": {"volumeID": "velero-clone-1"}}), true),
        (json!({"status": {"volumeID": "vol-2"}}), false),
        (json!({"status": {"volumeID": ""}}), false),
        (json!({"status": null}), false),
        (json!({"spec": {"snapshotID": "snap-2"}}), false),
        (json!({"spec": {"backup": "c"}}), false),
        (json!({"spec": {"plugin": "example.io/disk"}}), false),
        (json!({"spec": {"plugin": ""}}), false),
    ] {
        let mut value = own.clone();
        for (part, fields) in change.as_object().unwrap() {
            match fields.as_object() {
                Some(fields) => {
                    for (field, text) in fields {
                        value[part][field] = text.clone();
                    }
                }
                None => value[part] = json!(null),
            }
        }
        let found: VolumePluginRestore = serde_json::from_value(value).unwrap();
        let volume = VolumeId::new("vol-1").unwrap();
        assert_eq!(is_about_volume(&found, "b", &creation(), &volume), expected, "{change}");
    }
}

#[test]
fn last_resource_is_about_a_volume_whose_id_was_used_before() {
    let own = |name: &str, created: &str| -> VolumePluginRestore {
        serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "VolumePluginRestore",
            "metadata": {"name": name, "creationTimestamp": created},
            "spec": {"snapshotID": "snap-1", "backup": "b", "plugin": creation().plugin},
            "status": {"phase": "Completed", "volumeID": "vol-1", "progress": {}},
        }))
        .unwrap()
    };
    let found = vec![own("new", "2026-03-01T12:00:01Z"), own("old", "2026-03-01T11:00:00Z")];
    let volume = VolumeId::new("vol-1").unwrap();
    let latest = latest_about_volume(found, "b", &creation(), &volume).unwrap();
    assert_eq!(latest.name_any(), "new");
}

#[test]
fn only_a_foreign_status_writer_takes_over_the_resource() {
    for (manager, fields, expected) in [
        ("bowline", json!({"f:status": {"f:phase": {}}}), false),
        ("plugin", json!({"f:status": {"f:phase": {}}}), true),
        ("kubectl", json!({"f:metadata": {"f:labels": {}}}), false),
    ] {
        let found: VolumePluginRestore = serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "VolumePluginRestore",
            "metadata": {"name": "x", "managedFields": [
                {"manager": manager, "operation": "Update", "fieldsV1": fields},
            ]},
        }))
        .unwrap();
        assert_eq!(has_other_writer(&found), expected, "{manager}");
    }
}

#[test]
fn resource_older_than_its_restore_is_not_matched() {
    let own = |created: &str, spec: serde_json::Value| -> VolumePluginRestore {
        serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "VolumePluginRestore",
            "metadata": {"name": "x", "creationTimestamp": created}, "spec": spec,
            "status": {"phase": "InProgress", "volumeID": "", "progress": {}},
        }))
        .unwrap()
    };
    let spec = |snapshot: &str, backup: &str, plugin: &str| json!({"snapshotID": snapshot, "backup": backup, "plugin": plugin});
    let since = Time("2026-01-02T03:04:05Z".parse().unwrap());
    let is_it = |found| is_about_creation(&found, "b", &creation(), Some(&since));
    let (new, old) = ("2026-01-02T03:04:05Z", "2026-01-02T03:04:04Z");
    assert!(is_it(own(new, spec("snap-1", "b", "disk"))), "whatever it says of its volume");
    assert!(!is_it(own(old, spec("snap-1", "b", "disk"))), "it is of an earlier restore");
    let bare = VolumePluginRestore { status: None, ..own(new, spec("snap-1", "b", "disk")) };
    assert!(!is_it(bare), "it does not say that it goes on");
    assert!(!is_it(own(new, spec("snap-2", "b", "disk"))));
    assert!(!is_it(own(new, spec("snap-1", "c", "disk"))));
    assert!(!is_it(own(new, spec("snap-1", "b", "other"))));
}

#[test]
fn resource_without_an_end_phase_is_open_and_one_with_another_word_for_it_is_not() {
    let resource = |phase: &str, is_managed: bool| -> VolumePluginRestore {
        let labels = if is_managed { json!({label::MANAGED: "true"}) } else { json!({}) };
        serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "VolumePluginRestore",
            "metadata": {"name": "x", "labels": labels},
            "status": {"phase": phase},
        }))
        .unwrap()
    };
    for phase in ["", "New", "InProgress"] {
        assert!([true, false].map(|ours| is_left_open(&resource(phase, ours))) == [true; 2]);
    }
    // A volume that is created again did not exist, even if its plugin had reported it.
    for (phase, expected) in [("InProgress", false), ("completed", false), ("Failed", true)] {
        assert_eq!(has_failed(&resource(phase, false)), expected, "{phase}");
    }
    for phase in ["Completed", "failed", "CANCELED"] {
        assert!([true, false].map(|ours| is_left_open(&resource(phase, ours))) == [false; 2]);
    }
    assert!(!is_left_open(&resource("Done", false)), "the plugin may have ended with it");
}
