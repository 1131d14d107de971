//! Simulates the server: the real controllers and the real engine, against a cluster, a bucket, plugins and pods in
//! memory, in virtual time.
//!
//! | module | contents |
//! |---|---|
//! | `os` | clock and randomness of the process, which follow from the seed |
//! | `world` | everything that outlives a server, and the way to it, on which servers are killed |
//! | `api` | the API server |
//! | `bucket`, `disks`, `plugins`, `pods` | the bucket, what plugins have, the plugins, the applications |
//! | `fault` | what goes wrong |
//! | `plan`, `scenario` | what follows from a seed, and its course |
//! | `simulation` | one simulation |
//! | `sabotage` | mends that can be undone |
//! | `check` | what must hold at the end |
//! | `batch` | many seeds, each in a process of its own |

mod api;
mod batch;
mod bucket;
mod check;
mod disks;
mod fault;
mod log;
mod os;
mod plan;
mod plugins;
mod pods;
mod prng;
mod sabotage;
mod scenario;
mod simulation;
mod world;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

use crate::sabotage::Sabotage;

/// Simulate the server with faults and kills, from seeds
///
/// Each seed is a plan: backups, a restore and a deletion, faults of the surroundings, and kills of the server. After
/// each one, what must always hold is checked. A seed repeats exactly.
#[derive(Debug, Parser)]
#[command(name = "bench/simulate", bin_name = "bench/simulate")]
struct Args {
    /// How many seeds to simulate: 100, or one if `--seed` names it
    #[arg(long)]
    seeds: Option<u64>,

    /// The first seed, which is 1 otherwise
    #[arg(long)]
    seed: Option<u64>,

    /// Print everything that happens
    #[arg(long, requires = "seed")]
    trace: bool,

    /// Print the log of the server, from this level on
    #[arg(long, value_name = "LEVEL", requires = "seed")]
    log: Option<String>,

    /// Undo a mend, which some seed must find
    #[arg(long, value_name = "NAME", value_parser = Sabotage::parse)]
    sabotage: Option<Sabotage>,

    /// Write the figures to this file; `-` for standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,

    /// How many processes to run at a time; by default, one for each core
    #[arg(long)]
    jobs: Option<usize>,

    /// Simulate one seed in this process
    #[arg(long, hide = true)]
    worker: bool,

    /// Where relative file names start
    #[arg(long, hide = true, default_value = ".")]
    folder: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.seed {
        Some(seed) if args.worker => work(seed, &args),
        _ => batch::run(&args),
    };
    outcome.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        ExitCode::from(2)
    })
}

/// Simulates one seed, and prints what came of it as JSON.
fn work(seed: u64, args: &Args) -> anyhow::Result<ExitCode> {
    let scratch = std::env::temp_dir().join(format!("bowline-simulate-{}", std::process::id()));
    std::fs::create_dir(&scratch).context("cannot make a directory")?;
    os::begin(seed);
    bowline_store::blocking::run_inline();
    let log = log::ServerLog::install(args.log.as_deref().unwrap_or("info"))?;
    let outcome = simulation::run(seed, args.sabotage, &scratch, &log, args.trace);
    std::fs::remove_dir_all(&scratch).context("cannot remove a directory")?;
    let outcome = outcome?;
    for line in &outcome.lines {
        writeln!(std::io::stderr(), "{line}")?;
    }
    if args.log.is_some() {
        std::io::stderr().write_all(log.text().as_bytes())?;
    }
    let answer = serde_json::json!({
        "seed": seed, "violations": outcome.violations, "kills": outcome.kills,
        "faults": outcome.injected, "points": outcome.points,
        "trace": format!("{:016x}", outcome.trace), "virtual_s": outcome.virtual_seconds,
    });
    writeln!(std::io::stdout(), "{answer}")?;
    Ok(ExitCode::SUCCESS)
}
