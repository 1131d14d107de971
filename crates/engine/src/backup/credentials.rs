//! The server's own credentials that a run met and left out.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use bowline_api::annotation;

use super::Context;
use super::filter::{Reason, Verdict};
use crate::item::Object;
use crate::report::About;

/// The Secrets with credentials that were left out, as `namespace/name`.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    secrets: Mutex<BTreeSet<String>>,
}

/// Whether an item belongs to the backup, by the filters or, if an action insists on it, in spite of them.
/// Credentials that do not are noted.
pub(super) fn verdict(context: &Context, object: &Object, is_wanted: bool) -> Verdict {
    let Object { resource, namespace, name, labels, .. } = object;
    let verdict = if is_wanted {
        context.filter.insisted(resource, namespace, name)
    } else {
        context.filter.item(resource, namespace, name, labels)
    };
    if verdict == Verdict::Skip(Reason::Credentials) {
        let secrets = context.credentials.secrets.lock();
        let mut secrets = secrets.unwrap_or_else(PoisonError::into_inner);
        secrets.insert(format!("{namespace}/{name}"));
    }
    verdict
}

/// Tells which credentials are not in the backup.
pub(super) fn tell(context: &Context) {
    let secrets = context.credentials.secrets.lock().unwrap_or_else(PoisonError::into_inner);
    if secrets.is_empty() {
        return;
    }
    let names: Vec<&str> = secrets.iter().map(String::as_str).collect();
    let text = format!(
        "credentials of the server are not in the backup: the Secrets {}; keep them elsewhere, or set \
         the annotation {}=true on the Backup to include them; the label \
         velero.io/exclude-from-backup=true on a Secret leaves it out without this warning",
        names.join(", "),
        annotation::INCLUDE_CREDENTIALS
    );
    context.report.warning(About::Run, text);
}
