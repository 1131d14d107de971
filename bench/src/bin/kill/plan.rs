//! Where the server is killed, round by round.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use bowline_engine::point::Point;

/// How long a kill at a random time is waited for, at most.
const LATEST: Duration = Duration::from_secs(2);

/// The point of a name.
pub(crate) fn point(text: &str) -> Result<Point, String> {
    let found = Point::ALL.iter().find(|point| point.as_str() == text);
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = Point::ALL.iter().map(|point| point.as_str()).collect();
        format!("there is no such point; there are {}", names.join(", "))
    })
}

/// When a server is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// When it passes a point for the n-th time.
    At(Point, u32),
    /// So long after its start.
    After(Duration),
}

/// The kills of one round, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) number: u32,
    pub(crate) targets: Vec<Target>,
    /// Out of reach after the first kill, until the pods are thawed.
    pub(crate) outage: Option<Outage>,
    /// The kills while its backups are deleted. None: they stay.
    pub(crate) deletion: Option<Vec<Target>>,
    /// One of its backups is to be deleted from the first kill on, while it runs.
    pub(crate) cuts_short: bool,
    pub(crate) snapshotter: Snapshotter,
}

/// The plugin that takes the snapshots of a round, and who writes the VolumePluginBackups and
/// VolumePluginRestores for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Snapshotter {
    /// In two stages. The server writes them.
    #[default]
    ServerWrites,
    /// In two stages, and writes its own. The server knows from calls how it goes.
    PluginWrites,
    /// In one stage, and writes its own, from which alone the server knows how it goes.
    OnlyPluginKnows,
}

impl Snapshotter {
    /// All of them, in the order of rounds.
    const ALL: [Self; 3] = [Self::ServerWrites, Self::PluginWrites, Self::OnlyPluginKnows];

    /// Whether it uploads snapshots, and can be asked again for one that nobody has heard of.
    pub(crate) fn is_v2(self) -> bool {
        self != Self::OnlyPluginKnows
    }

    pub(crate) fn writes_resources(self) -> bool {
        self != Self::ServerWrites
    }
}

/// Something that a server does without for a while. Pods must be thawed all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    /// The bucket does not answer.
    Bucket,
    /// The API server refuses new pages of journals, as a full quota does.
    Journal,
}

/// Where in the life of a run a point is passed. A round goes through them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Start,
    Blocks,
    /// Pods are thawed by the server that comes after one that was killed while they were frozen.
    Thaw,
    Files,
    Operations,
    Commit,
    Over,
    /// Backups are deleted when all runs are over.
    Deletion,
}

fn stage(point: Point) -> Stage {
    match point {
        // Restores are over soon: a server that is not the first one is too late for that.
        Point::BackupInProgress
        | Point::RestoreInProgress
        | Point::Attempt
        | Point::CreateVolume
        | Point::VolumeCreated
        | Point::ClaimFollowed
        | Point::VolumesPatched
        | Point::RestoreOver => Stage::Start,
        Point::NoteBegun
        | Point::Begun
        | Point::PreHook
        | Point::Frozen
        | Point::Execute
        | Point::Executed
        | Point::CreateSnapshot
        | Point::SnapshotCreated
        | Point::CsiSnapshotCreate
        | Point::CsiSnapshotCreated
        | Point::CsiSnapshotTaken
        | Point::CsiSnapshotNoted
        | Point::PostHook
        | Point::Thawed
        | Point::Keep
        | Point::Kept
        | Point::NoteEnded
        | Point::Ended
        | Point::Create
        | Point::Created => Stage::Blocks,
        Point::NoteThawed | Point::ThawNoted | Point::Reclaim | Point::SnapshotReclaimed => {
            Stage::Thaw
        }
        Point::ArchiveUploaded
        | Point::FilesWritten
        | Point::BackupCollected
        | Point::RestoreFilesWritten
        | Point::RestoreCollected => Stage::Files,
        Point::UploadSnapshot | Point::SnapshotUploaded | Point::OperationsWritten => {
            Stage::Operations
        }
        Point::BackupFinalizing
        | Point::VolumesSettled
        | Point::ArchiveReplaced
        | Point::ResultsWritten
        | Point::Commit
        | Point::Committed
        | Point::CsiContentKept
        | Point::CsiSnapshotReleased => Stage::Commit,
        Point::BackupOver | Point::JournalRemoved => Stage::Over,
        Point::DeleteSnapshot
        | Point::ContentMade
        | Point::SnapshotDeleted
        | Point::DeleteFiles
        | Point::FilesDeleted
        | Point::BackupRemoved => Stage::Deletion,
    }
}

