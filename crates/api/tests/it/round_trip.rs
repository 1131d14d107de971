//! Objects that Velero writes are read and written back unchanged.

use std::fmt::Debug;

use bowline_api as api;
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    golden::{self, VELERO_KINDS, normalized},
    schema_walk,
};

/// An object read into our type, and that type's debug output and JSON.
struct ParsedObject {
    debug: String,
    written: Value,
}

fn parse_kind(kind: &str, object: &Value) -> Result<ParsedObject, serde_json::Error> {
    fn round_trip<K>(object: &Value) -> Result<ParsedObject, serde_json::Error>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Debug,
    {
        let typed: K = serde_json::from_value(object.clone())?;
        Ok(ParsedObject { debug: format!("{typed:?}"), written: serde_json::to_value(&typed)? })
    }
    match kind {
        "Backup" => round_trip::<api::Backup>(object),
        "BackupRepository" => round_trip::<api::BackupRepository>(object),
        "BackupStorageLocation" => round_trip::<api::BackupStorageLocation>(object),
        "DataDownload" => round_trip::<api::DataDownload>(object),
        "DataUpload" => round_trip::<api::DataUpload>(object),
        "DeleteBackupRequest" => round_trip::<api::DeleteBackupRequest>(object),
        "DownloadRequest" => round_trip::<api::DownloadRequest>(object),
        "PodVolumeBackup" => round_trip::<api::PodVolumeBackup>(object),
        "PodVolumeRestore" => round_trip::<api::PodVolumeRestore>(object),
        "Restore" => round_trip::<api::Restore>(object),
        "Schedule" => round_trip::<api::Schedule>(object),
        "ServerStatusRequest" => round_trip::<api::ServerStatusRequest>(object),
        "VolumeSnapshotLocation" => round_trip::<api::VolumeSnapshotLocation>(object),
        "VolumePluginBackup" => round_trip::<api::VolumePluginBackup>(object),
        "VolumePluginRestore" => round_trip::<api::VolumePluginRestore>(object),
        other => panic!("no type for {other}"),
    }
}

/// Full objects of our own kinds, which Velero has no types for.
fn sample_of_own_kind(kind: &str) -> Value {
    let (spec, status) = match kind {
        "VolumePluginBackup" => (json!({ "volume": "pv-1" }), json!({ "snapshotID": "snap-1" })),
        "VolumePluginRestore" => {
            (json!({ "snapshotID": "snap-1" }), json!({ "volumeID": "vol-1" }))
        }
        other => panic!("{other} is not ours"),
    };
    let mut object = json!({
        "apiVersion": "velero.io/v1",
        "kind": kind,
        "metadata": { "name": "golden" },
        "spec": { "backup": "b", "plugin": "acme.io/p", "pluginSpecific": { "k": "v" } },
        "status": {
            "phase": "Uploading",
            "message": "half way",
            "startTimestamp": "2026-01-02T03:04:05Z",
            "completionTimestamp": "2026-01-02T04:04:05Z",
            "progress": { "totalBytes": 8, "bytesDone": 4 },
        },
    });
    for (part, fields) in [("spec", spec), ("status", status)] {
        let fields = fields.as_object().unwrap().clone();
        object[part].as_object_mut().unwrap().extend(fields);
    }
    object
}

fn all_full() -> impl Iterator<Item = (&'static str, Value)> {
    let velero = VELERO_KINDS.iter().map(|kind| (*kind, normalized(golden::full(kind))));
    let own_kinds =
        ["VolumePluginBackup", "VolumePluginRestore"].map(|kind| (kind, sample_of_own_kind(kind)));
    velero.chain(own_kinds)
}

#[test]
fn full_object_round_trips_and_every_field_is_typed() {
    for (kind, object) in all_full() {
        let read = parse_kind(kind, &object).unwrap_or_else(|error| panic!("{kind}: {error}"));
        pretty_assert(kind, &read.written, &object);
        let (all, empty) = (count(&read.debug, "Unknown({"), count(&read.debug, "Unknown({})"));
        assert!(all > 0);
        assert_eq!(all, empty, "{kind}: a field has no type: {}", read.debug);
    }
}

