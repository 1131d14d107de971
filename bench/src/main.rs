//! Measures backup and restore beside Velero and the floor.
//!
//! One control plane of the test bed, filled once; then, round by round, the raw listing and a
//! backup by each contender. Started by `bench/run`, which builds what is measured first.

mod contender;
mod fill;
mod measure;
mod plot;
mod raw;
mod report;

use std::fmt::Display;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use bowline_testbed::program::{self, Program};
use bowline_testbed::{Bed, ControlPlane, Options, S3, apply};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::contender::{Contender, Stage};
use crate::fill::Load;
use crate::measure::Watch;
use crate::raw::Listing;
use crate::report::Results;

/// Measure backups of one cluster by Bowline and by Velero, and the floor under both
///
/// Everything runs on this machine and goes away at the end, on Ctrl-C at the latest. The first run
/// builds the programs it needs with Go, which takes minutes.
#[derive(Debug, Parser)]
#[command(name = "bench/run", bin_name = "bench/run")]
struct Args {
    /// How many objects to create: a mix of kinds and sizes as in a cluster in use
    #[arg(long, required_unless_present = "big_secrets", value_parser = clap::value_parser!(u32).range(1..))]
    objects: Option<u32>,

    /// Create 500 Secrets of 900 KiB each instead
    #[arg(long, conflicts_with = "objects")]
    big_secrets: bool,

    /// What to measure [default: all there is]
    #[arg(long, value_enum)]
    only: Option<Task>,

    /// How often each contender runs; the figures are medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,

    /// Leave Velero out
    #[arg(long)]
    skip_velero: bool,

    /// Leave Bowline out
    #[arg(long, conflicts_with = "skip_velero")]
    skip_bowline: bool,

    /// Where the randomness of the objects comes from: the same seed makes the same objects
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Write the figures of all rounds to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Draw the figures into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Where relative file names start
    #[arg(long, hide = true, default_value = ".")]
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Task {
    Backup,
    Restore,
}

impl Args {
    fn load(&self) -> Load {
        match self.objects {
            Some(objects) => Load::Mix { objects: objects as usize, seed: self.seed },
            None => Load::BigSecrets { seed: self.seed },
        }
    }

    fn contenders(&self) -> Vec<Contender> {
        let all = [Contender::Bowline, Contender::Velero, Contender::VeleroTuned];
        all.into_iter()
            .filter(|contender| match contender {
                Contender::Bowline => !self.skip_bowline,
                Contender::Velero | Contender::VeleroTuned => !self.skip_velero,
            })
            .collect()
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.only == Some(Task::Restore) {
        say("error: restore is not measured yet; leave `--only` out or use `--only backup`");
        return ExitCode::from(2);
    }
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start")
        .and_then(|runtime| runtime.block_on(run_until_asked_to_end(&args)));
    outcome.unwrap_or_else(|error| {
        say(format_args!("error: {error:#}"));
        ExitCode::FAILURE
    })
}

/// Runs the whole. On a signal everything is dropped, and with the beds goes what runs in them.
async fn run_until_asked_to_end(args: &Args) -> anyhow::Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    tokio::select! {
        outcome = run(args) => outcome.map(|()| ExitCode::SUCCESS),
        // 128 plus the number of the signal, as shells count.
        _ = interrupt.recv() => Ok(ExitCode::from(130)),
        _ = terminate.recv() => Ok(ExitCode::from(143)),
    }
}

async fn run(args: &Args) -> anyhow::Result<()> {
    let contenders = args.contenders();
    let stage = set_up(args, &contenders).await?;
    fill::fill(&stage.client, args.load()).await?;

    let kinds = raw::archived_kinds(&stage.client).await?;
    let backups = contenders.iter().map(|contender| (*contender, Vec::new())).collect();
    let mut results = Results { load: args.load(), listings: Vec::new(), backups };
    for round in 1..=args.rounds {
        let listing = list(&stage, &kinds).await?;
        say(format_args!("round {round}: raw list {:.2} s", listing.wall_s));
        results.listings.push(listing);
        for (contender, runs) in &mut results.backups {
            let name = format!("{}-{round}", contender.name().replace('_', "-"));
            let run = contender.backup(&stage, &name).await?;
            say(format_args!("round {round}: {} {:.2} s", contender.name(), run.wall_s));
            runs.push(run);
        }
    }
    drop(stage);
    write(args, &results)
}

async fn set_up(args: &Args, contenders: &[Contender]) -> anyhow::Result<Stage> {
    let bowline = std::env::current_exe().context("cannot find myself")?.with_file_name("bowline");
    let is_measured = |contender| contenders.contains(&contender);
    ensure!(
        !is_measured(Contender::Bowline) || bowline.is_file(),
        "there is no {}; start this with bench/run, which builds it",
        bowline.display()
    );
    // First what takes minutes the first time, and tells its own progress.
    if is_measured(Contender::Velero) {
        program::locate([Program::Velero, Program::VeleroPluginForAws]).await?;
    }
    let bed = Bed::new()?;
    let plane = ControlPlane::start(&bed, Options::default()).await?;
    let s3 = S3::start(&bed).await?;
    let client = plane.client().await?;
    for definition in bowline_api::crds::all() {
        apply::apply(&client, serde_json::to_value(definition)?).await?;
    }
    let api_server = measure::find("kube-apiserver").context("the API server cannot be found")?;
    Ok(Stage { s3, plane, client, bowline, api_server, objects: args.load().len() })
}

async fn list(stage: &Stage, kinds: &[String]) -> anyhow::Result<Listing> {
    measure::until_quiet().await;
    let count = raw::count(&stage.client, kinds).await?;
    let api_server = Watch::start(stage.api_server);
    let (wall, bytes) = raw::list(&stage.client, kinds).await?;
    let apiserver_cpu_s = api_server.stop()?.cpu_s;
    Ok(Listing { wall_s: wall.as_secs_f64(), bytes, count, apiserver_cpu_s })
}

fn write(args: &Args, results: &Results) -> anyhow::Result<()> {
    let to = |file: &Path, text: String| {
        let path = args.folder.join(file);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    if let Some(file) = &args.json {
        to(file, format!("{:#}\n", results.json()))?;
    }
    if let Some(file) = &args.svg {
        to(file, plot::svg(results))?;
    }
    let mut stdout = std::io::stdout();
    write!(stdout, "{}", results.table()).context("cannot write to standard output")
}

/// Says a line to whoever waits.
fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["bench/run"].iter().chain(words))
    }

    #[test]
    fn a_load_must_be_named_and_only_one() {
        assert!(parse(&[]).is_err());
        assert!(parse(&["--objects", "0"]).is_err());
        assert!(parse(&["--objects", "5", "--big-secrets"]).is_err());
        assert!(parse(&["--big-secrets", "--skip-velero", "--skip-bowline"]).is_err());
        let load = parse(&["--objects", "5"]).unwrap().load();
        assert_eq!(load, Load::Mix { objects: 5, seed: 1 });
        assert_eq!(parse(&["--big-secrets"]).unwrap().load(), Load::BigSecrets { seed: 1 });
    }

    #[test]
    fn a_contender_can_be_left_out() {
        let names = |words: &[&str]| -> Vec<&str> {
            parse(words).unwrap().contenders().into_iter().map(Contender::name).collect()
        };
        assert_eq!(names(&["--objects=5"]), ["bowline", "velero", "velero_tuned"]);
        assert_eq!(names(&["--objects=5", "--skip-velero"]), ["bowline"]);
        assert_eq!(names(&["--objects=5", "--skip-bowline"]), ["velero", "velero_tuned"]);
    }
}