/// How often a point is passed in a round, so that there is a choice.
fn passings(point: Point) -> u32 {
    match point {
        Point::PreHook | Point::Frozen | Point::PostHook | Point::Thawed => 3,
        Point::Create | Point::Created => 6,
        Point::CreateSnapshot
        | Point::SnapshotCreated
        | Point::UploadSnapshot
        | Point::SnapshotUploaded
        | Point::CsiSnapshotCreate
        | Point::CsiSnapshotCreated
        | Point::CsiSnapshotTaken
        | Point::CsiSnapshotNoted
        | Point::CsiContentKept
        | Point::CsiSnapshotReleased
        | Point::ContentMade
        | Point::DeleteSnapshot
        | Point::SnapshotDeleted => 4,
        Point::RestoreOver => 1,
        _ if stage(point) == Stage::Blocks => 10,
        _ => 2,
    }
}

/// Whether a pod must freeze for a point to be passed.
fn needs_freeze(point: Point) -> bool {
    use Point::{Frozen, NoteThawed, PostHook, PreHook, ThawNoted, Thawed};
    matches!(point, PreHook | Frozen | PostHook | Thawed | NoteThawed | ThawNoted)
}

/// Whether the snapshotter must be of version 2 for a point to be passed.
fn needs_v2(point: Point) -> bool {
    use Point::{Reclaim, SnapshotReclaimed, SnapshotUploaded, UploadSnapshot};
    matches!(point, UploadSnapshot | SnapshotUploaded | Reclaim | SnapshotReclaimed)
}

/// Makes plans. Points that were not hit yet come first.
#[derive(Debug)]
pub(crate) struct Planner {
    seed: u64,
    rolled: u64,
    rounds: u32,
    sabotage: Option<Point>,
    can_freeze: bool,
    /// That of the round that is planned.
    snapshotter: Snapshotter,
    /// What was hit, or tried often enough.
    done: BTreeSet<Point>,
}

impl Planner {
    pub(crate) fn new(seed: u64, sabotage: Option<Point>, can_freeze: bool) -> Self {
        let snapshotter = Snapshotter::ServerWrites;
        Self {
            seed,
            rolled: 0,
            rounds: 0,
            sabotage,
            can_freeze,
            snapshotter,
            done: BTreeSet::new(),
        }
    }

    /// Says that a point was hit.
    pub(crate) fn hit(&mut self, point: Point) {
        self.done.insert(point);
    }

