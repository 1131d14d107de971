//! DeleteBackupRequests: deletes backups with everything that belongs to them.
//!
//! [`bowline_engine::delete`] decides if a backup may be deleted, before anything is changed. The steps follow in this
//! order, each only if those before it succeeded:
//!
//! 1. the request becomes `InProgress`, the Backup and its record in the bucket become `Deleting`;
//! 2. its Restores are ended and deleted, with their files: none may read what is deleted next;
//! 3. item actions of plugins are called with its items, and its snapshots are deleted, including those of CSI drivers;
//! 4. its VolumePluginBackups are deleted;
//! 5. its files are deleted, the record last;
//! 6. the Backup is deleted, and then all requests for it.
//!
//! A request made by retention (`gc.rs`) is not fulfilled while the backup is being restored. This is checked once more
//! right before step 1, and again after it: from then on no restore starts (`marker.rs`). Snapshots that another backup
//! references are kept (`possession_index.rs`). A deletion during which the server has ended several times is given up:
//! something in the bucket may crash the server. Errors returned by the API server do not count as such attempts.
//!
//! Failures are recorded in the request, which is then `Processed` and removed after a day, as in Velero. A new request
//! retries all steps. So does a server that finds a request `InProgress` when it starts.

mod answer;
mod earlier_attempts;
mod locks;
mod marker;
mod owned_objects;
mod possession_index;
mod prepare;
mod restores;
mod step;

use std::sync::Arc;
use std::time::Duration;

use bowline_api::{
    Backup, BackupPhase, BackupStorageLocation, DeleteBackupRequest, VolumePluginBackup,
    annotation, label,
};
use bowline_engine::backup::request::Lookup;
use bowline_engine::cluster::ApiServer;
use bowline_engine::delete::{
    self, Deadlines, DeletionFacts, DeletionJob, DeletionResult, DeletionVerdict, FileOwnership,
    Scope,
};
use bowline_engine::failpoint::{self, Failpoint};
use bowline_store::BackupName;
use jiff::Timestamp;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::Mutex;
use tracing::Instrument as _;

use self::answer::requested_uid;
use self::earlier_attempts::EarlierAttempts;
use self::locks::DeletionLocks;
use self::marker::{DeletionMarker, phase_before_deletion};
use self::possession_index::PossessionIndex;
use self::prepare::PreparedDeletion;
use self::step::RequestStep;
use super::lookup::lookup;
use super::operations::is_canceled;
use super::period::Due;
use super::{run, timed_plugins};
use crate::error_text::status_message;
use crate::events::Milestone;
use crate::metrics::Deletion;
use crate::patch;
use crate::server::{Context, Error};
use crate::watch::{Requeue, Watch};

const CONCURRENT_DELETIONS: u16 = 8;
/// Interval between checks of a backup that was asked to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before retrying a backup that another request is working on.
const BUSY_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Number of times that a deletion is started without an observed end.
const MAX_ATTEMPTS: u32 = 4;

/// Deletes backups until the server stops.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let watch = Watch::new(context.api::<DeleteBackupRequest>()).concurrency(CONCURRENT_DELETIONS);
    let stop = context.stop.clone();
    let (requests, turns) = (watch.store(), DeletionLocks::default());
    let controller = Arc::new(Controller {
        context,
        requests,
        turns,
        possessions: PossessionIndex::default(),
        planning: Arc::default(),
        earlier: EarlierAttempts::default(),
    });
    let work = move |request: Arc<DeleteBackupRequest>| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&request).await }
    };
    Ok(watch.run(&stop, work).await?)
}

