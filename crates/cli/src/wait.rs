//! Waits for the end of a backup or restore and tells how it goes.
//!
//! On a terminal there is a bar; elsewhere there are lines, few enough for a log. What is worth
//! saying is decided by [`Narrator`], from what it is shown and nothing else.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use kube::ResourceExt as _;
use tokio::time::{Instant, sleep, timeout};

use crate::exit::{Exit, until_asked_to_end};
use crate::installation::{ANSWER_LIMIT, Installation, brief, is_not_found, is_transient};
use crate::output::{self, harmless};
use crate::run::{Run, Stage, Summary};

/// How often it is looked at.
const PAUSE: Duration = Duration::from_millis(500);
/// How often a line about progress is worth it.
const PROGRESS_PAUSE: Duration = Duration::from_secs(5);
/// A server that runs has begun by then.
const SERVER_LIMIT: Duration = Duration::from_secs(10);
/// How long the cluster may be away.
const OUTAGE_LIMIT: Duration = Duration::from_mins(2);

/// Waits until a run is over. Success only if it is complete.
pub(crate) async fn for_end<R: Run>(
    installation: &Installation,
    created: &R,
) -> anyhow::Result<Exit> {
    let (noun, name) = (R::NOUN, created.name_any());
    let asked_to_end = until_asked_to_end()?;
    tokio::pin!(asked_to_end);
    let ended = tokio::select! {
        ended = until_over(installation, created, &name) => ended?,
        exit = &mut asked_to_end => {
            let hint = installation.hint(&format!("{noun} describe {name}"));
            output::say(format_args!("the {noun} goes on without this command; look with {hint}"));
            return Ok(exit);
        }
    };
    for line in summary(&ended, installation) {
        output::say(line);
    }
    Ok(exit_of(&ended))
}

async fn until_over<R: Run>(
    installation: &Installation,
    created: &R,
    name: &str,
) -> anyhow::Result<R> {
    let (noun, api) = (R::NOUN, installation.api::<R>());
    let started = Instant::now();
    let mut narrator = Narrator::default();
    let display = Display::new();
    let mut away_since: Option<Instant> = None;
    loop {
        let error = match timeout(ANSWER_LIMIT, api.get(name)).await {
            Ok(Ok(run)) if run.uid() == created.uid() => {
                away_since = None;
                let remarks = narrator.observe(&run, started.elapsed());
                display.show(&run, &remarks, installation);
                if run.summary().stage.is_over() {
                    return Ok(run);
                }
                None
            }
            Ok(Ok(_)) => {
                bail!("{noun} `{name}` was deleted, and there is another one of that name")
            }
            Ok(Err(error)) if is_not_found(&error) => {
                bail!("{noun} `{name}` was deleted while it was waited for");
            }
            Ok(Err(error)) if !is_transient(&error) => {
                return Err(installation.explain(&format!("wait for {noun} `{name}`"), error));
            }
            Ok(Err(error)) => Some(brief(&error)),
            Err(_) => Some("it does not answer".to_owned()),
        };
        if let Some(error) = error {
            let since = *away_since.get_or_insert_with(|| {
                display.say(&format!("the cluster cannot be reached, trying on: {error}"));
                Instant::now()
            });
            if since.elapsed() > OUTAGE_LIMIT {
                bail!(
                    "the cluster cannot be reached for {} s: {error}; the {noun} may go on without \
                     this command",
                    OUTAGE_LIMIT.as_secs()
                );
            }
        }
        sleep(PAUSE).await;
    }
}

/// Something worth a line.
#[derive(Debug, PartialEq, Eq)]
enum Remark {
    /// It is in another state than before.
    State(String),
    /// So many items are done, of so many known.
    Progress(i64, i64),
    /// So many operations have ended, of so many.
    Operations(i64, i64),
    /// Nobody seems to be at it.
    NoServer,
}

/// Decides what is worth saying.
#[derive(Debug, Default)]
struct Narrator {
    state: String,
    items: (i64, i64),
    operations: (i64, i64),
    spoke: Duration,
    has_hinted: bool,
}

