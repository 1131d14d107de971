//! Figures as a picture: bars for the medians, a dot for each round.

pub(crate) mod growth;

use std::fmt::Write as _;

use crate::backup::{BackupMeasurement, Backups};
use crate::contender::Contender;
use crate::create::CreationMeasurement;
use crate::csi;
use crate::raw::ListingMeasurement;
use crate::report::{Results, median};
use crate::restore::{RestoreMeasurement, Restores};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 80.0;
const TOP: f64 = 56.0;
const ROW: f64 = 30.0;
const BAR: f64 = 18.0;
const FLOOR_COLOR: &str = "#9aa0a6";
/// Height of a panel besides its rows: heading, axis and its label.
const PANEL_EXTRA: f64 = 84.0;

/// One row of a panel.
struct Bar {
    name: &'static str,
    color: &'static str,
    rounds: Vec<f64>,
}

/// Some bars over one axis.
struct Panel {
    title: String,
    unit: &'static str,
    bars: Vec<Bar>,
}

/// Picture as a complete document.
pub(crate) fn svg(results: &Results) -> String {
    draw(&panels(results))
}

/// The same for backups with CSI snapshots.
pub(crate) fn csi_svg(backups: &csi::CsiBackups) -> String {
    draw(&csi_panels(backups))
}

fn draw(panels: &[Panel]) -> String {
    let height = TOP + panels.iter().map(Panel::height).sum::<f64>();
    let mut svg = start_document(height, "Bars: medians, dots: rounds");
    let mut top = TOP;
    for panel in panels {
        panel.draw(&mut svg, top);
        top += panel.height();
    }
    svg += "</svg>\n";
    svg
}

/// Beginning of a document, with a legend at the top.
fn start_document(height: f64, legend: &str) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\" \
         fill=\"#222\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    draw_text(&mut svg, LEFT, 28.0, "start", " font-size=\"16\"", legend);
    svg
}

fn panels(results: &Results) -> Vec<Panel> {
    let mut panels = Vec::new();
    if let Some(backups) = &results.backups {
        panels.extend(backup_panels(backups, results.load.len()));
    }
    panels.extend(results.restores.iter().flat_map(restore_panels));
    panels
}

fn backup_panels(Backups { listings, runs }: &Backups, objects: usize) -> [Panel; 3] {
    let wall = |listing: &ListingMeasurement| listing.wall_s;
    let floor =
        Bar { name: "raw list", color: FLOOR_COLOR, rounds: listings.iter().map(wall).collect() };
    [
        Panel {
            title: format!("Backup of {objects} objects: wall time"),
            unit: "seconds",
            bars: [floor]
                .into_iter()
                .chain(bars(runs, |run: &BackupMeasurement| run.wall_s))
                .collect(),
        },
        Panel {
            title: format!("Backup of {objects} objects: CPU time of the server and its plugins"),
            unit: "seconds",
            bars: bars(runs, |run: &BackupMeasurement| run.cpu_s).collect(),
        },
        Panel {
            title: format!(
                "Backup of {objects} objects: peak memory of the server and its plugins"
            ),
            unit: "MiB",
            bars: bars(runs, |run: &BackupMeasurement| mebibytes(run.peak_rss_bytes)).collect(),
        },
    ]
}

fn restore_panels(restores: &Restores) -> [Panel; 2] {
    let Restores { archive, creations, runs, .. } = restores;
    let objects = archive.load.len();
    let wall = |creation: &CreationMeasurement| creation.wall_s;
    let floor = Bar {
        name: "raw create",
        color: FLOOR_COLOR,
        rounds: creations.iter().map(wall).collect(),
    };
    let walls = bars(runs, |run: &RestoreMeasurement| run.wall_s);
    let memory = bars(runs, |run: &RestoreMeasurement| mebibytes(run.peak_rss_bytes));
    [
        Panel {
            title: format!("Restore of {objects} objects: wall time"),
            unit: "seconds",
            bars: [floor].into_iter().chain(walls).collect(),
        },
        Panel {
            title: format!(
                "Restore of {objects} objects: peak memory of the server and its plugins"
            ),
            unit: "MiB",
            bars: memory.collect(),
        },
    ]
}

fn csi_panels(backups: &csi::CsiBackups) -> [Panel; 3] {
    let csi::CsiBackups { claims, pods, raw, runs } = backups;
    let floor = Bar { name: "raw snapshots", color: FLOOR_COLOR, rounds: raw.clone() };
    let panel = |figure: &str, unit, bars| Panel {
        title: format!("Backup of {claims} claims of {pods} pods: {figure}"),
        unit,
        bars,
    };
    let walls = bars(runs, |run: &csi::CsiBackupMeasurement| run.wall_s);
    [
        panel("wall time", "seconds", [floor].into_iter().chain(walls).collect()),
        panel(
            "for how long a pod is frozen",
            "seconds, median of the pods",
            bars(runs, |run: &csi::CsiBackupMeasurement| run.freeze_window_ms / 1000.0).collect(),
        ),
        panel(
            "for how long the unluckiest pod is frozen",
            "seconds",
            bars(runs, |run: &csi::CsiBackupMeasurement| run.freeze_window_max_ms / 1000.0)
                .collect(),
        ),
    ]
}

