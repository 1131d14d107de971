//! The server's own credentials, which backups exclude.
//!
//! A reader of a backup must not get the keys of its bucket, of the volume snapshots beside it and of the
//! repositories: with them a reader of one backup can read, and delete, all of them.

use std::collections::BTreeSet;

use bowline_api::{Backup, annotation};
use k8s_openapi::api::core::v1::SecretKeySelector;

use super::Facts;

/// Secrets in the server's namespace that hold credentials, whether or not a location names them: the one that
/// `install` creates, the password of Velero's repositories, and the one that docs/local-volume.md uses.
const WELL_KNOWN: [&str; 3] = ["cloud-credentials", "velero-repo-credentials", "local-volume"];

/// Names of the Secrets in the server's namespace that a backup excludes.
pub(super) fn excluded_secrets(
    backup: &Backup,
    facts: &Facts,
    errors: &mut Vec<String>,
) -> BTreeSet<String> {
    if includes_credentials(backup, errors) {
        return BTreeSet::new();
    }
    let mut names: BTreeSet<String> = WELL_KNOWN.map(str::to_owned).into();
    let mut add = |credential: Option<&SecretKeySelector>| {
        names.extend(credential.map(|credential| credential.name.clone()));
    };
    match &facts.storage_locations {
        Ok(locations) => locations.iter().for_each(|one| add(one.spec.credential.as_ref())),
        // Otherwise the keys of a bucket could silently be in the backup.
        Err(error) => errors.push(format!("error listing backup storage locations: {error}")),
    }
    // A failure to list these is already reported as an error.
    for location in facts.snapshot_locations.iter().flatten() {
        add(location.spec.credential.as_ref());
    }
    names.remove("");
    names
}

/// True if a Backup asks for the server's credentials to be included.
fn includes_credentials(backup: &Backup, errors: &mut Vec<String>) -> bool {
    let key = annotation::INCLUDE_CREDENTIALS;
    let text = backup.metadata.annotations.as_ref().and_then(|all| all.get(key));
    match text.map(String::as_str) {
        Some("true") => true,
        None | Some("false") => false,
        Some(other) => {
            errors.push(format!("the annotation {key} is {other:?}: expected true or false"));
            false
        }
    }
}
