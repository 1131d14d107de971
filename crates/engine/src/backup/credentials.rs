//! The server's own credentials that a run excluded.

use std::collections::BTreeSet;

use bowline_api::annotation;
use parking_lot::Mutex;

use super::Context;
use crate::report::ReportSubject;

/// The excluded Secrets with credentials, as `namespace/name`.
#[derive(Debug, Default)]
pub(super) struct ExcludedCredentials {
    secrets: Mutex<BTreeSet<String>>,
}

impl ExcludedCredentials {
    pub(super) fn record(&self, namespace: &str, name: &str) {
        self.secrets.lock().insert(format!("{namespace}/{name}"));
    }
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
