//! Cost against size: a line through the medians of each contender, a dot for each round.

use std::fmt::Write as _;

use super::{FLOOR_COLOR, WIDTH, color, draw_text, mebibytes, start_document, tick_step};
use crate::backup::BackupMeasurement;
use crate::contender::Contender;
use crate::growth::{Growth, SizedBackups};
use crate::raw::ListingMeasurement;
use crate::report::median;

const LEFT: f64 = 80.0;
/// Room for the names of the lines, which are at their ends.
const RIGHT: f64 = 120.0;
const TOP: f64 = 56.0;
const CHART_HEIGHT: f64 = 210.0;
/// Height of a chart with its heading, its axis and the labels of the axis.
const CHART_PITCH: f64 = 300.0;
/// Smallest distance between the names of two lines.
const NAME_PITCH: f64 = 15.0;

/// One line of a chart.
struct Line {
    name: &'static str,
    color: &'static str,
    /// For each number of objects the values of all rounds.
    points: Vec<(f64, Vec<f64>)>,
}

/// Some lines over the number of objects.
struct Chart {
    title: &'static str,
    unit: &'static str,
    lines: Vec<Line>,
}

/// Picture as a complete document.
pub(crate) fn svg(growth: &Growth) -> String {
    let floor = Line {
        name: "raw list",
        color: FLOOR_COLOR,
        points: points(growth, |sized| {
            sized
                .backups
                .listings
                .iter()
                .map(|listing: &ListingMeasurement| listing.wall_s)
                .collect()
        }),
    };
    let charts = [
        Chart {
            title: "Wall time of a backup",
            unit: "seconds",
            lines: [floor].into_iter().chain(lines(growth, |run| run.wall_s)).collect(),
        },
        Chart {
            title: "CPU time of the server and its plugins",
            unit: "seconds",
            lines: lines(growth, |run| run.cpu_s).collect(),
        },
        Chart {
            title: "Peak memory of the server and its plugins",
            unit: "MiB",
            lines: lines(growth, |run| mebibytes(run.peak_rss_bytes)).collect(),
        },
    ];
    let mut svg = start_document(TOP + CHART_PITCH * 3.0, "Lines: medians, dots: rounds");
    let mut top = TOP;
    for chart in &charts {
        chart.draw(&mut svg, top);
        top += CHART_PITCH;
    }
    svg += "</svg>\n";
    svg
}

/// One line for each contender of the smallest size.
fn lines(growth: &Growth, figure: fn(&BackupMeasurement) -> f64) -> impl Iterator<Item = Line> {
    let runs = growth.sizes.first().map_or(&[][..], |sized| sized.backups.runs.as_slice());
    runs.iter().map(move |(contender, _)| Line {
        name: contender.name(),
        color: color(*contender),
        points: points(growth, |sized| rounds_of(sized, *contender).map(figure).collect()),
    })
}

fn rounds_of(sized: &SizedBackups, wanted: Contender) -> impl Iterator<Item = &BackupMeasurement> {
    let runs = sized.backups.runs.iter().filter(move |(contender, _)| *contender == wanted);
    runs.flat_map(|(_, rounds)| rounds)
}

#[expect(clippy::cast_precision_loss, reason = "a picture for people")]
fn points(growth: &Growth, rounds: impl Fn(&SizedBackups) -> Vec<f64>) -> Vec<(f64, Vec<f64>)> {
    growth.sizes.iter().map(|sized| (sized.load.len() as f64, rounds(sized))).collect()
}

/// Linear axis from zero.
#[derive(Clone, Copy)]
struct Axis {
    step: f64,
    end: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Axis that shows values up to this one, between two positions.
    fn new(largest: f64, from: f64, to: f64) -> Self {
        let step = tick_step(largest);
        Self { step, end: step * (largest / step).ceil().max(1.0), from, to }
    }

    fn position(&self, value: f64) -> f64 {
        self.from + value / self.end * (self.to - self.from)
    }

    /// Values with a mark, and their texts.
    fn ticks(self) -> impl Iterator<Item = (f64, String)> {
        let decimals = if self.step < 0.1 { 2 } else { usize::from(self.step < 1.0) };
        std::iter::successors(Some(0.0), move |tick| Some(tick + self.step))
            .take_while(move |tick| *tick <= self.end + self.step / 2.0)
            .map(move |tick| (tick, format!("{tick:.decimals$}")))
    }
}

