//! What one call of a driver deletes, and the object by which its controllers are asked for that.

use std::collections::BTreeMap;

use bowline_api::label;
use serde_json::{Value, json};

use super::{Content, text};
use crate::csi::{DELETION_SECRET, GROUP_DELETION_SECRET};
use crate::journal::digest;

/// What one call of a driver deletes: a snapshot, or all snapshots of a group.
pub(super) struct Unit<'a> {
    pub(super) shape: Shape,
    pub(super) driver: &'a str,
    /// The snapshot or the group, in the words of the driver.
    pub(super) handle: &'a str,
    /// The snapshots that go.
    pub(super) members: Vec<&'a Content>,
}

/// Which kind of content stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A VolumeSnapshotContent.
    Snapshot,
    /// A VolumeGroupSnapshotContent.
    Group,
}

/// What the status of a content says of its snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing yet, or nothing any more.
    Bare,
    /// Its handle, so that a deletion reaches the driver.
    Named,
    /// That something is wrong with it.
    Failing,
}

impl Shape {
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Snapshot => "VolumeSnapshotContent",
            Self::Group => "VolumeGroupSnapshotContent",
        }
    }

    /// What keeps a content until the controllers have deleted its snapshot.
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

    /// Where the status of a content names its snapshot.
    fn field(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshotHandle",
            Self::Group => "volumeGroupSnapshotHandle",
        }
    }

    fn place(self) -> &'static str {
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

    /// What the status of a content calls its snapshot; empty if it does not.
    fn named(self, content: &Value) -> &str {
        text(content, &format!("/status/{}", self.field()))
    }

    /// The group that the snapshot of a content is a member of, if its status says so.
    pub(super) fn group(self, content: &Value) -> Option<String> {
        let group = text(content, "/status/volumeGroupSnapshotHandle");
        (self == Self::Snapshot && !group.is_empty()).then(|| group.to_owned())
    }

    /// Whether a content stands for a snapshot.
    pub(super) fn stands_for(self, content: &Value, handle: &str) -> bool {
        self.named(content) == handle || text(content, self.place()) == handle
    }

    pub(super) fn standing(self, content: &Value) -> Standing {
        if !self.named(content).is_empty() {
            Standing::Named
        } else if content.pointer("/status/error").is_some_and(Value::is_object) {
            Standing::Failing
        } else {
            Standing::Bare
        }
    }

    /// Whether a content that had named its snapshot was cleared, as the snapshotter does when the driver
    /// has deleted it. One that has lost the name to an error still says that it is not ready.
    pub(super) fn is_cleared(self, content: &Value) -> bool {
        let is_ready = content.pointer("/status/readyToUse");
        self.named(content).is_empty() && is_ready.is_none_or(Value::is_null)
    }
}

/// What is deleted by one call each.
pub(super) fn units(doomed: &[Content]) -> Vec<Unit<'_>> {
    let (mut units, mut groups) = (Vec::new(), BTreeMap::<_, Vec<&Content>>::new());
    for content in doomed {
        let Content { driver, handle, group, .. } = content;
        if group.is_empty() {
            let members = vec![content];
            units.push(Unit { shape: Shape::Snapshot, driver, handle, members });
        } else {
            groups.entry((driver, group)).or_default().push(content);
        }
    }
    let of_groups = groups.into_iter().map(|((driver, handle), members)| Unit {
        shape: Shape::Group,
        driver,
        handle,
        members,
    });
    units.extend(of_groups);
    units
}

