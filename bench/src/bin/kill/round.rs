//! One round: runs are begun, servers are killed over them until the plan is through, and then it is
//! looked at what that has cost. In the end the backups are deleted, and servers are killed over that.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use bowline_api::DeleteBackupRequest;
use bowline_api::delete_backup_request::DeleteBackupRequestPhase as Phase;
use kube::api::ListParams;
use tokio::time::Instant;

use crate::check;
use crate::evidence::{Kind, Standing, Subject, csi, resources, volumes};
use crate::hunt::{Hunt, Waited, wait};
use crate::plan::{Outage, Plan, Planner, Snapshotter, Target};
use crate::report::Totals;
use crate::say;
use crate::world::{APPS, LOOK, World};

/// How long one server may take to bring all runs to their ends.
const LIFE_LIMIT: Duration = Duration::from_mins(2);
/// How long pods may stay frozen after a restart.
const THAW_LIMIT: Duration = Duration::from_mins(1);
/// How long the journal of a run may stay after its end.
const JOURNAL_LIMIT: Duration = Duration::from_secs(20);
/// How many kills a run is sure to survive while its items are worked on.
const SURVIVED: usize = 3;

struct Round<'a> {
    world: &'a World,
    subjects: Vec<Subject>,
    /// How many lines each pod had noted before.
    noted: Vec<usize>,
}

/// Runs a round.
pub(crate) async fn run(
    world: &World,
    plan: &Plan,
    planner: &mut Planner,
    totals: &mut Totals,
) -> anyhow::Result<()> {
    world.set_snapshotter(plan.snapshotter).await?;
    let mut round = Round::begin(world, plan.number, plan.snapshotter).await?;
    let mut targets = plan.targets.iter().copied();
    let mut hunt = Hunt { world, planner, totals, limit: LIFE_LIMIT };
    let mut kills = 0;
    loop {
        let standings = round.standings().await?;
        if kills > 0
            && standings.iter().all(Standing::is_over)
            && world.journals().await?.is_empty()
        {
            break;
        }
        let is_safe = kills < SURVIVED || !standings.iter().any(Standing::is_at_items);
        if !is_safe && targets.len() > 0 {
            // It must get beyond the items before it can be killed again.
            let mut server = world.start(None)?;
            let are_through =
                async || Ok(!round.standings().await?.iter().any(Standing::is_at_items));
            match wait(world, &mut server, LIFE_LIMIT, are_through).await? {
                Waited::Done => hunt.count_random(),
                how => bail!("runs do not get beyond their items: {how:?}"),
            }
            server.kill()?;
        } else if let Some(target) = targets.next() {
            let mut over_since = None;
            let are_over = async || round.are_over(&mut over_since).await;
            if !hunt.kill(target, are_over).await? {
                // It was not passed any more.
                break;
            }
        } else {
            round.bring_to_ends().await?;
            break;
        }
        kills += 1;
        for subject in &mut round.subjects {
            subject.note_recorded(world)?;
        }
        if let Some(outage) = plan.outage.filter(|_| kills == 1) {
            round.thaw_during(outage, hunt.totals).await?;
        }
        if plan.cuts_short && kills == 1 {
            round.cut_short().await?;
        }
    }
    let told = hunt.totals.findings().count();
    let doomed = round.conclude(hunt.totals).await?;
    if let Some(targets) = &plan.deletion {
        delete(&mut hunt, targets, &doomed).await?;
    }
    totals.rounds += 1;
    if totals.findings().count() > told {
        say(format_args!("{}the log is {}", totals.table(), world.log().display()));
    }
    Ok(())
}

/// A backup that is to be deleted.
struct Doomed {
    name: String,
    app: String,
    /// Whether that was asked for before.
    is_asked_for: bool,
    /// The snapshots that the CSI driver had before it.
    before: BTreeSet<String>,
    notices: Vec<String>,
}

/// Deletes backups, and adds up what is left of them.
async fn delete(hunt: &mut Hunt<'_>, targets: &[Target], all: &[Doomed]) -> anyhow::Result<()> {
    let world = hunt.world;
    for doomed in all.iter().filter(|doomed| !doomed.is_asked_for) {
        world.delete(&doomed.name).await?;
    }
    let mut is_over = false;
    for &target in targets {
        is_over |= !hunt.kill(target, async || are_answered(world).await).await?;
    }
    if !is_over {
        let mut server = world.start(None)?;
        wait(world, &mut server, LIFE_LIMIT, async || are_answered(world).await).await?;
    }
    csi::until_quiet(world).await?;
    for Doomed { name, app, before, notices, .. } in all {
        hunt.totals.add_deletion(&volumes::deletion(world, name, app, before, notices).await?);
    }
    Ok(())
}

/// Whether all requests for deletions are fulfilled, or refused.
async fn are_answered(world: &World) -> anyhow::Result<bool> {
    let requests = world.api::<DeleteBackupRequest>().list(&ListParams::default()).await?;
    let is_answered = |request: DeleteBackupRequest| {
        request.status.and_then(|status| status.phase) == Some(Phase::Processed)
    };
    Ok(requests.items.into_iter().all(is_answered))
}