/// Reason why a request could not be processed this time. The request is retried.
#[derive(Debug, thiserror::Error)]
enum DeletionError {
    #[error("the API server refused: {0}")]
    Api(#[from] kube::Error),
}

struct Controller {
    context: Arc<Context>,
    /// All requests that the watch knows of.
    requests: Store<DeleteBackupRequest>,
    turns: DeletionLocks,
    possessions: PossessionIndex,
    /// See [`PreparedDeletion::planned_alone`].
    planning: Arc<Mutex<()>>,
    earlier: EarlierAttempts,
}

impl Controller {
    async fn reconcile(&self, request: &DeleteBackupRequest) -> Result<Requeue, DeletionError> {
        let api = self.context.api::<DeleteBackupRequest>();
        match step::decide(request, Timestamp::now()) {
            RequestStep::Leave | RequestStep::Expire(Due::Never) => return Ok(Requeue::OnChange),
            RequestStep::Expire(Due::In(rest)) => return Ok(Requeue::After(rest)),
            RequestStep::Expire(Due::Now) => {
                patch::delete_unchanged(&api, request).await?;
                return Ok(Requeue::OnChange);
            }
            RequestStep::Work => {}
        }
        let name = request.spec.backup_name.as_str();
        let Some(_turn) = self.turns.try_lock(name) else {
            return Ok(Requeue::After(BUSY_RETRY_INTERVAL));
        };
        // The watch may be behind this server's own last write.
        let Some(request) = api.get_opt(&request.name_any()).await? else {
            return Ok(Requeue::OnChange);
        };
        if step::decide(&request, Timestamp::now()) != RequestStep::Work {
            return Ok(Requeue::OnChange);
        }
        let span = tracing::info_span!("deletion", backup = name);
        // Boxed because the future is large; there are few of them.
        match Box::pin(self.work(&request)).instrument(span).await {
            // A retry would fail in the same way, so the error is reported.
            Err(DeletionError::Api(error)) if patch::is_permanent(&error) => {
                self.unmark_refused(&request).await;
                self.answer_refused(&request, None, vec![status_message(&error)]).await
            }
            outcome => outcome,
        }
    }

    async fn work(&self, request: &DeleteBackupRequest) -> Result<Requeue, DeletionError> {
        let Controller { context, .. } = self;
        for other in self.other_requests(request) {
            if step::replaces(request, &other) {
                patch::delete_by_uid(&context.api(), &*other).await?;
            }
        }
        let requested = requested_uid(request);
        let backups = context.api::<Backup>();
        let name = BackupName::new(&request.spec.backup_name).ok();
        let backup = match &name {
            Some(name) => backups.get_opt(name.as_str()).await?,
            None => None,
        };
        let is_it =
            |backup: &Backup| requested.is_none_or(|uid| backup.uid().as_deref() == Some(uid));
        if step::is_in_progress(request) && !backup.as_ref().is_some_and(is_it) {
            // An earlier attempt got as far as deleting the Backup; only the request remains.
            return self.delete_requests(request, requested).await;
        }
        let location = match &backup {
            Some(backup) => find_location(context, backup).await?,
            None => Lookup::Missing,
        };
        let uid = backup.as_ref().and_then(kube::ResourceExt::uid);
        let facts = DeletionFacts {
            name: &request.spec.backup_name,
            uid: requested,
            backup: backup.as_ref(),
            is_running: uid.is_some_and(|uid| context.runs.uids().contains(&uid)),
            location: &location,
            stopping: step::stop_requested_for(request, Timestamp::now()),
        };
        match (delete::check_deletion(&facts), backup, name) {
            (DeletionVerdict::Delete(Scope::Everything), Some(backup), Some(name)) => {
                Box::pin(self.delete(request, backup, name, &location)).await
            }
            (DeletionVerdict::Delete(Scope::Object), Some(backup), _) => {
                self.mark_in_progress(request, &backup).await?;
                patch::delete_by_uid(&backups, &backup).await?;
                self.delete_requests(request, backup.uid().as_deref()).await
            }
            (DeletionVerdict::Wait, Some(backup), _) => {
                request_cancel(&backups, &backup).await?;
                self.save_stop_request(request).await?;
                Ok(Requeue::After(STOP_POLL_INTERVAL))
            }
            (DeletionVerdict::Refuse(refusal), backup, _) => {
                if let Some(backup) = &backup {
                    self.marker().unmark(backup).await?;
                }
                self.answer_refused(request, backup.as_ref(), vec![refusal.to_string()]).await
            }
            // Without a Backup there is no other decision.
            _ => Ok(Requeue::OnChange),
        }
    }

