//! `bowline backup-location get`

use bowline_api::BackupStorageLocation;
use bowline_api::backup_storage_location::AccessMode;
use bowline_api::condition::{DEGRADED, SYNCED, TLS_VERIFIED};
use bowline_api::location::LocationPhase;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::listing::ResourceKind as _;
use crate::relative_time;
use crate::table::{self, Tabular};

/// List backup storage locations
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    list: table::Args,

    /// List only the default location
    #[arg(long, conflicts_with_all = ["names", "selector"])]
    default: bool,
}

pub(crate) async fn run(args: &Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let mut locations: Vec<BackupStorageLocation> = table::find(&args.list, &installation).await?;
    locations.retain(|location| !args.default || location.spec.default);
    table::show(&installation, locations, &args.list)
}

impl Tabular for BackupStorageLocation {
    const HEADER: &'static [&'static str] =
        &["NAME", "PROVIDER", "BUCKET/PREFIX", "PHASE", "LAST VALIDATED", "ACCESS MODE", "DEFAULT"];

    fn row(&self, _: Timestamp) -> Vec<String> {
        let unknown = || "Unknown".to_owned();
        let last = self.status.as_ref().and_then(|status| status.last_validation_time.as_ref());
        vec![
            self.name_any(),
            self.spec.provider.clone(),
            bucket(self),
            phase(self),
            last.map_or_else(unknown, relative_time::go_format),
            access_mode(self),
            if self.spec.default { "true".to_owned() } else { String::new() },
        ]
    }

    /// Reason why it cannot be used, or why not all of its backups are in the cluster.
    fn warning(&self) -> Option<String> {
        let status = self.status.as_ref()?;
        let name = self.name_any();
        if status.phase == Some(LocationPhase::Unavailable) {
            let message = Some(&status.message).filter(|message| !message.is_empty())?;
            return Some(format!("{} `{name}` is Unavailable: {message}", Self::NOUN));
        }
        let warnings = failing_conditions(self).into_iter().map(|condition| {
            let problem = match condition.type_.as_str() {
                SYNCED => "is not synced",
                DEGRADED => "is degraded",
                _ => "is not secure",
            };
            format!("{} `{name}` {problem}: {}", Self::NOUN, condition.message)
        });
        let warnings: Vec<String> = warnings.collect();
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }
}

/// Conditions of a location that report a problem.
pub(super) fn failing_conditions(location: &BackupStorageLocation) -> Vec<&Condition> {
    let conditions = location.status.iter().flat_map(|status| &status.conditions);
    let is_wrong = |condition: &&Condition| {
        let bad = if condition.type_ == DEGRADED { "True" } else { "False" };
        [SYNCED, DEGRADED, TLS_VERIFIED].contains(&condition.type_.as_str())
            && condition.status == bad
    };
    conditions.filter(is_wrong).collect()
}

/// Bucket, and the prefix in it.
pub(super) fn bucket(location: &BackupStorageLocation) -> String {
    let bucket = location.spec.object_storage.as_ref().map(|bucket| match bucket.prefix.as_str() {
        "" => bucket.bucket.clone(),
        prefix => format!("{}/{prefix}", bucket.bucket),
    });
    bucket.unwrap_or_default()
}

pub(super) fn phase(location: &BackupStorageLocation) -> String {
    let phase = location.status.as_ref().and_then(|status| status.phase.as_ref());
    let phase = phase.map(ToString::to_string).filter(|phase| !phase.is_empty());
    phase.unwrap_or_else(|| "Unknown".to_owned())
}

pub(super) fn access_mode(location: &BackupStorageLocation) -> String {
    let mode = location.spec.access_mode.clone().filter(|mode| !mode.as_str().is_empty());
    mode.unwrap_or(AccessMode::ReadWrite).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::table::{LabelColumns, table};

    #[test]
    fn the_table_shows_what_velero_shows() {
        let location = |name: &str, spec: Value, status: Value| {
            let object = json!({
                "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
                "metadata": {"name": name}, "spec": spec, "status": status,
            });
            serde_json::from_value::<BackupStorageLocation>(object).unwrap()
        };
        let locations = [
            location(
                "default",
                json!({"provider": "aws", "default": true,
                       "objectStorage": {"bucket": "b", "prefix": "p/q"}}),
                json!({"phase": "Available", "lastValidationTime": "2026-01-02T03:04:05Z"}),
            ),
            location(
                "old",
                json!({"provider": "velero.io/gcp", "accessMode": "ReadOnly",
                       "objectStorage": {"bucket": "archive"}}),
                json!(null),
            ),
            location("empty", json!({}), json!({})),
        ];
        insta::assert_snapshot!(table(&locations, &LabelColumns::default(), Timestamp::UNIX_EPOCH));
    }

    #[test]
    fn available_location_with_failing_sync_has_a_warning() {
        let condition = |type_: &str, status: &str, message: &str| {
            json!({"type": type_, "status": status, "reason": "R", "message": message,
                   "lastTransitionTime": "2026-01-02T03:04:05Z"})
        };
        let location = |conditions: &[Value]| -> BackupStorageLocation {
            serde_json::from_value(json!({
                "metadata": {"name": "l"}, "spec": {},
                "status": {"phase": "Available", "conditions": conditions},
            }))
            .unwrap()
        };
        let failing = location(&[
            condition("Synced", "False", "access denied"),
            condition("Degraded", "True", "1 backup is not synced into the cluster"),
        ]);
        let warning = failing.warning().unwrap();
        assert!(warning.contains("`l` is not synced: access denied"), "{warning}");
        assert!(
            warning.contains("`l` is degraded: 1 backup is not synced into the cluster"),
            "{warning}"
        );
        let well = [condition("Synced", "True", ""), condition("Degraded", "False", "")];
        assert_eq!(location(&well).warning(), None);
    }
}
