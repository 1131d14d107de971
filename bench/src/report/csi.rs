//! Backups with CSI snapshots: their durations, and the freeze windows of pods.

use serde_json::{Value, json};

use super::{aligned, mebibytes, median, median_count, ratio, seconds, with_rounds};
use crate::contender::Contender;
use crate::csi::{CsiBackupMeasurement, CsiBackups};

const HEADINGS: [&str; 10] = [
    "CSI backup by",
    "claims",
    "pods",
    "wall",
    "pod frozen",
    "longest",
    "CPU",
    "peak memory",
    "× raw snapshots",
    "× bowline",
];

impl CsiBackupMeasurement {
    /// The median of each figure.
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure).collect());
        let reported: Vec<f64> =
            rounds.iter().filter_map(|round| round.reported_freeze_window_ms).collect();
        Self {
            wall_s: of(|round| round.wall_s),
            freeze_window_ms: of(|round| round.freeze_window_ms),
            freeze_window_max_ms: of(|round| round.freeze_window_max_ms),
            reported_freeze_window_ms: (!reported.is_empty()).then(|| median(reported)),
            cpu_s: of(|round| round.cpu_s),
            peak_rss_bytes: median_count(rounds.iter().map(|round| round.peak_rss_bytes)),
            apiserver_cpu_s: of(|round| round.apiserver_cpu_s),
            left_after_deletion: median_count(rounds.iter().map(|round| round.left_after_deletion)),
        }
    }
}

impl CsiBackups {
    fn medians(&self) -> Vec<(Contender, CsiBackupMeasurement)> {
        self.runs
            .iter()
            .map(|(contender, rounds)| (*contender, CsiBackupMeasurement::median(rounds)))
            .collect()
    }

    fn bowline(&self) -> Option<CsiBackupMeasurement> {
        let of_us =
            |(contender, _): &&(Contender, CsiBackupMeasurement)| *contender == Contender::Bowline;
        self.medians().iter().find(of_us).map(|(_, run)| *run)
    }

    /// Format that other programs rely on: `raw_snapshots` and `<contender>.csi`, each with its medians and, below
    /// `rounds`, the single values.
    pub(crate) fn json(&self, cores: usize) -> Value {
        let walls: Vec<Value> = self.raw.iter().map(|wall_s| json!({"wall_s": wall_s})).collect();
        let floor = median(self.raw.clone());
        let mut all = json!({
            "load": "csi",
            "claims": self.claims,
            "pods": self.pods,
            "cores": cores,
            "raw_snapshots": {"wall_s": floor, "rounds": walls},
            "ratios": {},
        });
        for (contender, rounds) in &self.runs {
            all[contender.name()]["csi"] =
                with_rounds(CsiBackupMeasurement::median(rounds), rounds);
        }
        if let Some(bowline) = self.bowline() {
            all["ratios"]["bowline_to_raw_snapshots"] = json!(bowline.wall_s / floor);
            for (contender, theirs) in self.medians() {
                if contender != Contender::Bowline {
                    let name = contender.name();
                    all["ratios"][format!("{name}_to_bowline")] =
                        json!(theirs.wall_s / bowline.wall_s);
                    all["ratios"][format!("{name}_to_bowline_freeze")] =
                        json!(theirs.freeze_window_ms / bowline.freeze_window_ms);
                }
            }
        }
        all
    }

