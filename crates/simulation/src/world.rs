//! Everything outside of the server: what it keeps while servers come and go, and the way to it.
//!
//! A server reaches the world through its [`Link`]. Each call passes two steps: one before its effect and one after.
//! At any step the server may be killed: from then on nothing that it does reaches the world, and its runtime is
//! dropped with everything in it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use bowline_engine::failpoint::Failpoint;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::api::ObjectStore;
use crate::bucket::Bucket;
use crate::disks::Disks;
use crate::fault::{Fault, FaultKind, Part};
use crate::os;
use crate::pods::Pods;
use crate::prng::Prng;

/// When a server is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kill {
    /// At a step on the way to the world, counted from the start of the server.
    Step(u64),
    /// At a failpoint, at a passing of it.
    Point(Failpoint, u32),
    /// After so many seconds.
    After(u64),
}

/// State of the world.
pub(crate) struct State {
    pub(crate) objects: ObjectStore,
    pub(crate) bucket: Bucket,
    pub(crate) disks: Disks,
    pub(crate) pods: Pods,
    pub(crate) random: Prng,
    pub(crate) faults: Vec<Fault>,
    /// How often each fault was injected.
    pub(crate) injected: BTreeMap<&'static str, u64>,
    pub(crate) violations: Vec<String>,
    pub(crate) points: BTreeSet<&'static str>,
    trace: Trace,
    /// Number of servers so far.
    generation: u64,
    is_alive: bool,
    steps: u64,
    kill: Option<Kill>,
    passings: u32,
}

/// Everything that happened, in order.
#[derive(Default)]
struct Trace {
    hash: DefaultHasher,
    lines: Option<Vec<String>>,
}

/// World, shared by the server's connections and the scenario.
pub(crate) struct World {
    state: Mutex<State>,
    /// Version of the last change in the cluster.
    pub(crate) changes: watch::Sender<u64>,
    /// The server is killed.
    killed: Notify,
}

/// Connection of one server with the world.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) world: Arc<World>,
    generation: u64,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Proceed,
    /// It takes effect, and its answer is lost.
    LoseAnswer,
    /// It takes no effect.
    Fail(FaultKind),
}

impl World {
    pub(crate) fn new(seed: u64, faults: Vec<Fault>, is_traced: bool) -> Self {
        let lines = is_traced.then(Vec::new);
        let state = State {
            objects: ObjectStore::new(),
            bucket: Bucket::default(),
            disks: Disks::default(),
            pods: Pods::default(),
            random: Prng::new(seed ^ 0x57_0F1D),
            faults,
            injected: BTreeMap::new(),
            violations: Vec::new(),
            points: BTreeSet::new(),
            trace: Trace { lines, ..Trace::default() },
            generation: 0,
            is_alive: false,
            steps: 0,
            kill: None,
            passings: 0,
        };
        Self { state: Mutex::new(state), changes: watch::Sender::new(0), killed: Notify::new() }
    }

    /// Reads or changes the state, and tells the watches of changes in the cluster.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        state.objects.set_time(os::now().as_secs());
        let before = state.objects.version();
        let result = work(&mut state);
        let after = state.objects.version();
        drop(state);
        if after != before {
            self.changes.send_replace(after);
        }
        result
    }

    /// Connects a new server, which is killed as planned.
    pub(crate) fn connect(self: &Arc<Self>, kill: Option<Kill>) -> Link {
        let generation = self.with(|state| {
            state.generation += 1;
            state.is_alive = true;
            (state.steps, state.passings) = (0, 0);
            state.kill = kill;
            state.record(&format!("server {} starts", state.generation));
            state.generation
        });
        Link { world: Arc::clone(self), generation }
    }

    /// Cuts the current server off.
    pub(crate) fn disconnect(&self, reason: &str) {
        self.with(|state| {
            if state.is_alive {
                state.is_alive = false;
                state.kill = None;
                state.record(&format!("server {} ends: {reason}", state.generation));
            }
        });
        // Who waits later sees it as well.
        self.killed.notify_one();
    }

    /// Waits until the current server is killed.
    pub(crate) async fn until_killed(&self) {
        while self.with(|state| state.is_alive) {
            self.killed.notified().await;
        }
    }

    /// Passes a failpoint of the server.
    pub(crate) fn pass(&self, point: Failpoint) {
        let is_hit = self.with(|state| {
            if !state.is_alive {
                return false;
            }
            state.points.insert(point.as_str());
            state.record(&format!("at {}", point.as_str()));
            match state.kill {
                Some(Kill::Point(target, passing)) if target == point => {
                    state.passings += 1;
                    state.passings == passing
                }
                _ => false,
            }
        });
        if is_hit {
            self.disconnect("killed at a failpoint");
        }
    }

    /// Hash of everything that happened.
    pub(crate) fn trace_hash(&self) -> u64 {
        self.with(|state| state.trace.hash.finish())
    }

    /// Lines of the trace, if they are kept.
    pub(crate) fn take_trace(&self) -> Vec<String> {
        self.with(|state| state.trace.lines.take().unwrap_or_default())
    }
}

