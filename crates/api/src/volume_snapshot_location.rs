//! VolumeSnapshotLocation: where a provider keeps volume snapshots.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SecretKeySelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    location::LocationPhase,
    schema,
    serde_help::{null_is_empty, spec_may_be_absent},
    unknown::Unknown,
};

/// Settings of the location.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "VolumeSnapshotLocation",
    doc = "A location for volume snapshots: a VolumeSnapshotter plugin and its settings.",
    namespaced,
    status = "VolumeSnapshotLocationStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "vsl",
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.provider"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
#[schemars(extend("required" = ["provider"]))]
pub struct VolumeSnapshotLocationSpec {
    /// Name of the volume snapshotter plugin.
    pub provider: String,

    /// Settings of the plugin.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,

    /// Credentials of this location, instead of the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::secret_key")]
    pub credential: Option<SecretKeySelector>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(VolumeSnapshotLocationSpec);

/// Status of the location.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeSnapshotLocationStatus {
    /// Phase: Available or Unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LocationPhase")]
    pub phase: Option<LocationPhase>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}
