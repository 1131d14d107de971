//! Freeze windows of pods.

use bowline_api::backup::FreezeWindow;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::describe::section::{DETAILS_HINT, time};
use crate::key_value_page::KeyValuePage;

/// Number of freeze windows in a status, the longest ones.
const MAX_STATUS_WINDOWS: usize = 100;

/// Text for people; empty for a backup that froze no pod.
pub(super) fn text(page: &mut KeyValuePage, windows: &[FreezeWindow], details: bool) {
    let Some(longest) = longest(windows) else { return };
    page.blank_line();
    let count = match windows.len() {
        1 => "1 pod".to_owned(),
        count if count < MAX_STATUS_WINDOWS => format!("{count} pods"),
        count => format!("{count} pods or more"),
    };
    let FreezeWindow { namespace, pod, milliseconds, .. } = longest;
    let summary = format!("{count}, the longest {milliseconds} ms ({namespace}/{pod})");
    if !details {
        page.field(0, "Freeze windows", format_args!("{summary} ({DETAILS_HINT})"));
        return;
    }
    page.line(0, format_args!("Freeze windows:  {summary}"));
    for FreezeWindow { namespace, pod, start_timestamp, milliseconds, .. } in windows {
        let from = time(start_timestamp.as_ref().map(|start| Time(start.0)).as_ref());
        page.field(1, &format!("{namespace}/{pod}"), format_args!("{milliseconds} ms from {from}"));
    }
}

/// Adds the windows to a document for programs.
pub(super) fn json(to: &mut Value, windows: &[FreezeWindow], details: bool) {
    let Some(longest) = longest(windows) else { return };
    to["freezeWindows"] = json!({
        "count": windows.len(),
        "mayBeMore": windows.len() >= MAX_STATUS_WINDOWS,
        "longestMilliseconds": longest.milliseconds,
    });
    if details {
        to["freezeWindows"]["pods"] = json!(windows);
    }
}

fn longest(windows: &[FreezeWindow]) -> Option<&FreezeWindow> {
    windows.iter().rev().max_by_key(|window| window.milliseconds)
}
