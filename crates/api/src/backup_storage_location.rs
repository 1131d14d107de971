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

/// Where backups are stored and how to get there.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "BackupStorageLocation",
    doc = "A place in an object store where backups are kept.",
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

    /// The bucket.
    #[schemars(with = "ObjectStorageLocation")]
    pub object_storage: Option<ObjectStorageLocation>,

    /// Whether backups that name no location go here.
    #[serde(skip_serializing_if = "is_false")]
    pub default: bool,

    /// Whether backups may be added and deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AccessMode")]
    pub access_mode: Option<AccessMode>,

    /// How often backups found here are brought into the cluster; zero means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_sync_period: Option<Duration>,

    /// How often the location is checked; zero means never.
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

    /// Folder in the bucket; empty means its root.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prefix: String,

    /// Certificates to trust; prefer `caCertRef`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::bytes")]
    pub ca_cert: Option<ByteString>,

    /// Secret with certificates to trust.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::secret_key")]
    pub ca_cert_ref: Option<SecretKeySelector>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What is known of a location.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupStorageLocationStatus {
    /// Whether it can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LocationPhase")]
    pub phase: Option<LocationPhase>,

    /// When its backups were last brought into the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_synced_time: Option<Time>,

    /// When it was last checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_validation_time: Option<Time>,

    /// Why it cannot be used.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,

    /// What the phase has no word for; see [`crate::condition`]. Not one of Velero's fields.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// No longer used.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_synced_revision: String,

    /// No longer used.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AccessMode")]
    pub access_mode: Option<AccessMode>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// What may be done with a location.
    checked AccessMode {
        /// Backups may be restored only.
        ReadOnly = "ReadOnly",
        /// Backups may be restored, added and deleted.
        ReadWrite = "ReadWrite",
    }
}
