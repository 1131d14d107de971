//! Unit of deletion: the snapshots that one driver call deletes, and the object that triggers the call.

use std::collections::BTreeMap;

use bowline_api::label;
use serde_json::{Value, json};

use super::DeletableCsiSnapshot;
use crate::csi::{DELETION_SECRET, GROUP_DELETION_SECRET};
use crate::journal::digest;
use crate::json::text;

/// A snapshot, or all snapshots of a group, which one driver call deletes.
pub(super) struct DeletionUnit<'a> {
    pub(super) content_kind: ContentKind,
    pub(super) driver: &'a str,
    /// The driver's handle of the snapshot or the group.
    pub(super) handle: &'a str,
    /// The snapshots to delete.
    pub(super) members: Vec<&'a DeletableCsiSnapshot>,
}

/// Kind of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentKind {
    /// A VolumeSnapshotContent.
    Snapshot,
    /// A VolumeGroupSnapshotContent.
    Group,
}

/// State of a content according to its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ContentState {
    /// No handle yet, or no longer.
    Empty,
    /// The handle is set, so that a deletion reaches the driver.
    HasHandle,
    /// An error is set.
    HasError,
}

impl ContentKind {
    pub(super) fn kind_name(self) -> &'static str {
        match self {
            Self::Snapshot => "VolumeSnapshotContent",
            Self::Group => "VolumeGroupSnapshotContent",
        }
    }

    /// The finalizer that keeps a content until the controllers have deleted its snapshot.
    pub(super) fn finalizer(self) -> &'static str {
        match self {
            Self::Snapshot => {
                "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
            }
            Self::Group => {
                "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection"
            }
        }
    }

    /// Status field with the handle.
    fn handle_field(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshotHandle",
            Self::Group => "volumeGroupSnapshotHandle",
        }
    }

    fn source_pointer(self) -> &'static str {
        match self {
            Self::Snapshot => "/spec/source/snapshotHandle",
            Self::Group => "/spec/source/groupSnapshotHandles/volumeGroupSnapshotHandle",
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Snapshot => "vsc",
            Self::Group => "vgsc",
        }
    }

    /// The handle in the status of a content; empty if there is none.
    fn status_handle(self, content: &Value) -> &str {
        text(content, &format!("/status/{}", self.handle_field()))
    }

    /// The group that the snapshot of a content is a member of, if the status has it.
    pub(super) fn group(self, content: &Value) -> Option<String> {
        let group = text(content, "/status/volumeGroupSnapshotHandle");
        (self == Self::Snapshot && !group.is_empty()).then(|| group.to_owned())
    }

    /// True if a content refers to a snapshot.
    pub(super) fn references(self, content: &Value, handle: &str) -> bool {
        self.status_handle(content) == handle || text(content, self.source_pointer()) == handle
    }

    pub(super) fn content_state(self, content: &Value) -> ContentState {
        if !self.status_handle(content).is_empty() {
            ContentState::HasHandle
        } else if content.pointer("/status/error").is_some_and(Value::is_object) {
            ContentState::HasError
        } else {
            ContentState::Empty
        }
    }

    /// True if the handle of a content was cleared, as the snapshotter does when the driver has deleted the snapshot. A
    /// content that lost its handle because of an error still says that it is not ready.
    pub(super) fn is_cleared(self, content: &Value) -> bool {
        let is_ready = content.pointer("/status/readyToUse");
        self.status_handle(content).is_empty() && is_ready.is_none_or(Value::is_null)
    }
}

/// Groups snapshots into units.
pub(super) fn units(snapshots: &[DeletableCsiSnapshot]) -> Vec<DeletionUnit<'_>> {
    let (mut units, mut groups) = (Vec::new(), BTreeMap::<_, Vec<&DeletableCsiSnapshot>>::new());
    for content in snapshots {
        let DeletableCsiSnapshot { driver, handle, group, .. } = content;
        if group.is_empty() {
            let members = vec![content];
            units.push(DeletionUnit {
                content_kind: ContentKind::Snapshot,
                driver,
                handle,
                members,
            });
        } else {
            groups.entry((driver, group)).or_default().push(content);
        }
    }
    let of_groups = groups.into_iter().map(|((driver, handle), members)| DeletionUnit {
        content_kind: ContentKind::Group,
        driver,
        handle,
        members,
    });
    units.extend(of_groups);
    units
}