    /// The next round, with so many kills at most.
    pub(crate) fn round(&mut self, most: u32) -> Plan {
        let number = self.rounds;
        self.rounds += 1;
        if self.sabotage.is_none() {
            // So that rounds with an outage and with a reclaimed snapshot have all of them in turn, and the first of
            // each kind one that can be asked for a snapshot again.
            self.snapshotter = Snapshotter::ALL[(number as usize + 2) % Snapshotter::ALL.len()];
        }
        let outage = match number % 16 {
            0 => Some(Outage::Bucket),
            8 => Some(Outage::Journal),
            _ => None,
        };
        let outage = outage.filter(|_| self.sabotage.is_none() && self.can_freeze);
        let mut targets = if let Some(sabotage) = self.sabotage {
            self.where_it_shows(sabotage, number)
        } else if outage.is_some() {
            vec![Target::At(Point::Frozen, 1)]
        } else {
            self.through_a_life(number)
        };
        targets.truncate(most as usize);
        // What a sabotaged server has done stays for whoever wants to look.
        let deletion = self.sabotage.is_none().then(|| {
            let is_left = targets.len() < most as usize;
            is_left.then(|| self.of_deletion(number)).into_iter().collect()
        });
        // In rounds whose first kill is in the blocks, when there is something to lose.
        let cuts_short = self.sabotage.is_none() && number % 4 == 2;
        Plan { number, targets, outage, deletion, cuts_short, snapshotter: self.snapshotter }
    }

    /// Two kills before or in the blocks, which a run is sure to survive, two behind, and now and then one
    /// at any time.
    fn through_a_life(&mut self, number: u32) -> Vec<Target> {
        let first = match number % 16 {
            4 => self.at_any_time(),
            2 | 6 | 10 | 14 => self.pick(&[Stage::Blocks]),
            _ if self.is_done(Stage::Start) => self.pick(&[Stage::Start, Stage::Blocks]),
            _ => self.pick(&[Stage::Start]),
        };
        let second = match number % 16 {
            3 => Target::At(Point::CsiSnapshotCreated, 1 + self.below(2)),
            5 => Target::At(Point::SnapshotCreated, 1 + self.below(2)),
            // Of what follows a kill at one instant only, each has its round.
            7 => Target::At(self.thaw_or(Point::NoteThawed), 1),
            9 => Target::At(self.thaw_or(Point::ThawNoted), 1),
            11 if self.snapshotter.is_v2() => Target::At(Point::Reclaim, 1),
            13 if self.snapshotter.is_v2() => Target::At(Point::SnapshotReclaimed, 1),
            _ => self.pick(&[Stage::Blocks, Stage::Thaw]),
        };
        let mut targets = vec![first];
        match second {
            // Only somebody who is frozen is thawed.
            Target::At(Point::NoteThawed | Point::ThawNoted, _) => {
                targets.push(Target::At(Point::Frozen, 1));
            }
            // Only what nobody has heard of is asked for again.
            Target::At(Point::Reclaim | Point::SnapshotReclaimed, _) => {
                targets.push(Target::At(Point::SnapshotCreated, 1));
            }
            _ => {}
        }
        targets.push(second);
        if let Target::At(Point::SnapshotCreated | Point::CsiSnapshotCreated, _) = second {
            // The next server takes back what it does not know: also there it can be killed.
            let points = [Point::DeleteSnapshot, Point::SnapshotDeleted];
            targets.push(Target::At(points[self.below(2) as usize], 1));
        }
        let mut late = if number.is_multiple_of(2) {
            let behind = [Stage::Operations, Stage::Commit, Stage::Over];
            vec![self.pick(&[Stage::Files]), self.pick(&behind)]
        } else {
            let last = self.pick(&[Stage::Commit, Stage::Over]);
            vec![self.pick(&[Stage::Operations, Stage::Commit]), last]
        };
        late.sort_by_key(Self::order);
        late.dedup();
        targets.extend(late);
        targets
    }

    /// A point of thawing, or one in the blocks where nobody can be frozen.
    fn thaw_or(&self, point: Point) -> Point {
        if self.can_freeze { point } else { Point::Executed }
    }

    /// A kill while backups are deleted, now and then at any time.
    fn of_deletion(&mut self, number: u32) -> Target {
        if number % 6 == 5 { self.at_any_time() } else { self.pick(&[Stage::Deletion]) }
    }

    /// Whether every point of a stage was hit.
    fn is_done(&self, wanted: Stage) -> bool {
        let mut of_stage = Point::ALL.iter().filter(|&&point| stage(point) == wanted);
        of_stage.all(|point| self.done.contains(point))
    }

