//! Measures backup and restore against Velero and the floor.
//!
//! One control plane of the test bed is filled once and backed up, round by round, by each contender. Then each
//! restores the same archive into a new one. Volumes with CSI snapshots are measured separately, with pods on a real
//! node. Started by `bench/run`, which first builds the measured programs.

mod archive;
mod backup;
mod bench_env;
mod contender;
mod create;
mod csi;
mod fill;
mod load_check;
mod measure;
mod plot;
mod raw;
mod report;
mod requests;
mod restore;

use std::fmt::Display;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use bowline_testbed::program::{self, Program};
use bowline_testbed::{Bed, S3};
use clap::Parser;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::bench_env::{BenchEnv, Binaries};
use crate::contender::Contender;
use crate::fill::Load;
use crate::report::Results;
use crate::restore::{Archive, Restores};

/// Measure backups and restores of Bowline and of Velero, and the floor under both, a plain client
///
/// Everything runs on this machine and is removed at the end, also after Ctrl-C. The first run builds
/// the programs that it needs with Go, which takes minutes.
#[derive(Debug, Parser)]
#[command(name = "bench/run", bin_name = "bench/run")]
struct Args {
    /// Number of objects to create: a mix of kinds and sizes as in a cluster in use
    #[arg(long, required_unless_present_any = ["big_secrets", "csi_claims"], value_parser = clap::value_parser!(u32).range(1..))]
    objects: Option<u32>,

    /// Create 500 Secrets of 900 KiB each instead
    #[arg(long, conflicts_with = "objects")]
    big_secrets: bool,

    /// Run pods on a real node instead, with this number of claims of a CSI driver, and measure backups
    /// with snapshots of them. Needs root
    #[arg(long, value_name = "N", conflicts_with_all = ["objects", "big_secrets"], value_parser = clap::value_parser!(u16).range(1..=500))]
    csi_claims: Option<u16>,

    /// Tasks to measure [default: backup and restore; csi with --csi-claims]
    #[arg(long, value_enum)]
    only: Option<Task>,

    /// Number of objects in a smaller backup for Velero's restore, which takes long; Bowline restores
    /// both this backup and the whole one
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    velero_objects: u32,

    /// Number of rounds per contender; the figures are medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,

    /// Do not measure Velero
    #[arg(long)]
    skip_velero: bool,

    /// Do not measure Bowline
    #[arg(long, conflicts_with = "skip_velero")]
    skip_bowline: bool,

    /// Also measure this other `bowline`, in alternating runs, and report the ratios of both
    #[arg(long, value_name = "FILE", conflicts_with = "skip_bowline")]
    baseline: Option<PathBuf>,

    /// Seed of the objects: the same seed creates the same objects
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Write the figures of all rounds to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Draw the figures in this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Directory of relative file names
    #[arg(long, hide = true, default_value = ".")]
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Task {
    Backup,
    Restore,
    /// Backups of volumes with CSI snapshots.
    Csi,
}

impl Args {
    /// Fails for combinations of flags that cannot be measured.
    fn check(&self) -> anyhow::Result<()> {
        match (self.only, self.csi_claims) {
            (Some(Task::Csi), None) => bail!("--only csi needs --csi-claims"),
            (Some(Task::Backup | Task::Restore), Some(_)) => {
                bail!("--csi-claims is for --only csi")
            }
            _ => Ok(()),
        }
    }

    fn load(&self) -> Load {
        match self.objects {
            Some(objects) => Load::Mix { objects: objects as usize, seed: self.seed },
            None => Load::BigSecrets { seed: self.seed },
        }
    }

    fn wants(&self, task: Task) -> bool {
        self.only.is_none_or(|only| only == task)
    }

    fn contenders(&self) -> Vec<Contender> {
        let all =
            [Contender::Bowline, Contender::Baseline, Contender::Velero, Contender::VeleroTuned];
        all.into_iter()
            .filter(|contender| match contender {
                Contender::Bowline => !self.skip_bowline,
                Contender::Baseline => self.baseline.is_some(),
                Contender::Velero | Contender::VeleroTuned => !self.skip_velero,
            })
            .collect()
    }

