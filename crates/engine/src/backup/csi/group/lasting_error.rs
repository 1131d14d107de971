//! Errors that a group reports while it is taken.

use serde_json::Value;
use tokio::sync::watch::Sender;
use tokio::time::{Instant, timeout_at};

use crate::backup::csi::snapshot_watch::ERROR_GRACE;

/// The error that an object reports, and the time since which it does.
#[derive(Default)]
pub(super) struct LastingError(Sender<Option<(Instant, String)>>);

impl LastingError {
    /// Records the state of an object. Returns true if its snapshots are taken.
    pub(super) fn record(&self, object: &Value) -> bool {
        let status = &object["status"];
        let error = status["error"].as_object().map(|error| {
            let message = error.get("message").and_then(Value::as_str);
            message.unwrap_or("no reason is given").to_owned()
        });
        self.0.send_modify(|known| {
            let since = known.as_ref().map_or_else(Instant::now, |(since, _)| *since);
            *known = error.map(|error| (since, error));
        });
        status["volumeGroupSnapshotHandle"].as_str().is_some_and(|handle| !handle.is_empty())
    }

    /// The error, once it has lasted for a while.
    pub(super) async fn wait_until_lasting(&self) -> String {
        let mut changes = self.0.subscribe();
        loop {
            let known = changes.borrow_and_update().clone();
            // The sender is in `self`, so it cannot be closed.
            match known {
                Some((since, error)) => {
                    if timeout_at(since + ERROR_GRACE, changes.changed()).await.is_err() {
                        return error;
                    }
                }
                None => drop(changes.changed().await),
            }
        }
    }
}
