//! The first stage: the engine takes the backup, and all files but the commit record are written.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bowline_api::{Backup, BackupStatus};
use bowline_engine::backup::csi::{Follower, Left};
use bowline_engine::backup::request::Request;
use bowline_engine::backup::{
    self, Fatal, Progress, Recovery, Taken, ThawError, finalize, replace,
};
use bowline_engine::cluster::ApiServer;
use bowline_engine::journal::{ATTEMPTS, Recovered};
use bowline_engine::operation::{Board, Operation};
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
use super::{Course, Then, WorkError, canceled_status, failed, recover, with_conditions};
use crate::controllers::kit::{self, NotNoted};
use crate::controllers::operations::{Actions, Followed, Nobody, follow, tell_failed};
use crate::controllers::run::{Items, named, patiently, show_progress, until_over};
use crate::controllers::timed;
use crate::events::Milestone;
use crate::patch;
use crate::queue::Reach;
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
        let journal = &self.kit.journal;
        match kit::thaw(&*cluster, &self.backup, &recovered, journal, &report).await {
            Ok(()) => {}
            Err(error @ (ThawError::Cluster(_) | ThawError::Journal(_))) => {
                return Err(WorkError::Thaw(one_line(&error)));
            }
            // It will not be otherwise the next time.
            Err(error) => tracing::error!("{}", one_line(&error)),
        }
        let end = |reason: String| Then::Over(Box::new(failed(&self.status(), reason)));
        let store = match recover::committed(self.context, &self.backup).await {
            Ok(recover::Committed::Yes(status)) => return Ok(Then::Over(status)),
            Ok(recover::Committed::No(store)) => store,
            Err(unseen) if unseen.is_retryable => return Err(unseen.into()),
            Err(unseen) => return Ok(end(unseen.told())),
        };
        if recovered.attempts >= ATTEMPTS {
            let reason = format!(
                "it was taken up {} times and not brought to its end; it is not tried again",
                recovered.attempts
            );
            return self.give_up(reason, &recovered, &store).await;
        }
        let request = match self.request().await? {
            Ok(request) => request,
            Err(errors) => {
                let reason = format!("it is not valid any more: {errors}");
                return self.give_up(reason, &recovered, &store).await;
            }
        };
        tracing::info!(
            attempt = recovered.attempts + 1,
            blocks = recovered.finished.len(),
            "the server ended during this backup, which goes on"
        );
        let attempt = u32::try_from(recovered.attempts + 1).unwrap_or(u32::MAX);
        self.tell(Milestone::Resumed { attempt }).await;
        // What it reaches into is not known to a queue that has just begun.
        self.items(request, Reach::All, store, Recovery { recovered, report }).await
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
        self.close(store, status, &taken, true).await
    }

    /// Lets the engine take the backup.
    pub(super) async fn items(
        &self,
        request: Request,
        reach: Reach,
        store: BackupStore,
        recovery: Recovery,
    ) -> Result<Then, WorkError> {
        let _held = self.context.runs.hold(&self.backup, Some(reach));
        if let Err(NotNoted { reason, is_for_good }) = self.kit.note_attempt().await {
            if !is_for_good {
                return Err(WorkError::Thaw(reason));
            }
            let reason = format!("it cannot go on: {reason}");
            return self.give_up(reason, &recovery.recovered, &store).await;
        }
        let is_last = recovery.recovered.attempts + 1 >= ATTEMPTS;
        unlisted::tell(self.context.host.registry().unlisted(), &recovery.report);
        let (mut taken, is_there) = Box::pin(self.take(request, store.clone(), recovery)).await;
        tell(&taken);
        if taken.leaves_frozen {
            self.kit.leave_frozen();
        }
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
            }
            // One that was taken and deleted again is none that a deletion would have to find.
            let left = i64::try_from(left.iter().count()).unwrap_or(i64::MAX);
            let completed = &mut status.csi_volume_snapshots_completed;
            *completed = (*completed).min(left);
        }
        self.close(&store, status, &taken, is_last).await
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
        let items = || Items { done: progress.backed_up(), total: progress.total() };
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

    /// Writes the files of a backup; of one that has failed, the commit record as well.
    async fn close(
        &self,
        store: &BackupStore,
        status: BackupStatus,
        taken: &Taken,
        is_last: bool,
    ) -> Result<Then, WorkError> {
        if is_of_another(taken) {
            return Ok(Then::Over(Box::new(finalize::conclude(&status, Timestamp::now()))));
        }
        let log = self.kit.log.snapshot();
        let written =
            patiently(|| finalize::write(store, &self.name, taken, self.of(), log.clone())).await;
        if let Err(error) = written {
            // The journal knows all of it, so that it can be done again.
            if error.is_retryable() && !is_last {
                return Err(WorkError::Bucket(one_line(&error)));
            }
            self.stop_operations(&mut taken.operations.clone()).await;
            let snapshots = self.discard(taken.snapshots.clone(), &taken.report).await;
            let by_csi = self.discard_csi(&taken.csi_targets(), &taken.report).await;
            // There is no other place to tell it.
            let left = told(&snapshots, &by_csi);
            let reason =
                format!("cannot write the files of the backup: {}{left}", one_line(&error));
            return Ok(Then::Over(Box::new(failed(&status, reason))));
        }
        point::pass(Point::FilesWritten);
        if taken.archive.is_err() {
            let end = commit(store, &self.backup, &status).await?;
            return Ok(Then::Over(Box::new(end.status)));
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

    /// Writes the status. None if the Backup is gone.
    pub(super) async fn show(&self, status: &BackupStatus) -> kube::Result<Option<Backup>> {
        let status = with_conditions(status, self.is_canceled());
        patch::patch_status_of(self.api, &self.backup, json!(status)).await
    }
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
        Err(fatal) => {
            tracing::error!(errors, warnings, "the backup has not ended well: {}", fatal.told());
        }
    }
}
