//! `bowline snapshot-location describe`

use bowline_api::{VolumeSnapshotLocation, annotation};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::describe::section::{self, pairs};
use crate::describe::{Describable, document};
use crate::key_value_page::{KeyValuePage, NONE};
use crate::redact;

impl Describable for VolumeSnapshotLocation {
    fn text(&self) -> String {
        let shown = without_secrets(self);
        let mut page = KeyValuePage::default();
        section::metadata(&mut page, &shown);
        page.blank_line();
        page.field(0, "Provider", &self.spec.provider);
        page.list(0, "Config", pairs(&shown.spec.config));
        page.field(0, "Credential", section::credential(self.spec.credential.as_ref()));
        page.blank_line();
        let snapshot_type = self.annotations().get(annotation::SNAPSHOT_TYPE);
        page.field(0, "Snapshot Type", snapshot_type.map_or(NONE, String::as_str));
        page.finish()
    }

    fn json(&self) -> Value {
        let shown = without_secrets(self);
        let mut document = document::object_document(&shown);
        document["spec"] = json!({
            "provider": self.spec.provider,
            "config": shown.spec.config,
            "credential": self.spec.credential,
            "snapshotType": self.annotations().get(annotation::SNAPSHOT_TYPE),
        });
        document
    }
}

/// Location without secrets that some users wrongly keep in its settings. `get -o yaml` has all of it.
fn without_secrets(location: &VolumeSnapshotLocation) -> VolumeSnapshotLocation {
    let mut shown = location.clone();
    shown.spec.config = redact::settings(&location.spec.config);
    shown.metadata.annotations = location.metadata.annotations.as_ref().map(redact::settings);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_described() {
        let location: VolumeSnapshotLocation = serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "VolumeSnapshotLocation",
            "metadata": {
                "name": "near", "namespace": "velero",
                "annotations": {"bowline.io/snapshot-type": "local"},
            },
            "spec": {"provider": "aws", "config": {"region": "x"}},
        }))
        .unwrap();
        insta::assert_snapshot!(location.text());
        insta::assert_snapshot!(format!("{:#}", location.json()));
    }
}
