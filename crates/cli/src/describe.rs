//! `describe` for backups and restores: what is known of one, in the cluster and in its storage
//! location.

pub(crate) mod document;
pub(crate) mod section;
pub(crate) mod volumes;

use std::time::Duration;

use bowline_api::download_request::DownloadTargetKind;
use kube::ResourceExt as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::{InstallationArgs, TrustArgs};
use crate::download::Downloads;
use crate::exit::{Exit, until_asked_to_end};
use crate::installation::Installation;
use crate::output::Spinner;
use crate::run::Run;
use crate::transfer::{self, Transfer};
use crate::{listing, output};

/// How long the server may take for each file; they are asked for all at once.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Plaintext,
    /// For programs: an object, or a list of them unless one name is given
    Json,
}

/// What came of a file: its content, or why there is none.
pub(crate) type Fetched<T> = Result<T, String>;

/// What plugins do with the volumes of a run, or why that is not known.
pub(crate) type Transfers = Fetched<Vec<Transfer>>;

/// What can be described.
pub(crate) trait Described: Run {
    /// What the storage location holds of it. A file that was not asked for is nothing.
    type Files: Default;

    /// The storage location that holds its files.
    async fn location(&self, installation: &Installation) -> anyhow::Result<String>;

    /// Downloads what is needed, all files at once.
    async fn fetch(&self, downloads: &Downloads, details: bool) -> Self::Files;

    /// For people.
    fn text(&self, files: &Self::Files, transfers: &Transfers, details: bool) -> String;

    /// For programs.
    fn json(&self, files: &Self::Files, transfers: &Transfers, details: bool) -> Value;
}

/// What a user wants to see.
pub(crate) struct Wish<'a> {
    pub(crate) names: &'a [String],
    pub(crate) selector: Option<&'a str>,
    pub(crate) details: bool,
    pub(crate) output: Format,
    pub(crate) trust: &'a TrustArgs,
}

pub(crate) async fn run<D: Described>(
    wish: Wish<'_>,
    installation: &InstallationArgs,
) -> anyhow::Result<Exit> {
    let Wish { names, selector, details, .. } = wish;
    let installation = Installation::connect(installation).await?;
    let mut found: Vec<D> = listing::find(&installation, names, selector).await?;
    if names.is_empty() {
        listing::sort_series(&mut found);
    }
    let asked_to_end = until_asked_to_end()?;
    tokio::pin!(asked_to_end);
    let mut documents = Vec::new();
    let mut is_first = true;
    let mut is_silent = false;
    for one in &found {
        let location = one.location(&installation).await?;
        let downloads = Downloads::new(&installation, &location, wish.trust, PATIENCE).await?;
        if is_silent {
            downloads.expect_silence();
        }
        let known =
            async { tokio::join!(fetch(one, &downloads, details), transfers(&installation, one)) };
        let (files, transfers) = tokio::select! {
            // Boxed, since several downloads at once are large.
            known = Box::pin(known) => known,
            exit = &mut asked_to_end => {
                downloads.abandon().await;
                return Ok(exit);
            }
        };
        is_silent = downloads.is_silent();
        match wish.output {
            Format::Plaintext => {
                let gap = if is_first { "" } else { "\n\n" };
                let text = one.text(&files, &transfers, details);
                output::data(format_args!("{gap}{text}"))?;
                is_first = false;
            }
            Format::Json => documents.push(one.json(&files, &transfers, details)),
        }
    }
    if wish.output == Format::Json {
        let document = match <[Value; 1]>::try_from(documents) {
            Ok([document]) if names.len() == 1 => document,
            Ok(one) => one.to_vec().into(),
            Err(documents) => documents.into(),
        };
        output::data(format_args!("{document:#}\n"))?;
    } else if found.is_empty() {
        let namespace = installation.namespace();
        output::say(format_args!("no {}s in namespace `{namespace}`", D::NOUN));
    }
    Ok(Exit::Success)
}

async fn fetch<D: Described>(one: &D, downloads: &Downloads, details: bool) -> D::Files {
    if one.has_files().is_err() {
        return D::Files::default();
    }
    let _spinner = Spinner::start("asking the server for files");
    one.fetch(downloads, details).await
}

async fn transfers<D: Described>(installation: &Installation, one: &D) -> Transfers {
    let found = transfer::of::<D>(installation, &one.name_any()).await;
    found.map_err(|error| output::one_line(&error))
}

/// Downloads a file, if it is wanted.
pub(crate) async fn file<T>(
    downloads: &Downloads,
    of: &str,
    kind: DownloadTargetKind,
    is_wanted: bool,
) -> Option<Fetched<T>>
where
    T: DeserializeOwned + Default + Send + 'static,
{
    if !is_wanted {
        return None;
    }
    let fetched = downloads.json(kind.clone(), of).await;
    Some(fetched.map_err(|error| format!("cannot read {kind}: {}", output::one_line(&error))))
}