    /// Loads to restore with their contenders: smaller ones first.
    fn restores(&self) -> Vec<(Load, Vec<Contender>)> {
        let (all, whole) = (self.contenders(), self.load());
        let part = match whole {
            Load::Mix { objects, seed } => {
                Load::Mix { objects: objects.min(self.velero_objects as usize), seed }
            }
            Load::BigSecrets { .. } => whole,
        };
        if self.skip_velero || part == whole {
            return vec![(whole, all)];
        }
        let mut restores = vec![(part, all)];
        if !self.skip_bowline {
            let is_ours = |by: &Contender| matches!(by, Contender::Bowline | Contender::Baseline);
            restores.push((whole, self.contenders().into_iter().filter(is_ours).collect()));
        }
        restores
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start")
        .and_then(|runtime| runtime.block_on(run_until_signalled(&args)));
    outcome.unwrap_or_else(|error| {
        print_line(format_args!("error: {error:#}"));
        ExitCode::FAILURE
    })
}

/// Runs everything. On a signal everything is dropped, and with the beds all processes in them.
async fn run_until_signalled(args: &Args) -> anyhow::Result<ExitCode> {
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
    args.check()?;
    let contenders = args.contenders();
    let binaries = find_programs(&contenders, args.baseline.as_deref()).await?;
    let bed = Bed::new()?;
    let s3 = Arc::new(S3::start(&bed).await?);
    if let Some(claims) = args.csi_claims {
        let claims = usize::from(claims);
        let backups = csi::rounds(&s3, &binaries, claims, &contenders, args.rounds).await?;
        return write(args, &backups.json(cores()), &plot::csi_svg(&backups), &backups.table());
    }
    let env = BenchEnv::set_up(&s3, &binaries).await?;

    let mut restores = Vec::new();
    if args.wants(Task::Restore) {
        // A larger load begins with the smaller one, so that one cluster is enough.
        for (load, by) in args.restores() {
            fill::fill(&env.client, load).await?;
            let taker = *contenders.first().context("there is nobody to measure")?;
            let archive = Archive::create(&env, taker, load).await?;
            restores.push(Restores::new(archive, &by));
        }
        restores.reverse();
    }
    let mut backups = None;
    if args.wants(Task::Backup) {
        fill::fill(&env.client, args.load()).await?;
        let objects = args.load().len();
        backups = Some(backup::rounds(&env, objects, &contenders, args.rounds).await?);
    }
    drop(env);
    for round in 1..=args.rounds {
        for restores in &mut restores {
            restores.round(&s3, &binaries, round).await?;
        }
    }
    let results = Results { load: args.load(), cores: cores(), backups, restores };
    write(args, &results.json(), &plot::svg(&results), &results.table())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Finds or builds the measured programs. Returns the binaries of Bowline.
async fn find_programs(
    contenders: &[Contender],
    baseline: Option<&Path>,
) -> anyhow::Result<Binaries> {
    let bowline = std::env::current_exe().context("cannot find myself")?.with_file_name("bowline");
    let is_measured = |contender| contenders.contains(&contender);
    ensure!(
        !is_measured(Contender::Bowline) || bowline.is_file(),
        "there is no {}; start this with bench/run, which builds it",
        bowline.display()
    );
    let baseline = baseline.map(Path::canonicalize).transpose();
    let baseline = baseline.context("cannot find the other build of --baseline")?;
    // Takes minutes the first time, and shows its own progress.
    if is_measured(Contender::Velero) {
        program::locate([Program::Velero, Program::VeleroPluginForAws]).await?;
    }
    Ok(Binaries { bowline, baseline })
}

fn write(args: &Args, json: &Value, svg: &str, table: &str) -> anyhow::Result<()> {
    let to = |file: &Path, text: &str| {
        let path = args.folder.join(file);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    if let Some(file) = &args.json {
        to(file, &format!("{json:#}\n"))?;
    }
    if let Some(file) = &args.svg {
        to(file, svg)?;
    }
    let mut stdout = std::io::stdout();
    write!(stdout, "{table}").context("cannot write to standard output")
}

/// Prints a line for a person who waits.
fn print_line(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["bench/run"].iter().chain(arguments))
    }

    #[test]
    fn exactly_one_load_is_required() {
        assert!(parse(&[]).is_err());
        assert!(parse(&["--objects", "0"]).is_err());
        assert!(parse(&["--objects", "5", "--big-secrets"]).is_err());
        assert!(parse(&["--big-secrets", "--skip-velero", "--skip-bowline"]).is_err());
        let load = parse(&["--objects", "5"]).unwrap().load();
        assert_eq!(load, Load::Mix { objects: 5, seed: 1 });
        assert_eq!(parse(&["--big-secrets"]).unwrap().load(), Load::BigSecrets { seed: 1 });
    }

    #[test]
    fn contender_can_be_skipped() {
        let names = |arguments: &[&str]| -> Vec<&str> {
            parse(arguments).unwrap().contenders().into_iter().map(Contender::name).collect()
        };
        assert_eq!(names(&["--objects=5"]), ["bowline", "velero", "velero_tuned"]);
        assert_eq!(names(&["--objects=5", "--skip-velero"]), ["bowline"]);
        let both = ["--objects=5", "--skip-velero", "--baseline=old/bowline"];
        assert_eq!(names(&both), ["bowline", "baseline"]);
        assert_eq!(names(&["--objects=5", "--skip-bowline"]), ["velero", "velero_tuned"]);
    }

    #[test]
    fn velero_restores_a_part_and_bowline_also_everything() {
        let restores = |arguments: &[&str]| -> Vec<(usize, Vec<&str>)> {
            let restores = parse(arguments).unwrap().restores().into_iter();
            restores
                .map(|(load, by)| (load.len(), by.into_iter().map(Contender::name).collect()))
                .collect()
        };
        let all = vec!["bowline", "velero", "velero_tuned"];
        assert_eq!(restores(&["--objects=900"]), [(900, all.clone())]);
        assert_eq!(restores(&["--objects=9000"]), [(2000, all.clone()), (9000, vec!["bowline"])]);
        let few = ["--objects=900", "--velero-objects=50"];
        assert_eq!(restores(&few), [(50, all.clone()), (900, vec!["bowline"])]);
        assert_eq!(restores(&["--big-secrets"]), [(501, all)]);
        assert_eq!(restores(&["--objects=9000", "--skip-velero"]), [(9000, vec!["bowline"])]);
        let without_us = restores(&["--objects=9000", "--skip-bowline"]);
        assert_eq!(without_us, [(2000, vec!["velero", "velero_tuned"])]);
    }

    #[test]
    fn csi_claims_are_measured_separately() {
        let check = |arguments: &[&str]| parse(arguments).unwrap().check().is_ok();
        assert!(check(&["--csi-claims=5"]) && check(&["--csi-claims=5", "--only=csi"]));
        assert!(!check(&["--csi-claims=5", "--only=backup"]));
        assert!(!check(&["--objects=5", "--only=csi"]));
        assert!(parse(&["--csi-claims=5", "--objects=5"]).is_err());
        assert!(parse(&["--csi-claims=0"]).is_err());
    }

    #[test]
    fn backup_and_restore_are_measured_unless_one_is_chosen() {
        let tasks = |arguments: &[&str]| {
            let args = parse(arguments).unwrap();
            [args.wants(Task::Backup), args.wants(Task::Restore)]
        };
        assert_eq!(tasks(&["--objects=5"]), [true, true]);
        assert_eq!(tasks(&["--objects=5", "--only=backup"]), [true, false]);
        assert_eq!(tasks(&["--objects=5", "--only=restore"]), [false, true]);
    }
}
