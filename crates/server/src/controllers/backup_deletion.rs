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

mod earlier_attempts;
mod locks;
mod marker;
mod owned_objects;
mod possession_index;
mod restores;
mod step;

use std::sync::Arc;
use std::time::Duration;

use bowline_api::delete_backup_request::DeleteBackupRequestPhase;
use bowline_api::{
    Backup, BackupPhase, BackupStorageLocation, DeleteBackupRequest, VolumePluginBackup,
    annotation, label,
};
use bowline_engine::backup::request::Lookup;
use bowline_engine::cluster::ApiServer;
use bowline_engine::delete::{
    self, Deadlines, DeletionFacts, DeletionJob, DeletionPlan, DeletionResult, DeletionVerdict,
    FileOwnership, InventoryError, OpenSnapshotters, Scope, SharedSnapshot,
};
use bowline_engine::download::DownloadError;
use bowline_engine::failpoint::{self, Failpoint};
use bowline_store::{BackupName, BackupStore};
use jiff::Timestamp;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tracing::Instrument as _;

use self::earlier_attempts::EarlierAttempts;
use self::locks::DeletionLocks;
use self::marker::{DeletionMarker, phase_before_deletion};
use self::possession_index::{PossessionIndex, UnknownPossessions};
use self::step::RequestStep;
use super::lookup::{OpenError, RefusedRequest, lookup, open, split_refusal};
use super::operations::is_canceled;
use super::period::Due;
use super::{run, timed_plugins};
use crate::error_text::{status_message, truncate_text};
use crate::events::Milestone;
use crate::metrics::Deletion;
use crate::server::{Context, Error};
use crate::watch::{Requeue, Watch};
use crate::{patch, unlisted_plugins};

const CONCURRENT_DELETIONS: u16 = 8;
/// Interval between checks of a backup that was asked to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before retrying a backup that another request is working on.
const BUSY_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Number of times that a deletion is started without an observed end.
const MAX_ATTEMPTS: u32 = 4;
/// Velero's prefix for the reason why a deletion cannot start.
const FAILURE_PREFIX: &str = "backup deletion failed";

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

