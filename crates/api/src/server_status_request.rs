//! ServerStatusRequest: ask the server for its version and plugins.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    serde_help::{null_is_empty, spec_may_be_absent},
    string_set::string_set,
    unknown::Unknown,
};

/// The spec is empty.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "ServerStatusRequest",
    doc = "A request for the version and plugins of the server.",
    namespaced,
    status = "ServerStatusRequestStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "ssr",
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Server Version", type_ = "string", json_path = ".status.serverVersion"),
    printcolumn(name = "Processed", type_ = "date", json_path = ".status.processedTimestamp"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(remote = "Self", default, rename_all = "camelCase")]
pub struct ServerStatusRequestSpec {
    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

spec_may_be_absent!(ServerStatusRequestSpec);

/// Response of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ServerStatusRequestStatus {
    /// Phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ServerStatusRequestPhase")]
    pub phase: Option<ServerStatusRequestPhase>,

    /// Time of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processed_timestamp: Option<Time>,

    /// Version of the server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server_version: String,

    /// Plugins of the server.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub plugins: Vec<PluginInfo>,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A plugin of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["kind", "name"]))]
pub struct PluginInfo {
    /// Name of the plugin, such as `velero.io/aws`.
    pub name: String,

    /// Kind of the plugin, such as `ObjectStore`.
    pub kind: String,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// Phase of a request.
    checked ServerStatusRequestPhase {
        /// Not processed yet.
        New = "New",
        /// The status has the response.
        Processed = "Processed",
    }
}

impl ServerStatusRequestPhase {
    /// Returns true if the request is processed.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::New | Self::Other(_) => false,
            Self::Processed => true,
        }
    }
}
