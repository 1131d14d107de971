//! Annotation keys and finalizers.

/// Time limit for the pod volume operations of a backup or restore.
pub const POD_VOLUME_TIMEOUT: &str = "velero.io/pod-volume-timeout";
/// Git version of the cluster that a backup is from.
pub const SOURCE_CLUSTER_GIT_VERSION: &str = "velero.io/source-cluster-k8s-gitversion";
/// Major version of the cluster that a backup is from.
pub const SOURCE_CLUSTER_MAJOR_VERSION: &str = "velero.io/source-cluster-k8s-major-version";
/// Minor version of the cluster that a backup is from.
pub const SOURCE_CLUSTER_MINOR_VERSION: &str = "velero.io/source-cluster-k8s-minor-version";
/// The server's resource timeout, for plugins.
pub const RESOURCE_TIMEOUT: &str = "velero.io/resource-timeout";
/// ConfigMap with cluster-wide volume policies that a backup used.
pub const GLOBAL_VOLUME_POLICY: &str = "velero.io/global-backup-volume-policy-configmap";
/// Volumes of a pod to copy file by file, separated by commas.
pub const BACKUP_VOLUMES: &str = "backup.velero.io/backup-volumes";
/// Volumes of a pod not to copy file by file, separated by commas.
pub const BACKUP_VOLUMES_EXCLUDES: &str = "backup.velero.io/backup-volumes-excludes";
/// Set by an item action: the object is excluded after all.
pub const SKIP_FROM_BACKUP: &str = "velero.io/skip-from-backup";
/// Set by an item action: its additional items are backed up even if filters exclude them.
pub const MUST_INCLUDE_ON_BACKUP: &str = "backup.velero.io/must-include-additional-items";
/// Set by an item action: its additional items are restored even if filters exclude them.
pub const MUST_INCLUDE_ON_RESTORE: &str = "restore.velero.io/must-include-additional-items";
/// On a claim without a CSI snapshot, because its volume is not a CSI volume.
pub const SKIPPED_NO_CSI_PV: &str = "backup.velero.io/skipped-no-csi-pv";
/// `"true"` or `"false"`: whether the status of an object is restored, regardless of the spec.
pub const RESTORE_STATUS: &str = "velero.io/restore-status";
/// Name of a restored PersistentVolume in the backup.
pub const ORIGINAL_PV_NAME: &str = "velero.io/original-pv-name";
/// Claim of a PodVolumeBackup.
pub const PVC_NAME: &str = "velero.io/pvc-name";
/// DataUpload of a claim.
pub const DATA_UPLOAD_NAME: &str = "velero.io/data-upload-name";

/// Handle of a CSI snapshot at its driver.
pub const VOLUME_SNAPSHOT_HANDLE: &str = "velero.io/csi-volumesnapshot-handle";
/// Minimum size of a volume for a CSI snapshot.
pub const VOLUME_SNAPSHOT_RESTORE_SIZE: &str = "velero.io/csi-volumesnapshot-restore-size";
/// Driver of a CSI snapshot.
pub const CSI_DRIVER_NAME: &str = "velero.io/csi-driver-name";
/// Original deletion policy of a VolumeSnapshotContent.
pub const CSI_DELETION_POLICY: &str = "velero.io/csi-vsc-deletion-policy";
/// Handle of a CSI group snapshot at its driver.
pub const VOLUME_GROUP_SNAPSHOT_HANDLE: &str = "velero.io/csi-volumegroupsnapshot-handle";
/// VolumeSnapshotClass to use: on a claim without a suffix, on a backup with the suffix `_<driver>`.
pub const VOLUME_SNAPSHOT_CLASS: &str = "velero.io/csi-volumesnapshot-class";
/// VolumeGroupSnapshotClass to use for a claim.
pub const VOLUME_GROUP_SNAPSHOT_CLASS: &str = "velero.io/csi-volume-group-snapshot-class";
/// VolumeGroupSnapshotClass to use for a backup, followed by the driver.
pub const VOLUME_GROUP_SNAPSHOT_CLASS_PREFIX: &str = "velero.io/csi-volumegroupsnapshot-class_";
/// `"true"` on the VolumeSnapshotClass that Kubernetes uses for its driver.
pub const DEFAULT_SNAPSHOT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// Secret for listing snapshots.
pub const SNAPSHOTTER_LIST_SECRET_NAME: &str = "csi.storage.k8s.io/snapshotter-list-secret-name";
/// Namespace of that Secret.
pub const SNAPSHOTTER_LIST_SECRET_NAMESPACE: &str =
    "csi.storage.k8s.io/snapshotter-list-secret-namespace";
/// Secret for creating and deleting snapshots.
pub const SNAPSHOTTER_SECRET_NAME: &str = "csi.storage.k8s.io/snapshotter-secret-name";
/// Namespace of that Secret.
pub const SNAPSHOTTER_SECRET_NAMESPACE: &str = "csi.storage.k8s.io/snapshotter-secret-namespace";

