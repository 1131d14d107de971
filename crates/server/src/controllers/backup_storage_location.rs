//! BackupStorageLocations: checks that they can be used, and determines the default.
//!
//! A location is checked when the server starts, when its spec changes, and at each
//! `validationFrequency`. Its status shows the result. Of several locations that are marked as the
//! default, only the one created last stays marked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::location::LocationPhase;
use bowline_api::{BackupStorageLocation, BackupStorageLocationSpec};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::period::{self, Due};
use crate::error_text::status_message;
use crate::metrics::ObjectSource;
use crate::server::{Context, Error};
use crate::watch::{Requeue, Watch};
use crate::{locations, patch};

const CONCURRENT_CHECKS: u16 = 8;
/// Pause before a retry if the API server did not answer at startup.
const DEFAULT_MARK_RETRY: Duration = Duration::from_secs(2);

/// Checks locations until the server stops.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let api = context.api();
    let default = &context.options.default_backup_storage_location;
    while let Err(error) = mark_default(&api, default).await {
        tracing::warn!(error = status_message(&error), "cannot determine the default location");
        // A retry would fail in the same way; everything else works without the mark.
        if patch::is_permanent(&error) {
            break;
        }
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(DEFAULT_MARK_RETRY) => {}
        }
    }
    let watch = Watch::new(api.clone()).concurrency(CONCURRENT_CHECKS);
    context.metrics.add_source(ObjectSource::Locations(watch.store()));
    let stop = context.stop.clone();
    let controller = Arc::new(Controller {
        frequency: context.options.store_validation_frequency,
        all: watch.store(),
        api,
        context,
        checked: Mutex::default(),
    });
    let work = move |location: Arc<BackupStorageLocation>| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&location).await }
    };
    Ok(watch.run(&stop, work).await?)
}

/// Marks the location that a flag of the server names as the default, if it exists and no other is
/// marked. Done once: a mark that users remove later stays removed.
async fn mark_default(api: &Api<BackupStorageLocation>, name: &str) -> kube::Result<()> {
    let locations = api.list(&ListParams::default()).await?.items;
    if !should_mark_default(&locations, name) {
        return Ok(());
    }
    match patch::patch(api, name, None, json!({"spec": {"default": true}})).await {
        Ok(_) => tracing::info!(location = name, "location is now the default"),
        Err(error) => {
            tracing::warn!(
                location = name,
                error = status_message(&error),
                "location cannot be made the default"
            );
        }
    }
    Ok(())
}

struct Controller {
    context: Arc<Context>,
    api: Api<BackupStorageLocation>,
    all: Store<BackupStorageLocation>,
    frequency: Duration,
    /// Spec of each location when this server last checked it. The generation cannot be used for
    /// this: every write to a location changes it, including those of this server.
    checked: Mutex<HashMap<String, BackupStorageLocationSpec>>,
}

impl Controller {
    async fn reconcile(&self, location: &BackupStorageLocation) -> Result<Requeue, kube::Error> {
        let all = self.all.state();
        for surplus in surplus_defaults(&all) {
            let name = surplus.name_any();
            tracing::info!(
                location = name,
                "location is no longer the default: a newer one is marked as default"
            );
            let change = json!({"spec": {"default": false}});
            patch::patch(&self.api, &name, surplus.resource_version().as_deref(), change).await?;
        }
        let names: Vec<String> = all.iter().map(|location| location.name_any()).collect();
        self.context.locations.retain_locations(&names);
        self.retain_checked(&names);

        match due(location, self.checked(location).as_ref(), self.frequency, Timestamp::now()) {
            Due::Never => Ok(Requeue::OnChange),
            Due::In(rest) => Ok(Requeue::After(rest)),
            Due::Now => self.check(location).await,
        }
    }

