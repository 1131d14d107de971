//! Sections of text that backups and restores share, in Velero's words.

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
use crate::key_value_page::{KeyValuePage, NONE};
use crate::listing::ResourceKind;
use crate::output::error_chain;
use crate::rate::TransferRate;
use crate::run::{Run, Summary};
use crate::{program, rate, relative_time, selector};

pub(crate) const DETAILS_HINT: &str = "specify --details for more information";
/// Placeholder for an empty list of volumes.
pub(crate) const NONE_INCLUDED: &str = "<none included>";

pub(crate) fn metadata(page: &mut KeyValuePage, object: &impl ResourceKind) {
    page.field(0, "Name", object.name_any());
    page.field(0, "Namespace", object.namespace().unwrap_or_default());
    page.list(0, "Labels", pairs(object.labels()));
    page.list(0, "Annotations", pairs(object.annotations()));
}

pub(crate) fn pairs(map: &BTreeMap<String, String>) -> Vec<String> {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect()
}

pub(crate) fn phase<R: Run>(page: &mut KeyValuePage, run: &R) {
    let hint = match run.summary().phase.as_str() {
        "Failed" | "PartiallyFailed" => {
            let (program, namespace) = (program::name(), run.namespace().unwrap_or_default());
            // Includes the flag, so that the command works however the namespace was chosen.
            let flag = match namespace.as_str() {
                DEFAULT_NAMESPACE => String::new(),
                other => format!(" -n {other}"),
            };
            let (noun, name) = (R::NOUN, run.name_any());
            format!(" (run `{program} {noun} logs {name}{flag}` for more information)")
        }
        _ => String::new(),
    };
    page.field(0, "Phase", format_args!("{}{hint}", run.state()));
}

/// Reasons for a failure or rejection.
pub(crate) fn reasons(page: &mut KeyValuePage, summary: &Summary) {
    if !summary.failure_reason.is_empty() {
        page.blank_line();
        page.field(0, "Failure reason", &summary.failure_reason);
    }
    if !summary.validation_errors.is_empty() {
        page.blank_line();
        page.list(0, "Validation errors", &summary.validation_errors);
    }
}

pub(crate) fn results(page: &mut KeyValuePage, summary: &Summary, file: Option<&Fetched<Results>>) {
    let Summary { warnings, errors, .. } = *summary;
    match file {
        // The counts are known without the file.
        None => {
            if warnings > 0 || errors > 0 {
                page.blank_line();
                page.field(0, "Warnings", warnings);
                page.field(0, "Errors", errors);
            }
        }
        Some(Err(error)) => {
            let reason = error_chain(error);
            page.blank_line();
            page.field(0, "Warnings", format_args!("{warnings} <{reason}>"));
            page.field(0, "Errors", format_args!("{errors} <{reason}>"));
        }
        Some(Ok(results)) => {
            for (key, number, messages) in
                [("Warnings", warnings, &results.warnings), ("Errors", errors, &results.errors)]
            {
                if number > 0 || messages.count() > 0 {
                    page.blank_line();
                    self::messages(page, key, messages);
                }
            }
        }
    }
}

pub(crate) fn messages(page: &mut KeyValuePage, key: &str, messages: &Messages) {
    page.heading(0, key);
    page.list(1, "Velero", &messages.velero);
    page.list(1, "Cluster", &messages.cluster);
    if messages.namespaces.is_empty() {
        page.field(1, "Namespaces", NONE);
    } else {
        page.heading(1, "Namespaces");
        for (namespace, messages) in &messages.namespaces {
            page.list(2, namespace, messages);
        }
    }
}

pub(crate) fn selectors(
    page: &mut KeyValuePage,
    selector: Option<&LabelSelector>,
    alternatives: &[LabelSelector],
) {
    page.blank_line();
    page.field(0, "Label selector", selector_text(selector));
    page.blank_line();
    let any: Vec<String> =
        alternatives.iter().map(|selector| selector_text(Some(selector))).collect();
    let any = if any.is_empty() { NONE.to_owned() } else { any.join(" or ") };
    page.field(0, "Or label selector", any);
}

/// Operations of plugins: numbers of started, completed and failed ones, and each of them.
pub(crate) fn operations<T>(
    page: &mut KeyValuePage,
    key: &str,
    (attempted, completed, failed): (i64, i64, i64),
    file: Option<&Fetched<Vec<T>>>,
    write_operation: impl Fn(&mut KeyValuePage, &T),
) {
    if attempted == 0 {
        return;
    }
    page.blank_line();
    let counts = format!("{completed} of {attempted} completed successfully, {failed} failed");
    match file {
        None => page.field(0, key, format_args!("{counts} ({DETAILS_HINT})")),
        Some(Err(error)) => page.field(0, key, format_args!("{counts} <{}>", error_chain(error))),
        Some(Ok(operations)) => {
            page.field(0, key, counts);
            for operation in operations {
                write_operation(page, operation);
            }
        }
    }
}

