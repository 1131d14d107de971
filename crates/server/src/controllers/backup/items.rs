//! The first stage: the engine collects the items, and all files but the commit record are written.

use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Backup, BackupStatus};
use bowline_engine::backup::csi::{Leftovers, ReadinessWatch};
use bowline_engine::backup::request::Request;
use bowline_engine::backup::{
    self, BackupOutcome, FatalError, Progress, Recovery, UploadError, finalize, replace,
};
use bowline_engine::cluster::ApiServer;
use bowline_engine::compression::CompressionMode;
use bowline_engine::failpoint::{self, Failpoint};
use bowline_engine::journal::{self, RecoveredRun};
use bowline_engine::operation::Operation;
use bowline_engine::phase::Stage;
use bowline_engine::report::Report;
use bowline_plugin::Encoded;
use bowline_plugin_host as plugin_host;
use bowline_store::BackupStore;
use bowline_store::file::Snapshot;
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::commit::commit;
use super::leftovers::{leftovers_message, log_leftovers, snapshot_description};
use super::volumes::{BackupOperationClients, SnapshotResources};
use super::{BackupRun, NextStage, RunError, RunStatus as _, recover, register_run};
use crate::controllers::bucket_wait::{
    BucketDecision, BucketFailure, EndReason, retry_bucket_call, wait_for_first_answer,
};
use crate::controllers::operations::{ActionClients, cancel_operations, report_failed};
use crate::controllers::run::{
    ItemProgress, engine_plugins, run_until_gone, show_progress, with_retries,
};
use crate::controllers::timed_plugins;
use crate::error_text::status_message;
use crate::events::Milestone;
use crate::runs::RunGuard;
use crate::server::Context;
use crate::unlisted_plugins;

/// Number of concurrent LIST requests of one backup.
const LIST_CONNECTIONS: usize = 4;

