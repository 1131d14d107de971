//! What we read and do not know is kept.
//!
//! Objects outlive the program that wrote them: a newer Velero may have put a field into a
//! Backup that this build has never heard of, and a controller that reads the object, sets
//! `status.phase` and writes it back must not erase that field. So every struct of ours ends
//! in a flattened [`Unknown`], and its CRD schema says `x-kubernetes-preserve-unknown-fields`,
//! so that the API server keeps such fields as well.
//!
//! Types that come from Kubernetes itself (`LabelSelector`, `SecretKeySelector`, …) do not.

use std::{borrow::Cow, collections::BTreeMap};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The fields of an object that this version has no name for, as they were read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Unknown(pub BTreeMap<String, Value>);

impl Unknown {
    /// Whether everything that was read had a typed field.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// Written by hand: derived, a flattened map becomes `additionalProperties: true`, which kube
// rewrites for structs that have other properties only, and ServerStatusRequest's spec has none.
impl JsonSchema for Unknown {
    fn schema_name() -> Cow<'static, str> {
        "Unknown".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}
