//! Finds the objects that a command is about, and prints them.

use std::cmp::Reverse;
use std::fmt::Debug;

use anyhow::{Context as _, bail};
use bowline_api::{Backup, BackupStorageLocation, Restore, Schedule, VolumeSnapshotLocation};
use bowline_store::BackupName;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::exit::Exit;
use crate::installation::{Installation, is_not_found};
use crate::output;
use crate::sheet::NONE;

/// Objects in one answer of the API server.
const PAGE: u32 = 500;
/// The digits of the time in the name of a scheduled backup.
const DIGITS: usize = 14;
/// More answers than any list has.
const MOST_PAGES: usize = 10_000;

/// A kind that users list by name.
pub(crate) trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
{
    /// What users call one.
    const NOUN: &'static str;
    /// What they type to see all.
    const LISTED_BY: &'static str;
}

impl Kind for Backup {
    const NOUN: &'static str = "backup";
    const LISTED_BY: &'static str = "bowline backup get";
}

impl Kind for Restore {
    const NOUN: &'static str = "restore";
    const LISTED_BY: &'static str = "bowline restore get";
}

impl Kind for BackupStorageLocation {
    const NOUN: &'static str = "backup location";
    const LISTED_BY: &'static str = "bowline backup-location get";
}

impl Kind for VolumeSnapshotLocation {
    const NOUN: &'static str = "volume snapshot location";
    const LISTED_BY: &'static str = "bowline snapshot-location get";
}

impl Kind for Schedule {
    const NOUN: &'static str = "schedule";
    const LISTED_BY: &'static str = "kubectl get schedules.velero.io -A";
}

/// The object of that name.
pub(crate) async fn get<K: Kind>(installation: &Installation, name: &str) -> anyhow::Result<K> {
    match get_opt(installation, name).await? {
        Some(object) => Ok(object),
        None => bail!(
            "there is no {} `{name}` in namespace `{}`; `{}` lists those that there are",
            K::NOUN,
            installation.namespace(),
            K::LISTED_BY,
        ),
    }
}

/// The object of that name, if it is there.
pub(crate) async fn get_opt<K: Kind>(
    installation: &Installation,
    name: &str,
) -> anyhow::Result<Option<K>> {
    // All of these kinds are named by the same rule.
    BackupName::new(name)?;
    let doing = format!("read {} `{name}`", K::NOUN);
    let api = installation.api::<K>();
    let request = async {
        match api.get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    };
    installation.ask(&doing, request).await
}

/// Deletes an object; one that is gone already is as good.
pub(crate) async fn delete<K>(installation: &Installation, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api = installation.api::<K>();
    let params = DeleteParams::default();
    let request = async {
        match api.delete(name, &params).await {
            Err(error) if is_not_found(&error) => Ok(()),
            deleted => deleted.map(drop),
        }
    };
    let doing = format!("delete {} `{name}`", K::kind(&()));
    installation.ask(&doing, request).await
}

/// The objects of those names, in that order; or without names all that the selector selects.
pub(crate) async fn find<K: Kind>(
    installation: &Installation,
    names: &[String],
    selector: Option<&str>,
) -> anyhow::Result<Vec<K>> {
    if names.is_empty() {
        return list(installation, selector).await;
    }
    let mut found = Vec::new();
    for name in names {
        found.push(get(installation, name).await?);
    }
    Ok(found)
}

async fn list<K: Kind>(
    installation: &Installation,
    selector: Option<&str>,
) -> anyhow::Result<Vec<K>> {
    let api = installation.api::<K>();
    let mut params = ListParams::default().limit(PAGE);
    params.label_selector = selector.map(str::to_owned);
    let mut found = Vec::new();
    for _ in 0..MOST_PAGES {
        let doing = format!("list the {}s", K::NOUN);
        let page = installation.ask(&doing, api.list(&params)).await?;
        found.extend(page.items);
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            if found.is_empty() {
                explain_nothing(installation).await?;
            }
            return Ok(found);
        }
    }
    bail!("the list of {}s does not end", K::NOUN)
}

/// A list in a namespace that does not exist is empty, too. Who may not look is not told.
async fn explain_nothing(installation: &Installation) -> anyhow::Result<()> {
    let name = installation.namespace();
    let api = installation.cluster_api::<Namespace>();
    let is_missing = async {
        let got = api.get(name).await;
        Ok(matches!(got, Err(kube::Error::Api(status)) if status.code == 404))
    };
    if installation.ask("look at the namespace", is_missing).await? {
        bail!("there is no namespace `{name}`; name the server's with --namespace");
    }
    Ok(())
}

/// How objects are printed for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ObjectFormat {
    Json,
    Yaml,
}

/// How objects are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// The objects, for programs
    Json,
    /// The same in YAML
    Yaml,
}

impl Format {
    /// The format for programs, if it is one.
    pub(crate) fn for_programs(self) -> Option<ObjectFormat> {
        match self {
            Self::Table => None,
            Self::Json => Some(ObjectFormat::Json),
            Self::Yaml => Some(ObjectFormat::Yaml),
        }
    }
}