impl BackupRun<'_> {
    /// Resumes a backup whose server ended while it was in progress: first thaws pods that may be frozen, which needs
    /// no bucket.
    pub(super) async fn resume_items(
        &self,
        recovered: RecoveredRun,
    ) -> Result<NextStage, RunError> {
        let report = Report::default();
        let cluster = self.cluster();
        self.resources.thaw_own_pods(self.context, &*cluster, &self.object, &report).await;
        let committed_check =
            self.wait_for_bucket(recover::commit_state(self.context, &self.object));
        let committed_check =
            wait_for_first_answer(self.context, self.resources.uid.as_str(), committed_check);
        let store = match Box::pin(committed_check).await {
            Ok(recover::CommitState::Committed(status)) => return Ok(NextStage::Finished(status)),
            Ok(recover::CommitState::Uncommitted(store)) => store,
            Err(error) => {
                let failed = Err(error);
                return self.handle_bucket_failure(Stage::Items, failed, Some(&recovered)).await;
            }
        };
        self.resources.journal_bucket_back(self.context).await;
        if recovered.attempts >= self.bounds().attempts {
            let reason = EndReason::TooManyAttempts(recovered.attempts).to_string();
            return Box::pin(self.end_unresumed(reason, &recovered, &store)).await;
        }
        let (request, scope) = match self.prepare_request().await? {
            Ok(request) => request,
            Err(errors) => {
                let reason = format!("the backup is no longer valid: {errors}");
                return Box::pin(self.end_unresumed(reason, &recovered, &store)).await;
            }
        };
        let guard = register_run(self.context, &self.object, &scope)?;
        tracing::info!(
            attempt = recovered.attempts + 1,
            blocks = recovered.finished.len(),
            "resuming the backup after a restart of the server"
        );
        let attempt = u32::try_from(recovered.attempts + 1).unwrap_or(u32::MAX);
        self.publish_milestone(Milestone::Resumed { attempt }).await;
        self.stop_abandoned_operations(&recovered).await;
        Box::pin(self.run_items(request, guard, store, Recovery { recovered, report })).await
    }

    /// Ends a backup that is not resumed: the operations that it has started are canceled.
    async fn end_unresumed(
        &self,
        reason: String,
        recovered: &RecoveredRun,
        store: &BackupStore,
    ) -> Result<NextStage, RunError> {
        let began = self.status().start_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let mut outcome = BackupOutcome::not_resumed(reason, recovered, self.timeout(), began);
        self.resources.journal_ending(Stage::Items).await?;
        self.stop_operations(&mut outcome.operations).await;
        report_failed(&outcome.operations, &outcome.report);
        self.delete_csi_snapshots(&outcome.csi_targets(), &outcome.report).await;
        let mut status = finalize::status(&self.object, &outcome);
        if self.is_canceled() {
            let snapshots = std::mem::take(&mut outcome.snapshots);
            outcome.snapshots = self.delete_plugin_snapshots(snapshots, &outcome.report).await;
            status = finalize::status(&self.object, &outcome).canceled();
        }
        let attempts = recovered.attempts.max(self.bounds().attempts);
        Box::pin(self.write_files(store, status, &outcome, attempts)).await
    }

    /// Runs the engine on the backup, which is registered as running.
    pub(super) async fn run_items(
        &self,
        request: Request,
        _guard: RunGuard,
        store: BackupStore,
        recovery: Recovery,
    ) -> Result<NextStage, RunError> {
        match self.resources.journal_attempt().await {
            Err(error @ journal::Error::Full(_)) => {
                let reason = format!("the backup cannot continue: {error}");
                return Box::pin(self.end_unresumed(reason, &recovery.recovered, &store)).await;
            }
            journaled => journaled?,
        }
        self.resources.save_hooks(self.context, &self.object.spec.hooks).await;
        let attempts = recovery.recovered.attempts + 1;
        let has_blocks = recovery.recovered.next_block > 0;
        unlisted_plugins::report_unlisted(
            self.context.host.registry().unlisted(),
            &recovery.report,
        );
        let (mut outcome, object_exists) =
            Box::pin(self.run_engine(request, store.clone(), recovery)).await;
        log_outcome(&outcome);
        if let Ok(archive) = &outcome.archive {
            self.context.metrics.archive_written(&self.object, archive.bytes);
        }
        for window in &outcome.freezes {
            let milliseconds = u64::try_from(window.milliseconds).unwrap_or_default();
            self.context.metrics.observe_freeze(Duration::from_millis(milliseconds));
        }
        let changed_items = replace::items_of(&outcome.operations);
        self.journaled_items.lock().extend(changed_items);
        let object_exists = object_exists && self.object_exists().await?;
        if object_exists {
            outcome = self.wait_if_bucket_lost(outcome, has_blocks, attempts).await?;
        }
        let belongs_to_other = belongs_to_other_backup(&outcome);
        let mut csi_leftovers = None;
        match &outcome.archive {
            _ if !object_exists => {
                self.stop_operations(&mut outcome.operations).await;
                let by_csi = outcome.csi_targets();
                if belongs_to_other {
                    let snapshots =
                        self.delete_plugin_snapshots(outcome.snapshots, &outcome.report).await;
                    let by_csi = self.delete_csi_snapshots(&by_csi, &outcome.report).await;
                    log_leftovers(&snapshots, &by_csi);
                    if has_leftovers(&snapshots, &by_csi) {
                        self.resources.keep_journal();
                    }
                } else {
                    self.delete_leftovers(&store, outcome.snapshots, &by_csi).await;
                }
                return Ok(NextStage::ObjectGone);
            }
            Err(FatalError::Stopped) => return Ok(NextStage::HandedOver),
            Err(_) => {
                // From here on, no server takes over the blocks: their operations and snapshots may be gone.
                self.resources.journal_ending(Stage::Items).await?;
                self.stop_operations(&mut outcome.operations).await;
                report_failed(&outcome.operations, &outcome.report);
                // Without an archive, nothing records which claims the snapshots are of.
                csi_leftovers =
                    Some(self.delete_csi_snapshots(&outcome.csi_targets(), &outcome.report).await);
                // Those of a failed backup are deleted with its record; a backup that was canceled, or has no record,
                // leaves none.
                if belongs_to_other || matches!(outcome.archive, Err(FatalError::Canceled)) {
                    let snapshots = std::mem::take(&mut outcome.snapshots);
                    outcome.snapshots =
                        self.delete_plugin_snapshots(snapshots, &outcome.report).await;
                }
            }
            Ok(_) => {}
        }
        let mut status = match &outcome.archive {
            Err(FatalError::Canceled) => finalize::status(&self.object, &outcome).canceled(),
            _ => finalize::status(&self.object, &outcome),
        };
        if let Some(leftovers) = csi_leftovers {
            if belongs_to_other {
                // There will be no results file to report this in.
                status
                    .failure_reason
                    .push_str(&leftover_snapshots_message(&outcome.snapshots, &leftovers));
                if has_leftovers(&outcome.snapshots, &leftovers) {
                    self.resources.journal_end_without_bucket(Stage::Items).await;
                }
            }
            // A snapshot that was taken and deleted again is not one that a deletion has to find.
            let leftover_count = i64::try_from(leftovers.iter().count()).unwrap_or(i64::MAX);
            let completed = &mut status.csi_volume_snapshots_completed;
            *completed = (*completed).min(leftover_count);
        }
        Box::pin(self.write_files(&store, status, &outcome, attempts)).await
    }

    /// Returns the outcome of the engine, unless only the bucket is the problem and the run waits for it, which is an
    /// error. The operations and snapshots of finished blocks are in the journal, and the next attempt takes them over:
    /// nothing may be canceled or deleted before.
    async fn wait_if_bucket_lost(
        &self,
        outcome: BackupOutcome,
        has_blocks: bool,
        attempts: usize,
    ) -> Result<BackupOutcome, RunError> {
        let Some((failure, error)) = lost_bucket(&outcome, has_blocks) else { return Ok(outcome) };
        let reason = status_message(error);
        let decision = self.journal_outage(Stage::Items, failure, attempts, &reason).await;
        match (decision, outcome.archive) {
            (
                BucketDecision::Retry,
                Err(FatalError::Upload(UploadError::Store(error)) | FatalError::ReadBucket(error)),
            ) => Err(RunError::of_bucket::<Backup>(failure, error)),
            (_, archive) => Ok(BackupOutcome { archive, ..outcome }),
        }
    }

    /// Clients for the operations of the backup.
    pub(super) fn operation_clients<'a>(
        &'a self,
        resources: &'a SnapshotResources<'a>,
    ) -> BackupOperationClients<'a> {
        operation_clients(self.context, &self.resources.plugins, &self.object, resources)
    }

    pub(super) fn cluster(&self) -> Arc<ApiServer> {
        let page_size = self.context.options.client_page_size;
        Arc::new(ApiServer::new(self.context.client.clone(), page_size))
    }

    /// Environment of the engine.
    pub(super) fn build_engine_input(
        &self,
        request: Request,
        store: BackupStore,
        recovery: Recovery,
        progress: Arc<Progress>,
    ) -> backup::Run {
        let Self { context, resources, .. } = self;
        backup::Run {
            request: Request { backup: Encoded::new(self.object.clone()), ..request },
            cluster: self.cluster(),
            store,
            backup_item_actions: engine_plugins(self.actions()),
            item_block_actions: engine_plugins(timed_plugins::item_block_actions(
                &resources.plugins,
                &context.calls,
            )),
            snapshotters: Arc::clone(&context.snapshotters) as _,
            options: backup::Options {
                connections: LIST_CONNECTIONS,
                block_workers: context.options.item_block_worker_count.max(1),
                scratch: context.options.scratch_dir.clone(),
                freeze_timeout: Some(context.options.freeze_timeout),
                compression: CompressionMode::default(),
                restore_limits: context.options.unpack_limits,
            },
            progress,
            journal: Arc::clone(&resources.journal) as _,
            recovery,
            stop: context.stop.child_token(),
            cancel: self.resources.cancel.clone(),
        }
    }

    /// Runs the engine on the backup, and shows the progress meanwhile. Also returns true if the Backup still exists.
    async fn run_engine(
        &self,
        request: Request,
        store: BackupStore,
        recovery: Recovery,
    ) -> (BackupOutcome, bool) {
        let progress = Arc::new(Progress::default());
        let run = self.build_engine_input(request, store, recovery, Arc::clone(&progress));
        let items = || ItemProgress {
            done: progress.backed_up(),
            total: progress.total(),
            is_total_known: progress.is_total_known(),
        };
        let resources = SnapshotResources::new(self.context, &self.object);
        let shown = Box::pin(async {
            let counted =
                show_progress(self.context, self.api, &self.object, "itemsBackedUp", items);
            // Snapshots are shown concurrently with the run, from the start.
            tokio::select! {
                () = counted => {}
                () = resources.publish(&progress.snapshots) => {}
            }
        });
        run_until_gone(Box::pin(backup::run(run, Timestamp::now())), shown, &self.resources.cancel)
            .await
    }

    /// Cancels operations that the run will not wait for, and journals the outcome.
    pub(super) async fn stop_operations(&self, operations: &mut Vec<Operation>) {
        stop_operations(self.context, &self.resources.plugins, &self.object, operations).await;
    }

    /// Writes the files of a backup, with the number of its attempts; of a failed one, the commit record as well.
    async fn write_files(
        &self,
        store: &BackupStore,
        status: BackupStatus,
        outcome: &BackupOutcome,
        attempts: usize,
    ) -> Result<NextStage, RunError> {
        if belongs_to_other_backup(outcome) {
            return Ok(NextStage::finished(finalize::completed_status(&status, Timestamp::now())));
        }
        let log = self.resources.log.snapshot();
        let write = || finalize::write(store, &self.name, outcome, self.run_ref(), log.clone());
        if let Err(error) = retry_bucket_call(&self.resources.cancel, write).await {
            let reason = status_message(&error);
            // The journal has all of it, so the stage can be repeated.
            if let Some(failure) = BucketFailure::of_write(&error)
                && BucketDecision::Retry
                    == self.journal_outage(Stage::Items, failure, attempts, &reason).await
            {
                return Err(RunError::of_bucket::<Backup>(BucketFailure::Unreachable, error));
            }
            return self.end_without_files(&status, outcome, &reason).await;
        }
        self.resources.journal_bucket_back(self.context).await;
        failpoint::hit(Failpoint::FilesWritten);
        if outcome.archive.is_err() {
            let committing =
                self.wait_for_bucket(commit(store, &self.object, &status, false)).await;
            let failure = committing.as_ref().err().and_then(RunError::bucket_failure);
            return match (committing, failure) {
                (Ok(end), _) => Ok(NextStage::finished(end.status)),
                (Err(error), Some(failure)) => {
                    let reason = status_message(&error);
                    let decision =
                        self.journal_outage(Stage::Items, failure, attempts, &reason).await;
                    match decision {
                        BucketDecision::Retry => Err(error),
                        // The files are in the bucket, and name what a deletion of the backup has to find.
                        BucketDecision::End(_) => Ok(NextStage::finished(status.failed(reason))),
                    }
                }
                (Err(error), None) => Err(error),
            };
        }
        // From here on, any server that finds the Backup can end it.
        let shown = with_retries(|| self.write_status(&status)).await?;
        failpoint::hit(Failpoint::BackupCollected);
        if let Some(backup) = shown {
            return Ok(NextStage::Continue(Box::new(backup)));
        }
        self.stop_operations(&mut outcome.operations.clone()).await;
        self.delete_leftovers(store, outcome.snapshots.clone(), &outcome.csi_targets()).await;
        Ok(NextStage::ObjectGone)
    }

    /// Ends a backup whose files the bucket does not accept: nothing would refer to what it has created.
    async fn end_without_files(
        &self,
        status: &BackupStatus,
        outcome: &BackupOutcome,
        reason: &str,
    ) -> Result<NextStage, RunError> {
        self.resources.journal_ending(Stage::Items).await?;
        self.stop_operations(&mut outcome.operations.clone()).await;
        let snapshots =
            self.delete_plugin_snapshots(outcome.snapshots.clone(), &outcome.report).await;
        let by_csi = self.delete_csi_snapshots(&outcome.csi_targets(), &outcome.report).await;
        if has_leftovers(&snapshots, &by_csi) {
            self.resources.journal_end_without_bucket(Stage::Items).await;
        }
        // There is no other place to report this.
        let leftovers = leftover_snapshots_message(&snapshots, &by_csi);
        let reason = format!("cannot write the files of the backup: {reason}{leftovers}");
        let is_cancel_reported = matches!(outcome.archive, Err(FatalError::Canceled));
        if self.is_canceled() && !is_cancel_reported {
            return Ok(NextStage::finished(status.canceled().failed(reason)));
        }
        Ok(NextStage::finished(status.failed(reason)))
    }
}

