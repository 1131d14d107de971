//! State and outcome of a run, in the terms that metrics, Events and conditions share, so that they
//! agree.

use std::fmt;

use bowline_api::{BackupPhase, RestorePhase};

/// Outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminalPhase {
    /// Completed without errors.
    Completed,
    /// Completed with errors, but usable.
    PartiallyFailed,
    /// Not usable. A canceled run also ends so: Velero has no phase for it.
    Failed,
    /// Refused; the run never started.
    FailedValidation,
}

impl TerminalPhase {
    /// All outcomes.
    pub const ALL: [Self; 4] =
        [Self::Completed, Self::PartiallyFailed, Self::Failed, Self::FailedValidation];

    /// Phase, in Velero's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "Completed",
            Self::PartiallyFailed => "PartiallyFailed",
            Self::Failed => "Failed",
            Self::FailedValidation => "FailedValidation",
        }
    }
}

/// Prefix of the failure reason of a canceled run. Velero has no phase for it, so the reason says so.
const CANCELED_PREFIX: &str = "canceled: ";

/// Reason of a failed run, as `status.failureReason` has it. It is written by `Display` and read by `From`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureReason<'a> {
    /// The run was canceled.
    Canceled(&'a str),
    /// Any other reason.
    Other(&'a str),
}

impl<'a> From<&'a str> for FailureReason<'a> {
    fn from(text: &'a str) -> Self {
        text.strip_prefix(CANCELED_PREFIX).map_or(Self::Other(text), Self::Canceled)
    }
}

impl fmt::Display for FailureReason<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Canceled(reason) => write!(formatter, "{CANCELED_PREFIX}{reason}"),
            Self::Other(reason) => formatter.write_str(reason),
        }
    }
}

impl FailureReason<'_> {
    /// True if the run was canceled.
    pub(crate) fn is_canceled(self) -> bool {
        matches!(self, Self::Canceled(_))
    }
}

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState<'a> {
    /// Waiting or running, in this phase.
    Running(&'a str),
    /// Ended.
    Ended(TerminalPhase),
    /// Ended, and being deleted.
    Deleting,
}

/// Phase of a run that no server has seen.
const NEW_PHASE: &str = "New";
/// Replacement for a phase that this version does not know, whose text may be anything.
const UNKNOWN_PHASE: &str = "UnknownPhase";

impl<'a> From<Option<&'a BackupPhase>> for RunState<'a> {
    fn from(phase: Option<&'a BackupPhase>) -> Self {
        let Some(phase) = phase else { return Self::Running(NEW_PHASE) };
        match phase {
            BackupPhase::Completed => Self::Ended(TerminalPhase::Completed),
            BackupPhase::PartiallyFailed => Self::Ended(TerminalPhase::PartiallyFailed),
            BackupPhase::Failed => Self::Ended(TerminalPhase::Failed),
            BackupPhase::FailedValidation => Self::Ended(TerminalPhase::FailedValidation),
            BackupPhase::Deleting => Self::Deleting,
            BackupPhase::Other(_) => Self::Running(UNKNOWN_PHASE),
            BackupPhase::New
            | BackupPhase::Queued
            | BackupPhase::ReadyToStart
            | BackupPhase::InProgress
            | BackupPhase::WaitingForPluginOperations
            | BackupPhase::WaitingForPluginOperationsPartiallyFailed
            | BackupPhase::Finalizing
            | BackupPhase::FinalizingPartiallyFailed => Self::Running(phase.as_str()),
        }
    }
}

impl<'a> From<Option<&'a RestorePhase>> for RunState<'a> {
    fn from(phase: Option<&'a RestorePhase>) -> Self {
        let Some(phase) = phase else { return Self::Running(NEW_PHASE) };
        match phase {
            RestorePhase::Completed => Self::Ended(TerminalPhase::Completed),
            RestorePhase::PartiallyFailed => Self::Ended(TerminalPhase::PartiallyFailed),
            RestorePhase::Failed => Self::Ended(TerminalPhase::Failed),
            RestorePhase::FailedValidation => Self::Ended(TerminalPhase::FailedValidation),
            RestorePhase::Other(_) => Self::Running(UNKNOWN_PHASE),
            RestorePhase::New
            | RestorePhase::InProgress
            | RestorePhase::WaitingForPluginOperations
            | RestorePhase::WaitingForPluginOperationsPartiallyFailed
            | RestorePhase::Finalizing
            | RestorePhase::FinalizingPartiallyFailed => Self::Running(phase.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Phase of an outcome, or of a running run.
    fn phase_text(state: RunState<'_>) -> &str {
        match state {
            RunState::Running(phase) => phase,
            RunState::Ended(end) => end.as_str(),
            RunState::Deleting => "Deleting",
        }
    }

    #[test]
    fn every_backup_phase_keeps_its_text_and_is_terminal_as_the_api_says() {
        for text in BackupPhase::KNOWN {
            let phase = BackupPhase::from(*text);
            let state = RunState::from(Some(&phase));
            assert_eq!(phase_text(state), *text);
            let is_over = !matches!(state, RunState::Running(_));
            assert_eq!(is_over, phase.is_terminal(), "{text}");
        }
    }

    #[test]
    fn every_restore_phase_keeps_its_text_and_is_terminal_as_the_api_says() {
        for text in RestorePhase::KNOWN {
            let phase = RestorePhase::from(*text);
            let state = RunState::from(Some(&phase));
            assert_eq!(phase_text(state), *text);
            let is_over = !matches!(state, RunState::Running(_));
            assert_eq!(is_over, phase.is_terminal(), "{text}");
        }
    }

    #[test]
    fn missing_phase_is_new_and_unknown_phase_is_not_echoed() {
        assert_eq!(RunState::from(None::<&BackupPhase>), RunState::Running("New"));
        assert_eq!(RunState::from(None::<&RestorePhase>), RunState::Running("New"));
        let strange = (BackupPhase::from("a b\n"), RestorePhase::from("a b\n"));
        assert_eq!(RunState::from(Some(&strange.0)), RunState::Running("UnknownPhase"));
        assert_eq!(RunState::from(Some(&strange.1)), RunState::Running("UnknownPhase"));
    }
}
