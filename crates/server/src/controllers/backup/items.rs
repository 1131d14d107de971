//! The first stage: the engine takes the backup, and all files but the commit record are written.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bowline_api::{Backup, BackupStatus};
use bowline_engine::backup::csi::{Follower, Left};
use bowline_engine::backup::request::Request;
use bowline_engine::backup::{self, Fatal, Progress, Recovery, Taken, finalize, replace};
use bowline_engine::cluster::ApiServer;
use bowline_engine::journal::Recovered;
use bowline_engine::operation::{Board, Operation};
use bowline_engine::phase::Stage;
use bowline_engine::point::{self, Point};
use bowline_engine::report::Report;
use bowline_plugin::Encoded;
use bowline_plugin_host as plugin_host;
use bowline_store::BackupStore;
use bowline_store::file::Snapshot;
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::clean::{named as named_snapshot, tell_left, told_left};
use super::commit::commit;
use super::volumes::{Askers, Resources};
use super::{Course, Then, WorkError, canceled_status, failed, hold, recover, with_conditions};
use crate::controllers::bucket_wait::{
    BucketDecision, BucketFailure, EndReason, first_answer, try_bucket,
};
use crate::controllers::kit::NotNoted;
use crate::controllers::operations::{
    Actions, CANCELED_PREFIX, Followed, Nobody, follow, tell_failed,
};
use crate::controllers::run::{Items, named, patiently, show_progress, until_over};
use crate::controllers::timed;
use crate::events::Milestone;
use crate::patch;
use crate::runs::Held;
use crate::server::Context;
use crate::story::one_line;
use crate::unlisted;

/// How many LISTs one backup makes at a time.
const CONNECTIONS: usize = 4;

