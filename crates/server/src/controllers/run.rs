//! What backups and restores have in common.

use std::fmt::Debug;
use std::time::Duration;

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

use crate::error_text::status_message;
use crate::events::{Milestone, newly_passed_quarter};
use crate::patch;
use crate::server::Context;

/// How often a write that ends a run is tried, and the pause after the first failure.
const MAX_ATTEMPTS: u32 = 6;
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// How often progress is written at most.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// After how many times without progress it is written all the same, to see whether the object is
/// still there.
const MAX_QUIET_TICKS: u32 = 3;

/// The plugins of a run as the engine knows them.
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

/// Tries a few times what should not fail.
pub(super) async fn with_retries<T, E, F>(attempt: impl FnMut() -> F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
    E: std::error::Error + 'static,
{
    with_retries_unless(attempt, |_| false).await
}

/// The same, but not after a failure that is the last.
pub(super) async fn with_retries_unless<T, E, F>(
    mut attempt: impl FnMut() -> F,
    is_last: impl Fn(&E) -> bool,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
    E: std::error::Error + 'static,
{
    let mut pause = FIRST_BACKOFF;
    for _ in 1..MAX_ATTEMPTS {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if is_last(&error) => return Err(error),
            Err(error) => tracing::warn!("trying again in {pause:?}: {}", status_message(&error)),
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    attempt().await
}

/// Adds what a stage has to tell to the results of the stages before it. `errors` and `warnings` say how many there
/// are then; more may have been counted than are kept.
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

/// Waits for the end of a run, which is told to stop if `object_gone` is first. Returns what came of the
/// run, and whether its object is still there.
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
    tracing::warn!("it was deleted, so it is stopped");
    stop.cancel();
    // Not dropped: what is frozen must be let go.
    (run.await, false)
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ItemProgress {
    pub(super) done: u64,
    pub(super) total: u64,
    /// Whether the total is more than a beginning, so that a part of it can be told.
    pub(super) is_total_known: bool,
}

/// Writes how far a run is, until its object is gone. `done_as` is what the field is called that says
/// how many items are through.
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
            Err(error) => tracing::debug!("progress cannot be shown: {error}"),
        }
    }
}