impl DeletionUnit<'_> {
    /// Description for messages.
    pub(super) fn description(&self) -> String {
        let volumes = self.members.iter().map(|member| member.volume.as_str());
        let volumes: Vec<&str> = volumes.filter(|volume| !volume.is_empty()).collect();
        let of =
            if volumes.is_empty() { String::new() } else { format!(" of {}", volumes.join(", ")) };
        let noun = match self.content_kind {
            ContentKind::Snapshot => "CSI snapshot",
            ContentKind::Group => "group of CSI snapshots",
        };
        format!("{noun} {}{of}", self.handle)
    }

    /// Name of the content for the deletion: the same in every attempt.
    pub(super) fn name(&self, backup: &str) -> String {
        let hash = digest(format!("{backup}/{}/{}", self.driver, self.handle).as_bytes());
        format!("{}-{}", self.content_kind.prefix(), hash.get(..32).unwrap_or(&hash))
    }

    /// The content for the deletion. It has the finalizer of the controllers from the start.
    pub(super) fn content(&self, name: &str, api_version: &str, backup: &str) -> Value {
        let Self { content_kind, driver, handle, .. } = self;
        // The VolumeSnapshot does not exist, and must not.
        let mut placeholder_ref =
            json!({ "namespace": format!("ns-{name}"), "name": format!("name-{name}") });
        let (source, reference) = match content_kind {
            ContentKind::Snapshot => {
                placeholder_ref["apiVersion"] = api_version.into();
                placeholder_ref["kind"] = "VolumeSnapshot".into();
                (json!({ "snapshotHandle": handle }), "volumeSnapshotRef")
            }
            ContentKind::Group => {
                let members: Vec<&str> =
                    self.members.iter().map(|member| member.handle.as_str()).collect();
                let source = json!({ "groupSnapshotHandles": {
                    "volumeGroupSnapshotHandle": handle, "volumeSnapshotHandles": members,
                } });
                (source, "volumeGroupSnapshotRef")
            }
        };
        json!({
            "apiVersion": api_version,
            "kind": content_kind.kind_name(),
            "metadata": {
                "name": name,
                "labels": { label::BACKUP_NAME: label::value(backup) },
                "annotations": self.annotations(),
                "finalizers": [content_kind.finalizer()],
            },
            "spec": {
                "deletionPolicy": "Delete", "driver": driver, "source": source, reference: placeholder_ref,
            },
        })
    }

    /// The status that makes the controllers call the driver.
    pub(super) fn status(&self) -> Value {
        json!({"status": { self.content_kind.handle_field(): self.handle, "readyToUse": true, "error": null }})
    }

    /// Annotations that the deletion needs. The controllers also put the secret of a group on the contents of its
    /// members, under another name.
    fn annotations(&self) -> BTreeMap<&str, &str> {
        let mut all = BTreeMap::new();
        for member in &self.members {
            for (key, value) in &member.annotations {
                let renamed = DELETION_SECRET.iter().position(|own| own == key);
                match (self.content_kind, renamed) {
                    (ContentKind::Group, Some(index)) => {
                        all.entry(GROUP_DELETION_SECRET[index]).or_insert(value.as_str());
                    }
                    _ => {
                        all.insert(key.as_str(), value.as_str());
                    }
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(handle: &str, group: &str, annotations: &[(&str, &str)]) -> DeletableCsiSnapshot {
        DeletableCsiSnapshot {
            driver: "d".into(),
            handle: handle.into(),
            group: group.into(),
            volume: format!("shop/{handle}"),
            annotations: annotations.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            ..DeletableCsiSnapshot::default()
        }
    }

    #[test]
    fn snapshots_of_a_group_are_one_unit() {
        let [one, two] = DELETION_SECRET;
        let own = GROUP_DELETION_SECRET[0];
        let snapshots = [
            member("a", "g", &[(one, "key"), (two, "vault")]),
            member("b", "", &[(one, "key")]),
            member("c", "g", &[(own, "of-group")]),
            member("d", "h", &[]),
        ];
        let units = units(&snapshots);
        let handles: Vec<(&str, usize)> =
            units.iter().map(|unit| (unit.handle, unit.members.len())).collect();
        assert_eq!(handles, [("b", 1), ("g", 2), ("h", 1)]);
        assert_eq!(units[0].description(), "CSI snapshot b of shop/b");
        assert_eq!(units[1].description(), "group of CSI snapshots g of shop/a, shop/c");
        let content = units[1].content("vgsc-1", "x/v1", "b1");
        let source = &content["spec"]["source"]["groupSnapshotHandles"];
        assert_eq!(source["volumeSnapshotHandles"], json!(["a", "c"]));
        assert_eq!(source["volumeGroupSnapshotHandle"], "g");
        assert!(content["spec"]["volumeGroupSnapshotRef"]["name"].is_string());
        let secret =
            json!({GROUP_DELETION_SECRET[0]: "of-group", GROUP_DELETION_SECRET[1]: "vault"});
        assert_eq!(content["metadata"]["annotations"], secret);
        let alone = units[0].content("vsc-1", "x/v1", "b1");
        assert_eq!(alone["metadata"]["annotations"], json!({one: "key"}));
    }

    #[test]
    fn status_lost_to_an_error_is_not_cleared() {
        for content_kind in [ContentKind::Snapshot, ContentKind::Group] {
            let with = |status: Value| json!({"status": status});
            let named = with(json!({content_kind.handle_field(): "h", "readyToUse": true}));
            let wiped = with(json!({"readyToUse": false, "error": {"message": "no"}}));
            let cleared = with(json!({"error": {"message": "of before"}}));
            for (content, state, is_cleared) in [
                (&named, ContentState::HasHandle, false),
                (&wiped, ContentState::HasError, false),
                (&cleared, ContentState::HasError, true),
                (&json!({}), ContentState::Empty, true),
            ] {
                assert_eq!(content_kind.content_state(content), state, "{content}");
                assert_eq!(content_kind.is_cleared(content), is_cleared, "{content}");
            }
        }
    }
}
