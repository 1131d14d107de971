//! The stages behind the items: operations of plugins are followed to their ends, and the last files are
//! written.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::RestoreStatus;
use bowline_engine::journal::Recovered;
use bowline_engine::operation::{Board, Counts, Operation, record};
use bowline_engine::phase::{self, Stage};
use bowline_engine::point::{self, Point};
use bowline_engine::report::{About, Report};
use bowline_engine::restore::finalize;
use bowline_store::BackupStore;
use bowline_store::file::{RestoreOperation, Results};
use futures::stream;
use jiff::Timestamp;

use super::csi::{Askers, Showing};
use super::{Course, Then, WorkError, canceled_status};
use crate::controllers::bucket_wait::{BucketFailure, try_bucket, unless_canceled};
use crate::controllers::operations::{Audience, Followed, follow, tell_failed};
use crate::controllers::run::{add_results, patiently};
use crate::events::Milestone;
use crate::story::one_line;

impl Course<'_> {
    /// Waits until all operations have ended.
    pub(super) async fn wait(
        &self,
        store: &BackupStore,
        recovered: Option<&Recovered>,
    ) -> Result<Then, WorkError> {
        let Recalled { operations, report, is_unreadable } =
            self.ask(self.operations(store, recovered)).await?;
        self.recall_log(store).await?;
        let board = Arc::new(Board::new(operations));
        let askers = self.askers(&board.operations()).await;
        let showing = self.showing(&board.operations(), store).await;
        showing.show(&board.operations(), &askers).await;
        let count = board.counts().attempted;
        self.tell(Milestone::OperationsStarted { count }).await;
        let uid = self.kit.uid.as_str();
        let (askers, showing) = (&askers, &showing);
        let waiting = Waiting { course: self, store, askers, showing, is_unreadable };
        let followed = tokio::select! {
            followed = follow(self.context, uid, &board, askers, &self.kit.cancel, &waiting) => followed,
            () = askers.run() => Followed::Stopped,
        };
        showing.show(&board.operations(), askers).await;
        match followed {
            Followed::Stopped => return Ok(Then::Left),
            Followed::Gone => return Ok(Then::Gone),
            Followed::Over => {}
        }
        let operations = board.operations();
        tell_failed(&operations, &report);
        let status = self.note_end(&waiting, &operations, &report).await;
        let status = status.map_err(|error| WorkError::of_write(&error))?;
        let shown = patiently(|| self.show(&status)).await?;
        Ok(shown.map_or(Then::Gone, |restore| Then::Stage(Box::new(restore))))
    }

    /// Ends a restore whose operations have ended.
    pub(super) async fn finish(&self, store: &BackupStore) -> Result<Then, WorkError> {
        self.recall_log(store).await?;
        let status = if self.kit.cancel.is_cancelled() {
            self.status()
        } else {
            let Some(status) = Box::pin(self.settle_volumes(store)).await? else {
                return Ok(Then::Left);
            };
            status
        };
        let log = self.kit.log.snapshot();
        let put = || {
            let log = Box::pin(stream::iter([Ok(log.clone())]));
            store.put_restore_log(&self.name, log)
        };
        if let Err(error) = try_bucket(&self.kit.cancel, put).await {
            tracing::warn!("the end of the log cannot be written: {}", one_line(&error));
        }
        Ok(Then::Over(Box::new(if self.kit.cancel.is_cancelled() {
            canceled_status(&status)
        } else {
            finalize::conclude(&status, Timestamp::now())
        })))
    }

    /// The operations of the restore, as the bucket knows them; as the journal does if the file is damaged.
    pub(super) async fn operations(
        &self,
        store: &BackupStore,
        recovered: Option<&Recovered>,
    ) -> Result<Recalled, WorkError> {
        let report = Report::default();
        let began = self.status().start_timestamp.map_or_else(Timestamp::now, |time| time.0);
        let mut is_unreadable = false;
        let read = store.get_of_restore::<Vec<RestoreOperation>>(&self.name).await;
        let records = match read {
            Ok(Some(records)) => records,
            Ok(None) => {
                report.error(About::Run, "the file of its operations is not in the bucket");
                Vec::new()
            }
            Err(error) if BucketFailure::of_read(&error).is_some() => {
                return Err(WorkError::of_read(&error));
            }
            Err(error) => {
                is_unreadable = true;
                let text = format!("the file of its operations is damaged: {}", one_line(&error));
                report.error(About::Run, text);
                let ended = recovered.into_iter().flat_map(|recovered| &recovered.finished);
                ended.flat_map(|ended| ended.restore_operations.clone()).collect()
            }
        };
        let mut operations = Vec::new();
        for one in records {
            match record::from_restore(one, self.timeout(), began) {
                Ok(operation) => operations.push(operation),
                Err(error) => report.error(About::Run, error.to_string()),
            }
        }
        Ok(Recalled { operations, report, is_unreadable })
    }

    /// Writes what the operations came to. The results are written before the phase says that it is
    /// over, so that no failure is lost.
    async fn note_end(
        &self,
        waiting: &Waiting<'_>,
        operations: &[Operation],
        report: &Report,
    ) -> Result<RestoreStatus, bowline_store::Error> {
        let (store, cancel) = (waiting.store, &self.kit.cancel);
        try_bucket(cancel, || waiting.write(operations)).await?;
        point::pass(Point::OperationsWritten);
        let mut status = self.status();
        finalize::counted(&mut status, Counts::of(operations));
        let read = unless_canceled(cancel, store.get_of_restore::<Results>(&self.name), || {
            Err(bowline_store::Error::GivenUp)
        });
        let mut results = read.await?.unwrap_or_default();
        add_results(&mut results, report, &mut status.errors, &mut status.warnings);
        try_bucket(cancel, || store.put_of_restore(&self.name, &results)).await?;
        point::pass(Point::ResultsWritten);
        status.phase = Some(phase::of_restore(Stage::Finalizing, status.errors > 0));
        Ok(status)
    }

    /// Lets the log go on from what an earlier process has written of it.
    async fn recall_log(&self, store: &BackupStore) -> Result<(), WorkError> {
        if self.kit.wants_log() {
            let read = self.ask(async {
                let read = store.restore_log(&self.name).await;
                read.map_err(|error| WorkError::of_read(&error))
            });
            if let Some(log) = read.await? {
                self.kit.log.go_on_from(&log);
            }
        }
        Ok(())
    }
}

