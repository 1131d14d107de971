//! The stages after the items: operations of plugins are followed to their ends, and the last files are written.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::{Restore, RestoreStatus};
use bowline_engine::failpoint::{self, Failpoint};
use bowline_engine::journal::RecoveredRun;
use bowline_engine::operation::{Operation, OperationTable, record};
use bowline_engine::phase::Stage;
use bowline_engine::report::{Report, ReportSubject};
use bowline_engine::restore::finalize;
use bowline_store::BackupStore;
use bowline_store::file::{RestoreOperation, Results};
use futures::stream;
use jiff::Timestamp;

use super::csi::{ClaimPublisher, RestoreOperationClients};
use super::{NextStage, RestoreRun, RunError, RunStatus as _};
use crate::controllers::bucket_wait::{BucketFailure, retry_bucket_call, with_cancel_grace};
use crate::controllers::operations::{
    FollowOutcome, OperationPublisher, follow_operations, report_failed,
};
use crate::controllers::run::{add_results, with_retries};
use crate::error_text::status_message;
use crate::events::Milestone;

impl RestoreRun<'_> {
    pub(super) async fn wait_for_operations(
        &self,
        store: &BackupStore,
    ) -> Result<NextStage, RunError> {
        let LoadedOperations { operations, report, is_unreadable } =
            self.wait_for_bucket(self.load_operations(store, self.recovered.as_ref())).await?;
        self.continue_log(store).await?;
        let table = Arc::new(OperationTable::new(operations));
        let clients = self.operation_clients(&table.operations()).await;
        let claim_publisher = self.claim_publisher(&table.operations(), store).await;
        claim_publisher.publish(&table.operations(), &clients).await;
        let count = table.counts().attempted;
        self.publish_milestone(Milestone::OperationsStarted { count }).await;
        let uid = self.resources.uid.as_str();
        let (clients, claim_publisher) = (&clients, &claim_publisher);
        let publisher =
            RestoreOperationPublisher { run: self, store, clients, claim_publisher, is_unreadable };
        let followed = tokio::select! {
            followed = follow_operations(self.context, uid, &table, clients, &self.resources.cancel, &publisher) => followed,
            () = clients.run() => FollowOutcome::Stopped,
        };
        claim_publisher.publish(&table.operations(), clients).await;
        match followed {
            FollowOutcome::Stopped => return Ok(NextStage::HandedOver),
            FollowOutcome::ObjectGone => return Ok(NextStage::ObjectGone),
            FollowOutcome::Finished => {}
        }
        let operations = table.operations();
        report_failed(&operations, &report);
        let status = self.write_end(&publisher, &operations, &report).await;
        let status = status.map_err(RunError::of_write::<Restore>)?;
        Ok(NextStage::of_written(with_retries(|| self.write_status(&status)).await?))
    }

    /// Ends a restore whose operations have ended.
    pub(super) async fn finish(&self, store: &BackupStore) -> Result<NextStage, RunError> {
        self.continue_log(store).await?;
        let status = if self.resources.cancel.is_cancelled() {
            self.status()
        } else {
            let Some(status) = Box::pin(self.settle_volumes(store)).await? else {
                return Ok(NextStage::HandedOver);
            };
            status
        };
        let log = self.resources.log.snapshot();
        let put = || {
            let log = Box::pin(stream::iter([Ok(log.clone())]));
            store.put_restore_log(&self.name, log)
        };
        if let Err(error) = retry_bucket_call(&self.resources.cancel, put).await {
            tracing::warn!("the end of the log cannot be written: {}", status_message(&error));
        }
        Ok(NextStage::finished(if self.resources.cancel.is_cancelled() {
            status.canceled()
        } else {
            finalize::completed_status(&status, Timestamp::now())
        }))
    }

    /// Operations of the restore according to the bucket, or to the journal if the file is damaged.
    pub(super) async fn load_operations(
        &self,
        store: &BackupStore,
        recovered: Option<&RecoveredRun>,
    ) -> Result<LoadedOperations, RunError> {
        let report = Report::default();
        let began = self.status().start_timestamp.map_or_else(Timestamp::now, |time| time.0);
        let mut is_unreadable = false;
        let read = store.get_restore_file::<Vec<RestoreOperation>>(&self.name).await;
        let records = match read {
            Ok(Some(records)) => records,
            Ok(None) => {
                report.error(
                    ReportSubject::Run,
                    "the operations file of the restore is missing in the bucket",
                );
                Vec::new()
            }
            Err(error) if BucketFailure::of_read(&error).is_some() => {
                return Err(RunError::of_read::<Restore>(error));
            }
            Err(error) => {
                is_unreadable = true;
                let text = format!(
                    "the operations file of the restore is damaged: {}",
                    status_message(&error)
                );
                report.error(ReportSubject::Run, text);
                let ended = recovered.into_iter().flat_map(|recovered| &recovered.finished);
                ended.flat_map(|ended| ended.restore_operations.clone()).collect()
            }
        };
        let mut operations = Vec::new();
        for one in records {
            match record::from_restore(one, self.timeout(), began) {
                Ok(operation) => operations.push(operation),
                Err(error) => report.error(ReportSubject::Run, error.to_string()),
            }
        }
        Ok(LoadedOperations { operations, report, is_unreadable })
    }

    /// Writes the outcome of the operations. The results are written before the phase shows the end, so that no failure
    /// is lost.
    async fn write_end(
        &self,
        publisher: &RestoreOperationPublisher<'_>,
        operations: &[Operation],
        report: &Report,
    ) -> Result<RestoreStatus, bowline_store::Error> {
        let (store, cancel) = (publisher.store, &self.resources.cancel);
        retry_bucket_call(cancel, || publisher.write(operations)).await?;
        failpoint::hit(Failpoint::OperationsWritten);
        let mut status = self.status();
        status.count_operations(operations);
        let read = with_cancel_grace(cancel, store.get_restore_file::<Results>(&self.name), || {
            Err(bowline_store::Error::TaskAborted)
        });
        let mut results = read.await?.unwrap_or_default();
        add_results(&mut results, report, &mut status.errors, &mut status.warnings);
        retry_bucket_call(cancel, || store.put_restore_file(&self.name, &results)).await?;
        failpoint::hit(Failpoint::ResultsWritten);
        status.set_stage(Stage::Finalizing, status.errors > 0);
        Ok(status)
    }

    /// Makes the log continue what an earlier process has written.
    async fn continue_log(&self, store: &BackupStore) -> Result<(), RunError> {
        let read =
            async { store.restore_log(&self.name).await.map_err(RunError::of_read::<Restore>) };
        self.load_earlier_log(read).await
    }
}

