//! CSI snapshots of a backup.

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::{Backup, label};
use bowline_store::file::{BackupVolumeInfo, Method};
use serde_json::Value;

use super::super::BackupInventory;
use crate::csi::{DELETION_SECRET, GROUP_DELETION_SECRET};
use crate::json::text;

/// A CSI snapshot to delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletableCsiSnapshot {
    /// The VolumeSnapshotContent of the backup, which may be gone; empty if unknown.
    pub name: String,
    /// The driver.
    pub driver: String,
    /// The driver's handle of the snapshot.
    pub handle: String,
    /// The claim or volume that it was taken of.
    pub volume: String,
    /// The driver's handle of the group that it was taken in; empty if it was taken alone.
    pub group: String,
    /// The VolumeSnapshotClass that it was taken with; empty if unknown.
    pub class: String,
    /// Namespace and name of the VolumeSnapshot that it was taken for.
    pub snapshot: (String, String),
    /// True if it was taken with a Secret. [This cluster](super::check_csi_ready) determines which one.
    pub needs_secret: bool,
    /// Annotations that its deletion needs: they name the Secret. Never those of the archive.
    pub annotations: BTreeMap<String, String>,
}

/// Annotation with the group of a content, which the controller sets before the status has it.
const GROUP_HANDLE_POINTER: &str =
    "/metadata/annotations/groupsnapshot.storage.k8s.io~1volumeGroupSnapshotHandle";

/// True if a backup may have CSI snapshots, so that its archive must be searched.
pub(in crate::delete) fn may_hold_csi_snapshots(
    backup: &Backup,
    inventory: &BackupInventory,
) -> bool {
    let status = backup.status.clone().unwrap_or_default();
    status.csi_volume_snapshots_attempted > 0
        || csi_volumes(inventory).next().is_some()
        || !inventory.csi_undecided.is_empty()
}

/// Volumes of the backup with CSI snapshots that were not moved.
fn csi_volumes(inventory: &BackupInventory) -> impl Iterator<Item = &BackupVolumeInfo> {
    inventory.volumes.iter().flatten().filter(|volume| {
        !volume.skipped
            && volume.backup_method == Some(Method::CsiSnapshot)
            && !volume.snapshot_data_moved
    })
}

/// True if a backup took a snapshot itself, judged by its content and its VolumeSnapshot in the archive. Velero puts
/// the label of the backup on the contents of all snapshots that it finds, including those that users took, but never
/// on a user's VolumeSnapshot.
pub(in crate::delete) fn is_created_by(
    backup: &str,
    content: &Value,
    snapshot: Option<&Value>,
) -> bool {
    let is_labelled = |object: &Value| {
        let labels = object.pointer("/metadata/labels");
        let name = labels.and_then(|labels| labels.get(label::BACKUP_NAME)?.as_str());
        name == Some(&*label::value(backup))
    };
    is_labelled(content) && snapshot.is_none_or(is_labelled)
}

/// Namespace and name of the VolumeSnapshot of a content.
pub(in crate::delete) fn snapshot_of(content: &Value) -> (&str, &str) {
    (
        text(content, "/spec/volumeSnapshotRef/namespace"),
        text(content, "/spec/volumeSnapshotRef/name"),
    )
}

/// True if a content belongs to a VolumeSnapshot, according to either of them. Velero has bound contents to another
/// VolumeSnapshot after the backup, and then only the first one has the reference.
pub(in crate::delete) fn are_bound(content: &Value, snapshot: &Value) -> bool {
    let own = (text(snapshot, "/metadata/namespace"), text(snapshot, "/metadata/name"));
    let bound = text(snapshot, "/status/boundVolumeSnapshotContentName");
    let is_named = !bound.is_empty() && bound == text(content, "/metadata/name");
    is_named || (!own.1.is_empty() && snapshot_of(content) == own)
}

/// Names of the contents of unknown origin whose snapshot is not among those that the backup took.
pub(in crate::delete) fn undecided_contents(
    inventory: &BackupInventory,
    found: &[DeletableCsiSnapshot],
) -> Vec<String> {
    let contents = inventory.csi_undecided.iter().map(parse_content);
    let is_unknown = |content: &DeletableCsiSnapshot| {
        !content.handle.is_empty()
            && !found
                .iter()
                .any(|known| known.handle == content.handle && known.driver == content.driver)
    };
    contents.filter(is_unknown).map(|content| content.name).collect()
}

