//! BackupStorageLocation: a bucket, or part of one, that holds backups.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::SecretKeySelector,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    duration::Duration,
    location::LocationPhase,
    schema,
    serde_help::{is_false, null_is_empty, spec_may_be_absent},
    string_set::string_set,
    unknown::Unknown,
};

/// Settings of the location.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "BackupStorageLocation",
    doc = "A storage location for backups: a bucket and its settings.",
    namespaced,
    status = "BackupStorageLocationStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "bsl",
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.provider"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Last Validated", type_ = "date", json_path = ".status.lastValidationTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Access Mode", type_ = "string", json_path = ".spec.accessMode"),
    printcolumn(name = "Default", type_ = "boolean", json_path = ".spec.default")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
#[schemars(extend("required" = ["objectStorage", "provider"]))]
pub struct BackupStorageLocationSpec {
    /// Name of the object store plugin.
    pub provider: String,

    /// Settings of the plugin.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,

    /// Credentials of this location, instead of the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::secret_key")]
    pub credential: Option<SecretKeySelector>,

    /// Bucket.
    #[schemars(with = "ObjectStorageLocation")]
    pub object_storage: Option<ObjectStorageLocation>,

    /// Default location for backups.
    #[serde(skip_serializing_if = "is_false")]
    pub default: bool,

    /// Access mode: ReadWrite or ReadOnly.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AccessMode")]
    pub access_mode: Option<AccessMode>,

    /// Interval of the backup sync. Zero: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_sync_period: Option<Duration>,

    /// Interval between checks of the location. Zero: only at server start and after changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_frequency: Option<Duration>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(BackupStorageLocationSpec);

/// A bucket, or the part of it below a prefix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["bucket"]))]
pub struct ObjectStorageLocation {
    /// Name of the bucket.
    pub bucket: String,

    /// Prefix in the bucket. Empty: the root of the bucket.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prefix: String,

    /// CA certificates of the object store. `caCertRef` is preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::bytes")]
    pub ca_cert: Option<ByteString>,

    /// Secret with CA certificates of the object store.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::secret_key")]
    pub ca_cert_ref: Option<SecretKeySelector>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Status of the location.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupStorageLocationStatus {
    /// Phase: Available or Unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LocationPhase")]
    pub phase: Option<LocationPhase>,

    /// Time of the last sync.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_synced_time: Option<Time>,

    /// Time of the last validation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_validation_time: Option<Time>,

    /// Reason if unavailable.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,

    /// Conditions. Bowline only.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Deprecated.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_synced_revision: String,

    /// Deprecated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AccessMode")]
    pub access_mode: Option<AccessMode>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// Access mode of a location.
    checked AccessMode {
        /// Backups can only be restored.
        ReadOnly = "ReadOnly",
        /// Backups can be created, restored and deleted.
        ReadWrite = "ReadWrite",
    }
}
