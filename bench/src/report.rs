//! Results: medians, as a table for people and as JSON for programs.

mod baseline;
pub(crate) mod csi;
pub(crate) mod growth;
mod many;
pub(crate) mod restores;

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use crate::backup::{BackupMeasurement, Backups};
use crate::contender::Contender;
use crate::fill::Load;
use crate::raw::ListingMeasurement;
use crate::restore::Restores;

const HEADINGS: [&str; 9] = [
    "backup by",
    "wall",
    "CPU",
    "peak memory",
    "API server CPU",
    "items",
    "bytes",
    "× raw list",
    "× bowline",
];

/// Everything that was measured, round by round.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    pub(crate) load: Load,
    /// Cores of the machine.
    pub(crate) cores: usize,
    pub(crate) backups: Option<Backups>,
    /// Largest archive first.
    pub(crate) restores: Vec<Restores>,
}

/// Middle value, or the mean of the two middle values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.get(middle) {
        None => 0.0,
        Some(&upper) if values.len().is_multiple_of(2) => f64::midpoint(values[middle - 1], upper),
        Some(&upper) => upper,
    }
}

/// The median of a count, to the nearest whole.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes and items, far below 2^52"
)]
fn median_count(values: impl Iterator<Item = u64>) -> u64 {
    median(values.map(|value| value as f64).collect()).round() as u64
}

impl ListingMeasurement {
    /// The median of each figure.
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure).collect());
        Self {
            wall_s: of(|round| round.wall_s),
            bytes: median_count(rounds.iter().map(|round| round.bytes)),
            count: median_count(rounds.iter().map(|round| round.count)),
            apiserver_cpu_s: of(|round| round.apiserver_cpu_s),
        }
    }
}

impl BackupMeasurement {
    /// The median of each figure.
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure).collect());
        Self {
            wall_s: of(|round| round.wall_s),
            cpu_s: of(|round| round.cpu_s),
            peak_rss_bytes: median_count(rounds.iter().map(|round| round.peak_rss_bytes)),
            items: median_count(rounds.iter().map(|round| round.items)),
            bytes: median_count(rounds.iter().map(|round| round.bytes)),
            apiserver_cpu_s: of(|round| round.apiserver_cpu_s),
            api_requests: median_count(rounds.iter().map(|round| round.api_requests)),
        }
    }
}

impl Results {
    /// Format that other programs rely on: `raw_list`, `raw_create`, `<contender>.backup` and `<contender>.restore`,
    /// each with its medians and, below `rounds`, the single values.
    pub(crate) fn json(&self) -> Value {
        let (load, seed) = match self.load {
            Load::Mix { seed, .. } => ("mix", seed),
            Load::BigSecrets { seed } => ("big_secrets", seed),
        };
        let mut all = json!({
            "load": load,
            "objects": self.load.len(),
            "seed": seed,
            "cores": self.cores,
        });
        if let Some(Backups { listings, runs }) = &self.backups {
            all["raw_list"] = with_rounds(ListingMeasurement::median(listings), listings);
            for (contender, rounds) in runs {
                all[contender.name()]["backup"] =
                    with_rounds(BackupMeasurement::median(rounds), rounds);
            }
        }
        restores::add_restores_json(&mut all, &self.restores);
        if let Some(ratios) = baseline::json(self) {
            all["bowline_to_baseline"] = ratios;
        }
        all
    }

    /// A row for each floor and each contender, with medians.
    pub(crate) fn table(&self) -> String {
        let mut tables: Vec<String> = self.backups.iter().map(backups_table).collect();
        if !self.restores.is_empty() {
            tables.push(restores::table(&self.restores));
            tables.push(restores::limits(&self.restores, self.cores));
        }
        tables.extend(baseline::table(self));
        tables.join("\n")
    }
}

fn backups_table(Backups { listings, runs }: &Backups) -> String {
    let floor = ListingMeasurement::median(listings);
    let medians: Vec<(Contender, BackupMeasurement)> = runs
        .iter()
        .map(|(contender, rounds)| (*contender, BackupMeasurement::median(rounds)))
        .collect();
    let bowline = medians
        .iter()
        .find(|(contender, _)| *contender == Contender::Bowline)
        .map(|(_, run)| run.wall_s);
    let none = || "-".to_owned();

    let mut rows = vec![
        HEADINGS.map(str::to_owned),
        [
            "(raw list)".to_owned(),
            seconds(floor.wall_s),
            none(),
            none(),
            seconds(floor.apiserver_cpu_s),
            floor.count.to_string(),
            megabytes(floor.bytes),
            ratio(floor.wall_s, Some(floor.wall_s)),
            ratio(floor.wall_s, bowline),
        ],
    ];
    for (contender, run) in medians {
        rows.push([
            contender.name().to_owned(),
            seconds(run.wall_s),
            seconds(run.cpu_s),
            mebibytes(run.peak_rss_bytes),
            seconds(run.apiserver_cpu_s),
            run.items.to_string(),
            megabytes(run.bytes),
            ratio(run.wall_s, Some(floor.wall_s)),
            ratio(run.wall_s, bowline),
        ]);
    }
    aligned(&rows)
}

