//! Targets of the kills, round by round.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use bowline_engine::failpoint::Failpoint;

/// Longest delay of a kill at a random time.
const MAX_RANDOM_DELAY: Duration = Duration::from_secs(2);

/// Failpoint that cannot be used on the command line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidPoint {
    #[error("there is no such point; there are {}", point_names())]
    Unknown,
    #[error(
        "nothing that counts is not backed up there; try journal-block-start or journal-block-end"
    )]
    NoSabotage,
}

fn point_names() -> String {
    let names: Vec<&str> = Failpoint::ALL.iter().map(|point| point.as_str()).collect();
    names.join(", ")
}

/// Failpoint with this name.
pub(crate) fn point(text: &str) -> Result<Failpoint, InvalidPoint> {
    let found = Failpoint::ALL.iter().find(|point| point.as_str() == text);
    found.copied().ok_or(InvalidPoint::Unknown)
}

/// Time at which a server is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillTarget {
    /// At the n-th passing of a failpoint.
    At(Failpoint, u32),
    /// At this time after its start.
    After(Duration),
}

/// Kills of one round, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoundPlan {
    pub(crate) number: u32,
    pub(crate) targets: Vec<KillTarget>,
    /// Outage after the first kill, until the pods are thawed.
    pub(crate) outage: Option<Outage>,
    /// Kills while its backups are deleted. None: the backups stay.
    pub(crate) deletion: Option<Vec<KillTarget>>,
    /// True if one of its backups is to be deleted from the first kill on, while it runs.
    pub(crate) deletes_running_backup: bool,
    pub(crate) snapshotter: SnapshotterMode,
}

/// Plugin that takes the snapshots of a round, and the writer of its VolumePluginBackups and VolumePluginRestores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SnapshotterMode {
    /// In two stages. The server writes them.
    #[default]
    ServerWrites,
    /// In two stages, and writes its own. The server learns the progress from calls.
    PluginWrites,
    /// In one stage, and writes its own, which are the server's only source of progress.
    OnlyPluginReports,
}

impl SnapshotterMode {
    /// All modes, in the order of rounds.
    const ALL: [Self; 3] = [Self::ServerWrites, Self::PluginWrites, Self::OnlyPluginReports];

    /// True if it uploads snapshots, and can be asked again for a snapshot without a known answer.
    pub(crate) fn is_v2(self) -> bool {
        self != Self::OnlyPluginReports
    }

    pub(crate) fn writes_resources(self) -> bool {
        self != Self::ServerWrites
    }
}

/// Outage during which a server must still thaw pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    /// The bucket does not answer.
    Bucket,
    /// The API server rejects new pages of journals, as with a full quota.
    Journal,
}

/// Stage of a run in which a failpoint is passed. A round has them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RunStage {
    Start,
    Blocks,
    /// Pods that were frozen when the server was killed are thawed by the next server.
    Thaw,
    Files,
    Operations,
    Commit,
    Over,
    /// Backups are deleted when all runs have ended.
    Deletion,
}

fn stage_of(point: Failpoint) -> RunStage {
    match point {
        // Restores end soon: a server that is not the first one is too late for these.
        Failpoint::BackupInProgress
        | Failpoint::RestoreInProgress
        | Failpoint::AttemptJournaled
        | Failpoint::CreateVolume
        | Failpoint::VolumeCreated
        | Failpoint::ClaimWatched
        | Failpoint::VolumesPatched
        | Failpoint::RestoreOver => RunStage::Start,
        Failpoint::JournalBlockStart
        | Failpoint::BlockStartJournaled
        | Failpoint::PreHook
        | Failpoint::Frozen
        | Failpoint::Execute
        | Failpoint::Executed
        | Failpoint::CreateSnapshot
        | Failpoint::SnapshotCreated
        | Failpoint::CsiSnapshotCreate
        | Failpoint::CsiSnapshotCreated
        | Failpoint::CsiSnapshotTaken
        | Failpoint::CsiSnapshotRecorded
        | Failpoint::PostHook
        | Failpoint::Thawed
        | Failpoint::StoreBlock
        | Failpoint::BlockStored
        | Failpoint::JournalBlockEnd
        | Failpoint::BlockEndJournaled
        | Failpoint::Create
        | Failpoint::Created => RunStage::Blocks,
        Failpoint::JournalThaw
        | Failpoint::ThawJournaled
        | Failpoint::Reclaim
        | Failpoint::SnapshotReclaimed => RunStage::Thaw,
        Failpoint::EndJournaled
        | Failpoint::ArchiveUploaded
        | Failpoint::FilesWritten
        | Failpoint::BackupCollected
        | Failpoint::RestoreFilesWritten
        | Failpoint::RestoreCollected => RunStage::Files,
        Failpoint::UploadSnapshot | Failpoint::SnapshotUploaded | Failpoint::OperationsWritten => {
            RunStage::Operations
        }
        Failpoint::BackupFinalizing
        | Failpoint::VolumesSettled
        | Failpoint::ArchiveReplaced
        | Failpoint::ResultsWritten
        | Failpoint::Commit
        | Failpoint::Committed
        | Failpoint::CsiContentRetained
        | Failpoint::CsiSnapshotReleased => RunStage::Commit,
        Failpoint::BackupOver | Failpoint::JournalRemoved => RunStage::Over,
        Failpoint::DeleteSnapshot
        | Failpoint::DeletionContentCreated
        | Failpoint::SnapshotDeleted
        | Failpoint::DeleteFiles
        | Failpoint::FilesDeleted
        | Failpoint::BackupRemoved => RunStage::Deletion,
    }
}

