//! Sections for people that backups and restores share, in Velero's words.

use std::collections::BTreeMap;
use std::fmt::Display;

use bowline_api::hook::HookStatus;
use bowline_api::{DEFAULT_NAMESPACE, Duration};
use bowline_store::file::{
    Messages, OperationPhase, OperationStatus, ResourceIdentifier, ResourceList, Results,
};
use k8s_openapi::api::core::v1::SecretKeySelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::ResourceExt as _;

use super::Fetched;
use crate::listing::Kind;
use crate::pace::Pace;
use crate::run::{Run, Summary};
use crate::sheet::{NONE, Sheet};
use crate::{moment, pace, program, selector};

pub(crate) const MORE: &str = "specify --details for more information";
/// What stands where a list of volumes would.
pub(crate) const NONE_INCLUDED: &str = "<none included>";

pub(crate) fn metadata(sheet: &mut Sheet, object: &impl Kind) {
    sheet.field(0, "Name", object.name_any());
    sheet.field(0, "Namespace", object.namespace().unwrap_or_default());
    sheet.list(0, "Labels", pairs(object.labels()));
    sheet.list(0, "Annotations", pairs(object.annotations()));
}

pub(crate) fn pairs(map: &BTreeMap<String, String>) -> Vec<String> {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect()
}

pub(crate) fn phase<R: Run>(sheet: &mut Sheet, run: &R) {
    let note = match run.summary().phase.as_str() {
        "Failed" | "PartiallyFailed" => {
            let (program, namespace) = (program::name(), run.namespace().unwrap_or_default());
            // As it can be typed whatever the namespace was said by.
            let flag = match namespace.as_str() {
                DEFAULT_NAMESPACE => String::new(),
                other => format!(" -n {other}"),
            };
            let (noun, name) = (R::NOUN, run.name_any());
            format!(" (run `{program} {noun} logs {name}{flag}` for more information)")
        }
        _ => String::new(),
    };
    sheet.field(0, "Phase", format_args!("{}{note}", run.state()));
}

/// Why it failed or was refused.
pub(crate) fn reasons(sheet: &mut Sheet, summary: &Summary) {
    if !summary.failure_reason.is_empty() {
        sheet.gap();
        sheet.field(0, "Failure reason", &summary.failure_reason);
    }
    if !summary.validation_errors.is_empty() {
        sheet.gap();
        sheet.list(0, "Validation errors", &summary.validation_errors);
    }
}

pub(crate) fn results(sheet: &mut Sheet, summary: &Summary, file: Option<&Fetched<Results>>) {
    let Summary { warnings, errors, .. } = *summary;
    match file {
        // The numbers are known without the file.
        None => {
            if warnings > 0 || errors > 0 {
                sheet.gap();
                sheet.field(0, "Warnings", warnings);
                sheet.field(0, "Errors", errors);
            }
        }
        Some(Err(reason)) => {
            sheet.gap();
            sheet.field(0, "Warnings", format_args!("{warnings} <{reason}>"));
            sheet.field(0, "Errors", format_args!("{errors} <{reason}>"));
        }
        Some(Ok(results)) => {
            for (key, number, messages) in
                [("Warnings", warnings, &results.warnings), ("Errors", errors, &results.errors)]
            {
                if number > 0 || messages.count() > 0 {
                    sheet.gap();
                    self::messages(sheet, key, messages);
                }
            }
        }
    }
}

pub(crate) fn messages(sheet: &mut Sheet, key: &str, messages: &Messages) {
    sheet.heading(0, key);
    sheet.list(1, "Velero", &messages.velero);
    sheet.list(1, "Cluster", &messages.cluster);
    if messages.namespaces.is_empty() {
        sheet.field(1, "Namespaces", NONE);
    } else {
        sheet.heading(1, "Namespaces");
        for (namespace, messages) in &messages.namespaces {
            sheet.list(2, namespace, messages);
        }
    }
}

pub(crate) fn selectors(sheet: &mut Sheet, one: Option<&LabelSelector>, any: &[LabelSelector]) {
    sheet.gap();
    sheet.field(0, "Label selector", selector_text(one));
    sheet.gap();
    let any: Vec<String> = any.iter().map(|selector| selector_text(Some(selector))).collect();
    let any = if any.is_empty() { NONE.to_owned() } else { any.join(" or ") };
    sheet.field(0, "Or label selector", any);
}

/// Operations of plugins: how many were begun, were completed and failed, and each of them.
pub(crate) fn operations<T>(
    sheet: &mut Sheet,
    key: &str,
    (attempted, completed, failed): (i64, i64, i64),
    file: Option<&Fetched<Vec<T>>>,
    one: impl Fn(&mut Sheet, &T),
) {
    if attempted == 0 {
        return;
    }
    sheet.gap();
    let counts = format!("{completed} of {attempted} completed successfully, {failed} failed");
    match file {
        None => sheet.field(0, key, format_args!("{counts} ({MORE})")),
        Some(Err(reason)) => sheet.field(0, key, format_args!("{counts} <{reason}>")),
        Some(Ok(operations)) => {
            sheet.field(0, key, counts);
            for operation in operations {
                one(sheet, operation);
            }
        }
    }
}

