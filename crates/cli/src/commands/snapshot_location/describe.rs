//! `bowline snapshot-location describe`

use bowline_api::{VolumeSnapshotLocation, annotation};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::describe::section::{self, pairs};
use crate::describe::{Described, document};
use crate::sheet::{NONE, Sheet};

impl Described for VolumeSnapshotLocation {
    fn text(&self) -> String {
        let mut sheet = Sheet::default();
        section::metadata(&mut sheet, self);
        sheet.gap();
        sheet.field(0, "Provider", &self.spec.provider);
        sheet.list(0, "Config", pairs(&self.spec.config));
        sheet.field(0, "Credential", section::credential(self.spec.credential.as_ref()));
        sheet.gap();
        let snapshot_type = self.annotations().get(annotation::SNAPSHOT_TYPE);
        sheet.field(0, "Snapshot Type", snapshot_type.map_or(NONE, String::as_str));
        sheet.finish()
    }

    fn json(&self) -> Value {
        let mut document = document::of(self);
        document["spec"] = json!({
            "provider": self.spec.provider,
            "config": self.spec.config,
            "credential": self.spec.credential,
            "snapshotType": self.annotations().get(annotation::SNAPSHOT_TYPE),
        });
        document
    }
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
