//! Claims, which were bound in the original cluster.

use async_trait::async_trait;
use bowline_api::{Restore, annotation, label};
use bowline_plugin::{
    Encoded, Item, ResourceIdentifier, ResourceSelector, RestoreItemAction, RestoreOutput, Result,
};
use serde::Deserialize;
use serde_json::Value;

use super::{edit, id, read};
use crate::json::remove_entries;

/// Removes the annotations that controllers set when they bound a claim, and adds the volume that it was bound to.
pub(super) struct Pvc;

const BINDING_ANNOTATIONS: [&str; 7] = [
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/selected-node",
    label::VOLUME_SNAPSHOT_NAME,
    annotation::DATA_UPLOAD_NAME,
];

/// The required fields of the backed-up claim, which still has a status.
#[derive(Default, Deserialize)]
#[serde(default)]
struct BackedUp {
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    volume_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
}

fn change(claim: &mut Value) -> bool {
    remove_entries(claim, "/metadata", "annotations", &BINDING_ANNOTATIONS)
}

fn volume(claim: &BackedUp) -> Option<ResourceIdentifier> {
    let name = &claim.spec.volume_name;
    let is_bound = claim.status.phase == "Bound" && !name.is_empty();
    is_bound.then(|| id("", "persistentvolumes", "", name))
}

#[async_trait]
impl RestoreItemAction for Pvc {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["persistentvolumeclaims"]))
    }

    async fn execute(
        &self,
        item: &Item,
        item_from_backup: &Item,
        _: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let mut output = edit(item, |claim| Ok(change(claim)))?;
        output.additional_items.extend(volume(&read(item_from_backup)?));
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::changes;
    use super::*;
    use serde_json::json;

    #[test]
    fn binding_annotations_are_removed() {
        let annotated = |annotations: Value| json!({"metadata": {"annotations": annotations}});
        let binding: serde_json::Map<_, _> =
            BINDING_ANNOTATIONS.iter().map(|key| ((*key).to_owned(), "x".into())).collect();
        let mut mixed = binding.clone();
        mixed.insert("own".to_owned(), "stays".into());
        changes(
            change,
            [
                ("no annotations", json!({"metadata": {"name": "data"}}), None),
                ("own annotations", annotated(json!({"own": "stays"})), None),
                ("all of them", annotated(binding.into()), Some(json!({"metadata": {}}))),
                ("mixed", annotated(mixed.into()), Some(annotated(json!({"own": "stays"})))),
            ],
        );
    }

    #[tokio::test]
    async fn volume_of_a_bound_claim_is_an_additional_item() {
        for (phase, volume_name, expected) in [
            ("Bound", "pv-1", vec!["persistentvolumes/pv-1"]),
            ("Bound", "", vec![]),
            ("Lost", "pv-1", vec![]),
            ("Pending", "pv-1", vec![]),
        ] {
            let item = Item::from_object(&json!({"kind": "PersistentVolumeClaim"})).unwrap();
            let backed_up = json!({
                "kind": "PersistentVolumeClaim",
                "spec": {"volumeName": volume_name},
                "status": {"phase": phase},
            });
            let backed_up = Item::from_object(&backed_up).unwrap();
            let restore = Encoded::new(Restore::default());
            let output = Pvc.execute(&item, &backed_up, &restore).await.unwrap();
            let added: Vec<_> = output.additional_items.iter().map(ToString::to_string).collect();
            assert_eq!(added, expected, "{phase} {volume_name}");
            assert_eq!(output.item, item);
        }
    }
}
