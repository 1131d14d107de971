//! `bowline snapshot-location get`

use bowline_api::{VolumeSnapshotLocation, annotation};
use kube::ResourceExt;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::listing::{self, Format, LabelColumns};
use crate::sheet::NONE;

/// List the locations for snapshots of volumes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The locations to list [default: all]
    names: Vec<String>,

    /// List only locations with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,

    /// How to print them
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,

    #[command(flatten)]
    labels: LabelColumns,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let selector = args.selector.as_deref();
    let mut locations: Vec<VolumeSnapshotLocation> =
        listing::find(&installation, &args.names, selector).await?;
    locations.sort_by_key(ResourceExt::name_any);
    let table = |locations: &[_]| table(locations, &args.labels);
    listing::show(&installation, locations, &args.names, args.output, table)
}

/// Velero shows the first two.
fn table(locations: &[VolumeSnapshotLocation], labels: &LabelColumns) -> String {
    listing::table(locations, ["NAME", "PROVIDER", "SNAPSHOT TYPE"], row, labels)
}

fn row(location: &VolumeSnapshotLocation) -> [String; 3] {
    let snapshot_type = location.annotations().get(annotation::SNAPSHOT_TYPE);
    [
        location.name_any(),
        location.spec.provider.clone(),
        snapshot_type.cloned().unwrap_or_else(|| NONE.to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        insta::assert_snapshot!(table(&locations, &LabelColumns::default()));
    }
}
