//! One simulation: servers come and go until everything that users asked for is over.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bowline_engine::failpoint::{self, FailpointAction};
use bowline_server::options::Simulation;
use bowline_server::{Error, Options};
use bowline_store::backend::Simulated;
use parking_lot::Mutex;

use crate::api::ApiServer;
use crate::bucket::SimulatedBucket;
use crate::check;
use crate::log::ServerLog;
use crate::os;
use crate::plan::{NAMESPACE, Plan};
use crate::plugins;
use crate::sabotage::Sabotage;
use crate::scenario::{self, Scenario};
use crate::world::{Kill, Link, World};

/// Interval at which users and invariants are looked after.
const TICK: Duration = Duration::from_secs(1);
/// Time after which a server is killed that does not come to where it should be.
const PATIENCE: Duration = Duration::from_secs(100);
/// Most servers of a simulation, the ones that end by themselves included.
const MAX_SERVERS: usize = 400;

/// What came of a simulation.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) violations: Vec<String>,
    pub(crate) kills: u64,
    pub(crate) injected: std::collections::BTreeMap<&'static str, u64>,
    pub(crate) points: Vec<&'static str>,
    /// Hash of everything that happened.
    pub(crate) trace: u64,
    pub(crate) virtual_seconds: u64,
    pub(crate) lines: Vec<String>,
}

/// Why a server is no more.
enum ServerEnd {
    Killed,
    /// Everything is over.
    Done,
    ByItself(Result<(), Error>),
}

/// Simulates a seed. A process can do this once.
pub(crate) fn run(
    seed: u64,
    sabotage: Option<Sabotage>,
    scratch: &Path,
    log: &ServerLog,
    is_traced: bool,
) -> anyhow::Result<Outcome> {
    if let Some(sabotage) = sabotage {
        sabotage.begin();
    }
    let plan = Plan::new(seed);
    let world = Arc::new(World::new(seed, plan.faults.clone(), is_traced));
    let passing = Arc::clone(&world);
    failpoint::set_handler(move |point| {
        passing.pass(point);
        match sabotage {
            Some(sabotage) if sabotage.leaves_out(point) => FailpointAction::Skip,
            _ => FailpointAction::Continue,
        }
    });
    world.with(|state| {
        for fault in &plan.faults {
            state.record(&format!("plan: {fault:?}"));
        }
        for kill in &plan.kills {
            state.record(&format!("plan: {kill:?}"));
        }
        scenario::set_up(state, &plan);
    });
    let scenario = Mutex::new(Scenario::new(&plan));
    let mut kills = plan.kills.iter().copied();
    let (mut kill, mut killed) = (kills.next(), 0);
    for number in 0..MAX_SERVERS {
        let (end, now) = run_server(&world, &scenario, &plan, number, kill, scratch)?;
        let pause = world.with(|state| state.random.between(1, 10));
        os::continue_at(now + Duration::from_secs(pause));
        match end {
            ServerEnd::Done => break,
            ServerEnd::Killed => {
                killed += 1;
                kill = kills.next();
            }
            ServerEnd::ByItself(outcome) => world.with(|state| match outcome {
                Err(error) if is_expected(&error) => {
                    state.record(&format!("the server ended: {error}"));
                }
                Err(error) => state.violate(format!("the server ended: {error}")),
                Ok(()) => state.violate("the server ended without a reason".to_owned()),
            }),
        }
        scenario.lock().note_server_end();
    }
    world.with(|state| check::at_the_end(state, log));
    let trace = world.trace_hash();
    Ok(world.with(|state| Outcome {
        violations: state.violations.clone(),
        kills: killed,
        injected: state.injected.clone(),
        points: state.points.iter().copied().collect(),
        trace,
        virtual_seconds: os::now().as_secs(),
        lines: Vec::new(),
    }))
    .map(|outcome| Outcome { lines: world.take_trace(), ..outcome })
}

/// True for an end that faults of the surroundings bring about.
fn is_expected(error: &Error) -> bool {
    matches!(error, Error::LeaseLost | Error::Cluster { .. } | Error::Lease(_))
}

/// Runs one server to its end. Also returns the time of the end.
fn run_server(
    world: &Arc<World>,
    scenario: &Mutex<Scenario>,
    plan: &Plan,
    number: usize,
    kill: Option<Kill>,
    scratch: &Path,
) -> anyhow::Result<(ServerEnd, Duration)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        // So that a kill is noticed before another task runs.
        .event_interval(1)
        .build()?;
    let end = runtime.block_on(async {
        let link = world.connect(kill);
        let options = options(&link, plan, number, scratch)?;
        let client = ApiServer::client(&link, NAMESPACE);
        let server = Box::pin(bowline_server::run(client, options, std::future::pending()));
        let delay = match kill {
            Some(Kill::After(seconds)) => Duration::from_secs(seconds),
            // Not every seed comes to its point.
            Some(_) => PATIENCE,
            None => Duration::from_hours(10_000),
        };
        let ticking = async {
            let mut interval = tokio::time::interval(TICK);
            loop {
                interval.tick().await;
                if world.with(|state| scenario.lock().tick(state)) {
                    return;
                }
            }
        };
        let end = tokio::select! {
            biased;
            () = world.until_killed() => ServerEnd::Killed,
            ended = server => ServerEnd::ByItself(ended),
            () = tokio::time::sleep(delay) => ServerEnd::Killed,
            () = ticking => ServerEnd::Done,
        };
        anyhow::Ok((end, os::now()))
    })?;
    // Nothing that happens while everything is dropped counts.
    os::continue_at(end.1);
    world.disconnect("its runtime is dropped");
    drop(runtime);
    Ok(end)
}

fn options(link: &Link, plan: &Plan, number: usize, scratch: &Path) -> anyhow::Result<Options> {
    let simulation = Simulation {
        plugins: Arc::new(plugins::all(link)?),
        bucket: Simulated(Arc::new(SimulatedBucket::new(link.clone()))),
    };
    let identity =
        if plan.keeps_identity { "server".to_owned() } else { format!("server-{number}") };
    Ok(Options {
        namespace: NAMESPACE.to_owned(),
        identity,
        scratch_dir: scratch.to_owned(),
        concurrent_backups: plan.concurrent_runs,
        concurrent_restores: plan.concurrent_runs,
        item_block_worker_count: plan.workers,
        freeze_timeout: Duration::from_mins(1),
        bucket_wait_timeout: Duration::from_mins(10),
        default_item_operation_timeout: Duration::from_mins(10),
        resource_timeout: Duration::from_mins(2),
        terminating_resource_timeout: Duration::from_mins(2),
        surroundings: simulation.into(),
        ..Options::default()
    })
}