impl Chart {
    fn draw(&self, svg: &mut String, top: f64) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let largest = points().flat_map(|(_, rounds)| rounds).copied().fold(0.0, f64::max);
        let objects = points().map(|(objects, _)| *objects).fold(0.0, f64::max);
        let (upper, lower) = (top + 22.0, top + 22.0 + CHART_HEIGHT);
        let x = Axis::new(objects, LEFT, WIDTH - RIGHT);
        let y = Axis::new(largest, lower, upper);

        draw_text(svg, LEFT, top + 10.0, "start", " font-weight=\"bold\"", self.title);
        for (tick, text) in x.ticks() {
            let at = x.position(tick);
            grid_line(svg, &format!("M{at:.1} {upper:.1}V{lower:.1}"));
            draw_text(svg, at, lower + 16.0, "middle", "", &text);
        }
        for (tick, text) in y.ticks() {
            let at = y.position(tick);
            grid_line(svg, &format!("M{LEFT} {at:.1}H{:.1}", WIDTH - RIGHT));
            draw_text(svg, LEFT - 8.0, at + 4.5, "end", "", &text);
        }
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        draw_text(svg, middle, lower + 33.0, "middle", " fill=\"#555\"", "objects");
        draw_text(svg, LEFT - 8.0, upper - 10.0, "end", " fill=\"#555\"", self.unit);
        for line in &self.lines {
            line.draw(svg, x, y);
        }
        self.draw_names(svg, x, y);
    }

    /// Names at the ends of the lines, moved apart where lines end close to each other.
    fn draw_names(&self, svg: &mut String, x: Axis, y: Axis) {
        let end = |line: &Line| {
            let (objects, rounds) = line.points.last()?;
            Some((x.position(*objects), y.position(median(rounds.clone()))))
        };
        let mut names: Vec<(f64, f64, &Line)> = self
            .lines
            .iter()
            .filter_map(|line| end(line).map(|(right, height)| (height, right, line)))
            .collect();
        // From the bottom, which the axis limits.
        names.sort_by(|one, other| other.0.total_cmp(&one.0));
        let mut free = f64::INFINITY;
        for (height, right, line) in names {
            let height = height.min(free);
            free = height - NAME_PITCH;
            let fill = format!(" fill=\"{}\"", line.color);
            draw_text(svg, right + 8.0, height + 4.5, "start", &fill, line.name);
        }
    }
}

impl Line {
    fn draw(&self, svg: &mut String, x: Axis, y: Axis) {
        let mut path = String::new();
        for (objects, rounds) in &self.points {
            let command = if path.is_empty() { 'M' } else { 'L' };
            let (right, height) = (x.position(*objects), y.position(median(rounds.clone())));
            let _ = write!(path, "{command}{right:.1} {height:.1}");
        }
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" stroke=\"{}\" stroke-width=\"2\" fill=\"none\"/>",
            self.color
        );
        for (objects, rounds) in &self.points {
            for round in rounds {
                let (right, height) = (x.position(*objects), y.position(*round));
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{right:.1}\" cy=\"{height:.1}\" r=\"2.5\" fill=\"{}\"/>",
                    self.color
                );
            }
        }
    }
}

fn grid_line(svg: &mut String, path: &str) {
    let _ = writeln!(svg, "<path d=\"{path}\" stroke=\"#ddd\" fill=\"none\"/>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::tests::check_svg;

    #[test]
    fn every_round_of_every_size_is_a_dot() {
        let growth = crate::report::growth::tests::sample();
        let svg = svg(&growth);
        assert!(check_svg(&svg) > 60, "{svg}");
        // Two sizes with three rounds: the floor in one chart, two contenders in three.
        assert_eq!(svg.matches("<circle").count(), 2 * 3 * (1 + 2 * 3));
        for expected in ["raw list", "bowline", "velero", "objects", "seconds", "MiB", "8000"] {
            assert!(svg.contains(expected), "{expected}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn names_of_lines_with_one_end_do_not_overlap() {
        let line = |name| Line { name, color: "#000", points: vec![(10.0, vec![1.0])] };
        let chart = Chart { title: "t", unit: "u", lines: vec![line("one"), line("other")] };
        let mut svg = String::new();
        chart.draw(&mut svg, 0.0);
        let height = |name: &str| -> f64 {
            let row = svg.lines().find(|row| row.ends_with(&format!(">{name}</text>"))).unwrap();
            let (_, rest) = row.split_once("y=\"").unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        assert!((height("one") - height("other")).abs() >= NAME_PITCH);
    }

    #[test]
    fn no_sizes_make_an_empty_picture() {
        let svg = svg(&Growth { sizes: Vec::new() });
        check_svg(&svg);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
