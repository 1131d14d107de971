//! Schedule: make backups at given times.

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

/// When to make backups, and of what.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "Schedule",
    doc = "A template for backups and the times to make them.",
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
    /// The spec of the backups.
    pub template: BackupSpec,

    /// When to make them, as a cron expression.
    pub schedule: String,

    /// Whether backups are owned by the schedule, and so vanish with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_owner_references_in_backup: Option<bool>,

    /// Whether no backups are made for now.
    #[serde(skip_serializing_if = "is_false")]
    pub paused: bool,

    /// Whether a backup that is due at once on creation or unpausing is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub skip_immediately: Option<bool>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(ScheduleSpec);

/// What a schedule has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ScheduleStatus {
    /// Whether it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SchedulePhase")]
    pub phase: Option<SchedulePhase>,

    /// When it last made a backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_backup: Option<Time>,

    /// When it last left one out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_skipped: Option<Time>,

    /// Why the spec was refused.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub validation_errors: Vec<String>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// Whether a schedule works.
    checked SchedulePhase {
        /// Created, not looked at.
        New = "New",
        /// Makes backups.
        Enabled = "Enabled",
        /// The spec was refused.
        FailedValidation = "FailedValidation",
    }
}