impl<'a> Round<'a> {
    /// Begins runs: nobody works on them yet.
    async fn begin(
        world: &'a World,
        number: u32,
        snapshotter: Snapshotter,
    ) -> anyhow::Result<Self> {
        let noted = world.notes().iter().map(|(_, lines)| lines.len()).collect();
        let before = volumes::all_made(&world.disks)?;
        let csi_before = csi::Before::now(world)?;
        let resources_before = resources::names(world).await?;
        let mut subjects = Vec::new();
        let mut add = |kind, name, uid, namespace| {
            subjects.push(Subject {
                kind,
                name,
                uid,
                namespace,
                recorded: None,
                settled: None,
                csi_settled: None,
                before: before.clone(),
                csi_before: csi_before.clone(),
                resources_before: resources_before.clone(),
                snapshotter,
                is_cut_short: false,
            });
        };
        for app in APPS {
            let name = format!("{app}-{number}");
            let uid = world.back_up(&name, app).await?;
            add(Kind::Backup, name, uid, app.to_owned());
        }
        let name = format!("app-copy-{number}");
        let uid = world.restore(&name, &name).await?;
        add(Kind::Restore, name.clone(), uid, name);
        Ok(Self { world, subjects, noted })
    }

    async fn standings(&self) -> anyhow::Result<Vec<Standing>> {
        let mut standings = Vec::new();
        for subject in &self.subjects {
            standings.push(subject.standing(self.world).await?);
        }
        Ok(standings)
    }

    /// Whether all runs have ended, and their journals. Those are not waited for without end.
    async fn are_over(&self, over_since: &mut Option<Instant>) -> anyhow::Result<bool> {
        if !self.standings().await?.iter().all(Standing::is_over) {
            return Ok(false);
        }
        let since = *over_since.get_or_insert_with(Instant::now);
        Ok(since.elapsed() > JOURNAL_LIMIT || self.world.journals().await?.is_empty())
    }

    /// Lets a server bring all runs to their ends.
    async fn bring_to_ends(&self) -> anyhow::Result<()> {
        let mut server = self.world.start(None)?;
        let mut over_since = None;
        let are_over = async || self.are_over(&mut over_since).await;
        wait(self.world, &mut server, LIFE_LIMIT, are_over).await.map(drop)
    }

    /// Asks for the first backup to be deleted, unless it is over.
    async fn cut_short(&mut self) -> anyhow::Result<()> {
        let Some(first) = self.subjects.first_mut() else { return Ok(()) };
        if !first.standing(self.world).await?.is_over() {
            self.world.delete(&first.name).await?;
            first.is_cut_short = true;
        }
        Ok(())
    }

    /// Pods that are frozen now.
    fn frozen(&self) -> Vec<String> {
        let notes = self.world.notes();
        let new = notes
            .iter()
            .zip(&self.noted)
            .map(|((pod, lines), &before)| (pod.as_str(), lines.get(before..).unwrap_or_default()));
        check::frozen(new)
    }

    /// Takes away what the server does without for a while, and sees that pods are thawed all the same.
    async fn thaw_during(&self, outage: Outage, totals: &mut Totals) -> anyhow::Result<()> {
        let count = self.frozen().len();
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
        let deadline = Instant::now() + THAW_LIMIT;
        while !self.frozen().is_empty() && Instant::now() < deadline {
            if let Some(status) = server.ended()? {
                bail!("the server ended by itself without {name}, {status}");
            }
            tokio::time::sleep(LOOK).await;
        }
        let left = self.frozen();
        say(format_args!(
            "without {name} the server thawed {} pods",
            count.saturating_sub(left.len())
        ));
        totals.frozen.extend(left.iter().map(|pod| format!("without {name} {pod}")));
        match outage {
            Outage::Bucket => {
                self.world.gate.open();
                self.world.until_available().await?;
            }
            Outage::Journal => self.world.accept_journal_pages().await?,
        }
        let mut over_since = None;
        let are_over = async || self.are_over(&mut over_since).await;
        wait(self.world, &mut server, LIFE_LIMIT, are_over).await.map(drop)
    }

    /// Adds up what the round has cost. Returns the backups, which are to be deleted.
    async fn conclude(self, totals: &mut Totals) -> anyhow::Result<Vec<Doomed>> {
        let mut doomed = Vec::new();
        csi::until_quiet(self.world).await?;
        let journals = self.world.journals().await?;
        for subject in &self.subjects {
            let Subject { kind, name, namespace, is_cut_short, .. } = subject;
            let mut notices = Vec::new();
            // Of one that was cut short nothing is left to look at.
            if !is_cut_short {
                let run = subject.evidence(self.world).await?;
                totals.add(&run);
                notices = run.notices;
            }
            if journals.contains(&subject.uid) {
                totals.unfinished.push(format!("{name} has left its journal"));
            }
            if *kind == Kind::Backup {
                let (name, app, is_asked_for) = (name.clone(), namespace.clone(), *is_cut_short);
                let before = subject.csi_before.snapshots.clone();
                doomed.push(Doomed { name, app, is_asked_for, before, notices });
            }
        }
        totals.frozen.extend(self.frozen());
        Ok(doomed)
    }
}