/// Prints the objects that were found: one if one was named, else a list or a table.
pub(crate) fn show<K: Kind>(
    installation: &Installation,
    mut objects: Vec<K>,
    names: &[String],
    format: Format,
    table: impl FnOnce(&[K]) -> String,
) -> anyhow::Result<Exit> {
    let text = match format.for_programs() {
        Some(format) if names.len() == 1 && objects.len() == 1 => {
            print_one(objects.remove(0), format)?
        }
        Some(format) => print_list(objects, format)?,
        None if objects.is_empty() => {
            let namespace = installation.namespace();
            output::say(format_args!("no {}s in namespace `{namespace}`", K::NOUN));
            return Ok(Exit::Success);
        }
        None => table(&objects),
    };
    output::data(text)?;
    Ok(Exit::Success)
}

/// One object.
pub(crate) fn print_one<K: Kind>(object: K, format: ObjectFormat) -> anyhow::Result<String> {
    print(&without_managers(object), format)
}

/// The list of objects.
pub(crate) fn print_list<K: Kind>(objects: Vec<K>, format: ObjectFormat) -> anyhow::Result<String> {
    let list = serde_json::json!({
        "apiVersion": K::api_version(&()),
        "kind": format!("{}List", K::kind(&())),
        "metadata": {},
        "items": objects.into_iter().map(without_managers).collect::<Vec<_>>(),
    });
    print(&list, format)
}

/// Who wrote which field is noise to everybody who reads; kubectl leaves it out, too.
fn without_managers<K: Kind>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

/// A value for programs.
pub(crate) fn print(value: &impl Serialize, format: ObjectFormat) -> anyhow::Result<String> {
    // By way of a `Value`, which YAML can always hold.
    let value = serde_json::to_value(value).context("cannot print the object")?;
    match format {
        ObjectFormat::Json => Ok(format!("{value:#}\n")),
        ObjectFormat::Yaml => {
            let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
            let mut text = serde_saphyr::to_string_with_options(&value, options)
                .context("cannot print the object")?;
            if !text.ends_with('\n') {
                text.push('\n');
            }
            Ok(text)
        }
    }
}

/// Which labels a table shows.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LabelColumns {
    /// Show these labels as columns; several separated by commas
    #[arg(short = 'L', long, value_name = "LABELS", value_delimiter = ',')]
    label_columns: Vec<String>,

    /// Show all labels in the last column
    #[arg(long)]
    show_labels: bool,
}

/// Objects as rows under headings.
pub(crate) fn table<K: Kind, const N: usize>(
    objects: &[K],
    header: [&str; N],
    row: impl Fn(&K) -> [String; N],
    labels: &LabelColumns,
) -> String {
    table_of(objects, header.to_vec(), |object| row(object).to_vec(), labels)
}

/// The same, where the number of columns depends on the user.
pub(crate) fn table_of<K: Kind>(
    objects: &[K],
    header: Vec<&str>,
    row: impl Fn(&K) -> Vec<String>,
    labels: &LabelColumns,
) -> String {
    let mut header: Vec<String> = header.into_iter().map(str::to_owned).collect();
    // kubectl's heading is what follows the slash.
    let heading = |key: &String| key.rsplit('/').next().unwrap_or_default().to_uppercase();
    header.extend(labels.label_columns.iter().map(heading));
    header.extend(labels.show_labels.then(|| "LABELS".to_owned()));
    let none = || NONE.to_owned();
    let row = |object: &K| {
        let mut cells = row(object);
        let value = |key| object.labels().get(key).cloned().unwrap_or_else(none);
        cells.extend(labels.label_columns.iter().map(value));
        if labels.show_labels {
            let all = object.labels().iter().map(|(key, value)| format!("{key}={value}"));
            let all = all.collect::<Vec<_>>().join(",");
            cells.push(if all.is_empty() { none() } else { all });
        }
        cells.iter().map(|cell| output::harmless(cell)).collect::<Vec<_>>()
    };
    output::rows_under(&header, objects.iter().map(row).collect())
}

/// Sorts by name; those that are named after their time from the newest to the oldest.
pub(crate) fn sort_series<K: Kind>(objects: &mut [K]) {
    objects.sort_by_cached_key(|object| {
        let name = object.name_any();
        match series(&name) {
            Some((series, time)) => (series.to_owned(), Some(Reverse(time.to_owned()))),
            None => (name, None),
        }
    });
}

/// The name of a series, and the time of one of it.
fn series(name: &str) -> Option<(&str, &str)> {
    let (series, time) = name.rsplit_once('-')?;
    let is_time = time.len() == DIGITS && time.bytes().all(|b| b.is_ascii_digit());
    is_time.then_some((series, time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_listed_from_its_newest_member() {
        let mut backups: Vec<Backup> =
            ["b", "a-20260101000000", "a", "a-20260102000000", "a-2026", "a-b-20260103000000"]
                .map(|name| Backup::new(name, bowline_api::BackupSpec::default()))
                .into();
        sort_series(&mut backups);
        let names: Vec<String> = backups.iter().map(kube::ResourceExt::name_any).collect();
        assert_eq!(
            names,
            ["a", "a-20260102000000", "a-20260101000000", "a-2026", "a-b-20260103000000", "b"]
        );
    }
}
