//! Backups that have expired: they get a DeleteBackupRequest.
//!
//! What keeps one from being deleted is in its label [`label::GC_FAILURE`], as in Velero: the location is
//! gone, cannot be read, or must not be written to. A deletion that failed is tried again each
//! `--garbage-collection-frequency`.
//!
//! # Where it differs
//! - A backup that has not ended is left alone, even if its time is over: to delete it would be to stop it.
//! - So is one that is being restored: users may stop a restore by deleting its backup, a clock may not. The request
//!   says who made it ([`label::REQUESTED_BY`]), so that this is looked at again right before the work begins.
//! - Nothing expires while the clocks of this server and of the API server differ, and only so many do in an
//!   hour (`deletion_limit.rs`): what a wrong clock deletes nobody brings back. What is held has the Event `RetentionHeld`.
//! - The name of a request follows from the Backup, so that two servers cannot make two.

mod deletion_limit;
mod step;

use std::sync::Arc;
use std::time::Duration;

use bowline_api::{
    Backup, BackupStorageLocation, DeleteBackupRequest, DeleteBackupRequestSpec, Restore,
    annotation, label,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use self::deletion_limit::DeletionLimit;
use self::step::{Obstacle, Step, decide, hindrance, pending, user_of};
use super::lookup::lookup;
use super::period::Due;
use crate::clock::{Clocks, ClusterClock};
use crate::events::{Events, Milestone};
use crate::patch;
use crate::server::{Context, Error};
use crate::watch::{Next, Watch};

/// How many Backups are looked at at a time.
const AT_ONCE: u16 = 4;
/// When to look again at a Backup whose location does not answer, or that is being restored.
const UNAVAILABLE: Duration = Duration::from_mins(1);

/// Works until asked to stop.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let frequency = context.options.garbage_collection_frequency;
    let watch = Watch::new(context.api::<Backup>()).concurrency(AT_ONCE);
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

/// Why a Backup could not be worked on this time. It is tried again.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot read its storage location")]
    Location(#[source] kube::Error),
    #[error("cannot write the label that says why it is not deleted")]
    Label(#[source] kube::Error),
    #[error("cannot list the restores that may use it")]
    Restores(#[source] kube::Error),
    #[error("cannot list the requests to delete it")]
    List(#[source] kube::Error),
    #[error("cannot remove a request that was answered")]
    Remove(#[source] kube::Error),
    #[error("cannot ask for its deletion")]
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
    /// All Backups, as far as the watch knows.
    all: Store<Backup>,
    clock: ClusterClock,
    limit: DeletionLimit,
    events: Events,
}

impl Controller {
    async fn reconcile(&self, backup: &Backup) -> Result<Next, Failure> {
        match decide(backup, Timestamp::now()) {
            Step::Leave | Step::Expire(Due::Never) => return Ok(Next::Done),
            // Clocks can be set, so it is never waited for long.
            Step::Expire(Due::In(rest)) => return Ok(Next::Again(rest.min(self.frequency))),
            Step::Expire(Due::Now) => {}
        }
        let location = match backup.spec.storage_location.as_str() {
            // One that was refused has none, and nothing in it.
            "" => None,
            name => {
                let read = lookup(self.locations.get_opt(name).await);
                Some(read.map_err(Failure::Location)?)
            }
        };
        let obstacle = location.as_ref().and_then(|location| hindrance(backup, location));
        if obstacle == Some(Obstacle::Unavailable) {
            tracing::debug!("has expired; its storage location is unavailable");
            return Ok(Next::Again(UNAVAILABLE.min(self.frequency)));
        }
        self.label(backup, obstacle.and_then(Obstacle::label)).await?;
        if let Some(obstacle) = obstacle {
            tracing::debug!(?obstacle, "has expired and cannot be deleted");
            return Ok(Next::Again(self.frequency));
        }
        if backup.annotations().contains_key(annotation::RETENTION_GAVE_UP) {
            tracing::debug!("has expired, and the server has ended whenever it was deleted");
            return Ok(Next::Done);
        }
        if let Some(restore) = in_use(&self.restores, backup).await.map_err(Failure::Restores)? {
            tracing::info!(restore, "has expired, and is being restored");
            return Ok(Next::Again(UNAVAILABLE.min(self.frequency)));
        }
        self.request(backup).await
    }

    /// Says why a Backup must not be deleted for now though its time is over: when to look again.
    async fn hold(&self, backup: &Backup) -> Result<Option<Duration>, Failure> {
        let pause = match self.clock.compare().await {
            // One that does not say what time it is, behind a proxy, stops nothing by that.
            Clocks::Agree | Clocks::Unknown => {
                match self.limit.admit(self.all.len(), Timestamp::now()).await? {
                    Ok(()) => return Ok(None),
                    Err(rest) => {
                        tracing::warn!(
                            "backup is expired but not deleted yet: --garbage-collection-limit allows no \
                         more within an hour"
                        );
                        rest
                    }
                }
            }
            Clocks::Differ(by) => {
                tracing::warn!(
                    "backup is expired but not deleted: the clock of the server differs by {by:#} \
                     from that of the API server"
                );
                UNAVAILABLE
            }
        };
        self.events.tell(backup, Milestone::RetentionHeld).await;
        Ok(Some(pause.clamp(UNAVAILABLE.min(self.frequency), self.frequency)))
    }

    /// Asks for the deletion, if nobody has, and not too often.
    async fn request(&self, backup: &Backup) -> Result<Next, Failure> {
        let name = label::value(&backup.name_any()).into_owned();
        let uid = backup.uid().unwrap_or_default();
        let selector = format!("{}={name},{}={uid}", label::BACKUP_NAME, label::BACKUP_UID);
        let listed = self.requests.list(&ListParams::default().labels(&selector)).await;
        let requests = listed.map_err(Failure::List)?.items;
        match pending(&requests, self.frequency, Timestamp::now()) {
            Due::Never => return Ok(Next::Again(self.frequency)),
            Due::In(rest) => return Ok(Next::Again(rest.min(self.frequency))),
            Due::Now => {}
        }
        if let Some(pause) = self.hold(backup).await? {
            return Ok(Next::Again(pause));
        }
        let request_name = format!("{name}-{}", uid.get(..8).unwrap_or(&uid));
        // One that was answered has the name; what it said is told again if it is still so.
        for old in requests.iter().filter(|old| old.name_any() == request_name) {
            patch::remove(&self.requests, old).await.map_err(Failure::Remove)?;
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
            Ok(_) => tracing::info!("has expired, and is to be deleted"),
            // Another server was faster.
            Err(error) if patch::is_taken(&error) => {}
            Err(error) => return Err(Failure::Create(error)),
        }
        Ok(Next::Again(self.frequency))
    }

    /// Says why a Backup is not deleted, or that nothing speaks against it.
    async fn label(&self, backup: &Backup, value: Option<&str>) -> Result<(), Failure> {
        let written = backup.labels().get(label::GC_FAILURE).map(String::as_str);
        if written == value {
            return Ok(());
        }
        if let Some(reason) = value {
            tracing::warn!(reason, "has expired and cannot be deleted");
        }
        let change =
            json!({"metadata": {"uid": backup.uid(), "labels": {label::GC_FAILURE: value}}});
        match patch::patch(&self.backups, &backup.name_any(), None, change).await {
            Err(error) if !patch::is_missing(&error) => Err(Failure::Label(error)),
            _ => Ok(()),
        }
    }
}

/// How many Restores are listed at a time.
const PAGE: u32 = 500;

/// The name of a Restore of a Backup that is not over, if there is one.
pub(super) async fn in_use(api: &Api<Restore>, backup: &Backup) -> kube::Result<Option<String>> {
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        if let Some(restore) = user_of(backup, &page.items) {
            return Ok(Some(restore.name_any()));
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(None),
        }
    }
}
