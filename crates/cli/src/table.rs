//! `get` of all kinds: lists objects as rows under headings, or for programs.

use std::cmp::Reverse;

use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::key_value_page::NONE;
use crate::listing::{self, ObjectFormat, ResourceKind};
use crate::run::Run;
use crate::{follow, output};

/// Number of digits of the time in the name of a scheduled backup.
const TIMESTAMP_DIGITS: usize = 14;

/// How objects are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Human-readable table
    Table,
    /// Objects as JSON
    Json,
    /// Objects as YAML
    Yaml,
    /// One RESOURCE.GROUP/NAME per line, the form that kubectl prints and accepts
    Name,
}

impl Format {
    /// Format for programs, if it is one.
    pub(crate) fn object_format(self) -> Option<ObjectFormat> {
        match self {
            Self::Table | Self::Name => None,
            Self::Json => Some(ObjectFormat::Json),
            Self::Yaml => Some(ObjectFormat::Yaml),
        }
    }
}

/// Which labels a table shows.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LabelColumns {
    /// Labels to show as columns, comma-separated
    #[arg(short = 'L', long, value_name = "LABELS", value_delimiter = ',')]
    label_columns: Vec<String>,

    /// Show all labels in the last column
    #[arg(long)]
    show_labels: bool,
}

#[cfg(feature = "testing")]
impl LabelColumns {
    /// All labels in the last column.
    pub(crate) fn all() -> Self {
        Self { label_columns: Vec::new(), show_labels: true }
    }
}

/// Flags of a command that lists objects.
#[derive(Debug, clap::Args)]
// Commands that have more of them are called `Args`, too.
#[group(skip)]
pub(crate) struct Args {
    /// Names to list [default: all]
    pub(crate) names: Vec<String>,

    /// List only objects that match this label selector
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    pub(crate) selector: Option<String>,

    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,

    #[command(flatten)]
    pub(crate) labels: LabelColumns,
}

/// Flags of a command that lists runs.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    list: Args,

    /// Keep running and print each object again when it changes, until Ctrl-C
    #[arg(short, long)]
    watch: bool,
}

/// Kind that can be shown as a table.
pub(crate) trait Tabular: ResourceKind {
    const HEADER: &'static [&'static str];

    fn row(&self, now: Timestamp) -> Vec<String>;

    /// Warning for which no column has room, printed below the table.
    fn warning(&self) -> Option<String> {
        None
    }
}

pub(crate) async fn run<K: Tabular>(
    args: &Args,
    installation: &InstallationArgs,
) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    show(&installation, find::<K>(args, &installation).await?, args)
}

/// Lists runs, and continues with `--watch`.
pub(crate) async fn run_runs<R: Run + Tabular>(
    args: &RunArgs,
    installation: &InstallationArgs,
) -> anyhow::Result<Exit> {
    let RunArgs { list, watch } = args;
    if !watch {
        return run::<R>(list, installation).await;
    }
    let installation = Installation::connect(installation).await?;
    let volumes = follow::WatchedVolumes::default();
    let find = async || {
        let found: Vec<R> = self::find(list, &installation).await?;
        volumes.refresh(&installation, &found).await;
        Ok(found)
    };
    let table = |runs: &[R]| {
        table_with_volumes(runs, &list.labels, Timestamp::now(), |run| volumes.column_text(run))
    };
    let first = find().await?;
    follow::watch_table(find, first, list.output, table).await
}

/// Objects to list, in order.
pub(crate) async fn find<K: ResourceKind>(
    args: &Args,
    installation: &Installation,
) -> anyhow::Result<Vec<K>> {
    let mut found = listing::find(installation, &args.names, args.selector.as_deref()).await?;
    sort(&mut found);
    Ok(found)
}

