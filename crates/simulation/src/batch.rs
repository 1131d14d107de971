//! Many seeds, each in a process of its own: nothing of one is left for the next.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::Args;

/// How many seeds are simulated if nobody says.
const SEEDS: u64 = 100;

/// Sums over all seeds.
#[derive(Debug, Default)]
struct Totals {
    seeds: u64,
    kills: u64,
    faults: BTreeMap<String, u64>,
    /// Number of seeds that have passed each failpoint.
    points: BTreeMap<String, u64>,
    violations: Vec<(u64, String)>,
    virtual_seconds: u64,
}

impl Totals {
    fn add(&mut self, seed: u64, answer: &Value) {
        self.seeds += 1;
        self.kills += answer["kills"].as_u64().unwrap_or_default();
        self.virtual_seconds += answer["virtual_s"].as_u64().unwrap_or_default();
        for (kind, count) in answer["faults"].as_object().into_iter().flatten() {
            *self.faults.entry(kind.clone()).or_default() += count.as_u64().unwrap_or_default();
        }
        for point in answer["points"].as_array().into_iter().flatten() {
            *self.points.entry(point.as_str().unwrap_or_default().to_owned()).or_default() += 1;
        }
        for violation in answer["violations"].as_array().into_iter().flatten() {
            let violation = violation.as_str().unwrap_or_default().to_owned();
            self.violations.push((seed, violation));
        }
    }
}

/// Simulates all seeds.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let first = args.seed.unwrap_or(1);
    let alone = if args.seed.is_some() { 1 } else { SEEDS };
    let count = args.seeds.unwrap_or(alone);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (next, totals) = (AtomicU64::new(0), Mutex::new(Totals::default()));
    let began = Instant::now();
    let failed = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..args.jobs.unwrap_or(cores).max(1) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::SeqCst);
                    // One seed that finds a sabotage is enough.
                    let is_found = args.sabotage.is_some() && !totals.lock().violations.is_empty();
                    if place >= count || is_found || failed.lock().is_some() {
                        return;
                    }
                    match simulate(first + place, args) {
                        Ok(answer) => report(first + place, &answer, &totals),
                        Err(error) => *failed.lock() = Some(error),
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    let totals = totals.into_inner();
    let seconds = began.elapsed().as_secs_f64();
    let figures = json!({
        "seeds": totals.seeds, "kills": totals.kills, "faults": totals.faults,
        "failpoints": totals.points, "virtual_s": totals.virtual_seconds, "wall_s": seconds,
        "violations": totals.violations.len(),
        "violation_list": totals
            .violations
            .iter()
            .map(|(seed, what)| json!({"seed": seed, "violation": what}))
            .collect::<Vec<_>>(),
    });
    match &args.json {
        Some(path) if path.as_os_str() != "-" => {
            let path = args.folder.join(path);
            std::fs::write(&path, format!("{figures:#}\n"))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Some(_) => writeln!(std::io::stdout(), "{figures:#}")?,
        None => writeln!(
            std::io::stdout(),
            "{} seeds, {} kills, {} faults, {} violations, {seconds:.1} s",
            totals.seeds,
            totals.kills,
            totals.faults.values().sum::<u64>(),
            totals.violations.len(),
        )?,
    }
    Ok(if totals.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(seed: u64, answer: &Value, totals: &Mutex<Totals>) {
    for violation in answer["violations"].as_array().into_iter().flatten() {
        let violation = violation.as_str().unwrap_or_default();
        let _ = writeln!(
            std::io::stderr(),
            "seed {seed}: {violation}; repeat it with bench/simulate --seed {seed} --trace"
        );
    }
    totals.lock().add(seed, answer);
}

/// Simulates a seed in a process of its own. Returns its answer.
fn simulate(seed: u64, args: &Args) -> anyhow::Result<Value> {
    let mut command = Command::new(std::env::current_exe().context("cannot find myself")?);
    command.args(["--worker", "--seed", &seed.to_string()]);
    if let Some(sabotage) = args.sabotage {
        command.args(["--sabotage", sabotage.as_str()]);
    }
    if args.trace {
        command.arg("--trace");
    }
    if let Some(level) = &args.log {
        command.args(["--log", level]);
    }
    let output = command.stderr(Stdio::inherit()).output().context("cannot start a simulation")?;
    ensure!(output.status.success(), "seed {seed}: the simulation ended with {}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("seed {seed}: no answer"))
}
