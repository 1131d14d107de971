//! Kills the server again and again while it works, and counts the cost.
//!
//! The real server works on a real API server and bucket, with plugins that record every call and pods that record
//! every freeze. It is killed at failpoints where a kill is most revealing, and at random times; the next server
//! resumes. The result is read from the cluster, the bucket and the records, never from the server's own reports.
//! Started by `bench/kill`.

mod check;
mod evidence;
mod gate;
mod kill_runner;
mod plan;
mod report;
mod round;
mod serve;
mod world;

use std::fmt::Display;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use bowline_engine::failpoint::Failpoint;
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::plan::{InvalidPoint, Planner};
use crate::report::Totals;
use crate::world::World;

/// Kill the server repeatedly during its work, and count lost and repeated work
///
/// Everything runs on this machine and is removed at the end, also after Ctrl-C. The first run builds
/// the programs that it needs with Go, which takes minutes.
#[derive(Debug, Parser)]
#[command(name = "bench/kill", bin_name = "bench/kill", args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Number of kills
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    kills: u32,

    /// Skip a write to the journal, which must be detected: `journal-block-start` or
    /// `journal-block-end`
    #[arg(long, value_name = "POINT", value_parser = parse_sabotage)]
    sabotage: Option<Failpoint>,

    /// Seed of the plan: the same seed makes the same plan
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Directory of relative file names
    #[arg(long, hide = true, default_value = ".")]
    folder: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run as the server that is killed
    #[command(hide = true)]
    Serve(serve::Args),
}

/// Failpoint at which a required step is skipped.
fn parse_sabotage(text: &str) -> Result<Failpoint, InvalidPoint> {
    match plan::point(text)? {
        point @ (Failpoint::JournalBlockStart | Failpoint::JournalBlockEnd) => Ok(point),
        _ => Err(InvalidPoint::NoSabotage),
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start")
        .and_then(|runtime| match &args.command {
            Some(Command::Serve(serve)) => runtime.block_on(serve::run(serve)),
            None => runtime.block_on(run_until_signalled(&args)),
        });
    outcome.unwrap_or_else(|error| {
        print_line(format_args!("error: {error:#}"));
        ExitCode::from(2)
    })
}

/// Runs everything. On a signal everything is dropped, and with the beds all processes in them.
async fn run_until_signalled(args: &Args) -> anyhow::Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    tokio::select! {
        outcome = run(args) => outcome,
        // 128 plus the number of the signal, as shells count.
        _ = interrupt.recv() => Ok(ExitCode::from(130)),
        _ = terminate.recv() => Ok(ExitCode::from(143)),
    }
}

async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let world = World::set_up(args.sabotage).await?;
    let mut planner = Planner::new(args.seed, args.sabotage, world.can_freeze());
    let mut totals = Totals::default();
    let began = Instant::now();
    // A round without a kill is possible; many in a row mean that something else is wrong.
    let mut idle = 0;
    while totals.kills < args.kills && idle < 5 {
        let before = totals.kills;
        let plan = planner.plan_round(args.kills - totals.kills);
        round::run(&world, &plan, &mut planner, &mut totals).await?;
        idle = if totals.kills == before { idle + 1 } else { 0 };
        print_line(format_args!(
            "{} of {} kills, {} of {} points, {} s: {}",
            totals.kills,
            args.kills,
            totals.points.len(),
            Failpoint::ALL.len(),
            began.elapsed().as_secs(),
            totals.verdict(),
        ));
    }
    totals.seconds = began.elapsed().as_secs();
    if let Some(file) = &args.json {
        let path = args.folder.join(file);
        std::fs::write(&path, format!("{:#}\n", totals.json()))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    write!(std::io::stdout(), "{}", totals.table()).context("cannot write to standard output")?;
    Ok(if totals.is_clean() && totals.kills >= args.kills {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints a line for a person who waits.
fn print_line(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_consequential_failpoints_can_be_sabotaged() {
        let parse = |text: &str| Args::try_parse_from(["bench/kill", "--sabotage", text]);
        assert_eq!(
            parse("journal-block-start").unwrap().sabotage,
            Some(Failpoint::JournalBlockStart)
        );
        assert_eq!(parse("journal-block-end").unwrap().sabotage, Some(Failpoint::JournalBlockEnd));
        for wrong in ["commit", "journal-thaw", "lunch"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
