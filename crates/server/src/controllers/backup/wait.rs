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
use crate::controllers::bucket_wait::{try_bucket, unless_canceled};
use crate::controllers::operations::{Audience, Followed, follow, tell_failed};
use crate::controllers::run::{add_results, patiently};
use crate::events::Milestone;
use crate::story::one_line;

impl Course<'_> {
    /// Waits until all operations have ended.
    pub(super) async fn wait(&self) -> Result<Then, WorkError> {
        let store = self.ask(recover::store(self.context, &self.backup)).await?;
        let Recalled { operations, own, report, unreadable } =
            self.ask(self.operations(&store)).await?;
        self.recall_log(&store).await?;
        let infos = self.ask(self.csi_infos(&store, &operations)).await?;
        let board = Arc::new(Board::new(operations));
        let resources = Resources::new(self.context, &self.backup);
        resources.learn(&infos);
        resources.show(&board.operations()).await;
        let asker = self.askers(&resources);
        let freezes = own.freeze_windows;
        let (course, store, resources) = (self, &store, &resources);
        let waiting = Waiting { course, store, resources, freezes, unreadable };
        let count = board.counts().attempted;
        self.tell(Milestone::OperationsStarted { count }).await;
        let uid = self.kit.uid.as_str();
        match follow(self.context, uid, &board, &asker, &self.kit.cancel, &waiting).await {
            Followed::Stopped => return Ok(Then::Left),
            Followed::Gone => {
                self.clean_up_recorded(store).await?;
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
            Err(error) => {
                if let Some(error) = WorkError::of_write(&error) {
                    return Err(error);
                }
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
        self.clean_up_recorded(store).await?;
        Ok(Then::Gone)
    }

    /// The operations of the backup, as the bucket knows them, and what else our own file says.
    pub(super) async fn operations(&self, store: &BackupStore) -> Result<Recalled, WorkError> {
        let report = Report::default();
        let mut unreadable = Unreadable::default();
        let records = match bucket(store.get::<Vec<BackupOperation>>(&self.name).await)? {
            Contents::Found(records) => records,
            Contents::Absent => {
                report.error(About::Run, "the file of its operations is not in the bucket");
                Vec::new()
            }
            Contents::Unreadable(reason) => {
                unreadable.operations = true;
                report.error(About::Run, format!("its operations are not known: {reason}"));
                Vec::new()
            }
        };
        let began = self.status().start_timestamp.map_or_else(Timestamp::now, |time| time.0);
        let mut operations = Vec::new();
        for one in records {
            match record::from_backup(one, self.timeout(), began) {
                Ok(operation) => operations.push(operation),
                Err(error) => report.error(About::Run, error.to_string()),
            }
        }
        // A backup of Velero's has no such file.
        let mut own = match bucket(store.get::<Own>(&self.name).await)? {
            Contents::Found(own) => own,
            Contents::Absent => Own::default(),
            Contents::Unreadable(reason) => {
                unreadable.own = true;
                let text = format!("what became of its snapshots is not known: {reason}");
                report.error(About::Run, text);
                Own::default()
            }
        };
        for one in std::mem::take(&mut own.volume_operations) {
            match record::from_volume(one, self.timeout(), began) {
                Ok(operation) => operations.push(operation),
                Err(error) => report.error(About::Run, error.to_string()),
            }
        }
        Ok(Recalled { operations, own, report, unreadable })
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
        try_bucket(&self.kit.cancel, || waiting.write(operations)).await?;
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
        let cancel = &self.kit.cancel;
        let read = unless_canceled(cancel, store.get::<Results>(&self.name), || {
            Err(bowline_store::Error::GivenUp)
        });
        let mut results = read.await?.unwrap_or_default();
        add_results(&mut results, report, &mut status.errors, &mut status.warnings);
        try_bucket(cancel, || store.put(&self.name, &results)).await
    }
}

/// What the bucket knows of the operations of a backup.
pub(super) struct Recalled {
    pub(super) operations: Vec<Operation>,
    pub(super) own: Own,
    /// What could not be read, for the results.
    pub(super) report: Report,
    pub(super) unreadable: Unreadable,
}

/// Files that are there and cannot be read. They are left as they are: somebody may yet learn something from
/// them, and nothing from the empty list that we would write.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unreadable {
    operations: bool,
    pub(super) own: bool,
}

/// Shows how the operations of a backup go.
struct Waiting<'a> {
    course: &'a Course<'a>,
    store: &'a BackupStore,
    resources: &'a Resources<'a>,
    freezes: Vec<FreezeWindow>,
    unreadable: Unreadable,
}

impl Waiting<'_> {
    /// Writes operations to the bucket.
    async fn write(&self, operations: &[Operation]) -> Result<(), bowline_store::Error> {
        let Self { course, store, unreadable, .. } = self;
        if !unreadable.operations {
            store.put(&course.name, &finalize::records(operations, course.of())).await?;
        }
        let has_volumes = operations.iter().any(|operation| operation.kind.is_of_volume());
        if has_volumes && !unreadable.own {
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

/// What a file of a backup holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Contents<T> {
    Found(T),
    /// There is no such file.
    Absent,
    /// It is there, and is not what it should be, for a reason. It never will be.
    Unreadable(String),
}

impl<T> Contents<T> {
    /// What was found, if anything.
    pub(super) fn found(self) -> Option<T> {
        match self {
            Self::Found(found) => Some(found),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }
}

/// What the bucket says. Only what it says counts: a bucket that does not answer, or refuses to, is asked
/// again.
pub(super) fn bucket<T>(
    read: Result<Option<T>, bowline_store::Error>,
) -> Result<Contents<T>, WorkError> {
    match read {
        Ok(Some(found)) => Ok(Contents::Found(found)),
        Ok(None) => Ok(Contents::Absent),
        Err(error) if error.is_retryable() => Err(WorkError::Bucket(one_line(&error))),
        Err(error @ bowline_store::Error::Unreadable { .. }) => {
            let reason = one_line(&error);
            tracing::error!("a file of the backup cannot be read: {reason}");
            Ok(Contents::Unreadable(reason))
        }
        Err(error) => Err(WorkError::Refused(one_line(&error))),
    }
}

#[cfg(test)]
mod tests {
    use bowline_plugin::Code;
    use bowline_store::{Error, decode};

    use super::*;

    #[test]
    fn only_what_the_bucket_says_is_taken_for_a_fact() {
        let told = |read| match bucket::<u8>(read) {
            Ok(Contents::Found(_)) => "found",
            Ok(Contents::Absent) => "absent",
            Ok(Contents::Unreadable(_)) => "unreadable",
            Err(WorkError::Bucket(_)) => "later",
            Err(WorkError::Refused(_)) => "refused",
            Err(other) => panic!("{other}"),
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
            (Err(Error::GivenUp), "later"),
            (Err(unreadable(decode::Error::Damaged(damaged))), "later"),
            (Err(unreadable(decode::Error::Json(json))), "unreadable"),
            (Err(unreadable(decode::Error::TooLarge(1))), "unreadable"),
        ] {
            assert_eq!(told(read), expected);
        }
    }
}
