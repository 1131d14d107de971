//! Queue of backups: which may run, and which wait for which.
//!
//! The number of concurrent backups is limited, and no two of them may include the same namespace:
//! their hooks and snapshots would interfere. A backup may overtake waiting ones, but only if it
//! includes no namespace that one of those waits for.

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};

use bowline_api::BackupPhase;

/// Namespaces that a backup includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceScope {
    /// All namespaces.
    All,
    /// These namespaces.
    Only(BTreeSet<String>),
}

impl NamespaceScope {
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, Self::All) => true,
            (Self::All, Self::Only(some)) | (Self::Only(some), Self::All) => !some.is_empty(),
            (Self::Only(one), Self::Only(other)) => !one.is_disjoint(other),
        }
    }
}

/// Backup, as the queue sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// State of the backup.
    pub state: QueueState,
    /// Namespaces of the backup.
    pub scope: NamespaceScope,
}

/// State of a backup, as the queue sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// Just created.
    New,
    /// Waiting at this position.
    Queued(i64),
    /// Running, or permitted to start.
    Running,
    /// Not subject to the queue.
    NotQueued,
}

impl QueueState {
    /// State of a backup with this phase.
    pub fn of(phase: Option<&BackupPhase>, position: i64) -> Self {
        match phase {
            None | Some(BackupPhase::New) => Self::New,
            Some(BackupPhase::Queued) => Self::Queued(position),
            Some(BackupPhase::ReadyToStart | BackupPhase::InProgress) => Self::Running,
            Some(_) => Self::NotQueued,
        }
    }
}

/// Decision about a waiting backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Start.
    Start,
    /// Wait at this new position.
    Wait(i64),
    /// No change.
    Stay,
}

/// Number of positions that are kept exact. Backups further behind keep their first position, which
/// is too high by the number of backups that have left since: otherwise each start would cost one
/// write per waiting backup.
pub const EXACT_POSITIONS: i64 = 100;

/// Decides about each backup, given in the order of creation.
pub fn decide(entries: &[Entry], limit: usize) -> Vec<Decision> {
    decide_counted(entries, limit).0
}

/// Like [`decide`], and returns the number of namespaces examined.
fn decide_counted(entries: &[Entry], limit: usize) -> (Vec<Decision>, usize) {
    // Namespaces of running backups, and of those that wait further ahead.
    let mut reserved = ReservedNamespaces::default();
    let mut running = 0;
    for entry in entries.iter().filter(|entry| entry.state == QueueState::Running) {
        reserved.reserve(&entry.scope);
        running += 1;
    }
    let mut decisions = vec![Decision::Stay; entries.len()];
    // Queued backups keep their order; new ones follow.
    let mut waiting: Vec<usize> = (0..entries.len())
        .filter(|&index| matches!(entries[index].state, QueueState::New | QueueState::Queued(_)))
        .collect();
    waiting.sort_by_key(|&index| match entries[index].state {
        QueueState::Queued(position) => (0, position),
        _ => (1, 0),
    });
    let (mut exact, mut last) = (0, 0);
    for index in waiting {
        let Entry { state, scope } = &entries[index];
        let is_free = running < limit && !reserved.overlaps(scope);
        reserved.reserve(scope);
        // Velero's phases go through Queued, so a new backup is queued first.
        if is_free && matches!(state, QueueState::Queued(_)) {
            decisions[index] = Decision::Start;
            running += 1;
            continue;
        }
        exact += 1;
        let position = match *state {
            QueueState::Queued(position) if exact > EXACT_POSITIONS && position > last => position,
            // Behind all that are ahead, exact or not.
            _ => exact.max(last + 1),
        };
        last = position;
        if *state != QueueState::Queued(position) {
            decisions[index] = Decision::Wait(position);
        }
    }
    (decisions, reserved.examined.into_inner())
}

/// Union of the namespaces of several backups.
#[derive(Debug, Default)]
struct ReservedNamespaces<'a> {
    /// True if one of them includes all namespaces.
    covers_all: bool,
    names: HashSet<&'a str>,
    /// Number of namespaces examined.
    examined: Cell<usize>,
}

impl<'a> ReservedNamespaces<'a> {
    fn reserve(&mut self, scope: &'a NamespaceScope) {
        match scope {
            NamespaceScope::All => self.covers_all = true,
            NamespaceScope::Only(some) => {
                self.count_examined(some.len());
                self.names.extend(some.iter().map(String::as_str));
            }
        }
    }

    fn overlaps(&self, scope: &NamespaceScope) -> bool {
        match scope {
            NamespaceScope::All => self.covers_all || !self.names.is_empty(),
            NamespaceScope::Only(some) if self.covers_all => !some.is_empty(),
            NamespaceScope::Only(some) => {
                self.count_examined(some.len());
                some.iter().any(|name| self.names.contains(name.as_str()))
            }
        }
    }