/// One bar for each contender.
fn bars<T>(runs: &[(Contender, Vec<T>)], figure: fn(&T) -> f64) -> impl Iterator<Item = Bar> {
    runs.iter().map(move |(contender, rounds)| Bar {
        name: contender.name(),
        color: color(*contender),
        rounds: rounds.iter().map(figure).collect(),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a picture for people")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn color(contender: Contender) -> &'static str {
    match contender {
        Contender::Bowline => "#0b7a75",
        Contender::Baseline => "#7a9e9c",
        Contender::Velero => "#c8553d",
        Contender::VeleroTuned => "#e3a857",
    }
}

impl Panel {
    #[expect(clippy::cast_precision_loss, reason = "a handful of bars")]
    fn height(&self) -> f64 {
        PANEL_EXTRA + ROW * self.bars.len() as f64
    }

    fn draw(&self, svg: &mut String, top: f64) {
        let largest = self.bars.iter().flat_map(|bar| &bar.rounds).copied().fold(0.0, f64::max);
        let step = tick_step(largest);
        let end = step * (largest / step).ceil().max(1.0);
        let x = |value: f64| LEFT + value / end * (WIDTH - LEFT - RIGHT);
        let first_row = top + 22.0;
        let axis = top + self.height() - PANEL_EXTRA + 26.0;

        draw_text(svg, LEFT, top + 10.0, "start", " font-weight=\"bold\"", &self.title);
        let mut tick = 0.0;
        while tick <= end + step / 2.0 {
            let at = x(tick);
            let _ = writeln!(
                svg,
                "<path d=\"M{at:.1} {first_row:.1}V{axis:.1}\" stroke=\"#ddd\" fill=\"none\"/>"
            );
            let decimals = if step < 0.1 { 2 } else { usize::from(step < 1.0) };
            draw_text(svg, at, axis + 16.0, "middle", "", &format!("{tick:.decimals$}"));
            tick += step;
        }
        draw_text(svg, x(end / 2.0), axis + 33.0, "middle", " fill=\"#555\"", self.unit);

        let mut row = first_row + 4.0;
        for bar in &self.bars {
            let (middle, center) = (median(bar.rounds.clone()), row + BAR / 2.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{row:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{}\"/>",
                x(middle) - LEFT,
                bar.color
            );
            for round in &bar.rounds {
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{center:.1}\" r=\"2.5\" fill=\"#222\"/>",
                    x(*round)
                );
            }
            draw_text(svg, LEFT - 8.0, center + 4.5, "end", "", bar.name);
            let furthest = bar.rounds.iter().copied().fold(middle, f64::max);
            let value = if middle < 10.0 { format!("{middle:.2}") } else { format!("{middle:.1}") };
            draw_text(svg, x(furthest) + 8.0, center + 4.5, "start", "", &value);
            row += ROW;
        }
    }
}

/// Distance between two marks: one, two or five times a power of ten, for about five marks.
fn tick_step(largest: f64) -> f64 {
    if largest <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf((largest / 5.0).log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| largest / step <= 6.0)
        .unwrap_or(10.0 * power)
}

/// All texts are constants or numbers and need no escapes.
fn draw_text(svg: &mut String, x: f64, y: f64, anchor: &str, attributes: &str, content: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{attributes}>{content}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    /// Minimal XML check: every element is closed, every attribute quoted.
    pub(super) fn check_svg(svg: &str) -> usize {
        let mut open = Vec::new();
        let mut elements = 0;
        for part in svg.split('<').skip(1) {
            let (tag, rest) = part.split_once('>').expect("a tag that ends");
            assert!(!rest.contains('>') && !rest.contains('&'), "{rest}");
            assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
                continue;
            }
            elements += 1;
            if !tag.ends_with('/') {
                open.push(tag.split_whitespace().next().unwrap());
            }
        }
        assert!(open.is_empty(), "{open:?}");
        elements
    }

    #[test]
    fn svg_is_well_formed_and_shows_everything() {
        let svg = svg(&sample());
        assert!(check_svg(&svg) > 40, "{svg}");
        for expected in ["Backup of 800 objects", "raw list", "bowline", "velero", "seconds", "MiB"]
        {
            assert!(svg.contains(expected), "{expected}");
        }
        // The floor in one panel, two contenders in three, three rounds of each.
        assert_eq!(svg.matches("<circle").count(), (1 + 2 * 3) * 3);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn restores_have_panels_for_each_archive() {
        let restores = crate::report::restores::tests::sample();
        let results = Results { backups: None, restores, ..sample() };
        let svg = svg(&results);
        check_svg(&svg);
        for expected in
            ["Restore of 8000 objects: wall", "Restore of 800 objects: peak", "raw create"]
        {
            assert!(svg.contains(expected), "{expected}");
        }
        assert!(!svg.contains("Backup of"), "{svg}");
        // The floor once and the contender twice, three rounds each; and one round of the small one.
        assert_eq!(svg.matches("<circle").count(), 3 * 3 + (1 + 2 * 2));
    }

    #[test]
    fn csi_snapshots_have_panels_for_time_and_for_freezes() {
        let svg = csi_svg(&crate::report::csi::tests::sample());
        check_svg(&svg);
        for expected in ["Backup of 50 claims of 10 pods: wall time", "raw snapshots", "unluckiest"]
        {
            assert!(svg.contains(expected), "{expected}");
        }
        // The floor in one panel, two contenders in three, three rounds of each.
        assert_eq!(svg.matches("<circle").count(), (1 + 2 * 3) * 3);
    }

    #[test]
    fn empty_svg_is_well_formed() {
        let mut nothing = sample();
        nothing.backups = Some(Backups { listings: Vec::new(), runs: Vec::new() });
        let svg = svg(&nothing);
        check_svg(&svg);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn axis_ticks_are_few_and_round() {
        for (largest, step) in [(0.0, 1.0), (0.7, 0.2), (6.0, 1.0), (61.0, 20.0), (340.0, 100.0)] {
            assert!((tick_step(largest) - step).abs() < 1e-9, "{largest}: {}", tick_step(largest));
        }
    }
}