/// How far an operation is.
pub(crate) fn operation_status(sheet: &mut Sheet, status: &OperationStatus) {
    let phase = status.phase.as_ref().and_then(|phase| serde_json::to_value(phase).ok());
    let phase = phase.as_ref().and_then(|phase| phase.as_str()).unwrap_or("New");
    sheet.field(2, "Phase", phase);
    if !status.error.is_empty() {
        sheet.field(2, "Operation Error", &status.error);
    }
    if status.n_total > 0 || status.n_completed > 0 {
        let (done, total, units) = (status.n_completed, status.n_total, &status.operation_units);
        sheet.field(2, "Progress", format_args!("{done} of {total} complete ({units})"));
    }
    if let Some(Pace { per_second, left }) = pace(status) {
        let units = &status.operation_units;
        sheet.field(2, "Rate", format_args!("{per_second:.1} {units}/s"));
        if let Some(left) = left {
            sheet.field(2, "Time left", format_args!("about {left} s"));
        }
    }
    if !status.description.is_empty() {
        sheet.field(2, "Progress description", &status.description);
    }
    for (key, moment) in
        [("Created", &status.created), ("Started", &status.started), ("Updated", &status.updated)]
    {
        if let Some(moment) = moment {
            sheet.field(2, key, moment::text(moment));
        }
    }
}

/// How fast an operation is that goes on, as far as that can be known.
fn pace(status: &OperationStatus) -> Option<Pace> {
    let OperationStatus { phase, n_completed, n_total, started, updated, .. } = status;
    if phase.as_ref().is_some_and(OperationPhase::is_terminal) {
        return None;
    }
    pace::pace(*n_completed, *n_total, started.as_ref(), updated.as_ref())
}

pub(crate) fn resources(sheet: &mut Sheet, file: Option<&Fetched<ResourceList>>) {
    let Some(file) = file else { return };
    sheet.gap();
    match file {
        Err(reason) => sheet.field(0, "Resource List", format_args!("<{reason}>")),
        Ok(list) => {
            sheet.heading(0, "Resource List");
            for (kind, names) in &list.0 {
                sheet.heading(1, kind);
                for name in names {
                    sheet.line(2, format_args!("- {name}"));
                }
            }
        }
    }
}

pub(crate) fn hooks(sheet: &mut Sheet, status: Option<&HookStatus>) {
    if let Some(hooks) = status {
        sheet.gap();
        sheet.field(0, "HooksAttempted", hooks.hooks_attempted);
        sheet.field(0, "HooksFailed", hooks.hooks_failed);
    }
}

/// Volumes under a heading, or that there is none.
pub(crate) fn volumes<T>(
    sheet: &mut Sheet,
    level: usize,
    key: &str,
    volumes: &[T],
    one: impl Fn(&mut Sheet, &T),
) {
    if volumes.is_empty() {
        sheet.line(level, format_args!("{key}: {NONE_INCLUDED}"));
        return;
    }
    sheet.heading(level, key);
    for volume in volumes {
        one(sheet, volume);
    }
}

/// The claim and the volume, as far as they are known.
pub(crate) fn volume_name(namespace: &str, claim: &str, volume: &str) -> String {
    match (claim.is_empty(), volume.is_empty()) {
        (true, _) => volume.to_owned(),
        (false, true) => format!("{namespace}/{claim}"),
        (false, false) => format!("{namespace}/{claim} ({volume})"),
    }
}

pub(crate) fn item(id: &ResourceIdentifier) -> impl Display {
    let group = if id.group.is_empty() { String::new() } else { format!(".{}", id.group) };
    let namespace =
        if id.namespace.is_empty() { String::new() } else { format!("{}/", id.namespace) };
    format!("{}{group} {namespace}{}", id.resource, id.name)
}

pub(crate) fn included(list: &[String]) -> String {
    if list.is_empty() { "*".to_owned() } else { list.join(", ") }
}

pub(crate) fn excluded(list: &[String]) -> String {
    if list.is_empty() { NONE.to_owned() } else { list.join(", ") }
}

pub(crate) fn choice<'a>(
    choice: Option<bool>,
    no: &'a str,
    yes: &'a str,
    unset: &'a str,
) -> &'a str {
    match choice {
        Some(true) => yes,
        Some(false) => no,
        None => unset,
    }
}

pub(crate) fn selector_text(selector: Option<&LabelSelector>) -> String {
    let text = selector.map(selector::text).unwrap_or_default();
    if text.is_empty() { NONE.to_owned() } else { text }
}

/// The key of a Secret.
pub(crate) fn credential(reference: Option<&SecretKeySelector>) -> String {
    let reference = reference.filter(|reference| !reference.name.is_empty());
    reference.map_or_else(|| NONE.to_owned(), |one| format!("Secret {}, key {}", one.name, one.key))
}

/// A length of time for which the server has a default.
pub(crate) fn or_servers(length: Option<Duration>) -> String {
    length.map_or_else(|| "<the server's>".to_owned(), |length| length.to_string())
}

pub(crate) fn time(time: Option<&Time>) -> String {
    time.map_or_else(|| "<n/a>".to_owned(), moment::text)
}

#[cfg(test)]
mod pace_tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rate_and_the_time_left_are_told_where_they_can_be_known() {
        let status = |more: serde_json::Value| -> OperationStatus {
            let mut status = json!({
                "phase": "InProgress", "nCompleted": 30, "nTotal": 90,
                "started": "2026-01-02T03:04:00Z", "updated": "2026-01-02T03:04:10Z",
            });
            for (key, value) in more.as_object().unwrap() {
                status[key] = value.clone();
            }
            serde_json::from_value(status).unwrap()
        };
        let known = |left| Some(Pace { per_second: 3.0, left });
        assert_eq!(pace(&status(json!({}))), known(Some(20)));
        assert_eq!(pace(&status(json!({"nTotal": 0}))), known(None));
        assert_eq!(pace(&status(json!({"nCompleted": 0}))), None);
        assert_eq!(pace(&status(json!({"phase": "Completed"}))), None);
        assert_eq!(pace(&status(json!({"started": null}))), None);
        assert_eq!(pace(&status(json!({"updated": "2026-01-02T03:04:00Z"}))), None);
    }
}
