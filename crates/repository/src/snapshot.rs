//! Snapshots: manifests that name the root of a tree.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::directory::DirectoryEntry;
use crate::id::ManifestId;
use crate::json::{is_default, list_or_null};
use crate::manifest::{ManifestEntry, TYPE_LABEL};

/// The type of the manifests of snapshots.
pub const MANIFEST_TYPE: &str = "snapshot";

/// Damage of the manifest of a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no document.
    #[error("snapshot {0} has no data")]
    NoData(ManifestId),
    /// The document is not the JSON that it should be.
    #[error("snapshot {snapshot} is invalid")]
    Parse {
        /// Snapshot.
        snapshot: ManifestId,
        /// Reason.
        source: serde_json::Error,
    },
}

/// What a snapshot was taken of.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotSource {
    /// Host: `default` for Velero.
    pub host: String,
    /// User: `default` for Velero.
    pub user_name: String,
    /// Path.
    pub path: String,
}

/// Numbers of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotStats {
    /// Length of all files.
    pub total_size: i64,
    /// Length of the files that were excluded.
    pub excluded_total_size: i64,
    /// Number of files.
    pub file_count: i64,
    /// Files that were not read again, since they had not changed.
    pub cached_files: i64,
    /// Files that were read.
    pub non_cached_files: i64,
    /// Number of directories.
    pub dir_count: i64,
    /// Number of files that were excluded.
    pub excluded_file_count: i64,
    /// Number of directories that were excluded.
    pub excluded_dir_count: i64,
    /// Errors that were ignored.
    pub ignored_error_count: i64,
    /// Errors.
    pub error_count: i64,
}

/// A snapshot of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Name of the manifest; not in the document.
    #[serde(skip)]
    pub id: Option<ManifestId>,
    /// What it was taken of.
    pub source: SnapshotSource,
    /// Text for people.
    #[serde(default)]
    pub description: String,
    /// Time at which the snapshot began.
    pub start_time: Timestamp,
    /// Time at which the snapshot was complete.
    pub end_time: Timestamp,
    /// Numbers.
    #[serde(default)]
    pub stats: SnapshotStats,
    /// Reason for which the snapshot is not complete, as `checkpoint`.
    #[serde(rename = "incomplete", default, skip_serializing_if = "String::is_empty")]
    pub incomplete_reason: String,
    /// The tree.
    #[serde(default)]
    pub root_entry: Option<DirectoryEntry>,
    /// Labels that the creator chose.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Reasons to keep the snapshot.
    #[serde(default, skip_serializing_if = "is_default", deserialize_with = "list_or_null")]
    pub pins: Vec<String>,
}

impl Snapshot {
    /// Reads the manifest of a snapshot.
    pub fn parse(manifest: &ManifestEntry) -> Result<Self, Error> {
        let data = manifest.data.as_ref().ok_or(Error::NoData(manifest.id))?;
        let parsed: Self = serde_json::from_str(data.get())
            .map_err(|source| Error::Parse { snapshot: manifest.id, source })?;
        Ok(Self { id: Some(manifest.id), ..parsed })
    }

    /// The labels of the manifest, by which kopia and Velero find the snapshots of a source.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.tags.clone();
        for (name, value) in [
            (TYPE_LABEL, MANIFEST_TYPE),
            ("hostname", &self.source.host),
            ("username", &self.source.user_name),
            ("path", &self.source.path),
        ] {
            labels.insert(name.to_owned(), value.to_owned());
        }
        labels
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn manifest(json: &str) -> ManifestEntry {
        ManifestEntry {
            id: ManifestId::from_random([7; 16]),
            labels: BTreeMap::new(),
            modified: Timestamp::UNIX_EPOCH,
            deleted: false,
            data: Some(RawValue::from_string(json.to_owned()).unwrap()),
        }
    }

    const DOCUMENT: &str = r#"{"id":"","source":{"host":"default","userName":"default",
        "path":"snapshot-data-upload-download/kopia/shop/db"},"description":"Kopia Uploader",
        "startTime":"2026-11-19T20:00:00.123456789Z","endTime":"2026-11-19T20:00:01Z",
        "stats":{"totalSize":10,"fileCount":1,"dirCount":1},
        "rootEntry":{"name":"db","type":"d","mode":"0755","mtime":"2026-11-19T19:00:00Z",
        "obj":"k00ff","summ":{"size":10,"files":1,"symlinks":0,"dirs":1,
        "maxTime":"2026-11-19T19:00:00Z","numFailed":0}},
        "tags":{"tag:snapshot-requester":"pod-volume-backup-restore"},"pins":["velero-pin"]}"#;

    #[test]
    fn snapshot_of_velero_is_read() {
        let snapshot = Snapshot::parse(&manifest(DOCUMENT)).unwrap();
        assert_eq!(snapshot.id, Some(ManifestId::from_random([7; 16])));
        assert_eq!(snapshot.root_entry.as_ref().unwrap().object, Some("k00ff".parse().unwrap()));
        assert_eq!(snapshot.pins, ["velero-pin"]);
        let labels = snapshot.labels();
        assert_eq!(labels["type"], "snapshot");
        assert_eq!(labels["path"], "snapshot-data-upload-download/kopia/shop/db");
        assert_eq!(labels["tag:snapshot-requester"], "pod-volume-backup-restore");
        let json = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(Snapshot::parse(&manifest(&json)).unwrap(), snapshot);
    }

    #[test]
    fn damaged_snapshot_is_named() {
        let error = Snapshot::parse(&manifest("{}")).unwrap_err();
        assert!(error.to_string().contains("07070707"), "{error}");
        let empty = ManifestEntry { data: None, ..manifest("{}") };
        assert!(matches!(Snapshot::parse(&empty), Err(Error::NoData(_))));
    }
}
