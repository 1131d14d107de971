//! Backups whose buckets cannot be used end based on their journals. `run/outage.rs` decides when.

use bowline_api::BackupStatus;
use bowline_engine::journal::RecoveredRun;
use bowline_engine::phase::Stage;
use bowline_engine::report::Report;

use super::leftovers::{first_leftovers, leftovers_message};
use super::{BackupRun, NextStage, RunError, RunStatus as _, journal_cleanup};
use crate::controllers::bucket_wait::EndReason;

impl BackupRun<'_> {
    /// Ends a backup that another process was ending without its bucket: what it created may be gone.
    pub(super) async fn resume_end(
        &self,
        stage: Stage,
        recovered: &RecoveredRun,
    ) -> Result<NextStage, RunError> {
        let cluster = self.cluster();
        self.resources
            .thaw_own_pods(self.context, &*cluster, &self.object, &Report::default())
            .await;
        let end_reason =
            if self.is_canceled() { EndReason::Canceled } else { EndReason::Interrupted };
        self.end_from_journal(stage, end_reason, "", recovered).await
    }

    /// Ends a backup without its bucket: operations in its journal are canceled, and snapshots deleted. After the
    /// operations, the bucket may have the record of the backup, and the snapshots then belong to it: they are kept
    /// until that is known. Leftovers are named, and the journal is kept for them.
    pub(super) async fn end_from_journal(
        &self,
        stage: Stage,
        end_reason: EndReason,
        failure: &str,
        recovered: &RecoveredRun,
    ) -> Result<NextStage, RunError> {
        let may_be_recorded = stage >= Stage::Finalizing;
        let leftovers = if may_be_recorded {
            journal_cleanup::created_objects(recovered)
        } else {
            self.resources.journal_ending(stage).await?;
            journal_cleanup::delete_created(self.context, &self.object, recovered).await
        };
        if self.context.stop.is_cancelled() {
            return Ok(NextStage::HandedOver);
        }
        if !self.object_exists().await? {
            for one in &leftovers {
                tracing::error!("leftover of a deleted backup: {one}");
            }
            if !leftovers.is_empty() {
                self.resources.keep_journal();
            }
            return Ok(NextStage::ObjectGone);
        }
        if !leftovers.is_empty() {
            self.resources.journal_end_without_bucket(stage).await;
        }
        let message =
            if may_be_recorded { kept_message(&leftovers) } else { leftovers_message(&leftovers) };
        let status = ended_without_bucket(&self.status(), end_reason, failure, &message);
        Ok(NextStage::finished(status))
    }
}

/// Status of a backup that ended without its bucket.
fn ended_without_bucket(
    status: &BackupStatus,
    end_reason: EndReason,
    failure: &str,
    leftovers: &str,
) -> BackupStatus {
    let message = format!("{}{leftovers}", end_reason.message(failure));
    if end_reason == EndReason::Canceled {
        let mut status = status.canceled();
        status.failure_reason.push_str("; ");
        status.failure_reason.push_str(&message);
        return status;
    }
    status.failed(message)
}

/// Names the first few objects that are kept, for a status that is the only place to report them.
fn kept_message(leftovers: &[String]) -> String {
    if leftovers.is_empty() {
        return String::new();
    }
    let named = first_leftovers(leftovers);
    format!(
        "; the bucket may contain the complete backup, so {named} will be kept until the bucket \
         can be read"
    )
}

#[cfg(test)]
mod tests {
    use bowline_api::BackupPhase;
    use std::time::Duration;

    use super::*;

    #[test]
    fn failure_reason_names_the_cause_and_the_leftovers() {
        let status = BackupStatus::default();
        let leftovers = ["snapshot snap-1 of volume pv-1 at east".to_owned()];
        let end_reason = EndReason::WaitedTooLong(Duration::from_secs(7));
        let end =
            ended_without_bucket(&status, end_reason, "it is away", &leftovers_message(&leftovers));
        assert_eq!(end.phase, Some(BackupPhase::Failed));
        assert_eq!(
            end.failure_reason,
            "the bucket was unavailable for 7 s: it is away; and snapshot snap-1 of volume pv-1 \
             at east could not be deleted"
        );
        let end = ended_without_bucket(
            &status,
            EndReason::Canceled,
            "it is away",
            &kept_message(&leftovers),
        );
        assert!(end.failure_reason.starts_with("canceled: "), "{}", end.failure_reason);
        assert!(
            end.failure_reason.ends_with(
                "; the bucket may contain the complete backup, so snapshot snap-1 of volume pv-1 \
                 at east will be kept until the bucket can be read"
            ),
            "{}",
            end.failure_reason
        );
    }
}