impl Narrator {
    fn observe<R: Run>(&mut self, run: &R, elapsed: Duration) -> Vec<Remark> {
        let mut remarks = Vec::new();
        let (state, Summary { stage, items, operations, .. }) = (run.state(), run.summary());
        if state != self.state {
            self.state.clone_from(&state);
            self.spoke = elapsed;
            remarks.push(Remark::State(state));
        }
        if items != self.items && elapsed >= self.spoke + PROGRESS_PAUSE {
            self.items = items;
            self.spoke = elapsed;
            remarks.push(Remark::Progress(items.0, items.1));
        }
        let ended = operations.ended();
        if stage == Stage::Closing && ended != self.operations {
            self.operations = ended;
            remarks.push(Remark::Operations(ended.0, ended.1));
        }
        if stage == Stage::New && elapsed >= SERVER_LIMIT && !self.has_hinted {
            self.has_hinted = true;
            remarks.push(Remark::NoServer);
        }
        remarks
    }
}

/// Where remarks go.
struct Display {
    bar: Option<ProgressBar>,
}

impl Display {
    fn new() -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { bar }
    }

    fn show<R: Run>(&self, run: &R, remarks: &[Remark], installation: &Installation) {
        if let Some(bar) = &self.bar {
            let Summary { stage, items, operations, .. } = run.summary();
            let waits = stage == Stage::Closing && operations.attempted > 0;
            let (done, total) = if waits { operations.ended() } else { items };
            let template = match (total > 0, waits) {
                (true, true) => "{spinner} {msg} [{bar:30}] {pos}/{len} operations, {elapsed}",
                (true, false) => "{spinner} {msg} [{bar:30}] {pos}/{len} items, {elapsed}",
                (false, _) => "{spinner} {msg} {elapsed}",
            };
            bar.set_message(harmless(&run.state()));
            bar.set_length(total.unsigned_abs());
            bar.set_position(done.unsigned_abs());
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
        }
        for remark in remarks {
            match remark {
                Remark::State(_) | Remark::Progress(..) | Remark::Operations(..)
                    if self.bar.is_some() => {}
                Remark::State(state) => self.say(&format!("{}: {state}", run.name_any())),
                Remark::Progress(done, total) => {
                    self.say(&format!("{}: {done} of {total} items", run.name_any()));
                }
                Remark::Operations(ended, total) => {
                    let name = run.name_any();
                    self.say(&format!("{name}: {ended} of {total} operations have ended"));
                }
                Remark::NoServer => self.say(&format!(
                    "hint: the {noun} is still New after {} s, as if no server ran in namespace \
                     `{}`; waiting on, Ctrl-C leaves the {noun} as it is",
                    SERVER_LIMIT.as_secs(),
                    installation.namespace(),
                    noun = R::NOUN,
                )),
            }
        }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(harmless(line)),
            None => output::say(harmless(line)),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn exit_of(run: &impl Run) -> Exit {
    if run.summary().stage == Stage::Complete { Exit::Success } else { Exit::Failed }
}

/// How it ended, and where to look.
fn summary<R: Run>(run: &R, installation: &Installation) -> Vec<String> {
    let (noun, name) = (R::NOUN, run.name_any());
    let mut lines = outcome(run);
    let describe = installation.hint(&format!("{noun} describe {name}"));
    // What was refused has no log.
    lines.push(if run.summary().stage == Stage::Refused {
        format!("see {describe}")
    } else {
        let logs = installation.hint(&format!("{noun} logs {name}"));
        format!("see {describe} and {logs}")
    });
    lines
}

fn outcome<R: Run>(run: &R) -> Vec<String> {
    let summary = run.summary();
    let counted = |number: i64, what: &str| match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    };
    let took = match (&summary.started, &summary.ended) {
        (Some(start), Some(end)) => {
            format!(" after {} s", end.0.duration_since(start.0).as_secs())
        }
        _ => String::new(),
    };
    // What was refused did nothing that could be counted.
    let counts = if summary.stage == Stage::Refused {
        String::new()
    } else {
        let (done, total) = summary.items;
        format!(
            ": {done} of {}, {}, {}",
            counted(total, "item"),
            counted(summary.errors, "error"),
            counted(summary.warnings, "warning"),
        )
    };
    let (noun, name, state) = (R::NOUN, run.name_any(), run.state());
    let mut lines = vec![format!("{noun} `{name}` has ended as {state}{took}{counts}")];
    lines.extend(summary.validation_errors.iter().map(|error| format!("refused: {error}")));
    if !summary.failure_reason.is_empty() {
        lines.push(format!("reason: {}", summary.failure_reason));
    }
    lines.iter().map(|line| harmless(line)).collect()
}

#[cfg(test)]
mod tests {
    use bowline_api::backup::{BackupProgress, BackupStatus};
    use bowline_api::{Backup, BackupPhase, Restore, RestorePhase};
    use serde_json::json;

