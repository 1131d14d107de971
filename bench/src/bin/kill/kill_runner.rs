//! Starts servers and kills them.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;

use crate::plan::{KillTarget, Planner};
use crate::report::Totals;
use crate::world::{POLL_INTERVAL, ServerProcess, World};

/// Number of the signal that kills a process.
const SIGKILL: i32 = 9;

/// Result of waiting for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// The server was killed.
    Killed,
    /// The condition came true.
    Done,
    /// The condition did not come true in time.
    TimedOut,
}

/// Waits for a condition while a server runs.
pub(crate) async fn wait_while_running(
    world: &World,
    server: &mut ServerProcess,
    limit: Duration,
    mut is_done: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<WaitOutcome> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = server.exit_status()? {
            if status.signal() != Some(SIGKILL) {
                bail!("the server ended by itself, {status}; see {}", world.log().display());
            }
            return Ok(WaitOutcome::Killed);
        }
        if is_done().await? && server.exit_status()?.is_none() {
            return Ok(WaitOutcome::Done);
        }
        if Instant::now() >= deadline {
            return Ok(WaitOutcome::TimedOut);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Kills servers, and counts the kills.
pub(crate) struct KillRunner<'a> {
    pub(crate) world: &'a World,
    pub(crate) planner: &'a mut Planner,
    pub(crate) totals: &'a mut Totals,
    /// Longest wait until a server reaches a failpoint.
    pub(crate) limit: Duration,
}

impl KillRunner<'_> {
    /// Starts a server and kills it at a target. Returns false if the server never reached it: its work may be done
    /// before.
    pub(crate) async fn run_and_kill(
        &mut self,
        target: KillTarget,
        is_done: impl AsyncFnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<bool> {
        let mut server = self.world.start(Some(target))?;
        let limit = match target {
            KillTarget::At(..) => self.limit,
            KillTarget::After(time) => time,
        };
        match (wait_while_running(self.world, &mut server, limit, is_done).await?, target) {
            (WaitOutcome::Killed, KillTarget::At(point, _)) => {
                self.planner.mark_hit(point);
                self.totals.points.insert(point);
                self.totals.kills += 1;
            }
            (WaitOutcome::TimedOut, KillTarget::After(_)) => {
                server.kill()?;
                self.count_random_kill();
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Counts a kill at a random time.
    pub(crate) fn count_random_kill(&mut self) {
        self.totals.random += 1;
        self.totals.kills += 1;
    }
}
