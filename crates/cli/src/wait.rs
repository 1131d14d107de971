//! Waits for the end of a backup or restore and shows its progress.
//!
//! A terminal gets bars; other outputs get lines, few enough for a log. [`ProgressMessages`] chooses the messages, from
//! its input only.

mod display;
mod progress_messages;
mod run_errors;
#[cfg(test)]
mod tests;

use std::time::Duration;

use anyhow::bail;
use kube::ResourceExt as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use self::display::Display;
use self::progress_messages::{ProgressMessage, ProgressMessages};
use crate::exit::{Exit, shutdown_signal};
use crate::installation::{API_TIMEOUT, Installation, is_not_found, is_transient, short_message};
use crate::listing;
use crate::output::{self, strip_control_chars};
use crate::run::{Run, Stage};
use crate::volume_progress::{self, VolumeProgress};

/// Interval of checks of the run.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of checks of its volumes, and longest wait for an answer.
const VOLUMES_POLL_INTERVAL: Duration = Duration::from_secs(1);
const VOLUMES_TIMEOUT: Duration = Duration::from_secs(5);
/// An active server has started the run by then.
const NO_SERVER_HINT_DELAY: Duration = Duration::from_secs(10);
/// Longest outage of the cluster.
const MAX_OUTAGE: Duration = Duration::from_mins(2);

/// Reason for waiting for the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// The run was requested, and its outcome matters.
    #[default]
    Result,
    /// The run was cancelled.
    Cancel,
}

/// Waits until a run has ended. Success only if it completed.
pub(crate) async fn for_end<R: Run>(
    installation: &Installation,
    created: &R,
    reason: WaitReason,
) -> anyhow::Result<Exit> {
    let (noun, name) = (R::NOUN, created.name_any());
    let asked_to_end = shutdown_signal()?;
    tokio::pin!(asked_to_end);
    let (_, mut no_extra_lines) = mpsc::channel(1);
    let ended = tokio::select! {
        // Boxed, since the future is large.
        ended = Box::pin(until(installation, created, &mut no_extra_lines, reason, is_terminal)) => ended?,
        exit = &mut asked_to_end => {
            let hint = installation.hint(&format!("{noun} describe {name}"));
            let state_text = match reason {
                WaitReason::Result => format!("the {noun} continues without this command"),
                WaitReason::Cancel => format!(
                    "the cancellation of the {noun} stays requested until a server processes it"
                ),
            };
            output::print_message(format_args!("{state_text}; see {hint}"));
            return Ok(exit);
        }
    };
    for line in outcome_lines(&ended) {
        output::print_message(line);
    }
    // Boxed, since this future is large, too.
    match Box::pin(run_errors::first_errors_and_warnings(installation, &ended, asked_to_end)).await
    {
        Ok(lines) => lines.into_iter().for_each(output::print_message),
        Err(exit) => return Ok(exit),
    }
    output::print_message(describe_hint(&ended, installation));
    Ok(exit_code(&ended))
}

/// Waits until a run has ended, shows its progress, and prints the given extra lines.
pub(crate) async fn until_ended<R: Run>(
    installation: &Installation,
    created: &R,
    extra_lines: &mut mpsc::Receiver<String>,
) -> anyhow::Result<R> {
    until(installation, created, extra_lines, WaitReason::Result, is_terminal).await
}

fn is_terminal<R: Run>(run: &R) -> bool {
    run.summary().stage.is_terminal()
}

/// First other run of the kind that a server is processing. A run may be waiting for its end.
async fn other_run_in_progress<R: Run>(installation: &Installation, run: &R) -> Option<String> {
    let all: Vec<R> = listing::find(installation, &[], None).await.ok()?;
    let is_in_progress =
        |other: &&R| other.uid() != run.uid() && other.summary().stage == Stage::InProgress;
    all.iter().find(is_in_progress).map(kube::ResourceExt::name_any)
}

