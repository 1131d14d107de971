//! Work of plugins on the volumes of a run: progress, speed and errors.

use bowline_api::Duration;
use bowline_api::volume_plugin::VolumePluginOutcome;
use indicatif::BinaryBytes;
use serde_json::{Value, json};

use super::FetchedVolumeProgress;
use super::section::{DETAILS_HINT, time};
use crate::key_value_page::KeyValuePage;
use crate::output::error_chain;
use crate::rate::TransferRate;
use crate::volume_progress::{UnitProgress, VolumeProgress, VolumeReport, VolumeTotals};

/// Text for people; empty for a run without such volumes.
pub(crate) fn text<R: VolumeReport>(
    page: &mut KeyValuePage,
    transfers: &FetchedVolumeProgress,
    details: bool,
) {
    let transfers = match transfers {
        Ok(transfers) if transfers.is_empty() => return,
        Ok(transfers) => transfers,
        Err(error) => {
            page.blank_line();
            page.field(0, R::HEADING, format_args!("<{}>", error_chain(error)));
            return;
        }
    };
    page.blank_line();
    let totals = VolumeTotals::from_volumes(transfers);
    if !details {
        page.field(0, R::HEADING, format_args!("{totals} ({DETAILS_HINT})"));
        return;
    }
    page.field(0, R::HEADING, totals);
    for transfer in transfers {
        write_volume(page, transfer);
    }
}

fn write_volume(page: &mut KeyValuePage, transfer: &VolumeProgress) {
    page.heading(1, transfer.name());
    page.field(2, "Plugin", &transfer.plugin);
    page.field(2, "Snapshot ID", &transfer.snapshot);
    page.field(2, "Phase", transfer.phase());
    page.field(2, "Progress", transfer.progress());
    if let Some(TransferRate { per_second, seconds_remaining }) = transfer.rate() {
        page.field(2, "Rate", format_args!("{}/s", BinaryBytes(rounded(per_second))));
        if let Some(seconds_remaining) = seconds_remaining {
            page.field(2, "Time left", format_args!("about {}", go_duration(seconds_remaining)));
        }
    }
    page.field(2, "Started", time(transfer.started.as_ref()));
    if let Some(seconds) = transfer.seconds() {
        page.field(2, "Duration", go_duration(seconds));
    }
    if !transfer.message.is_empty() {
        let key = match transfer.outcome() {
            Some(VolumePluginOutcome::Failed | VolumePluginOutcome::Canceled) => "Error",
            Some(VolumePluginOutcome::Completed) | None => "Description",
        };
        page.field(2, key, &transfer.message);
    }
    if !transfer.plugin_specific.is_empty() {
        page.heading(2, "Plugin specific");
        for (key, value) in &transfer.plugin_specific {
            page.field(3, key, value);
        }
    }
}

/// Adds the volumes to a document for programs.
pub(crate) fn json<R: VolumeReport>(
    to: &mut Value,
    transfers: &FetchedVolumeProgress,
    details: bool,
) {
    let transfers = match transfers {
        Ok(transfers) if transfers.is_empty() => return,
        Ok(transfers) => transfers,
        Err(error) => {
            to[R::KEY] = json!({"errorGettingVolumes": error_chain(error)});
            return;
        }
    };
    let totals = VolumeTotals::from_volumes(transfers);
    to[R::KEY] = json!({
        "count": totals.total,
        "completed": totals.completed,
        "inProgress": totals.in_progress(),
        "failed": totals.failed,
        "canceled": totals.canceled,
        "bytesDone": totals.bytes.done,
        "totalBytes": totals.bytes.total,
        "percent": totals.bytes.percent(),
    });
    if details {
        to[R::KEY]["volumes"] = transfers.iter().map(volume_document).collect();
    }
}

fn volume_document(transfer: &VolumeProgress) -> Value {
    let rate = transfer.rate();
    let units = transfer.units.as_ref();
    let percent = transfer.bytes.percent().or(units.and_then(UnitProgress::percent));
    let mut document = json!({
        "volume": transfer.volume,
        "plugin": transfer.plugin,
        "snapshotID": transfer.snapshot,
        "phase": transfer.phase(),
        "bytesDone": transfer.bytes.done,
        "totalBytes": transfer.bytes.total,
        "percent": percent,
        "bytesPerSecond": rate.map(|rate| rounded(rate.per_second)),
        "secondsLeft": rate.and_then(|rate| rate.seconds_remaining),
        "startTimestamp": transfer.started,
        "completionTimestamp": transfer.ended,
        "message": transfer.message,
    });
    // Only if there are any, which is rare.
    if let Some(UnitProgress { name, done, total }) = units {
        document["units"] = json!({"name": name, "done": done, "total": total});
    }
    if !transfer.plugin_specific.is_empty() {
        document["pluginSpecific"] = json!(transfer.plugin_specific);
    }
    document
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate, of what is not negative"
)]
fn rounded(number: f64) -> u64 {
    number.round() as u64
}

/// Duration as Go spells it.
fn go_duration(seconds: u64) -> Duration {
    Duration::from_seconds(i64::try_from(seconds).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use bowline_api::VolumePluginBackup;

    use super::*;

    #[test]
    fn plugin_specific_values_are_shown_with_plugin_units() {
        let report: VolumePluginBackup = serde_json::from_value(json!({
            "metadata": {"name": "snap-1"},
            "spec": {
                "volume": "pv-1", "backup": "b", "plugin": "x.io/a",
                "pluginSpecific": {"pool": "fast", "array": "a1\u{1b}[31m"},
            },
            "status": {
                "phase": "Copying", "snapshotID": "snap-1",
                "progress": {"units": "Files", "unitsDone": 12, "totalUnits": 40},
            },
        }))
        .unwrap();
        let transfers: FetchedVolumeProgress = Ok(vec![report.into_progress()]);
        let mut page = KeyValuePage::default();
        text::<VolumePluginBackup>(&mut page, &transfers, true);
        let shown = page.finish();
        for line in [
            "    Progress:     Files 12/40 (30 %)",
            "    Phase:        Copying",
            "    Plugin specific:",
            "      pool:   fast",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "no {line:?} in\n{shown}");
        }
        assert!(shown.contains("a1") && !shown.contains('\u{1b}'), "{shown:?}");
        let mut document = json!({});
        json::<VolumePluginBackup>(&mut document, &transfers, true);
        let volume = &document["volumePluginBackups"]["volumes"][0];
        assert_eq!(volume["units"], json!({"name": "Files", "done": 12, "total": 40}));
        assert_eq!((&volume["percent"], &volume["bytesDone"]), (&json!(30), &json!(0)));
        assert_eq!(volume["pluginSpecific"]["pool"], "fast");
    }
}
