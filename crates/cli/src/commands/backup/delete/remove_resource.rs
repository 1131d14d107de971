//! `bowline backup delete --forget`: removes the Backup resource alone.
//!
//! For a bucket that does not come back, or a plugin that is gone: the server deletes nothing then, since the record of
//! the data that it cannot delete would be lost. This command lists the leftovers, as far as the cluster knows them,
//! and removes the resource. It contacts neither the server nor the bucket.

use std::collections::BTreeSet;

use anyhow::bail;
use bowline_api::{
    Backup, BackupPhase, BackupStorageLocation, DataUpload, PodVolumeBackup, VolumePluginBackup,
    label,
};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Resource, ResourceExt as _};

use super::{is_available, storage_location};
use crate::installation::Installation;
use crate::output::{self, strip_control_chars};
use crate::{listing, pages};

/// Removes Backups, each after listing its leftovers.
pub(super) async fn remove_backup_resources(
    installation: &Installation,
    backups: &[Backup],
) -> anyhow::Result<()> {
    for backup in backups {
        check_ended(backup)?;
    }
    let mut may_return_later = false;
    for backup in backups {
        let name = backup.name_any();
        let location = storage_location(installation, backup).await?;
        let leftovers = leftovers(installation, backup, location.as_ref()).await?;
        output::print_message(format_args!("backup `{name}` leaves behind:"));
        for line in &leftovers {
            output::print_data(format!("{}\n", strip_control_chars(line)))?;
        }
        match sync_hint(backup, location.as_ref()) {
            Some(hint) => output::print_message(hint),
            None => may_return_later = true,
        }
        listing::delete::<Backup>(installation, &name).await?;
        output::print_message(format_args!("backup `{name}` removed from the cluster"));
    }
    if may_return_later {
        output::print_message(
            "hint: if the storage location becomes readable again and the files still exist, the server syncs \
             the backup into the cluster again; delete it then",
        );
    }
    Ok(())
}

/// Warning about a backup that the server can still read, and so syncs back at once.
fn sync_hint(backup: &Backup, location: Option<&BackupStorageLocation>) -> Option<String> {
    let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
    // A rejected backup has stored nothing that could come back.
    if phase == Some(&BackupPhase::FailedValidation) || !location.is_some_and(is_available) {
        return None;
    }
    Some(format!(
        "hint: storage location `{}` is available, so the next sync recreates this backup; omit --forget to \
         delete it for good",
        backup.spec.storage_location
    ))
}

/// Refuses a backup that has not ended: its run would continue without it.
fn check_ended(backup: &Backup) -> anyhow::Result<()> {
    let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
    if phase.is_some_and(BackupPhase::is_terminal) {
        return Ok(());
    }
    let name = backup.name_any();
    let phase = phase.map_or_else(|| "New".to_owned(), ToString::to_string);
    bail!(
        "backup `{name}` is {phase}, so it cannot be removed; hint: cancel it with `bowline backup cancel \
         {name}` first"
    );
}

