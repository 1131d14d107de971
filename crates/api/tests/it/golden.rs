//! Reads the golden files, and compares JSON as the API defines it.

use std::{fs, path::Path};

use serde_json::{Value, json};

/// The kinds that Velero has.
pub(crate) const VELERO_KINDS: [&str; 13] = [
    "Backup",
    "BackupRepository",
    "BackupStorageLocation",
    "DataDownload",
    "DataUpload",
    "DeleteBackupRequest",
    "DownloadRequest",
    "PodVolumeBackup",
    "PodVolumeRestore",
    "Restore",
    "Schedule",
    "ServerStatusRequest",
    "VolumeSnapshotLocation",
];

pub(crate) fn read(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// An object of this kind with a value in every field, including our additional fields.
pub(crate) fn full(kind: &str) -> Value {
    let mut object = read(&format!("velero-{kind}.full.json"));
    if kind == "Backup" {
        object["status"]["freezeWindows"] = json!([{
            "namespace": "shop", "pod": "db", "milliseconds": 12,
            "startTimestamp": "2026-01-02T03:04:05.000006Z",
        }]);
    }
    object
}

/// An object of this kind with nothing but a name.
pub(crate) fn zero(kind: &str) -> Value {
    read(&format!("velero-{kind}.zero.json"))
}

/// A Go object as Kubernetes stores it: without a creation time that is not set, which Go writes as
/// null.
///
/// There are no other exceptions: a field that Go omits, we omit, and a field that Go writes empty,
/// we write empty.
pub(crate) fn normalized(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut()
        && metadata.get("creationTimestamp").is_some_and(Value::is_null)
    {
        metadata.remove("creationTimestamp");
    }
    object
}
