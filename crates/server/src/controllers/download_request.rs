//! DownloadRequests: links to files of backups and restores.
//!
//! A request is answered once, with a link that is valid for ten minutes, and deleted after the link has expired. A
//! request that cannot be fulfilled is answered as well: it becomes `Processed` without a link, and the annotation
//! [`ERROR`] says why. Velero leaves such a request unanswered, and its command line waits in vain.
//!
//! A missing file is reported in the same annotation, along with a link: Velero's command lines follow the link and
//! accept `404` as an answer, and old backups lack files that newer ones have.

use std::sync::Arc;
use std::time::Duration;

use bowline_api::download_request::{DownloadRequestPhase, DownloadTarget};
use bowline_api::location::LocationPhase;
use bowline_api::{Backup, BackupStorageLocation, DownloadRequest, Restore};
use bowline_store::{BackupStore, Key};
use jiff::Timestamp;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::period::Due;
use crate::error_text::status_message;
use crate::server::{Context, Error};
use crate::watch::{Requeue, Watch};
use crate::{locations, patch};

/// Annotation with the reason why a request could not be fulfilled.
pub const ERROR: &str = "bowline.io/error";

const CONCURRENT_REQUESTS: u16 = 8;
/// Time for which a location that does not answer is retried. Command lines wait 30 s: the reason must be there before.
const RETRY_WINDOW: Duration = Duration::from_secs(10);

/// Answers requests until the server stops.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let watch = Watch::new(context.api::<DownloadRequest>()).concurrency(CONCURRENT_REQUESTS);
    let stop = context.stop.clone();
    let work = move |request: Arc<DownloadRequest>| {
        let context = Arc::clone(&context);
        async move { reconcile(&context, &request).await }
    };
    Ok(watch.run(&stop, work).await?)
}

/// Next step for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestStep {
    Answer,
    /// Delete it when due.
    Delete(Due),
    /// Leave it alone.
    Leave,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DownloadAnswer {
    Link(String),
    /// A link to a missing file, and the reason.
    DeadLink(String, String),
    /// No link, for this reason.
    Refused(String),
}