    /// Deletes a backup that has ended, unless its contents forbid that.
    async fn delete(
        &self,
        request: &DeleteBackupRequest,
        backup: Backup,
        name: BackupName,
        location: &Lookup<BackupStorageLocation>,
    ) -> Result<Requeue, DeletionError> {
        let attempts = self.earlier.count(request);
        if attempts >= MAX_ATTEMPTS {
            return self.give_up(request, &backup, attempts).await;
        }
        if !step::is_by_retention(request) {
            self.note_gave_up(&backup, false).await?;
        }
        // Saved before anything is read: reading alone may crash the server.
        self.save_attempts(request, attempts + 1).await?;
        // Boxed because the future is large.
        let outcome =
            Box::pin(self.delete_counted(request, backup, name, location, attempts)).await;
        match &outcome {
            Ok(_) => self.earlier.forget(request),
            // Only attempts that end the server count; this one was answered by the API server.
            Err(_) => {
                if let Err(error) = self.save_attempts(request, attempts).await {
                    let error = status_message(&error);
                    tracing::debug!(
                        "cannot reset the count of attempts; this attempt counts if the server \
                         restarts: {error}"
                    );
                }
            }
        }
        outcome
    }

    /// Deletes a backup after the attempt was saved. `attempts` is the number of earlier attempts.
    async fn delete_counted(
        &self,
        request: &DeleteBackupRequest,
        backup: Backup,
        name: BackupName,
        location: &Lookup<BackupStorageLocation>,
        attempts: u32,
    ) -> Result<Requeue, DeletionError> {
        let Controller { context, .. } = self;
        let uid = backup.uid();
        let prepared = match self.prepare(&backup, &name, location).await? {
            Ok(going) => going,
            Err(error) => {
                // An earlier attempt may have marked it, and was then interrupted.
                self.marker().unmark(&backup).await?;
                return self.answer_refused(request, Some(&backup), error.into_messages()).await;
            }
        };
        let marker = self.marker();
        let before = phase_before_deletion(&backup);
        let may_be_used = step::yields_to_restores(request, before.as_ref());
        if may_be_used && let Some(restore) = marker.restore_in_use(&backup).await? {
            return self.answer_in_use(request, &restore).await;
        }
        // From here on the request names the Backup by uid: another may get the same name later.
        self.mark_in_progress(request, &backup).await?;
        if prepared.plan.files == FileOwnership::OfAnother {
            tracing::warn!("the bucket has another backup of the same name, which is kept");
            patch::delete_by_uid(&context.api(), &backup).await?;
            return self.delete_requests(request, uid.as_deref()).await;
        }
        let unconfirmed = before.as_ref().filter(|_| may_be_used);
        let mut marked = marker.mark(&backup, unconfirmed).await?;
        if may_be_used && let Some(backup) = marked {
            // A client that saw the backup before it became `Deleting` may have started a restore.
            if let Some(restore) = marker.restore_in_use(&backup).await? {
                return self.answer_in_use(request, &restore).await;
            }
            marked = marker.confirm(&backup).await?;
        }
        let Some(backup) = marked else {
            return self.delete_requests(request, uid.as_deref()).await;
        };
        tracing::info!("deleting the backup");
        let schedule = backup.labels().get(label::SCHEDULE_NAME).cloned().unwrap_or_default();
        context.metrics.count_deletion(&schedule, Deletion::Attempt);
        context.events.publish(&backup, Milestone::Deleting).await;
        let mut prepared = PreparedDeletion { backup, ..prepared };
        drop(prepared.planned_alone.take());
        match self.delete_contents(&prepared).await? {
            DeletionResult::Done => {
                patch::delete_by_uid(&context.api(), &prepared.backup).await?;
                failpoint::hit(Failpoint::BackupRemoved);
                tracing::info!("backup deleted");
                context.metrics.count_deletion(&schedule, Deletion::Success);
                self.delete_requests(request, uid.as_deref()).await
            }
            DeletionResult::Failed(errors) => {
                context.metrics.count_deletion(&schedule, Deletion::Failure);
                self.answer_failed(request, Some(&prepared.backup), errors).await
            }
            // The next server finds the request in progress. This server was stopped on request and did not crash.
            DeletionResult::Stopped => {
                self.save_attempts(request, attempts).await?;
                Ok(Requeue::OnChange)
            }
        }
    }

