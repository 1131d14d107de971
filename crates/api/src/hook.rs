//! What backup and restore hooks have in common.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{schema, serde_help::is_zero, string_set::string_set, unknown::Unknown};

string_set! {
    /// What the failure of a hook means for the run.
    checked HookErrorMode {
        /// It is noted and the run goes on with this object.
        Continue = "Continue",
        /// The object has failed.
        Fail = "Fail",
    }
}

/// How many hooks were run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct HookStatus {
    /// Hooks that were to be run.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub hooks_attempted: i64,

    /// Hooks that failed.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schema::count")]
    pub hooks_failed: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}
