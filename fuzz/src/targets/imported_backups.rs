//! Backups that are found in a bucket: the commit record, and the objects that are imported with it.
//!
//! Three parts: the record, the list of PodVolumeBackups, the list of VolumePluginBackups.

use bowline_api::backup::BackupHooks;
use bowline_api::{Backup, BackupPhase, PodVolumeBackup, VolumePluginBackup, annotation};
use bowline_server::controllers::backup_sync::{INCOMPLETE, testing as import};
use bowline_store::decode;
use bowline_store::name::BackupName;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::parts;

/// Uid of the Backup in this cluster.
const UID: &str = "here-1";

pub(super) fn run(input: &[u8]) {
    let [record, pod_volume_backups, volume_plugin_backups] = parts(input);
    let name = serde_json::from_slice::<serde_json::Value>(record).ok();
    let name = name.and_then(|record| Some(record.pointer("/metadata/name")?.as_str()?.to_owned()));
    let name = BackupName::new(name.unwrap_or_default())
        .unwrap_or_else(|_| BackupName::new("b").expect("a valid name"));
    let Ok(record) = decode::read_record(record, &name) else { return };
    let schedules = [("nightly".to_owned(), "1".to_owned())];
    let now = Timestamp::from_second(1_800_000_000).expect("a time");
    let Some(mut backup) = import::import_record(record, &schedules, now) else { return };
    check_backup(&backup, &name, now);
    let text = serde_json::to_vec(&backup).expect("a Backup can be written");
    let again: Backup = serde_json::from_slice(&text).expect("what we write, we read");
    assert_eq!(serde_json::to_vec(&again).expect("a Backup can be written"), text);

    backup.metadata.uid = Some(UID.to_owned());
    let children: Vec<PodVolumeBackup> =
        serde_json::from_slice(pod_volume_backups).unwrap_or_default();
    for child in children {
        let Some(child) = import::import_pod_volume_backup(child, &backup) else { continue };
        let phase = child.status.as_ref().and_then(|status| status.phase.as_ref());
        assert!(
            phase.is_some_and(bowline_api::transfer::TransferPhase::is_terminal),
            "{phase:?} would be continued"
        );
        assert_eq!(child.spec.backup_storage_location, import::LOCATION);
        check_child(&child.metadata);
    }
    let children: Vec<VolumePluginBackup> =
        serde_json::from_slice(volume_plugin_backups).unwrap_or_default();
    for child in children {
        let Some(child) = import::import_volume_plugin_backup(child, &backup) else { continue };
        assert_eq!(child.spec.backup, name.as_str());
        check_child(&child.metadata);
    }
}

/// Checks that a record gives no orders.
fn check_backup(backup: &Backup, name: &BackupName, now: Timestamp) {
    let metadata = &backup.metadata;
    assert_eq!(metadata.name.as_deref(), Some(name.as_str()));
    check_metadata(metadata);
    for owner in metadata.owner_references.iter().flatten() {
        assert_eq!((&*owner.kind, &*owner.name, &*owner.uid), ("Schedule", "nightly", "1"));
    }
    let allowed = [INCOMPLETE, annotation::SNAPSHOT_TYPE, annotation::RECORD_UID];
    for key in metadata.annotations.iter().flatten().map(|(key, _)| key.as_str()) {
        assert!(!key.starts_with("bowline.io/") || allowed.contains(&key), "{key}");
    }
    assert_eq!(backup.spec.storage_location, import::LOCATION);
    assert_eq!(backup.spec.hooks, BackupHooks::default());
    let status = backup.status.as_ref().expect("an imported backup has a status");
    let phase = status.phase.as_ref().expect("an imported backup has a phase");
    assert!(phase.is_terminal() || *phase == BackupPhase::Deleting, "{phase} would be run");
    let earliest = now + SignedDuration::from_hours(24) - SignedDuration::from_secs(1);
    assert!(status.expiration.as_ref().is_none_or(|expiration| expiration.0 >= earliest));
}

fn check_child(metadata: &ObjectMeta) {
    check_metadata(metadata);
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    assert!(matches!(owners, [owner] if owner.uid == UID && owner.kind == "Backup"), "{owners:?}");
}

/// Checks that nothing but name, labels and annotations comes from another cluster.
fn check_metadata(metadata: &ObjectMeta) {
    let rest = ObjectMeta {
        name: None,
        labels: None,
        annotations: None,
        owner_references: None,
        ..metadata.clone()
    };
    let expected =
        ObjectMeta { namespace: Some(import::NAMESPACE.to_owned()), ..ObjectMeta::default() };
    assert_eq!(rest, expected);
}