/// What is known of the operations of a restore.
pub(super) struct Recalled {
    pub(super) operations: Vec<Operation>,
    /// What could not be read, for the results.
    pub(super) report: Report,
    /// Whether the file is there and cannot be read. It is left as it is.
    is_unreadable: bool,
}

/// Shows how the operations of a restore go.
struct Waiting<'a> {
    course: &'a Course<'a>,
    store: &'a BackupStore,
    askers: &'a Askers,
    showing: &'a Showing,
    is_unreadable: bool,
}

impl Waiting<'_> {
    /// Writes operations to the bucket.
    async fn write(&self, operations: &[Operation]) -> Result<(), bowline_store::Error> {
        if self.is_unreadable {
            return Ok(());
        }
        let records = finalize::records(operations, self.course.of());
        self.store.put_of_restore(&self.course.name, &records).await
    }
}

#[async_trait]
impl Audience for Waiting<'_> {
    async fn keep(&self, operations: &[Operation]) -> bool {
        let kept = self.write(operations).await;
        match &kept {
            Ok(()) => self.course.kit.note_bucket_back(self.course.context).await,
            Err(error) => tracing::warn!("operations cannot be written: {}", one_line(error)),
        }
        point::pass(Point::OperationsWritten);
        kept.is_ok()
    }

    async fn show(&self, operations: &[Operation]) -> bool {
        let counts = Counts::of(operations);
        let mut status = self.course.status();
        finalize::counted(&mut status, counts);
        if counts.failed > 0 {
            status.phase = Some(phase::of_restore(Stage::Waiting, true));
        }
        if let Some(milestone) = self.course.kit.milestone(counts) {
            self.course.tell(milestone).await;
        }
        // One that cannot be shown now is shown with the next change.
        !matches!(self.course.show(&status).await, Ok(None))
    }

    async fn progress(&self, operations: &[Operation]) {
        self.showing.show(operations, self.askers).await;
    }
}