/// Leftovers of a removed Backup, one line each.
async fn leftovers(
    installation: &Installation,
    backup: &Backup,
    location: Option<&BackupStorageLocation>,
) -> anyhow::Result<Vec<String>> {
    let name = backup.name_any();
    let mut lines = vec![files_line(&name, &backup.spec.storage_location, location)];
    let value = label::value(&name);
    let has_backup_label = |labels: &std::collections::BTreeMap<String, String>| {
        labels.get(label::BACKUP_NAME).is_some_and(|label_value| *label_value == value)
    };
    let reports: Vec<VolumePluginBackup> = list(installation, None).await?;
    let reports =
        reports.iter().filter(|one| one.spec.backup == name || has_backup_label(one.labels()));
    let snapshots: BTreeSet<String> = reports.filter_map(reported_snapshot_line).collect();
    lines.extend(snapshots.iter().cloned());
    let selector = format!("{}={value}", label::BACKUP_NAME);
    let copies: Vec<PodVolumeBackup> = list(installation, Some(&selector)).await?;
    let copies = copies.iter().filter_map(|copy| {
        let id = copy.status.as_ref().map_or("", |status| status.snapshot_id.as_str());
        (!id.is_empty()).then(|| format!("pod volume backup {}: snapshot {id}", copy.name_any()))
    });
    lines.extend(copies);
    let uploads: Vec<DataUpload> = list(installation, Some(&selector)).await?;
    let uploads = uploads.iter().filter_map(|upload| {
        let id = upload.status.as_ref().map_or("", |status| status.snapshot_id.as_str());
        (!id.is_empty()).then(|| format!("data upload {}: snapshot {id}", upload.name_any()))
    });
    lines.extend(uploads);
    lines.extend(csi_snapshot_lines(installation, &selector).await?);
    lines.extend(unlisted_snapshot_lines(backup, snapshots.len()));
    Ok(lines)
}

/// Line about the files of a backup.
fn files_line(name: &str, location: &str, found: Option<&BackupStorageLocation>) -> String {
    if location.is_empty() {
        return "no files: the backup has no storage location".to_owned();
    }
    let storage = found.and_then(|found| found.spec.object_storage.as_ref());
    let Some(storage) = storage else {
        return format!(
            "files in storage location {location}, which no longer exists: prefix backups/{name}/"
        );
    };
    let prefix = match storage.prefix.trim_matches('/') {
        "" => String::new(),
        prefix => format!("{prefix}/"),
    };
    format!(
        "files in storage location {location}: bucket {}, prefix {prefix}backups/{name}/",
        storage.bucket
    )
}

/// Snapshot reported by a plugin, if there is one.
fn reported_snapshot_line(report: &VolumePluginBackup) -> Option<String> {
    let id = report.status.as_ref()?.snapshot_id.as_str();
    let volume = &report.spec.volume;
    (!id.is_empty()).then(|| format!("snapshot {id} of volume {volume}"))
}

/// VolumeSnapshotContents of a backup in the cluster. None where the kind is not served.
async fn csi_snapshot_lines(
    installation: &Installation,
    selector: &str,
) -> anyhow::Result<Vec<String>> {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent");
    let resource = ApiResource::from_gvk_with_plural(&kind, "volumesnapshotcontents");
    let api: Api<DynamicObject> = Api::all_with(installation.client(), &resource);
    let doing = "list VolumeSnapshotContents";
    let params = ListParams::default().labels(selector);
    let request = async |params: &ListParams| api.list(params).await;
    let line = |content: DynamicObject| Some(csi_snapshot_line(&content.name_any(), &content.data));
    let listed = pages::list_if_served(installation, doing, params, request, line).await;
    // The user may lack the permission to list them.
    Ok(listed.unwrap_or_else(|_| {
        vec!["CSI snapshots: VolumeSnapshotContents cannot be listed".to_owned()]
    }))
}

fn csi_snapshot_line(name: &str, content: &serde_json::Value) -> String {
    let text = |pointer: &str| content.pointer(pointer).and_then(|value| value.as_str());
    let handle = text("/status/snapshotHandle").or_else(|| text("/spec/source/snapshotHandle"));
    let driver = text("/spec/driver").unwrap_or("unknown");
    let handle = handle.unwrap_or("unknown");
    format!("CSI snapshot {handle} of driver {driver}: VolumeSnapshotContent {name}")
}

/// Snapshots that the status counts and no object in the cluster names.
fn unlisted_snapshot_lines(backup: &Backup, listed: usize) -> Vec<String> {
    let status = backup.status.clone().unwrap_or_default();
    let count = |count: i64| usize::try_from(count).unwrap_or_default();
    let plugins = count(status.volume_snapshots_completed).saturating_sub(listed);
    let csi = count(status.csi_volume_snapshots_completed);
    let mut lines = Vec::new();
    if plugins > 0 {
        lines.push(format!("snapshots recorded only in the bucket: {plugins}"));
    }
    if csi > 0 {
        lines.push(format!("CSI snapshots completed by the backup: {csi}"));
    }
    lines
}

