//! How the process ends.

use std::process::ExitCode;

/// The exit codes, which scripts rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// What was asked for is done.
    Success,
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
            Exit::CannotRun => 2,
            // 128 plus the number of the signal, as shells count.
            Exit::Interrupted => 130,
            Exit::Terminated => 143,
        })
    }
}
