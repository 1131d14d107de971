//! The server's own credentials that a run excluded.

use std::collections::BTreeSet;

use bowline_api::annotation;
use parking_lot::Mutex;

use super::Context;
use super::filter::{FilterVerdict, SkipReason};
use super::item::Inclusion;
use crate::item::Object;
use crate::report::ReportSubject;

/// The excluded Secrets with credentials, as `namespace/name`.
#[derive(Debug, Default)]
pub(super) struct ExcludedCredentials {
    secrets: Mutex<BTreeSet<String>>,
}

/// Verdict on an item, by the filters or, if an action insists on it, in spite of them. Excluded credentials are
/// recorded.
pub(super) fn verdict(context: &Context, object: &Object, inclusion: Inclusion) -> FilterVerdict {
    let Object { resource, namespace, name, labels, .. } = object;
    let verdict = if inclusion == Inclusion::Required {
        context.filter.must_include_verdict(resource, namespace, name)
    } else {
        context.filter.item(resource, namespace, name, labels)
    };
    if verdict == FilterVerdict::Skip(SkipReason::Credentials) {
        context.credentials.secrets.lock().insert(format!("{namespace}/{name}"));
    }
    verdict
}

/// Warns about the credentials that are not in the backup.
pub(super) fn warn_excluded(context: &Context) {
    let secrets = context.credentials.secrets.lock();
    if secrets.is_empty() {
        return;
    }
    let names: Vec<&str> = secrets.iter().map(String::as_str).collect();
    let text = format!(
        "the credentials of the server are not in the backup: Secrets {}; keep them elsewhere, \
         or set the annotation {}=true on the Backup to include them; to avoid this warning, set \
         the label velero.io/exclude-from-backup=true on the Secrets",
        names.join(", "),
        annotation::INCLUDE_CREDENTIALS
    );
    context.report.warn(ReportSubject::Run, text);
}
