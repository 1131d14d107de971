//! `get --watch`: prints objects again when they change.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use kube::ResourceExt as _;
use tokio::time::sleep;

use crate::exit::{Exit, shutdown_signal};
use crate::installation::Installation;
use crate::listing::ResourceKind;
use crate::output;
use crate::run::{Run, Stage};
use crate::table::Format;
use crate::volume_progress::{self, VolumeTotals};

/// Interval of checks for changes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Largest number of consecutive failures of the cluster to answer.
const MAX_FAILURES: u32 = 60;

/// Prints objects as a table, and each of them again when its row changes, until asked to end.
pub(crate) async fn watch_table<K: ResourceKind>(
    find: impl AsyncFn() -> anyhow::Result<Vec<K>>,
    first: Vec<K>,
    format: Format,
    table: impl Fn(&[K]) -> String,
) -> anyhow::Result<Exit> {
    if format != Format::Table {
        bail!("`--watch` only prints tables; omit `--output`, or use `kubectl get --watch`");
    }
    let asked_to_end = shutdown_signal()?;
    tokio::pin!(asked_to_end);
    let mut rows = PrintedRows::default();
    for line in rows.changed_lines(&first, &table) {
        output::print_data(format!("{line}\n"))?;
    }
    let mut failures = 0;
    loop {
        tokio::select! {
            exit = &mut asked_to_end => return Ok(exit),
            () = sleep(POLL_INTERVAL) => {}
        }
        match find().await {
            Ok(found) => {
                failures = 0;
                for line in rows.changed_lines(&found, &table) {
                    output::print_data(format!("{line}\n"))?;
                }
            }
            Err(error) if failures >= MAX_FAILURES => return Err(error),
            Err(_) => failures += 1,
        }
    }
}

/// Progress of the volumes of runs that are active, or were when first seen.
#[derive(Default)]
pub(crate) struct WatchedVolumes {
    /// By run: true if it was active, and its totals.
    totals_by_run: RefCell<BTreeMap<String, (bool, VolumeTotals)>>,
}

impl WatchedVolumes {
    /// Refreshes the volumes of active runs, and once more when they have ended. Volumes that cannot be read keep their
    /// state.
    pub(crate) async fn refresh<R: Run>(&self, installation: &Installation, runs: &[R]) {
        for run in runs {
            let name = run.name_any();
            let is_in_progress =
                matches!(run.summary().stage, Stage::InProgress | Stage::Finalizing);
            let previous = self.totals_by_run.borrow().get(&name).cloned();
            if !is_in_progress
                && !previous.as_ref().is_some_and(|(was_in_progress, _)| *was_in_progress)
            {
                continue;
            }
            let found = volume_progress::list_for_run::<R>(installation, &name).await.ok();
            let totals = found
                .map(|found| VolumeTotals::from_volumes(&found))
                .or(previous.map(|(_, tally)| tally));
            self.totals_by_run
                .borrow_mut()
                .insert(name, (is_in_progress, totals.unwrap_or_default()));
        }
        self.totals_by_run
            .borrow_mut()
            .retain(|name, _| runs.iter().any(|run| run.name_any() == *name));
    }

    /// Text for a column.
    pub(crate) fn column_text(&self, run: &impl Run) -> String {
        let totals_by_run = self.totals_by_run.borrow();
        let totals = totals_by_run.get(&run.name_any()).map(|(_, tally)| tally);
        totals.filter(|tally| tally.total > 0).map(VolumeTotals::short_text).unwrap_or_default()
    }
}

/// Last printed row of each object.
#[derive(Default)]
struct PrintedRows {
    printed: BTreeMap<String, String>,
    has_header: bool,
}

impl PrintedRows {
    /// New lines, with the header once.
    fn changed_lines<K: ResourceKind>(
        &mut self,
        objects: &[K],
        table: impl Fn(&[K]) -> String,
    ) -> Vec<String> {
        let text = table(objects);
        let mut lines = text.lines();
        let header = lines.next().unwrap_or_default();
        let mut changed = Vec::new();
        if !self.has_header && !objects.is_empty() {
            self.has_header = true;
            changed.push(header.to_owned());
        }
        for (object, line) in objects.iter().zip(lines) {
            // The columns of a table grow with its rows; only words count.
            let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
            let printed = self.printed.get(&object.name_any());
            if printed != Some(&words) {
                self.printed.insert(object.name_any(), words);
                changed.push(line.to_owned());
            }
        }
        self.printed.retain(|name, _| objects.iter().any(|object| object.name_any() == *name));
        changed
    }
}

#[cfg(test)]
mod tests {
    use bowline_api::Backup;
    use serde_json::json;

    use super::*;

    fn backup(name: &str, phase: &str) -> Backup {
        let backup = json!({"metadata": {"name": name}, "spec": {}, "status": {"phase": phase}});
        serde_json::from_value(backup).unwrap()
    }

    fn table(backups: &[Backup]) -> String {
        let row = |backup: &Backup| {
            let phase = backup.status.clone().unwrap().phase.unwrap();
            format!("{}   {phase}", backup.name_any())
        };
        let rows: Vec<String> = backups.iter().map(row).collect();
        format!("NAME   STATUS\n{}", rows.join("\n"))
    }

    #[test]
    fn only_rows_that_change_are_printed_again() {
        let mut rows = PrintedRows::default();
        let none: [Backup; 0] = [];
        assert_eq!(rows.changed_lines(&none, table), [""; 0]);
        let first = [backup("a", "New"), backup("b", "Completed")];
        assert_eq!(
            rows.changed_lines(&first, table),
            ["NAME   STATUS", "a   New", "b   Completed"]
        );
        assert_eq!(rows.changed_lines(&first, table), [""; 0]);
        let next = [backup("a", "InProgress"), backup("b", "Completed")];
        assert_eq!(rows.changed_lines(&next, table), ["a   InProgress"]);
        assert_eq!(rows.changed_lines(&next[..1], table), [""; 0]);
        assert_eq!(rows.changed_lines(&next, table), ["b   Completed"], "it was gone meanwhile");
    }
}
