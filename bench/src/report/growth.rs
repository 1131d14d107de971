//! Backups at several sizes: the figures at each, and their growth from the smallest one.

use serde_json::{Value, json};

use super::{aligned, mebibytes, ratio, seconds, with_rounds};
use crate::backup::BackupMeasurement;
use crate::contender::Contender;
use crate::growth::{Growth, SizedBackups};
use crate::raw::ListingMeasurement;

const HEADINGS: [&str; 9] = [
    "backup by",
    "objects",
    "items",
    "wall",
    "CPU",
    "peak memory",
    "× raw list",
    "× time per item",
    "× memory",
];

/// Figures of a contender as multiples of those at the smallest size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct GrowthRatio {
    items: f64,
    /// Growth of the time divided by that of the items: 1 is linear.
    wall_per_item: f64,
    peak_memory: f64,
}

impl GrowthRatio {
    #[expect(clippy::cast_precision_loss, reason = "items and bytes, far below 2^52")]
    fn between(smallest: &BackupMeasurement, larger: &BackupMeasurement) -> Self {
        let quotient = |larger: u64, smaller: u64| larger as f64 / (smaller.max(1) as f64);
        let items = quotient(larger.items, smallest.items);
        Self {
            items,
            wall_per_item: larger.wall_s / smallest.wall_s / items,
            peak_memory: quotient(larger.peak_rss_bytes, smallest.peak_rss_bytes),
        }
    }
}

impl SizedBackups {
    fn median_of(&self, wanted: Contender) -> Option<BackupMeasurement> {
        let found = self.backups.runs.iter().find(|(contender, _)| *contender == wanted);
        found.map(|(_, rounds)| BackupMeasurement::median(rounds))
    }
}

impl Growth {
    fn ratio(&self, contender: Contender, larger: &BackupMeasurement) -> Option<GrowthRatio> {
        let smallest = self.sizes.first()?.median_of(contender)?;
        Some(GrowthRatio::between(&smallest, larger))
    }

    /// Format that other programs rely on: below `sizes`, for each size the same as for a single one, and `growth`.
    pub(crate) fn json(&self, cores: usize) -> Value {
        let size = |sized: &SizedBackups| {
            let listings = &sized.backups.listings;
            let mut entry = json!({
                "objects": sized.load.len(),
                "raw_list": with_rounds(ListingMeasurement::median(listings), listings),
            });
            for (contender, rounds) in &sized.backups.runs {
                let median = BackupMeasurement::median(rounds);
                entry[contender.name()]["backup"] = with_rounds(median, rounds);
                if let Some(ratio) = self.ratio(*contender, &median) {
                    entry[contender.name()]["growth"] = json!({
                        "items": ratio.items,
                        "wall_per_item": ratio.wall_per_item,
                        "peak_memory": ratio.peak_memory,
                    });
                }
            }
            entry
        };
        json!({"cores": cores, "sizes": self.sizes.iter().map(size).collect::<Vec<_>>()})
    }

    /// Rows of each size, with the growth from the smallest one.
    pub(crate) fn table(&self) -> String {
        let none = || "-".to_owned();
        let mut rows = vec![HEADINGS.map(str::to_owned)];
        for sized in &self.sizes {
            let floor = ListingMeasurement::median(&sized.backups.listings);
            let objects = sized.load.len().to_string();
            rows.push([
                "(raw list)".to_owned(),
                objects.clone(),
                floor.count.to_string(),
                seconds(floor.wall_s),
                none(),
                none(),
                ratio(floor.wall_s, Some(floor.wall_s)),
                none(),
                none(),
            ]);
            for (contender, rounds) in &sized.backups.runs {
                let run = BackupMeasurement::median(rounds);
                let growth = self.ratio(*contender, &run);
                let factor = |figure: fn(GrowthRatio) -> f64| {
                    growth.map_or_else(none, |growth| format!("{:.2}", figure(growth)))
                };
                rows.push([
                    contender.name().to_owned(),
                    objects.clone(),
                    run.items.to_string(),
                    seconds(run.wall_s),
                    seconds(run.cpu_s),
                    mebibytes(run.peak_rss_bytes),
                    ratio(run.wall_s, Some(floor.wall_s)),
                    factor(|growth| growth.wall_per_item),
                    factor(|growth| growth.peak_memory),
                ]);
            }
        }
        aligned(&rows)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::fill::Load;

    /// Two sizes: ten times the items take twenty times as long, with half as much memory again.
    pub(crate) fn sample() -> Growth {
        let small = crate::report::tests::sample().backups.unwrap();
        let mut large = small.clone();
        for run in large.runs.iter_mut().flat_map(|(_, rounds)| rounds) {
            run.items *= 10;
            run.wall_s *= 20.0;
            run.peak_rss_bytes = run.peak_rss_bytes * 3 / 2;
        }
        let sized =
            |objects, backups| SizedBackups { load: Load::Mix { objects, seed: 3 }, backups };
        Growth { sizes: vec![sized(800, small), sized(8000, large)] }
    }

    #[test]
    fn growth_is_relative_to_the_smallest_size_and_to_the_items() {
        let json = sample().json(2);
        let number = |pointer: &str| json.pointer(pointer).and_then(Value::as_f64).unwrap();
        for (pointer, expected) in [
            ("/sizes/0/objects", 800.0),
            ("/sizes/0/raw_list/wall_s", 0.4),
            ("/sizes/0/bowline/growth/wall_per_item", 1.0),
            ("/sizes/1/bowline/backup/wall_s", 16.0),
            ("/sizes/1/bowline/backup/rounds/0/items", 9000.0),
            ("/sizes/1/bowline/growth/items", 10.0),
            ("/sizes/1/bowline/growth/wall_per_item", 2.0),
            ("/sizes/1/velero/growth/peak_memory", 1.5),
        ] {
            assert!((number(pointer) - expected).abs() < 1e-9, "{pointer} in {json:#}");
        }
    }

    #[test]
    fn table_has_the_rows_of_each_size() {
        let table = sample().table();
        let rows: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 1 + 2 * 3, "{table}");
        let large = "bowline 8000 9010 16.00 s 0.40 s 48 MiB 40.00 2.00 1.50";
        assert_eq!(rows[5].join(" "), large, "{table}");
    }
}
