//! Cost of all kills together.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use bowline_engine::failpoint::Failpoint;
use serde_json::{Value, json};

use crate::check::{self, DeletionEvidence, RunEvidence};

/// Number of findings printed.
const MAX_REPORTED_FINDINGS: usize = 50;

#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) kills: u32,
    /// Number of kills at random times.
    pub(crate) random: u32,
    pub(crate) points: BTreeSet<Failpoint>,
    pub(crate) rounds: u32,
    pub(crate) runs: u32,
    /// Number of backups that were to be deleted.
    pub(crate) deletions: u32,
    pub(crate) seconds: u64,
    pub(crate) lost: Vec<String>,
    pub(crate) doubled: Vec<String>,
    pub(crate) frozen: Vec<String>,
    pub(crate) unfinished: Vec<String>,
}

impl Totals {
    /// Adds the evidence about a run.
    pub(crate) fn add(&mut self, run: &RunEvidence) {
        self.runs += 1;
        self.lost.extend(check::lost_resources(run));
        self.doubled.extend(check::repeated_work(run));
        self.unfinished.extend(check::unfinished_reasons(run));
    }

    /// Adds the evidence about a deleted backup.
    pub(crate) fn add_deletion(&mut self, deletion: &DeletionEvidence) {
        self.deletions += 1;
        self.lost.extend(check::leftovers(deletion));
        self.unfinished.extend(check::undeleted_reasons(deletion));
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.findings().next().is_none()
    }

    /// All failures, one line each.
    pub(crate) fn findings(&self) -> impl Iterator<Item = &str> {
        let all = [&self.lost, &self.doubled, &self.frozen, &self.unfinished];
        all.into_iter().flatten().map(String::as_str)
    }

    /// Summary in a few words.
    pub(crate) fn verdict(&self) -> String {
        if self.is_clean() {
            return "nothing lost".to_owned();
        }
        let Self { lost, doubled, frozen, unfinished, .. } = self;
        let [lost, doubled, frozen, unfinished] = [lost, doubled, frozen, unfinished].map(Vec::len);
        format!("{lost} lost, {doubled} doubled, {frozen} frozen, {unfinished} unfinished")
    }

    fn missed_points(&self) -> Vec<&'static str> {
        let missed = Failpoint::ALL.iter().filter(|point| !self.points.contains(point));
        missed.map(|point| point.as_str()).collect()
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "kills": self.kills,
            "random_kills": self.random,
            "points": self.points.len(),
            "points_missed": self.missed_points(),
            "rounds": self.rounds,
            "runs": self.runs,
            "deletions": self.deletions,
            "seconds": self.seconds,
            "lost": self.lost.len(),
            "doubled": self.doubled.len(),
            "frozen": self.frozen.len(),
            "unfinished": self.unfinished.len(),
            "findings": self.findings().take(MAX_REPORTED_FINDINGS).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn table(&self) -> String {
        let missed = match self.missed_points() {
            names if names.is_empty() => String::new(),
            names => format!(", all but {}", names.join(", ")),
        };
        let points = format!("{} of {}{missed}", self.points.len(), Failpoint::ALL.len());
        let rows = [
            ("kills", format!("{}, {} of them at random times", self.kills, self.random)),
            ("points", points),
            ("runs", format!("{} in {} rounds, {} s", self.runs, self.rounds, self.seconds)),
            ("deletions", self.deletions.to_string()),
            ("lost", self.lost.len().to_string()),
            ("doubled", self.doubled.len().to_string()),
            ("frozen", self.frozen.len().to_string()),
            ("unfinished", self.unfinished.len().to_string()),
        ];
        let mut text = String::new();
        for (name, value) in rows {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<11}{value}");
        }
        for finding in self.findings().take(MAX_REPORTED_FINDINGS) {
            let _ = writeln!(text, "  {finding}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_clean_without_findings() {
        let mut totals = Totals { kills: 3, ..Totals::default() };
        totals.points.insert(Failpoint::Commit);
        let clean_run = RunEvidence { phase: "Completed".into(), ..RunEvidence::default() };
        totals.add(&clean_run);
        assert!(totals.is_clean());
        let json = totals.json();
        assert_eq!([&json["kills"], &json["points"], &json["runs"]], [3, 1, 1]);
        assert_eq!(json["points_missed"].as_array().unwrap().len(), Failpoint::ALL.len() - 1);

        totals.add_deletion(&DeletionEvidence::default());
        assert!(totals.is_clean());
        let uploads = vec!["s".to_owned()];
        totals.add_deletion(&DeletionEvidence {
            uploads,
            backup_exists: true,
            ..DeletionEvidence::default()
        });
        let json = totals.json();
        let figures = [&json["deletions"], &json["lost"], &json["unfinished"]];
        assert_eq!(figures, [2, 1, 1]);

        totals.add(&RunEvidence {
            phase: "Failed".into(),
            name: "r".into(),
            ..RunEvidence::default()
        });
        assert!(!totals.is_clean());
        assert_eq!(totals.json()["unfinished"], 2);
        let table = totals.table();
        assert!(table.contains("unfinished 2") && table.contains("r is Failed"), "{table}");
    }
}
