//! `bowline restore get`

use bowline_api::Restore;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::listing::{self, Format, LabelColumns};
use crate::run::Run as _;
use crate::sheet::NONE;
use crate::{follow, moment, selector};

/// List restores
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The restores to list [default: all]
    names: Vec<String>,

    /// List only restores with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,

    /// How to print them
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,

    #[command(flatten)]
    labels: LabelColumns,

    /// Go on, and print each restore again when it changes, until Ctrl-C
    #[arg(short, long)]
    watch: bool,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let selector = args.selector.as_deref();
    let mut restores: Vec<Restore> = listing::find(&installation, &args.names, selector).await?;
    listing::sort_series(&mut restores);
    if args.watch {
        let volumes = follow::Volumes::default();
        volumes.look(&installation, &restores).await;
        let find = async || {
            let found = listing::find(&installation, &args.names, selector).await?;
            volumes.look(&installation, &found).await;
            Ok(found)
        };
        let table = |restores: &[_]| watched(restores, &args.labels, |r| volumes.of(r));
        return follow::changes(find, restores, args.output, table).await;
    }
    let table = |restores: &[_]| table(restores, &args.labels);
    listing::show(&installation, restores, &args.names, args.output, table)
}

const HEADER: [&str; 9] = [
    "NAME",
    "BACKUP",
    "STATUS",
    "STARTED",
    "COMPLETED",
    "ERRORS",
    "WARNINGS",
    "CREATED",
    "SELECTOR",
];

fn table(restores: &[Restore], labels: &LabelColumns) -> String {
    listing::table(restores, HEADER, row, labels)
}

/// The same, and how far their volumes are.
fn watched(
    restores: &[Restore],
    labels: &LabelColumns,
    volumes: impl Fn(&Restore) -> String,
) -> String {
    let header = [&HEADER[..], &["VOLUMES"]].concat();
    let row = |restore: &Restore| [&row(restore)[..], &[volumes(restore)]].concat();
    listing::table_of(restores, header, row, labels)
}

fn row(restore: &Restore) -> [String; 9] {
    let none = || NONE.to_owned();
    let time = |time: Option<&Time>| time.map_or_else(none, moment::text);
    let status = restore.status.clone().unwrap_or_default();
    let selector = restore.spec.label_selector.as_ref().map(selector::text);
    [
        restore.name_any(),
        // The server fills it in when a schedule was named.
        Some(restore.spec.backup_name.clone()).filter(|name| !name.is_empty()).unwrap_or_else(none),
        restore.state(),
        time(status.start_timestamp.as_ref()),
        time(status.completion_timestamp.as_ref()),
        status.errors.to_string(),
        status.warnings.to_string(),
        time(restore.metadata.creation_timestamp.as_ref()),
        selector.filter(|text| !text.is_empty()).unwrap_or_else(none),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn restore(name: &str, spec: &Value, status: &Value) -> Restore {
        serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "Restore",
            "metadata": {"name": name, "creationTimestamp": "2026-01-02T03:04:05Z"},
            "spec": spec, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn the_table_shows_what_velero_shows() {
        let done = json!({
            "phase": "Completed", "warnings": 2, "startTimestamp": "2026-01-02T03:04:06Z",
            "completionTimestamp": "2026-01-02T03:05:06Z",
        });
        let failed = json!({"phase": "PartiallyFailed", "errors": 12});
        let selector = json!({"backupName": "b", "labelSelector": {"matchLabels": {"app": "web"}}});
        let mut restores = vec![
            restore("b-20260101030405", &json!({"backupName": "b"}), &failed),
            restore("b-20260102030405", &json!({"backupName": "b"}), &done),
            restore("by-hand", &selector, &json!({"phase": "InProgress"})),
            restore("fresh", &json!({"scheduleName": "nightly"}), &json!(null)),
        ];
        listing::sort_series(&mut restores);
        insta::assert_snapshot!(table(&restores, &LabelColumns::default()));
    }
}