/// Number of times that a failpoint is passed in a round, to choose from.
fn hits_per_round(point: Failpoint) -> u32 {
    match point {
        Failpoint::PreHook | Failpoint::Frozen | Failpoint::PostHook | Failpoint::Thawed => 3,
        Failpoint::Create | Failpoint::Created => 6,
        Failpoint::CreateSnapshot
        | Failpoint::SnapshotCreated
        | Failpoint::UploadSnapshot
        | Failpoint::SnapshotUploaded
        | Failpoint::CsiSnapshotCreate
        | Failpoint::CsiSnapshotCreated
        | Failpoint::CsiSnapshotTaken
        | Failpoint::CsiSnapshotRecorded
        | Failpoint::CsiContentRetained
        | Failpoint::CsiSnapshotReleased
        | Failpoint::DeletionContentCreated
        | Failpoint::DeleteSnapshot
        | Failpoint::SnapshotDeleted => 4,
        Failpoint::RestoreOver => 1,
        _ if stage_of(point) == RunStage::Blocks => 10,
        _ => 2,
    }
}

/// True if a failpoint is passed only when a pod freezes.
fn needs_freeze(point: Failpoint) -> bool {
    use Failpoint::{Frozen, JournalThaw, PostHook, PreHook, ThawJournaled, Thawed};
    matches!(point, PreHook | Frozen | PostHook | Thawed | JournalThaw | ThawJournaled)
}

/// True if a failpoint is passed only with a snapshotter of version 2.
fn needs_v2(point: Failpoint) -> bool {
    use Failpoint::{Reclaim, SnapshotReclaimed, SnapshotUploaded, UploadSnapshot};
    matches!(point, UploadSnapshot | SnapshotUploaded | Reclaim | SnapshotReclaimed)
}

/// Makes plans. Failpoints that were not hit yet come first.
#[derive(Debug)]
pub(crate) struct Planner {
    seed: u64,
    random_count: u64,
    rounds: u32,
    sabotage: Option<Failpoint>,
    can_freeze: bool,
    /// Snapshotter of the round being planned.
    snapshotter: SnapshotterMode,
    /// Failpoints that were hit, or attempted often enough.
    hit_points: BTreeSet<Failpoint>,
}

impl Planner {
    pub(crate) fn new(seed: u64, sabotage: Option<Failpoint>, can_freeze: bool) -> Self {
        let snapshotter = SnapshotterMode::ServerWrites;
        Self {
            seed,
            random_count: 0,
            rounds: 0,
            sabotage,
            can_freeze,
            snapshotter,
            hit_points: BTreeSet::new(),
        }
    }

    /// Records that a failpoint was hit.
    pub(crate) fn mark_hit(&mut self, point: Failpoint) {
        self.hit_points.insert(point);
    }