/// Hooks in the annotations of a pod.
pub mod hook {
    /// Container of a pre-hook on backup.
    pub const PRE_CONTAINER: &str = "pre.hook.backup.velero.io/container";
    /// Command of a pre-hook on backup, a text or a JSON list.
    pub const PRE_COMMAND: &str = "pre.hook.backup.velero.io/command";
    /// Reaction to the failure of a pre-hook on backup.
    pub const PRE_ON_ERROR: &str = "pre.hook.backup.velero.io/on-error";
    /// Time limit of a pre-hook on backup.
    pub const PRE_TIMEOUT: &str = "pre.hook.backup.velero.io/timeout";
    /// Container of a post-hook on backup.
    pub const POST_CONTAINER: &str = "post.hook.backup.velero.io/container";
    /// Command of a post-hook on backup, a text or a JSON list.
    pub const POST_COMMAND: &str = "post.hook.backup.velero.io/command";
    /// Reaction to the failure of a post-hook on backup.
    pub const POST_ON_ERROR: &str = "post.hook.backup.velero.io/on-error";
    /// Time limit of a post-hook on backup.
    pub const POST_TIMEOUT: &str = "post.hook.backup.velero.io/timeout";
    /// Oldest spelling of the container of a pre-hook on backup.
    pub const OLD_CONTAINER: &str = "hook.backup.velero.io/container";
    /// Oldest spelling of the command of a pre-hook on backup.
    pub const OLD_COMMAND: &str = "hook.backup.velero.io/command";
    /// Oldest spelling of the reaction to its failure.
    pub const OLD_ON_ERROR: &str = "hook.backup.velero.io/on-error";
    /// Oldest spelling of its time limit.
    pub const OLD_TIMEOUT: &str = "hook.backup.velero.io/timeout";
    /// Container of a hook after restore.
    pub const RESTORE_CONTAINER: &str = "post.hook.restore.velero.io/container";
    /// Command of a hook after restore.
    pub const RESTORE_COMMAND: &str = "post.hook.restore.velero.io/command";
    /// Reaction to the failure of a hook after restore.
    pub const RESTORE_ON_ERROR: &str = "post.hook.restore.velero.io/on-error";
    /// Time limit of a hook after restore.
    pub const RESTORE_EXEC_TIMEOUT: &str = "post.hook.restore.velero.io/exec-timeout";
    /// Time for which a hook after restore waits for its container.
    pub const RESTORE_WAIT_TIMEOUT: &str = "post.hook.restore.velero.io/wait-timeout";
    /// Whether a hook after restore waits until its container is ready.
    pub const RESTORE_WAIT_FOR_READY: &str = "post.hook.restore.velero.io/wait-for-ready";
    /// Image of an init container to add on restore.
    pub const INIT_IMAGE: &str = "init.hook.restore.velero.io/container-image";
    /// Name of an init container to add on restore.
    pub const INIT_NAME: &str = "init.hook.restore.velero.io/container-name";
    /// Command of an init container to add on restore.
    pub const INIT_COMMAND: &str = "init.hook.restore.velero.io/command";
    /// Time limit of an init container that is added on restore.
    pub const INIT_TIMEOUT: &str = "init.hook.restore.velero.io/timeout";
}

/// Finalizers, which keep an object until its data is deleted.
pub mod finalizer {
    /// On restores, until their files in the bucket are gone.
    pub const RESTORE: &str = "restores.velero.io/external-resources-finalizer";
    /// On DataUploads and DataDownloads in progress.
    pub const DATA_MOVE: &str = "velero.io/data-upload-download-finalizer";
    /// On PodVolumeBackups and PodVolumeRestores in progress.
    pub const POD_VOLUME: &str = "velero.io/pod-volume-finalizer";
    /// On VolumeSnapshotContents in use.
    pub const VOLUME_SNAPSHOT_CONTENT: &str = "velero.io/volume-snapshot-content-protect-finalizer";
}

/// `"true"` on a Backup or Restore to cancel.
pub const CANCEL: &str = "bowline.io/cancel";
/// Whether snapshots are uploaded, on a Backup or VolumeSnapshotLocation; see
/// [`SnapshotType`](crate::snapshot_type::SnapshotType).
pub const SNAPSHOT_TYPE: &str = "bowline.io/snapshot-type";
/// `"true"` on a Backup that includes the credentials of the server.
pub const INCLUDE_CREDENTIALS: &str = "bowline.io/include-credentials";
/// Tag of a snapshot with the id of its request, so that a repeated request creates no second snapshot.
pub const REQUEST_ID: &str = "bowline.io/request-id";
/// On a Backup that was imported from a bucket: the uid in its record there, which is that of the original Backup.
pub const RECORD_UID: &str = "bowline.io/record-uid";
/// On a BackupStorageLocation: the backups that are being imported, with the number of attempts, as JSON. If the server
/// has ended, one of these backups may be the cause.
pub const SYNC_ATTEMPTS: &str = "bowline.io/sync-attempts";
/// On a DeleteBackupRequest: number of times that its deletion was started.
pub const DELETION_ATTEMPTS: &str = "bowline.io/deletion-attempts";
/// On a DeleteBackupRequest: time at which its backup was asked to stop.
pub const STOP_ASKED: &str = "bowline.io/stop-asked";
/// `"true"` on a Backup that retention ignores, because each deletion ended the server.
pub const RETENTION_GAVE_UP: &str = "bowline.io/retention-gave-up";
/// On a Backup that retention is about to delete: its phase before. While the annotation exists, nothing is deleted.
pub const PHASE_BEFORE_DELETION: &str = "bowline.io/phase-before-deletion";
/// On our CRDs: the version of Bowline that wrote them.
pub const CRD_VERSION: &str = "bowline.io/crd-version";