/// CSI snapshots of a backup, without duplicates; and the handles or names of those with insufficient information for
/// a deletion.
pub(in crate::delete) fn held_csi_snapshots(
    inventory: &BackupInventory,
    name_of: impl Fn(&BackupVolumeInfo) -> String,
) -> (Vec<DeletableCsiSnapshot>, Vec<String>) {
    let mut found: BTreeMap<(String, String), DeletableCsiSnapshot> = BTreeMap::new();
    let mut unknown = Vec::new();
    for stored in &inventory.csi_contents {
        let content = parse_content(stored);
        // A content without a handle represents no snapshot.
        if !content.handle.is_empty() && content.driver.is_empty() {
            unknown.push(content.name);
        } else if !content.handle.is_empty() {
            found.insert((content.driver.clone(), content.handle.clone()), content);
        }
    }
    let known: BTreeSet<String> = found.values().map(|content| content.name.clone()).collect();
    let handles: BTreeSet<String> = found.values().map(|one| one.handle.clone()).collect();
    for volume in csi_volumes(inventory) {
        let info = volume.csi_snapshot_info.clone().unwrap_or_default();
        let (handle, driver) = (info.snapshot_handle, info.driver);
        let is_known = handles.contains(&handle) || known.contains(&info.vsc_name);
        if !handle.is_empty() && !driver.is_empty() {
            let content = found.entry((driver.clone(), handle.clone())).or_insert_with(|| {
                let mut undecided = inventory.csi_undecided.iter().map(parse_content);
                // The volume information settles the origin, and the content has more details.
                let same = undecided.find(|one| one.driver == driver && one.handle == handle);
                same.unwrap_or(DeletableCsiSnapshot {
                    name: info.vsc_name,
                    driver,
                    handle,
                    ..DeletableCsiSnapshot::default()
                })
            });
            content.volume = name_of(volume);
            if content.group.is_empty() {
                content.group = info.volume_group_snapshot_handle;
            }
        } else if !is_known && super::super::plan::has_data(volume, &handle) {
            unknown.push(name_of(volume));
        }
    }
    (found.into_values().collect(), unknown)
}

