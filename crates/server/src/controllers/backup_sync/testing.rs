//! The import of a backup without a cluster and a bucket, for fuzz targets.

use bowline_api::{Backup, PodVolumeBackup, VolumePluginBackup};
use jiff::Timestamp;

use super::import::{self, ImportDecision, ImportTarget};

/// Namespace of the imported objects.
pub const NAMESPACE: &str = "velero";
/// Location that the backups come from.
pub const LOCATION: &str = "here";

const TARGET: ImportTarget<'static> = ImportTarget { namespace: NAMESPACE, location: LOCATION };

/// Backup that is created for a record, if any. `schedules` are the names and uids of those in the cluster.
pub fn import_record(
    record: Backup,
    schedules: &[(String, String)],
    now: Timestamp,
) -> Option<Backup> {
    match import::decide(record, &TARGET, schedules, now) {
        ImportDecision::Create(backup) => Some(*backup),
        ImportDecision::Skip(_) => None,
    }
}

/// PodVolumeBackup that is created for one of the files, if any.
pub fn import_pod_volume_backup(
    child: PodVolumeBackup,
    backup: &Backup,
) -> Option<PodVolumeBackup> {
    import::import_child(child, &TARGET, backup)
}

/// VolumePluginBackup that is created for one of the files, if any.
pub fn import_volume_plugin_backup(
    child: VolumePluginBackup,
    backup: &Backup,
) -> Option<VolumePluginBackup> {
    import::import_child(child, &TARGET, backup)
}