    /// Next round, with so many kills at most.
    pub(crate) fn plan_round(&mut self, max_kills: u32) -> RoundPlan {
        let number = self.rounds;
        self.rounds += 1;
        if self.sabotage.is_none() {
            // So that rounds with an outage and with a reclaimed snapshot have all modes in turn, and the first of each
            // kind one that can be queried for a snapshot again.
            self.snapshotter =
                SnapshotterMode::ALL[(number as usize + 2) % SnapshotterMode::ALL.len()];
        }
        let outage = match number % 16 {
            0 => Some(Outage::Bucket),
            8 => Some(Outage::Journal),
            _ => None,
        };
        let outage = outage.filter(|_| self.sabotage.is_none() && self.can_freeze);
        let mut targets = if let Some(sabotage) = self.sabotage {
            self.sabotage_targets(sabotage, number)
        } else if outage.is_some() {
            vec![KillTarget::At(Failpoint::Frozen, 1)]
        } else {
            self.targets_across_run(number)
        };
        targets.truncate(max_kills as usize);
        // The leftovers of a sabotaged server stay for inspection.
        let deletion = self.sabotage.is_none().then(|| {
            let has_kills_remaining = targets.len() < max_kills as usize;
            has_kills_remaining.then(|| self.deletion_target(number)).into_iter().collect()
        });
        // In rounds whose first kill is in the blocks, when work can be lost.
        let cuts_short = self.sabotage.is_none() && number % 4 == 2;
        RoundPlan {
            number,
            targets,
            outage,
            deletion,
            deletes_running_backup: cuts_short,
            snapshotter: self.snapshotter,
        }
    }

    /// Two or three kills before or in the blocks, which a run is sure to survive, two behind, and now and then one at a
    /// random time.
    fn targets_across_run(&mut self, number: u32) -> Vec<KillTarget> {
        let first = match number % 16 {
            4 => self.random_time(),
            2 | 6 | 10 | 14 => self.pick_target(&[RunStage::Blocks]),
            _ if self.is_stage_covered(RunStage::Start) => {
                self.pick_target(&[RunStage::Start, RunStage::Blocks])
            }
            _ => self.pick_target(&[RunStage::Start]),
        };
        let second = match number % 16 {
            3 => KillTarget::At(Failpoint::CsiSnapshotCreated, 1 + self.random_below(2)),
            5 => KillTarget::At(Failpoint::SnapshotCreated, 1 + self.random_below(2)),
            // Each failpoint that follows only a kill at one instant has its own round.
            7 => KillTarget::At(self.thaw_point_or_executed(Failpoint::JournalThaw), 1),
            9 => KillTarget::At(self.thaw_point_or_executed(Failpoint::ThawJournaled), 1),
            // A running backup is deleted in this round, and so ends before its time.
            10 => KillTarget::At(Failpoint::EndJournaled, 1),
            11 if self.snapshotter.is_v2() => KillTarget::At(Failpoint::Reclaim, 1),
            13 if self.snapshotter.is_v2() => KillTarget::At(Failpoint::SnapshotReclaimed, 1),
            _ => self.pick_target(&[RunStage::Blocks, RunStage::Thaw]),
        };
        let mut targets = vec![first];
        match second {
            // Only a frozen pod is thawed.
            KillTarget::At(Failpoint::JournalThaw | Failpoint::ThawJournaled, _) => {
                targets.push(KillTarget::At(Failpoint::Frozen, 1));
            }
            // Only a snapshot that was never reported is requested again.
            KillTarget::At(Failpoint::Reclaim | Failpoint::SnapshotReclaimed, _) => {
                targets.push(KillTarget::At(Failpoint::SnapshotCreated, 1));
            }
            _ => {}
        }
        // A third one, until each failpoint of the blocks was hit.
        if Self::stage_order(&second) == RunStage::Blocks
            && !self.is_stage_covered(RunStage::Blocks)
        {
            targets.push(self.pick_target(&[RunStage::Blocks]));
        }
        targets.push(second);
        if let KillTarget::At(Failpoint::SnapshotCreated | Failpoint::CsiSnapshotCreated, _) =
            second
        {
            // The next server deletes snapshots that it does not know: it can be killed there, too.
            let points = [Failpoint::DeleteSnapshot, Failpoint::SnapshotDeleted];
            targets.push(KillTarget::At(points[self.random_below(2) as usize], 1));
        }
        let mut late = if number.is_multiple_of(2) {
            let behind = [RunStage::Operations, RunStage::Commit, RunStage::Over];
            vec![self.pick_target(&[RunStage::Files]), self.pick_target(&behind)]
        } else {
            let last = self.pick_target(&[RunStage::Commit, RunStage::Over]);
            vec![self.pick_target(&[RunStage::Operations, RunStage::Commit]), last]
        };
        late.sort_by_key(Self::stage_order);
        late.dedup();
        targets.extend(late);
        targets
    }

    /// Failpoint of the thaw, or one in the blocks where no pod can be frozen.
    fn thaw_point_or_executed(&self, point: Failpoint) -> Failpoint {
        if self.can_freeze { point } else { Failpoint::Executed }
    }

