//! The archive's information about a snapshot.

use bowline_api::annotation;
use bowline_plugin::InvalidItem;
use serde_json::Value;

use super::{CONTENTS, SNAPSHOTS, kind};
use crate::json::{annotation as annotated, text};
use crate::quantity;
use crate::unpack::{Contents, ReadError};

/// A snapshot that a volume can be created from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::restore) struct SnapshotSource {
    /// Name of the VolumeSnapshotContent in the backup.
    pub(in crate::restore) content: String,
    /// The driver that took it.
    pub(in crate::restore) driver: String,
    /// The driver's handle of the snapshot.
    pub(in crate::restore) handle: String,
    /// Minimum size in bytes of a volume created from it, if known.
    pub(in crate::restore) size: Option<u64>,
}

/// Why the archive does not say which snapshot it is.
#[derive(Debug, thiserror::Error)]
pub(in crate::restore) enum SnapshotSourceError {
    #[error("VolumeSnapshot {namespace}/{name}")]
    Snapshot { namespace: String, name: String, source: StoredObjectError },
    #[error("VolumeSnapshot {namespace}/{name} was not bound to a VolumeSnapshotContent")]
    NotBound { namespace: String, name: String },
    #[error("VolumeSnapshotContent {name}")]
    Content { name: String, source: StoredObjectError },
    #[error("VolumeSnapshotContent {0} names no snapshot: the snapshot was not complete")]
    NoHandle(String),
}

/// Why an object of the archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub(in crate::restore) enum StoredObjectError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Parse(#[from] InvalidItem),
}

impl SnapshotSource {
    /// Reads a VolumeSnapshot of the archive and its content.
    pub(super) fn find(
        contents: &Contents,
        namespace: &str,
        name: &str,
    ) -> Result<Self, SnapshotSourceError> {
        let read = |plural: &str, namespace: &str, name: &str| {
            let item = contents.read(&kind(plural), None, namespace, name)?;
            Ok(item.parse::<Value>()?)
        };
        let owned = || (namespace.to_owned(), name.to_owned());
        let snapshot = read(SNAPSHOTS, namespace, name).map_err(|source| {
            let (namespace, name) = owned();
            SnapshotSourceError::Snapshot { namespace, name, source }
        })?;
        let bound = bound_content(&snapshot);
        if bound.is_empty() {
            let (namespace, name) = owned();
            return Err(SnapshotSourceError::NotBound { namespace, name });
        }
        let content = read(CONTENTS, "", bound)
            .map_err(|source| SnapshotSourceError::Content { name: bound.to_owned(), source })?;
        let handle = handle(&content).or_else(|| annotated_handle(&snapshot));
        let handle = handle.ok_or_else(|| SnapshotSourceError::NoHandle(bound.to_owned()))?;
        let driver = match text(&content, "/spec/driver") {
            "" => annotated(&snapshot, annotation::CSI_DRIVER_NAME).unwrap_or_default(),
            driver => driver,
        };
        Ok(Self {
            content: bound.to_owned(),
            driver: driver.to_owned(),
            handle: handle.to_owned(),
            size: size(&snapshot, &content),
        })
    }
}

/// The content that a VolumeSnapshot is bound to.
pub(super) fn bound_content(snapshot: &Value) -> &str {
    text(snapshot, "/status/boundVolumeSnapshotContentName")
}

/// The handle of a content.
pub(super) fn handle(content: &Value) -> Option<&str> {
    let pointers = ["/status/snapshotHandle", "/spec/source/snapshotHandle"];
    pointers.into_iter().map(|pointer| text(content, pointer)).find(|handle| !handle.is_empty())
}

/// The handle in the annotation of a VolumeSnapshot, which the backup wrote.
pub(super) fn annotated_handle(snapshot: &Value) -> Option<&str> {
    annotated(snapshot, annotation::VOLUME_SNAPSHOT_HANDLE).filter(|handle| !handle.is_empty())
}

fn size(snapshot: &Value, content: &Value) -> Option<u64> {
    let content_size = content.pointer("/status/restoreSize").and_then(Value::as_u64);
    let annotated_size = || annotated(snapshot, annotation::VOLUME_SNAPSHOT_RESTORE_SIZE);
    let status_size = || snapshot.pointer("/status/restoreSize").and_then(Value::as_str);
    content_size
        .or_else(|| quantity::bytes(annotated_size().or_else(status_size)?).ok())
        .filter(|size| *size > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::archive;
    use super::*;
    use crate::report::error_text;

    fn snapshot() -> Value {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"namespace": "shop", "name": "vs", "annotations": {
                "velero.io/csi-driver-name": "a.driver",
                "velero.io/csi-volumesnapshot-handle": "noted",
                "velero.io/csi-volumesnapshot-restore-size": "1Gi",
            }},
            "status": {"boundVolumeSnapshotContentName": "vsc"},
        })
    }

    fn content(spec: &Value, status: &Value) -> Value {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "vsc"}, "spec": spec, "status": status,
        })
    }

    #[test]
    fn snapshot_is_found_by_its_content_or_its_annotations() {
        let source = |driver: &str, handle: &str, size: u64| SnapshotSource {
            content: "vsc".into(),
            driver: driver.into(),
            handle: handle.into(),
            size: Some(size),
        };
        let complete_status = json!({"snapshotHandle": "s1", "restoreSize": 7});
        for (spec, status, expected) in [
            (json!({"driver": "b.driver"}), complete_status, source("b.driver", "s1", 7)),
            (
                json!({"source": {"snapshotHandle": "s2"}}),
                json!(null),
                source("a.driver", "s2", 1 << 30),
            ),
            (json!({}), json!({}), source("a.driver", "noted", 1 << 30)),
        ] {
            let contents = archive(&[snapshot(), content(&spec, &status)]);
            let found = SnapshotSource::find(&contents, "shop", "vs");
            assert_eq!(found.unwrap(), expected, "{spec} {status}");
        }
    }

    #[test]
    fn missing_parts_are_reported() {
        let mut unbound = snapshot();
        unbound["status"] = json!({});
        let mut bare = snapshot();
        bare["metadata"]["annotations"] = json!({});
        for (objects, expected) in [
            (vec![], "VolumeSnapshot shop/vs: the item is not in the backup"),
            (vec![unbound], "VolumeSnapshot shop/vs was not bound to a VolumeSnapshotContent"),
            (vec![snapshot()], "VolumeSnapshotContent vsc: the item is not in the backup"),
            (
                vec![bare, content(&json!({"driver": "d"}), &json!({}))],
                "VolumeSnapshotContent vsc names no snapshot: the snapshot was not complete",
            ),
        ] {
            let contents = archive(&objects);
            let error = SnapshotSource::find(&contents, "shop", "vs").unwrap_err();
            assert_eq!(error_text(&error), expected);
        }
    }
}
