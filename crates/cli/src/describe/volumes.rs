//! What plugins do with the volumes of a run: how much is done, how fast, and what went wrong.

use bowline_api::Duration;
use bowline_api::volume_plugin::VolumePluginOutcome;
use indicatif::BinaryBytes;
use serde_json::{Value, json};

use super::Transfers;
use super::section::{MORE, time};
use crate::pace::Pace;
use crate::sheet::Sheet;
use crate::transfer::{Report, Tally, Transfer, Units};

/// For people. Nothing at all of a run without such volumes.
pub(crate) fn text<R: Report>(sheet: &mut Sheet, transfers: &Transfers, details: bool) {
    let transfers = match transfers {
        Ok(transfers) if transfers.is_empty() => return,
        Ok(transfers) => transfers,
        Err(reason) => {
            sheet.gap();
            sheet.field(0, R::HEADING, format_args!("<{reason}>"));
            return;
        }
    };
    sheet.gap();
    let tally = Tally::of(transfers);
    if !details {
        sheet.field(0, R::HEADING, format_args!("{tally} ({MORE})"));
        return;
    }
    sheet.field(0, R::HEADING, tally);
    for transfer in transfers {
        one(sheet, transfer);
    }
}

fn one(sheet: &mut Sheet, transfer: &Transfer) {
    sheet.heading(1, transfer.name());
    sheet.field(2, "Plugin", &transfer.plugin);
    sheet.field(2, "Snapshot ID", &transfer.snapshot);
    sheet.field(2, "Phase", transfer.phase());
    sheet.field(2, "Progress", transfer.progress());
    if let Some(Pace { per_second, left }) = transfer.pace() {
        sheet.field(2, "Rate", format_args!("{}/s", BinaryBytes(whole(per_second))));
        if let Some(left) = left {
            sheet.field(2, "Time left", format_args!("about {}", length(left)));
        }
    }
    sheet.field(2, "Started", time(transfer.started.as_ref()));
    if let Some(seconds) = transfer.seconds() {
        sheet.field(2, "Duration", length(seconds));
    }
    if !transfer.message.is_empty() {
        let key = match transfer.outcome() {
            Some(VolumePluginOutcome::Failed | VolumePluginOutcome::Canceled) => "Error",
            Some(VolumePluginOutcome::Completed) | None => "Description",
        };
        sheet.field(2, key, &transfer.message);
    }
    if !transfer.plugin_specific.is_empty() {
        sheet.heading(2, "Plugin specific");
        for (key, value) in &transfer.plugin_specific {
            sheet.field(3, key, value);
        }
    }
}

/// For programs, added to a document.
pub(crate) fn json<R: Report>(to: &mut Value, transfers: &Transfers, details: bool) {
    let transfers = match transfers {
        Ok(transfers) if transfers.is_empty() => return,
        Ok(transfers) => transfers,
        Err(reason) => {
            to[R::KEY] = json!({"errorGettingVolumes": reason});
            return;
        }
    };
    let tally = Tally::of(transfers);
    to[R::KEY] = json!({
        "count": tally.all,
        "completed": tally.completed,
        "inProgress": tally.open(),
        "failed": tally.failed,
        "canceled": tally.canceled,
        "bytesDone": tally.bytes.done,
        "totalBytes": tally.bytes.total,
        "percent": tally.bytes.percent(),
    });
    if details {
        to[R::KEY]["volumes"] = transfers.iter().map(document).collect();
    }
}

fn document(transfer: &Transfer) -> Value {
    let pace = transfer.pace();
    let units = transfer.units.as_ref();
    let percent = transfer.bytes.percent().or(units.and_then(Units::percent));
    let mut document = json!({
        "volume": transfer.volume,
        "plugin": transfer.plugin,
        "snapshotID": transfer.snapshot,
        "phase": transfer.phase(),
        "bytesDone": transfer.bytes.done,
        "totalBytes": transfer.bytes.total,
        "percent": percent,
        "bytesPerSecond": pace.map(|pace| whole(pace.per_second)),
        "secondsLeft": pace.and_then(|pace| pace.left),
        "startTimestamp": transfer.started,
        "completionTimestamp": transfer.ended,
        "message": transfer.message,
    });
    // Only where there are any, which is seldom.
    if let Some(Units { name, done, total }) = units {
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
fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// A length of time as Go spells it.
fn length(seconds: u64) -> Duration {
    Duration::from_seconds(i64::try_from(seconds).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use bowline_api::VolumePluginBackup;

    use super::*;

    #[test]
    fn what_a_plugin_tells_users_is_shown_with_its_own_units() {
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
        let transfers: Transfers = Ok(vec![report.transfer()]);
        let mut sheet = Sheet::default();
        text::<VolumePluginBackup>(&mut sheet, &transfers, true);
        let shown = sheet.finish();
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
