//! The second stage: operations of plugins are followed to their ends.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::BackupStatus;
use bowline_engine::backup::{finalize, snapshot};
use bowline_engine::operation::{Board, Counts, Operation, record};
use bowline_engine::phase::{self, Stage};
use bowline_engine::point::{self, Point};
use bowline_engine::report::{About, Report};
use bowline_store::BackupStore;
use bowline_store::file::{BackupOperation, FreezeWindow, Own, Results};
use jiff::Timestamp;

use super::volumes::Resources;
use super::{Course, Then, WorkError, failed, recover};
use crate::controllers::operations::{Audience, Followed, follow, tell_failed};
use crate::controllers::run::{add_results, patiently};
use crate::events::Milestone;
use crate::story::one_line;

impl Course<'_> {
    /// Waits until all operations have ended.
    pub(super) async fn wait(&self) -> Result<Then, WorkError> {
        let store = recover::store(self.context, &self.backup).await?;
        let (operations, freezes, report) = self.operations(&store).await?;
        self.recall_log(&store).await?;
        let board = Arc::new(Board::new(operations));
        let resources = Resources::new(self.context, &self.backup);
        resources.learn(&self.csi_infos(&store, &board.operations()).await?);
        resources.show(&board.operations()).await;
        let asker = self.askers(&resources);
        let freezes = freezes.freeze_windows;
        let waiting = Waiting { course: self, store: &store, resources: &resources, freezes };
        let count = board.counts().attempted;
        self.tell(Milestone::OperationsStarted { count }).await;
        let uid = self.kit.uid.as_str();
        match follow(self.context, uid, &board, &asker, &self.kit.cancel, &waiting).await {
            Followed::Stopped => return Ok(Then::Left),
            Followed::Gone => {
                self.clean_up_recorded(&store).await?;
                return Ok(Then::Gone);
            }
            Followed::Over => {}
        }
        let operations = board.operations();
        resources.show(&operations).await;
        tell_failed(&operations, &report);
        snapshot::tell_not_uploaded(&operations, &report);
        let status = match self.note_end(&waiting, &operations, &report).await {
            Ok(status) => status,
            Err(error) if error.is_retryable() => return Err(WorkError::Bucket(one_line(&error))),
            Err(error) => {
                let left = self.abandon_csi(&operations).await;
                let error = one_line(&error);
                let reason = format!("cannot write what operations came to: {error}{left}");
                return Ok(Then::Over(Box::new(failed(&self.status(), reason))));
            }
        };
        let shown = patiently(|| self.show(&status)).await?;
        point::pass(Point::BackupFinalizing);
        if let Some(backup) = shown {
            return Ok(Then::Stage(Box::new(backup)));
        }
        self.clean_up_recorded(&store).await?;
        Ok(Then::Gone)
    }

    /// The operations of the backup, as the bucket knows them, and what else our own file says.
    pub(super) async fn operations(
        &self,
        store: &BackupStore,
    ) -> Result<(Vec<Operation>, Own, Report), WorkError> {
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
        // A backup of Velero's has no such file.
        let read = store.get::<Own>(&self.name).await;
        if let Err(error) = &read
            && !error.is_retryable()
        {
            let text = format!("what became of its snapshots is not known: {}", one_line(error));
            report.error(About::Run, text);
        }
        let mut own = bucket(read)?.unwrap_or_default();
        for one in std::mem::take(&mut own.volume_operations) {
            match record::from_volume(one, self.timeout(), began) {
                Ok(operation) => operations.push(operation),
                Err(error) => report.error(About::Run, error.to_string()),
            }
        }
        Ok((operations, own, report))
    }

    /// Writes what the operations came to. The results are written before the phase says that it is
    /// over, so that no failure is lost.
    async fn note_end(
        &self,
        waiting: &Waiting<'_>,
        operations: &[Operation],
        report: &Report,
    ) -> Result<BackupStatus, bowline_store::Error> {
        let store = waiting.store;
        patiently(|| waiting.write(operations)).await?;
        point::pass(Point::OperationsWritten);
        let mut status = self.status();
        finalize::counted(&mut status, operations);
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
        add_results(&mut results, report, &mut status.errors, &mut status.warnings);
        patiently(|| store.put(&self.name, &results)).await
    }
}

/// Shows how the operations of a backup go.
struct Waiting<'a> {
    course: &'a Course<'a>,
    store: &'a BackupStore,
    resources: &'a Resources<'a>,
    freezes: Vec<FreezeWindow>,
}

impl Waiting<'_> {
    /// Writes operations to the bucket.
    async fn write(&self, operations: &[Operation]) -> Result<(), bowline_store::Error> {
        let Self { course, store, .. } = self;
        store.put(&course.name, &finalize::records(operations, course.of())).await?;
        if operations.iter().any(|operation| operation.kind.is_of_volume()) {
            let own = finalize::own(operations, self.freezes.clone());
            store.put(&course.name, &own).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Audience for Waiting<'_> {
    async fn keep(&self, operations: &[Operation]) -> bool {
        let kept = self.write(operations).await;
        if let Err(error) = &kept {
            tracing::warn!("operations cannot be written: {}", one_line(error));
        }
        point::pass(Point::OperationsWritten);
        kept.is_ok()
    }

    async fn show(&self, operations: &[Operation]) -> bool {
        let counts = Counts::of(operations);
        let mut status = self.course.status();
        finalize::counted(&mut status, operations);
        if counts.failed > 0 {
            status.phase = Some(phase::of_backup(Stage::Waiting, true));
        }
        if let Some(milestone) = self.course.kit.milestone(counts) {
            self.course.tell(milestone).await;
        }
        // One that cannot be shown now is shown with the next change.
        !matches!(self.course.show(&status).await, Ok(None))
    }

    async fn progress(&self, operations: &[Operation]) {
        self.resources.show(operations).await;
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
