//! Record of an export in the cluster, so that `install` can remind the user if none was made.

use std::collections::BTreeMap;

use bowline_api::label;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::source::RecoverySource;
use crate::commands::install::{MANAGED_BY_LABEL, NAME};
use crate::installation::{Installation, is_not_found};

/// ConfigMap with the record.
const RECORD_NAME: &str = "bowline-recovery-export";
const EXPORTED_KEY: &str = "exported";
const DIGEST_KEY: &str = "digest";

/// State of the recovery export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExportState {
    /// There are no credentials.
    NotNeeded,
    /// No export was ever made. These Secrets are in no file.
    Never(Vec<String>),
    /// Something has changed since the export at that time.
    Outdated(String),
    Current,
}

impl ExportState {
    /// Reminder for the user, who exports with `command`.
    pub(super) fn reminder(&self, command: &str) -> Option<String> {
        match self {
            Self::NotNeeded | Self::Current => None,
            Self::Never(secrets) => Some(format!(
                "hint: backups exclude credentials ({}), and no recovery file contains them: a \
                 rebuilt cluster could not read its backups; run {command} and keep the file \
                 elsewhere",
                secrets.join(", ")
            )),
            Self::Outdated(exported) => Some(format!(
                "hint: credentials or locations have changed since the recovery export of {exported}; run {command} \
                 again"
            )),
        }
    }
}

pub(super) async fn state(
    installation: &Installation,
    found: &RecoverySource,
) -> anyhow::Result<ExportState> {
    let api = installation.api::<ConfigMap>();
    let request = async {
        match api.get(RECORD_NAME).await {
            Ok(record) => Ok(Some(record)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    };
    let record = installation.call_api(&format!("read ConfigMap `{RECORD_NAME}`"), request).await?;
    Ok(export_state(found, record.and_then(|record| record.data).as_ref()))
}

fn export_state(found: &RecoverySource, record: Option<&BTreeMap<String, String>>) -> ExportState {
    if found.contents.secrets.is_empty() {
        return ExportState::NotNeeded;
    }
    let value = |key: &str| record.and_then(|record| record.get(key));
    match (value(EXPORTED_KEY), value(DIGEST_KEY)) {
        (Some(_), Some(digest)) if *digest == found.digest => ExportState::Current,
        (Some(exported), _) => ExportState::Outdated(exported.clone()),
        (None, _) => {
            let secrets = &found.contents.secrets;
            let names = secrets.iter().filter_map(|secret| secret.metadata.name.as_deref());
            ExportState::Never(names.map(|name| format!("Secret {name}")).collect())
        }
    }
}

/// Records that all of this was exported.
pub(super) async fn write_record(
    installation: &Installation,
    found: &RecoverySource,
) -> anyhow::Result<()> {
    let record = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": RECORD_NAME,
            // Restored into another cluster, it would refer to a file without that cluster's objects.
            "labels": {label::EXCLUDE_FROM_BACKUP: "true", MANAGED_BY_LABEL: NAME},
        },
        "data": {EXPORTED_KEY: found.contents.about.exported, DIGEST_KEY: found.digest},
    });
    let api = installation.api::<ConfigMap>();
    let params = PatchParams::apply(NAME).force();
    let patch = Patch::Apply(&record);
    let request = api.patch(RECORD_NAME, &params, &patch);
    installation.call_api(&format!("write ConfigMap `{RECORD_NAME}`"), request).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;

    use super::super::contents::{Contents, ExportInfo};
    use super::*;

    fn found(secrets: usize, digest: &str) -> RecoverySource {
        let secret: Secret = serde_json::from_value(json!({"metadata": {"name": "c"}})).unwrap();
        let contents = Contents {
            about: ExportInfo::new("2026-11-16T14:00:00Z".to_owned(), "velero".to_owned()),
            secrets: vec![secret; secrets],
            backup_locations: Vec::new(),
            snapshot_locations: Vec::new(),
        };
        RecoverySource { contents, missing: Vec::new(), digest: digest.to_owned() }
    }

    #[test]
    fn export_is_due_until_done_and_after_each_change() {
        let record = |digest: &str| {
            BTreeMap::from([
                (EXPORTED_KEY.to_owned(), "yesterday".to_owned()),
                (DIGEST_KEY.to_owned(), digest.to_owned()),
            ])
        };
        assert_eq!(export_state(&found(0, "a"), None), ExportState::NotNeeded);
        let never = export_state(&found(1, "a"), None);
        assert_eq!(never, ExportState::Never(vec!["Secret c".to_owned()]));
        assert!(never.reminder("`x`").unwrap().contains("(Secret c)"));
        assert_eq!(export_state(&found(1, "a"), Some(&record("a"))), ExportState::Current);
        let changed = export_state(&found(1, "b"), Some(&record("a")));
        assert!(
            changed.reminder("`x`").unwrap().contains("since the recovery export of yesterday")
        );
        assert_eq!(ExportState::Current.reminder("`x`"), None);
    }
}