    async fn check(&self, location: &BackupStorageLocation) -> Result<Requeue, kube::Error> {
        let name = location.name_any();
        let outcome = self.validate(location).await;
        if let Err(error) = &outcome {
            // The settings that it was opened with may have changed: credentials in the
            // environment, for example.
            self.context.locations.evict(location);
            tracing::warn!(
                location = name,
                error = status_message(error),
                "location is unavailable"
            );
        } else if phase(location) != Some(&LocationPhase::Available) {
            tracing::info!(location = name, "location is available");
        }
        let message = outcome.as_ref().err().map(|error| status_message(error));
        let status = status(&name, message.as_deref(), Timestamp::now());
        // Without the resource version: if the spec changed meanwhile, it differs from the
        // remembered one, and the location is checked again.
        match patch::patch_status(&self.api, &name, None, status).await {
            Err(error) if patch::is_not_found(&error) => return Ok(Requeue::OnChange),
            patched => patched?,
        };
        let mut checked = self.checked.lock();
        checked.insert(name, location.spec.clone());
        let frequency = period::period(location.spec.validation_frequency, self.frequency);
        Ok(frequency.map_or(Requeue::OnChange, Requeue::After))
    }

    async fn validate(&self, location: &BackupStorageLocation) -> Result<(), ValidationError> {
        let store = self.context.locations.open(location).await?;
        Ok(store.validate().await?)
    }

    fn checked(&self, location: &BackupStorageLocation) -> Option<BackupStorageLocationSpec> {
        let checked = self.checked.lock();
        checked.get(&location.name_any()).cloned()
    }

    fn retain_checked(&self, names: &[String]) {
        let mut checked = self.checked.lock();
        checked.retain(|name, _| names.contains(name));
    }
}

/// Reason why a location cannot be used.
#[derive(Debug, thiserror::Error)]
enum ValidationError {
    #[error(transparent)]
    Open(#[from] locations::Error),
    #[error(transparent)]
    Store(#[from] bowline_store::Error),
}

fn phase(location: &BackupStorageLocation) -> Option<&LocationPhase> {
    location.status.as_ref().and_then(|status| status.phase.as_ref())
}

/// Time of the next check; `checked` is the spec at the last check of this server.
fn due(
    location: &BackupStorageLocation,
    checked: Option<&BackupStorageLocationSpec>,
    frequency: Duration,
    now: Timestamp,
) -> Due {
    let last = location.status.as_ref().and_then(|status| status.last_validation_time.as_ref());
    // At least once, whatever the frequency: the location may have changed while no server was
    // running.
    if checked != Some(&location.spec) || last.is_none() {
        return Due::Now;
    }
    let period = period::period(location.spec.validation_frequency, frequency);
    period::due(last.map(|last| last.0), period, now)
}

/// Status of a location after a check.
fn status(name: &str, failure: Option<&str>, now: Timestamp) -> Value {
    let (phase, message) = match failure {
        None => (LocationPhase::Available, Value::Null),
        // Velero's message.
        Some(reason) => {
            let message = format!("BackupStorageLocation {name:?} is unavailable: {reason}");
            (LocationPhase::Unavailable, Value::String(message))
        }
    };
    json!({
        "phase": phase,
        "message": message,
        "lastValidationTime": patch::truncate_to_second(now),
    })
}

/// Status of a location that can be used.
pub(super) fn available_status(name: &str, now: Timestamp) -> Value {
    status(name, None, now)
}

/// True if the location of this name has to be marked as the default.
fn should_mark_default(locations: &[BackupStorageLocation], name: &str) -> bool {
    locations.iter().any(|location| location.name_any() == name)
        && !locations.iter().any(|location| location.spec.default)
}

/// Surplus locations that are marked as the default: all but the one created last. Of those created
/// in the same second, the first by name stays, as in Velero.
fn surplus_defaults(all: &[Arc<BackupStorageLocation>]) -> Vec<&BackupStorageLocation> {
    let age = |location: &&BackupStorageLocation| {
        let created = location.creation_timestamp().map(|created| created.0);
        (created, std::cmp::Reverse(location.name_any()))
    };
    let mut marked: Vec<&BackupStorageLocation> = all
        .iter()
        .map(|location| &**location)
        .filter(|location| location.spec.default && location.metadata.deletion_timestamp.is_none())
        .collect();
    marked.sort_by_key(age);
    marked.pop();
    marked
}

#[cfg(test)]
mod tests;
