//! Objects of the snapshot API: the fields written and read.

use std::collections::BTreeMap;

use bowline_api::{annotation, label};
use bowline_plugin::{InvalidItem, Item};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::record::CsiSnapshotRecord;
pub(crate) use crate::csi::{
    CLASSES, CONTENTS, GROUP, SNAPSHOTS, being_deleted_patch, deletion_policy_patch, id, resource,
};
use crate::operation::record::RunRef;

/// The longest name that fits into a label, as the name of a VolumeSnapshot must.
const MAX_LABEL_LENGTH: usize = 63;
/// Number of digits that distinguish snapshots of the same claim.
const SUFFIX_DIGITS: usize = 10;

/// The name of the VolumeSnapshot of a claim. It starts like Velero's, and is known before the object is created.
pub(crate) fn snapshot_name(claim: &str, request: &str) -> String {
    let mut name = format!("velero-{claim}-");
    // Names are ASCII; the API server truncates generated names in the same way.
    name.truncate(name.floor_char_boundary(MAX_LABEL_LENGTH - SUFFIX_DIGITS));
    name.extend(request.chars().take(SUFFIX_DIGITS));
    name
}

/// The VolumeSnapshot of a claim, as Velero creates it, with the uid of its backup.
pub(crate) fn snapshot(
    record: &CsiSnapshotRecord,
    claim_labels: &BTreeMap<String, String>,
    backup: &str,
    uid: &str,
) -> Result<Item, InvalidItem> {
    let mut labels = claim_labels.clone();
    labels.insert(label::BACKUP_NAME.to_owned(), label::value(backup).into_owned());
    labels.insert(label::BACKUP_UID.to_owned(), uid.to_owned());
    Item::from_object(&json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "VolumeSnapshot",
        "metadata": { "name": record.name, "namespace": record.namespace, "labels": labels },
        "spec": {
            "source": { "persistentVolumeClaimName": record.claim },
            "volumeSnapshotClassName": record.class,
        },
    }))
}