    /// A row for the floor and for each contender, with medians.
    pub(crate) fn table(&self) -> String {
        let (claims, pods) = (self.claims.to_string(), self.pods.to_string());
        let floor = median(self.raw.clone());
        let bowline = self.bowline().map(|run| run.wall_s);
        let none = || "-".to_owned();
        let mut rows = vec![
            HEADINGS.map(str::to_owned),
            [
                "(raw snapshots)".to_owned(),
                claims.clone(),
                none(),
                seconds(floor),
                none(),
                none(),
                none(),
                none(),
                ratio(floor, Some(floor)),
                ratio(floor, bowline),
            ],
        ];
        for (contender, run) in self.medians() {
            rows.push([
                contender.name().to_owned(),
                claims.clone(),
                pods.clone(),
                seconds(run.wall_s),
                milliseconds(run.freeze_window_ms),
                milliseconds(run.freeze_window_max_ms),
                seconds(run.cpu_s),
                mebibytes(run.peak_rss_bytes),
                ratio(run.wall_s, Some(floor)),
                ratio(run.wall_s, bowline),
            ]);
        }
        aligned(&rows)
    }
}

fn milliseconds(value: f64) -> String {
    format!("{value:.0} ms")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Three rounds of two contenders.
    pub(crate) fn sample() -> CsiBackups {
        let run = |wall_s: f64, reported| CsiBackupMeasurement {
            wall_s,
            freeze_window_ms: wall_s * 100.0,
            freeze_window_max_ms: wall_s * 200.0,
            reported_freeze_window_ms: reported,
            cpu_s: wall_s / 10.0,
            peak_rss_bytes: 32 << 20,
            apiserver_cpu_s: 0.5,
            left_after_deletion: 0,
        };
        CsiBackups {
            claims: 50,
            pods: 10,
            raw: vec![1.0, 3.0, 2.0],
            runs: vec![
                (
                    Contender::Bowline,
                    vec![run(5.0, Some(510.0)), run(4.0, Some(410.0)), run(6.0, Some(610.0))],
                ),
                (Contender::Velero, vec![run(300.0, None), run(250.0, None), run(350.0, None)]),
            ],
        }
    }

    #[test]
    fn table_has_medians_of_times_and_freeze_windows() {
        let expected = "\
CSI backup by     claims   pods       wall   pod frozen    longest       CPU   peak memory   × raw snapshots   × bowline
(raw snapshots)       50      -     2.00 s            -          -         -             -              1.00        0.40
bowline               50     10     5.00 s       500 ms    1000 ms    0.50 s        32 MiB              2.50        1.00
velero                50     10   300.00 s     30000 ms   60000 ms   30.00 s        32 MiB            150.00       60.00
";
        assert_eq!(sample().table(), expected);
    }

    #[test]
    fn json_shape_is_stable() {
        let json = sample().json(2);
        let number = |pointer: &str| json.pointer(pointer).and_then(Value::as_f64);
        for (pointer, expected) in [
            ("/claims", 50.0),
            ("/pods", 10.0),
            ("/cores", 2.0),
            ("/raw_snapshots/wall_s", 2.0),
            ("/raw_snapshots/rounds/1/wall_s", 3.0),
            ("/bowline/csi/wall_s", 5.0),
            ("/bowline/csi/freeze_window_ms", 500.0),
            ("/bowline/csi/freeze_window_max_ms", 1000.0),
            ("/bowline/csi/reported_freeze_window_ms", 510.0),
            ("/bowline/csi/rounds/2/wall_s", 6.0),
            ("/velero/csi/wall_s", 300.0),
            ("/velero/csi/freeze_window_ms", 30_000.0),
            ("/ratios/velero_to_bowline", 60.0),
            ("/ratios/velero_to_bowline_freeze", 60.0),
            ("/ratios/bowline_to_raw_snapshots", 2.5),
        ] {
            assert_eq!(number(pointer), Some(expected), "{pointer} in {json:#}");
        }
        assert_eq!(json.pointer("/velero/csi/reported_freeze_window_ms"), None);
        assert_eq!(json.pointer("/velero_tuned"), None);
    }

    #[test]
    fn skipped_contender_is_not_compared() {
        let mut alone = sample();
        alone.runs.remove(0);
        assert_eq!(alone.json(2)["ratios"], json!({}));
        assert!(alone.table().ends_with("150.00           -\n"), "{}", alone.table());
    }
}