/// Reason why a backup cannot be deleted. The text ends up in the status of the request.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error("error getting the backup store")]
    OpenStore(#[source] OpenError),
    #[error(transparent)]
    ReadInventory(InventoryError),
    #[error("cannot read the list of CSI snapshots of the backup")]
    ReadCsiInventory(#[source] DownloadError),
    #[error("cannot list the objects that belong to the backup")]
    FindOwnedObjects(#[source] RefusedRequest),
    #[error(transparent)]
    Possessions(UnknownPossessions),
    #[error(transparent)]
    ListBackups(RefusedRequest),
    #[error("{}", .0.join("; "))]
    Objections(Vec<String>),
}

impl PrepareError {
    /// One message for each reason.
    fn into_messages(self) -> Vec<String> {
        match self {
            Self::Objections(reasons) => reasons,
            error => vec![status_message(&error)],
        }
    }
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

/// A backup that is about to be deleted.
struct PreparedDeletion {
    backup: Backup,
    name: BackupName,
    store: BackupStore,
    plan: DeletionPlan,
    snapshotters: OpenSnapshotters,
    /// VolumePluginBackups in the cluster.
    reports: Vec<VolumePluginBackup>,
    /// Held from the time at which the other backups are checked for what they name until this backup is `Deleting`,
    /// and so no longer keeps anything: two backups deleted at once would each keep for the other what both name.
    planned_alone: Option<OwnedMutexGuard<()>>,
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
                self.answer_refused(&request, None, vec![status_message(&error)]).await
            }
            outcome => outcome,
        }
    }

    async fn work(&self, request: &DeleteBackupRequest) -> Result<Requeue, DeletionError> {
        let Controller { context, .. } = self;
        for other in self.other_requests(request) {
            patch::delete_by_uid(&context.api(), &*other).await?;
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
                return self.answer_refused(request, Some(&backup), error.into_messages()).await;
            }
        };
        let marker = DeletionMarker { backups: context.api(), restores: context.api() };
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

    /// Answers a request made by retention for a backup that is being restored.
    async fn answer_in_use(
        &self,
        request: &DeleteBackupRequest,
        restore: &str,
    ) -> Result<Requeue, DeletionError> {
        let reason = format!(
            "the backup has expired and is in use by restore {restore}; its deletion is retried later"
        );
        self.answer_refused(request, None, vec![reason]).await
    }

    /// Answers a request whose deletion was started too often.
    async fn give_up(
        &self,
        request: &DeleteBackupRequest,
        backup: &Backup,
        attempts: u32,
    ) -> Result<Requeue, DeletionError> {
        // Retention would ask again in an hour. A user who asks again has looked into it.
        self.note_gave_up(backup, true).await?;
        let reason = format!(
            "the server stopped {attempts} times while it deleted the backup; check the files of \
             the backup in the bucket and the memory limit of the server before you request the \
             deletion again"
        );
        self.answer_refused(request, Some(backup), vec![reason]).await
    }

    /// Records on a Backup that retention has given up on it, or no longer has.
    async fn note_gave_up(&self, backup: &Backup, gave_up: bool) -> kube::Result<()> {
        if backup.annotations().contains_key(annotation::RETENTION_GAVE_UP) == gave_up {
            return Ok(());
        }
        let annotations = json!({ annotation::RETENTION_GAVE_UP: gave_up.then_some("true") });
        let change = json!({ "metadata": { "uid": backup.uid(), "annotations": annotations } });
        let api = self.context.api::<Backup>();
        match patch::patch(&api, &backup.name_any(), None, change).await {
            Err(error) if !patch::is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Saves on a request the number of times that its deletion was started.
    async fn save_attempts(
        &self,
        request: &DeleteBackupRequest,
        attempts: u32,
    ) -> kube::Result<()> {
        self.annotate(request, annotation::DELETION_ATTEMPTS, &attempts.to_string()).await
    }

    /// Saves on a request, once, the time at which its backup was asked to stop.
    async fn save_stop_request(&self, request: &DeleteBackupRequest) -> kube::Result<()> {
        if request.annotations().contains_key(annotation::STOP_ASKED) {
            return Ok(());
        }
        self.annotate(request, annotation::STOP_ASKED, &Timestamp::now().to_string()).await
    }

    async fn annotate(
        &self,
        request: &DeleteBackupRequest,
        key: &str,
        value: &str,
    ) -> kube::Result<()> {
        let annotations = json!({ key: value });
        let change = json!({ "metadata": { "uid": request.uid(), "annotations": annotations } });
        let api = self.context.api::<DeleteBackupRequest>();
        match patch::patch(&api, &request.name_any(), None, change).await {
            Err(error) if !patch::is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Finds out what there is to delete, or why it cannot be deleted. Changes nothing.
    async fn prepare(
        &self,
        backup: &Backup,
        name: &BackupName,
        location: &Lookup<BackupStorageLocation>,
    ) -> kube::Result<Result<PreparedDeletion, PrepareError>> {
        let Controller { context, .. } = self;
        let store = match open(context, location).await {
            Ok(store) => store,
            Err(error) => return Ok(Err(PrepareError::OpenStore(error))),
        };
        let mut holdings = match delete::read_inventory(&store, name).await {
            Ok(holdings) => holdings,
            Err(error) => return Ok(Err(PrepareError::ReadInventory(error))),
        };
        let (scratch, limits) = (&context.options.scratch_dir, context.options.unpack_limits);
        if let Err(error) =
            delete::read_csi_inventory(&store, name, backup, scratch, limits, &mut holdings).await
        {
            return Ok(Err(PrepareError::ReadCsiInventory(error)));
        }
        let found = match split_refusal(owned_objects::find_owned(context, name).await)? {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(PrepareError::FindOwnedObjects(refusal))),
        };
        let reports = found.volume_plugin_backups.clone();
        holdings.pod_volume_backups.extend(found.pod_volume_backups);
        holdings.volume_plugin_backups.extend(found.volume_plugin_backups);
        holdings.data_uploads.extend(found.data_uploads);
        let mut plan = match delete::plan_deletion(backup, &holdings) {
            Ok(plan) => plan,
            Err(objections) => return Ok(Err(PrepareError::Objections(objections.messages()))),
        };
        let missing = unlisted_plugins::deletion_objections(context.host.registry().unlisted());
        if plan.files == FileOwnership::Own && !missing.is_empty() {
            return Ok(Err(PrepareError::Objections(missing)));
        }
        let mut planned_alone = None;
        if !plan.snapshots.is_empty() || !plan.csi.is_empty() {
            planned_alone = Some(Arc::clone(&self.planning).lock_owned().await);
            let of_others = match split_refusal(self.possessions.of_others(context, backup).await)?
            {
                Ok(Ok(possessions)) => possessions,
                Ok(Err(error)) => return Ok(Err(PrepareError::Possessions(error))),
                Err(refusal) => return Ok(Err(PrepareError::ListBackups(refusal))),
            };
            let shared = match delete::exclude_shared(&mut plan, &of_others) {
                Ok(shared) => shared,
                Err(objections) => return Ok(Err(PrepareError::Objections(objections.messages()))),
            };
            for SharedSnapshot { snapshot, other_backup: by } in shared {
                tracing::warn!(snapshot, "snapshot kept: backup {by} refers to it as well");
            }
        }
        let cluster = ApiServer::new(context.client.clone(), context.options.client_page_size);
        if let Err(objections) = delete::check_csi_ready(&cluster, &mut plan.csi).await {
            return Ok(Err(PrepareError::Objections(objections.messages())));
        }
        let deadlines = Deadlines::default();
        let opened =
            delete::open_snapshotters(&*context.snapshotters, &plan.snapshots, &deadlines).await;
        let (backup, name) = (backup.clone(), name.clone());
        let prepared = opened.map(|snapshotters| PreparedDeletion {
            backup,
            name,
            store,
            plan,
            snapshotters,
            reports,
            planned_alone,
        });
        Ok(prepared.map_err(|objections| PrepareError::Objections(objections.messages())))
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

    /// Marks a request as in progress, with the uid of its backup.
    async fn mark_in_progress(
        &self,
        request: &DeleteBackupRequest,
        backup: &Backup,
    ) -> kube::Result<()> {
        let name = label::value(&request.spec.backup_name).into_owned();
        let change = json!({
            "metadata": {
                "uid": request.uid(),
                "labels": { label::BACKUP_NAME: name, label::BACKUP_UID: backup.uid() },
            },
            "status": { "phase": DeleteBackupRequestPhase::InProgress, "errors": null },
        });
        let api = self.context.api::<DeleteBackupRequest>();
        patch::patch(&api, &request.name_any(), None, change).await.map(drop)
    }

    /// Answers a request for which nothing was done, with Velero's messages.
    async fn answer_refused(
        &self,
        request: &DeleteBackupRequest,
        backup: Option<&Backup>,
        reasons: Vec<String>,
    ) -> Result<Requeue, DeletionError> {
        let reasons = reasons.iter().map(|reason| format!("{FAILURE_PREFIX}: {reason}")).collect();
        self.answer_failed(request, backup, reasons).await
    }

    /// Answers a request that was not fulfilled, or only in part.
    async fn answer_failed(
        &self,
        request: &DeleteBackupRequest,
        backup: Option<&Backup>,
        errors: Vec<String>,
    ) -> Result<Requeue, DeletionError> {
        tracing::warn!("the backup could not be deleted: {}", errors.join("; "));
        let errors: Vec<String> = errors.into_iter().map(truncate_text).collect();
        let api = self.context.api::<DeleteBackupRequest>();
        let status = json!({ "phase": DeleteBackupRequestPhase::Processed, "errors": errors });
        if patch::patch_status_of(&api, request, status).await?.is_none() {
            return Ok(Requeue::OnChange);
        }
        if let Some(backup) = backup {
            self.context.events.publish(backup, Milestone::NotDeleted).await;
        }
        Ok(Requeue::After(step::MAX_AGE))
    }

    /// Removes a fulfilled request, and all others for the deleted Backup.
    async fn delete_requests(
        &self,
        request: &DeleteBackupRequest,
        uid: Option<&str>,
    ) -> Result<Requeue, DeletionError> {
        let api = self.context.api::<DeleteBackupRequest>();
        for other in self.other_requests(request) {
            // A request for another Backup of the same name is not fulfilled by this deletion.
            if requested_uid(&other).is_none_or(|wanted| Some(wanted) == uid) {
                patch::delete_by_uid(&api, &other).await?;
            }
        }
        patch::delete_by_uid(&api, request).await?;
        Ok(Requeue::OnChange)
    }

    /// Other requests for the same backup.
    fn other_requests(&self, request: &DeleteBackupRequest) -> Vec<Arc<DeleteBackupRequest>> {
        let is_like = |other: &Arc<DeleteBackupRequest>| {
            let (wanted, its) = (requested_uid(request), requested_uid(other));
            other.spec.backup_name == request.spec.backup_name
                && other.uid() != request.uid()
                // A request for another Backup of the same name gets its own answer.
                && (its.is_none() || wanted.is_none() || its == wanted)
        };
        self.requests.state().into_iter().filter(is_like).collect()
    }
}

/// Timeouts for the parts of a deletion; that of action calls is set by a flag of the server.
fn deadlines(call: Option<Duration>) -> Deadlines {
    let deadlines = Deadlines::default();
    Deadlines { execute: call.unwrap_or(deadlines.execute), ..deadlines }
}

/// Uid of the Backup that a request was made for, if set.
fn requested_uid(request: &DeleteBackupRequest) -> Option<&str> {
    request.labels().get(label::BACKUP_UID).map(String::as_str).filter(|uid| !uid.is_empty())
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
