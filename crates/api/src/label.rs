//! Label keys and label values.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

/// Name of the backup that an object belongs to; see [`value`].
pub const BACKUP_NAME: &str = "velero.io/backup-name";
/// UID of the backup that an object belongs to.
pub const BACKUP_UID: &str = "velero.io/backup-uid";
/// Name of the restore that an object belongs to, or that created it; see [`value`].
pub const RESTORE_NAME: &str = "velero.io/restore-name";
/// UID of the restore that an object belongs to.
pub const RESTORE_UID: &str = "velero.io/restore-uid";
/// Name of the schedule of a backup; see [`value`].
pub const SCHEDULE_NAME: &str = "velero.io/schedule-name";
/// Name of the storage location of a backup; see [`value`].
pub const STORAGE_LOCATION: &str = "velero.io/storage-location";
/// UID of the pod of an object.
pub const POD_UID: &str = "velero.io/pod-uid";
/// UID of the claim of an object.
pub const PVC_UID: &str = "velero.io/pvc-uid";
/// Namespace and name of the claim of an object.
pub const PVC_NAMESPACE_NAME: &str = "velero.io/pvc-namespace-name";
/// Namespace of the volumes in a repository.
pub const VOLUME_NAMESPACE: &str = "velero.io/volume-namespace";
/// Format of a repository.
pub const REPOSITORY_TYPE: &str = "velero.io/repository-type";
/// Repository of a maintenance job. Velero shortens long values of this label differently from [`value`]: to a SHA3-224
/// hash.
pub const REPOSITORY_NAME: &str = "velero.io/repo-name";
/// DataUpload of a pod.
pub const DATA_UPLOAD: &str = "velero.io/data-upload";
/// ConfigMap with the snapshot information of a DataUpload.
pub const DATA_UPLOAD_SNAPSHOT_INFO: &str = "velero.io/data-upload-snapshot-info";
/// DataDownload of a pod.
pub const DATA_DOWNLOAD: &str = "velero.io/data-download";
/// PodVolumeBackup of a pod.
pub const POD_VOLUME_BACKUP: &str = "velero.io/pod-volume-backup";
/// PodVolumeRestore of a pod.
pub const POD_VOLUME_RESTORE: &str = "velero.io/pod-volume-restore";
/// Plugin operation of an object.
pub const ASYNC_OPERATION_ID: &str = "velero.io/async-operation-id";
/// Prefix of the operation IDs of DataUploads.
pub const ASYNC_OPERATION_ID_DATA_UPLOAD: &str = "du-";
/// Prefix of the operation IDs of DataDownloads.
pub const ASYNC_OPERATION_ID_DATA_DOWNLOAD: &str = "dd-";
/// Purpose of an object.
pub const RESOURCE_USAGE: &str = "velero.io/resource-usage";
/// Value of [`RESOURCE_USAGE`] on the ConfigMap with a DataUpload's result.
pub const RESOURCE_USAGE_DATA_UPLOAD: &str = "DataUpload";
/// `"true"` on objects that every backup excludes.
pub const EXCLUDE_FROM_BACKUP: &str = "velero.io/exclude-from-backup";
/// Groups claims that are snapshotted together, unless the backup names another label.
pub const VOLUME_GROUP: &str = "velero.io/volume-group";
/// VolumeSnapshot of an object.
pub const VOLUME_SNAPSHOT_NAME: &str = "velero.io/volume-snapshot-name";
/// `"true"` on the VolumeSnapshotClass to use for its driver.
pub const VOLUME_SNAPSHOT_CLASS: &str = "velero.io/csi-volumesnapshot-class";
/// `"true"` on the VolumeGroupSnapshotClass to use for its driver.
pub const VOLUME_GROUP_SNAPSHOT_CLASS: &str = "velero.io/csi-volumegroupsnapshot-class";
/// Claim whose volume its storage class provisions anew.
pub const DYNAMIC_PV_RESTORE: &str = "velero.io/dynamic-pv-restore";
/// Reason why an expired backup could not be deleted.
pub const GC_FAILURE: &str = "velero.io/gc-failure";
/// On pods and claims that expose the data of a snapshot.
pub const EXPOSE_ON_GOING: &str = "velero.io/expose-on-going";
/// Groups the pods that expose data.
pub const EXPOSER_POD_GROUP: &str = "velero.io/exposer-pod-group";
/// Copy of a Secret for a claim that exposes a snapshot.
pub const BACKUP_PVC_SECRET: &str = "velero.io/backup-pvc-secret";
/// On ConfigMaps that configure plugins; the plugin's name is another label.
pub const PLUGIN_CONFIG: &str = "velero.io/plugin-config";
/// `velero` on all objects of the installation.
pub const COMPONENT: &str = "component";

/// On VolumePluginBackups and VolumePluginRestores that the server writes.
pub const MANAGED: &str = "bowline.io/managed";
/// UID of the run of a journal page.
pub const JOURNAL: &str = "bowline.io/journal";
/// `retention` on a DeleteBackupRequest for an expired backup.
pub const REQUESTED_BY: &str = "bowline.io/requested-by";
/// Value of [`REQUESTED_BY`] for an expired backup.
pub const BY_RETENTION: &str = "retention";
/// Kind of the run of a journal page: `Backup` or `Restore`.
pub const RUN_KIND: &str = "bowline.io/run-kind";

/// Longest label value that Kubernetes allows.
const MAX_VALUE_LENGTH: usize = 63;
const HASH_DIGITS: usize = 6;

/// A name as a label value: the name itself if it fits, otherwise its beginning and six digits of its hash.
///
/// The result is the same as Velero's, which finds objects by it. A character that would be cut in two is dropped;
/// Velero's result is not valid UTF-8 in this case, nor a label value.
pub fn value(name: &str) -> Cow<'_, str> {
    if name.len() <= MAX_VALUE_LENGTH {
        return Cow::Borrowed(name);
    }
    let beginning = &name[..name.floor_char_boundary(MAX_VALUE_LENGTH - HASH_DIGITS)];
    let hash = Sha256::digest(name.as_bytes());
    Cow::Owned(format!("{beginning}{}", hex::encode(&hash[..HASH_DIGITS / 2])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Row {
        input: String,
        output: String,
    }

    #[test]
    fn values_match_veleros() {
        let rows: Vec<Row> =
            serde_json::from_str(include_str!("../tests/golden/labels.json")).unwrap();
        assert!(rows.iter().any(|row| row.input != row.output));
        for row in rows {
            assert_eq!(value(&row.input), row.output);
        }
    }

    #[test]
    fn characters_are_never_split() {
        let name = format!("{}{}", "a".repeat(56), "é".repeat(10));
        let value = value(&name);
        assert!(value.starts_with(&"a".repeat(56)));
        assert_eq!(value.len(), 62);
    }
}
