//! Display of messages: bars on a terminal, lines elsewhere.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use bowline_api::volume_plugin::VolumePluginPhase;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use kube::ResourceExt as _;

use super::NO_SERVER_HINT_DELAY;
use super::progress_messages::ProgressMessage;
use crate::installation::Installation;
use crate::output::{self, strip_control_chars};
use crate::run::{Run, Stage, Summary};
use crate::volume_progress::{ByteProgress, UnitProgress, VolumeProgress, VolumeTotals};

/// Number of volumes that have a bar at a time.
const MAX_BARS: usize = 8;

pub(super) struct Display {
    bars: Option<Bars>,
}

struct Bars {
    all: MultiProgress,
    run: ProgressBar,
    /// By volume and snapshot.
    volumes: BTreeMap<(String, String), VolumeBar>,
}

struct VolumeBar {
    bar: ProgressBar,
    /// Position when it was first seen.
    initial_position: u64,
}

impl Display {
    pub(super) fn new() -> Self {
        let bars = io::stderr().is_terminal().then(|| {
            let all = MultiProgress::new();
            let run = all.add(ProgressBar::new_spinner());
            run.enable_steady_tick(Duration::from_millis(120));
            Bars { all, run, volumes: BTreeMap::new() }
        });
        Self { bars }
    }

    pub(super) fn show<R: Run>(
        &mut self,
        run: &R,
        transfers: &[VolumeProgress],
        messages: &[ProgressMessage],
        installation: &Installation,
    ) {
        if let Some(bars) = &mut self.bars {
            bars.show_run(run, &VolumeTotals::from_volumes(transfers));
            bars.show_volumes(transfers);
        }
        let name = run.name_any();
        for message in messages {
            match message {
                ProgressMessage::NoServer => self.print_line(&format!(
                    "hint: the {noun} is still {state} after {} s; no server seems to run in \
                     namespace `{}`; still waiting, Ctrl-C leaves the {noun} as it is",
                    NO_SERVER_HINT_DELAY.as_secs(),
                    installation.namespace(),
                    noun = R::NOUN,
                    state = run.state(),
                )),
                ProgressMessage::WaitsForRun(other) => self.print_line(&format!(
                    "hint: the {noun} is still New after {} s: {noun} `{other}` is in progress and \
                     runs first; if it makes no progress, check that a server runs in namespace \
                     `{}`",
                    NO_SERVER_HINT_DELAY.as_secs(),
                    installation.namespace(),
                    noun = R::NOUN,
                )),
                // The bars show everything else.
                _ if self.bars.is_some() => {}
                ProgressMessage::State(state) => self.print_line(&format!("{name}: {state}")),
                ProgressMessage::Progress(done, total) => {
                    self.print_line(&format!("{name}: {done}/{total} items"));
                }
                ProgressMessage::Operations(ended, total) => {
                    self.print_line(&format!("{name}: {ended}/{total} operations have ended"));
                }
                ProgressMessage::Volumes(tally) => {
                    self.print_line(&format!("{name}: volumes: {tally}"));
                }
            }
        }
    }

    pub(super) fn print_line(&self, line: &str) {
        match &self.bars {
            Some(bars) => bars.run.println(strip_control_chars(line)),
            None => output::print_message(strip_control_chars(line)),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bars) = &mut self.bars {
            bars.show_volumes(&[]);
            bars.run.finish_and_clear();
        }
    }
}

impl Bars {
    fn show_run<R: Run>(&self, run: &R, volumes: &VolumeTotals) {
        let Summary { stage, items, operations, .. } = run.summary();
        let waits_for_operations = stage == Stage::Finalizing && operations.attempted > 0;
        let (done, total) = if waits_for_operations { operations.ended() } else { items };
        let template = match (total > 0, waits_for_operations) {
            (true, true) => "{spinner} {msg} [{bar:30}] {pos}/{len} operations, {elapsed}{prefix}",
            (true, false) => "{spinner} {msg} [{bar:30}] {pos}/{len} items, {elapsed}{prefix}",
            (false, _) => "{spinner} {msg} {elapsed}{prefix}",
        };
        self.run.set_message(strip_control_chars(&run.state()));
        self.run.set_prefix(match volumes.total {
            0 => String::new(),
            _ => format!(", volumes {}", volumes.short_text()),
        });
        self.run.set_length(total.unsigned_abs());
        self.run.set_position(done.unsigned_abs());
        self.run.set_style(style(template));
    }

