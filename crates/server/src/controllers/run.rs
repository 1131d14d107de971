//! What backups and restores share: the life of a run, and functions for its stages.

mod error;
mod lifecycle;
mod outage;

use std::fmt::Debug;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use bowline_engine::action::NamedAction;
use bowline_engine::report::Report;
use bowline_plugin::Kind;
use bowline_plugin_host as plugin_host;
use bowline_store::file::Results;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

pub(super) use self::error::{BucketCause, BucketError, RunError};
pub(super) use self::lifecycle::{
    NextStage, Run, RunObject, RunStatus, cancel_token, defaulted_patch, identity, reject_invalid,
    run_until_canceled, status_of, with_conditions, write_end,
};
use crate::error_text::status_message;
use crate::events::{Milestone, newly_passed_quarter};
use crate::patch;
use crate::server::Context;

/// Retries of a write that ends a run.
const RETRIES: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_millis(500)).with_max_times(5);
/// Minimum interval between writes of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Number of intervals without progress after which it is written anyway, to check that the object still exists.
const MAX_QUIET_TICKS: u32 = 3;

/// Plugins of a run in the form that the engine uses.
pub(super) fn engine_plugins<T: ?Sized>(
    plugins: Vec<plugin_host::Named<T>>,
) -> Vec<NamedAction<T>> {
    let named = |plugin: plugin_host::Named<T>| {
        let plugin_host::Named { name, kind, plugin } = plugin;
        let begins_operations =
            matches!(kind, Kind::BackupItemActionV2 | Kind::RestoreItemActionV2);
        NamedAction { name, plugin, begins_operations }
    };
    plugins.into_iter().map(named).collect()
}

/// Retries a few times a call that should not fail.
pub(super) async fn with_retries<T, E, F>(attempt: impl FnMut() -> F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
    E: std::error::Error + 'static,
{
    with_retries_unless(attempt, |_| false).await
}

/// Like [`with_retries`], but without a retry after a permanent failure.
pub(super) async fn with_retries_unless<T, E, F>(
    attempt: impl FnMut() -> F,
    is_last: impl Fn(&E) -> bool,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
    E: std::error::Error + 'static,
{
    attempt
        .retry(RETRIES)
        .when(|error| !is_last(error))
        .notify(|error, pause| {
            tracing::warn!("retrying in {pause:?}: {}", status_message(error));
        })
        .await
}

/// Adds the report of a stage to the results of the previous stages. `errors` and `warnings` are the new totals; more
/// may have been counted than are kept.
pub(super) fn add_results(
    results: &mut Results,
    report: &Report,
    errors: &mut i64,
    warnings: &mut i64,
) {
    report.add_to(results);
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    *errors = (*errors).max(count(results.errors.count()));
    *warnings = (*warnings).max(count(results.warnings.count()));
}

/// Waits for the end of a run, which is stopped if `object_gone` completes first. Returns the result of the run, and
/// true if its object still exists.
pub(super) async fn run_until_gone<T>(
    run: impl Future<Output = T>,
    object_gone: impl Future<Output = ()>,
    stop: &CancellationToken,
) -> (T, bool) {
    let (mut run, mut object_gone) = (std::pin::pin!(run), std::pin::pin!(object_gone));
    tokio::select! {
        outcome = &mut run => return (outcome, true),
        () = &mut object_gone => {}
    }
    tracing::warn!("the Backup or Restore was deleted; stopping the run");
    stop.cancel();
    // Not dropped: frozen pods must be thawed.
    (run.await, false)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ItemProgress {
    pub(super) done: u64,
    pub(super) total: u64,
    /// True if the total is final enough for a percentage.
    pub(super) is_total_known: bool,
}

/// Writes the progress of a run until its object is gone. `done_as` is the name of the field for the number of items
/// that are done.
pub(super) async fn show_progress<K>(
    context: &Context,
    api: &Api<K>,
    object: &K,
    done_as: &str,
    progress: impl Fn() -> ItemProgress,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    context.events.publish(object, Milestone::Started).await;
    let mut ticks = interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut shown = progress();
    let (mut quiet, mut reported) = (0, 0);
    loop {
        ticks.tick().await;
        let now = progress();
        quiet += 1;
        if now == shown && quiet < MAX_QUIET_TICKS {
            continue;
        }
        let ItemProgress { done, total, is_total_known } = now;
        if let Some(percent) =
            newly_passed_quarter(reported, done, total).filter(|_| is_total_known)
        {
            reported = percent;
            let milestone = Milestone::Progress { percent, items_done: done, items_total: total };
            context.events.publish(object, milestone).await;
        }
        let change = json!({ "progress": { "totalItems": total, done_as: done } });
        match patch::patch_status_of(api, object, change).await {
            Ok(Some(_)) => (shown, quiet) = (now, 0),
            Ok(None) => return,
            Err(error) => tracing::debug!("progress cannot be written to the status: {error}"),
        }
    }
}
