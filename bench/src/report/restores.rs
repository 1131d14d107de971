//! Restores: a row for each archive and contender, their limits, and the ratios between them.
//!
//! Contenders may have restored archives of different sizes, so each figure has its number of objects. A ratio is
//! between figures of one archive, or between times per item.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{aligned, mebibytes, median, median_count, ratio, seconds, with_rounds};
use crate::bench_env::MachineUsage;
use crate::contender::Contender;
use crate::create::CreationMeasurement;
use crate::restore::{RestoreMeasurement, Restores};

const HEADINGS: [&str; 12] = [
    "restore by",
    "objects",
    "wall",
    "CPU",
    "peak memory",
    "API server CPU",
    "etcd CPU",
    "controllers CPU",
    "items",
    "ms/item",
    "× raw create",
    "× bowline",
];

impl MachineUsage {
    fn median(rounds: impl Iterator<Item = Self>) -> Self {
        let rounds: Vec<Self> = rounds.collect();
        let of = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure).collect());
        Self {
            api_server: of(|round| round.api_server),
            etcd: of(|round| round.etcd),
            controllers: of(|round| round.controllers),
            idle: of(|round| round.idle),
        }
    }
}

impl CreationMeasurement {
    /// The median of each figure, of rounds with the same number of connections.
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure).collect());
        Self {
            wall_s: of(|round| round.wall_s),
            cpu_s: of(|round| round.cpu_s),
            in_flight: rounds.first().map(|round| round.in_flight).unwrap_or_default(),
            items: median_count(rounds.iter().map(|round| round.items)),
            existing: median_count(rounds.iter().map(|round| round.existing)),
            machine_usage: MachineUsage::median(rounds.iter().map(|round| round.machine_usage)),
        }
    }
}

impl RestoreMeasurement {
    /// The median of each figure.
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure).collect());
        Self {
            wall_s: of(|round| round.wall_s),
            cpu_s: of(|round| round.cpu_s),
            peak_rss_bytes: median_count(rounds.iter().map(|round| round.peak_rss_bytes)),
            items: median_count(rounds.iter().map(|round| round.items)),
            warnings: median_count(rounds.iter().map(|round| round.warnings)),
            api_requests: median_count(rounds.iter().map(|round| round.api_requests)),
            machine_usage: MachineUsage::median(rounds.iter().map(|round| round.machine_usage)),
        }
    }
}

impl Restores {
    fn medians(&self) -> Vec<(Contender, RestoreMeasurement)> {
        let of = |(contender, rounds): &(Contender, Vec<RestoreMeasurement>)| {
            (*contender, RestoreMeasurement::median(rounds))
        };
        self.runs.iter().map(of).collect()
    }

    fn median_of(&self, wanted: Contender) -> Option<RestoreMeasurement> {
        let runs = self.runs.iter().find(|(contender, _)| *contender == wanted);
        runs.map(|(_, rounds)| RestoreMeasurement::median(rounds))
    }
}

/// Adds the floor and the contenders, each with the largest archive that it restored; and everything below `restores`.
pub(super) fn add_restores_json(all: &mut Value, restores: &[Restores]) {
    let Some(largest) = restores.first() else { return };
    all["raw_create"] = floor_json(largest);
    let mut list = Vec::new();
    for restores in restores {
        let mut entry = json!({
            "objects": restores.archive.load.len(),
            "archive": {"items": restores.archive.items, "bytes": restores.archive.bytes},
            "raw_create": floor_json(restores),
        });
        for (contender, rounds) in &restores.runs {
            let mut figures = with_rounds(RestoreMeasurement::median(rounds), rounds);
            figures["objects"] = json!(restores.archive.load.len());
            entry[contender.name()] = figures.clone();
            let main = &mut all[contender.name()]["restore"];
            if main.is_null() {
                *main = figures;
            }
        }
        list.push(entry);
    }
    all["restores"] = json!(list);
    all["ratios"] = ratios(restores);
}

fn floor_json(restores: &Restores) -> Value {
    let mut floor =
        with_rounds(CreationMeasurement::median(&restores.creations), &restores.creations);
    floor["objects"] = json!(restores.archive.load.len());
    floor["tried"] = json!(restores.trial_creations);
    floor
}

/// Ratios of durations and sizes.
fn ratios(restores: &[Restores]) -> Value {
    let mut ratios = json!({});
    let largest = |contender| restores.iter().find_map(|restores| restores.median_of(contender));
    if let (Some(first), Some(bowline)) = (restores.first(), largest(Contender::Bowline)) {
        let floor = CreationMeasurement::median(&first.creations);
        ratios["bowline_to_raw_create"] = json!(bowline.wall_s / floor.wall_s);
    }
    for contender in [Contender::Velero, Contender::VeleroTuned] {
        let name = contender.name();
        let same = restores.iter().find_map(|archive| {
            Some((archive.median_of(contender)?, archive.median_of(Contender::Bowline)?))
        });
        if let Some((other, bowline)) = same {
            ratios[format!("{name}_to_bowline")] = json!(other.wall_s / bowline.wall_s);
        }
        if let (Some(other), Some(bowline)) = (largest(contender), largest(Contender::Bowline)) {
            ratios[format!("{name}_to_bowline_per_item")] = json!(
                per_item_ms(other.wall_s, other.items) / per_item_ms(bowline.wall_s, bowline.items)
            );
        }
    }
    ratios
}