    /// Kill while backups are deleted, now and then at a random time.
    fn deletion_target(&mut self, number: u32) -> KillTarget {
        if number % 6 == 5 { self.random_time() } else { self.pick_target(&[RunStage::Deletion]) }
    }

    /// True if every failpoint of a stage was hit.
    fn is_stage_covered(&self, wanted: RunStage) -> bool {
        let mut of_stage = Failpoint::ALL.iter().filter(|&&point| stage_of(point) == wanted);
        of_stage.all(|point| self.hit_points.contains(point))
    }

    fn random_time(&mut self) -> KillTarget {
        KillTarget::After(MAX_RANDOM_DELAY.mul_f64(f64::from(self.random_below(1000)) / 1000.0))
    }

    fn stage_order(target: &KillTarget) -> RunStage {
        match target {
            KillTarget::At(point, _) => stage_of(*point),
            KillTarget::After(_) => RunStage::Start,
        }
    }

    /// Kills right after the step that was left out.
    fn sabotage_targets(&mut self, sabotage: Failpoint, number: u32) -> Vec<KillTarget> {
        let first = |point| KillTarget::At(point, 1);
        match (sabotage, number % 4) {
            (Failpoint::JournalBlockEnd, _) => {
                vec![first(Failpoint::ArchiveUploaded), first(Failpoint::FilesWritten)]
            }
            (_, 0) => vec![first(Failpoint::SnapshotCreated)],
            (_, 1) => vec![first(Failpoint::VolumeCreated)],
            (_, 2) => vec![first(Failpoint::CsiSnapshotCreated)],
            _ => {
                let frozen = self.can_freeze.then_some(first(Failpoint::Frozen));
                let executed = KillTarget::At(Failpoint::Executed, 1 + self.random_below(4));
                frozen.into_iter().chain([executed]).collect()
            }
        }
    }

    /// Failpoint of some stages: one that was not hit yet at its first passing, else any at any passing.
    fn pick_target(&mut self, stages: &[RunStage]) -> KillTarget {
        let of_stages: Vec<Failpoint> = Failpoint::ALL
            .iter()
            .copied()
            .filter(|&point| stages.contains(&stage_of(point)))
            .filter(|&point| self.can_freeze || !needs_freeze(point))
            .filter(|&point| self.snapshotter.is_v2() || !needs_v2(point))
            // It has a round of its own.
            .filter(|&point| point != Failpoint::EndJournaled)
            .collect();
        let fresh: Vec<Failpoint> =
            of_stages.iter().copied().filter(|point| !self.hit_points.contains(point)).collect();
        let from = if fresh.is_empty() { &of_stages } else { &fresh };
        let point = from[self.random_below(u32::try_from(from.len()).unwrap_or(1)) as usize];
        let passing =
            if fresh.is_empty() { 1 + self.random_below(hits_per_round(point)) } else { 1 };
        KillTarget::At(point, passing)
    }

