//! What Velero writes, we read and write back unchanged.

use std::fmt::Debug;

use bowline_api as api;
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    golden::{self, VELERO_KINDS, meaning},
    schema_walk,
};

/// An object read into our type, and that type's debug output and JSON.
struct Read {
    debug: String,
    written: Value,
}

fn read(kind: &str, object: &Value) -> Result<Read, serde_json::Error> {
    fn through<K>(object: &Value) -> Result<Read, serde_json::Error>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Debug,
    {
        let typed: K = serde_json::from_value(object.clone())?;
        Ok(Read { debug: format!("{typed:?}"), written: serde_json::to_value(&typed)? })
    }
    match kind {
        "Backup" => through::<api::Backup>(object),
        "BackupRepository" => through::<api::BackupRepository>(object),
        "BackupStorageLocation" => through::<api::BackupStorageLocation>(object),
        "DataDownload" => through::<api::DataDownload>(object),
        "DataUpload" => through::<api::DataUpload>(object),
        "DeleteBackupRequest" => through::<api::DeleteBackupRequest>(object),
        "DownloadRequest" => through::<api::DownloadRequest>(object),
        "PodVolumeBackup" => through::<api::PodVolumeBackup>(object),
        "PodVolumeRestore" => through::<api::PodVolumeRestore>(object),
        "Restore" => through::<api::Restore>(object),
        "Schedule" => through::<api::Schedule>(object),
        "ServerStatusRequest" => through::<api::ServerStatusRequest>(object),
        "VolumeSnapshotLocation" => through::<api::VolumeSnapshotLocation>(object),
        "VolumePluginBackup" => through::<api::VolumePluginBackup>(object),
        "VolumePluginRestore" => through::<api::VolumePluginRestore>(object),
        other => panic!("no type for {other}"),
    }
}

/// Full objects of our own kinds, which Velero has no types for.
fn ours(kind: &str) -> Value {
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
    let velero = VELERO_KINDS.iter().map(|kind| (*kind, meaning(golden::full(kind))));
    let ours = ["VolumePluginBackup", "VolumePluginRestore"].map(|kind| (kind, ours(kind)));
    velero.chain(ours)
}

#[test]
fn a_full_object_comes_back_exactly_and_every_field_has_a_type() {
    for (kind, object) in all_full() {
        let read = read(kind, &object).unwrap_or_else(|error| panic!("{kind}: {error}"));
        pretty_assert(kind, &read.written, &object);
        let (all, empty) = (count(&read.debug, "Unknown({"), count(&read.debug, "Unknown({})"));
        assert!(all > 0);
        assert_eq!(all, empty, "{kind}: a field has no type: {}", read.debug);
    }
}

#[test]
fn an_empty_object_comes_back_exactly() {
    for kind in VELERO_KINDS {
        let object = meaning(golden::zero(kind));
        let read = read(kind, &object).unwrap_or_else(|error| panic!("{kind}: {error}"));
        pretty_assert(kind, &read.written, &object);
    }
}

#[test]
fn unknown_fields_survive_a_read_modify_write_at_every_level() {
    for (kind, object) in all_full() {
        let mut from_the_future = object.clone();
        let added = schema_walk::add_to_our_objects(kind, &mut from_the_future, "futureField");
        assert!(added.contains(&"spec".to_owned()) && added.contains(&"status".to_owned()));
        let read = read(kind, &from_the_future).unwrap();
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
        let written = read(kind, &bare).unwrap_or_else(|error| panic!("{kind}: {error}")).written;
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
            read(kind, &without).unwrap_or_else(|error| panic!("{kind} without {path}: {error}"));
        }
    }
}

#[test]
fn null_is_readable_wherever_velero_allows_it_and_where_go_writes_it() {
    for (kind, object) in all_full() {
        for path in schema_walk::nullable_paths(kind) {
            let mut with_null = object.clone();
            schema_walk::replace(&mut with_null, &path, &Value::Null);
            read(kind, &with_null).unwrap_or_else(|error| panic!("{kind} {path}: {error}"));
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
        read(kind, &with_null).unwrap_or_else(|error| panic!("{kind} {path}: {error}"));
    }
}

#[test]
fn unset_and_false_stay_apart() {
    for value in
        [json!({}), json!({ "snapshotVolumes": false }), json!({ "snapshotVolumes": true })]
    {
        let spec: api::BackupSpec = serde_json::from_value(value.clone()).unwrap();
        let written = serde_json::to_value(spec).unwrap();
        assert_eq!(written.get("snapshotVolumes"), value.get("snapshotVolumes"));
    }
}

#[test]
fn a_phase_of_a_newer_version_survives() {
    let mut object = golden::full("Backup");
    object["status"]["phase"] = "Teleporting".into();
    let backup: api::Backup = serde_json::from_value(object).unwrap();
    let phase = backup.status.as_ref().unwrap().phase.clone().unwrap();
    assert!(!phase.is_terminal());
    assert_eq!(serde_json::to_value(backup).unwrap()["status"]["phase"], "Teleporting");
}

#[test]
fn a_duration_that_is_garbage_is_an_error_that_says_so() {
    let mut object = golden::full("Backup");
    object["spec"]["ttl"] = "soon".into();
    let error = read("Backup", &object).err().unwrap().to_string();
    assert!(error.contains("invalid duration \"soon\""), "{error}");
}

fn count(text: &str, pattern: &str) -> usize {
    text.matches(pattern).count()
}

fn pretty_assert(kind: &str, actual: &Value, expected: &Value) {
    assert!(actual == expected, "{kind} differs\n--- ours\n{actual:#}\n--- expected\n{expected:#}");
}