impl Course<'_> {
    /// Goes on with a backup whose server ended while it was in progress: first of all thaws what may
    /// be frozen, which needs no bucket.
    pub(super) async fn resume(&self, recovered: Recovered) -> Result<Then, WorkError> {
        let report = Report::default();
        let cluster = self.cluster();
        self.kit.thaw(self.context, &*cluster, &self.backup, &report).await;
        let looking = self.ask(recover::committed(self.context, &self.backup));
        let looking = first_answer(self.context, self.kit.uid.as_str(), looking);
        let store = match Box::pin(looking).await {
            Ok(recover::Committed::Yes(status)) => return Ok(Then::Over(status)),
            Ok(recover::Committed::No(store)) => store,
            Err(error) => {
                let failed = Err(error);
                return self.unless_bucket_fails(Stage::Items, failed, Some(&recovered)).await;
            }
        };
        self.kit.note_bucket_back(self.context).await;
        if recovered.attempts >= self.bounds().attempts {
            let reason = EndReason::TooManyAttempts(recovered.attempts).to_string();
            return Box::pin(self.give_up(reason, &recovered, &store)).await;
        }
        let (request, reach) = match self.request().await? {
            Ok(request) => request,
            Err(errors) => {
                let reason = format!("it is not valid any more: {errors}");
                return Box::pin(self.give_up(reason, &recovered, &store)).await;
            }
        };
        let held = hold(self.context, &self.backup, &reach)?;
        tracing::info!(
            attempt = recovered.attempts + 1,
            blocks = recovered.finished.len(),
            "the server ended during this backup, which goes on"
        );
        let attempt = u32::try_from(recovered.attempts + 1).unwrap_or(u32::MAX);
        self.tell(Milestone::Resumed { attempt }).await;
        Box::pin(self.items(request, held, store, Recovery { recovered, report })).await
    }

    /// Ends a backup that is not taken up again: what it has begun is told to stop.
    async fn give_up(
        &self,
        reason: String,
        recovered: &Recovered,
        store: &BackupStore,
    ) -> Result<Then, WorkError> {
        let began = self.status().start_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let mut taken = Taken::given_up(reason, recovered, self.timeout(), began);
        self.stop_operations(&mut taken.operations).await;
        tell_failed(&taken.operations, &taken.report);
        self.discard_csi(&taken.csi_targets(), &taken.report).await;
        let status = finalize::status(&self.backup, &taken);
        let attempts = recovered.attempts.max(self.bounds().attempts);
        Box::pin(self.close(store, status, &taken, attempts)).await
    }

    /// Lets the engine take the backup, which is held as one that runs.
    pub(super) async fn items(
        &self,
        request: Request,
        _held: Held,
        store: BackupStore,
        recovery: Recovery,
    ) -> Result<Then, WorkError> {
        if let Err(NotNoted { reason, is_for_good }) = self.kit.note_attempt().await {
            if !is_for_good {
                return Err(WorkError::Thaw(reason));
            }
            let reason = format!("it cannot go on: {reason}");
            return Box::pin(self.give_up(reason, &recovery.recovered, &store)).await;
        }
        self.kit.keep_hooks(self.context, &self.backup.spec.hooks).await;
        let attempts = recovery.recovered.attempts + 1;
        unlisted::tell(self.context.host.registry().unlisted(), &recovery.report);
        let (mut taken, is_there) = Box::pin(self.take(request, store.clone(), recovery)).await;
        tell(&taken);
        if let Ok(archive) = &taken.archive {
            self.context.metrics.archive_written(&self.backup, archive.bytes);
        }
        for window in &taken.freezes {
            let milliseconds = u64::try_from(window.milliseconds).unwrap_or_default();
            self.context.metrics.froze(Duration::from_millis(milliseconds));
        }
        let noted = replace::items_of(&taken.operations);
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).extend(noted);
        let is_there = is_there && self.is_there().await?;
        let is_other = is_of_another(&taken);
        let mut left_by_csi = None;
        match &taken.archive {
            _ if !is_there => {
                self.stop_operations(&mut taken.operations).await;
                let by_csi = taken.csi_targets();
                if is_other {
                    let snapshots = self.discard(taken.snapshots, &taken.report).await;
                    let by_csi = self.discard_csi(&by_csi, &taken.report).await;
                    tell_left(&snapshots, &by_csi);
                    if is_left(&snapshots, &by_csi) {
                        self.kit.keep_journal();
                    }
                } else {
                    self.clean_up(&store, taken.snapshots, &by_csi).await;
                }
                return Ok(Then::Gone);
            }
            Err(Fatal::Stopped) => return Ok(Then::Left),
            Err(_) => {
                self.stop_operations(&mut taken.operations).await;
                tell_failed(&taken.operations, &taken.report);
                // Without an archive nothing says which claims they are of.
                left_by_csi = Some(self.discard_csi(&taken.csi_targets(), &taken.report).await);
                // Of a backup that has failed they are deleted with its record; one that was
                // cancelled, or has no record, leaves none.
                if is_other || matches!(taken.archive, Err(Fatal::Canceled)) {
                    let snapshots = std::mem::take(&mut taken.snapshots);
                    taken.snapshots = self.discard(snapshots, &taken.report).await;
                }
            }
            Ok(_) => {}
        }
        let mut status = match &taken.archive {
            Err(Fatal::Canceled) => canceled_status(&finalize::status(&self.backup, &taken)),
            _ => finalize::status(&self.backup, &taken),
        };
        if let Some(left) = left_by_csi {
            if is_other {
                // There will be no results to tell it in.
                status.failure_reason.push_str(&told(&taken.snapshots, &left));
                if is_left(&taken.snapshots, &left) {
                    self.kit.abandon(Stage::Items).await;
                }
            }
            // One that was taken and deleted again is none that a deletion would have to find.
            let left = i64::try_from(left.iter().count()).unwrap_or(i64::MAX);
            let completed = &mut status.csi_volume_snapshots_completed;
            *completed = (*completed).min(left);
        }
        Box::pin(self.close(&store, status, &taken, attempts)).await
    }

    /// Who asks about the operations of the backup.
    pub(super) fn askers<'a>(&'a self, resources: &'a Resources<'a>) -> Askers<'a> {
        askers(self.context, &self.kit.plugins, &self.backup, resources)
    }

    pub(super) fn cluster(&self) -> Arc<ApiServer> {
        let page_size = self.context.options.client_page_size;
        Arc::new(ApiServer::new(self.context.client.clone(), page_size))
    }

    /// What the engine works with.
    pub(super) fn engine_run(
        &self,
        request: Request,
        store: BackupStore,
        recovery: Recovery,
        progress: Arc<Progress>,
    ) -> backup::Run {
        let Self { context, kit, .. } = self;
        backup::Run {
            request: Request { backup: Encoded::new(self.backup.clone()), ..request },
            cluster: self.cluster(),
            store,
            backup_item_actions: named(self.actions()),
            item_block_actions: named(timed::item_block_actions(&kit.plugins, &context.calls)),
            snapshotters: Arc::clone(&context.snapshotters) as _,
            options: backup::Options {
                connections: CONNECTIONS,
                block_workers: context.options.item_block_worker_count.max(1),
                scratch: context.options.scratch_dir.clone(),
                freeze_timeout: Some(context.options.freeze_timeout),
            },
            progress,
            journal: Arc::clone(&kit.journal) as _,
            recovery,
            stop: context.stop.child_token(),
            cancel: self.kit.cancel.clone(),
        }
    }

    /// Lets the engine take the backup, and shows how far it is meanwhile. Returns as well whether the
    /// Backup is still there.
    async fn take(
        &self,
        request: Request,
        store: BackupStore,
        recovery: Recovery,
    ) -> (Taken, bool) {
        let progress = Arc::new(Progress::default());
        let run = self.engine_run(request, store, recovery, Arc::clone(&progress));
        let items = || Items {
            done: progress.backed_up(),
            total: progress.total(),
            is_total_known: progress.is_total_known(),
        };
        let resources = Resources::new(self.context, &self.backup);
        let shown = Box::pin(async {
            let counted =
                show_progress(self.context, self.api, &self.backup, "itemsBackedUp", items);
            // Snapshots are shown beside the run, from their first moment on.
            tokio::select! {
                () = counted => {}
                () = resources.publish(&progress.snapshots) => {}
            }
        });
        until_over(Box::pin(backup::run(run, Timestamp::now())), shown, &self.kit.cancel).await
    }

    /// Tells operations to stop that nobody will wait for, and notes what came of that.
    pub(super) async fn stop_operations(&self, operations: &mut Vec<Operation>) {
        stop_operations(self.context, &self.kit.plugins, &self.backup, operations).await;
    }

    /// Writes the files of a backup that was attempted so often; of one that has failed, the commit record as
    /// well.
    async fn close(
        &self,
        store: &BackupStore,
        status: BackupStatus,
        taken: &Taken,
        attempts: usize,
    ) -> Result<Then, WorkError> {
        if is_of_another(taken) {
            return Ok(Then::Over(Box::new(finalize::conclude(&status, Timestamp::now()))));
        }
        let log = self.kit.log.snapshot();
        let write = || finalize::write(store, &self.name, taken, self.of(), log.clone());
        if let Err(error) = try_bucket(&self.kit.cancel, write).await {
            let reason = one_line(&error);
            // The journal knows all of it, so that it can be done again.
            if let Some(failure) = BucketFailure::of_write(&error)
                && BucketDecision::Retry
                    == self.outage(Stage::Items, failure, attempts, &reason).await
            {
                return Err(WorkError::Bucket(reason));
            }
            return Ok(self.end_unstored(&status, taken, &reason).await);
        }
        self.kit.note_bucket_back(self.context).await;
        point::pass(Point::FilesWritten);
        if taken.archive.is_err() {
            let committing = self.ask(commit(store, &self.backup, &status)).await;
            let failure = committing.as_ref().err().and_then(WorkError::bucket_failure);
            return match (committing, failure) {
                (Ok(end), _) => Ok(Then::Over(Box::new(end.status))),
                (Err(error), Some(failure)) => {
                    let reason = error.to_string();
                    let decision = self.outage(Stage::Items, failure, attempts, &reason).await;
                    match decision {
                        BucketDecision::Retry => Err(error),
                        // Its files are there, and name what a deletion of the backup has to find.
                        BucketDecision::End(_) => Ok(Then::Over(Box::new(failed(&status, reason)))),
                    }
                }
                (Err(error), None) => Err(error),
            };
        }
        // From here on, whoever finds the Backup can end it.
        let shown = patiently(|| self.show(&status)).await?;
        point::pass(Point::BackupCollected);
        if let Some(backup) = shown {
            return Ok(Then::Stage(Box::new(backup)));
        }
        self.stop_operations(&mut taken.operations.clone()).await;
        self.clean_up(store, taken.snapshots.clone(), &taken.csi_targets()).await;
        Ok(Then::Gone)
    }

    /// Ends a backup whose files the bucket does not take: nothing would lead to what it has made.
    async fn end_unstored(&self, status: &BackupStatus, taken: &Taken, reason: &str) -> Then {
        self.stop_operations(&mut taken.operations.clone()).await;
        let snapshots = self.discard(taken.snapshots.clone(), &taken.report).await;
        let by_csi = self.discard_csi(&taken.csi_targets(), &taken.report).await;
        if is_left(&snapshots, &by_csi) {
            self.kit.abandon(Stage::Items).await;
        }
        // There is no other place to tell it.
        let left = told(&snapshots, &by_csi);
        let reason = format!("cannot write the files of the backup: {reason}{left}");
        let is_told = status.failure_reason.starts_with(CANCELED_PREFIX);
        if self.is_canceled() && !is_told {
            return Then::Over(Box::new(failed(&canceled_status(status), reason)));
        }
        Then::Over(Box::new(failed(status, reason)))
    }

    /// Writes the status. None if the Backup is gone.
    pub(super) async fn show(&self, status: &BackupStatus) -> kube::Result<Option<Backup>> {
        let status = with_conditions(status, self.is_canceled());
        patch::patch_status_of(self.api, &self.backup, json!(status)).await
    }
}