    /// Number below `end`, which is not zero.
    fn random_below(&mut self, end: u32) -> u32 {
        let mut hasher = DefaultHasher::new();
        (self.seed, self.random_count).hash(&mut hasher);
        self.random_count += 1;
        u32::try_from(hasher.finish() % u64::from(end)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Failpoints of so many kills.
    fn planned_points(planner: &mut Planner, kills: usize) -> BTreeSet<Failpoint> {
        let mut points = BTreeSet::new();
        let mut count = 0;
        while count < kills {
            let RoundPlan { targets, deletion, .. } = planner.plan_round(100);
            for target in targets.into_iter().chain(deletion.into_iter().flatten()) {
                count += 1;
                if let KillTarget::At(point, _) = target {
                    planner.mark_hit(point);
                    points.insert(point);
                }
            }
        }
        points
    }

    #[test]
    fn every_failpoint_is_planned_within_cis_kills() {
        for seed in 0..200 {
            let found = planned_points(&mut Planner::new(seed, None, true), 110);
            let missing: Vec<_> =
                Failpoint::ALL.iter().filter(|one| !found.contains(one)).collect();
            assert!(missing.is_empty(), "seed {seed}: {missing:?}");
        }
    }

    #[test]
    fn no_freeze_points_are_planned_without_a_node() {
        let found = planned_points(&mut Planner::new(1, None, false), 200);
        assert!(found.iter().all(|&point| !needs_freeze(point)), "{found:?}");
    }

    #[test]
    fn plan_depends_only_on_the_seed() {
        let plans = |seed| {
            let mut planner = Planner::new(seed, None, true);
            (0..5).map(|_| planner.plan_round(100)).collect::<Vec<_>>()
        };
        assert_eq!(plans(1), plans(1));
        assert_ne!(plans(1), plans(2));
    }

    #[test]
    fn round_follows_the_stages_of_a_run_and_respects_the_kill_limit() {
        let mut planner = Planner::new(3, None, true);
        for _ in 0..40 {
            let RoundPlan { targets, deletion, .. } = planner.plan_round(6);
            let deletion = deletion.unwrap();
            assert!(!targets.is_empty() && targets.len() + deletion.len() <= 6, "{targets:?}");
            let is_late = |target: &KillTarget| {
                matches!(target, KillTarget::After(_))
                    || Planner::stage_order(target) == RunStage::Deletion
            };
            assert!(deletion.iter().all(is_late), "{deletion:?}");
            let is_of_life =
                |target: &&KillTarget| Planner::stage_order(target) != RunStage::Deletion;
            let late = targets.iter().skip(2).filter(is_of_life);
            assert!(late.is_sorted_by_key(Planner::stage_order), "{targets:?}");
            for pair in targets.windows(2) {
                match pair[1] {
                    KillTarget::At(Failpoint::JournalThaw, _) => {
                        assert_eq!(pair[0], KillTarget::At(Failpoint::Frozen, 1));
                    }
                    KillTarget::At(Failpoint::DeleteSnapshot | Failpoint::SnapshotDeleted, _) => {
                        let has_snapshot_kill = matches!(
                            pair[0],
                            KillTarget::At(
                                Failpoint::SnapshotCreated | Failpoint::CsiSnapshotCreated,
                                _
                            )
                        );
                        assert!(has_snapshot_kill, "{targets:?}");
                    }
                    _ => {}
                }
            }
        }
        let last = planner.plan_round(1);
        assert_eq!((last.targets.len(), last.deletion), (1, Some(Vec::new())));
    }

    #[test]
    fn running_backup_is_deleted_when_killed_in_its_blocks() {
        let mut planner = Planner::new(1, None, true);
        let plans = [(); 20].map(|()| planner.plan_round(6));
        let cut: Vec<&RoundPlan> =
            plans.iter().filter(|plan| plan.deletes_running_backup).collect();
        assert_eq!(cut.len(), 5);
        for plan in cut {
            assert!(
                plan.outage.is_none() && Planner::stage_order(&plan.targets[0]) == RunStage::Blocks
            );
        }
    }

    #[test]
    fn both_outages_are_planned_within_cis_kills() {
        let mut planner = Planner::new(1, None, true);
        let outages: Vec<Outage> = (0..16).filter_map(|_| planner.plan_round(6).outage).collect();
        assert_eq!(outages, [Outage::Bucket, Outage::Journal]);
    }

    #[test]
    fn every_snapshotter_mode_is_planned_without_unreachable_points() {
        let mut planner = Planner::new(1, None, true);
        let plans = [(); 48].map(|()| planner.plan_round(6));
        for snapshotter in SnapshotterMode::ALL {
            let mut of = plans.iter().filter(|plan| plan.snapshotter == snapshotter);
            assert_eq!(of.clone().count(), 16, "{snapshotter:?}");
            assert!(of.clone().any(|plan| plan.outage == Some(Outage::Bucket)));
            assert!(of.clone().any(|plan| plan.deletes_running_backup));
            let at_v2 = |target: &KillTarget| matches!(target, KillTarget::At(point, _) if needs_v2(*point));
            let is_killed = of.any(|plan| plan.targets.iter().any(at_v2));
            assert_eq!(is_killed, snapshotter.is_v2(), "{snapshotter:?}");
        }
    }

    #[test]
    fn sabotage_shows_within_five_kills_and_nothing_is_deleted() {
        let mut planner = Planner::new(1, Some(Failpoint::JournalBlockStart), true);
        let plans = [(); 4].map(|()| planner.plan_round(5));
        assert!(
            plans.iter().all(|plan| plan.deletion.is_none() && !plan.deletes_running_backup),
            "{plans:?}"
        );
        // Everything that can be lost is lost within five kills.
        assert_eq!(plans.map(|plan| plan.targets.len()), [1, 1, 1, 2]);
    }

    #[test]
    fn failpoints_are_found_by_name() {
        assert_eq!(point("journal-block-start"), Ok(Failpoint::JournalBlockStart));
        assert!(point("lunch").unwrap_err().to_string().contains("journal-block-start"));
    }
}
