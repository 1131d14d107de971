//! The matrix of outages: each kind of run, at each stage, with each failure, and each reaction. Impossible cells are
//! listed with the reason.

use Act::{Attempts, Cancel, Delete, Time};
use Failure::{BucketAway, BucketRefuses, NodeAway, PluginHangs, SecretGone};
use Kind::{Backup, Restore};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Backup,
    Restore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    BucketAway,
    BucketRefuses,
    SecretGone,
    /// A call never returns: of an item action, or to cancel an operation.
    PluginHangs,
    /// A kubelet never answers, or the claims and pods of a restore wait for a node.
    NodeAway,
}

/// Reaction to a run that cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Cancel,
    /// `kubectl delete`.
    Delete,
    /// Nothing: it ends by itself, by a bound on time.
    Time,
    /// Nothing: it ends by itself, since it was attempted too often.
    Attempts,
}

pub(super) const ITEMS: &str = "InProgress";
pub(super) const WAITING: &str = "WaitingForPluginOperations";
pub(super) const FINALIZING: &str = "Finalizing";

const KINDS: [Kind; 2] = [Backup, Restore];
const FAILURES: [Failure; 5] = [BucketAway, BucketRefuses, SecretGone, PluginHangs, NodeAway];
const STAGES: [&str; 3] = [ITEMS, WAITING, FINALIZING];
const ACTS: [Act; 4] = [Cancel, Delete, Time, Attempts];

/// Cells that cannot be, or are elsewhere.
struct Absent {
    kinds: &'static [Kind],
    failures: &'static [Failure],
    stages: &'static [&'static str],
    acts: &'static [Act],
    reason: &'static str,
}

const ABSENT: [Absent; 5] = [
    Absent {
        kinds: &[Restore],
        failures: &[PluginHangs],
        stages: &[FINALIZING],
        acts: &ACTS,
        reason: "a restore that is being finished calls no plugin",
    },
    Absent {
        kinds: &[Backup],
        failures: &[NodeAway],
        stages: &[FINALIZING],
        acts: &ACTS,
        reason: "a backup that is being finished runs no command in a pod; pods that are frozen still are thawed \
                 beside it (thawer.rs)",
    },
    Absent {
        kinds: &[Restore],
        failures: &[NodeAway],
        stages: &[WAITING],
        acts: &ACTS,
        reason: "all hooks of a restore run while it is InProgress; a claim that waits for a node is an operation, \
                 and those that do not end are in the rows of plugins",
    },
    Absent {
        kinds: &[Backup],
        failures: &[NodeAway],
        stages: &STAGES,
        acts: &[Time],
        reason: "a hook that is not answered ends by its own timeout, which the test of nodes shows beside the rows; a \
                 pod that is not reached is given up after two minutes, which no flag sets: tests of the engine \
                 (backup/hook/post_hooks) have a clock of their own for that",
    },
    Absent {
        kinds: &KINDS,
        failures: &[PluginHangs, NodeAway],
        stages: &STAGES,
        acts: &[Attempts],
        reason: "attempts are counted before a plugin or a node is asked, so that the rows of buckets show it",
    },
];

impl Absent {
    fn covers(&self, row: &Row) -> bool {
        self.kinds.contains(&row.kind)
            && self.failures.contains(&row.failure)
            && self.stages.contains(&row.stage)
            && self.acts.contains(&row.act)
    }
}

/// One run of the matrix.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) failure: Failure,
    pub(super) stage: &'static str,
    pub(super) act: Act,
}

fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in KINDS {
        for failure in FAILURES {
            for stage in STAGES {
                for act in ACTS {
                    let name = format!("{kind:?}-{failure:?}-{stage}-{act:?}").to_lowercase();
                    rows.push(Row { name, kind, failure, stage, act });
                }
            }
        }
    }
    rows
}

/// The backups and the restores that are tried with some failures.
pub(super) fn rows(failures: &[Failure]) -> (Vec<Row>, Vec<Row>) {
    let is_tried = |row: &Row| {
        failures.contains(&row.failure) && !ABSENT.iter().any(|absent| absent.covers(row))
    };
    all().into_iter().filter(is_tried).partition(|row| row.kind == Backup)
}

#[test]
fn every_cell_is_tested_or_excluded_with_a_reason() {
    let (backups, restores) = rows(&FAILURES);
    let absent = |row: &&Row| ABSENT.iter().any(|absent| absent.covers(row));
    let all = all();
    assert_eq!(all.len(), backups.len() + restores.len() + all.iter().filter(absent).count());
    for absent in &ABSENT {
        assert!(all.iter().any(|row| absent.covers(row)), "{}", absent.reason);
    }
}
