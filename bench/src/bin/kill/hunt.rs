//! A server, and the kill that it meets.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;

use crate::plan::{Planner, Target};
use crate::report::Totals;
use crate::world::{LOOK, Server, World};

/// What a process is killed with.
const SIGKILL: i32 = 9;

/// How waiting for a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// It was killed.
    Died,
    /// What was waited for has come.
    Done,
    /// It has not, in all that time.
    Late,
}

/// Waits for something while a server runs.
pub(crate) async fn wait(
    world: &World,
    server: &mut Server,
    limit: Duration,
    mut is_done: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<Waited> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = server.ended()? {
            if status.signal() != Some(SIGKILL) {
                bail!("the server ended by itself, {status}; see {}", world.log().display());
            }
            return Ok(Waited::Died);
        }
        if is_done().await? && server.ended()?.is_none() {
            return Ok(Waited::Done);
        }
        if Instant::now() >= deadline {
            return Ok(Waited::Late);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Who kills servers, and counts that.
pub(crate) struct Hunt<'a> {
    pub(crate) world: &'a World,
    pub(crate) planner: &'a mut Planner,
    pub(crate) totals: &'a mut Totals,
    /// How long a server may take to come to a point.
    pub(crate) limit: Duration,
}

impl Hunt<'_> {
    /// Starts a server and kills it at a target. Returns whether it came to that: what it works for may
    /// be done before.
    pub(crate) async fn kill(
        &mut self,
        target: Target,
        is_done: impl AsyncFnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<bool> {
        let mut server = self.world.start(Some(target))?;
        let limit = match target {
            Target::At(..) => self.limit,
            Target::After(time) => time,
        };
        match (wait(self.world, &mut server, limit, is_done).await?, target) {
            (Waited::Died, Target::At(point, _)) => {
                self.planner.hit(point);
                self.totals.points.insert(point);
                self.totals.kills += 1;
            }
            (Waited::Late, Target::After(_)) => {
                server.kill()?;
                self.count_random();
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Counts a kill at a random time.
    pub(crate) fn count_random(&mut self) {
        self.totals.random += 1;
        self.totals.kills += 1;
    }
}