    fn marker(&self) -> DeletionMarker {
        DeletionMarker { backups: self.context.api(), restores: self.context.api() }
    }

    /// Gives the backup of a request its phase back that the API server has refused, as far as it can be.
    async fn unmark_refused(&self, request: &DeleteBackupRequest) {
        let found = self.context.api::<Backup>().get_opt(&request.spec.backup_name).await;
        let unmarked = match found {
            Ok(Some(backup)) => self.marker().unmark(&backup).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = unmarked {
            tracing::warn!("the backup may keep its phase Deleting: {}", status_message(&error));
        }
    }

    /// Deletes everything but the Backup itself.
    async fn delete_contents(&self, going: &PreparedDeletion) -> kube::Result<DeletionResult> {
        let Controller { context, .. } = self;
        let PreparedDeletion { backup, name, store, plan, snapshotters, reports, .. } = going;
        match restores::delete_restores(context, store, name).await? {
            DeletionResult::Done => {}
            ended => return Ok(ended),
        }
        let plugins = context.host.run();
        let cluster = ApiServer::new(context.client.clone(), context.options.client_page_size);
        let job = DeletionJob {
            backup,
            name,
            store,
            plan,
            snapshotters,
            actions: run::engine_plugins(timed_plugins::delete_item_actions(
                &plugins,
                &context.calls,
            )),
            cluster: &cluster,
            scratch: &context.options.scratch_dir,
            unpack_limits: context.options.unpack_limits,
            deadlines: deadlines(context.options.plugin_call_timeout),
            stop: &context.stop,
        };
        let ended = delete::delete_data(job).await;
        plugins.shut_down().await;
        if ended != DeletionResult::Done {
            return Ok(ended);
        }
        let api: Api<VolumePluginBackup> = context.api();
        for report in reports {
            patch::delete_by_uid(&api, report).await?;
        }
        Ok(delete::delete_files(store, name).await)
    }
}

/// Timeouts for the parts of a deletion; that of action calls is set by a flag of the server.
fn deadlines(call: Option<Duration>) -> Deadlines {
    let deadlines = Deadlines::default();
    Deadlines { execute: call.unwrap_or(deadlines.execute), ..deadlines }
}

/// Location of a backup; none if the backup names none.
async fn find_location(
    context: &Context,
    backup: &Backup,
) -> kube::Result<Lookup<BackupStorageLocation>> {
    let name = &backup.spec.storage_location;
    if name.is_empty() {
        return Ok(Lookup::Missing);
    }
    let locations: Api<BackupStorageLocation> = context.api();
    lookup(locations.get_opt(name).await)
}

/// Asks a backup to stop, if it is running and was not asked before.
async fn request_cancel(backups: &Api<Backup>, backup: &Backup) -> kube::Result<()> {
    let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
    if is_canceled(backup) || phase.is_some_and(BackupPhase::is_terminal) {
        return Ok(());
    }
    tracing::info!("canceling the backup, because its deletion is requested");
    let annotations = json!({ annotation::CANCEL: "true" });
    let change = json!({ "metadata": { "uid": backup.uid(), "annotations": annotations } });
    match patch::patch(backups, &backup.name_any(), None, change).await {
        Err(error) if patch::is_not_found(&error) => Ok(()),
        changed => changed.map(drop),
    }
}
