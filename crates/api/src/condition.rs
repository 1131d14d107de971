//! Condition types that Bowline writes into the status of a Backup, a Restore or a BackupStorageLocation.
//!
//! Velero has no phase for a canceled run, and its tools would hang on a new phase. So a canceled run ends as `Failed`,
//! and a condition says that it was canceled. `kubectl wait` can wait for a condition without knowing the phase in
//! advance.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The run is `Completed`. False after any other outcome, unknown until the run has ended.
pub const COMPLETED: &str = "Completed";
/// The run is being canceled; its operations have been asked to stop.
pub const CANCELING: &str = "Canceling";
/// The run was canceled and has ended.
pub const CANCELED: &str = "Canceled";

/// The last sync of the location's backups into the cluster succeeded.
pub const SYNCED: &str = "Synced";
/// Some backups of a location are not synced into the cluster.
pub const DEGRADED: &str = "Degraded";
/// Whether the certificate of a location's server is verified. Only present if it is not.
pub const TLS_VERIFIED: &str = "TLSVerified";

/// True if a condition of this type is present and true.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    conditions.iter().any(|condition| condition.type_ == type_ && condition.status == "True")
}