    fn at_any_time(&mut self) -> Target {
        Target::After(LATEST.mul_f64(f64::from(self.below(1000)) / 1000.0))
    }

    fn order(target: &Target) -> Stage {
        match target {
            Target::At(point, _) => stage(*point),
            Target::After(_) => Stage::Start,
        }
    }

    /// Kills right behind what was left out.
    fn where_it_shows(&mut self, sabotage: Point, number: u32) -> Vec<Target> {
        let first = |point| Target::At(point, 1);
        match (sabotage, number % 4) {
            (Point::NoteEnded, _) => {
                vec![first(Point::ArchiveUploaded), first(Point::FilesWritten)]
            }
            (_, 0) => vec![first(Point::SnapshotCreated)],
            (_, 1) => vec![first(Point::VolumeCreated)],
            (_, 2) => vec![first(Point::CsiSnapshotCreated)],
            _ => {
                let frozen = self.can_freeze.then_some(first(Point::Frozen));
                let executed = Target::At(Point::Executed, 1 + self.below(4));
                frozen.into_iter().chain([executed]).collect()
            }
        }
    }

    /// A point of some stages: one that was not hit yet at its first passing, else any at any.
    fn pick(&mut self, stages: &[Stage]) -> Target {
        let of_stages: Vec<Point> = Point::ALL
            .iter()
            .copied()
            .filter(|&point| stages.contains(&stage(point)))
            .filter(|&point| self.can_freeze || !needs_freeze(point))
            .filter(|&point| self.snapshotter.is_v2() || !needs_v2(point))
            .collect();
        let fresh: Vec<Point> =
            of_stages.iter().copied().filter(|point| !self.done.contains(point)).collect();
        let from = if fresh.is_empty() { &of_stages } else { &fresh };
        let point = from[self.below(u32::try_from(from.len()).unwrap_or(1)) as usize];
        let passing = if fresh.is_empty() { 1 + self.below(passings(point)) } else { 1 };
        Target::At(point, passing)
    }