/// Parses a VolumeSnapshotContent.
pub(in crate::delete) fn parse_content(stored: &Value) -> DeletableCsiSnapshot {
    let handle = match text(stored, "/status/snapshotHandle") {
        "" => text(stored, "/spec/source/snapshotHandle"),
        handle => handle,
    };
    let annotations = stored.pointer("/metadata/annotations");
    let names_secret = |key: &&str| annotations.and_then(|all| all.get(key)).is_some();
    let (namespace, snapshot) = snapshot_of(stored);
    DeletableCsiSnapshot {
        name: text(stored, "/metadata/name").to_owned(),
        driver: text(stored, "/spec/driver").to_owned(),
        handle: handle.to_owned(),
        volume: String::new(),
        group: match text(stored, "/status/volumeGroupSnapshotHandle") {
            "" => text(stored, GROUP_HANDLE_POINTER).to_owned(),
            group => group.to_owned(),
        },
        class: text(stored, "/spec/volumeSnapshotClassName").to_owned(),
        snapshot: (namespace.to_owned(), snapshot.to_owned()),
        needs_secret: DELETION_SECRET.iter().chain(&GROUP_DELETION_SECRET).any(names_secret),
        annotations: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn content(name: &str, status: &Value) -> Value {
        json!({
            "metadata": {
                "name": name, "labels": {"velero.io/backup-name": "b"},
                "annotations": {
                    "snapshot.storage.kubernetes.io/deletion-secret-name": "key",
                    "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes",
                    "kubectl.kubernetes.io/last": "x",
                },
            },
            "spec": {"driver": "a.driver", "source": {"volumeHandle": "v"}},
            "status": status,
        })
    }

    fn volume(claim: &str, info: &Value) -> BackupVolumeInfo {
        serde_json::from_value(json!({
            "pvcName": claim, "backupMethod": "CSISnapshot", "result": "succeeded",
            "snapshotDataMoved": false, "preserveLocalSnapshot": true, "skipped": false,
            "csiSnapshotInfo": info,
        }))
        .unwrap()
    }

    fn info(handle: &str, driver: &str, content: &str) -> Value {
        json!({
            "snapshotHandle": handle, "driver": driver, "vscName": content, "size": 1,
            "ReadyToUse": true,
        })
    }

    #[test]
    fn each_snapshot_is_found_once_by_content_or_volume_info() {
        let inventory = BackupInventory {
            csi_contents: vec![
                content(
                    "vsc-1",
                    &json!({"snapshotHandle": "s1", "volumeGroupSnapshotHandle": "g1"}),
                ),
                content("vsc-2", &json!({})),
            ],
            volumes: Some(vec![
                volume("one", &info("s1", "a.driver", "vsc-1")),
                volume(
                    "two",
                    &json!({
                        "snapshotHandle": "s2", "driver": "b.driver", "vscName": "vsc-9", "size": 1,
                        "ReadyToUse": true, "volumeGroupSnapshotHandle": "g2",
                    }),
                ),
                volume("three", &info("", "a.driver", "vsc-2")),
                volume("four", &info("s4", "", "")),
                volume("five", &info("s1", "", "vsc-1")),
            ]),
            ..BackupInventory::default()
        };
        let (found, unknown) = held_csi_snapshots(&inventory, |volume| volume.pvc_name.clone());
        let expected = [
            DeletableCsiSnapshot {
                name: "vsc-1".into(),
                driver: "a.driver".into(),
                handle: "s1".into(),
                volume: "one".into(),
                group: "g1".into(),
                needs_secret: true,
                ..DeletableCsiSnapshot::default()
            },
            DeletableCsiSnapshot {
                name: "vsc-9".into(),
                driver: "b.driver".into(),
                handle: "s2".into(),
                volume: "two".into(),
                group: "g2".into(),
                ..DeletableCsiSnapshot::default()
            },
        ];
        assert_eq!(found, expected);
        // The handle of the snapshot, or its driver, is missing.
        assert_eq!(unknown, ["three", "four"]);
    }

    #[test]
    fn volume_info_decides_about_an_undecided_content() {
        let undecided = ["s1", "s2", ""]
            .map(|handle| content(&format!("vsc-{handle}"), &json!({"snapshotHandle": handle})));
        let inventory = BackupInventory {
            csi_undecided: undecided.to_vec(),
            volumes: Some(vec![volume("one", &info("s1", "a.driver", "vsc-s1"))]),
            ..BackupInventory::default()
        };
        let (found, unknown) = held_csi_snapshots(&inventory, |volume| volume.pvc_name.clone());
        assert_eq!((found.len(), unknown.len()), (1, 0));
        assert_eq!((found[0].handle.as_str(), found[0].volume.as_str()), ("s1", "one"));
        assert!(found[0].needs_secret, "it is known to need one");
        assert_eq!(super::undecided_contents(&inventory, &found), ["vsc-s2"]);
    }

    #[test]
    fn content_and_snapshot_are_bound_by_either_reference() {
        let snapshot = |name: &str, bound: &str| {
            json!({
                "metadata": {"namespace": "shop", "name": name},
                "status": {"boundVolumeSnapshotContentName": bound},
            })
        };
        let content = json!({
            "metadata": {"name": "vsc"},
            "spec": {"volumeSnapshotRef": {"namespace": "shop", "name": "vs"}},
        });
        for (snapshot, expected) in [
            (snapshot("vs", "vsc"), true),
            (snapshot("vs", ""), true),
            (snapshot("other", "vsc"), true),
            (snapshot("other", "other"), false),
            (json!({"metadata": {"namespace": "blog", "name": "vs"}}), false),
        ] {
            assert_eq!(are_bound(&content, &snapshot), expected, "{snapshot}");
        }
        assert!(!are_bound(&json!({}), &json!({})));
    }

    #[test]
    fn user_snapshots_do_not_belong_to_the_backup() {
        let labelled = |backup: &str| json!({"metadata": {"labels": {label::BACKUP_NAME: backup}}});
        let bare = json!({"metadata": {}});
        for (content, snapshot, expected) in [
            (labelled("b"), Some(labelled("b")), true),
            (labelled("b"), None, true),
            (labelled("b"), Some(bare.clone()), false),
            (labelled("b"), Some(labelled("c")), false),
            (labelled("c"), Some(labelled("b")), false),
            (bare, None, false),
        ] {
            assert_eq!(is_created_by("b", &content, snapshot.as_ref()), expected, "{content}");
        }
    }
}
