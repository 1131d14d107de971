//! Stages of a run, and the phases that Velero has for them.
//!
//! Internally, a run has a [`Stage`] and a flag for errors so far. Velero has a phase for each
//! pair, and its tools know no others.

use bowline_api::{BackupPhase, RestorePhase};
use serde::{Deserialize, Serialize};

/// Stage of a run that has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// Items are being backed up or restored.
    Items,
    /// All items are processed; background operations continue.
    Waiting,
    /// All operations have ended; the last files are written.
    Finalizing,
    /// The run has ended.
    Over,
}

/// Stage that follows item collection.
pub fn after_items(has_open_operations: bool) -> Stage {
    if has_open_operations { Stage::Waiting } else { Stage::Finalizing }
}

/// Phase of a backup at a stage.
pub fn of_backup(stage: Stage, is_tainted: bool) -> BackupPhase {
    match (stage, is_tainted) {
        (Stage::Items, _) => BackupPhase::InProgress,
        (Stage::Waiting, false) => BackupPhase::WaitingForPluginOperations,
        (Stage::Waiting, true) => BackupPhase::WaitingForPluginOperationsPartiallyFailed,
        (Stage::Finalizing, false) => BackupPhase::Finalizing,
        (Stage::Finalizing, true) => BackupPhase::FinalizingPartiallyFailed,
        (Stage::Over, false) => BackupPhase::Completed,
        (Stage::Over, true) => BackupPhase::PartiallyFailed,
    }
}

/// Stage of a backup in a phase; `None` before its start and after its end.
pub fn backup_stage(phase: &BackupPhase) -> Option<Stage> {
    match phase {
        BackupPhase::InProgress => Some(Stage::Items),
        BackupPhase::WaitingForPluginOperations
        | BackupPhase::WaitingForPluginOperationsPartiallyFailed => Some(Stage::Waiting),
        BackupPhase::Finalizing | BackupPhase::FinalizingPartiallyFailed => Some(Stage::Finalizing),
        _ => None,
    }
}

/// Phase of a restore at a stage.
pub fn of_restore(stage: Stage, is_tainted: bool) -> RestorePhase {
    match (stage, is_tainted) {
        (Stage::Items, _) => RestorePhase::InProgress,
        (Stage::Waiting, false) => RestorePhase::WaitingForPluginOperations,
        (Stage::Waiting, true) => RestorePhase::WaitingForPluginOperationsPartiallyFailed,
        (Stage::Finalizing, false) => RestorePhase::Finalizing,
        (Stage::Finalizing, true) => RestorePhase::FinalizingPartiallyFailed,
        (Stage::Over, false) => RestorePhase::Completed,
        (Stage::Over, true) => RestorePhase::PartiallyFailed,
    }
}

/// Stage of a restore in a phase; `None` before its start and after its end.
pub fn restore_stage(phase: &RestorePhase) -> Option<Stage> {
    match phase {
        RestorePhase::InProgress => Some(Stage::Items),
        RestorePhase::WaitingForPluginOperations
        | RestorePhase::WaitingForPluginOperationsPartiallyFailed => Some(Stage::Waiting),
        RestorePhase::Finalizing | RestorePhase::FinalizingPartiallyFailed => {
            Some(Stage::Finalizing)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_and_phase_round_trip_until_the_run_is_over() {
        for stage in [Stage::Items, Stage::Waiting, Stage::Finalizing, Stage::Over] {
            for is_tainted in [false, true] {
                let expected = Some(stage).filter(|stage| *stage != Stage::Over);
                assert_eq!(backup_stage(&of_backup(stage, is_tainted)), expected);
                assert_eq!(restore_stage(&of_restore(stage, is_tainted)), expected);
            }
        }
    }
}
