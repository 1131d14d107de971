//! Backups from which a restore can be made.

use anyhow::bail;
use bowline_api::{Backup, BackupPhase, Restore, RestoreSpec, Schedule, label};
use bowline_engine::restore::request;
use kube::ResourceExt as _;

use super::super::super::backup::phase;
use crate::installation::Installation;
use crate::listing;

/// The named backup, or all those of a schedule.
#[derive(Debug)]
pub(super) struct SourceBackups {
    pub(super) backups: Vec<Backup>,
}

impl SourceBackups {
    /// Finds the backups. Reports now if there are none, rather than with a restore that is rejected.
    pub(super) async fn find(
        installation: &Installation,
        spec: &RestoreSpec,
    ) -> anyhow::Result<Self> {
        if !spec.backup_name.is_empty() {
            let backup = listing::get(installation, &spec.backup_name).await?;
            check_validated(&backup)?;
            return Ok(Self { backups: vec![backup] });
        }
        let schedule = &spec.schedule_name;
        let selector = format!("{}={}", label::SCHEDULE_NAME, label::value(schedule));
        let backups: Vec<Backup> = listing::find(installation, &[], Some(&selector)).await?;
        if backups.is_empty() {
            // Backups outlive their schedule, so the schedule is looked up only now.
            listing::get::<Schedule>(installation, schedule).await?;
            bail!(
                "schedule `{schedule}` has no backups in namespace `{}`; hint: create one with {}",
                installation.namespace(),
                installation.hint(&format!("backup create --from-schedule {schedule}"))
            );
        }
        Ok(Self { backups })
    }

    /// Sets the newest backup of the schedule in a spec that accepts a partially failed one. The server chooses only
    /// completed ones, so the spec must name it.
    pub(super) fn choose_newest(&self, spec: &mut RestoreSpec) {
        let is_good = |backup: &&Backup| {
            matches!(phase(backup), BackupPhase::Completed | BackupPhase::PartiallyFailed)
        };
        let start = |backup: &&Backup| {
            backup.status.as_ref().and_then(|status| status.start_timestamp.as_ref()).map(|t| t.0)
        };
        if let Some(newest) = self.backups.iter().filter(is_good).max_by_key(start) {
            spec.backup_name = newest.name_any();
            spec.schedule_name.clear();
        }
    }

    /// Fails if none of them can be restored.
    pub(super) fn check(&self, spec: &RestoreSpec) -> anyhow::Result<()> {
        if self.server_choice(spec).is_none() {
            bail!(
                "none of the {} backups of schedule `{}` is Completed; add \
                 --allow-partially-failed to also accept one that is PartiallyFailed",
                self.backups.len(),
                spec.schedule_name
            );
        }
        Ok(())
    }

    /// Backup that a server would restore.
    pub(super) fn server_choice(&self, spec: &RestoreSpec) -> Option<&Backup> {
        request::source_backup(&Restore::new("", spec.clone()), &self.backups)
    }
}

/// Fails for a rejected backup: it never ran, and there is nothing to restore.
fn check_validated(backup: &Backup) -> anyhow::Result<()> {
    if phase(backup) != BackupPhase::FailedValidation {
        return Ok(());
    }
    let errors = backup.status.clone().unwrap_or_default().validation_errors.join("; ");
    bail!(
        "backup `{}` failed validation (FailedValidation) and contains nothing to restore: \
         {errors}",
        backup.name_any()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn backup_that_failed_validation_is_not_restored() {
        let backup = |phase: &str| -> Backup {
            let status = json!({"phase": phase, "validationErrors": ["no location"]});
            let backup = json!({"metadata": {"name": "b"}, "spec": {}, "status": status});
            serde_json::from_value(backup).unwrap()
        };
        let error = check_validated(&backup("FailedValidation")).unwrap_err().to_string();
        let expected = "backup `b` failed validation (FailedValidation) and contains nothing to \
                        restore: no location";
        assert_eq!(error, expected);
        for phase in ["Completed", "PartiallyFailed", "InProgress", "Failed"] {
            assert!(check_validated(&backup(phase)).is_ok(), "{phase}");
        }
    }
}