/// Whether there are snapshots that could not be deleted.
fn is_left(snapshots: &[Snapshot], by_csi: &Left) -> bool {
    snapshots.iter().any(|one| named_snapshot(one).is_some()) || !by_csi.is_empty()
}

/// What is to be told of snapshots that could not be deleted.
fn told(snapshots: &[Snapshot], by_csi: &Left) -> String {
    let by_csi = by_csi.iter().map(ToString::to_string);
    told_left(&snapshots.iter().filter_map(named_snapshot).chain(by_csi).collect::<Vec<_>>())
}

/// Who asks about the operations of a backup.
fn askers<'a>(
    context: &'a Context,
    plugins: &plugin_host::Run,
    backup: &Backup,
    resources: &'a Resources<'a>,
) -> Askers<'a> {
    let unlisted = context.host.registry().unlisted();
    let actions = timed::backup_item_actions(plugins, &context.calls);
    let actions = Actions::new(actions, backup.clone(), unlisted);
    let cluster = ApiServer::new(context.client.clone(), context.options.client_page_size);
    let follower = Follower::new(Arc::new(cluster), &backup.name_any());
    Askers::new(actions, follower, context, resources)
}

/// Tells operations to stop that nobody will wait for, and notes what came of that.
pub(super) async fn stop_operations(
    context: &Context,
    plugins: &plugin_host::Run,
    backup: &Backup,
    operations: &mut Vec<Operation>,
) {
    if operations.is_empty() {
        return;
    }
    let board = Arc::new(Board::new(std::mem::take(operations)));
    let resources = Resources::new(context, backup);
    let asker = askers(context, plugins, backup, &resources);
    let canceled = CancellationToken::new();
    canceled.cancel();
    let uid = backup.uid().unwrap_or_default();
    let followed = follow(context, &uid, &board, &asker, &canceled, &Nobody).await;
    if followed == Followed::Stopped {
        tracing::warn!("operations may go on, because the server ends");
    }
    *operations = board.operations();
    resources.update(operations).await;
}

