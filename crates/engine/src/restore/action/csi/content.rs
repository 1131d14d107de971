//! VolumeSnapshotContents, which represent the snapshots of drivers.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::{Restore, annotation};
use bowline_plugin::{
    Code, Encoded, Error, Item, ResourceIdentifier, ResourceSelector, RestoreItemAction,
    RestoreOutput, Result,
};
use serde_json::{Value, json};

use super::super::{id, read, target_namespace, write};
use super::cluster_capabilities::SnapshotClass;
use super::source::{annotated_handle, handle};
use super::{CsiRestoreContext, IN_PROGRESS_ANNOTATIONS, SNAPSHOTS, kind, name_in_restore};
use crate::json::{annotation as annotated, map, remove_entries, text};

/// Makes a content refer to the snapshot by its handle, with the policy `Retain`.
pub(super) struct CsiSnapshotContentAction(Arc<CsiRestoreContext>);

impl CsiSnapshotContentAction {
    pub(super) fn new(csi: &Arc<CsiRestoreContext>) -> Self {
        Self(Arc::clone(csi))
    }

    /// The handle in the annotation of a content's VolumeSnapshot.
    fn annotated_handle(&self, content: &Value) -> Option<String> {
        let reference = |field: &str| text(content, &format!("/spec/volumeSnapshotRef/{field}"));
        let (namespace, name) = (reference("namespace"), reference("name"));
        let item = self.0.contents.read(&kind(SNAPSHOTS), None, namespace, name).ok()?;
        annotated_handle(&item.parse().ok()?).map(str::to_owned)
    }
}

/// The restored form of a content.
struct RestoredContent<'a> {
    name: &'a str,
    /// The namespace of its VolumeSnapshot.
    namespace: &'a str,
    handle: &'a str,
    class: Option<&'a str>,
}

fn change(content: &mut Value, new: &RestoredContent<'_>) {
    let RestoredContent { name, namespace, handle, class } = *new;
    remove_entries(content, "/metadata", "annotations", &IN_PROGRESS_ANNOTATIONS);
    if let Some(metadata) = map(content, "/metadata") {
        metadata.insert("name".to_owned(), name.into());
    }
    if let Some(reference) = map(content, "/spec/volumeSnapshotRef") {
        for field in ["uid", "resourceVersion"] {
            reference.remove(field);
        }
        reference.insert("name".to_owned(), name.into());
        reference.insert("namespace".to_owned(), namespace.into());
    }
    if let Some(spec) = map(content, "/spec") {
        spec.insert("deletionPolicy".to_owned(), "Retain".into());
        spec.insert("source".to_owned(), json!({ "snapshotHandle": handle }));
        match class {
            Some(class) => spec.insert("volumeSnapshotClassName".to_owned(), class.into()),
            None => spec.remove("volumeSnapshotClassName"),
        };
    }
}

/// The class for a driver: the original one, otherwise the default one, otherwise the first. The controllers take the
/// secrets for driver calls from it.
fn class_for<'a>(classes: &'a [SnapshotClass], driver: &str, had: &str) -> Option<&'a str> {
    let of_driver = || classes.iter().filter(|class| class.driver == driver);
    let same = of_driver().find(|class| class.name == had);
    let chosen = same.or_else(|| of_driver().find(|class| class.is_default));
    chosen.or_else(|| of_driver().next()).map(|class| class.name.as_str())
}

/// The secret that a driver needs for the snapshot.
fn secret(content: &Value) -> Option<ResourceIdentifier> {
    let name = annotated(content, annotation::SNAPSHOTTER_SECRET_NAME)?;
    let namespace = annotated(content, annotation::SNAPSHOTTER_SECRET_NAMESPACE)?;
    Some(id("", "secrets", namespace, name))
}