#[expect(clippy::cast_precision_loss, reason = "items, far below 2^52")]
fn per_item_ms(wall_s: f64, items: u64) -> f64 {
    wall_s * 1000.0 / (items.max(1) as f64)
}

/// A row for the floor and for each contender, archive by archive.
pub(super) fn table(restores: &[Restores]) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    for archive in restores {
        let objects = archive.archive.load.len().to_string();
        let floor = CreationMeasurement::median(&archive.creations);
        let bowline = archive.median_of(Contender::Bowline).map(|run| run.wall_s);
        let row = |name: String, wall_s: f64, cpu_s, memory, meanwhile: MachineUsage, items| {
            [
                name,
                objects.clone(),
                seconds(wall_s),
                seconds(cpu_s),
                memory,
                seconds(meanwhile.api_server),
                seconds(meanwhile.etcd),
                seconds(meanwhile.controllers),
                u64::to_string(&items),
                format!("{:.2}", per_item_ms(wall_s, items)),
                ratio(wall_s, Some(floor.wall_s)),
                ratio(wall_s, bowline),
            ]
        };
        let name = format!("(raw create, {} at a time)", floor.in_flight);
        let none = "-".to_owned();
        rows.push(row(name, floor.wall_s, floor.cpu_s, none, floor.machine_usage, floor.items));
        for (contender, run) in archive.medians() {
            let (name, memory) = (contender.name().to_owned(), mebibytes(run.peak_rss_bytes));
            rows.push(row(name, run.wall_s, run.cpu_s, memory, run.machine_usage, run.items));
        }
    }
    aligned(&rows)
}

/// One line per row: the share of the machine that each process used.
pub(super) fn limits(restores: &[Restores], cores: usize) -> String {
    let mut lines = String::new();
    for archive in restores {
        let objects = archive.archive.load.len();
        let floor = CreationMeasurement::median(&archive.creations);
        let mut line = |name: &str, wall_s, cpu_s, meanwhile| {
            let shares = shares(wall_s, cpu_s, meanwhile, cores);
            let _ = writeln!(lines, "{name}, {objects} objects, {cores} cores: {shares}");
        };
        line("raw create", floor.wall_s, floor.cpu_s, floor.machine_usage);
        for (contender, run) in archive.medians() {
            line(contender.name(), run.wall_s, run.cpu_s, run.machine_usage);
        }
    }
    lines
}

