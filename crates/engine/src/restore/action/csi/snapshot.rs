//! VolumeSnapshots, which were taken of claims.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::{Restore, annotation};
use bowline_plugin::{
    Code, Encoded, Error, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result,
};
use serde_json::{Value, json};

use super::super::{read, write};
use super::claim::must_include;
use super::source::bound_content;
use super::{CONTENTS, CsiRestoreContext, group, name_in_restore, object};
use crate::json::{map, text};

/// Binds a VolumeSnapshot to its content, which is restored before it.
pub(super) struct CsiSnapshotAction(Arc<CsiRestoreContext>);

impl CsiSnapshotAction {
    pub(super) fn new(csi: &Arc<CsiRestoreContext>) -> Self {
        Self(Arc::clone(csi))
    }
}

fn change(snapshot: &mut Value, name: &str) {
    must_include(snapshot);
    if let Some(metadata) = map(snapshot, "/metadata") {
        metadata.insert("name".to_owned(), name.into());
        metadata["annotations"][annotation::CSI_DELETION_POLICY] = "Retain".into();
    }
    if let Some(spec) = map(snapshot, "/spec") {
        spec.remove("volumeSnapshotClassName");
        spec.insert("source".to_owned(), json!({ "volumeSnapshotContentName": name }));
    }
}

#[async_trait]
impl RestoreItemAction for CsiSnapshotAction {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["volumesnapshots.snapshot.storage.k8s.io"]))
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
        let (mut snapshot, backed_up): (Value, Value) = (read(item)?, read(item_from_backup)?);
        let content = bound_content(&backed_up);
        if content.is_empty() {
            let text = "the VolumeSnapshot was not bound to a VolumeSnapshotContent at the time of \
                        the backup";
            return Err(Error::new(Code::FailedPrecondition, text));
        }
        if !self.0.is_dry_run
            && let Some(member) = group::GroupMember::of(&backed_up)
            && let Err(error) = group::ensure_stub(self.0.capabilities(), &member, restore).await
        {
            // Most drivers do not need the stub.
            tracing::warn!("cannot create the temporary VolumeGroupSnapshotContent: {error}");
        }
        let uid = restore.metadata.uid.as_deref().unwrap_or_default();
        let own = |field: &str| text(&backed_up, &format!("/metadata/{field}"));
        change(&mut snapshot, &name_in_restore(uid, own("namespace"), own("name")));
        output.additional_items.push(object(CONTENTS, "", content));
        output.item = write(&snapshot)?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_snapshot_references_the_content_of_the_same_name() {
        let mut snapshot = json!({
            "metadata": {"name": "velero-data-x", "namespace": "shop", "labels": {"app": "shop"}},
            "spec": {
                "source": {"persistentVolumeClaimName": "data"},
                "volumeSnapshotClassName": "fast",
            },
        });
        change(&mut snapshot, "abc");
        let expected = json!({
            "metadata": {
                "name": "abc", "namespace": "shop", "labels": {"app": "shop"},
                "annotations": {
                    "velero.io/csi-vsc-deletion-policy": "Retain",
                    annotation::MUST_INCLUDE_ON_RESTORE: "true",
                },
            },
            "spec": {"source": {"volumeSnapshotContentName": "abc"}},
        });
        assert_eq!(snapshot, expected);
    }
}