impl State {
    pub(crate) fn record(&mut self, what: &str) {
        let millis = os::now().as_millis();
        (millis, what).hash(&mut self.trace.hash);
        if let Some(lines) = &mut self.trace.lines {
            lines.push(format!("{millis:>10} {what}"));
        }
    }

    pub(crate) fn violate(&mut self, what: String) {
        self.record(&format!("VIOLATION {what}"));
        if !self.violations.contains(&what) {
            self.violations.push(what);
        }
    }

    pub(crate) fn count(&mut self, kind: FaultKind) {
        *self.injected.entry(kind.as_str()).or_default() += 1;
    }

    /// Fault that is active now for a part, if it strikes.
    fn strike(&mut self, part: Part) -> Option<FaultKind> {
        let now = os::now();
        let active: Vec<Fault> = self
            .faults
            .iter()
            .filter(|fault| fault.kind.part() == part && fault.is_active(now))
            .copied()
            .collect();
        let struck = active.into_iter().find(|fault| self.random.percent(fault.chance))?;
        self.count(struck.kind);
        Some(struck.kind)
    }
}

impl Link {
    /// Counts a step. The server may be killed at it.
    fn step(&self) {
        let is_hit = self.world.with(|state| {
            state.steps += 1;
            self.is_current(state) && state.kill == Some(Kill::Step(state.steps))
        });
        if is_hit {
            self.world.disconnect("killed at a step");
        }
    }

    fn is_current(&self, state: &State) -> bool {
        state.is_alive && state.generation == self.generation
    }

    /// Does not return for a server that is dead.
    pub(crate) async fn stop_if_dead(&self) {
        if !self.world.with(|state| self.is_current(state)) {
            std::future::pending::<()>().await;
        }
    }

    /// Passes to the effect of a call, which takes its time.
    pub(crate) async fn before(&self, part: Part, what: &str) -> Verdict {
        self.stop_if_dead().await;
        self.step();
        self.stop_if_dead().await;
        let (latency, fault) = self.world.with(|state| {
            let fault = state.strike(part);
            let latency = part.latency(&mut state.random);
            let detail = fault.map(FaultKind::as_str).unwrap_or_default();
            state.record(format!("{what} {detail}").trim_end());
            (latency, fault)
        });
        let (delay, verdict) = match fault {
            None => (latency, Verdict::Proceed),
            Some(kind) if kind.is_slow() => {
                let seconds = self.world.with(|state| state.random.between(2, 20));
                (Duration::from_secs(seconds), Verdict::Proceed)
            }
            // As long as clients wait at most.
            Some(kind) if kind.hangs() => (kind.hang(), Verdict::Fail(kind)),
            Some(kind) if kind.loses_answer() => (latency, Verdict::LoseAnswer),
            Some(kind) => (latency, Verdict::Fail(kind)),
        };
        tokio::time::sleep(delay).await;
        self.stop_if_dead().await;
        verdict
    }

    /// Returns from the effect of a call.
    pub(crate) async fn after(&self, part: Part) {
        self.step();
        self.stop_if_dead().await;
        let latency = self.world.with(|state| part.latency(&mut state.random));
        tokio::time::sleep(latency).await;
        self.stop_if_dead().await;
    }
}