/// True if there are snapshots that could not be deleted.
fn has_leftovers(snapshots: &[Snapshot], csi_leftovers: &Leftovers) -> bool {
    snapshots.iter().any(|one| snapshot_description(one).is_some()) || !csi_leftovers.is_empty()
}

/// Message about snapshots that could not be deleted.
fn leftover_snapshots_message(snapshots: &[Snapshot], csi_leftovers: &Leftovers) -> String {
    let by_csi = csi_leftovers.iter().map(ToString::to_string);
    leftovers_message(
        &snapshots.iter().filter_map(snapshot_description).chain(by_csi).collect::<Vec<_>>(),
    )
}

/// Clients for the operations of a backup.
fn operation_clients<'a>(
    context: &'a Context,
    plugins: &plugin_host::PluginRun,
    backup: &Backup,
    resources: &'a SnapshotResources<'a>,
) -> BackupOperationClients<'a> {
    let unlisted = context.host.registry().unlisted();
    let actions = timed_plugins::backup_item_actions(plugins, &context.calls);
    let actions = ActionClients::new(actions, backup.clone(), unlisted);
    let cluster = ApiServer::new(context.client.clone(), context.options.client_page_size);
    let follower = ReadinessWatch::new(Arc::new(cluster), &backup.name_any());
    BackupOperationClients::new(actions, follower, context, resources)
}

