//! Synchronises Backups in the cluster with the backups in storage locations, in both directions.
//!
//! Each location is checked every `backupSyncPeriod`. A backup that another cluster wrote, with Velero or Bowline,
//! becomes a Backup here; a Backup whose files are gone is removed.
//!
//! # Guarantees
//! - **Nothing is deleted by mistake.** The Backups are listed before the bucket, so that a backup that is complete in
//!   the first list has its files in the second; Backups that changed since are not touched. When a list fails, nothing
//!   is deleted. Nor is anything deleted when a location is completely empty: an unmounted folder looks like that.
//! - **A bucket gives no orders.** Only backups that have ended are imported, without their hooks, their finalizers and
//!   owners that do not exist here: write access to a bucket does not allow making the server run something. The same
//!   holds for PodVolumeBackups and VolumePluginBackups.
//! - **A bucket cannot fill the cluster or crash the server for good.** The amount that a location may import is
//!   limited (`quota.rs`). Backups about to be read are recorded (`attempts.rs`), so that a file that crashes the
//!   server is skipped the next time.
//! - **The result is reported** in the conditions of the location (`conditions.rs`). `lastSyncedTime` is the time of
//!   the last success.
//! - **A kill loses nothing.** A Backup carries [`INCOMPLETE`] until everything that belongs to it is there, and the
//!   next round resumes its import.

mod attempts;
mod conditions;
mod import;
mod orphan;
mod quota;
mod summary;
#[cfg(feature = "testing")]
pub mod testing;

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use bowline_api::location::LocationPhase;
use bowline_api::{
    Backup, BackupStorageLocation, PodVolumeBackup, Schedule, VolumePluginBackup, annotation,
};
use bowline_store::{BackupName, BackupStore};
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use self::attempts::{ImportAttempts, ImportBatches};
use self::conditions::SyncOutcome;
use self::import::{Child, ImportDecision, ImportTarget, SkipReason};
use self::orphan::Orphans;
use self::quota::{ImportQuota, MAX_CHILDREN, OverQuota};
use self::summary::BackupSummary;
use super::period::{self, Due};
use crate::error_text::status_message;
use crate::events::Milestone;
use crate::server::{Context, Error};
use crate::watch::{Requeue, Watch};
use crate::{locations, patch};

/// Annotation of a Backup whose PodVolumeBackups and VolumePluginBackups are not all imported yet.
pub const INCOMPLETE: &str = "bowline.io/sync-incomplete";

const CONCURRENT_LOCATIONS: u16 = 4;
/// Number of backups of a location that are imported at a time.
const CONCURRENT_IMPORTS: usize = 4;
/// Number of backups recorded at a time as about to be read.
const ATTEMPTS_PER_BATCH: usize = 32;
/// Number of complaints that are remembered, so as not to repeat them each minute.
const MAX_LOGGED_COMPLAINTS: usize = 10_000;

/// Keeps cluster and locations in sync until the server stops.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let watch =
        Watch::new(context.api::<BackupStorageLocation>()).concurrency(CONCURRENT_LOCATIONS);
    let stop = context.stop.clone();
    let controller = Arc::new(Controller { context, logged: Mutex::default() });
    let work = move |location: Arc<BackupStorageLocation>| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&location).await }
    };
    Ok(watch.run(&stop, work).await?)
}

