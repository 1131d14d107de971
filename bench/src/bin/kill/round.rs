//! One round: starts runs, kills servers during them until the plan is done, and then determines the cost. At the end
//! it deletes the backups, and kills servers during that.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use bowline_api::DeleteBackupRequest;
use bowline_api::delete_backup_request::DeleteBackupRequestPhase as Phase;
use kube::api::ListParams;
use tokio::time::Instant;

use crate::check;
use crate::evidence::{RunKind, RunStatus, RunUnderTest, csi, resources, volumes};
use crate::kill_runner::{KillRunner, WaitOutcome, wait_while_running};
use crate::plan::{KillTarget, Outage, Planner, RoundPlan, SnapshotterMode};
use crate::print_line;
use crate::report::Totals;
use crate::world::{APPS, POLL_INTERVAL, World};

/// Longest time for one server to complete all runs.
const SERVER_TIMEOUT: Duration = Duration::from_mins(2);
/// Longest freeze of pods after a restart.
const THAW_TIMEOUT: Duration = Duration::from_mins(1);
/// Longest time for which the journal of a run may exist after its end.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of kills that a run is sure to survive while its items are processed.
const SURVIVABLE_KILLS: usize = 3;

struct Round<'a> {
    world: &'a World,
    subjects: Vec<RunUnderTest>,
    /// Number of lines that each pod had recorded before.
    hook_lines_before: Vec<usize>,
}

/// Runs a round.
pub(crate) async fn run(
    world: &World,
    plan: &RoundPlan,
    planner: &mut Planner,
    totals: &mut Totals,
) -> anyhow::Result<()> {
    world.set_snapshotter(plan.snapshotter).await?;
    let mut round = Round::start(world, plan.number, plan.snapshotter).await?;
    let mut targets = plan.targets.iter().copied();
    let mut killer = KillRunner { world, planner, totals, limit: SERVER_TIMEOUT };
    let mut kills = 0;
    loop {
        let statuses = round.statuses().await?;
        if kills > 0
            && statuses.iter().all(RunStatus::is_terminal)
            && world.journals().await?.is_empty()
        {
            break;
        }
        let is_safe =
            kills < SURVIVABLE_KILLS || !statuses.iter().any(RunStatus::is_before_or_at_items);
        if !is_safe && targets.len() > 0 {
            // The server must get beyond the items before the next kill.
            let mut server = world.start(None)?;
            let are_through =
                async || Ok(!round.statuses().await?.iter().any(RunStatus::is_before_or_at_items));
            match wait_while_running(world, &mut server, SERVER_TIMEOUT, are_through).await? {
                WaitOutcome::Done => killer.count_random_kill(),
                outcome => bail!("runs do not get beyond their items: {outcome:?}"),
            }
            server.kill()?;
        } else if let Some(target) = targets.next() {
            let mut over_since = None;
            let are_over = async || round.have_all_ended(&mut over_since).await;
            if !killer.run_and_kill(target, are_over).await? {
                // The failpoint was not reached again.
                break;
            }
        } else {
            round.run_to_completion().await?;
            break;
        }
        kills += 1;
        for subject in &mut round.subjects {
            subject.record_progress(world)?;
        }
        if let Some(outage) = plan.outage.filter(|_| kills == 1) {
            round.check_thaw_during_outage(outage, killer.totals).await?;
        }
        if plan.deletes_running_backup && kills == 1 {
            round.delete_running_backup().await?;
        }
    }
    let findings_before = killer.totals.findings().count();
    let backups = round.collect_results(killer.totals).await?;
    if let Some(targets) = &plan.deletion {
        delete_backups(&mut killer, targets, &backups).await?;
    }
    totals.rounds += 1;
    if totals.findings().count() > findings_before {
        print_line(format_args!("{}the log is {}", totals.table(), world.log().display()));
    }
    Ok(())
}

/// Backup to delete.
struct BackupToDelete {
    name: String,
    app: String,
    /// True if the deletion was already requested.
    is_deletion_requested: bool,
    /// Snapshots that the CSI driver had before it.
    csi_snapshots_before: BTreeSet<String>,
    notices: Vec<String>,
}

/// Deletes backups, and counts their leftovers.
async fn delete_backups(
    killer: &mut KillRunner<'_>,
    targets: &[KillTarget],
    all: &[BackupToDelete],
) -> anyhow::Result<()> {
    let world = killer.world;
    for backup in all.iter().filter(|doomed| !doomed.is_deletion_requested) {
        world.delete(&backup.name).await?;
    }
    let mut is_over = false;
    for &target in targets {
        is_over |=
            !killer.run_and_kill(target, async || are_deletions_processed(world).await).await?;
    }
    if !is_over {
        let mut server = world.start(None)?;
        wait_while_running(world, &mut server, SERVER_TIMEOUT, async || {
            are_deletions_processed(world).await
        })
        .await?;
    }
    csi::wait_until_quiet(world).await?;
    for BackupToDelete { name, app, csi_snapshots_before: before, notices, .. } in all {
        killer.totals.add_deletion(
            &volumes::collect_deletion_evidence(world, name, app, before, notices).await?,
        );
    }
    Ok(())
}

/// True if all deletion requests are fulfilled or rejected.
async fn are_deletions_processed(world: &World) -> anyhow::Result<bool> {
    let requests = world.api::<DeleteBackupRequest>().list(&ListParams::default()).await?;
    let is_answered = |request: DeleteBackupRequest| {
        request.status.and_then(|status| status.phase) == Some(Phase::Processed)
    };
    Ok(requests.items.into_iter().all(is_answered))
}

