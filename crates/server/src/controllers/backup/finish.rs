//! The last stage: items that operations have changed are stored again, and the commit record is
//! written.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use bowline_engine::backup::csi::{self, Target};
use bowline_engine::backup::{Progress, Recovery, finalize, replace, snapshot};
use bowline_engine::operation::Operation;
use bowline_engine::point::{self, Point};
use bowline_engine::report::{About, Report};
use bowline_plugin::ResourceIdentifier;
use bowline_store::BackupStore;
use bowline_store::file::{BackupVolumeInfo, Own, Snapshot};
use futures::stream;
use jiff::Timestamp;

use super::commit::{Conclusion, Recorded, commit};
use super::csi::without_failed;
use super::volumes::Resources;
use super::wait::{Contents, Recalled, bucket};
use super::{Course, Then, WorkError, canceled_reason, canceled_with_results, failed, recover};
use crate::controllers::bucket_wait::{try_bucket, unless_canceled};
use crate::story::one_line;

impl Course<'_> {
    /// Ends a backup whose operations have ended.
    pub(super) async fn finish(&self) -> Result<Then, WorkError> {
        let store = match self.ask(recover::committed(self.context, &self.backup)).await? {
            recover::Committed::Yes(status) => {
                // Its files are there, and so are maybe the objects of its snapshots.
                let store = recover::store(self.context, &self.backup).await?;
                self.release_csi(&store).await?;
                return Ok(Then::Over(status));
            }
            recover::Committed::No(store) => store,
        };
        if self.kit.cancel.is_cancelled() && !self.is_there().await? {
            self.clean_up_recorded(&store).await?;
            return Ok(Then::Gone);
        }
        let Recalled { mut operations, own, report, unreadable } =
            self.ask(self.operations(&store)).await?;
        let own = (!unreadable.own).then_some(own);
        let infos = self.ask(self.csi_infos(&store, &operations)).await?;
        if !self.kit.cancel.is_cancelled() {
            self.keep_csi(&mut operations, &infos, &report).await?;
        }
        let items = without_failed(replace::items_of(&operations), &operations, &infos);
        if !items.is_empty() && !self.kit.cancel.is_cancelled() {
            self.replace(&store, items, &report).await?;
            point::pass(Point::ArchiveReplaced);
        }
        // From here on it is settled whether it was cancelled.
        let is_canceled = self.kit.cancel.is_cancelled();
        self.settle_volumes(&store, &operations, own, is_canceled, &report).await?;
        if is_canceled {
            report.error(About::Run, canceled_reason());
        }
        let mut status = self.status();
        if let Err(error) = self.add_results(&store, &report, &mut status).await {
            if let Some(error) = WorkError::of_write(&error) {
                return Err(error);
            }
            let left = self.abandon_csi(&operations).await;
            let reason = format!("cannot write the results: {}{left}", one_line(&error));
            return Ok(Then::Over(Box::new(failed(&status, reason))));
        }
        point::pass(Point::ResultsWritten);
        self.write_log(&store).await?;
        let status = if is_canceled { canceled_with_results(&status) } else { status };
        let unknown = || WorkError::Commit("no answer since the backup was canceled".into());
        let committing = commit(&store, &self.backup, &status);
        let conclusion = unless_canceled(&self.kit.cancel, committing, || Err(unknown())).await?;
        let Conclusion { mut status, recorded, refusal } = conclusion;
        if let Some(refusal) = refusal {
            return Err(WorkError::WriteRefused(refusal));
        }
        match recorded {
            Recorded::Yes => self.release_csi(&store).await?,
            Recorded::No => status.failure_reason.push_str(&self.abandon_csi(&operations).await),
            Recorded::Unknown => status.failure_reason.push_str(&self.tell_kept_csi()),
        }
        Ok(Then::Over(Box::new(status)))
    }

    /// Writes what became of the volumes of the backup, and of their snapshots. Files that cannot be read are
    /// left as they are; `own` is none if ours is one of those.
    async fn settle_volumes(
        &self,
        store: &BackupStore,
        operations: &[Operation],
        own: Option<Own>,
        is_canceled: bool,
        report: &Report,
    ) -> Result<(), WorkError> {
        let snapshots = self.ask(async { bucket(store.get::<Vec<Snapshot>>(&self.name).await) });
        let (snapshots, has_snapshots) = told(snapshots.await?, "its snapshots", report);
        let by_csi: Vec<Target> = operations.iter().filter_map(Target::of_operation).collect();
        if snapshots.is_empty() && by_csi.is_empty() {
            return Ok(());
        }
        let infos =
            self.ask(async { bucket(store.get::<Vec<BackupVolumeInfo>>(&self.name).await) });
        let (mut infos, has_infos) = told(infos.await?, "its volumes", report);
        let resources = Resources::new(self.context, &self.backup);
        resources.learn(&infos);
        resources.show(operations).await;
        resources.end(operations).await;
        let shown = resources.all().await?;
        let mut snapshots =
            if is_canceled { self.discard(snapshots, report).await } else { snapshots };
        snapshot::settle(operations, &mut snapshots, &mut infos);
        csi::settle(operations, &mut infos);
        if is_canceled {
            snapshot::forget_discarded(&snapshots, &mut infos);
            let left = self.discard_csi(&by_csi, report).await;
            csi::forget_discarded(&by_csi, &left, &mut infos);
        } else {
            let (_, failed) = csi::targets(operations);
            let left = self.discard_csi(&failed, report).await;
            csi::forget_discarded(&failed, &left, &mut infos);
        }
        let is_kept = |volume: &str| {
            !is_canceled || snapshots.iter().any(|one| one.spec.persistent_volume_name == volume)
        };
        let kept: Vec<Operation> =
            operations.iter().filter(|one| is_kept(&one.item.name)).cloned().collect();
        let own = own.map(|own| finalize::own(&kept, own.freeze_windows));
        let written = try_bucket(&self.kit.cancel, || async {
            if let Some(own) = &own {
                store.put(&self.name, own).await?;
            }
            if has_snapshots {
                store.put(&self.name, &snapshots).await?;
            }
            if has_infos {
                store.put(&self.name, &infos).await?;
            }
            store.put(&self.name, &shown).await
        });
        written.await.map_err(|error| {
            WorkError::of_write(&error).unwrap_or_else(|| WorkError::Bucket(one_line(&error)))
        })?;
        point::pass(Point::VolumesSettled);
        Ok(())
    }

    /// Stores items again that operations have changed.
    async fn replace(
        &self,
        store: &BackupStore,
        items: BTreeSet<ResourceIdentifier>,
        report: &Report,
    ) -> Result<(), WorkError> {
        let request = match self.request().await? {
            Ok((request, _)) => request,
            Err(errors) => {
                let text = format!("items that operations changed are not stored again: {errors}");
                report.error(About::Run, text);
                return Ok(());
            }
        };
        let progress = Arc::new(Progress::default());
        let run = self.engine_run(request, store.clone(), Recovery::default(), progress);
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let replaced = Box::pin(replace::run(run, &items, &noted, Timestamp::now())).await;
        let (errors, warnings) = replaced.report.messages();
        report.take_over(errors, warnings);
        match replaced.outcome {
            Ok(count) => tracing::info!(items = count, "items were stored again"),
            Err(fatal) => {
                let reason = fatal.told();
                let text = format!("items that operations changed are not stored again: {reason}");
                report.error(About::Run, text);
            }
        }
        Ok(())
    }

    /// Lets the log go on from what an earlier process has written of it.
    pub(super) async fn recall_log(&self, store: &BackupStore) -> Result<(), WorkError> {
        if self.kit.wants_log() {
            let log = self.ask(async { bucket(store.log(&self.name).await) }).await?;
            if let Contents::Found(log) = log {
                self.kit.log.go_on_from(&log);
            }
        }
        Ok(())
    }

    /// Adds to the log in the bucket what was logged since.
    async fn write_log(&self, store: &BackupStore) -> Result<(), WorkError> {
        self.recall_log(store).await?;
        let log = self.kit.log.snapshot();
        let put = || store.put_log(&self.name, Box::pin(stream::iter([Ok(log.clone())])));
        if let Err(error) = try_bucket(&self.kit.cancel, put).await {
            tracing::warn!("the end of the log cannot be written: {}", one_line(&error));
        }
        Ok(())
    }
}

/// A list of a backup, and whether it may be written anew. One that cannot be read is told, and may not.
fn told<T>(contents: Contents<Vec<T>>, what: &str, report: &Report) -> (Vec<T>, bool) {
    match contents {
        Contents::Found(list) => (list, true),
        Contents::Absent => (Vec::new(), true),
        Contents::Unreadable(reason) => {
            report.error(About::Run, format!("the list of {what} cannot be read: {reason}"));
            (Vec::new(), false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_is_told_and_not_written_anew() {
        let report = Report::default();
        assert_eq!(told(Contents::Found(vec![1]), "its snapshots", &report), (vec![1], true));
        assert_eq!(told(Contents::<Vec<u8>>::Absent, "its snapshots", &report), (vec![], true));
        assert_eq!(report.errors(), 0);
        let unreadable = Contents::<Vec<u8>>::Unreadable("no JSON".to_owned());
        assert_eq!(told(unreadable, "its snapshots", &report), (vec![], false));
        let told = serde_json::to_string(&report.results()).unwrap();
        assert!(told.contains("its snapshots") && told.contains("no JSON"), "{told}");
    }
}
