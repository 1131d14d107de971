//! One round: runs are begun, servers are killed over them until the plan is through, and then it is
//! looked at what that has cost.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;

use crate::check;
use crate::evidence::{Kind, Standing, Subject};
use crate::plan::{Plan, Planner, Target};
use crate::report::Totals;
use crate::say;
use crate::world::{APPS, LOOK, Server, World};

/// How long one server may take to bring all runs to their ends.
const LIFE_LIMIT: Duration = Duration::from_mins(2);
/// How long pods may stay frozen after a restart.
const THAW_LIMIT: Duration = Duration::from_mins(1);
/// How long the journal of a run may stay after its end.
const JOURNAL_LIMIT: Duration = Duration::from_secs(20);
/// How many kills a run is sure to survive while its items are worked on.
const SURVIVED: usize = 3;
/// What a process is killed with.
const SIGKILL: i32 = 9;

/// How waiting for a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    /// It was killed.
    Died,
    /// What was waited for has come.
    Done,
    /// It has not, in all that time.
    Late,
}

/// What a server is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// The ends of all runs, and of their journals.
    Ends,
    /// The last item of all runs.
    Items,
}

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
    let mut round = Round::begin(world, plan.number).await?;
    let mut targets = plan.targets.iter().copied();
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
            match round.wait(&mut server, For::Items, LIFE_LIMIT).await? {
                Waited::Done => totals.random += 1,
                how => bail!("runs do not get beyond their items: {how:?}"),
            }
            server.kill()?;
        } else if let Some(target) = targets.next() {
            let mut server = world.start(Some(target))?;
            let limit = match target {
                Target::At(..) => LIFE_LIMIT,
                Target::After(time) => time,
            };
            match (round.wait(&mut server, For::Ends, limit).await?, target) {
                (Waited::Died, Target::At(point, _)) => {
                    planner.hit(point);
                    totals.points.insert(point);
                }
                (Waited::Late, Target::After(_)) => {
                    server.kill()?;
                    totals.random += 1;
                }
                // It was not passed any more.
                _ => break,
            }
        } else {
            let mut server = world.start(None)?;
            round.wait(&mut server, For::Ends, LIFE_LIMIT).await?;
            break;
        }
        kills += 1;
        totals.kills += 1;
        for subject in &mut round.subjects {
            subject.note_recorded(world)?;
        }
        if plan.without_bucket && kills == 1 {
            round.thaw_without_bucket(totals).await?;
        }
    }
    round.conclude(totals).await
}

impl<'a> Round<'a> {
    /// Begins runs: nobody works on them yet.
    async fn begin(world: &'a World, number: u32) -> anyhow::Result<Self> {
        let noted = world.notes().iter().map(|(_, lines)| lines.len()).collect();
        let mut subjects = Vec::new();
        for app in APPS {
            let name = format!("{app}-{number}");
            let uid = world.back_up(&name, app).await?;
            let (kind, namespace) = (Kind::Backup, app.to_owned());
            subjects.push(Subject { kind, name, uid, namespace, recorded: None });
        }
        let name = format!("app-copy-{number}");
        let uid = world.restore(&name, &name).await?;
        let (kind, namespace) = (Kind::Restore, name.clone());
        subjects.push(Subject { kind, name, uid, namespace, recorded: None });
        Ok(Self { world, subjects, noted })
    }

    async fn standings(&self) -> anyhow::Result<Vec<Standing>> {
        let mut standings = Vec::new();
        for subject in &self.subjects {
            standings.push(subject.standing(self.world).await?);
        }
        Ok(standings)
    }

    /// Waits for something while a server runs.
    async fn wait(
        &self,
        server: &mut Server,
        what: For,
        limit: Duration,
    ) -> anyhow::Result<Waited> {
        let deadline = Instant::now() + limit;
        let mut over_since = None;
        loop {
            if let Some(status) = server.ended()? {
                if status.signal() != Some(SIGKILL) {
                    let log = self.world.log();
                    bail!("the server ended by itself, {status}; see {}", log.display());
                }
                return Ok(Waited::Died);
            }
            let standings = self.standings().await?;
            let is_done = match what {
                For::Items => !standings.iter().any(Standing::is_at_items),
                For::Ends if standings.iter().all(Standing::is_over) => {
                    let since = *over_since.get_or_insert_with(Instant::now);
                    since.elapsed() > JOURNAL_LIMIT || self.world.journals().await?.is_empty()
                }
                For::Ends => false,
            };
            if is_done && server.ended()?.is_none() {
                return Ok(Waited::Done);
            }
            if Instant::now() >= deadline {
                return Ok(Waited::Late);
            }
            tokio::time::sleep(LOOK).await;
        }
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

    /// Takes the bucket away, and sees that pods are thawed all the same.
    async fn thaw_without_bucket(&self, totals: &mut Totals) -> anyhow::Result<()> {
        let count = self.frozen().len();
        self.world.gate.close();
        let mut server = self.world.start(None)?;
        let deadline = Instant::now() + THAW_LIMIT;
        while !self.frozen().is_empty() && Instant::now() < deadline {
            if let Some(status) = server.ended()? {
                bail!("the server ended by itself without its bucket, {status}");
            }
            tokio::time::sleep(LOOK).await;
        }
        let left = self.frozen();
        say(format_args!(
            "without its bucket the server thawed {} pods",
            count.saturating_sub(left.len())
        ));
        totals.frozen.extend(left.iter().map(|pod| format!("without the bucket {pod}")));
        self.world.gate.open();
        self.world.until_available().await?;
        self.wait(&mut server, For::Ends, LIFE_LIMIT).await?;
        Ok(())
    }

    /// Adds up what the round has cost.
    async fn conclude(self, totals: &mut Totals) -> anyhow::Result<()> {
        let told = totals.findings().count();
        let journals = self.world.journals().await?;
        for subject in &self.subjects {
            let run = subject.evidence(self.world).await?;
            totals.add(&run);
            if journals.contains(&subject.uid) {
                totals.unfinished.push(format!("{} has left its journal", run.name));
            }
        }
        totals.frozen.extend(self.frozen());
        totals.rounds += 1;
        if totals.findings().count() > told {
            say(format_args!("{}the log is {}", totals.table(), self.world.log().display()));
        }
        Ok(())
    }
}