    use super::*;

    fn backup(phase: Option<BackupPhase>, done: i64, total: i64) -> Backup {
        let mut backup = Backup::new("b", bowline_api::BackupSpec::default());
        let progress =
            BackupProgress { total_items: total, items_backed_up: done, ..Default::default() };
        backup.status =
            Some(BackupStatus { phase, progress: Some(progress), ..BackupStatus::default() });
        backup
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_change_of_phase_is_said_once_and_progress_now_and_then() {
        let mut narrator = Narrator::default();
        let running = |done| backup(Some(BackupPhase::InProgress), done, 9);
        let state = |text: &str| vec![Remark::State(text.to_owned())];
        for (at, seen, expected) in [
            (0, backup(None, 0, 0), state("New")),
            (1, backup(Some(BackupPhase::New), 0, 0), vec![]),
            (2, running(1), state("InProgress")),
            (3, running(2), vec![]),
            (7, running(3), vec![Remark::Progress(3, 9)]),
            (8, running(4), vec![]),
            (12, running(4), vec![Remark::Progress(4, 9)]),
            (30, running(4), vec![]),
            (31, backup(Some(BackupPhase::Completed), 9, 9), state("Completed")),
        ] {
            assert_eq!(narrator.observe(&seen, seconds(at)), expected, "at {at} s");
        }
    }

    #[test]
    fn a_server_that_does_not_begin_is_hinted_at_once() {
        let mut narrator = Narrator::default();
        let new = backup(None, 0, 0);
        assert!(!narrator.observe(&new, seconds(9)).contains(&Remark::NoServer));
        assert!(narrator.observe(&new, seconds(10)).contains(&Remark::NoServer));
        assert_eq!(narrator.observe(&new, seconds(60)), []);
        let queued = backup(Some(BackupPhase::Queued), 0, 0);
        let mut narrator = Narrator::default();
        assert!(!narrator.observe(&queued, seconds(60)).contains(&Remark::NoServer));
    }

    fn restore(status: &serde_json::Value) -> Restore {
        let restore = json!({"metadata": {"name": "r"}, "spec": {}, "status": status});
        serde_json::from_value(restore).unwrap()
    }

    #[test]
    fn only_a_complete_run_is_a_success() {
        for phase in BackupPhase::KNOWN.iter().chain(RestorePhase::KNOWN) {
            let backup = backup(Some(BackupPhase::from(*phase)), 0, 0);
            let restore = restore(&json!({"phase": phase}));
            let expected = if *phase == "Completed" { Exit::Success } else { Exit::Failed };
            assert_eq!(exit_of(&backup), expected, "{phase}");
            assert_eq!(exit_of(&restore), expected, "{phase}");
        }
    }

    #[test]
    fn the_end_of_a_restore_is_told_as_that_of_a_backup() {
        let ended = restore(&json!({
            "phase": "PartiallyFailed", "errors": 1, "startTimestamp": "2026-01-02T03:04:05Z",
            "completionTimestamp": "2026-01-02T03:04:07Z",
            "progress": {"totalItems": 9, "itemsRestored": 8},
        }));
        let line =
            "restore `r` has ended as PartiallyFailed after 2 s: 8 of 9 items, 1 error, 0 warnings";
        assert_eq!(outcome(&ended), [line]);
    }

    #[test]
    fn the_end_is_told_with_numbers_and_reasons() {
        let mut ended = backup(Some(BackupPhase::PartiallyFailed), 8, 9);
        if let Some(status) = &mut ended.status {
            status.errors = 1;
            status.warnings = 2;
            status.failure_reason = "the disk\u{7} is full".to_owned();
            status.start_timestamp =
                Some(serde_json::from_value("2026-01-02T03:04:05Z".into()).unwrap());
            status.completion_timestamp =
                Some(serde_json::from_value("2026-01-02T03:05:17Z".into()).unwrap());
        }
        assert_eq!(
            outcome(&ended),
            [
                "backup `b` has ended as PartiallyFailed after 72 s: 8 of 9 items, 1 error, 2 warnings",
                "reason: the disk\u{fffd} is full",
            ]
        );
        let mut refused = backup(Some(BackupPhase::FailedValidation), 0, 0);
        if let Some(status) = &mut refused.status {
            status.validation_errors = vec!["no location".to_owned()];
        }
        assert_eq!(
            outcome(&refused),
            ["backup `b` has ended as FailedValidation", "refused: no location"]
        );
    }
}
