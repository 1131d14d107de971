//! Watches which claims of a restore have their volumes.
//!
//! Serves the operations that [`csi`](super::csi) starts. A progress query waits briefly for the end of the
//! operation; so the end is known when it comes, without polling the API server.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::label;
use bowline_plugin::{Code, Error, OperationId, Progress, Result, State};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use crate::cluster::events::last_warning;
use crate::cluster::watch::{ReflectedState, Reflector};
use crate::cluster::{Cluster, Query, WatchEvent};
use crate::item::Object;
use crate::json;
use crate::resource::{Resource, Resources};

/// Time that a progress query waits for the end.
const PROGRESS_WAIT: Duration = Duration::from_secs(15);
/// Timeout for finding out why a claim has no volume.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(10);

/// Tracks which claims of a restore have their volumes.
pub struct ClaimTracker {
    cluster: Arc<dyn Cluster>,
    kind: Arc<Resource>,
    events: Option<Arc<Resource>>,
    reflector: Reflector<Claims>,
    /// Canceled operations.
    canceled: Mutex<HashSet<String>>,
}

/// Claims, by namespace and name.
#[derive(Default)]
struct Claims(HashMap<(String, String), ClaimState>);

/// Last observed state of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ClaimState {
    uid: String,
    phase: String,
    volume: String,
    is_gone: bool,
    since: Option<Timestamp>,
}

impl ClaimState {
    fn of(object: &Object) -> Self {
        let value: Value = object.item.parse().unwrap_or_default();
        let text = |pointer: &str| json::text(&value, pointer).to_owned();
        Self {
            uid: text("/metadata/uid"),
            phase: text("/status/phase"),
            volume: text("/spec/volumeName"),
            is_gone: false,
            since: text("/metadata/creationTimestamp").parse().ok(),
        }
    }

    /// Final state of the operation, if the claim with this uid has reached it.
    fn terminal_state(&self, uid: &str) -> Option<State> {
        let failed = |reason: &str| Some(State::Failed(reason.to_owned()));
        match self {
            Self { is_gone: true, .. } => failed("the claim was deleted"),
            Self { uid: other, .. } if other != uid => {
                failed("the claim was deleted and replaced by another")
            }
            Self { phase, .. } if phase == "Lost" => failed("the claim is in phase Lost"),
            Self { phase, volume, .. } if phase == "Bound" && !volume.is_empty() => {
                Some(State::Succeeded)
            }
            _ => None,
        }
    }
}

impl ClaimTracker {
    /// Tracker for the claims of a restore, by its name. `None` if the cluster serves no claims.
    pub fn new(cluster: Arc<dyn Cluster>, resources: &Resources, restore: &str) -> Option<Self> {
        let kind = Arc::clone(resources.core("persistentvolumeclaims")?);
        let events = resources.core("events").cloned();
        let label_selector = format!("{}={}", label::RESTORE_NAME, label::value(restore));
        let query = Query { label_selector, ..Query::default() };
        let reflector = Reflector::new([(Arc::clone(&kind), query)], Claims::default());
        Some(Self { cluster, kind, events, reflector, canceled: Mutex::default() })
    }

    /// Watches the claims, until dropped.
    pub async fn run(&self) {
        self.reflector.run(&*self.cluster).await;
    }

