//! What backup and restore hooks have in common.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{schema, serde_help::is_zero, string_set::string_set, unknown::Unknown};

string_set! {
    /// Reaction to the failure of a hook.
    checked HookErrorMode {
        /// The failure is reported, and the run continues with the object.
        Continue = "Continue",
        /// The object fails.
        Fail = "Fail",
    }
}

/// Number of attempted and failed hooks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct HookStatus {
    /// Number of attempted hooks.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub hooks_attempted: i64,

    /// Number of failed hooks.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub hooks_failed: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}
