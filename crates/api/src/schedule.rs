//! Schedule: creates backups at given times.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    backup::BackupSpec,
    serde_help::{is_false, null_is_empty, spec_may_be_absent},
    string_set::string_set,
    unknown::Unknown,
};

/// Settings of the schedule.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "Schedule",
    doc = "A schedule that creates backups from a template.",
    namespaced,
    status = "ScheduleStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "sched",
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule"),
    printcolumn(name = "LastBackup", type_ = "date", json_path = ".status.lastBackup"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Paused", type_ = "boolean", json_path = ".spec.paused")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
#[schemars(extend("required" = ["schedule", "template"]))]
pub struct ScheduleSpec {
    /// Template of the backups.
    pub template: BackupSpec,

    /// Cron expression.
    pub schedule: String,

    /// Set the Schedule as owner of its Backups, which are then deleted with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_owner_references_in_backup: Option<bool>,

    /// Pause the schedule.
    #[serde(skip_serializing_if = "is_false")]
    pub paused: bool,

    /// Skip the backup that is due when the schedule is created or unpaused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub skip_immediately: Option<bool>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(ScheduleSpec);

/// Status of the schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ScheduleStatus {
    /// Phase of the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SchedulePhase")]
    pub phase: Option<SchedulePhase>,

    /// Time of the last backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_backup: Option<Time>,

    /// Time of the last skipped backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_skipped: Option<Time>,

    /// Validation errors.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub validation_errors: Vec<String>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// Phase of a schedule.
    checked SchedulePhase {
        /// Created, not processed yet.
        New = "New",
        /// Creates backups.
        Enabled = "Enabled",
        /// The spec is invalid.
        FailedValidation = "FailedValidation",
    }
}
