//! How a run ended, or that it has not: the words that metrics, events and conditions share, so that
//! they agree.

use bowline_api::{BackupPhase, RestorePhase};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Well.
    Completed,
    /// With errors, but usable.
    PartiallyFailed,
    /// Not usable. A run that was cancelled ends so, too: Velero has no word for it.
    Failed,
    /// It was refused and never ran.
    FailedValidation,
}

impl End {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Completed, Self::PartiallyFailed, Self::Failed, Self::FailedValidation];

    /// The phase, as Velero spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "Completed",
            Self::PartiallyFailed => "PartiallyFailed",
            Self::Failed => "Failed",
            Self::FailedValidation => "FailedValidation",
        }
    }
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing<'a> {
    /// It waits or runs, in this phase.
    Running(&'a str),
    /// It is over.
    Ended(End),
    /// It was over, and what it left is being deleted.
    Leaving,
}

/// The phase of a run that nobody has looked at.
const NEW: &str = "New";
/// In place of a phase that this version does not know, whose text may be anything.
const UNKNOWN: &str = "UnknownPhase";

impl<'a> From<Option<&'a BackupPhase>> for Standing<'a> {
    fn from(phase: Option<&'a BackupPhase>) -> Self {
        let Some(phase) = phase else { return Self::Running(NEW) };
        match phase {
            BackupPhase::Completed => Self::Ended(End::Completed),
            BackupPhase::PartiallyFailed => Self::Ended(End::PartiallyFailed),
            BackupPhase::Failed => Self::Ended(End::Failed),
            BackupPhase::FailedValidation => Self::Ended(End::FailedValidation),
            BackupPhase::Deleting => Self::Leaving,
            BackupPhase::Other(_) => Self::Running(UNKNOWN),
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

impl<'a> From<Option<&'a RestorePhase>> for Standing<'a> {
    fn from(phase: Option<&'a RestorePhase>) -> Self {
        let Some(phase) = phase else { return Self::Running(NEW) };
        match phase {
            RestorePhase::Completed => Self::Ended(End::Completed),
            RestorePhase::PartiallyFailed => Self::Ended(End::PartiallyFailed),
            RestorePhase::Failed => Self::Ended(End::Failed),
            RestorePhase::FailedValidation => Self::Ended(End::FailedValidation),
            RestorePhase::Other(_) => Self::Running(UNKNOWN),
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

    /// The phase that an end stands for, or that a run is in.
    fn word(standing: Standing<'_>) -> &str {
        match standing {
            Standing::Running(phase) => phase,
            Standing::Ended(end) => end.as_str(),
            Standing::Leaving => "Deleting",
        }
    }

    #[test]
    fn every_phase_of_a_backup_is_told_by_its_own_word_and_is_over_where_the_api_says_so() {
        for text in BackupPhase::KNOWN {
            let phase = BackupPhase::from(*text);
            let standing = Standing::from(Some(&phase));
            assert_eq!(word(standing), *text);
            let is_over = !matches!(standing, Standing::Running(_));
            assert_eq!(is_over, phase.is_terminal(), "{text}");
        }
    }

    #[test]
    fn every_phase_of_a_restore_is_told_by_its_own_word_and_is_over_where_the_api_says_so() {
        for text in RestorePhase::KNOWN {
            let phase = RestorePhase::from(*text);
            let standing = Standing::from(Some(&phase));
            assert_eq!(word(standing), *text);
            let is_over = !matches!(standing, Standing::Running(_));
            assert_eq!(is_over, phase.is_terminal(), "{text}");
        }
    }

    #[test]
    fn a_phase_that_is_missing_is_new_and_one_that_is_not_known_is_not_repeated() {
        assert_eq!(Standing::from(None::<&BackupPhase>), Standing::Running("New"));
        assert_eq!(Standing::from(None::<&RestorePhase>), Standing::Running("New"));
        let strange = (BackupPhase::from("a b\n"), RestorePhase::from("a b\n"));
        assert_eq!(Standing::from(Some(&strange.0)), Standing::Running("UnknownPhase"));
        assert_eq!(Standing::from(Some(&strange.1)), Standing::Running("UnknownPhase"));
    }
}
