//! The course of a simulation: what users do at their time, and what is watched meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_api::{annotation, label};
use serde_json::{Value, json};

use crate::api::{Key, Preconditions};
use crate::fault::FaultKind;
use crate::os;
use crate::plan::{Moment, NAMESPACE, Plan, UserAction};
use crate::world::State;

/// Longest time from the last fault or kill to the end of everything. Waiting for the bucket and for operations is
/// bounded by less.
const END_LIMIT: Duration = Duration::from_hours(2);
/// Longest time from the last fault or kill to the end of a run that is cancelled.
const CANCEL_LIMIT: Duration = Duration::from_mins(15);
/// How far the clock of the server is off while it is wrong.
const SKEWS: [i64; 4] = [-86_400, -400, 7200, 60 * 86_400];

/// Phases in the order in which runs pass them.
const PHASES: [&[&str]; 8] = [
    &["", "New"],
    &["Queued"],
    &["ReadyToStart"],
    &["InProgress"],
    &["WaitingForPluginOperations", "WaitingForPluginOperationsPartiallyFailed"],
    &["Finalizing", "FinalizingPartiallyFailed"],
    &["FailedValidation", "Completed", "PartiallyFailed", "Failed"],
    &["Deleting"],
];
const ENDED: usize = 6;

/// The last known phase of a run.
#[derive(Clone, Debug)]
struct KnownPhase {
    phase: String,
    rank: usize,
}

/// Progress of a simulation.
#[derive(Debug)]
pub(crate) struct Scenario {
    todo: Vec<(Moment, UserAction)>,
    /// Changes in the cluster that were looked at.
    changes: usize,
    known_phases: BTreeMap<String, KnownPhase>,
    cancels: BTreeMap<(&'static str, String), Duration>,
    lost_leases: usize,
    /// Time of the last kill or other end of a server.
    last_end: Duration,
    last_fault: Duration,
}

/// Key of an object in the server's namespace.
fn key(state: &State, kind: &str, name: &str) -> Key {
    let place = state.objects.place_of_kind(kind).unwrap_or_default();
    (place, NAMESPACE.to_owned(), name.to_owned())
}

fn phase(object: &Value) -> &str {
    object["status"]["phase"].as_str().unwrap_or_default()
}

fn rank(phase: &str) -> Option<usize> {
    PHASES.iter().position(|phases| phases.contains(&phase))
}

/// True if a run has ended.
pub(crate) fn has_ended(run: &Value) -> bool {
    rank(phase(run)).is_some_and(|rank| rank >= ENDED)
}

impl Scenario {
    pub(crate) fn new(plan: &Plan) -> Self {
        let last_fault = plan.faults.iter().map(|fault| fault.end).max().unwrap_or_default();
        Self {
            todo: plan.user_actions.clone(),
            changes: 0,
            known_phases: BTreeMap::new(),
            cancels: BTreeMap::new(),
            lost_leases: 0,
            last_end: Duration::ZERO,
            last_fault,
        }
    }

    /// Notes that a server has ended now.
    pub(crate) fn note_server_end(&mut self) {
        self.last_end = os::now();
    }

    /// Does what is due. Returns true if everything is over.
    pub(crate) fn tick(&mut self, state: &mut State) -> bool {
        self.cause_faults(state);
        let (due, later) = std::mem::take(&mut self.todo)
            .into_iter()
            .partition(|(moment, _)| is_due(state, moment));
        self.todo = later;
        for (_, action) in Vec::<(Moment, UserAction)>::from_iter(due) {
            self.apply(state, action);
        }
        self.follow_phases(state);
        let calm = self.last_fault.max(self.last_end);
        self.check_cancels(state, calm);
        let open = self.open_ends(state);
        if open.is_empty() {
            return os::now() > self.last_fault;
        }
        if os::now() > calm + END_LIMIT {
            for what in open {
                state.violate(format!("without an end: {what}"));
            }
            return true;
        }
        false
    }

    /// Faults that no call meets: a clock that is wrong, and a lease that somebody takes.
    fn cause_faults(&mut self, state: &mut State) {
        let now = os::now();
        let skew = state
            .faults
            .iter()
            .find(|fault| fault.kind == FaultKind::ClockJump && fault.is_active(now))
            .map_or(0, |fault| {
                SKEWS[usize::try_from(fault.begin.as_secs() % 4).unwrap_or_default()]
            });
        if skew != os::skew() {
            os::set_skew(skew);
            state.record(&format!("the server's clock is off by {skew} s"));
            state.count(FaultKind::ClockJump);
        }
        let transitions = state
            .faults
            .iter()
            .filter(|fault| fault.kind == FaultKind::LeaseTaken && fault.begin <= now)
            .count();
        if transitions > self.lost_leases {
            self.lost_leases = transitions;
            let lease = key(state, "Lease", "bowline-server");
            if state.objects.get(&lease).is_some() {
                state.record("another server takes the lease");
                state.count(FaultKind::LeaseTaken);
                state.objects.force(&lease, |lease| {
                    lease["spec"]["holderIdentity"] = json!("intruder");
                    lease["spec"]["leaseDurationSeconds"] = json!(15);
                });
            }
        }
    }