/// Facts that a restore needs about a snapshot, as annotations of its VolumeSnapshot.
pub(crate) fn annotations(record: &CsiSnapshotRecord) -> BTreeMap<String, String> {
    let size = record.restore_size.map(quantity).unwrap_or_default();
    [
        (annotation::VOLUME_SNAPSHOT_HANDLE, record.handle.clone()),
        (annotation::CSI_DRIVER_NAME, record.driver.clone()),
        (annotation::CSI_DELETION_POLICY, record.deletion_policy.clone()),
        (annotation::VOLUME_SNAPSHOT_RESTORE_SIZE, size),
        (annotation::VOLUME_GROUP_SNAPSHOT_HANDLE, record.group_handle.clone()),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// A number of bytes as a Kubernetes quantity.
pub(crate) fn quantity(bytes: i64) -> String {
    const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut number, mut unit) = (bytes, 0);
    while number != 0 && number % 1024 == 0 && unit + 1 < UNITS.len() {
        number /= 1024;
        unit += 1;
    }
    format!("{number}{}", UNITS[unit])
}

/// A time as it appears in the ID of an operation.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Fields read of a VolumeSnapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Snapshot {
    pub(crate) metadata: Metadata,
    spec: SnapshotSpec,
    status: Option<SnapshotStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct SnapshotSpec {
    source: Source,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Source {
    persistent_volume_claim_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Owner {
    uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) annotations: Option<BTreeMap<String, String>>,
    #[serde(rename = "ownerReferences")]
    owners: Option<Vec<Owner>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SnapshotStatus {
    bound_volume_snapshot_content_name: Option<String>,
    volume_group_snapshot_name: Option<String>,
    error: Option<StatusError>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct StatusError {
    message: Option<String>,
}

impl StatusError {
    fn message_text(&self) -> String {
        let message = self.message.as_deref().map(str::trim).filter(|message| !message.is_empty());
        message.unwrap_or("no reason is given").to_owned()
    }
}

impl Snapshot {
    pub(crate) fn read(item: &Item) -> serde_json::Result<Self> {
        serde_json::from_slice(item.json())
    }

    /// True if it was created for a backup. One that Velero created names only the backup, without its uid.
    pub(crate) fn belongs_to(&self, backup: RunRef<'_>) -> bool {
        let get = |key| self.metadata.labels.as_ref().and_then(|all| all.get(key));
        match get(label::BACKUP_UID) {
            Some(uid) => uid == backup.uid,
            None => get(label::BACKUP_NAME).is_some_and(|name| *name == label::value(backup.name)),
        }
    }

    /// The content that it is bound to; where that is not known yet, the one that it will be bound to.
    pub(crate) fn content(&self) -> String {
        let bound = self.status.as_ref().and_then(|status| {
            status.bound_volume_snapshot_content_name.clone().filter(|name| !name.is_empty())
        });
        bound.unwrap_or_else(|| format!("snapcontent-{}", self.metadata.uid))
    }

    /// The claim that it is of.
    pub(crate) fn claim(&self) -> Option<&str> {
        self.spec.source.persistent_volume_claim_name.as_deref()
    }

    /// The VolumeGroupSnapshot that it was taken with, if any.
    pub(crate) fn group(&self) -> Option<&str> {
        let name = self.status.as_ref()?.volume_group_snapshot_name.as_deref()?;
        Some(name).filter(|name| !name.is_empty())
    }

    /// True if the object with this uid owns it.
    pub(crate) fn is_owned_by(&self, uid: &str) -> bool {
        self.metadata.owners.iter().flatten().any(|owner| owner.uid == uid)
    }

    /// The error in its status, if any.
    pub(crate) fn error(&self) -> Option<String> {
        Some(self.status.as_ref()?.error.as_ref()?.message_text())
    }
}

/// Fields read of a VolumeSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Content {
    pub(crate) metadata: Metadata,
    pub(crate) spec: ContentSpec,
    status: Option<ContentStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContentSpec {
    pub(crate) driver: String,
    pub(crate) deletion_policy: String,
    pub(crate) volume_snapshot_ref: Reference,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Reference {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContentStatus {
    snapshot_handle: Option<String>,
    volume_group_snapshot_handle: Option<String>,
    /// Nanoseconds since 1970.
    creation_time: Option<i64>,
    restore_size: Option<i64>,
    ready_to_use: Option<bool>,
    error: Option<StatusError>,
}

impl Content {
    pub(crate) fn read(item: &Item) -> serde_json::Result<Self> {
        serde_json::from_slice(item.json())
    }

    /// True if it is the content of a VolumeSnapshot that names it. The controller now and then omits the uid of a
    /// VolumeSnapshot that is in a group.
    pub(crate) fn is_bound_to(&self, snapshot: &Snapshot) -> bool {
        let Reference { namespace, name, uid } = &self.spec.volume_snapshot_ref;
        let of = &snapshot.metadata;
        *uid == of.uid || (uid.is_empty() && *namespace == of.namespace && *name == of.name)
    }

    /// True if another content reports the same state of its snapshot, whatever its metadata.
    pub(crate) fn has_same_state(&self, other: &Self) -> bool {
        self.spec == other.spec && self.status == other.status
    }

    /// The driver's handle of the snapshot. Once there is one, its point in time is fixed.
    pub(crate) fn handle(&self) -> Option<&str> {
        let handle = self.status.as_ref()?.snapshot_handle.as_deref()?;
        Some(handle).filter(|handle| !handle.is_empty())
    }

    /// True if it is ready to use.
    pub(crate) fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use).unwrap_or_default()
    }

    /// Size of the volume that a restore needs.
    pub(crate) fn restore_size(&self) -> Option<i64> {
        self.status.as_ref()?.restore_size
    }

    /// The error in its status, if any.
    pub(crate) fn error(&self) -> Option<String> {
        Some(self.status.as_ref()?.error.as_ref()?.message_text())
    }

    /// Copies the current state of its snapshot into a record.
    pub(crate) fn copy_into(&self, record: &mut CsiSnapshotRecord) {
        let status = self.status.clone().unwrap_or_default();
        record.content.clone_from(&self.metadata.name);
        record.handle = status.snapshot_handle.unwrap_or_default();
        record.group_handle = status.volume_group_snapshot_handle.unwrap_or_default();
        record.deletion_policy.clone_from(&self.spec.deletion_policy);
        record.restore_size = status.restore_size;
        record.is_ready = status.ready_to_use.unwrap_or_default();
        let created = status.creation_time.map(i128::from);
        record.created = created.and_then(|at| Timestamp::from_nanosecond(at).ok());
        if !self.spec.driver.is_empty() {
            record.driver.clone_from(&self.spec.driver);
        }
    }
}

#[cfg(test)]
mod tests;
