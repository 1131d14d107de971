//! Parts of JSON documents that backups and restores share. Keys are Velero's where it has them.

use bowline_store::file::{Messages, Results};
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::{Value, json};

use super::Fetched;
use crate::listing::ResourceKind;
use crate::output::error_chain;
use crate::run::{Run, Summary};

/// Beginning of a document: name, labels and annotations.
pub(crate) fn object_document(object: &impl ResourceKind) -> Value {
    json!({
        "metadata": {
            "name": object.name_any(),
            "namespace": object.namespace(),
            "labels": object.labels(),
            "annotations": object.annotations(),
        },
    })
}

/// The same for a run, with phase and reasons.
pub(crate) fn run_document(run: &impl Run) -> Value {
    let Summary { phase, failure_reason, validation_errors, .. } = run.summary();
    let mut document = object_document(run);
    document["phase"] = phase.into();
    if !failure_reason.is_empty() {
        document["failureReason"] = failure_reason.into();
    }
    if !validation_errors.is_empty() {
        document["validationErrors"] = validation_errors.into();
    }
    document
}

/// Adds warnings and errors, or the reason why they could not be read.
pub(crate) fn results(to: &mut Value, summary: &Summary, file: Option<&Fetched<Results>>) {
    let Summary { warnings, errors, .. } = *summary;
    match file {
        None => {}
        Some(Ok(results)) => {
            to["warnings"] = messages(warnings, &results.warnings);
            to["errors"] = messages(errors, &results.errors);
        }
        Some(Err(error)) => {
            let reason = error_chain(error);
            to["warnings"] = json!({"count": warnings, "errorGettingWarnings": reason});
            to["errors"] = json!({"count": errors, "errorGettingErrors": reason});
        }
    }
}

pub(crate) fn messages(count: impl Serialize, messages: &Messages) -> Value {
    json!({
        "count": count,
        "velero": messages.velero,
        "cluster": messages.cluster,
        "namespace": messages.namespaces,
    })
}

/// Operations of plugins: numbers of started, completed and failed ones, and each of them.
pub(crate) fn operations<T: Serialize>(
    (attempted, completed, failed): (i64, i64, i64),
    file: Option<&Fetched<Vec<T>>>,
) -> Value {
    let mut operations = json!({"attempted": attempted, "completed": completed, "failed": failed});
    add_fetched(&mut operations, "operations", "errorGettingOperations", file);
    operations
}

/// Adds the content of a file, or the reason why it could not be read.
pub(crate) fn add_fetched<T: Serialize>(
    to: &mut Value,
    key: &str,
    error_key: &str,
    file: Option<&Fetched<T>>,
) {
    match file {
        None => {}
        Some(Ok(content)) => to[key] = json!(content),
        Some(Err(error)) => to[error_key] = json!(error_chain(error)),
    }
}