fn ratio(value: f64, to: Option<f64>) -> String {
    to.map_or_else(|| "-".to_owned(), |other| format!("{:.2}", value / other))
}

fn with_rounds<T: Serialize>(median: T, rounds: &[T]) -> Value {
    let mut value = json!(median);
    value["rounds"] = json!(rounds);
    value
}

fn seconds(value: f64) -> String {
    format!("{value:.2} s")
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Names are aligned left, figures right.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or_default());
    let mut text = String::new();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let _ = match column {
                0 => write!(text, "{cell:<width$}"),
                _ => write!(text, "   {cell:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Three rounds of two contenders; the middle one has double figures.
    pub(crate) fn sample() -> Results {
        let listing = |wall_s| ListingMeasurement {
            wall_s,
            bytes: 5_000_000,
            count: 900,
            apiserver_cpu_s: 0.4,
        };
        let run = |wall_s: f64, items| BackupMeasurement {
            wall_s,
            cpu_s: wall_s / 2.0,
            peak_rss_bytes: 32 << 20,
            items,
            bytes: 1_250_000,
            apiserver_cpu_s: 0.75,
            api_requests: 500,
        };
        let backups = Backups {
            listings: vec![listing(0.5), listing(0.1), listing(0.4)],
            runs: vec![
                (Contender::Bowline, vec![run(0.9, 900), run(0.8, 901), run(0.7, 902)]),
                (Contender::Velero, vec![run(8.0, 900), run(9.0, 901), run(4.0, 902)]),
            ],
        };
        let load = Load::Mix { objects: 800, seed: 3 };
        Results { load, cores: 2, backups: Some(backups), restores: Vec::new() }
    }

    #[test]
    fn median_does_not_depend_on_order() {
        let cases: [(&[f64], f64); 4] =
            [(&[], 0.0), (&[3.0], 3.0), (&[9.0, 1.0, 2.0], 2.0), (&[4.0, 1.0, 2.0, 100.0], 3.0)];
        for (values, expected) in cases {
            assert!((median(values.to_vec()) - expected).abs() < f64::EPSILON, "{values:?}");
        }
    }

    #[test]
    fn table_has_medians_and_ratios_to_floor_and_bowline() {
        let expected = "\
backup by      wall      CPU   peak memory   API server CPU   items    bytes   × raw list   × bowline
(raw list)   0.40 s        -             -           0.40 s     900   5.0 MB         1.00        0.50
bowline      0.80 s   0.40 s        32 MiB           0.75 s     901   1.2 MB         2.00        1.00
velero       8.00 s   4.00 s        32 MiB           0.75 s     901   1.2 MB        20.00       10.00
";
        assert_eq!(sample().table(), expected);
        let mut alone = sample();
        alone.backups.as_mut().unwrap().runs.remove(0);
        assert!(alone.table().ends_with("20.00           -\n"), "{}", alone.table());
    }

    #[test]
    fn json_shape_is_stable() {
        let json = sample().json();
        let number = |pointer: &str| json.pointer(pointer).and_then(Value::as_f64);
        for (pointer, expected) in [
            ("/objects", 800.0),
            ("/seed", 3.0),
            ("/raw_list/wall_s", 0.4),
            ("/raw_list/bytes", 5e6),
            ("/raw_list/count", 900.0),
            ("/raw_list/rounds/1/wall_s", 0.1),
            ("/bowline/backup/wall_s", 0.8),
            ("/bowline/backup/cpu_s", 0.4),
            ("/bowline/backup/peak_rss_bytes", 33_554_432.0),
            ("/bowline/backup/items", 901.0),
            ("/bowline/backup/bytes", 1_250_000.0),
            ("/velero/backup/wall_s", 8.0),
            ("/velero/backup/rounds/2/wall_s", 4.0),
        ] {
            assert_eq!(number(pointer), Some(expected), "{pointer} in {json:#}");
        }
        assert_eq!(json.get("velero_tuned"), None);
        assert_eq!(json.get("raw_create"), None);
        assert_eq!(json.get("restores"), None);
    }
}
