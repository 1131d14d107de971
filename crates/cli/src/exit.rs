//! How the process ends.

use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// The exit codes, which scripts rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// What was asked for is done.
    Success,
    /// What was asked for is done, and it did not turn out well: a rule is broken.
    Failed,
    /// The command line is wrong, or what the command needs cannot be had or reached.
    CannotRun,
    /// Ended by Ctrl-C before it was done.
    Interrupted,
    /// Ended by SIGTERM before it was done.
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

/// Waits for Ctrl-C or SIGTERM. From now on they do not end the process by themselves.
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