/// Progress of an operation.
pub(crate) fn operation_status(page: &mut KeyValuePage, status: &OperationStatus) {
    let phase = status.phase.as_ref().and_then(|phase| serde_json::to_value(phase).ok());
    let phase = phase.as_ref().and_then(|phase| phase.as_str()).unwrap_or("New");
    page.field(2, "Phase", phase);
    if !status.error.is_empty() {
        page.field(2, "Operation Error", &status.error);
    }
    if status.n_total > 0 || status.n_completed > 0 {
        let (done, total, units) = (status.n_completed, status.n_total, &status.operation_units);
        page.field(2, "Progress", format_args!("{done} of {total} complete ({units})"));
    }
    if let Some(TransferRate { per_second, seconds_remaining }) = operation_rate(status) {
        let units = &status.operation_units;
        page.field(2, "Rate", format_args!("{per_second:.1} {units}/s"));
        if let Some(seconds_remaining) = seconds_remaining {
            page.field(2, "Time left", format_args!("about {seconds_remaining} s"));
        }
    }
    if !status.description.is_empty() {
        page.field(2, "Progress description", &status.description);
    }
    for (key, time) in
        [("Created", &status.created), ("Started", &status.started), ("Updated", &status.updated)]
    {
        if let Some(time) = time {
            page.field(2, key, relative_time::go_format(time));
        }
    }
}

/// Speed of a running operation, if it is known.
fn operation_rate(status: &OperationStatus) -> Option<TransferRate> {
    let OperationStatus { phase, n_completed, n_total, started, updated, .. } = status;
    if phase.as_ref().is_some_and(OperationPhase::is_terminal) {
        return None;
    }
    rate::average_rate(*n_completed, *n_total, started.as_ref(), updated.as_ref())
}

pub(crate) fn resources(page: &mut KeyValuePage, file: Option<&Fetched<ResourceList>>) {
    let Some(file) = file else { return };
    page.blank_line();
    match file {
        Err(error) => page.field(0, "Resource List", format_args!("<{}>", error_chain(error))),
        Ok(list) => {
            page.heading(0, "Resource List");
            for (kind, names) in &list.0 {
                page.heading(1, kind);
                for name in names {
                    page.line(2, format_args!("- {name}"));
                }
            }
        }
    }
}

pub(crate) fn hooks(page: &mut KeyValuePage, status: Option<&HookStatus>) {
    if let Some(hooks) = status {
        page.blank_line();
        page.field(0, "HooksAttempted", hooks.hooks_attempted);
        page.field(0, "HooksFailed", hooks.hooks_failed);
    }
}

/// Volumes under a heading, or a line that there are none.
pub(crate) fn volumes<T>(
    page: &mut KeyValuePage,
    level: usize,
    key: &str,
    volumes: &[T],
    write_volume: impl Fn(&mut KeyValuePage, &T),
) {
    if volumes.is_empty() {
        page.line(level, format_args!("{key}: {NONE_INCLUDED}"));
        return;
    }
    page.heading(level, key);
    for volume in volumes {
        write_volume(page, volume);
    }
}

/// Claim and volume, if they are known.
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

pub(crate) fn choice_text<'a>(
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

/// Key of a Secret.
pub(crate) fn credential(reference: Option<&SecretKeySelector>) -> String {
    let reference = reference.filter(|reference| !reference.name.is_empty());
    reference.map_or_else(|| NONE.to_owned(), |one| format!("Secret {}, key {}", one.name, one.key))
}

/// Duration for which the server has a default.
pub(crate) fn or_server_default(length: Option<Duration>) -> String {
    length.map_or_else(|| "<the server's>".to_owned(), |length| length.to_string())
}

/// The same, where zero stands for the default. Velero prints `0s`, which is not what happens.
pub(crate) fn server_default_if_zero(length: Duration) -> String {
    or_server_default(Some(length).filter(|length| *length != Duration::ZERO))
}

pub(crate) fn time(time: Option<&Time>) -> String {
    time.map_or_else(|| "<n/a>".to_owned(), relative_time::go_format)
}

#[cfg(test)]
mod rate_tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rate_and_remaining_time_are_given_when_known() {
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
        let rate = |seconds_remaining| Some(TransferRate { per_second: 3.0, seconds_remaining });
        assert_eq!(operation_rate(&status(json!({}))), rate(Some(20)));
        assert_eq!(operation_rate(&status(json!({"nTotal": 0}))), rate(None));
        assert_eq!(operation_rate(&status(json!({"nCompleted": 0}))), None);
        assert_eq!(operation_rate(&status(json!({"phase": "Completed"}))), None);
        assert_eq!(operation_rate(&status(json!({"started": null}))), None);
        assert_eq!(operation_rate(&status(json!({"updated": "2026-01-02T03:04:00Z"}))), None);
    }
}
