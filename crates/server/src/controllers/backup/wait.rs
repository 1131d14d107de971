//! The second stage: operations of plugins are followed to their ends.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::{Backup, BackupStatus};
use bowline_engine::backup::{finalize, snapshot};
use bowline_engine::failpoint::{self, Failpoint};
use bowline_engine::operation::{Operation, OperationTable, record};
use bowline_engine::phase::Stage;
use bowline_engine::report::{Report, ReportSubject};
use bowline_store::BackupStore;
use bowline_store::file::{BackupOperation, BowlineBackupInfo, FreezeWindow, Results};
use jiff::Timestamp;

use super::volumes::SnapshotResources;
use super::{BackupRun, NextStage, RunError, RunStatus as _, recover};
use crate::controllers::bucket_wait::{BucketFailure, retry_bucket_call, with_cancel_grace};
use crate::controllers::operations::{
    FollowOutcome, OperationPublisher, follow_operations, report_failed,
};
use crate::controllers::run::{add_results, with_retries};
use crate::error_text::status_message;
use crate::events::Milestone;

impl BackupRun<'_> {
    /// Waits until all operations have ended.
    pub(super) async fn wait_for_operations(&self) -> Result<NextStage, RunError> {
        let store = self.wait_for_bucket(recover::open_store(self.context, &self.object)).await?;
        let LoadedOperations { operations, own, report, unreadable } =
            self.wait_for_bucket(self.load_operations(&store)).await?;
        self.continue_log(&store).await?;
        let infos = self.wait_for_bucket(self.csi_infos(&store, &operations)).await?;
        let table = Arc::new(OperationTable::new(operations));
        let resources = SnapshotResources::new(self.context, &self.object);
        resources.learn_csi_snapshots(&infos);
        resources.show(&table.operations()).await;
        let operation_clients = self.operation_clients(&resources);
        let freezes = own.freeze_windows;
        let (run, store, resources) = (self, &store, &resources);
        let publisher = BackupOperationPublisher { run, store, resources, freezes, unreadable };
        let count = table.counts().attempted;
        self.publish_milestone(Milestone::OperationsStarted { count }).await;
        let uid = self.resources.uid.as_str();
        match follow_operations(
            self.context,
            uid,
            &table,
            &operation_clients,
            &self.resources.cancel,
            &publisher,
        )
        .await
        {
            FollowOutcome::Stopped => return Ok(NextStage::HandedOver),
            FollowOutcome::ObjectGone => {
                self.delete_listed_leftovers(store).await?;
                return Ok(NextStage::ObjectGone);
            }
            FollowOutcome::Finished => {}
        }
        let operations = table.operations();
        resources.show(&operations).await;
        if self.resources.cancel.is_cancelled() && !self.object_exists().await? {
            // Nothing is written: a new Backup of the same name may have begun to write its own files.
            self.delete_listed_leftovers(store).await?;
            return Ok(NextStage::ObjectGone);
        }
        report_failed(&operations, &report);
        snapshot::warn_not_uploaded(&operations, &report);
        let status = match self.write_end(&publisher, &operations, &report).await {
            Ok(status) => status,
            Err(error) => {
                if BucketFailure::of_write(&error).is_some() {
                    return Err(RunError::of_write::<Backup>(error));
                }
                let leftovers = self.delete_unrecorded_csi_snapshots(&operations).await;
                let error = status_message(&error);
                let reason =
                    format!("cannot write the results of the operations: {error}{leftovers}");
                return Ok(NextStage::finished(self.status().failed(reason)));
            }
        };
        let shown = with_retries(|| self.write_status(&status)).await?;
        failpoint::hit(Failpoint::BackupFinalizing);
        if let Some(backup) = shown {
            return Ok(NextStage::Continue(Box::new(backup)));
        }
        self.delete_listed_leftovers(store).await?;
        Ok(NextStage::ObjectGone)
    }

    /// Operations of the backup according to the bucket, and the rest of Bowline's own file.
    pub(super) async fn load_operations(
        &self,
        store: &BackupStore,
    ) -> Result<LoadedOperations, RunError> {
        let report = Report::default();
        let mut unreadable = UnreadableFiles::default();
        let records = match file_contents(store.get::<Vec<BackupOperation>>(&self.name).await)? {
            FileContents::Found(records) => records,
            FileContents::Absent => {
                report.error(
                    ReportSubject::Run,
                    "the operations file of the backup is missing in the bucket",
                );
                Vec::new()
            }
            FileContents::Unreadable(reason) => {
                unreadable.operations = true;
                report.error(
                    ReportSubject::Run,
                    format!("cannot read the operations file of the backup: {reason}"),
                );
                Vec::new()
            }
        };
        let began = self.status().start_timestamp.map_or_else(Timestamp::now, |time| time.0);
        let mut operations = Vec::new();
        for one in records {
            match record::from_backup(one, self.timeout(), began) {
                Ok(operation) => operations.push(operation),
                Err(error) => report.error(ReportSubject::Run, error.to_string()),
            }
        }
        // A backup made by Velero has no such file.
        let mut own = match file_contents(store.get::<BowlineBackupInfo>(&self.name).await)? {
            FileContents::Found(own) => own,
            FileContents::Absent => BowlineBackupInfo::default(),
            FileContents::Unreadable(reason) => {
                unreadable.own = true;
                let text = format!("cannot read the state of the snapshots: {reason}");
                report.error(ReportSubject::Run, text);
                BowlineBackupInfo::default()
            }
        };
        for one in std::mem::take(&mut own.volume_operations) {
            match record::from_volume(one, self.timeout(), began) {
                Ok(operation) => operations.push(operation),
                Err(error) => report.error(ReportSubject::Run, error.to_string()),
            }
        }
        Ok(LoadedOperations { operations, own, report, unreadable })
    }

    /// Writes the outcome of the operations. The results are written before the phase shows the end, so that no failure
    /// is lost.
    async fn write_end(
        &self,
        publisher: &BackupOperationPublisher<'_>,
        operations: &[Operation],
        report: &Report,
    ) -> Result<BackupStatus, bowline_store::Error> {
        let store = publisher.store;
        retry_bucket_call(&self.resources.cancel, || publisher.write(operations)).await?;
        failpoint::hit(Failpoint::OperationsWritten);
        let mut status = self.status();
        status.count_operations(operations);
        self.add_results(store, report, &mut status).await?;
        status.set_stage(Stage::Finalizing, status.errors > 0);
        Ok(status)
    }

    /// Adds to the results in the bucket, and counts them.
    pub(super) async fn add_results(
        &self,
        store: &BackupStore,
        report: &Report,
        status: &mut BackupStatus,
    ) -> Result<(), bowline_store::Error> {
        let cancel = &self.resources.cancel;
        let read = with_cancel_grace(cancel, store.get::<Results>(&self.name), || {
            Err(bowline_store::Error::TaskAborted)
        });
        let mut results = read.await?.unwrap_or_default();
        add_results(&mut results, report, &mut status.errors, &mut status.warnings);
        retry_bucket_call(cancel, || store.put(&self.name, &results)).await
    }
}

