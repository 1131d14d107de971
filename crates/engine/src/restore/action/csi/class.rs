//! VolumeSnapshotClasses, which are restored with their secrets.

use async_trait::async_trait;
use bowline_api::{Restore, annotation};
use bowline_plugin::{
    Encoded, Item, ResourceIdentifier, ResourceSelector, RestoreItemAction, RestoreOutput, Result,
};
use serde_json::Value;

use super::super::{id, read};
use crate::json::annotation as annotated;

/// Adds the secret for listing snapshots.
pub(super) struct CsiSnapshotClassAction;

fn secret(class: &Value) -> Option<ResourceIdentifier> {
    let name = annotated(class, annotation::SNAPSHOTTER_LIST_SECRET_NAME)?;
    let namespace = annotated(class, annotation::SNAPSHOTTER_LIST_SECRET_NAMESPACE)?;
    Some(id("", "secrets", namespace, name))
}

#[async_trait]
impl RestoreItemAction for CsiSnapshotClassAction {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["volumesnapshotclasses.snapshot.storage.k8s.io"]))
    }

    async fn execute(
        &self,
        item: &Item,
        _: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let mut output = RestoreOutput::unchanged(item);
        if restore.spec.restore_pvs == Some(false) {
            output.skip_restore = true;
        } else {
            output.additional_items.extend(secret(&read(item)?));
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::tests::{execute, restore};
    use super::*;

    #[tokio::test]
    async fn list_secret_is_an_additional_item_unless_volumes_are_excluded() {
        let class = json!({
            "kind": "VolumeSnapshotClass",
            "metadata": {"name": "fast", "annotations": {
                annotation::SNAPSHOTTER_LIST_SECRET_NAME: "key",
                annotation::SNAPSHOTTER_LIST_SECRET_NAMESPACE: "csi",
            }},
        });
        let output = execute(&CsiSnapshotClassAction, &class, &Restore::default()).await.unwrap();
        assert_eq!(output.additional_items, [id("", "secrets", "csi", "key")]);
        assert!(!output.skip_restore);
        let no_volumes = restore(json!({"backupName": "b", "restorePVs": false}));
        let output = execute(&CsiSnapshotClassAction, &class, &no_volumes).await.unwrap();
        assert!(output.skip_restore && output.additional_items.is_empty());
        let plain = json!({"kind": "VolumeSnapshotClass", "metadata": {"name": "fast"}});
        let output = execute(&CsiSnapshotClassAction, &plain, &Restore::default()).await.unwrap();
        assert!(output.additional_items.is_empty());
    }
}
