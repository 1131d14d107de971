//! `bowline recovery show`

use kube::ResourceExt as _;

use super::key::OpenArgs;
use crate::exit::Exit;
use crate::output;

/// Show the contents of a recovery file: names and keys, never values
///
/// Check with it that you can still open the file. No cluster is needed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    open: OpenArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let contents = args.open.open().await?;
    let single_line = |text: String| output::strip_control_chars(&text).replace(['\n', '\t'], " ");
    let mut rows = Vec::new();
    for secret in &contents.secrets {
        let keys: Vec<&str> = secret.data.iter().flatten().map(|(key, _)| key.as_str()).collect();
        rows.push(["Secret".to_owned(), secret.name_any(), format!("keys: {}", keys.join(", "))]);
    }
    for location in &contents.backup_locations {
        let bucket = location.spec.object_storage.as_ref().map(|storage| storage.bucket.as_str());
        let detail =
            format!("provider: {}, bucket: {}", location.spec.provider, bucket.unwrap_or_default());
        rows.push(["BackupStorageLocation".to_owned(), location.name_any(), detail]);
    }
    for location in &contents.snapshot_locations {
        let detail = format!("provider: {}", location.spec.provider);
        rows.push(["VolumeSnapshotLocation".to_owned(), location.name_any(), detail]);
    }
    let rows = rows.into_iter().map(|row| row.map(single_line)).collect();
    let table = output::table(["KIND", "NAME", "DETAILS"], rows);
    output::print_data(format_args!(
        "Exported: {} from namespace {}\n\n{table}",
        single_line(contents.about.exported.clone()),
        single_line(contents.about.namespace.clone()),
    ))?;
    Ok(Exit::Success)
}
