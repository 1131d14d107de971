//! Condition types that Bowline writes into the status of a Backup, a Restore or a BackupStorageLocation.
//!
//! Velero's phases have no word for a cancelled run and its tools would hang on a new one, so
//! such a run ends `Failed` and these say the rest. `kubectl wait` can wait for a condition, where a
//! phase would have to be known beforehand. `status.conditions` is the only field that we add to
//! Velero's kinds.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The run has ended well. False if it has ended in another way, unknown while it waits or runs.
pub const COMPLETED: &str = "Completed";
/// The run is being cancelled; its operations have been told.
pub const CANCELING: &str = "Canceling";
/// The run was cancelled and is over.
pub const CANCELED: &str = "Canceled";

/// The backups of a location were brought into the cluster when that was last tried.
pub const SYNCED: &str = "Synced";
/// Some backups of a location are not brought into the cluster.
pub const DEGRADED: &str = "Degraded";
/// Whether the certificate of a location's server is checked. Only there if it is not.
pub const TLS_VERIFIED: &str = "TLSVerified";

/// Whether a condition of this type is there and true.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    conditions.iter().any(|condition| condition.type_ == type_ && condition.status == "True")
}