/// Cancels operations that no run will wait for, and journals the outcome.
pub(super) async fn stop_operations(
    context: &Context,
    plugins: &plugin_host::PluginRun,
    backup: &Backup,
    operations: &mut Vec<Operation>,
) {
    if operations.is_empty() {
        return;
    }
    let resources = SnapshotResources::new(context, backup);
    let clients = operation_clients(context, plugins, backup, &resources);
    let uid = backup.uid().unwrap_or_default();
    *operations = cancel_operations(context, &uid, std::mem::take(operations), &clients).await;
    resources.update(operations).await;
}

/// Failure of the bucket that ended the engine's part of a backup. A backup that has just started has nothing to lose,
/// and fails if its bucket cannot be read.
fn lost_bucket(
    outcome: &BackupOutcome,
    has_blocks: bool,
) -> Option<(BucketFailure, &bowline_store::Error)> {
    let (failure, error) = match &outcome.archive {
        Err(FatalError::Upload(UploadError::Store(error))) => {
            (BucketFailure::of_write(error), error)
        }
        Err(FatalError::ReadBucket(error)) if has_blocks => (BucketFailure::of_read(error), error),
        _ => return None,
    };
    Some((failure?, error))
}

/// True if the files in the bucket under this name belong, or may belong, to another backup, and so must not be
/// touched.
fn belongs_to_other_backup(outcome: &BackupOutcome) -> bool {
    matches!(outcome.archive, Err(FatalError::Exists | FatalError::ReadBucket(_)))
}

