//! Which backups may run, and which have to wait for which.
//!
//! At most so many run at a time, and no two that reach into the same namespace: their hooks and
//! snapshots would meet. A backup may overtake earlier ones that wait, but only where it does not
//! reach into a namespace that one of those waits for.

use std::collections::BTreeSet;

use bowline_api::BackupPhase;

/// The namespaces that a backup reaches into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All there are.
    All,
    /// These.
    Only(BTreeSet<String>),
}

impl Reach {
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, Self::All) => true,
            (Self::All, Self::Only(some)) | (Self::Only(some), Self::All) => !some.is_empty(),
            (Self::Only(one), Self::Only(other)) => !one.is_disjoint(other),
        }
    }
}

/// A backup, as far as the queue is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it is.
    pub stage: Stage,
    /// What it reaches into.
    pub reach: Reach,
}

/// Where a backup is, as far as the queue is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has just been made.
    New,
    /// It waits at this position.
    Queued(i64),
    /// It may start, or has.
    Running,
    /// The queue has nothing to do with it.
    Past,
}

impl Stage {
    /// The stage of a backup with a phase.
    pub fn of(phase: Option<&BackupPhase>, position: i64) -> Self {
        match phase {
            None | Some(BackupPhase::New) => Self::New,
            Some(BackupPhase::Queued) => Self::Queued(position),
            Some(BackupPhase::ReadyToStart | BackupPhase::InProgress) => Self::Running,
            Some(_) => Self::Past,
        }
    }
}

/// What is to be done with a backup that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may start.
    Start,
    /// It waits at this position, which it has not yet.
    Wait(i64),
    /// It stays where it is.
    Stay,
}

/// Decides for each backup, which come in the order in which they were made.
pub fn decide(entries: &[Entry], limit: usize) -> Vec<Decision> {
    let mut running: Vec<&Reach> = reaches(entries, |stage| stage == Stage::Running);
    let mut ahead: Vec<&Reach> = Vec::new();
    let mut decisions = vec![Decision::Stay; entries.len()];
    // Those that have a position keep their order; new ones follow.
    let mut waiting: Vec<usize> = (0..entries.len())
        .filter(|&index| matches!(entries[index].stage, Stage::New | Stage::Queued(_)))
        .collect();
    waiting.sort_by_key(|&index| match entries[index].stage {
        Stage::Queued(position) => (0, position),
        _ => (1, 0),
    });
    let mut position = 0;
    for index in waiting {
        let Entry { stage, reach } = &entries[index];
        let is_free =
            running.len() < limit && !running.iter().chain(&ahead).any(|other| other.meets(reach));
        // Velero's phases go through Queued, so a new one is queued first.
        if is_free && matches!(stage, Stage::Queued(_)) {
            decisions[index] = Decision::Start;
            running.push(reach);
            continue;
        }
        position += 1;
        ahead.push(reach);
        if *stage != Stage::Queued(position) {
            decisions[index] = Decision::Wait(position);
        }
    }
    decisions
}

fn reaches(entries: &[Entry], is_wanted: impl Fn(Stage) -> bool) -> Vec<&Reach> {
    entries.iter().filter(|entry| is_wanted(entry.stage)).map(|entry| &entry.reach).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Decision::{Start, Stay, Wait};

    fn decided(limit: usize, entries: &[(Stage, &str)]) -> Vec<Decision> {
        let entries: Vec<Entry> = entries
            .iter()
            .map(|(stage, reach)| Entry {
                stage: *stage,
                reach: match *reach {
                    "*" => Reach::All,
                    some => Reach::Only(
                        some.split(',')
                            .filter(|name| !name.is_empty())
                            .map(str::to_owned)
                            .collect(),
                    ),
                },
            })
            .collect();
        decide(&entries, limit)
    }

    #[test]
    fn a_backup_is_queued_and_then_started() {
        assert_eq!(decided(1, &[(Stage::New, "*")]), [Wait(1)]);
        assert_eq!(decided(1, &[(Stage::Queued(1), "*")]), [Start]);
        assert_eq!(decided(1, &[(Stage::Running, "*")]), [Stay]);
        assert_eq!(decided(1, &[(Stage::Past, "*")]), [Stay]);
    }

    #[test]
    fn no_more_run_than_the_limit_says() {
        let queued = [(Stage::Queued(1), "a"), (Stage::Queued(2), "b"), (Stage::Queued(3), "c")];
        assert_eq!(decided(2, &queued), [Start, Start, Wait(1)]);
        let running = [(Stage::Running, "x"), (Stage::Running, "y"), (Stage::Queued(1), "a")];
        assert_eq!(decided(2, &running), [Stay, Stay, Stay]);
    }

    #[test]
    fn backups_of_the_same_namespace_wait_for_each_other() {
        assert_eq!(decided(4, &[(Stage::Running, "a,b"), (Stage::Queued(1), "b,c")]), [Stay, Stay]);
        assert_eq!(decided(4, &[(Stage::Running, "*"), (Stage::Queued(1), "b")]), [Stay, Stay]);
        assert_eq!(decided(4, &[(Stage::Running, "a"), (Stage::Queued(1), "b")]), [Stay, Start]);
        assert_eq!(decided(4, &[(Stage::Running, "*"), (Stage::Queued(1), "")]), [Stay, Start]);
    }

    #[test]
    fn a_later_backup_overtakes_only_those_that_it_does_not_meet() {
        let queue = [
            (Stage::Running, "a"),
            (Stage::Queued(1), "a,b"),
            (Stage::Queued(2), "b"),
            (Stage::Queued(3), "c"),
        ];
        assert_eq!(decided(4, &queue), [Stay, Stay, Stay, Start]);
    }

    #[test]
    fn positions_are_closed_up_and_new_ones_come_last() {
        let queue = [(Stage::New, "a"), (Stage::Queued(4), "a"), (Stage::Running, "a")];
        assert_eq!(decided(4, &queue), [Wait(2), Wait(1), Stay]);
    }
}