/// Operations of a backup according to the bucket.
pub(super) struct LoadedOperations {
    pub(super) operations: Vec<Operation>,
    pub(super) own: BowlineBackupInfo,
    /// Files that could not be read, for the results.
    pub(super) report: Report,
    pub(super) unreadable: UnreadableFiles,
}

/// Files that exist and cannot be read. They are left as they are: they may still be useful to someone, unlike the
/// empty list that would replace them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnreadableFiles {
    operations: bool,
    pub(super) own: bool,
}

/// Shows the progress of the operations of a backup.
struct BackupOperationPublisher<'a> {
    run: &'a BackupRun<'a>,
    store: &'a BackupStore,
    resources: &'a SnapshotResources<'a>,
    freezes: Vec<FreezeWindow>,
    unreadable: UnreadableFiles,
}

impl BackupOperationPublisher<'_> {
    async fn write(&self, operations: &[Operation]) -> Result<(), bowline_store::Error> {
        let Self { run, store, unreadable, .. } = self;
        if !unreadable.operations {
            store.put(&run.name, &finalize::operation_records(operations, run.run_ref())).await?;
        }
        let has_volumes = operations.iter().any(|operation| operation.kind.is_of_volume());
        if has_volumes && !unreadable.own {
            let own = finalize::bowline_info(operations, self.freezes.clone());
            store.put(&run.name, &own).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl OperationPublisher for BackupOperationPublisher<'_> {
    async fn store_operations(&self, operations: &[Operation]) -> bool {
        self.run.handle_stored_operations(self.write(operations).await).await
    }

    async fn publish_counts(&self, operations: &[Operation]) -> bool {
        self.run.publish_counts(operations).await
    }

    async fn publish_progress(&self, operations: &[Operation]) {
        self.resources.show(operations).await;
    }
}

/// Contents of a file of a backup.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileContents<T> {
    Found(T),
    Absent,
    /// The file exists and is invalid, for this reason. A retry does not help.
    Unreadable(String),
}

