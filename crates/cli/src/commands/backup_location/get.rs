//! `bowline backup-location get`

use bowline_api::BackupStorageLocation;
use bowline_api::backup_storage_location::AccessMode;
use kube::ResourceExt;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::listing::{self, Format, LabelColumns};
use crate::moment;

/// List the places for backups
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The locations to list [default: all]
    names: Vec<String>,

    /// List only locations with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,

    /// List only the default location
    #[arg(long, conflicts_with_all = ["names", "selector"])]
    default: bool,

    /// How to print them
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,

    #[command(flatten)]
    labels: LabelColumns,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let selector = args.selector.as_deref();
    let mut locations: Vec<BackupStorageLocation> =
        listing::find(&installation, &args.names, selector).await?;
    locations.retain(|location| !args.default || location.spec.default);
    locations.sort_by_key(ResourceExt::name_any);
    let table = |locations: &[_]| table(locations, &args.labels);
    listing::show(&installation, locations, &args.names, args.output, table)
}

fn table(locations: &[BackupStorageLocation], labels: &LabelColumns) -> String {
    let header =
        ["NAME", "PROVIDER", "BUCKET/PREFIX", "PHASE", "LAST VALIDATED", "ACCESS MODE", "DEFAULT"];
    listing::table(locations, header, row, labels)
}

fn row(location: &BackupStorageLocation) -> [String; 7] {
    let unknown = || "Unknown".to_owned();
    let spec = &location.spec;
    let status = location.status.clone().unwrap_or_default();
    let bucket = spec.object_storage.as_ref().map(|bucket| match bucket.prefix.as_str() {
        "" => bucket.bucket.clone(),
        prefix => format!("{}/{prefix}", bucket.bucket),
    });
    let phase = status.phase.as_ref().map(ToString::to_string);
    let mode = spec.access_mode.clone().filter(|mode| !mode.as_str().is_empty());
    [
        location.name_any(),
        spec.provider.clone(),
        bucket.unwrap_or_default(),
        phase.filter(|phase| !phase.is_empty()).unwrap_or_else(unknown),
        status.last_validation_time.as_ref().map_or_else(unknown, moment::text),
        mode.unwrap_or(AccessMode::ReadWrite).to_string(),
        if spec.default { "true".to_owned() } else { String::new() },
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_table_shows_what_velero_shows() {
        let location = |name: &str, spec: Value, status: Value| {
            let object = json!({
                "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
                "metadata": {"name": name}, "spec": spec, "status": status,
            });
            serde_json::from_value::<BackupStorageLocation>(object).unwrap()
        };
        let locations = [
            location(
                "default",
                json!({"provider": "aws", "default": true,
                       "objectStorage": {"bucket": "b", "prefix": "p/q"}}),
                json!({"phase": "Available", "lastValidationTime": "2026-01-02T03:04:05Z"}),
            ),
            location(
                "old",
                json!({"provider": "velero.io/gcp", "accessMode": "ReadOnly",
                       "objectStorage": {"bucket": "archive"}}),
                json!(null),
            ),
            location("empty", json!({}), json!({})),
        ];
        insta::assert_snapshot!(table(&locations, &LabelColumns::default()));
    }
}