/// Whether what lies in the bucket under this name is, or may be, another backup, and so not ours to
/// touch.
fn is_of_another(taken: &Taken) -> bool {
    matches!(taken.archive, Err(Fatal::Exists | Fatal::Look(_)))
}

/// Says in the log how it went. The counts come from the report.
fn tell(taken: &Taken) {
    let (errors, warnings) = (taken.report.errors(), taken.report.warnings());
    match &taken.archive {
        Ok(archive) => tracing::info!(
            items = archive.items,
            bytes = archive.bytes,
            errors,
            warnings,
            "all items are in the archive"
        ),
        Err(fatal) if is_resumed_later(fatal) => {
            tracing::info!("the server ends; the next server resumes the backup");
        }
        Err(fatal) => {
            tracing::error!(errors, warnings, "the backup has not ended well: {}", fatal.told());
        }
    }
}

/// Whether nothing is wrong with a backup that is not done.
fn is_resumed_later(fatal: &Fatal) -> bool {
    matches!(fatal, Fatal::Stopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_that_the_next_server_resumes_is_no_error_in_the_log() {
        assert!(is_resumed_later(&Fatal::Stopped));
        assert!(!is_resumed_later(&Fatal::Canceled));
        assert!(!is_resumed_later(&Fatal::GivenUp("no".to_owned())));
    }
}
