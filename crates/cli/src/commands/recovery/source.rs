//! Objects of an installation that belong into a recovery file.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bowline_api::{BackupStorageLocation, VolumeSnapshotLocation};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use sha2::{Digest as _, Sha256};

use super::contents::{
    Contents, ExportInfo, portable_backup_location, portable_secret, portable_snapshot_location,
};
use crate::commands::install::CREDENTIALS_SECRET;
use crate::installation::{Installation, is_not_found};
use crate::listing;

/// Secrets that backups exclude by name, even if no location names them: the credentials of the server, the password of
/// Velero's repositories, and that of the plugin for local volumes as its page calls it.
const WELL_KNOWN_SECRETS: [&str; 3] =
    [CREDENTIALS_SECRET, "velero-repo-credentials", "local-volume"];
/// Settings of locations that name files of the server's pod, which cannot be exported from here.
const FILE_SETTINGS: [&str; 2] = ["passwordFile", "credentialsFile"];

/// Exportable objects of an installation.
#[derive(Debug)]
pub(super) struct RecoverySource {
    pub(super) contents: Contents,
    /// Named objects that cannot be in the file, and the objects that name them.
    pub(super) missing: Vec<String>,
    /// Changes with each Secret and location.
    pub(super) digest: String,
}

/// Finds the locations of an installation, and the Secrets that they and the server use.
pub(super) async fn gather(installation: &Installation) -> anyhow::Result<RecoverySource> {
    let mut backups: Vec<BackupStorageLocation> = listing::find(installation, &[], None).await?;
    let mut snapshots: Vec<VolumeSnapshotLocation> = listing::find(installation, &[], None).await?;
    backups.sort_by_key(ResourceExt::name_any);
    snapshots.sort_by_key(ResourceExt::name_any);
    let users = named_secrets(&backups, &snapshots);
    let names: BTreeSet<&str> =
        users.keys().map(String::as_str).chain(WELL_KNOWN_SECRETS).collect();
    let (mut secrets, mut gaps) = (Vec::new(), file_settings(&backups, &snapshots));
    for name in names {
        match (find_secret(installation, name).await?, users.get(name)) {
            (Some(secret), _) => secrets.push(secret),
            (None, Some(users)) => {
                gaps.push(format!("Secret {name}: not found; referenced by {}", users.join(", ")));
            }
            (None, None) => {}
        }
    }
    let digest = digest(&secrets, &backups, &snapshots)?;
    let now = jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string();
    let contents = Contents {
        about: ExportInfo::new(now, installation.namespace().to_owned()),
        secrets: secrets.iter().map(portable_secret).collect(),
        backup_locations: backups.iter().map(portable_backup_location).collect(),
        snapshot_locations: snapshots.iter().map(portable_snapshot_location).collect(),
    };
    Ok(RecoverySource { contents, missing: gaps, digest })
}

