//! Work that actions begin behind a run. Nobody waits for it yet, and a run must not be called complete
//! while it goes on: so it is stopped, and told as an error.

use std::time::Duration;

use bowline_plugin::{Name, OperationId, Result};
use bowline_store::file::{OperationPhase, OperationStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::timeout;

/// How long an action may take to stop what it began.
const CANCEL_LIMIT: Duration = Duration::from_secs(30);

/// Waits until an action has been told to stop an operation. Returns what is to be told of it.
pub(crate) async fn stop(
    action: &Name,
    operation: &OperationId,
    cancel: impl Future<Output = Result<()>>,
) -> String {
    let stopped = match timeout(CANCEL_LIMIT, cancel).await {
        Ok(Ok(())) => "it was told to stop".to_owned(),
        Ok(Err(error)) => format!("it could not be stopped: {error}"),
        Err(_) => format!("it did not stop within {} s", CANCEL_LIMIT.as_secs()),
    };
    format!(
        "the action {action} began the operation {operation}, which this version does not wait for; \
         {stopped}"
    )
}

/// The status of an operation that was stopped.
pub(crate) fn stopped(error: String, created: Timestamp) -> OperationStatus {
    OperationStatus {
        phase: Some(OperationPhase::Failed),
        error,
        created: Some(Time(created)),
        ..OperationStatus::default()
    }
}