    /// A number below `end`, which is not zero.
    fn below(&mut self, end: u32) -> u32 {
        let mut hasher = DefaultHasher::new();
        (self.seed, self.rolled).hash(&mut hasher);
        self.rolled += 1;
        u32::try_from(hasher.finish() % u64::from(end)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The points of so many kills.
    fn points(planner: &mut Planner, kills: usize) -> BTreeSet<Point> {
        let mut points = BTreeSet::new();
        let mut count = 0;
        while count < kills {
            let Plan { targets, deletion, .. } = planner.round(100);
            for target in targets.into_iter().chain(deletion.into_iter().flatten()) {
                count += 1;
                if let Target::At(point, _) = target {
                    planner.hit(point);
                    points.insert(point);
                }
            }
        }
        points
    }

    #[test]
    fn every_point_is_planned_for_within_the_kills_of_ci() {
        for seed in 0..20 {
            let found = points(&mut Planner::new(seed, None, true), 110);
            let missing: Vec<_> = Point::ALL.iter().filter(|one| !found.contains(one)).collect();
            assert!(missing.is_empty(), "seed {seed}: {missing:?}");
        }
    }

    #[test]
    fn nobody_is_frozen_where_nobody_can_be() {
        let found = points(&mut Planner::new(1, None, false), 200);
        assert!(found.iter().all(|&point| !needs_freeze(point)), "{found:?}");
    }

    #[test]
    fn the_same_seed_makes_the_same_plan_and_others_another() {
        let plans = |seed| {
            let mut planner = Planner::new(seed, None, true);
            (0..5).map(|_| planner.round(100)).collect::<Vec<_>>()
        };
        assert_eq!(plans(1), plans(1));
        assert_ne!(plans(1), plans(2));
    }

    #[test]
    fn a_round_follows_the_life_of_a_run_and_has_no_more_kills_than_are_wanted() {
        let mut planner = Planner::new(3, None, true);
        for _ in 0..40 {
            let Plan { targets, deletion, .. } = planner.round(6);
            let deletion = deletion.unwrap();
            assert!(!targets.is_empty() && targets.len() + deletion.len() <= 6, "{targets:?}");
            let is_late = |target: &Target| {
                matches!(target, Target::After(_)) || Planner::order(target) == Stage::Deletion
            };
            assert!(deletion.iter().all(is_late), "{deletion:?}");
            let is_of_life = |target: &&Target| Planner::order(target) != Stage::Deletion;
            let late = targets.iter().skip(2).filter(is_of_life);
            assert!(late.is_sorted_by_key(Planner::order), "{targets:?}");
            for pair in targets.windows(2) {
                match pair[1] {
                    Target::At(Point::NoteThawed, _) => {
                        assert_eq!(pair[0], Target::At(Point::Frozen, 1));
                    }
                    Target::At(Point::DeleteSnapshot | Point::SnapshotDeleted, _) => {
                        let is_taken = matches!(
                            pair[0],
                            Target::At(Point::SnapshotCreated | Point::CsiSnapshotCreated, _)
                        );
                        assert!(is_taken, "{targets:?}");
                    }
                    _ => {}
                }
            }
        }
        let last = planner.round(1);
        assert_eq!((last.targets.len(), last.deletion), (1, Some(Vec::new())));
    }

    #[test]
    fn a_backup_is_cut_short_where_it_is_killed_in_its_blocks() {
        let mut planner = Planner::new(1, None, true);
        let plans = [(); 20].map(|()| planner.round(6));
        let cut: Vec<&Plan> = plans.iter().filter(|plan| plan.cuts_short).collect();
        assert_eq!(cut.len(), 5);
        for plan in cut {
            assert!(plan.outage.is_none() && Planner::order(&plan.targets[0]) == Stage::Blocks);
        }
    }

    #[test]
    fn both_outages_are_planned_for_within_the_kills_of_ci() {
        let mut planner = Planner::new(1, None, true);
        let outages: Vec<Outage> = (0..16).filter_map(|_| planner.round(6).outage).collect();
        assert_eq!(outages, [Outage::Bucket, Outage::Journal]);
    }

    #[test]
    fn every_snapshotter_has_its_turn_and_is_not_killed_where_it_does_nothing() {
        let mut planner = Planner::new(1, None, true);
        let plans = [(); 48].map(|()| planner.round(6));
        for snapshotter in Snapshotter::ALL {
            let mut of = plans.iter().filter(|plan| plan.snapshotter == snapshotter);
            assert_eq!(of.clone().count(), 16, "{snapshotter:?}");
            assert!(of.clone().any(|plan| plan.outage == Some(Outage::Bucket)));
            assert!(of.clone().any(|plan| plan.cuts_short));
            let at_v2 =
                |target: &Target| matches!(target, Target::At(point, _) if needs_v2(*point));
            let is_killed = of.any(|plan| plan.targets.iter().any(at_v2));
            assert_eq!(is_killed, snapshotter.is_v2(), "{snapshotter:?}");
        }
    }

    #[test]
    fn sabotage_is_shown_in_five_kills_and_not_deleted() {
        let mut planner = Planner::new(1, Some(Point::NoteBegun), true);
        let plans = [(); 4].map(|()| planner.round(5));
        assert!(plans.iter().all(|plan| plan.deletion.is_none() && !plan.cuts_short), "{plans:?}");
        // All that can be lost is, within five kills.
        assert_eq!(plans.map(|plan| plan.targets.len()), [1, 1, 1, 2]);
    }

    #[test]
    fn points_are_found_by_name() {
        assert_eq!(point("note-begun"), Ok(Point::NoteBegun));
        assert!(point("lunch").unwrap_err().contains("note-begun"));
    }
}