async fn find_secret(installation: &Installation, name: &str) -> anyhow::Result<Option<Secret>> {
    let api = installation.api::<Secret>();
    let request = async {
        match api.get(name).await {
            Ok(secret) => Ok(Some(secret)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    };
    installation.call_api(&format!("read Secret `{name}`"), request).await
}

/// Secrets that locations name, with the locations.
fn named_secrets(
    backups: &[BackupStorageLocation],
    snapshots: &[VolumeSnapshotLocation],
) -> BTreeMap<String, Vec<String>> {
    let mut named: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for location in backups {
        let storage = location.spec.object_storage.as_ref();
        let certificates = storage.and_then(|storage| storage.ca_cert_ref.as_ref());
        for selector in location.spec.credential.iter().chain(certificates) {
            let user = format!("backup location {}", location.name_any());
            named.entry(selector.name.clone()).or_default().push(user);
        }
    }
    for location in snapshots {
        if let Some(selector) = &location.spec.credential {
            let user = format!("snapshot location {}", location.name_any());
            named.entry(selector.name.clone()).or_default().push(user);
        }
    }
    named.remove("");
    named
}

/// Files that locations name: they exist in the server's pod only.
fn file_settings(
    backups: &[BackupStorageLocation],
    snapshots: &[VolumeSnapshotLocation],
) -> Vec<String> {
    let backups = backups.iter().map(|location| {
        (format!("backup location {}", location.name_any()), &location.spec.config)
    });
    let snapshots = snapshots.iter().map(|location| {
        (format!("snapshot location {}", location.name_any()), &location.spec.config)
    });
    let mut gaps = Vec::new();
    for (user, config) in backups.chain(snapshots) {
        for setting in FILE_SETTINGS.iter().filter(|setting| config.contains_key(**setting)) {
            gaps.push(format!(
                "{user}: `{setting}` is the path of a file on the server, which is not exported; \
                 keep a copy of it elsewhere"
            ));
        }
    }
    gaps
}

/// Digest over the objects to export. Secrets take part by their versions: a digest of their values would help to guess
/// them.
fn digest(
    secrets: &[Secret],
    backups: &[BackupStorageLocation],
    snapshots: &[VolumeSnapshotLocation],
) -> anyhow::Result<String> {
    let mut lines = Vec::new();
    for secret in secrets {
        let [uid, version] =
            [secret.uid(), secret.resource_version()].map(Option::unwrap_or_default);
        lines.push(format!("secret {} {uid} {version}", secret.name_any()));
    }
    for location in backups {
        let spec = serde_json::to_string(&location.spec)?;
        lines.push(format!("backup-location {} {spec}", location.name_any()));
    }
    for location in snapshots {
        let spec = serde_json::to_string(&location.spec)?;
        lines.push(format!("snapshot-location {} {spec}", location.name_any()));
    }
    Ok(BASE64.encode(Sha256::digest(lines.join("\n"))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn backup(name: &str, spec: &serde_json::Value) -> BackupStorageLocation {
        BackupStorageLocation::new(name, serde_json::from_value(spec.clone()).unwrap())
    }

    fn snapshot(name: &str, spec: &serde_json::Value) -> VolumeSnapshotLocation {
        VolumeSnapshotLocation::new(name, serde_json::from_value(spec.clone()).unwrap())
    }

    #[test]
    fn every_secret_named_by_a_location_is_found_with_its_users() {
        let backups = [
            backup("a", &json!({"provider": "aws", "credential": {"name": "keys", "key": "k"}})),
            backup(
                "b",
                &json!({
                    "provider": "aws", "credential": {"name": "keys", "key": "other"},
                    "objectStorage": {"bucket": "b", "caCertRef": {"name": "ca", "key": "c"}},
                }),
            ),
        ];
        let local = json!({
            "provider": "bowline.io/local-volume", "credential": {"name": "password", "key": "c"},
            "config": {"passwordFile": "/p"},
        });
        let snapshots = [snapshot("local", &local), snapshot("plain", &json!({"provider": "x"}))];
        let named = named_secrets(&backups, &snapshots);
        let named: Vec<(&str, usize)> =
            named.iter().map(|(name, users)| (name.as_str(), users.len())).collect();
        assert_eq!(named, [("ca", 1), ("keys", 2), ("password", 1)]);
        let outside = file_settings(&backups, &snapshots);
        assert_eq!(outside.len(), 1);
        assert!(outside[0].starts_with("snapshot location local: `passwordFile`"), "{outside:?}");
    }

    #[test]
    fn the_digest_changes_with_secrets_and_locations_and_not_with_their_status() {
        let secret = |version: &str| -> Secret {
            let metadata = json!({"name": "s", "uid": "u", "resourceVersion": version});
            serde_json::from_value(json!({"metadata": metadata, "data": {"k": "dg=="}})).unwrap()
        };
        let one = backup("a", &json!({"provider": "aws"}));
        let mut with_status = one.clone();
        with_status.metadata.resource_version = Some("9".to_owned());
        with_status.status =
            Some(bowline_api::backup_storage_location::BackupStorageLocationStatus {
                message: "checked".to_owned(),
                ..Default::default()
            });
        let digest_of = |version: &str, location: &BackupStorageLocation| {
            digest(&[secret(version)], std::slice::from_ref(location), &[]).unwrap()
        };
        assert_eq!(digest_of("1", &one), digest_of("1", &with_status));
        assert_ne!(digest_of("1", &one), digest_of("2", &one));
        assert_ne!(digest_of("1", &one), digest_of("1", &backup("a", &json!({"provider": "gcp"}))));
    }
}