/// The same, until a run has reached a given state.
pub(crate) async fn until<R: Run>(
    installation: &Installation,
    created: &R,
    extra_lines: &mut mpsc::Receiver<String>,
    reason: WaitReason,
    is_reached: impl Fn(&R) -> bool,
) -> anyhow::Result<R> {
    let (noun, api) = (R::NOUN, installation.api::<R>());
    let name = &created.name_any();
    let started = Instant::now();
    let mut progress_messages = ProgressMessages::new(reason);
    let mut volumes = VolumePoller::default();
    let mut display = Display::new();
    let mut unreachable_since: Option<Instant> = None;
    loop {
        while let Ok(line) = extra_lines.try_recv() {
            display.print_line(&line);
        }
        let error = match timeout(API_TIMEOUT, api.get(name)).await {
            Ok(Ok(run)) if run.uid() == created.uid() => {
                unreachable_since = None;
                let stage = run.summary().stage;
                volumes.poll::<R>(installation, name, stage).await;
                let mut messages =
                    progress_messages.observe(&run, &volumes.progress, started.elapsed());
                if reason == WaitReason::Result
                    && let Some(message) =
                        messages.iter_mut().find(|one| **one == ProgressMessage::NoServer)
                    && let Some(other) = other_run_in_progress(installation, &run).await
                {
                    *message = ProgressMessage::WaitsForRun(other);
                }
                display.show(&run, &volumes.progress, &messages, installation);
                if is_reached(&run) {
                    return Ok(run);
                }
                None
            }
            Ok(Ok(_)) => {
                bail!("{noun} `{name}` was deleted, and another one of that name exists now")
            }
            Ok(Err(error)) if is_not_found(&error) => {
                bail!("{noun} `{name}` was deleted while waiting for it");
            }
            Ok(Err(error)) if !is_transient(&error) => {
                return Err(installation.explain_error(&format!("wait for {noun} `{name}`"), error));
            }
            Ok(Err(error)) => Some(short_message(&error)),
            Err(_) => Some("no response".to_owned()),
        };
        if let Some(error) = error {
            let since = *unreachable_since.get_or_insert_with(|| {
                display.print_line(&format!("the cluster is unreachable, retrying: {error}"));
                Instant::now()
            });
            if since.elapsed() > MAX_OUTAGE {
                bail!(
                    "the cluster has been unreachable for {} s: {error}; the {noun} may continue \
                     without this command",
                    MAX_OUTAGE.as_secs()
                );
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Volumes of a run, as last seen.
#[derive(Default)]
struct VolumePoller {
    progress: Vec<VolumeProgress>,
    polled_at: Option<Instant>,
}

impl VolumePoller {
    /// Checks again when the interval has passed. After a failure the next check tries again.
    async fn poll<R: Run>(&mut self, installation: &Installation, name: &str, stage: Stage) {
        let is_due = self.polled_at.is_none_or(|at| at.elapsed() >= VOLUMES_POLL_INTERVAL);
        if !is_due || !matches!(stage, Stage::InProgress | Stage::Finalizing) {
            return;
        }
        let found = volume_progress::list_for_run::<R>(installation, name);
        if let Ok(Ok(found)) = timeout(VOLUMES_TIMEOUT, found).await {
            self.progress = found;
        }
        self.polled_at = Some(Instant::now());
    }
}

fn exit_code(run: &impl Run) -> Exit {
    if run.summary().stage == Stage::Completed { Exit::Success } else { Exit::Failed }
}

fn describe_hint<R: Run>(run: &R, installation: &Installation) -> String {
    let (noun, name) = (R::NOUN, run.name_any());
    let describe = installation.hint(&format!("{noun} describe {name}"));
    // A rejected run has no log.
    if run.summary().stage == Stage::FailedValidation {
        format!("see {describe}")
    } else {
        let logs = installation.hint(&format!("{noun} logs {name}"));
        format!("see {describe} and {logs}")
    }
}

/// Lines about the outcome.
fn outcome_lines<R: Run>(run: &R) -> Vec<String> {
    let summary = run.summary();
    let counted = |number: i64, what: &str| match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    };
    let duration_text = match (&summary.started, &summary.ended) {
        (Some(start), Some(end)) => {
            format!(" in {} s", end.0.duration_since(start.0).as_secs())
        }
        _ => String::new(),
    };
    // A rejected run has nothing to count.
    let counts = if summary.stage == Stage::FailedValidation {
        String::new()
    } else {
        let (done, total) = summary.items;
        format!(
            " ({done}/{}, {}, {})",
            counted(total, "item"),
            counted(summary.errors, "error"),
            counted(summary.warnings, "warning"),
        )
    };
    let (noun, name, state) = (R::NOUN, run.name_any(), run.state());
    let mut lines = vec![format!("{noun} `{name}` {state}{duration_text}{counts}")];
    lines
        .extend(summary.validation_errors.iter().map(|error| format!("validation error: {error}")));
    if !summary.failure_reason.is_empty() {
        lines.push(format!("reason: {}", summary.failure_reason));
    }
    lines.iter().map(|line| strip_control_chars(line)).collect()
}
