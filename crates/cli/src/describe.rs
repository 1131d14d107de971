//! `describe` of all kinds: the state of an object in the cluster and, for a backup or restore, in its storage
//! location.

pub(crate) mod document;
pub(crate) mod section;
pub(crate) mod volumes;

use std::time::Duration;

use anyhow::Context as _;
use bowline_api::download_request::DownloadTargetKind;
use kube::ResourceExt as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::{InstallationArgs, TrustArgs};
use crate::download::Downloads;
use crate::exit::{Exit, shutdown_signal};
use crate::installation::Installation;
use crate::listing::{self, ResourceKind};
use crate::output::{self, Spinner};
use crate::run::Run;
use crate::table;
use crate::volume_progress::{self, VolumeProgress};

/// Longest wait for the server per file; all files are requested at once.
const FILE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Human-readable text
    Plaintext,
    /// JSON: an object, or a list unless one name is given
    Json,
}

/// Content of a file, or the reason why it is missing.
pub(crate) type Fetched<T> = anyhow::Result<T>;

/// Work of plugins on the volumes of a run, or the reason why it is not known.
pub(crate) type FetchedVolumeProgress = Fetched<Vec<VolumeProgress>>;

/// Flags of a command that describes objects.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names to describe [default: all]
    names: Vec<String>,

    /// Describe only objects that match this label selector
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,

    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "plaintext")]
    output: Format,
}

/// Flags of a command that describes runs.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    selection: Args,

    /// Also show every object, volume and operation
    #[arg(long)]
    details: bool,

    #[command(flatten)]
    trust: TrustArgs,
}

/// Object that the cluster describes completely.
pub(crate) trait Describable: ResourceKind {
    /// Text for people.
    fn text(&self) -> String;

    /// Document for programs.
    fn json(&self) -> Value;
}

/// Run, whose details are in the storage location.
pub(crate) trait DescribableRun: Run {
    /// Files in the storage location. A file that was not requested is absent.
    type Files: Default;

    /// Downloads the required files, all at once.
    async fn fetch(&self, downloads: &Downloads, details: bool) -> Self::Files;

    /// Adds details from other objects of the cluster.
    async fn fetch_related(&self, _: &Installation, _: &mut Self::Files) {}

    /// Text for people.
    fn text(&self, files: &Self::Files, transfers: &FetchedVolumeProgress, details: bool)
    -> String;

    /// Document for programs.
    fn json(&self, files: &Self::Files, transfers: &FetchedVolumeProgress, details: bool) -> Value;
}

pub(crate) async fn run<D: Describable>(
    args: &Args,
    installation: &InstallationArgs,
) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let mut page = DescribeOutput::new(args);
    for object in find::<D>(args, &installation).await? {
        page.add(|| object.text(), || object.json())?;
    }
    page.finish::<D>(&installation)
}

pub(crate) async fn run_runs<D: DescribableRun>(
    args: &RunArgs,
    installation: &InstallationArgs,
) -> anyhow::Result<Exit> {
    let RunArgs { selection: which, details, trust } = args;
    let installation = Installation::connect(installation).await?;
    let asked_to_end = shutdown_signal()?;
    tokio::pin!(asked_to_end);
    let mut page = DescribeOutput::new(which);
    let mut is_unresponsive = false;
    for run in find::<D>(which, &installation).await? {
        let location = run.location(&installation).await?;
        let downloads = Downloads::new(&installation, &location, trust, FILE_TIMEOUT).await?;
        if is_unresponsive {
            downloads.mark_unresponsive();
        }
        let (files, transfers) = tokio::select! {
            // Boxed, since several downloads at once are large.
            known = Box::pin(fetch_all(&installation, &run, &downloads, *details)) => known,
            exit = &mut asked_to_end => {
                downloads.delete_open_requests().await;
                return Ok(exit);
            }
        };
        is_unresponsive = downloads.is_unresponsive();
        page.add(
            || run.text(&files, &transfers, *details),
            || run.json(&files, &transfers, *details),
        )?;
    }
    page.finish::<D>(&installation)
}

/// Full description of a run, for people.
pub(crate) async fn full_text<D: DescribableRun>(
    installation: &Installation,
    run: &D,
    downloads: &Downloads,
) -> String {
    let (files, transfers) = fetch_all(installation, run, downloads, true).await;
    run.text(&files, &transfers, true)
}

async fn find<K: ResourceKind>(args: &Args, installation: &Installation) -> anyhow::Result<Vec<K>> {
    let mut found = listing::find(installation, &args.names, args.selector.as_deref()).await?;
    // Named objects keep the user's order.
    if args.names.is_empty() {
        table::sort(&mut found);
    }
    Ok(found)
}

/// Output: texts one after the other, or one document.
struct DescribeOutput {
    output: Format,
    /// True if one object was requested, so that the output is not a list.
    is_single: bool,
    count: usize,
    documents: Vec<Value>,
}

impl DescribeOutput {
    fn new(args: &Args) -> Self {
        let Args { names, output, .. } = args;
        Self { output: *output, is_single: names.len() == 1, count: 0, documents: Vec::new() }
    }

    fn add(
        &mut self,
        text: impl FnOnce() -> String,
        document: impl FnOnce() -> Value,
    ) -> anyhow::Result<()> {
        match self.output {
            Format::Plaintext => {
                let gap = if self.count == 0 { "" } else { "\n\n" };
                output::print_data(format_args!("{gap}{}", text()))?;
            }
            Format::Json => self.documents.push(document()),
        }
        self.count += 1;
        Ok(())
    }

    fn finish<K: ResourceKind>(self, installation: &Installation) -> anyhow::Result<Exit> {
        if self.output == Format::Json {
            let document = match <[Value; 1]>::try_from(self.documents) {
                Ok([document]) if self.is_single => document,
                Ok(one) => one.to_vec().into(),
                Err(documents) => documents.into(),
            };
            output::print_data(output::document(&document))?;
        } else if self.count == 0 {
            let namespace = installation.namespace();
            output::print_message(format_args!("no {} in namespace `{namespace}`", K::PLURAL));
        }
        Ok(Exit::Success)
    }
}

/// Details of a run from the storage location and the plugins.
async fn fetch_all<D: DescribableRun>(
    installation: &Installation,
    run: &D,
    downloads: &Downloads,
    details: bool,
) -> (D::Files, FetchedVolumeProgress) {
    let files = async {
        let mut files = fetch(run, downloads, details).await;
        run.fetch_related(installation, &mut files).await;
        files
    };
    tokio::join!(files, fetch_volume_progress(installation, run))
}

async fn fetch<D: DescribableRun>(run: &D, downloads: &Downloads, details: bool) -> D::Files {
    if run.has_files().is_err() {
        return D::Files::default();
    }
    let _spinner = Spinner::start("requesting files from the server");
    run.fetch(downloads, details).await
}

async fn fetch_volume_progress<D: DescribableRun>(
    installation: &Installation,
    run: &D,
) -> FetchedVolumeProgress {
    volume_progress::list_for_run::<D>(installation, &run.name_any()).await
}

/// Downloads a file if it is wanted.
pub(crate) async fn file<T>(
    downloads: &Downloads,
    name: &str,
    kind: DownloadTargetKind,
    is_wanted: bool,
) -> Option<Fetched<T>>
where
    T: DeserializeOwned + Default + Send + 'static,
{
    if !is_wanted {
        return None;
    }
    let fetched = downloads.json(kind.clone(), name).await;
    Some(fetched.with_context(|| format!("cannot read {kind}")))
}