    /// One bar for each volume in progress, up to the limit.
    fn show_volumes(&mut self, transfers: &[VolumeProgress]) {
        let shown = volumes_in_progress(transfers);
        let key = |transfer: &VolumeProgress| (transfer.volume.clone(), transfer.snapshot.clone());
        self.volumes.retain(|bar_key, VolumeBar { bar, .. }| {
            let is_shown = shown.iter().any(|transfer| key(transfer) == *bar_key);
            if !is_shown {
                bar.finish_and_clear();
                self.all.remove(bar);
            }
            is_shown
        });
        for transfer in shown {
            let (ByteProgress { done, total }, counts) = measured_progress(transfer);
            let position = total.map_or(done, |total| done.min(total));
            let template = |has_rate| volume_template(total, position, has_rate, counts.is_some());
            let VolumeBar { bar, initial_position: first } =
                self.volumes.entry(key(transfer)).or_insert_with(|| {
                    // A bar is drawn as soon as it is added, so its style must be set by then.
                    let bar = ProgressBar::no_length()
                        .with_style(style(template(false)))
                        .with_prefix(strip_control_chars(transfer.name()));
                    let bar = self.all.add(bar);
                    bar.set_position(position);
                    // Earlier progress does not count for the speed.
                    bar.reset_eta();
                    VolumeBar { bar, initial_position: position }
                });
            if let Some(total) = total {
                bar.set_length(total);
            }
            bar.set_position(position);
            bar.set_message(counts.map(strip_control_chars).unwrap_or_default());
            bar.set_style(style(template(position > *first)));
        }
    }
}

/// Progress of a volume, and its unit if not bytes.
fn measured_progress(transfer: &VolumeProgress) -> (ByteProgress, Option<&str>) {
    match &transfer.units {
        Some(UnitProgress { name, done, total }) if transfer.bytes.is_unknown() => {
            (ByteProgress { done: *done, total: *total }, Some(name))
        }
        Some(_) | None => (transfer.bytes, None),
    }
}

fn volume_template(
    total: Option<u64>,
    position: u64,
    has_rate: bool,
    counts_units: bool,
) -> &'static str {
    match (total, has_rate) {
        (Some(_), _) if counts_units => "  {prefix} [{bar:30}] {msg} {pos}/{len}",
        (None, _) if counts_units => "  {prefix} {msg} {pos}",
        (Some(_), true) => {
            "  {prefix} [{bar:30}] {percent}% of {binary_total_bytes}, {binary_bytes_per_sec}, \
             {eta} left"
        }
        (Some(_), false) => "  {prefix} [{bar:30}] {percent}% of {binary_total_bytes}",
        (None, true) => "  {prefix} {binary_bytes}, {binary_bytes_per_sec}",
        (None, false) if position > 0 => "  {prefix} {binary_bytes}",
        (None, false) => "  {prefix} {elapsed}",
    }
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template);
    // All templates are valid; a default bar would do no harm.
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

/// Volumes that get a bar: those that plugins are processing, in order of appearance.
fn volumes_in_progress(transfers: &[VolumeProgress]) -> Vec<&VolumeProgress> {
    let is_in_progress = |transfer: &&VolumeProgress| {
        let has_begun = match &transfer.phase {
            None | Some(VolumePluginPhase::New) => measured_progress(transfer).0.done > 0,
            Some(phase) => !phase.as_str().is_empty(),
        };
        has_begun && transfer.outcome().is_none()
    };
    transfers.iter().filter(is_in_progress).take(MAX_BARS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::volume_progress::tests::backup;

    #[test]
    fn every_progress_template_is_valid() {
        for (total, position, has_rate, counts_units) in [
            (Some(9), 1, true, false),
            (Some(9), 1, false, false),
            (None, 1, true, false),
            (None, 1, false, false),
            (None, 0, false, false),
            (Some(9), 1, true, true),
            (None, 1, true, true),
        ] {
            let template = volume_template(total, position, has_rate, counts_units);
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn volumes_in_progress_have_bars_up_to_the_limit() {
        let volume = |number: usize, phase: &str, done: i64| {
            let progress = json!({"bytesDone": done, "totalBytes": 9});
            backup(&format!("pv-{number}"), &json!({"phase": phase, "progress": progress}))
        };
        let volumes = [
            volume(0, "New", 0),
            volume(1, "New", 1),
            volume(2, "InProgress", 0),
            volume(3, "Completed", 9),
            volume(4, "Uploading", 0),
            volume(5, "failed", 3),
            volume(6, "", 0),
        ];
        let names = |shown: Vec<&VolumeProgress>| -> Vec<String> {
            shown.iter().map(|transfer| transfer.volume.clone()).collect()
        };
        assert_eq!(names(volumes_in_progress(&volumes)), ["pv-1", "pv-2", "pv-4"]);
        let many: Vec<VolumeProgress> =
            (0..MAX_BARS + 3).map(|number| volume(number, "InProgress", 1)).collect();
        assert_eq!(volumes_in_progress(&many).len(), MAX_BARS);
    }
}
