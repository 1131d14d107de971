//! Waits for the end of a backup or restore and tells how it goes.
//!
//! On a terminal there are bars; elsewhere there are lines, few enough for a log. What is worth
//! saying is decided by [`Narrator`], from what it is shown and nothing else.

mod display;
mod narrator;
#[cfg(test)]
mod tests;
mod told;

use std::time::Duration;

use anyhow::bail;
use kube::ResourceExt as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use self::display::Display;
use self::narrator::{Narrator, Remark};
use crate::exit::{Exit, until_asked_to_end};
use crate::installation::{ANSWER_LIMIT, Installation, brief, is_not_found, is_transient};
use crate::listing;
use crate::output::{self, harmless};
use crate::run::{Run, Stage};
use crate::transfer::{self, Transfer};

/// How often it is looked at.
const PAUSE: Duration = Duration::from_millis(500);
/// How often its volumes are, and how long that may take.
const VOLUMES_PAUSE: Duration = Duration::from_secs(1);
const VOLUMES_LIMIT: Duration = Duration::from_secs(5);
/// A server that runs has begun by then.
const SERVER_LIMIT: Duration = Duration::from_secs(10);
/// How long the cluster may be away.
const OUTAGE_LIMIT: Duration = Duration::from_mins(2);

/// Why the end of a run is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It was asked for, and what comes of it matters.
    #[default]
    Result,
    /// It was canceled.
    Cancel,
}

/// Waits until a run is over. Success only if it is complete.
pub(crate) async fn for_end<R: Run>(
    installation: &Installation,
    created: &R,
    reason: Reason,
) -> anyhow::Result<Exit> {
    let (noun, name) = (R::NOUN, created.name_any());
    let asked_to_end = until_asked_to_end()?;
    tokio::pin!(asked_to_end);
    let (_, mut no_asides) = mpsc::channel(1);
    let ended = tokio::select! {
        // Boxed, since what it asks for is large.
        ended = Box::pin(until(installation, created, &mut no_asides, reason, is_over)) => ended?,
        exit = &mut asked_to_end => {
            let hint = installation.hint(&format!("{noun} describe {name}"));
            let goes_on = match reason {
                Reason::Result => "continues without this command",
                Reason::Cancel => "remains canceled, and ends when a server processes the \
                                   cancellation",
            };
            output::say(format_args!("the {noun} {goes_on}; see {hint}"));
            return Ok(exit);
        }
    };
    for line in outcome(&ended) {
        output::say(line);
    }
    // Boxed, since what it asks for is large, too.
    match Box::pin(told::told(installation, &ended, asked_to_end)).await {
        Ok(lines) => lines.into_iter().for_each(output::say),
        Err(exit) => return Ok(exit),
    }
    output::say(where_to_look(&ended, installation));
    Ok(exit_of(&ended))
}

/// Waits until a run is over, shows how it goes, and says besides what it is handed to say.
pub(crate) async fn until_over<R: Run>(
    installation: &Installation,
    created: &R,
    asides: &mut mpsc::Receiver<String>,
) -> anyhow::Result<R> {
    until(installation, created, asides, Reason::Result, is_over).await
}

fn is_over<R: Run>(run: &R) -> bool {
    run.summary().stage.is_over()
}

/// The first other run of the kind that a server works on. A run may be waiting for its end.
async fn other_at_work<R: Run>(installation: &Installation, run: &R) -> Option<String> {
    let all: Vec<R> = listing::find(installation, &[], None).await.ok()?;
    let is_at_work =
        |other: &&R| other.uid() != run.uid() && other.summary().stage == Stage::Working;
    all.iter().find(is_at_work).map(kube::ResourceExt::name_any)
}