#[async_trait]
impl RestoreItemAction for CsiSnapshotContentAction {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["volumesnapshotcontents.snapshot.storage.k8s.io"]))
    }

    async fn execute(
        &self,
        item: &Item,
        item_from_backup: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let mut output = RestoreOutput::unchanged(item);
        if !self.0.volume_options.restore_pvs {
            output.skip_restore = true;
            return Ok(output);
        }
        let (mut content, backed_up): (Value, Value) = (read(item)?, read(item_from_backup)?);
        let handle = handle(&backed_up).map(str::to_owned);
        let Some(handle) = handle.or_else(|| self.annotated_handle(&backed_up)) else {
            let text = "the VolumeSnapshotContent names no snapshot: the snapshot was not complete at \
                 the time of the backup";
            return Err(Error::new(Code::FailedPrecondition, text));
        };
        let classes = self.0.capabilities().snapshot_classes().await?;
        let driver = self.0.driver(&backed_up);
        let had = text(&backed_up, "/spec/volumeSnapshotClassName");
        let uid = restore.metadata.uid.as_deref().unwrap_or_default();
        let namespace = text(&backed_up, "/spec/volumeSnapshotRef/namespace");
        let new = RestoredContent {
            name: &name_in_restore(
                uid,
                namespace,
                text(&backed_up, "/spec/volumeSnapshotRef/name"),
            ),
            namespace: target_namespace(&restore.spec, namespace),
            handle: &handle,
            class: class_for(classes, &driver, had),
        };
        change(&mut content, &new);
        output.additional_items.extend(secret(&content));
        output.item = write(&content)?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_content_references_the_handle_with_retain_policy() {
        let mut content = json!({
            "metadata": {
                "name": "snapcontent-1",
                "annotations": {
                    "snapshot.storage.kubernetes.io/volumesnapshot-being-created": "yes",
                    "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes",
                    "snapshot.storage.kubernetes.io/deletion-secret-name": "key",
                },
            },
            "spec": {
                "deletionPolicy": "Delete", "driver": "a.driver", "sourceVolumeMode": "Filesystem",
                "source": {"volumeHandle": "v1"},
                "volumeSnapshotClassName": "gone",
                "volumeSnapshotRef": {
                    "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                    "name": "vs", "namespace": "shop", "uid": "u", "resourceVersion": "7",
                },
            },
        });
        let new = RestoredContent { name: "abc", namespace: "copy", handle: "s1", class: None };
        change(&mut content, &new);
        let mut expected = json!({
            "metadata": {
                "name": "abc",
                "annotations": {"snapshot.storage.kubernetes.io/deletion-secret-name": "key"},
            },
            "spec": {
                "deletionPolicy": "Retain", "driver": "a.driver", "sourceVolumeMode": "Filesystem",
                "source": {"snapshotHandle": "s1"},
                "volumeSnapshotRef": {
                    "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                    "name": "abc", "namespace": "copy",
                },
            },
        });
        assert_eq!(content, expected);
        change(&mut content, &RestoredContent { class: Some("fast"), ..new });
        expected["spec"]["volumeSnapshotClassName"] = "fast".into();
        assert_eq!(content, expected);
    }

    #[test]
    fn snapshot_class_is_chosen_by_driver() {
        let class = |name: &str, driver: &str, is_default| SnapshotClass {
            name: name.into(),
            driver: driver.into(),
            is_default,
        };
        let classes = [
            class("a", "other", true),
            class("b", "mine", false),
            class("c", "mine", true),
            class("d", "mine", false),
        ];
        for (classes, had, expected) in [
            (&classes[..], "d", Some("d")),
            (&classes[..], "a", Some("c")),
            (&classes[..2], "", Some("b")),
            (&classes[..1], "a", None),
        ] {
            assert_eq!(class_for(classes, "mine", had), expected, "{had}");
        }
    }

    #[test]
    fn secret_is_an_additional_item_if_name_and_namespace_are_annotated() {
        let annotated = |annotations: Value| json!({"metadata": {"annotations": annotations}});
        let (name, namespace) =
            (annotation::SNAPSHOTTER_SECRET_NAME, annotation::SNAPSHOTTER_SECRET_NAMESPACE);
        let both = annotated(json!({name: "key", namespace: "csi"}));
        assert_eq!(secret(&both), Some(id("", "secrets", "csi", "key")));
        assert_eq!(secret(&annotated(json!({name: "key"}))), None);
        assert_eq!(secret(&json!({})), None);
    }
}