    fn count_examined(&self, examined: usize) {
        self.examined.set(self.examined.get() + examined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Decision::{Start, Stay, Wait};

    fn decided(limit: usize, entries: &[(QueueState, &str)]) -> Vec<Decision> {
        let entries: Vec<Entry> = entries
            .iter()
            .map(|(state, scope)| Entry {
                state: *state,
                scope: match *scope {
                    "*" => NamespaceScope::All,
                    some => NamespaceScope::Only(
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
        assert_eq!(decided(1, &[(QueueState::New, "*")]), [Wait(1)]);
        assert_eq!(decided(1, &[(QueueState::Queued(1), "*")]), [Start]);
        assert_eq!(decided(1, &[(QueueState::Running, "*")]), [Stay]);
        assert_eq!(decided(1, &[(QueueState::NotQueued, "*")]), [Stay]);
    }

    #[test]
    fn running_backups_never_exceed_the_limit() {
        let queued = [
            (QueueState::Queued(1), "a"),
            (QueueState::Queued(2), "b"),
            (QueueState::Queued(3), "c"),
        ];
        assert_eq!(decided(2, &queued), [Start, Start, Wait(1)]);
        let running =
            [(QueueState::Running, "x"), (QueueState::Running, "y"), (QueueState::Queued(1), "a")];
        assert_eq!(decided(2, &running), [Stay, Stay, Stay]);
    }

    #[test]
    fn backups_of_the_same_namespace_wait_for_each_other() {
        assert_eq!(
            decided(4, &[(QueueState::Running, "a,b"), (QueueState::Queued(1), "b,c")]),
            [Stay, Stay]
        );
        assert_eq!(
            decided(4, &[(QueueState::Running, "*"), (QueueState::Queued(1), "b")]),
            [Stay, Stay]
        );
        assert_eq!(
            decided(4, &[(QueueState::Running, "a"), (QueueState::Queued(1), "b")]),
            [Stay, Start]
        );
        assert_eq!(
            decided(4, &[(QueueState::Running, "*"), (QueueState::Queued(1), "")]),
            [Stay, Start]
        );
    }

    #[test]
    fn later_backup_overtakes_only_backups_of_other_namespaces() {
        let queue = [
            (QueueState::Running, "a"),
            (QueueState::Queued(1), "a,b"),
            (QueueState::Queued(2), "b"),
            (QueueState::Queued(3), "c"),
        ];
        assert_eq!(decided(4, &queue), [Stay, Stay, Stay, Start]);
    }

    #[test]
    fn queue_positions_have_no_gaps_and_new_backups_come_last() {
        let queue =
            [(QueueState::New, "a"), (QueueState::Queued(4), "a"), (QueueState::Running, "a")];
        assert_eq!(decided(4, &queue), [Wait(2), Wait(1), Stay]);
    }

    #[test]
    fn queue_decisions_cost_linear_time() {
        let examined = |count: usize| {
            let entry = |number: usize| Entry {
                state: QueueState::Queued(i64::try_from(number).unwrap() + 1),
                scope: NamespaceScope::Only([format!("ns-{number}")].into()),
            };
            let entries: Vec<Entry> = (0..count).map(entry).collect();
            let (decisions, examined) = decide_counted(&entries, count);
            assert!(decisions.iter().all(|decision| *decision == Start));
            examined
        };
        // Each backup is compared with the namespaces of all others at once.
        assert_eq!([examined(1000), examined(5000)], [2 * 1000, 2 * 5000]);
    }

    #[test]
    fn start_updates_only_the_exact_positions() {
        let count = 5000;
        let queue: Vec<_> =
            (1..=count).map(|position| (QueueState::Queued(position), "a")).collect();
        let decisions = decided(1, &queue);
        assert_eq!(decisions[0], Start);
        let moved: Vec<_> = decisions.iter().filter(|one| matches!(one, Wait(_))).collect();
        assert_eq!(moved.len(), 100, "each costs a write");
        assert_eq!((moved[0], moved[99]), (&Wait(1), &Wait(100)));
        assert_eq!(decisions[101], Stay, "it says 102 and is 101");
    }

    #[test]
    fn newest_backup_has_the_last_position_behind_inexact_positions() {
        let mut queue: Vec<_> =
            (1..=150).map(|position| (QueueState::Queued(position + 50), "a")).collect();
        queue.push((QueueState::Running, "a"));
        queue.push((QueueState::New, "a"));
        queue.push((QueueState::New, "a"));
        let decisions = decided(1, &queue);
        assert_eq!(decisions[..2], [Wait(1), Wait(2)]);
        assert_eq!(decisions[100], Stay);
        assert_eq!(decisions[151..], [Wait(201), Wait(202)]);
    }
}