impl<'a> Round<'a> {
    /// Creates runs: no server works on them yet.
    async fn start(
        world: &'a World,
        number: u32,
        snapshotter: SnapshotterMode,
    ) -> anyhow::Result<Self> {
        let hook_lines_before =
            world.read_hook_log().iter().map(|(_, lines)| lines.len()).collect();
        let volumes_before = volumes::restored_volume_ids(&world.disks)?;
        let csi_before = csi::CsiInventory::read(world)?;
        let resources_before = resources::restore_resource_names(world).await?;
        let mut subjects = Vec::new();
        let mut add = |kind, name, uid, namespace| {
            subjects.push(RunUnderTest {
                kind,
                name,
                uid,
                namespace,
                executed_when_recorded: None,
                recorded_requests: None,
                csi_recorded_handles: None,
                volumes_before: volumes_before.clone(),
                csi_before: csi_before.clone(),
                resources_before: resources_before.clone(),
                snapshotter,
                is_cut_short: false,
            });
        };
        for app in APPS {
            let name = format!("{app}-{number}");
            let uid = world.back_up(&name, app).await?;
            add(RunKind::Backup, name, uid, app.to_owned());
        }
        let name = format!("app-copy-{number}");
        let uid = world.restore(&name, &name).await?;
        add(RunKind::Restore, name.clone(), uid, name);
        Ok(Self { world, subjects, hook_lines_before })
    }

    async fn statuses(&self) -> anyhow::Result<Vec<RunStatus>> {
        let mut statuses = Vec::new();
        for subject in &self.subjects {
            statuses.push(subject.status(self.world).await?);
        }
        Ok(statuses)
    }

    /// True if all runs have ended, and their journals are gone. The wait for journals is limited.
    async fn have_all_ended(&self, over_since: &mut Option<Instant>) -> anyhow::Result<bool> {
        if !self.statuses().await?.iter().all(RunStatus::is_terminal) {
            return Ok(false);
        }
        let since = *over_since.get_or_insert_with(Instant::now);
        Ok(since.elapsed() > JOURNAL_TIMEOUT || self.world.journals().await?.is_empty())
    }

    /// Has a server complete all runs.
    async fn run_to_completion(&self) -> anyhow::Result<()> {
        let mut server = self.world.start(None)?;
        let mut over_since = None;
        let are_over = async || self.have_all_ended(&mut over_since).await;
        wait_while_running(self.world, &mut server, SERVER_TIMEOUT, are_over).await.map(drop)
    }

    /// Requests the deletion of the first backup, unless it has ended.
    async fn delete_running_backup(&mut self) -> anyhow::Result<()> {
        let Some(first) = self.subjects.first_mut() else { return Ok(()) };
        if !first.status(self.world).await?.is_terminal() {
            self.world.delete(&first.name).await?;
            first.is_cut_short = true;
        }
        Ok(())
    }

    /// Pods that are frozen now.
    fn frozen_pods(&self) -> Vec<String> {
        let hook_log = self.world.read_hook_log();
        let new = hook_log
            .iter()
            .zip(&self.hook_lines_before)
            .map(|((pod, lines), &before)| (pod.as_str(), lines.get(before..).unwrap_or_default()));
        check::frozen_pods(new)
    }

    /// Causes an outage for the server, and checks that pods are thawed nevertheless.
    async fn check_thaw_during_outage(
        &self,
        outage: Outage,
        totals: &mut Totals,
    ) -> anyhow::Result<()> {
        let count = self.frozen_pods().len();
        let name = match outage {
            Outage::Bucket => {
                self.world.gate.close();
                "its bucket"
            }
            Outage::Journal => {
                self.world.refuse_journal_pages().await?;
                "new journal pages"
            }
        };
        let mut server = self.world.start(None)?;
        let deadline = Instant::now() + THAW_TIMEOUT;
        while !self.frozen_pods().is_empty() && Instant::now() < deadline {
            if let Some(status) = server.exit_status()? {
                bail!("the server ended by itself without {name}, {status}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let still_frozen = self.frozen_pods();
        print_line(format_args!(
            "without {name} the server thawed {} pods",
            count.saturating_sub(still_frozen.len())
        ));
        totals.frozen.extend(still_frozen.iter().map(|pod| format!("without {name} {pod}")));
        match outage {
            Outage::Bucket => {
                self.world.gate.open();
                self.world.wait_until_available().await?;
            }
            Outage::Journal => self.world.accept_journal_pages().await?,
        }
        let mut over_since = None;
        let are_over = async || self.have_all_ended(&mut over_since).await;
        wait_while_running(self.world, &mut server, SERVER_TIMEOUT, are_over).await.map(drop)
    }

    /// Adds the cost of the round to the totals. Returns the backups, which are to be deleted.
    async fn collect_results(self, totals: &mut Totals) -> anyhow::Result<Vec<BackupToDelete>> {
        let mut backups = Vec::new();
        csi::wait_until_quiet(self.world).await?;
        let journals = self.world.journals().await?;
        for subject in &self.subjects {
            let RunUnderTest { kind, name, namespace, is_cut_short, .. } = subject;
            let mut notices = Vec::new();
            // A backup that was deleted while running leaves nothing to check.
            if !is_cut_short {
                let run = subject.collect_evidence(self.world).await?;
                totals.add(&run);
                notices = run.volume_warnings;
            }
            if journals.contains(&subject.uid) {
                totals.unfinished.push(format!("{name} has left its journal"));
            }
            if *kind == RunKind::Backup {
                let (name, app, is_asked_for) = (name.clone(), namespace.clone(), *is_cut_short);
                let before = subject.csi_before.snapshots.clone();
                backups.push(BackupToDelete {
                    name,
                    app,
                    is_deletion_requested: is_asked_for,
                    csi_snapshots_before: before,
                    notices,
                });
            }
        }
        totals.frozen.extend(self.frozen_pods());
        Ok(backups)
    }
}
