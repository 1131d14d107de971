//! The second stage: operations of plugins are followed to their ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bowline_api::BackupStatus;
use bowline_engine::backup::finalize;
use bowline_engine::operation::{Board, Counts, Operation, record};
use bowline_engine::phase::{self, Stage};
use bowline_engine::point::{self, Point};
use bowline_engine::report::{About, Report};
use bowline_store::BackupStore;
use bowline_store::file::{BackupOperation, Results};
use jiff::Timestamp;

use super::{Course, Then, WorkError, clean, failed, recover};
use crate::controllers::operations::{Actions, Audience, Followed, follow, tell_failed};
use crate::controllers::run::patiently;
use crate::events::{Milestone, passed};
use crate::story::one_line;

impl Course<'_> {
    /// Waits until all operations have ended.
    pub(super) async fn wait(&self) -> Result<Then, WorkError> {
        let store = recover::store(self.context, &self.backup).await?;
        let (operations, report) = self.operations(&store).await?;
        self.recall_log(&store).await?;
        let board = Arc::new(Board::new(operations));
        let actions = Actions::new(self.actions(), self.backup.clone());
        let waiting = Waiting { course: self, store: &store };
        let count = board.counts().attempted;
        self.tell(Milestone::OperationsStarted { count }).await;
        let uid = self.uid.as_str();
        match follow(self.context, uid, &board, &actions, &self.cancel, &waiting).await {
            Followed::Stopped => return Ok(Then::Left),
            Followed::Gone => {
                clean(&store, &self.name).await;
                return Ok(Then::Gone);
            }
            Followed::Over => {}
        }
        let operations = board.operations();
        tell_failed(&operations, &report);
        let status = match self.note_end(&store, &operations, &report).await {
            Ok(status) => status,
            Err(error) if error.is_retryable() => return Err(WorkError::Bucket(one_line(&error))),
            Err(error) => {
                let reason = format!("cannot write what operations came to: {}", one_line(&error));
                return Ok(Then::Over(Box::new(failed(&self.status(), reason))));
            }
        };
        let shown = patiently(|| self.show(&status)).await?;
        point::pass(Point::BackupFinalizing);
        if let Some(backup) = shown {
            return Ok(Then::Stage(Box::new(backup)));
        }
        clean(&store, &self.name).await;
        Ok(Then::Gone)
    }

    /// The operations of the backup, as the bucket knows them.
    pub(super) async fn operations(
        &self,
        store: &BackupStore,
    ) -> Result<(Vec<Operation>, Report), WorkError> {
        let report = Report::default();
        let read = store.get::<Vec<BackupOperation>>(&self.name).await;
        let records = bucket(read)?.unwrap_or_else(|| {
            report.error(About::Run, "the file of its operations is not in the bucket");
            Vec::new()
        });
        let began = self.status().start_timestamp.map_or_else(Timestamp::now, |time| time.0);
        let mut operations = Vec::new();
        for one in records {
            match record::from_backup(one, self.timeout(), began) {
                Ok(operation) => operations.push(operation),
                Err(error) => report.error(About::Run, error.to_string()),
            }
        }
        Ok((operations, report))
    }

    async fn keep(
        &self,
        store: &BackupStore,
        operations: &[Operation],
    ) -> Result<(), bowline_store::Error> {
        store.put(&self.name, &finalize::records(operations, self.of())).await
    }

    /// Writes what the operations came to. The results are written before the phase says that it is
    /// over, so that no failure is lost.
    async fn note_end(
        &self,
        store: &BackupStore,
        operations: &[Operation],
        report: &Report,
    ) -> Result<BackupStatus, bowline_store::Error> {
        patiently(|| self.keep(store, operations)).await?;
        point::pass(Point::OperationsWritten);
        let mut status = self.status();
        finalize::counted(&mut status, Counts::of(operations));
        self.add_results(store, report, &mut status).await?;
        status.phase = Some(phase::of_backup(Stage::Finalizing, status.errors > 0));
        Ok(status)
    }

    /// Adds to the results in the bucket, and counts what is in them.
    pub(super) async fn add_results(
        &self,
        store: &BackupStore,
        report: &Report,
        status: &mut BackupStatus,
    ) -> Result<(), bowline_store::Error> {
        let mut results = store.get::<Results>(&self.name).await?.unwrap_or_default();
        report.add_to(&mut results);
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        // More may have been counted than are kept.
        status.errors = status.errors.max(count(results.errors.count()));
        status.warnings = status.warnings.max(count(results.warnings.count()));
        patiently(|| store.put(&self.name, &results)).await
    }
}

/// Shows how the operations of a backup go.
struct Waiting<'a> {
    course: &'a Course<'a>,
    store: &'a BackupStore,
}

#[async_trait]
impl Audience for Waiting<'_> {
    async fn keep(&self, operations: &[Operation]) {
        if let Err(error) = self.course.keep(self.store, operations).await {
            tracing::warn!("operations cannot be written: {}", one_line(&error));
        }
        point::pass(Point::OperationsWritten);
    }

    async fn show(&self, counts: Counts) -> bool {
        let mut status = self.course.status();
        finalize::counted(&mut status, counts);
        if counts.failed > 0 {
            status.phase = Some(phase::of_backup(Stage::Waiting, true));
        }
        let (ended, total) = (counts.completed + counts.failed, counts.attempted);
        let told = self.course.told.load(Ordering::Relaxed);
        if let Some(percent) = passed(told, ended as u64, total as u64) {
            self.course.told.store(percent, Ordering::Relaxed);
            self.course.tell(Milestone::OperationsProgress { ended, total }).await;
        }
        // One that cannot be shown now is shown with the next change.
        !matches!(self.course.show(&status).await, Ok(None))
    }
}

/// What the bucket says. What may pass is tried again; what will not is as if it were not there.
pub(super) fn bucket<T>(
    read: Result<Option<T>, bowline_store::Error>,
) -> Result<Option<T>, WorkError> {
    match read {
        Err(error) if error.is_retryable() => Err(WorkError::Bucket(one_line(&error))),
        Err(error) => {
            tracing::error!("a file of the backup cannot be read: {}", one_line(&error));
            Ok(None)
        }
        Ok(found) => Ok(found),
    }
}