/// Reason why a request could not be answered this time.
#[derive(Debug, thiserror::Error)]
enum DownloadRequestError {
    #[error("cannot read the {0} that the request names")]
    Read(&'static str, #[source] kube::Error),
    #[error("cannot open the location of the backup")]
    Open(#[from] locations::Error),
    #[error("the location of the backup is unavailable")]
    Store(#[from] bowline_store::Error),
    #[error("cannot write the answer")]
    Write(#[source] kube::Error),
    #[error("cannot delete the expired request")]
    Delete(#[source] kube::Error),
}

impl DownloadRequestError {
    fn is_retryable(&self) -> bool {
        match self {
            Self::Read(..) | Self::Write(_) | Self::Delete(_) => true,
            Self::Open(error) => error.is_retryable(),
            Self::Store(error) => error.is_retryable(),
        }
    }
}

async fn reconcile(
    context: &Context,
    request: &DownloadRequest,
) -> Result<Requeue, DownloadRequestError> {
    let api = context.api::<DownloadRequest>();
    let now = Timestamp::now();
    match decide(request, now) {
        RequestStep::Leave | RequestStep::Delete(Due::Never) => return Ok(Requeue::OnChange),
        RequestStep::Delete(Due::In(rest)) => return Ok(Requeue::After(rest)),
        RequestStep::Delete(Due::Now) => {
            patch::delete_unchanged(&api, request).await.map_err(DownloadRequestError::Delete)?;
            return Ok(Requeue::OnChange);
        }
        RequestStep::Answer => {}
    }
    let answer = match answer(context, &request.spec.target).await {
        Ok(answer) => answer,
        Err(failure) if failure.is_retryable() && is_young(request, now) => return Err(failure),
        Err(failure) => DownloadAnswer::Refused(status_message(&failure)),
    };
    let name = request.name_any();
    let version = request.resource_version();
    match patch::patch(&api, &name, version.as_deref(), answer_patch(&answer, Timestamp::now()))
        .await
    {
        Err(error) if patch::is_not_found(&error) => return Ok(Requeue::OnChange),
        Err(error) => return Err(DownloadRequestError::Write(error)),
        Ok(_) => {}
    }
    if let DownloadAnswer::Refused(reason) | DownloadAnswer::DeadLink(_, reason) = &answer {
        tracing::info!(request = name, reason, "no download link can be created");
    }
    Ok(Requeue::After(bowline_store::store::DOWNLOAD_TTL))
}

/// Decides the next step for a request.
fn decide(request: &DownloadRequest, now: Timestamp) -> RequestStep {
    if request.metadata.deletion_timestamp.is_some() {
        return RequestStep::Leave;
    }
    let status = request.status.clone().unwrap_or_default();
    let expiration = status.expiration.map(|time| time.0);
    // In any phase: the client has given up.
    if expiration.is_some_and(|expiration| expiration <= now) {
        return RequestStep::Delete(Due::Now);
    }
    match status.phase {
        None | Some(DownloadRequestPhase::New) => RequestStep::Answer,
        Some(DownloadRequestPhase::Processed) => {
            let created = request.creation_timestamp().map(|created| created.0);
            let expires = expiration
                .or_else(|| created?.checked_add(bowline_store::store::DOWNLOAD_TTL).ok());
            let rest = expires.map(|expires| Duration::try_from(expires.duration_since(now)));
            match rest {
                Some(Ok(rest)) if !rest.is_zero() => RequestStep::Delete(Due::In(rest)),
                Some(_) => RequestStep::Delete(Due::Now),
                None => RequestStep::Leave,
            }
        }
        Some(DownloadRequestPhase::Other(phase)) if phase.is_empty() => RequestStep::Answer,
        Some(DownloadRequestPhase::Other(_)) => RequestStep::Leave,
    }
}

/// True if the client is still waiting.
fn is_young(request: &DownloadRequest, now: Timestamp) -> bool {
    let created = request.creation_timestamp().map(|created| created.0);
    let age = created.map(|created| Duration::try_from(now.duration_since(created)));
    // A creation time in the future: clocks differ.
    age.is_some_and(|age| age.map_or(true, |age| age < RETRY_WINDOW))
}

/// Patch that writes an answer into the request.
fn answer_patch(answer: &DownloadAnswer, now: Timestamp) -> Value {
    let (url, error) = match answer {
        DownloadAnswer::Link(url) => (Some(url), None),
        DownloadAnswer::DeadLink(url, reason) => (Some(url), Some(reason)),
        DownloadAnswer::Refused(reason) => (None, Some(reason)),
    };
    let expiration = now.checked_add(bowline_store::store::DOWNLOAD_TTL).unwrap_or(now);
    json!({
        "metadata": {"annotations": {ERROR: error}},
        "status": {
            "phase": DownloadRequestPhase::Processed,
            "downloadURL": url,
            "expiration": patch::truncate_to_second(expiration),
        },
    })
}

async fn answer(
    context: &Context,
    target: &DownloadTarget,
) -> Result<DownloadAnswer, DownloadRequestError> {
    let key = match Key::try_from(target) {
        Ok(key) => key,
        Err(error) => return Ok(DownloadAnswer::Refused(status_message(&error))),
    };
    match find_location(context, target, &key).await? {
        Ok(location) => {
            let store = context.locations.open(&location).await?;
            download_link(&store, target, &key).await
        }
        Err(missing) => Ok(DownloadAnswer::Refused(missing.to_string())),
    }
}

/// Reason why no location can have the file that a request is about.
#[derive(Debug, thiserror::Error)]
enum MissingTarget {
    #[error("restore `{0}` does not exist")]
    Restore(String),
    #[error("the restore `{0}` has no backup yet")]
    BackupOfRestore(String),
    #[error("backup `{0}` does not exist")]
    Backup(String),
    #[error("the backup `{0}` has no storage location yet")]
    LocationOfBackup(String),
    #[error("storage location `{0}` of the backup does not exist")]
    Location(String),
    #[error("the storage location `{0}` is unavailable")]
    Unavailable(String),
}

/// Location of a file, or the reason why there is none.
async fn find_location(
    context: &Context,
    target: &DownloadTarget,
    key: &Key,
) -> Result<Result<BackupStorageLocation, MissingTarget>, DownloadRequestError> {
    let backup = match key {
        Key::Restore(restore, _) => {
            let restores = context.api::<Restore>();
            match get(&restores, "restore", restore.as_str()).await? {
                Some(restore) => restore.spec.backup_name,
                None => return Ok(Err(MissingTarget::Restore(restore.to_string()))),
            }
        }
        Key::Backup(..) | Key::Scratch(..) => target.name.clone(),
    };
    if backup.is_empty() {
        return Ok(Err(MissingTarget::BackupOfRestore(target.name.clone())));
    }
    let backups = context.api::<Backup>();
    let Some(found) = get(&backups, "backup", &backup).await? else {
        return Ok(Err(MissingTarget::Backup(backup)));
    };
    let name = &found.spec.storage_location;
    if name.is_empty() {
        return Ok(Err(MissingTarget::LocationOfBackup(backup)));
    }
    let locations = context.api::<BackupStorageLocation>();
    let Some(location) = get(&locations, "storage location", name).await? else {
        return Ok(Err(MissingTarget::Location(name.clone())));
    };
    let phase = location.status.as_ref().and_then(|status| status.phase.as_ref());
    if phase != Some(&LocationPhase::Available) {
        return Ok(Err(MissingTarget::Unavailable(name.clone())));
    }
    Ok(Ok(location))
}

/// Link to a file, or to a missing file with the reason.
async fn download_link(
    store: &BackupStore,
    target: &DownloadTarget,
    key: &Key,
) -> Result<DownloadAnswer, DownloadRequestError> {
    let url = store.download_url(target).await?;
    // Only the beginning of the file is transferred, since the stream is not read.
    if store.get_stream(key).await?.is_some() {
        return Ok(DownloadAnswer::Link(url));
    }
    let reason = format!("{:?} is not in the storage location", store.layout().key(key));
    Ok(DownloadAnswer::DeadLink(url, reason))
}

async fn get<K>(
    api: &Api<K>,
    what: &'static str,
    name: &str,
) -> Result<Option<K>, DownloadRequestError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    api.get_opt(name).await.map_err(|error| DownloadRequestError::Read(what, error))
}

#[cfg(test)]
mod tests;
