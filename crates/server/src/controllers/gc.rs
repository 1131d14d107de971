//! Retention: creates DeleteBackupRequests for backups that have expired.
//!
//! The label [`label::GC_FAILURE`] contains the reason why a backup cannot be deleted, as in Velero: the location is
//! gone, cannot be read, or is read-only. A failed deletion is retried at each `--garbage-collection-frequency`.
//!
//! # Differences from Velero
//! - A backup that has not ended is left alone, even if it has expired: deleting it would stop it.
//! - So is one that is being restored: users may stop a restore by deleting its backup, a clock may not. The request
//!   records its origin ([`label::REQUESTED_BY`]), so that this is checked again right before the deletion starts.
//! - Nothing expires while the clocks of this server and of the API server differ, and the number of deletions per hour
//!   is limited (`deletion_limit.rs`): deletions caused by a wrong clock cannot be undone. Backups that are held get
//!   the Event `RetentionDelayed`.
//! - The name of a request is derived from the Backup, so that two servers cannot create two.

mod deletion_limit;
mod step;

use std::sync::Arc;
use std::time::Duration;

use bowline_api::{
    Backup, BackupStorageLocation, DeleteBackupRequest, DeleteBackupRequestSpec, Restore,
    annotation, label,
};
use bowline_store::sabotage::{self, Sabotage};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use self::deletion_limit::DeletionLimit;
use self::step::{Obstacle, RetentionStep, decide, next_request_due, obstacle_of, restore_using};
use super::lookup::lookup;
use super::period::Due;
use crate::clock::{ClockComparison, ClusterClock};
use crate::events::{Events, Milestone};
use crate::list::next_page;
use crate::patch;
use crate::server::{Context, Error};
use crate::watch::{Requeue, Watch};

const CONCURRENT_BACKUPS: u16 = 4;
/// Pause before retrying a Backup whose location does not answer, or that is being restored.
const OBSTACLE_RETRY_INTERVAL: Duration = Duration::from_mins(1);

/// Requests deletions until the server stops.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let frequency = context.options.garbage_collection_frequency;
    let watch = Watch::new(context.api::<Backup>()).concurrency(CONCURRENT_BACKUPS);
    let stop = context.stop.clone();
    let controller = Arc::new(Controller {
        backups: context.api(),
        requests: context.api(),
        locations: context.api(),
        restores: context.api(),
        frequency,
        all: watch.store(),
        clock: ClusterClock::new(context.client.clone()),
        limit: DeletionLimit::new(context.options.garbage_collection_limit, context.api()),
        events: context.events.clone(),
    });
    let work = move |backup: Arc<Backup>| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&backup).await }
    };
    Ok(watch.run(&stop, work).await?)
}