impl Unit<'_> {
    /// What is told of it.
    pub(super) fn told(&self) -> String {
        let volumes = self.members.iter().map(|member| member.volume.as_str());
        let volumes: Vec<&str> = volumes.filter(|volume| !volume.is_empty()).collect();
        let of =
            if volumes.is_empty() { String::new() } else { format!(" of {}", volumes.join(", ")) };
        let what = match self.shape {
            Shape::Snapshot => "CSI snapshot",
            Shape::Group => "group of CSI snapshots",
        };
        format!("{what} {}{of}", self.handle)
    }

    /// What the content for its deletion is called: the same in every attempt.
    pub(super) fn name(&self, backup: &str) -> String {
        let hash = digest(format!("{backup}/{}/{}", self.driver, self.handle).as_bytes());
        format!("{}-{}", self.shape.prefix(), hash.get(..32).unwrap_or(&hash))
    }

    /// The content for its deletion. It has the finalizer of the controllers from the start.
    pub(super) fn content(&self, name: &str, api_version: &str, backup: &str) -> Value {
        let Self { shape, driver, handle, .. } = self;
        // There is none, and there is to be none.
        let mut nobody =
            json!({ "namespace": format!("ns-{name}"), "name": format!("name-{name}") });
        let (source, reference) = match shape {
            Shape::Snapshot => {
                nobody["apiVersion"] = api_version.into();
                nobody["kind"] = "VolumeSnapshot".into();
                (json!({ "snapshotHandle": handle }), "volumeSnapshotRef")
            }
            Shape::Group => {
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
            "kind": shape.kind(),
            "metadata": {
                "name": name,
                "labels": { label::BACKUP_NAME: label::value(backup) },
                "annotations": self.annotations(),
                "finalizers": [shape.finalizer()],
            },
            "spec": {
                "deletionPolicy": "Delete", "driver": driver, "source": source, reference: nobody,
            },
        })
    }

    /// What the status must say for the driver to be asked.
    pub(super) fn status(&self) -> Value {
        json!({"status": { self.shape.field(): self.handle, "readyToUse": true, "error": null }})
    }

    /// The annotations that its deletion needs. The controllers put the secret of a group on the contents of
    /// its members too, under another name.
    fn annotations(&self) -> BTreeMap<&str, &str> {
        let mut all = BTreeMap::new();
        for member in &self.members {
            for (key, value) in &member.annotations {
                let renamed = DELETION_SECRET.iter().position(|own| own == key);
                match (self.shape, renamed) {
                    (Shape::Group, Some(place)) => {
                        all.entry(GROUP_DELETION_SECRET[place]).or_insert(value.as_str());
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

    fn member(handle: &str, group: &str, annotations: &[(&str, &str)]) -> Content {
        Content {
            driver: "d".into(),
            handle: handle.into(),
            group: group.into(),
            volume: format!("shop/{handle}"),
            annotations: annotations.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            ..Content::default()
        }
    }

    #[test]
    fn the_snapshots_of_a_group_go_together() {
        let [one, two] = DELETION_SECRET;
        let own = GROUP_DELETION_SECRET[0];
        let doomed = [
            member("a", "g", &[(one, "key"), (two, "vault")]),
            member("b", "", &[(one, "key")]),
            member("c", "g", &[(own, "of-group")]),
            member("d", "h", &[]),
        ];
        let units = units(&doomed);
        let handles: Vec<(&str, usize)> =
            units.iter().map(|unit| (unit.handle, unit.members.len())).collect();
        assert_eq!(handles, [("b", 1), ("g", 2), ("h", 1)]);
        assert_eq!(units[0].told(), "CSI snapshot b of shop/b");
        assert_eq!(units[1].told(), "group of CSI snapshots g of shop/a, shop/c");
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
    fn a_name_that_was_lost_to_an_error_is_not_cleared() {
        for shape in [Shape::Snapshot, Shape::Group] {
            let with = |status: Value| json!({"status": status});
            let named = with(json!({shape.field(): "h", "readyToUse": true}));
            let wiped = with(json!({"readyToUse": false, "error": {"message": "no"}}));
            let cleared = with(json!({"error": {"message": "of before"}}));
            for (content, standing, is_cleared) in [
                (&named, Standing::Named, false),
                (&wiped, Standing::Failing, false),
                (&cleared, Standing::Failing, true),
                (&json!({}), Standing::Bare, true),
            ] {
                assert_eq!(shape.standing(content), standing, "{content}");
                assert_eq!(shape.is_cleared(content), is_cleared, "{content}");
            }
        }
    }
}