    /// Progress of an operation. Waits briefly for its end.
    pub async fn progress(&self, operation: &OperationId) -> Result<Progress> {
        let target = TrackedClaim::parse(operation)?;
        let key = (target.namespace.to_owned(), target.name.to_owned());
        let is_canceled = || self.canceled.lock().contains(operation.as_str());
        let end = |claims: &Claims| {
            let state = claims.0.get(&key).and_then(|claim| claim.terminal_state(target.uid));
            (state.is_some() || is_canceled()).then_some(())
        };
        self.reflector.wait_for(Instant::now() + PROGRESS_WAIT, end).await;
        let claim_state = match self.reflector.read(|claims| claims.0.get(&key).cloned()) {
            Some(claim_state) => claim_state,
            // The watch has not seen the claim, though it may exist.
            None => match self.cluster.get(&self.kind, target.namespace, target.name).await {
                Ok(Some(found)) => self.cache_bound(key, &target, ClaimState::of(&found)),
                Ok(None) => ClaimState { is_gone: true, ..ClaimState::default() },
                Err(error) => return Err(Error::new(Code::Unavailable, error.to_string())),
            },
        };
        let progress = Progress {
            started: claim_state.since,
            updated: Some(Timestamp::now()),
            ..Progress::default()
        };
        Ok(match claim_state.terminal_state(target.uid) {
            Some(State::Succeeded) => {
                let description = format!("bound to {}", claim_state.volume);
                Progress { state: State::Succeeded, description, ..progress }
            }
            Some(state) => Progress { state, ..progress },
            None => {
                let description = self.no_volume_reason(&target).await;
                let state = if is_canceled() {
                    State::Failed(format!("the claim is kept: {description}"))
                } else {
                    State::Running
                };
                Progress { state, description, ..progress }
            }
        })
    }

    /// Caches a claim that has its volume. Any other state may change unnoticed.
    fn cache_bound(
        &self,
        key: (String, String),
        target: &TrackedClaim<'_>,
        read: ClaimState,
    ) -> ClaimState {
        if read.terminal_state(target.uid) == Some(State::Succeeded) {
            self.reflector.modify(|claims| {
                claims.0.entry(key).or_insert_with(|| read.clone());
            });
            self.reflector.wake();
        }
        read
    }

    /// The volume of an operation's claim, if known.
    pub fn volume(&self, operation: &OperationId) -> Option<String> {
        let target = TrackedClaim::parse(operation).ok()?;
        let key = (target.namespace.to_owned(), target.name.to_owned());
        self.reflector.read(|claims| {
            let claim = claims.0.get(&key)?;
            let is_bound = claim.terminal_state(target.uid) == Some(State::Succeeded);
            is_bound.then(|| claim.volume.clone())
        })
    }

    /// Ends the wait. The claim itself still gets its volume; the operation reports that, and what the claim waits for.
    pub async fn cancel(&self, operation: &OperationId) -> Result<()> {
        self.canceled.lock().insert(operation.to_string());
        // Wakes the pending progress queries.
        self.reflector.wake();
        let target = TrackedClaim::parse(operation)?;
        Err(Error::new(Code::FailedPrecondition, self.no_volume_reason(&target).await))
    }

    /// Message of the last warning event of a claim without a volume.
    async fn no_volume_reason(&self, target: &TrackedClaim<'_>) -> String {
        let warning = match &self.events {
            Some(events) => {
                let namespace = Some(target.namespace);
                let warning = last_warning(&*self.cluster, events, namespace, target.uid, "");
                timeout(EVENTS_TIMEOUT, warning).await
            }
            None => Ok(None),
        };
        match warning {
            Ok(Some(warning)) => format!("the claim has no volume yet: {warning}"),
            _ => "the claim has no volume yet".to_owned(),
        }
    }
}

impl ReflectedState for Claims {
    fn apply(&mut self, event: WatchEvent) {
        let (object, is_gone) = match event {
            // The watch lists existing claims again; one that is not listed may be gone, and is then queried.
            WatchEvent::Started => {
                self.0.clear();
                return;
            }
            WatchEvent::Applied(object) => (object, false),
            WatchEvent::Deleted(object) => (object, true),
        };
        let claim_state = ClaimState { is_gone, ..ClaimState::of(&object) };
        self.0.insert((object.namespace, object.name), claim_state);
    }

    /// Until the watch starts again, claims are queried.
    fn handle_failure(&mut self) {
        self.0.clear();
    }
}

/// The claim of an operation.
struct TrackedClaim<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
}

impl<'a> TrackedClaim<'a> {
    fn parse(operation: &'a OperationId) -> Result<Self> {
        let mut parts = operation.as_str().splitn(3, '/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(namespace), Some(name), Some(uid)) if !name.is_empty() => {
                Ok(Self { namespace, name, uid })
            }
            _ => Err(Error::invalid_operation(operation)),
        }
    }
}

#[cfg(test)]
mod tests;