/// Objects of the installation; none of a kind that is not installed.
async fn list<K>(installation: &Installation, selector: Option<&str>) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let api: Api<K> = installation.api();
    let doing = "list the leftovers of the backup";
    let params =
        ListParams { label_selector: selector.map(str::to_owned), ..ListParams::default() };
    let request = async |params: &ListParams| api.list(params).await;
    pages::list_if_served(installation, doing, params, request, Some).await
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn backup(status: &Value) -> Backup {
        serde_json::from_value(json!({
            "metadata": {"name": "b"}, "spec": {"storageLocation": "l"}, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn only_an_ended_backup_resource_is_removed() {
        for (phase, is_over) in [
            ("Completed", true),
            ("PartiallyFailed", true),
            ("Failed", true),
            ("Deleting", true),
            ("FailedValidation", true),
            ("InProgress", false),
            ("Queued", false),
        ] {
            let checked = check_ended(&backup(&json!({"phase": phase})));
            assert_eq!(checked.is_ok(), is_over, "{phase}");
        }
        let error = check_ended(&backup(&json!({}))).unwrap_err().to_string();
        assert!(error.contains("is New") && error.contains("backup cancel b"), "{error}");
    }

    #[test]
    fn a_backup_that_the_next_sync_recreates_is_reported() {
        let location = |phase: &str| -> BackupStorageLocation {
            serde_json::from_value(json!({
                "metadata": {"name": "l"}, "spec": {"provider": "aws"}, "status": {"phase": phase},
            }))
            .unwrap()
        };
        let hint = |backup_phase: &str, location: Option<&BackupStorageLocation>| {
            sync_hint(&backup(&json!({"phase": backup_phase})), location)
        };
        let text = hint("Completed", Some(&location("Available"))).unwrap();
        assert!(text.starts_with("hint: storage location `l` is available"), "{text}");
        assert_eq!(hint("Completed", Some(&location("Unavailable"))), None);
        assert_eq!(hint("Completed", None), None);
        assert_eq!(hint("FailedValidation", Some(&location("Available"))), None);
    }

    #[test]
    fn known_leftovers_are_listed() {
        let location: BackupStorageLocation = serde_json::from_value(json!({
            "metadata": {"name": "l"},
            "spec": {"provider": "aws", "objectStorage": {"bucket": "bk", "prefix": "/p/"}},
        }))
        .unwrap();
        assert_eq!(
            files_line("b", "l", Some(&location)),
            "files in storage location l: bucket bk, prefix p/backups/b/"
        );
        assert!(files_line("b", "l", None).contains("no longer exists: prefix backups/b/"));
        let report: VolumePluginBackup = serde_json::from_value(json!({
            "metadata": {"name": "r"}, "spec": {"backup": "b", "volume": "pv-1"},
            "status": {"snapshotID": "snap-1"},
        }))
        .unwrap();
        assert_eq!(
            reported_snapshot_line(&report).as_deref(),
            Some("snapshot snap-1 of volume pv-1")
        );
        let content = json!({"spec": {"driver": "d"}, "status": {"snapshotHandle": "h"}});
        assert_eq!(
            csi_snapshot_line("vsc", &content),
            "CSI snapshot h of driver d: VolumeSnapshotContent vsc"
        );
        let status = json!({
            "phase": "Completed", "volumeSnapshotsCompleted": 3, "csiVolumeSnapshotsCompleted": 2,
        });
        assert_eq!(
            unlisted_snapshot_lines(&backup(&status), 1),
            [
                "snapshots recorded only in the bucket: 2",
                "CSI snapshots completed by the backup: 2"
            ]
        );
    }
}
