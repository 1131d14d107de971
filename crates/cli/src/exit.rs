//! Exit codes of the process.

use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// Exit codes, which scripts rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command did its work.
    Success,
    /// The command did its work, and the result is negative: a check or a run failed.
    Failed,
    /// The command line is wrong, or something that the command needs is missing or unreachable.
    CannotRun,
    /// Ended by Ctrl-C before completion.
    Interrupted,
    /// Ended by SIGTERM before completion.
    Terminated,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Success => 0,
            Exit::Failed => 1,
            Exit::CannotRun => 2,
            // 128 plus the number of the signal, as shells count.
            Exit::Interrupted => 130,
            Exit::Terminated => 143,
        })
    }
}

/// Waits for Ctrl-C or SIGTERM. From this call on they no longer end the process directly.
pub(crate) fn shutdown_signal() -> anyhow::Result<impl Future<Output = Exit> + Send> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => Exit::Interrupted,
            _ = terminate.recv() => Exit::Terminated,
        }
    })
}