impl<T> FileContents<T> {
    pub(super) fn into_found(self) -> Option<T> {
        match self {
            Self::Found(found) => Some(found),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }
}

/// Contents of a file according to the bucket. A bucket that does not answer, or denies access, is an error, and
/// retried.
pub(super) fn file_contents<T>(
    read: Result<Option<T>, bowline_store::Error>,
) -> Result<FileContents<T>, RunError> {
    match read {
        Ok(Some(found)) => Ok(FileContents::Found(found)),
        Ok(None) => Ok(FileContents::Absent),
        Err(error) if error.is_retryable() => {
            Err(RunError::of_bucket::<Backup>(BucketFailure::Unreachable, error))
        }
        Err(error @ bowline_store::Error::Unreadable { .. }) => {
            let reason = status_message(&error);
            tracing::error!("a file of the backup cannot be read: {reason}");
            Ok(FileContents::Unreadable(reason))
        }
        Err(error) => Err(RunError::of_bucket::<Backup>(BucketFailure::Refused, error)),
    }
}

#[cfg(test)]
mod tests {
    use bowline_plugin::Code;
    use bowline_store::{Error, decode};

    use super::*;

    #[test]
    fn only_definite_bucket_answers_are_accepted() {
        let outcome_of = |read| match file_contents::<u8>(read) {
            Ok(FileContents::Found(_)) => "found",
            Ok(FileContents::Absent) => "absent",
            Ok(FileContents::Unreadable(_)) => "unreadable",
            Err(error) => match error.bucket_failure() {
                Some(BucketFailure::Unreachable) => "later",
                Some(BucketFailure::Refused) => "refused",
                _ => panic!("{error}"),
            },
        };
        let refused = |code| Error::Backend {
            action: "read",
            key: "backups/b/b-itemoperations.json.gz".to_owned(),
            source: bowline_plugin::Error::new(code, "no"),
        };
        let unreadable = |source| Error::Unreadable { key: "backups/b/x".to_owned(), source };
        let json = serde_json::from_str::<u8>("[").unwrap_err();
        let damaged = std::io::Error::other("it ends early");
        for (read, expected) in [
            (Ok(Some(1)), "found"),
            (Ok(None), "absent"),
            (Err(refused(Code::PermissionDenied)), "refused"),
            (Err(refused(Code::Unauthenticated)), "refused"),
            (Err(refused(Code::FailedPrecondition)), "refused"),
            (Err(refused(Code::Unimplemented)), "refused"),
            (Err(refused(Code::Unavailable)), "later"),
            (Err(refused(Code::Unknown)), "later"),
            (Err(Error::TaskAborted), "later"),
            (Err(unreadable(decode::Error::Damaged(damaged))), "later"),
            (Err(unreadable(decode::Error::Json(json))), "unreadable"),
            (Err(unreadable(decode::Error::TooLarge(1))), "unreadable"),
        ] {
            assert_eq!(outcome_of(read), expected);
        }
    }
}