/// Prints objects: one if one was named, else a list or a table.
pub(crate) fn show<K: Tabular>(
    installation: &Installation,
    mut objects: Vec<K>,
    args: &Args,
) -> anyhow::Result<Exit> {
    if args.output == Format::Name {
        output::print_data(names(&objects))?;
        return Ok(Exit::Success);
    }
    let text = match args.output.object_format() {
        Some(format) if args.names.len() == 1 && objects.len() == 1 => {
            listing::format_one(objects.remove(0), format)?
        }
        Some(format) => listing::format_list(objects, format)?,
        None if objects.is_empty() => {
            let namespace = installation.namespace();
            output::print_message(format_args!("no {} in namespace `{namespace}`", K::PLURAL));
            return Ok(Exit::Success);
        }
        None => {
            output::print_data(table(&objects, &args.labels, Timestamp::now()))?;
            for warning in objects.iter().filter_map(Tabular::warning) {
                output::print_message(output::strip_control_chars(&warning));
            }
            return Ok(Exit::Success);
        }
    };
    output::print_data(text)?;
    Ok(Exit::Success)
}

/// Kind and name of each object, one per line.
pub(crate) fn names<K: ResourceKind>(objects: &[K]) -> String {
    let kind = format!("{}.{}", K::kind(&()).to_lowercase(), K::group(&()));
    let name = |object: &K| output::strip_control_chars(&object.name_any());
    let line = |object: &K| [kind.as_str(), "/", &name(object), "\n"].concat();
    objects.iter().map(line).collect()
}

/// Objects as rows under headings.
pub(crate) fn table<K: Tabular>(objects: &[K], labels: &LabelColumns, now: Timestamp) -> String {
    rows(objects, K::HEADER, |object| object.row(now), labels)
}

/// The same for runs, with the progress of their volumes.
pub(crate) fn table_with_volumes<R: Run + Tabular>(
    runs: &[R],
    labels: &LabelColumns,
    now: Timestamp,
    volumes: impl Fn(&R) -> String,
) -> String {
    let header = [R::HEADER, &["VOLUMES"]].concat();
    let row = |run: &R| [run.row(now), vec![volumes(run)]].concat();
    rows(runs, &header, row, labels)
}

fn rows<K: ResourceKind>(
    objects: &[K],
    header: &[&str],
    row: impl Fn(&K) -> Vec<String>,
    labels: &LabelColumns,
) -> String {
    let mut header: Vec<String> = header.iter().map(|&word| word.to_owned()).collect();
    // As in kubectl, the heading is the part after the slash.
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
        cells.iter().map(|cell| output::strip_control_chars(cell)).collect::<Vec<_>>()
    };
    output::render_rows(&header, objects.iter().map(row).collect())
}

/// Sorts by name; objects named after their time from the newest to the oldest.
pub(crate) fn sort<K: ResourceKind>(objects: &mut [K]) {
    objects.sort_by_cached_key(|object| {
        let name = object.name_any();
        match series(&name) {
            Some((series, time)) => (series.to_owned(), Some(Reverse(time.to_owned()))),
            None => (name, None),
        }
    });
}

/// Name of a series, and the time of this member.
fn series(name: &str) -> Option<(&str, &str)> {
    let (series, time) = name.rsplit_once('-')?;
    let is_time = time.len() == TIMESTAMP_DIGITS && time.bytes().all(|b| b.is_ascii_digit());
    is_time.then_some((series, time))
}

#[cfg(test)]
mod tests {
    use bowline_api::Backup;

    use super::*;

    #[test]
    fn names_are_printed_in_kubectl_format() {
        let backups = ["a", "b"].map(|name| Backup::new(name, bowline_api::BackupSpec::default()));
        assert_eq!(names(&backups), "backup.velero.io/a\nbackup.velero.io/b\n");
        assert_eq!(names::<Backup>(&[]), "");
    }

    #[test]
    fn scheduled_backups_are_listed_newest_first() {
        let mut backups: Vec<Backup> =
            ["b", "a-20260101000000", "a", "a-20260102000000", "a-2026", "a-b-20260103000000"]
                .map(|name| Backup::new(name, bowline_api::BackupSpec::default()))
                .into();
        sort(&mut backups);
        let names: Vec<String> = backups.iter().map(kube::ResourceExt::name_any).collect();
        assert_eq!(
            names,
            ["a", "a-20260102000000", "a-20260101000000", "a-2026", "a-b-20260103000000", "b"]
        );
    }
}