/// Logs the outcome. The counts come from the report.
fn log_outcome(outcome: &BackupOutcome) {
    let (errors, warnings) = (outcome.report.error_count(), outcome.report.warning_count());
    match &outcome.archive {
        Ok(archive) => tracing::info!(
            items = archive.items,
            bytes = archive.bytes,
            errors,
            warnings,
            "all items are in the archive"
        ),
        Err(fatal) if is_resumed_later(fatal) => {
            tracing::info!("the server is stopping; the next server resumes the backup");
        }
        Err(fatal) => {
            tracing::error!(errors, warnings, "the backup failed: {}", fatal.error_chain());
        }
    }
}

/// True if an incomplete backup has not failed, but is resumed later.
fn is_resumed_later(fatal: &FatalError) -> bool {
    matches!(fatal, FatalError::Stopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resumable_backup_is_not_logged_as_an_error() {
        assert!(is_resumed_later(&FatalError::Stopped));
        assert!(!is_resumed_later(&FatalError::Canceled));
        assert!(!is_resumed_later(&FatalError::NotResumed("no".to_owned())));
    }

    #[test]
    fn resumed_backup_waits_for_a_bucket_that_cannot_be_read() {
        let recovered = RecoveredRun::default();
        let unreadable = || {
            let mut outcome = BackupOutcome::not_resumed(
                String::new(),
                &recovered,
                Duration::ZERO,
                Timestamp::now(),
            );
            let source = bowline_plugin::Error::new(bowline_plugin::Code::Unavailable, "away");
            let (action, key) = ("read", "backups/b/velero-backup.json".to_owned());
            outcome.archive =
                Err(FatalError::ReadBucket(bowline_store::Error::Backend { action, key, source }));
            outcome
        };
        let failure =
            |has_blocks| lost_bucket(&unreadable(), has_blocks).map(|(failure, _)| failure);
        assert_eq!(failure(true), Some(BucketFailure::Unreachable));
        assert_eq!(failure(false), None, "a new backup has nothing to lose");
    }
}