    fn apply(&mut self, state: &mut State, action: UserAction) {
        match action {
            UserAction::Create(object) => {
                let kind = object["kind"].as_str().unwrap_or_default().to_owned();
                let place = state.objects.place_of_kind(&kind).unwrap_or_default();
                state.record(&format!("a user creates {kind} {}", object["metadata"]["name"]));
                if let Err(refusal) = state.objects.create(place, NAMESPACE, object, false) {
                    state.violate(format!("the scenario is wrong: {}", refusal.message));
                }
            }
            UserAction::Cancel(kind, name) => {
                let run = key(state, kind, &name);
                let Some(found) = state.objects.get(&run) else { return };
                state.record(&format!("a user cancels {kind} {name}"));
                if !has_ended(&found) {
                    self.cancels.insert((kind, name), os::now());
                }
                let cancel = json!({"metadata": {"annotations": {annotation::CANCEL: "true"}}});
                let _ = state.objects.patch(&run, cancel, false);
            }
            UserAction::Remove(name) => {
                state.record(&format!("a user removes the Backup {name}"));
                let backup = key(state, "Backup", &name);
                let _ = state.objects.delete(&backup, &Preconditions::default(), false);
            }
            UserAction::DeleteBackup(name) => {
                state.bucket.doom(&name);
                state.record(&format!("a user deletes {name}"));
                let request = json!({
                    "metadata": {"name": name, "namespace": NAMESPACE},
                    "spec": {"backupName": name},
                });
                let place = state.objects.place_of_kind("DeleteBackupRequest").unwrap_or_default();
                let _ = state.objects.create(place, NAMESPACE, request, false);
            }
        }
    }

    /// Phases only go forward, and an end is one.
    fn follow_phases(&mut self, state: &mut State) {
        let kinds = ["Backup", "Restore"].map(|kind| state.objects.place_of_kind(kind));
        let changes: Vec<Value> = state.objects.changes[self.changes..]
            .iter()
            .filter(|change| kinds.contains(&Some(change.kind)))
            .filter_map(|change| change.after.as_deref().cloned())
            .collect();
        self.changes = state.objects.changes.len();
        for object in changes {
            let (uid, now) = (object["metadata"]["uid"].to_string(), phase(&object));
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let Some(rank) = rank(now) else {
                state.violate(format!("{name} has the unknown phase {now}"));
                continue;
            };
            if let Some(before) = self.known_phases.get(&uid) {
                let was_failing = before.phase.ends_with("PartiallyFailed");
                let is_back = rank < before.rank
                    || rank == before.rank && rank == ENDED && before.phase != now
                    || rank == before.rank && was_failing && !now.ends_with("PartiallyFailed");
                if is_back {
                    state.violate(format!("{name} goes from {} to {now}", before.phase));
                }
            }
            self.known_phases.insert(uid, KnownPhase { phase: now.to_owned(), rank });
        }
    }

    /// Cancelled runs end soon.
    fn check_cancels(&mut self, state: &mut State, calm: Duration) {
        let late: Vec<(&'static str, String)> = self
            .cancels
            .iter()
            .filter(|(_, since)| os::now() > (**since).max(calm) + CANCEL_LIMIT)
            .map(|(run, _)| run.clone())
            .collect();
        for run in late {
            self.cancels.remove(&run);
            let (kind, name) = run;
            let found = state.objects.get(&key(state, kind, &name));
            if let Some(found) = found.filter(|run| !has_ended(run)) {
                let phase = phase(&found);
                state.violate(format!("{kind} {name} is {phase} long after it was cancelled"));
            }
        }
    }

    /// What has not ended yet.
    fn open_ends(&self, state: &State) -> Vec<String> {
        let mut open: Vec<String> = self.todo.iter().map(|action| format!("{action:?}")).collect();
        for kind in ["Backup", "Restore"] {
            for run in state.objects.list(kind).iter().filter(|run| !has_ended(run)) {
                open.push(format!("{kind} {} is {}", run["metadata"]["name"], phase(run)));
            }
        }
        for request in state.objects.list("DeleteBackupRequest") {
            if phase(&request) != "Processed" {
                open.push(format!(
                    "deletion {} is {}",
                    request["metadata"]["name"],
                    phase(&request)
                ));
            }
        }
        for map in state.objects.list("ConfigMap") {
            if !map["metadata"]["labels"][label::JOURNAL].is_null() {
                open.push(format!("the journal {}", map["metadata"]["name"]));
            }
        }
        open
    }
}

fn is_due(state: &State, moment: &Moment) -> bool {
    match moment {
        Moment::At(seconds) => os::now() >= Duration::from_secs(*seconds),
        Moment::Ended(kind, name) => {
            let run = state.objects.get(&key(state, kind, name));
            run.is_some_and(|run| has_ended(&run))
        }
    }
}

/// Creates what exists before the first server.
pub(crate) fn set_up(state: &mut State, plan: &Plan) {
    for object in plan.objects() {
        let kind = object["kind"].as_str().unwrap_or_default();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let place = state.objects.place_of_kind(kind).unwrap_or_default();
        if let Err(refusal) = state.objects.create(place, &namespace, object, false) {
            state.violate(format!("the scenario is wrong: {}", refusal.message));
        }
    }
}