/// Shares of all cores. Others are the S3 server, the benchmark itself, and the system.
#[expect(clippy::cast_precision_loss, reason = "a handful of cores")]
fn shares(wall_s: f64, own_cpu_s: f64, machine_usage: MachineUsage, cores: usize) -> String {
    let machine_s = (wall_s * cores as f64).max(f64::MIN_POSITIVE);
    let MachineUsage { api_server, etcd, controllers, idle } = machine_usage;
    let others = (machine_s - api_server - etcd - controllers - own_cpu_s - idle).max(0.0);
    [
        ("API server", api_server),
        ("etcd", etcd),
        ("controllers", controllers),
        ("itself", own_cpu_s),
        ("others", others),
        ("idle", idle),
    ]
    .map(|(name, used)| format!("{name} {:.0} %", used / machine_s * 100.0))
    .join(", ")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::restore::tests::archive;

    /// Two archives. Velero restored the small one only.
    pub(crate) fn sample() -> Vec<Restores> {
        let meanwhile = |wall_s: f64| MachineUsage {
            api_server: wall_s,
            etcd: wall_s / 5.0,
            controllers: wall_s / 10.0,
            idle: wall_s / 50.0,
        };
        let creation = |in_flight, wall_s, items| CreationMeasurement {
            wall_s,
            cpu_s: wall_s / 10.0,
            in_flight,
            items,
            existing: 7,
            machine_usage: meanwhile(wall_s),
        };
        let run = |wall_s: f64, items| RestoreMeasurement {
            wall_s,
            cpu_s: wall_s / 4.0,
            peak_rss_bytes: 48 << 20,
            items,
            warnings: 1,
            api_requests: 9000,
            machine_usage: meanwhile(wall_s),
        };
        vec![
            Restores {
                archive: archive(8000),
                trial_creations: vec![creation(16, 21.0, 9500), creation(32, 20.0, 9500)],
                creations: vec![20.0, 22.0, 18.0]
                    .into_iter()
                    .map(|wall_s| creation(32, wall_s, 9500))
                    .collect(),
                runs: vec![(
                    Contender::Bowline,
                    vec![run(26.0, 9600), run(24.0, 9600), run(25.0, 9600)],
                )],
            },
            Restores {
                archive: archive(800),
                trial_creations: vec![creation(16, 2.0, 950)],
                creations: vec![creation(16, 2.0, 950)],
                runs: vec![
                    (Contender::Bowline, vec![run(3.0, 1000)]),
                    (Contender::Velero, vec![run(36.0, 1200)]),
                ],
            },
        ]
    }

    #[test]
    fn table_names_the_object_count_of_each_figure() {
        let expected = "\
restore by                   objects      wall      CPU   peak memory   API server CPU   etcd CPU   controllers CPU   items   ms/item   × raw create   × bowline
(raw create, 32 at a time)      8000   20.00 s   2.00 s             -          20.00 s     4.00 s            2.00 s    9500      2.11           1.00        0.80
bowline                         8000   25.00 s   6.25 s        48 MiB          25.00 s     5.00 s            2.50 s    9600      2.60           1.25        1.00
(raw create, 16 at a time)       800    2.00 s   0.20 s             -           2.00 s     0.40 s            0.20 s     950      2.11           1.00        0.67
bowline                          800    3.00 s   0.75 s        48 MiB           3.00 s     0.60 s            0.30 s    1000      3.00           1.50        1.00
velero                           800   36.00 s   9.00 s        48 MiB          36.00 s     7.20 s            3.60 s    1200     30.00          18.00       12.00
";
        assert_eq!(table(&sample()), expected);
    }

    #[test]
    fn bottlenecks_are_reported_as_shares_of_the_machine() {
        let text = limits(&sample(), 2);
        let first = text.lines().nth(1).unwrap();
        let expected = "bowline, 8000 objects, 2 cores: API server 50 %, etcd 10 %, \
                        controllers 5 %, itself 12 %, others 22 %, idle 1 %";
        assert_eq!(first, expected);
        assert_eq!(text.lines().count(), 5);
        let busy = shares(1.0, 5.0, MachineUsage::default(), 2);
        assert!(busy.ends_with("others 0 %, idle 0 %"), "{busy}");
    }

    #[test]
    fn json_has_the_largest_archive_of_each_contender_and_all_archives() {
        let mut json = json!({"bowline": {"backup": {"wall_s": 1.0}}});
        add_restores_json(&mut json, &sample());
        let number = |pointer: &str| json.pointer(pointer).and_then(Value::as_f64);
        for (pointer, expected) in [
            ("/raw_create/wall_s", 20.0),
            ("/raw_create/objects", 8000.0),
            ("/raw_create/in_flight", 32.0),
            ("/raw_create/tried/0/in_flight", 16.0),
            ("/raw_create/rounds/2/wall_s", 18.0),
            ("/bowline/backup/wall_s", 1.0),
            ("/bowline/restore/wall_s", 25.0),
            ("/bowline/restore/cpu_s", 6.25),
            ("/bowline/restore/peak_rss_bytes", 50_331_648.0),
            ("/bowline/restore/items", 9600.0),
            ("/bowline/restore/objects", 8000.0),
            ("/bowline/restore/apiserver_cpu_s", 25.0),
            ("/bowline/restore/etcd_cpu_s", 5.0),
            ("/bowline/restore/controllers_cpu_s", 2.5),
            ("/bowline/restore/idle_s", 0.5),
            ("/bowline/restore/rounds/1/wall_s", 24.0),
            ("/velero/restore/wall_s", 36.0),
            ("/velero/restore/objects", 800.0),
            ("/restores/1/objects", 800.0),
            ("/restores/1/archive/items", 960.0),
            ("/restores/1/bowline/wall_s", 3.0),
            ("/restores/1/velero/wall_s", 36.0),
            ("/ratios/bowline_to_raw_create", 1.25),
            ("/ratios/velero_to_bowline", 12.0),
        ] {
            assert_eq!(number(pointer), Some(expected), "{pointer} in {json:#}");
        }
        // 30 ms for each of Velero's items, and 2.6 ms for Bowline's.
        let per_item = number("/ratios/velero_to_bowline_per_item").unwrap();
        assert!((per_item - 11.52).abs() < 1e-9, "{per_item}");
        assert_eq!(json.pointer("/ratios/velero_tuned_to_bowline"), None);
    }

    #[test]
    fn figure_without_counterpart_has_no_ratio() {
        let mut alone = sample();
        alone.remove(0);
        alone[0].runs.remove(0);
        assert_eq!(ratios(&alone), json!({}));
        assert!(table(&alone).ends_with("18.00           -\n"), "{}", table(&alone));
    }
}
