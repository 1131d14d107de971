//! Cost of this build relative to another one: a row for backups and one for each restored archive.

use serde_json::{Value, json};

use super::{Results, aligned};
use crate::backup::BackupMeasurement;
use crate::contender::Contender;
use crate::restore::RestoreMeasurement;

/// Compared figures.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    wall_s: f64,
    cpu_s: f64,
    api_requests: u64,
}

impl From<BackupMeasurement> for Cost {
    fn from(run: BackupMeasurement) -> Self {
        Self { wall_s: run.wall_s, cpu_s: run.cpu_s, api_requests: run.api_requests }
    }
}

impl From<RestoreMeasurement> for Cost {
    fn from(run: RestoreMeasurement) -> Self {
        Self { wall_s: run.wall_s, cpu_s: run.cpu_s, api_requests: run.api_requests }
    }
}

/// Cost of this build as a multiple of the other's.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ratio {
    wall: f64,
    cpu: f64,
    api_requests: f64,
}

impl Ratio {
    #[expect(clippy::cast_precision_loss, reason = "requests, far below 2^52")]
    fn between(this_build: Cost, baseline: Cost) -> Self {
        Self {
            wall: this_build.wall_s / baseline.wall_s,
            cpu: this_build.cpu_s / baseline.cpu_s,
            api_requests: this_build.api_requests as f64 / (baseline.api_requests.max(1) as f64),
        }
    }
}

/// Medians of both builds, if both were measured.
fn pair<T: Copy>(runs: &[(Contender, Vec<T>)], median: fn(&[T]) -> T) -> Option<(Cost, Cost)>
where
    Cost: From<T>,
{
    let of = |wanted: Contender| {
        let found = runs.iter().find(|(contender, _)| *contender == wanted);
        found.map(|(_, rounds)| Cost::from(median(rounds)))
    };
    Some((of(Contender::Bowline)?, of(Contender::Baseline)?))
}

/// Ratios, largest archive first.
fn ratios(results: &Results) -> Vec<(String, Ratio)> {
    let backups = results.backups.iter().filter_map(|backups| {
        let (this_build, baseline) = pair(&backups.runs, BackupMeasurement::median)?;
        Some(("backup".to_owned(), Ratio::between(this_build, baseline)))
    });
    let restores = results.restores.iter().filter_map(|restores| {
        let (this_build, baseline) = pair(&restores.runs, RestoreMeasurement::median)?;
        let name = format!("restore of {}", restores.archive.load.len());
        Some((name, Ratio::between(this_build, baseline)))
    });
    backups.chain(restores).collect()
}

/// Ratios for programs. None without another build.
pub(super) fn json(results: &Results) -> Option<Value> {
    let ratios = ratios(results);
    let entry = |(name, ratio): &(String, Ratio)| {
        json!({
            "task": name,
            "wall": ratio.wall,
            "cpu": ratio.cpu,
            "api_requests": ratio.api_requests,
        })
    };
    (!ratios.is_empty()).then(|| ratios.iter().map(entry).collect())
}

/// Ratios for people. None without another build.
pub(super) fn table(results: &Results) -> Option<String> {
    let ratios = ratios(results);
    let heading = ["bowline to baseline", "wall", "CPU", "API requests"].map(str::to_owned);
    let figure = |value: f64| format!("{value:.3}");
    let row = |(name, ratio): (String, Ratio)| {
        [name, figure(ratio.wall), figure(ratio.cpu), figure(ratio.api_requests)]
    };
    let is_empty = ratios.is_empty();
    let rows: Vec<_> = std::iter::once(heading).chain(ratios.into_iter().map(row)).collect();
    (!is_empty).then(|| aligned(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn builds_are_compared_by_median() {
        let mut results = sample();
        assert_eq!((json(&results), table(&results)), (None, None));
        let backups = results.backups.as_mut().unwrap();
        let mut other = backups.runs[0].clone();
        other.0 = Contender::Baseline;
        for run in &mut other.1 {
            run.wall_s *= 2.0;
            run.api_requests *= 4;
        }
        backups.runs.push(other);
        let expected = "\
bowline to baseline    wall     CPU   API requests
backup                0.500   1.000          0.250
";
        assert_eq!(table(&results).unwrap(), expected);
        assert_eq!(json(&results).unwrap()[0]["task"], "backup");
    }
}
