//! The last stage: items that operations have changed are stored again, and the commit record is written.

use std::collections::BTreeSet;
use std::sync::Arc;

use bowline_api::Backup;
use bowline_engine::backup::csi::{self, Target};
use bowline_engine::backup::{Progress, Recovery, finalize, replace, snapshot};
use bowline_engine::failpoint::{self, Failpoint};
use bowline_engine::operation::Operation;
use bowline_engine::report::{Report, ReportSubject};
use bowline_plugin::ResourceIdentifier;
use bowline_store::BackupStore;
use bowline_store::file::{BackupVolumeInfo, BowlineBackupInfo, Snapshot};
use futures::stream;
use jiff::Timestamp;

use super::commit::{CommitResult, RecordState, commit, commit_unknown};
use super::csi::without_failed;
use super::volumes::SnapshotResources;
use super::wait::{FileContents, LoadedOperations, file_contents};
use super::{
    BackupRun, NextStage, RunError, RunObject as _, RunStatus as _, canceled_reason,
    canceled_status_with_results, recover,
};
use crate::controllers::bucket_wait::{BucketFailure, retry_bucket_call, with_cancel_grace};
use crate::controllers::run::BucketCause;
use crate::error_text::status_message;

impl BackupRun<'_> {
    /// Ends a backup whose operations have ended.
    pub(super) async fn finish(&self) -> Result<NextStage, RunError> {
        let store =
            match self.wait_for_bucket(recover::commit_state(self.context, &self.object)).await? {
                recover::CommitState::Committed(status) => {
                    // The files exist, and so may the objects of its snapshots.
                    let store = recover::open_store(self.context, &self.object).await?;
                    self.release_csi(&store).await?;
                    return Ok(NextStage::Finished(status));
                }
                recover::CommitState::Uncommitted(store) => store,
            };
        let earlier = self.recovered.as_ref().and_then(|recovered| recovered.commit_attempted);
        if self.resources.cancel.is_cancelled() && !self.object_exists().await? {
            if earlier.is_some() {
                tracing::info!(
                    "velero-backup.json may still arrive in the bucket; cleanup deletes what the \
                     backup created if it does not"
                );
                self.resources.keep_journal();
                return Ok(NextStage::ObjectGone);
            }
            self.delete_listed_leftovers(&store).await?;
            return Ok(NextStage::ObjectGone);
        }
        // An earlier attempt to commit has decided this: its record may still arrive.
        let is_canceled = || {
            earlier
                .map_or_else(|| self.resources.cancel.is_cancelled(), |attempt| attempt.is_canceled)
        };
        let LoadedOperations { mut operations, own, report, unreadable } =
            self.wait_for_bucket(self.load_operations(&store)).await?;
        let own = (!unreadable.own).then_some(own);
        let infos = self.wait_for_bucket(self.csi_infos(&store, &operations)).await?;
        if !is_canceled() {
            self.retain_csi(&mut operations, &infos, &report).await?;
        }
        let items = without_failed(replace::items_of(&operations), &operations, &infos);
        if !items.is_empty() && !is_canceled() {
            self.store_items_again(&store, items, &report).await?;
            failpoint::hit(Failpoint::ArchiveReplaced);
        }
        // Read once: a later cancellation has no effect.
        let is_canceled = is_canceled();
        self.settle_volumes(&store, &operations, own, is_canceled, &report).await?;
        if is_canceled {
            report.error(ReportSubject::Run, canceled_reason());
        }
        let mut status = self.status();
        if let Err(error) = self.add_results(&store, &report, &mut status).await {
            if BucketFailure::of_write(&error).is_some() {
                return Err(RunError::of_write::<Backup>(error));
            }
            if earlier.is_some() {
                let reason = format!("cannot write the results: {}", status_message(&error));
                let remaining = self.kept_csi_message();
                return Ok(NextStage::finished(status.failed(format!("{reason}{remaining}"))));
            }
            let leftovers = self.delete_unrecorded_csi_snapshots(&operations).await;
            let reason = format!("cannot write the results: {}{leftovers}", status_message(&error));
            return Ok(NextStage::finished(status.failed(reason)));
        }
        failpoint::hit(Failpoint::ResultsWritten);
        self.write_log(&store).await?;
        let status = if is_canceled { canceled_status_with_results(&status) } else { status };
        let unknown = || commit_unknown(BucketCause::Canceled(Backup::NOUN));
        self.resources.journal_commit(is_canceled).await?;
        let committing = commit(&store, &self.object, &status, earlier.is_some());
        let result =
            with_cancel_grace(&self.resources.cancel, committing, || Err(unknown())).await?;
        let CommitResult { mut status, recorded, refusal } = result;
        if let Some(refusal) = refusal {
            return Err(RunError::of_bucket::<Backup>(BucketFailure::WriteRefused, refusal));
        }
        match recorded {
            RecordState::Yes => self.release_csi(&store).await?,
            RecordState::No => {
                status
                    .failure_reason
                    .push_str(&self.delete_unrecorded_csi_snapshots(&operations).await);
            }
            RecordState::Unknown => status.failure_reason.push_str(&self.kept_csi_message()),
        }
        Ok(NextStage::finished(status))
    }

    /// Writes the outcome for the volumes of the backup and their snapshots. Files that cannot be read are left as they
    /// are; `own` is none if Bowline's file is one of those.
    async fn settle_volumes(
        &self,
        store: &BackupStore,
        operations: &[Operation],
        own: Option<BowlineBackupInfo>,
        is_canceled: bool,
        report: &Report,
    ) -> Result<(), RunError> {
        let snapshots = self
            .wait_for_bucket(async { file_contents(store.get::<Vec<Snapshot>>(&self.name).await) });
        let (snapshots, has_snapshots) = list_or_report(snapshots.await?, "snapshots", report);
        let by_csi: Vec<Target> = operations.iter().filter_map(Target::of_operation).collect();
        if snapshots.is_empty() && by_csi.is_empty() {
            return Ok(());
        }
        let infos = self.wait_for_bucket(async {
            file_contents(store.get::<Vec<BackupVolumeInfo>>(&self.name).await)
        });
        let (mut infos, has_infos) = list_or_report(infos.await?, "volumes", report);
        let resources = SnapshotResources::new(self.context, &self.object);
        resources.learn_csi_snapshots(&infos);
        resources.show(operations).await;
        resources.end_resources(operations).await;
        let shown = resources.stored_resources().await?;
        let mut snapshots = if is_canceled {
            self.delete_plugin_snapshots(snapshots, report).await
        } else {
            snapshots
        };
        snapshot::apply_operation_results(operations, &mut snapshots, &mut infos);
        csi::apply_operation_results(operations, &mut infos);
        if is_canceled {
            snapshot::clear_discarded_ids(&snapshots, &mut infos);
            let leftovers = self.delete_csi_snapshots(&by_csi, report).await;
            csi::clear_discarded_handles(&by_csi, &leftovers, &mut infos);
        } else {
            let (_, failed) = csi::targets_of_operations(operations);
            let leftovers = self.delete_csi_snapshots(&failed, report).await;
            csi::clear_discarded_handles(&failed, &leftovers, &mut infos);
        }
        let is_kept = |volume: &str| {
            !is_canceled || snapshots.iter().any(|one| one.spec.persistent_volume_name == volume)
        };
        let kept_operations: Vec<Operation> =
            operations.iter().filter(|one| is_kept(&one.item.name)).cloned().collect();
        let own = own.map(|own| finalize::build_bowline_info(&kept_operations, own.freeze_windows));
        let written = retry_bucket_call(&self.resources.cancel, || async {
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
        written.await.map_err(RunError::of_write::<Backup>)?;
        failpoint::hit(Failpoint::VolumesSettled);
        Ok(())
    }

    /// Stores items again that operations have changed.
    async fn store_items_again(
        &self,
        store: &BackupStore,
        items: BTreeSet<ResourceIdentifier>,
        report: &Report,
    ) -> Result<(), RunError> {
        let request = match self.prepare_request().await? {
            Ok((request, _)) => request,
            Err(errors) => {
                let text = format!("cannot back up items again that operations updated: {errors}");
                report.error(ReportSubject::Run, text);
                return Ok(());
            }
        };
        let progress = Arc::new(Progress::default());
        let run = self.build_engine_input(request, store.clone(), Recovery::default(), progress);
        let journaled_items = self.journaled_items.lock().clone();
        let replaced =
            Box::pin(replace::run(run, &items, &journaled_items, Timestamp::now())).await;
        let (errors, warnings) = replaced.report.messages();
        report.append(errors, warnings);
        match replaced.outcome {
            Ok(count) => {
                tracing::info!(items = count, "backed up items again that operations updated");
            }
            Err(fatal) => {
                let reason = fatal.error_chain();
                let text = format!("cannot back up items again that operations updated: {reason}");
                report.error(ReportSubject::Run, text);
            }
        }
        Ok(())
    }

    /// Makes the log continue what an earlier process has written.
    pub(super) async fn continue_log(&self, store: &BackupStore) -> Result<(), RunError> {
        let read = async { Ok(file_contents(store.log(&self.name).await)?.into_found()) };
        self.load_earlier_log(read).await
    }

    /// Appends new log lines to the log in the bucket.
    async fn write_log(&self, store: &BackupStore) -> Result<(), RunError> {
        self.continue_log(store).await?;
        let log = self.resources.log.snapshot();
        let put = || store.put_log(&self.name, Box::pin(stream::iter([Ok(log.clone())])));
        if let Err(error) = retry_bucket_call(&self.resources.cancel, put).await {
            tracing::warn!("the end of the log cannot be written: {}", status_message(&error));
        }
        Ok(())
    }
}

/// A list of a backup, and true if it may be rewritten. An unreadable list is reported, and may not be rewritten.
fn list_or_report<T>(
    contents: FileContents<Vec<T>>,
    what: &str,
    report: &Report,
) -> (Vec<T>, bool) {
    match contents {
        FileContents::Found(list) => (list, true),
        FileContents::Absent => (Vec::new(), true),
        FileContents::Unreadable(reason) => {
            report
                .error(ReportSubject::Run, format!("the list of {what} cannot be read: {reason}"));
            (Vec::new(), false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_list_is_reported_and_not_overwritten() {
        let report = Report::default();
        assert_eq!(
            list_or_report(FileContents::Found(vec![1]), "snapshots", &report),
            (vec![1], true)
        );
        assert_eq!(
            list_or_report(FileContents::<Vec<u8>>::Absent, "snapshots", &report),
            (vec![], true)
        );
        assert_eq!(report.error_count(), 0);
        let unreadable = FileContents::<Vec<u8>>::Unreadable("no JSON".to_owned());
        assert_eq!(list_or_report(unreadable, "snapshots", &report), (vec![], false));
        let results = serde_json::to_string(&report.results()).unwrap();
        assert!(results.contains("snapshots") && results.contains("no JSON"), "{results}");
    }
}
