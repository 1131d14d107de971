//! `get --watch`: prints objects again when they change.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use kube::ResourceExt as _;
use tokio::time::sleep;

use crate::exit::{Exit, until_asked_to_end};
use crate::installation::Installation;
use crate::listing::Kind;
use crate::output;
use crate::run::{Run, Stage};
use crate::table::Format;
use crate::transfer::{self, Tally};

/// How often it is looked for changes.
const PAUSE: Duration = Duration::from_secs(1);
/// How often in a row the cluster may not answer.
const FAILURES: u32 = 60;

/// Prints objects as a table, and each of them again when its row changes, until asked to end.
pub(crate) async fn changes<K: Kind>(
    find: impl AsyncFn() -> anyhow::Result<Vec<K>>,
    first: Vec<K>,
    format: Format,
    table: impl Fn(&[K]) -> String,
) -> anyhow::Result<Exit> {
    if format != Format::Table {
        bail!("`--watch` only prints tables; omit `--output`, or use `kubectl get --watch`");
    }
    let asked_to_end = until_asked_to_end()?;
    tokio::pin!(asked_to_end);
    let mut rows = Rows::default();
    for line in rows.changed(&first, &table) {
        output::data(format!("{line}\n"))?;
    }
    let mut failures = 0;
    loop {
        tokio::select! {
            exit = &mut asked_to_end => return Ok(exit),
            () = sleep(PAUSE) => {}
        }
        match find().await {
            Ok(found) => {
                failures = 0;
                for line in rows.changed(&found, &table) {
                    output::data(format!("{line}\n"))?;
                }
            }
            Err(error) if failures >= FAILURES => return Err(error),
            Err(_) => failures += 1,
        }
    }
}

/// How far the volumes of runs are, of those that go on or went on when they were first looked at.
#[derive(Default)]
pub(crate) struct Volumes {
    /// By run; whether it went on, and how far it was.
    known: RefCell<BTreeMap<String, (bool, Tally)>>,
}

impl Volumes {
    /// Looks at the volumes of runs that go on, and once more when they have ended. What cannot be seen
    /// stays as it was.
    pub(crate) async fn look<R: Run>(&self, installation: &Installation, runs: &[R]) {
        for run in runs {
            let name = run.name_any();
            let goes_on = matches!(run.summary().stage, Stage::Working | Stage::Closing);
            let before = self.known.borrow().get(&name).cloned();
            if !goes_on && !before.as_ref().is_some_and(|(went_on, _)| *went_on) {
                continue;
            }
            let found = transfer::of::<R>(installation, &name).await.ok();
            let tally = found.map(|found| Tally::of(&found)).or(before.map(|(_, tally)| tally));
            self.known.borrow_mut().insert(name, (goes_on, tally.unwrap_or_default()));
        }
        self.known.borrow_mut().retain(|name, _| runs.iter().any(|run| run.name_any() == *name));
    }

    /// For a column.
    pub(crate) fn of(&self, run: &impl Run) -> String {
        let known = self.known.borrow();
        let tally = known.get(&run.name_any()).map(|(_, tally)| tally);
        tally.filter(|tally| tally.all > 0).map(Tally::short).unwrap_or_default()
    }
}

/// What was printed of each object.
#[derive(Default)]
struct Rows {
    printed: BTreeMap<String, String>,
    has_header: bool,
}

impl Rows {
    /// The lines that are new, with the header once.
    fn changed<K: Kind>(&mut self, objects: &[K], table: impl Fn(&[K]) -> String) -> Vec<String> {
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
        let mut rows = Rows::default();
        let none: [Backup; 0] = [];
        assert_eq!(rows.changed(&none, table), [""; 0]);
        let first = [backup("a", "New"), backup("b", "Completed")];
        assert_eq!(rows.changed(&first, table), ["NAME   STATUS", "a   New", "b   Completed"]);
        assert_eq!(rows.changed(&first, table), [""; 0]);
        let next = [backup("a", "InProgress"), backup("b", "Completed")];
        assert_eq!(rows.changed(&next, table), ["a   InProgress"]);
        assert_eq!(rows.changed(&next[..1], table), [""; 0]);
        assert_eq!(rows.changed(&next, table), ["b   Completed"], "it was gone meanwhile");
    }
}
