//! What all kills together have cost.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use bowline_engine::point::Point;
use serde_json::{Value, json};

use crate::check::{self, Deletion, Run};

/// How many findings are told.
const TOLD: usize = 50;

/// The figures.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) kills: u32,
    /// Kills at random times among them.
    pub(crate) random: u32,
    pub(crate) points: BTreeSet<Point>,
    pub(crate) rounds: u32,
    pub(crate) runs: u32,
    /// Backups that were to be deleted.
    pub(crate) deletions: u32,
    pub(crate) seconds: u64,
    pub(crate) lost: Vec<String>,
    pub(crate) doubled: Vec<String>,
    pub(crate) frozen: Vec<String>,
    pub(crate) unfinished: Vec<String>,
}

impl Totals {
    /// Adds what became of a run.
    pub(crate) fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.lost.extend(check::lost(run));
        self.doubled.extend(check::doubled(run));
        self.unfinished.extend(check::unfinished(run));
    }

    /// Adds what became of a backup that was to be deleted.
    pub(crate) fn add_deletion(&mut self, deletion: &Deletion) {
        self.deletions += 1;
        self.lost.extend(check::left(deletion));
        self.unfinished.extend(check::undeleted(deletion));
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.findings().next().is_none()
    }

    /// All that went wrong, one line each.
    pub(crate) fn findings(&self) -> impl Iterator<Item = &str> {
        let all = [&self.lost, &self.doubled, &self.frozen, &self.unfinished];
        all.into_iter().flatten().map(String::as_str)
    }

    /// In a few words.
    pub(crate) fn verdict(&self) -> String {
        if self.is_clean() {
            return "nothing lost".to_owned();
        }
        let Self { lost, doubled, frozen, unfinished, .. } = self;
        let [lost, doubled, frozen, unfinished] = [lost, doubled, frozen, unfinished].map(Vec::len);
        format!("{lost} lost, {doubled} doubled, {frozen} frozen, {unfinished} unfinished")
    }

    fn missed(&self) -> Vec<&'static str> {
        let missed = Point::ALL.iter().filter(|point| !self.points.contains(point));
        missed.map(|point| point.as_str()).collect()
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "kills": self.kills,
            "random_kills": self.random,
            "points": self.points.len(),
            "points_missed": self.missed(),
            "rounds": self.rounds,
            "runs": self.runs,
            "deletions": self.deletions,
            "seconds": self.seconds,
            "lost": self.lost.len(),
            "doubled": self.doubled.len(),
            "frozen": self.frozen.len(),
            "unfinished": self.unfinished.len(),
            "findings": self.findings().take(TOLD).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn table(&self) -> String {
        let missed = match self.missed() {
            names if names.is_empty() => String::new(),
            names => format!(", all but {}", names.join(", ")),
        };
        let points = format!("{} of {}{missed}", self.points.len(), Point::ALL.len());
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
        for finding in self.findings().take(TOLD) {
            let _ = writeln!(text, "  {finding}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_clean_if_nothing_was_found() {
        let mut totals = Totals { kills: 3, ..Totals::default() };
        totals.points.insert(Point::Commit);
        let fine = Run { phase: "Completed".into(), ..Run::default() };
        totals.add(&fine);
        assert!(totals.is_clean());
        let json = totals.json();
        assert_eq!([&json["kills"], &json["points"], &json["runs"]], [3, 1, 1]);
        assert_eq!(json["points_missed"].as_array().unwrap().len(), Point::ALL.len() - 1);

        totals.add_deletion(&Deletion::default());
        assert!(totals.is_clean());
        let uploads = vec!["s".to_owned()];
        totals.add_deletion(&Deletion { uploads, is_there: true, ..Deletion::default() });
        let json = totals.json();
        let figures = [&json["deletions"], &json["lost"], &json["unfinished"]];
        assert_eq!(figures, [2, 1, 1]);

        totals.add(&Run { phase: "Failed".into(), name: "r".into(), ..Run::default() });
        assert!(!totals.is_clean());
        assert_eq!(totals.json()["unfinished"], 2);
        let table = totals.table();
        assert!(table.contains("unfinished 2") && table.contains("r is Failed"), "{table}");
    }
}