/// The same, until a run is as far as is wanted.
pub(crate) async fn until<R: Run>(
    installation: &Installation,
    created: &R,
    asides: &mut mpsc::Receiver<String>,
    reason: Reason,
    is_enough: impl Fn(&R) -> bool,
) -> anyhow::Result<R> {
    let (noun, api) = (R::NOUN, installation.api::<R>());
    let name = &created.name_any();
    let started = Instant::now();
    let mut narrator = Narrator::new(reason);
    let mut volumes = Volumes::default();
    let mut display = Display::new();
    let mut away_since: Option<Instant> = None;
    loop {
        while let Ok(aside) = asides.try_recv() {
            display.say(&aside);
        }
        let error = match timeout(ANSWER_LIMIT, api.get(name)).await {
            Ok(Ok(run)) if run.uid() == created.uid() => {
                away_since = None;
                let stage = run.summary().stage;
                volumes.look::<R>(installation, name, stage).await;
                let mut remarks = narrator.observe(&run, &volumes.known, started.elapsed());
                if reason == Reason::Result
                    && let Some(remark) = remarks.iter_mut().find(|one| **one == Remark::NoServer)
                    && let Some(other) = other_at_work(installation, &run).await
                {
                    *remark = Remark::WaitsFor(other);
                }
                display.show(&run, &volumes.known, &remarks, installation);
                if is_enough(&run) {
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
                return Err(installation.explain(&format!("wait for {noun} `{name}`"), error));
            }
            Ok(Err(error)) => Some(brief(&error)),
            Err(_) => Some("no response".to_owned()),
        };
        if let Some(error) = error {
            let since = *away_since.get_or_insert_with(|| {
                display.say(&format!("the cluster is unreachable, retrying: {error}"));
                Instant::now()
            });
            if since.elapsed() > OUTAGE_LIMIT {
                bail!(
                    "the cluster has been unreachable for {} s: {error}; the {noun} may continue \
                     without this command",
                    OUTAGE_LIMIT.as_secs()
                );
            }
        }
        sleep(PAUSE).await;
    }
}

/// What is known of the volumes of a run.
#[derive(Default)]
struct Volumes {
    known: Vec<Transfer>,
    looked: Option<Instant>,
}

impl Volumes {
    /// Looks again if it is time. What cannot be seen now is seen later.
    async fn look<R: Run>(&mut self, installation: &Installation, name: &str, stage: Stage) {
        let is_due = self.looked.is_none_or(|at| at.elapsed() >= VOLUMES_PAUSE);
        if !is_due || !matches!(stage, Stage::Working | Stage::Closing) {
            return;
        }
        let found = transfer::of::<R>(installation, name);
        if let Ok(Ok(found)) = timeout(VOLUMES_LIMIT, found).await {
            self.known = found;
        }
        self.looked = Some(Instant::now());
    }
}

fn exit_of(run: &impl Run) -> Exit {
    if run.summary().stage == Stage::Complete { Exit::Success } else { Exit::Failed }
}

fn where_to_look<R: Run>(run: &R, installation: &Installation) -> String {
    let (noun, name) = (R::NOUN, run.name_any());
    let describe = installation.hint(&format!("{noun} describe {name}"));
    // What was refused has no log.
    if run.summary().stage == Stage::Refused {
        format!("see {describe}")
    } else {
        let logs = installation.hint(&format!("{noun} logs {name}"));
        format!("see {describe} and {logs}")
    }
}

/// How it ended.
fn outcome<R: Run>(run: &R) -> Vec<String> {
    let summary = run.summary();
    let counted = |number: i64, what: &str| match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    };
    let took = match (&summary.started, &summary.ended) {
        (Some(start), Some(end)) => {
            format!(" in {} s", end.0.duration_since(start.0).as_secs())
        }
        _ => String::new(),
    };
    // What was refused did nothing that could be counted.
    let counts = if summary.stage == Stage::Refused {
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
    let mut lines = vec![format!("{noun} `{name}` {state}{took}{counts}")];
    lines.extend(summary.validation_errors.iter().map(|error| format!("refused: {error}")));
    if !summary.failure_reason.is_empty() {
        lines.push(format!("reason: {}", summary.failure_reason));
    }
    lines.iter().map(|line| harmless(line)).collect()
}