#[test]
fn empty_object_round_trips() {
    for kind in VELERO_KINDS {
        let object = normalized(golden::zero(kind));
        let read = parse_kind(kind, &object).unwrap_or_else(|error| panic!("{kind}: {error}"));
        pretty_assert(kind, &read.written, &object);
    }
}

#[test]
fn unknown_fields_survive_a_read_modify_write_at_every_level() {
    for (kind, object) in all_full() {
        let mut from_the_future = object.clone();
        let added = schema_walk::add_to_our_objects(kind, &mut from_the_future, "futureField");
        assert!(added.contains(&"spec".to_owned()) && added.contains(&"status".to_owned()));
        let read = parse_kind(kind, &from_the_future).unwrap();
        pretty_assert(kind, &read.written, &from_the_future);
        assert_ne!(read.written, object);
    }
}

#[test]
fn objects_without_spec_or_status_are_readable() {
    for (kind, object) in all_full() {
        let mut bare = object;
        for part in ["spec", "status"] {
            bare.as_object_mut().unwrap().remove(part);
        }
        let written =
            parse_kind(kind, &bare).unwrap_or_else(|error| panic!("{kind}: {error}")).written;
        assert!(written["spec"].is_object());
        assert_eq!(written.get("status"), None);
    }
}

#[test]
fn a_missing_field_is_readable_wherever_it_is_missing() {
    for (kind, object) in all_full() {
        for path in schema_walk::our_properties(kind, &object) {
            let mut without = object.clone();
            schema_walk::remove(&mut without, &path);
            parse_kind(kind, &without)
                .unwrap_or_else(|error| panic!("{kind} without {path}: {error}"));
        }
    }
}

#[test]
fn null_is_readable_wherever_velero_allows_it_and_where_go_writes_it() {
    for (kind, object) in all_full() {
        for path in schema_walk::nullable_paths(kind) {
            let mut with_null = object.clone();
            schema_walk::replace(&mut with_null, &path, &Value::Null);
            parse_kind(kind, &with_null).unwrap_or_else(|error| panic!("{kind} {path}: {error}"));
        }
    }
    for (kind, path) in [
        ("Backup", "spec.hooks.resources[].pre[].exec.command"),
        ("Backup", "spec.hooks.resources[].pre[].exec"),
        ("Backup", "spec.volumeSnapshotLocations"),
        ("Restore", "spec.hooks.resources[].postHooks[].init.initContainers"),
        ("Restore", "spec.namespaceMapping"),
        ("BackupStorageLocation", "spec.objectStorage"),
        ("BackupStorageLocation", "spec.config"),
    ] {
        let mut with_null = golden::full(kind);
        schema_walk::replace(&mut with_null, path, &Value::Null);
        parse_kind(kind, &with_null).unwrap_or_else(|error| panic!("{kind} {path}: {error}"));
    }
}

#[test]
fn unset_and_false_stay_distinct() {
    for value in
        [json!({}), json!({ "snapshotVolumes": false }), json!({ "snapshotVolumes": true })]
    {
        let spec: api::BackupSpec = serde_json::from_value(value.clone()).unwrap();
        let written = serde_json::to_value(spec).unwrap();
        assert_eq!(written.get("snapshotVolumes"), value.get("snapshotVolumes"));
    }
}

#[test]
fn phase_of_a_newer_version_is_preserved() {
    let mut object = golden::full("Backup");
    object["status"]["phase"] = "Teleporting".into();
    let backup: api::Backup = serde_json::from_value(object).unwrap();
    let phase = backup.status.as_ref().unwrap().phase.clone().unwrap();
    assert!(!phase.is_terminal());
    assert_eq!(serde_json::to_value(backup).unwrap()["status"]["phase"], "Teleporting");
}

#[test]
fn invalid_duration_is_a_clear_error() {
    let mut object = golden::full("Backup");
    object["spec"]["ttl"] = "soon".into();
    let error = parse_kind("Backup", &object).err().unwrap().to_string();
    assert!(error.contains("invalid duration \"soon\""), "{error}");
}

fn count(text: &str, pattern: &str) -> usize {
    text.matches(pattern).count()
}

fn pretty_assert(kind: &str, actual: &Value, expected: &Value) {
    assert!(actual == expected, "{kind} differs\n--- ours\n{actual:#}\n--- expected\n{expected:#}");
}
