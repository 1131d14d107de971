//! Measures backup and restore against Velero and the floor.
//!
//! One control plane of the test bed is filled once and backed up, round by round, by each contender. Then each
//! restores the same archive into a new one. Measured separately are volumes with CSI snapshots, with pods on a real
//! node; backups of growing clusters; and a server among thousands of resources. Started by `bench/run`, which first
//! builds the measured programs.

mod archive;
mod args;
mod backup;
mod bench_env;
mod contender;
mod create;
mod csi;
mod fill;
mod growth;
mod load_check;
mod many;
mod measure;
mod plot;
mod raw;
mod report;
mod requests;
mod restore;

use std::fmt::Display;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use bowline_testbed::program::{self, Program};
use bowline_testbed::{Bed, S3};
use clap::Parser;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Args, JsonOutput, Measurement, Task};
use crate::bench_env::{BenchEnv, Binaries};
use crate::contender::Contender;
use crate::fill::Load;
use crate::report::Results;
use crate::restore::{Archive, Restores};

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
    let measurement = args.measurement()?;
    let contenders = args.contenders();
    let binaries = find_programs(&contenders, args.baseline.as_deref()).await?;
    let bed = Bed::new()?;
    let s3 = Arc::new(S3::start(&bed).await?);
    let env = async || BenchEnv::set_up(&s3, &binaries).await;
    match measurement {
        Measurement::Load(load) => run_load(args, &s3, &binaries, load).await,
        Measurement::Sizes(loads) => {
            let growth = growth::measure(&env().await?, &loads, &contenders, args.rounds).await?;
            write(args, &growth.json(cores()), &plot::growth::svg(&growth), &growth.table())
        }
        Measurement::Csi(claims) => {
            let backups = csi::rounds(&s3, &binaries, claims, &contenders, args.rounds).await?;
            write(args, &backups.json(cores()), &plot::csi_svg(&backups), &backups.table())
        }
        Measurement::Many(plan) => {
            let many = many::measure(&env().await?, &plan).await?;
            write(args, &many.json(cores()), "", &many.table())
        }
    }
}

/// Backups and restores of one load.
async fn run_load(
    args: &Args,
    s3: &Arc<S3>,
    binaries: &Binaries,
    whole: Load,
) -> anyhow::Result<()> {
    let contenders = args.contenders();
    let env = BenchEnv::set_up(s3, binaries).await?;
    let mut restores = Vec::new();
    let mut existing = 0;
    if args.wants(Task::Restore) {
        // A larger load begins with the smaller one, so that one cluster is enough.
        for (load, by) in args.restores(whole) {
            existing = fill::fill(&env.client, load, existing).await?;
            let taker = *contenders.first().context("there is nobody to measure")?;
            let archive = Archive::create(&env, taker, load).await?;
            restores.push(Restores::new(archive, &by));
        }
        restores.reverse();
    }
    let mut backups = None;
    if args.wants(Task::Backup) {
        fill::fill(&env.client, whole, existing).await?;
        backups = Some(backup::rounds(&env, whole.len(), &contenders, args.rounds).await?);
    }
    drop(env);
    for round in 1..=args.rounds {
        for restores in &mut restores {
            restores.round(s3, binaries, round).await?;
        }
    }
    let results = Results { load: whole, cores: cores(), backups, restores };
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
    let to = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let json = format!("{json:#}\n");
    let json_output = args.json_output();
    if let JsonOutput::File(file) = &json_output {
        to(file, &json)?;
    }
    if let Some(file) = args.svg_file() {
        to(&file, svg)?;
    }
    let printed = if json_output == JsonOutput::Stdout {
        print_line(table);
        json.as_str()
    } else {
        table
    };
    let mut stdout = std::io::stdout();
    write!(stdout, "{printed}").context("cannot write to standard output")
}

/// Prints a line for a person who waits.
fn print_line(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
