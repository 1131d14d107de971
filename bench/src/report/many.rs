//! A server among many resources: its figures, and the limits that they have to meet.

use serde_json::{Value, json};

use super::{aligned, mebibytes, median};
use crate::many::{IdleUsage, ManyMeasurement, ResourceCounts};

const HEADINGS: [&str; 4] = ["figure", "value", "limit", "verdict"];

/// Limits, each in the unit of its figure.
const MAX_IDLE_CPU_PERCENT: f64 = 1.0;
const MAX_BACKUP_START_S: f64 = 2.0;
const MAX_SCRAPE_S: f64 = 0.1;
const MAX_LIST_S: f64 = 1.0;

/// Figure with a limit. A figure of several rounds is the longest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Check {
    name: &'static str,
    value: f64,
    limit: f64,
    unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    PercentOfCore,
    Seconds,
    Milliseconds,
}

impl Unit {
    /// Text of a value, which is in seconds if it is a time.
    fn text(self, value: f64) -> String {
        match self {
            Self::PercentOfCore => format!("{value:.2} %"),
            Self::Seconds => format!("{value:.2} s"),
            Self::Milliseconds => format!("{:.1} ms", value * 1000.0),
        }
    }
}

impl Check {
    fn is_met(&self) -> bool {
        self.value < self.limit
    }
}

impl IdleUsage {
    fn cpu_percent(&self) -> f64 {
        100.0 * self.cpu_s / self.span_s
    }
}

impl ManyMeasurement {
    fn checks(&self) -> [Check; 4] {
        let longest = |rounds: &[f64]| rounds.iter().copied().fold(0.0, f64::max);
        let check = |name, value, limit, unit| Check { name, value, limit, unit };
        [
            check(
                "CPU of the idle server",
                self.idle.cpu_percent(),
                MAX_IDLE_CPU_PERCENT,
                Unit::PercentOfCore,
            ),
            check(
                "new Backup to InProgress",
                longest(&self.backup_starts_s),
                MAX_BACKUP_START_S,
                Unit::Seconds,
            ),
            check("answer of /metrics", longest(&self.scrapes_s), MAX_SCRAPE_S, Unit::Milliseconds),
            check("bowline backup get", longest(&self.lists_s), MAX_LIST_S, Unit::Seconds),
        ]
    }

    /// Format that other programs rely on.
    pub(crate) fn json(&self, cores: usize) -> Value {
        let ResourceCounts { backups, schedules, restores } = self.counts;
        let limits = self.checks().map(|check| {
            json!({
                "name": check.name,
                "value": check.value,
                "limit": check.limit,
                "is_met": check.is_met(),
            })
        });
        let rounds =
            |rounds: &[f64]| json!({"median_s": median(rounds.to_vec()), "rounds": rounds});
        json!({
            "backups": backups,
            "schedules": schedules,
            "restores": restores,
            "cores": cores,
            "idle": {
                "span_s": self.idle.span_s,
                "cpu_s": self.idle.cpu_s,
                "cpu_percent": self.idle.cpu_percent(),
                "apiserver_cpu_s": self.idle.api_server_cpu_s,
                "rss_bytes": self.idle.rss_bytes,
            },
            "peak_rss_bytes": self.peak_rss_bytes,
            "backup_start": rounds(&self.backup_starts_s),
            "metrics": rounds(&self.scrapes_s),
            "metrics_bytes": self.metrics_bytes,
            "backup_get": rounds(&self.lists_s),
            "limits": limits,
        })
    }

    /// A row for each figure. Those with a limit show whether they meet it.
    pub(crate) fn table(&self) -> String {
        let ResourceCounts { backups, schedules, restores } = self.counts;
        let plain =
            |name: &str, value: String| [name.to_owned(), value, "-".to_owned(), "-".to_owned()];
        let mut rows = vec![
            HEADINGS.map(str::to_owned),
            plain("Backups", backups.to_string()),
            plain("Schedules", schedules.to_string()),
            plain("Restores", restores.to_string()),
        ];
        rows.extend(self.checks().map(|check| {
            [
                check.name.to_owned(),
                check.unit.text(check.value),
                format!("< {}", check.unit.text(check.limit)),
                if check.is_met() { "pass" } else { "FAIL" }.to_owned(),
            ]
        }));
        rows.push(plain("memory of the idle server", mebibytes(self.idle.rss_bytes)));
        rows.push(plain("peak memory since the start", mebibytes(self.peak_rss_bytes)));
        aligned(&rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ManyMeasurement {
        ManyMeasurement {
            counts: ResourceCounts { backups: 5000, schedules: 500, restores: 1000 },
            idle: IdleUsage {
                span_s: 200.0,
                cpu_s: 1.0,
                api_server_cpu_s: 9.0,
                rss_bytes: 60 << 20,
            },
            peak_rss_bytes: 80 << 20,
            backup_starts_s: vec![0.25, 2.0, 0.5],
            scrapes_s: vec![0.05, 0.02, 0.03],
            metrics_bytes: 1000,
            lists_s: vec![0.5, 0.75],
        }
    }

    #[test]
    fn longest_round_has_to_meet_its_limit() {
        let expected = "\
figure                           value       limit   verdict
Backups                           5000           -         -
Schedules                          500           -         -
Restores                          1000           -         -
CPU of the idle server          0.50 %    < 1.00 %      pass
new Backup to InProgress        2.00 s    < 2.00 s      FAIL
answer of /metrics             50.0 ms  < 100.0 ms      pass
bowline backup get              0.75 s    < 1.00 s      pass
memory of the idle server       60 MiB           -         -
peak memory since the start     80 MiB           -         -
";
        let squeezed = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(squeezed(&sample().table()), squeezed(expected));
    }

    #[test]
    fn json_shape_is_stable() {
        let json = sample().json(2);
        let number = |pointer: &str| json.pointer(pointer).and_then(Value::as_f64);
        for (pointer, expected) in [
            ("/backups", 5000.0),
            ("/schedules", 500.0),
            ("/restores", 1000.0),
            ("/idle/cpu_percent", 0.5),
            ("/peak_rss_bytes", 83_886_080.0),
            ("/backup_start/median_s", 0.5),
            ("/backup_start/rounds/1", 2.0),
            ("/metrics/median_s", 0.03),
            ("/backup_get/median_s", 0.625),
            ("/limits/0/limit", 1.0),
            ("/limits/2/value", 0.05),
        ] {
            assert_eq!(number(pointer), Some(expected), "{pointer} in {json:#}");
        }
        let met: Vec<&Value> =
            json["limits"].as_array().unwrap().iter().map(|limit| &limit["is_met"]).collect();
        assert_eq!(met, [true, false, true, true]);
    }
}
