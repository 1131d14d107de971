//! `bowline snapshot-location get`

use bowline_api::{VolumeSnapshotLocation, annotation};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::key_value_page::NONE;
use crate::table::Tabular;

impl Tabular for VolumeSnapshotLocation {
    // Velero shows the first two.
    const HEADER: &'static [&'static str] = &["NAME", "PROVIDER", "SNAPSHOT TYPE"];

    fn row(&self, _: Timestamp) -> Vec<String> {
        let snapshot_type = self.annotations().get(annotation::SNAPSHOT_TYPE);
        vec![
            self.name_any(),
            self.spec.provider.clone(),
            snapshot_type.cloned().unwrap_or_else(|| NONE.to_owned()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::{LabelColumns, table};

    #[test]
    fn the_table_shows_what_velero_shows_and_whether_snapshots_are_uploaded() {
        let location = |name: &str, provider: &str, annotations: serde_json::Value| {
            let object = json!({
                "apiVersion": "velero.io/v1", "kind": "VolumeSnapshotLocation",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"provider": provider},
            });
            serde_json::from_value::<VolumeSnapshotLocation>(object).unwrap()
        };
        let locations = [
            location("default", "aws", json!(null)),
            location("near", "example.io/local", json!({"bowline.io/snapshot-type": "local"})),
        ];
        insta::assert_snapshot!(table(&locations, &LabelColumns::default(), Timestamp::UNIX_EPOCH));
    }
}