/// Reason why a location could not be synchronised.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error("cannot list the backups in the cluster")]
    ListCluster(#[source] kube::Error),
    #[error("cannot open the location")]
    Open(#[from] locations::Error),
    #[error("cannot list the backups in the location")]
    ListStore(#[source] bowline_store::Error),
    #[error("cannot write the status of the location")]
    WriteStatus(#[source] kube::Error),
}

/// A backup to import.
#[derive(Clone, Debug)]
struct PendingImport {
    name: BackupName,
    /// True if an earlier attempt created the Backup.
    is_in_cluster: bool,
}

/// Reason why a backup could not be imported.
#[derive(Debug, thiserror::Error)]
enum ImportError {
    #[error("velero-backup.json cannot be read")]
    Read(#[source] bowline_store::Error),
    #[error("schedule `{0}` cannot be read")]
    Schedule(String, #[source] kube::Error),
    #[error("the Backup cannot be created")]
    Create(#[source] kube::Error),
    #[error("the Backup of an earlier attempt cannot be read")]
    ReadIncomplete(#[source] kube::Error),
    #[error("the file with the {0} of the backup cannot be read")]
    ReadChildren(String, #[source] bowline_store::Error),
    #[error("the {0} `{1}` cannot be created")]
    CreateChild(String, String, #[source] kube::Error),
    #[error("the {0}s of the namespace cannot be counted")]
    CountChildren(String, #[source] kube::Error),
    #[error(transparent)]
    OverQuota(#[from] OverQuota),
    #[error("the Backup cannot be marked as complete")]
    Mark(#[source] kube::Error),
}

struct Controller {
    context: Arc<Context>,
    /// Complaints that were logged, with their locations.
    logged: Mutex<HashSet<(String, String)>>,
}

impl Controller {
    async fn reconcile(&self, location: &BackupStorageLocation) -> Result<Requeue, SyncError> {
        let server = self.context.options.backup_sync_period;
        let period = period::period(location.spec.backup_sync_period, server);
        let status = location.status.as_ref();
        let last = status.and_then(|status| status.last_synced_time.as_ref()).map(|time| time.0);
        match period::due(last, period, Timestamp::now()) {
            Due::Never => return Ok(Requeue::OnChange),
            Due::In(rest) => return Ok(Requeue::After(rest)),
            Due::Now => {}
        }
        // A location that becomes available changes, which triggers another call.
        if status.and_then(|status| status.phase.as_ref()) != Some(&LocationPhase::Available) {
            return Ok(Requeue::OnChange);
        }
        let synced = self.sync(location).await;
        let outcome = match &synced {
            Ok(skipped) => SyncOutcome::Done(skipped.clone()),
            Err(failure) => SyncOutcome::Failed(status_message(failure)),
        };
        self.write_outcome(location, &outcome).await?;
        synced.map(|_| period.map_or(Requeue::OnChange, Requeue::After))
    }

    /// Writes the outcome of a sync.
    async fn write_outcome(
        &self,
        location: &BackupStorageLocation,
        outcome: &SyncOutcome,
    ) -> Result<(), SyncError> {
        let before = location.status.clone().unwrap_or_default().conditions;
        let now = Timestamp::now();
        let conditions = conditions::conditions_after_sync(&before, &location.spec, outcome, now);
        let mut status = json!({});
        if let Some(conditions) = &conditions {
            status["conditions"] = json!(conditions);
        }
        if let SyncOutcome::Done(_) = outcome {
            status["lastSyncedTime"] = json!(patch::truncate_to_second(now));
        } else if conditions.is_some() {
            self.context.events.publish(location, Milestone::NotSynced).await;
        } else {
            return Ok(());
        }
        let api = self.context.api::<BackupStorageLocation>();
        match patch::patch_status(&api, &location.name_any(), None, status).await {
            Err(error) if patch::is_not_found(&error) => Ok(()),
            written => written.map(drop).map_err(SyncError::WriteStatus),
        }
    }

    /// Synchronises cluster and location. Returns the backups that could not be imported, with the reasons.
    async fn sync(
        &self,
        location: &BackupStorageLocation,
    ) -> Result<Vec<(String, String)>, SyncError> {
        let store = self.context.locations.open(location).await?;
        // The order matters: see the module documentation.
        let Context { client, options, .. } = &*self.context;
        let cluster = summary::list(client, &options.namespace).await;
        let cluster = cluster.map_err(SyncError::ListCluster)?;
        let began = Timestamp::now();
        let listing = store.list().await.map_err(SyncError::ListStore)?;
        for folder in &listing.unexpected {
            if self.is_new_complaint(location, folder) {
                tracing::info!(
                    location = location.name_any(),
                    folder,
                    "directory ignored: not a backup"
                );
            }
        }
        let listed: BTreeSet<&str> = listing.backups.iter().map(BackupName::as_str).collect();
        let existing_names: HashSet<&str> =
            cluster.iter().map(|backup| backup.name.as_str()).collect();
        let target = ImportTarget {
            namespace: &self.context.options.namespace,
            location: &location.name_any(),
        };

        let new = listing.backups.iter().filter(|name| !existing_names.contains(name.as_str()));
        let new = new.map(|name| PendingImport { name: name.clone(), is_in_cluster: false });
        let incomplete = cluster
            .iter()
            .filter(|backup| backup.is_incomplete && backup.location == target.location)
            .filter_map(|backup| BackupName::new(backup.name.clone()).ok())
            .map(|name| PendingImport { name, is_in_cluster: true });
        let wanted: Vec<PendingImport> = new.chain(incomplete).collect();
        let limit = self.context.options.backup_sync_limit;
        let quota = if wanted.is_empty() {
            ImportQuota::new(limit)
        } else {
            let backups = self.context.api::<Backup>();
            let quota = ImportQuota::read(limit, &backups, target.location).await;
            quota.map_err(SyncError::ListCluster)?
        };
        let skipped = self.import_all(location, &store, &target, wanted, &listed, &quota).await?;
        let has_others = !listing.unexpected.is_empty();
        match orphan::find(&cluster, target.location, &listed, has_others, began) {
            Orphans::Remove(orphans) => self.delete_orphans(orphans).await,
            Orphans::Keep(backups) => tracing::warn!(
                location = target.location,
                backups,
                "the location is empty; its Backups are kept in the cluster; check that the \
                 location is mounted and is the right one"
            ),
        }
        Ok(skipped)
    }

    /// Imports backups, a few at a time. Returns those that could not be imported, with the reasons.
    async fn import_all(
        &self,
        location: &BackupStorageLocation,
        store: &BackupStore,
        target: &ImportTarget<'_>,
        wanted: Vec<PendingImport>,
        listed: &BTreeSet<&str>,
        quota: &ImportQuota,
    ) -> Result<Vec<(String, String)>, SyncError> {
        let mut attempts = ImportAttempts::from_location(location);
        attempts.retain_listed(listed);
        let mut skipped = Vec::new();
        let mut complain = |name: &str, reason: String| {
            if self.is_new_complaint(location, &format!("{name} {reason}")) {
                tracing::warn!(
                    location = target.location,
                    backup = name,
                    reason,
                    "backup not synced"
                );
            }
            skipped.push((name.to_owned(), reason));
        };
        let ImportBatches { batches, given_up } =
            attempts.plan_batches(wanted, |pending| pending.name.as_str(), ATTEMPTS_PER_BATCH);
        for PendingImport { name, .. } in given_up {
            let reason = format!(
                "the server stopped each time it read this backup; delete the files of the \
                 backup, or remove the annotation {} from the location to retry",
                annotation::SYNC_ATTEMPTS
            );
            complain(name.as_str(), reason);
        }
        let mut saved = location.annotations().get(annotation::SYNC_ATTEMPTS).cloned();
        for batch in batches {
            if self.context.stop.is_cancelled() {
                break;
            }
            let names: Vec<String> = batch.iter().map(|pending| pending.name.to_string()).collect();
            attempts.record_started(names.iter().map(String::as_str));
            self.save_attempts(location, &attempts, &mut saved).await?;
            let imported = stream::iter(batch)
                .map(|pending| async move {
                    let outcome = self.import_backup(store, target, &pending, quota).await;
                    (pending.name, outcome)
                })
                .buffer_unordered(CONCURRENT_IMPORTS)
                .collect::<Vec<_>>()
                .await;
            attempts.record_ended(names.iter().map(String::as_str));
            for (name, outcome) in imported {
                match outcome {
                    Ok(None) => {
                        tracing::info!(
                            location = target.location,
                            backup = %name,
                            "backup synced into the cluster"
                        );
                    }
                    Ok(Some(reason)) => {
                        if self.is_new_complaint(location, &format!("{name} {reason}")) {
                            tracing::info!(
                                location = target.location, backup = %name, %reason, "backup not synced"
                            );
                        }
                    }
                    Err(error) => complain(name.as_str(), status_message(&error)),
                }
            }
        }
        self.save_attempts(location, &attempts, &mut saved).await?;
        Ok(skipped)
    }

    /// Records on the location which backups are about to be read, if the annotation differs.
    async fn save_attempts(
        &self,
        location: &BackupStorageLocation,
        attempts: &ImportAttempts,
        saved: &mut Option<String>,
    ) -> Result<(), SyncError> {
        let wanted = attempts.to_annotation();
        if wanted == *saved {
            return Ok(());
        }
        let change = json!({"metadata": {"annotations": {annotation::SYNC_ATTEMPTS: wanted}}});
        let api = self.context.api::<BackupStorageLocation>();
        match patch::patch(&api, &location.name_any(), None, change).await {
            Err(error) if !patch::is_not_found(&error) => Err(SyncError::WriteStatus(error)),
            _ => {
                *saved = wanted;
                Ok(())
            }
        }
    }

    /// Imports one backup, or returns why not.
    async fn import_backup(
        &self,
        store: &BackupStore,
        target: &ImportTarget<'_>,
        PendingImport { name, is_in_cluster }: &PendingImport,
        quota: &ImportQuota,
    ) -> Result<Option<SkipReason>, ImportError> {
        let api = self.context.api::<Backup>();
        let backup = if *is_in_cluster {
            let incomplete =
                api.get_opt(name.as_str()).await.map_err(ImportError::ReadIncomplete)?;
            let incomplete = incomplete.filter(|backup| is_incomplete(backup, target));
            incomplete.ok_or(SkipReason::ChangedMeanwhile)
        } else {
            self.create(store, target, name, quota).await?
        };
        let backup = match backup {
            Ok(backup) => backup,
            Err(reason) => return Ok(Some(reason)),
        };
        self.import_children::<PodVolumeBackup>(store, target, name, &backup).await?;
        self.import_children::<VolumePluginBackup>(store, target, name, &backup).await?;
        let done = json!({"metadata": {"annotations": {INCOMPLETE: null}}});
        match patch::patch(&api, name.as_str(), None, done).await {
            Err(error) if !patch::is_not_found(&error) => Err(ImportError::Mark(error)),
            _ => Ok(None),
        }
    }

    /// Creates the Backup of a record, or returns why not.
    async fn create(
        &self,
        store: &BackupStore,
        target: &ImportTarget<'_>,
        name: &BackupName,
        quota: &ImportQuota,
    ) -> Result<Result<Backup, SkipReason>, ImportError> {
        let Some(record) = store.backup(name).await.map_err(ImportError::Read)? else {
            return Ok(Err(SkipReason::NoRecord));
        };
        let schedules = self.existing_schedules(&record).await?;
        let prepared = match import::decide(record, target, &schedules, Timestamp::now()) {
            ImportDecision::Skip(reason) => return Ok(Err(reason)),
            ImportDecision::Create(prepared) => prepared,
        };
        quota.reserve(&prepared)?;
        match self.context.api::<Backup>().create(&patch::post_params(), &prepared).await {
            Ok(created) => Ok(Ok(created)),
            Err(error) if patch::is_already_exists(&error) => Ok(Err(SkipReason::CreatedMeanwhile)),
            Err(error) => Err(ImportError::Create(error)),
        }
    }

    /// Imports the objects that belong to a backup.
    async fn import_children<K>(
        &self,
        store: &BackupStore,
        target: &ImportTarget<'_>,
        name: &BackupName,
        backup: &Backup,
    ) -> Result<(), ImportError>
    where
        K: Child + Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
        Vec<K>: bowline_store::file::BackupContent,
    {
        let kind = K::kind(&()).into_owned();
        let read = store.get::<Vec<K>>(name).await;
        let children = read.map_err(|error| ImportError::ReadChildren(kind.clone(), error))?;
        let api: Api<K> = self.context.api();
        let children: Vec<K> = children.into_iter().flatten().collect();
        if children.is_empty() {
            return Ok(());
        }
        let existing_count = match count_objects(&api).await {
            Ok(here) => here,
            // Velero's CRDs do not include Bowline's kinds.
            Err(error) if patch::is_not_found(&error) => return Ok(()),
            Err(error) => return Err(ImportError::CountChildren(kind, error)),
        };
        if existing_count.saturating_add(children.len() as u64) > MAX_CHILDREN {
            return Err(OverQuota::Children.into());
        }
        for child in children {
            let Some(child) = import::import_child(child, target, backup) else { continue };
            quota::check_child(&child)?;
            let child_name = child.name_any();
            match api.create(&patch::post_params(), &child).await {
                Ok(_) => {}
                Err(error) if patch::is_already_exists(&error) => {}
                Err(error) if patch::is_not_found(&error) => return Ok(()),
                Err(error) => return Err(ImportError::CreateChild(kind, child_name, error)),
            }
        }
        Ok(())
    }

    /// Owner schedules of a record that exist here, with their uids.
    async fn existing_schedules(
        &self,
        record: &Backup,
    ) -> Result<Vec<(String, String)>, ImportError> {
        let api = self.context.api::<Schedule>();
        let mut found = Vec::new();
        for name in import::owner_schedules(record) {
            let read = api.get_opt(&name).await;
            let read = read.map_err(|error| ImportError::Schedule(name.clone(), error))?;
            if let Some(uid) = read.and_then(|schedule| schedule.uid()) {
                found.push((name, uid));
            }
        }
        Ok(found)
    }

    async fn delete_orphans(&self, orphans: Vec<&BackupSummary>) {
        let api = self.context.api::<Backup>();
        for orphan in orphans {
            let backup = orphan.name.as_str();
            match patch::delete_if(&api, backup, orphan.preconditions()).await {
                Ok(()) => {
                    tracing::info!(backup, "Backup removed from the cluster: its files are gone");
                }
                // The Backup was changed meanwhile; the next round looks again.
                Err(error) if patch::is_conflict(&error) => {}
                Err(error) => {
                    let error = status_message(&error);
                    tracing::warn!(
                        backup,
                        error,
                        "cannot remove the Backup from the cluster, although its files are gone"
                    );
                }
            }
        }
    }

    /// True if a complaint was not logged yet. Most complaints are the same a minute later.
    fn is_new_complaint(&self, location: &BackupStorageLocation, complaint: &str) -> bool {
        let mut logged = self.logged.lock();
        if logged.len() >= MAX_LOGGED_COMPLAINTS {
            logged.clear();
        }
        logged.insert((location.name_any(), complaint.to_owned()))
    }
}

/// Number of objects of a kind, without reading them.
async fn count_objects<K>(api: &Api<K>) -> kube::Result<u64>
where
    K: Clone + Debug + DeserializeOwned,
{
    let page = api.list_metadata(&ListParams::default().limit(1)).await?;
    let rest = page.metadata.remaining_item_count.unwrap_or_default();
    Ok(u64::try_from(rest).unwrap_or_default() + page.items.len() as u64)
}

/// True if a Backup of this location was imported only in part.
fn is_incomplete(backup: &Backup, target: &ImportTarget<'_>) -> bool {
    backup.annotations().contains_key(INCOMPLETE) && backup.spec.storage_location == target.location
}