/// Operations of a restore.
pub(super) struct LoadedOperations {
    pub(super) operations: Vec<Operation>,
    /// Files that could not be read, for the results.
    pub(super) report: Report,
    /// True if the file exists and cannot be read. It is left as it is.
    is_unreadable: bool,
}

/// Shows the progress of the operations of a restore.
struct RestoreOperationPublisher<'a> {
    run: &'a RestoreRun<'a>,
    store: &'a BackupStore,
    clients: &'a RestoreOperationClients,
    claim_publisher: &'a ClaimPublisher,
    is_unreadable: bool,
}

impl RestoreOperationPublisher<'_> {
    async fn write(&self, operations: &[Operation]) -> Result<(), bowline_store::Error> {
        if self.is_unreadable {
            return Ok(());
        }
        let records = finalize::operation_records(operations, self.run.run_ref());
        self.store.put_restore_file(&self.run.name, &records).await
    }
}

#[async_trait]
impl OperationPublisher for RestoreOperationPublisher<'_> {
    async fn store_operations(&self, operations: &[Operation]) -> bool {
        self.run.handle_stored_operations(self.write(operations).await).await
    }

    async fn publish_counts(&self, operations: &[Operation]) -> bool {
        self.run.publish_counts(operations).await
    }

    async fn publish_progress(&self, operations: &[Operation]) {
        self.claim_publisher.publish(operations, self.clients).await;
    }
}