/// Reason why a Backup could not be processed this time. It is retried.
#[derive(Debug, thiserror::Error)]
enum RetentionError {
    #[error("cannot read the storage location of the backup")]
    Location(#[source] kube::Error),
    #[error("cannot set the label with the reason why the backup is not deleted")]
    Label(#[source] kube::Error),
    #[error("cannot list the restores that may use the backup")]
    Restores(#[source] kube::Error),
    #[error("cannot list the DeleteBackupRequests of the backup")]
    List(#[source] kube::Error),
    #[error("cannot remove a processed DeleteBackupRequest")]
    Remove(#[source] kube::Error),
    #[error("cannot create a DeleteBackupRequest")]
    Create(#[source] kube::Error),
    #[error("cannot count the deletions of the last hour")]
    Limit(#[from] deletion_limit::Error),
}

struct Controller {
    backups: Api<Backup>,
    requests: Api<DeleteBackupRequest>,
    locations: Api<BackupStorageLocation>,
    restores: Api<Restore>,
    frequency: Duration,
    /// All Backups that the watch knows of.
    all: Store<Backup>,
    clock: ClusterClock,
    limit: DeletionLimit,
    events: Events,
}

impl Controller {
    async fn reconcile(&self, backup: &Backup) -> Result<Requeue, RetentionError> {
        match decide(backup, Timestamp::now()) {
            RetentionStep::Leave | RetentionStep::Expire(Due::Never) => {
                return Ok(Requeue::OnChange);
            }
            // Clocks can be set, so the pause is never long.
            RetentionStep::Expire(Due::In(rest)) => {
                return Ok(Requeue::After(rest.min(self.frequency)));
            }
            RetentionStep::Expire(Due::Now) => {}
        }
        let location = match backup.spec.storage_location.as_str() {
            // A backup that was refused has no location, and no files.
            "" => None,
            name => {
                let read = lookup(self.locations.get_opt(name).await);
                Some(read.map_err(RetentionError::Location)?)
            }
        };
        let obstacle = location.as_ref().and_then(|location| obstacle_of(backup, location));
        if obstacle == Some(Obstacle::Unavailable) {
            tracing::debug!("the backup has expired; its storage location is unavailable");
            return Ok(Requeue::After(OBSTACLE_RETRY_INTERVAL.min(self.frequency)));
        }
        self.set_failure_label(backup, obstacle.and_then(Obstacle::label)).await?;
        if let Some(obstacle) = obstacle {
            tracing::debug!(?obstacle, "the backup has expired and cannot be deleted");
            return Ok(Requeue::After(self.frequency));
        }
        if backup.annotations().contains_key(annotation::RETENTION_GAVE_UP) {
            tracing::debug!(
                "the backup has expired, but every deletion attempt crashed the server"
            );
            return Ok(Requeue::OnChange);
        }
        self.request_deletion(backup).await
    }

    /// Time for which an expired Backup must not be deleted; logs and publishes the reason.
    async fn hold_duration(&self, backup: &Backup) -> Result<Option<Duration>, RetentionError> {
        let clocks = match self.clock.compare().await {
            _ if sabotage::is_active(Sabotage::ClockTrusted) => ClockComparison::Agree,
            clocks => clocks,
        };
        match clocks {
            // An API server whose responses have no time, behind a proxy, does not stop retention.
            ClockComparison::Agree | ClockComparison::Unknown => {
                match self.limit.admit(self.all.len(), Timestamp::now()).await? {
                    Ok(()) => Ok(None),
                    Err(rest) => Ok(Some(self.hold_for_limit(backup, rest).await)),
                }
            }
            ClockComparison::Differ(by) => {
                tracing::warn!(
                    "the backup has expired and is not deleted: the clock of the server differs \
                     by {by:#} from that of the API server"
                );
                Ok(Some(self.hold(backup, OBSTACLE_RETRY_INTERVAL).await))
            }
        }
    }

    /// Holds a Backup because too many were deleted. Returns the pause before the next attempt.
    async fn hold_for_limit(&self, backup: &Backup, rest: Duration) -> Duration {
        tracing::warn!(
            "the backup has expired and is not deleted yet: --garbage-collection-limit allows no \
             more deletions within an hour"
        );
        self.hold(backup, rest).await
    }

    async fn hold(&self, backup: &Backup, pause: Duration) -> Duration {
        self.events.publish(backup, Milestone::RetentionHeld).await;
        pause.clamp(OBSTACLE_RETRY_INTERVAL.min(self.frequency), self.frequency)
    }

    /// Requests the deletion, unless that was done before, and not too often.
    async fn request_deletion(&self, backup: &Backup) -> Result<Requeue, RetentionError> {
        let name = label::value(&backup.name_any()).into_owned();
        let uid = backup.uid().unwrap_or_default();
        let selector = format!("{}={name},{}={uid}", label::BACKUP_NAME, label::BACKUP_UID);
        let listed = self.requests.list(&ListParams::default().labels(&selector)).await;
        let requests = listed.map_err(RetentionError::List)?.items;
        match next_request_due(&requests, self.frequency, Timestamp::now()) {
            Due::Never => return Ok(Requeue::After(self.frequency)),
            Due::In(rest) => return Ok(Requeue::After(rest.min(self.frequency))),
            Due::Now => {}
        }
        // Before anything that costs more: thousands of backups may have expired, and their restores are in a list of
        // all restores.
        if let Some(pause) = self.limit.recent_refusal(Timestamp::now()) {
            return Ok(Requeue::After(self.hold_for_limit(backup, pause).await));
        }
        if let Some(restore) =
            restore_in_use(&self.restores, backup).await.map_err(RetentionError::Restores)?
        {
            tracing::info!(restore, "the backup has expired and is in use by a restore");
            return Ok(Requeue::After(OBSTACLE_RETRY_INTERVAL.min(self.frequency)));
        }
        if let Some(pause) = self.hold_duration(backup).await? {
            return Ok(Requeue::After(pause));
        }
        let request_name = format!("{name}-{}", uid.get(..8).unwrap_or(&uid));
        // An answered request occupies the name; its errors are reported again if they still hold.
        for old in requests.iter().filter(|old| old.name_any() == request_name) {
            patch::delete_by_uid(&self.requests, old).await.map_err(RetentionError::Remove)?;
        }
        let by = (label::REQUESTED_BY, label::BY_RETENTION.to_owned());
        let labels = [(label::BACKUP_NAME, name), (label::BACKUP_UID, uid), by];
        let labels = labels.map(|(key, value)| (key.to_owned(), value)).into_iter().collect();
        let metadata = ObjectMeta {
            name: Some(request_name),
            namespace: backup.namespace(),
            labels: Some(labels),
            ..ObjectMeta::default()
        };
        let spec = DeleteBackupRequestSpec { backup_name: backup.name_any(), ..Default::default() };
        let request = DeleteBackupRequest { metadata, spec, status: None };
        match self.requests.create(&patch::post_params(), &request).await {
            Ok(_) => tracing::info!("the backup has expired; its deletion is requested"),
            // Another server was faster.
            Err(error) if patch::is_already_exists(&error) => {}
            Err(error) => return Err(RetentionError::Create(error)),
        }
        Ok(Requeue::After(self.frequency))
    }

    /// Sets the reason why a Backup is not deleted, or removes it.
    async fn set_failure_label(
        &self,
        backup: &Backup,
        value: Option<&str>,
    ) -> Result<(), RetentionError> {
        let written = backup.labels().get(label::GC_FAILURE).map(String::as_str);
        if written == value {
            return Ok(());
        }
        if let Some(reason) = value {
            tracing::warn!(reason, "the backup has expired and cannot be deleted");
        }
        let change =
            json!({"metadata": {"uid": backup.uid(), "labels": {label::GC_FAILURE: value}}});
        match patch::patch(&self.backups, &backup.name_any(), None, change).await {
            Err(error) if !patch::is_not_found(&error) => Err(RetentionError::Label(error)),
            _ => Ok(()),
        }
    }
}

const PAGE: u32 = 500;

/// Name of an active Restore of a Backup, if there is one.
pub(super) async fn restore_in_use(
    api: &Api<Restore>,
    backup: &Backup,
) -> kube::Result<Option<String>> {
    let mut next = Some(ListParams::default().limit(PAGE));
    while let Some(params) = next {
        let page = api.list(&params).await?;
        if let Some(restore) = restore_using(backup, &page.items) {
            return Ok(Some(restore.name_any()));
        }
        next = next_page(params, &page.metadata);
    }
    Ok(None)
}
