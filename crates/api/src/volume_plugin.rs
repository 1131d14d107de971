//! Types of VolumePluginBackup and VolumePluginRestore.
//!
//! Plugins in any language may write these objects, so they are read leniently and written strictly.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{string_set::string_set, unknown::Unknown};

string_set! {
    /// Phase of a plugin's work on a volume. The server writes the known ones; a plugin may
    /// write any text.
    open VolumePluginPhase {
        /// Created, not started yet.
        New = "New",
        /// In progress.
        InProgress = "InProgress",
        /// Completed.
        Completed = "Completed",
        /// Failed.
        Failed = "Failed",
        /// Canceled.
        Canceled = "Canceled",
    }
}

/// Outcome of a plugin's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VolumePluginOutcome {
    /// Completed.
    Completed,
    /// Failed.
    Failed,
    /// Canceled.
    Canceled,
}

impl VolumePluginPhase {
    /// Outcome of the work; none if it has not ended, or if the text is unknown. Case does not matter.
    pub fn outcome(&self) -> Option<VolumePluginOutcome> {
        match self {
            Self::New | Self::InProgress => None,
            Self::Completed => Some(VolumePluginOutcome::Completed),
            Self::Failed => Some(VolumePluginOutcome::Failed),
            Self::Canceled => Some(VolumePluginOutcome::Canceled),
            Self::Other(text) => match text.to_ascii_lowercase().as_str() {
                "completed" => Some(VolumePluginOutcome::Completed),
                "failed" => Some(VolumePluginOutcome::Failed),
                "canceled" => Some(VolumePluginOutcome::Canceled),
                _ => None,
            },
        }
    }

    /// Returns true if the work has ended.
    pub fn is_terminal(&self) -> bool {
        self.outcome().is_some()
    }
}

/// Progress in bytes, or in units of another kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", from = "ProgressAsRead")]
pub struct VolumePluginProgress {
    /// Total bytes. Zero if unknown.
    pub total_bytes: i64,

    /// Bytes done.
    pub bytes_done: i64,

    /// Unit other than bytes, such as `Files`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub units: String,

    /// Total units. Zero if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_units: i64,

    /// Units done.
    #[serde(skip_serializing_if = "is_zero")]
    pub units_done: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// The same, in both spellings that plugins use: a Go struct without tags, as in the first
/// description of these objects, writes capitals.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct ProgressAsRead {
    /// Total bytes. Zero if unknown.
    #[schemars(with = "i64")]
    total_bytes: Option<i64>,

    /// Bytes done.
    #[schemars(with = "i64")]
    bytes_done: Option<i64>,

    /// Alias of `totalBytes`, written by plugins in Go.
    #[serde(rename = "TotalBytes")]
    #[schemars(with = "i64")]
    capital_total_bytes: Option<i64>,

    /// Alias of `bytesDone`, written by plugins in Go.
    #[serde(rename = "BytesDone")]
    #[schemars(with = "i64")]
    capital_bytes_done: Option<i64>,

    /// Unit other than bytes, such as `Files`.
    #[schemars(with = "String")]
    units: Option<String>,

    /// Total units. Zero if unknown.
    #[schemars(with = "i64")]
    total_units: Option<i64>,

    /// Units done.
    #[schemars(with = "i64")]
    units_done: Option<i64>,

    #[serde(flatten)]
    unknown: Unknown,
}

impl From<ProgressAsRead> for VolumePluginProgress {
    fn from(read: ProgressAsRead) -> Self {
        // Only a plugin writes the capitalized fields, so they take precedence.
        Self {
            total_bytes: read.capital_total_bytes.or(read.total_bytes).unwrap_or_default(),
            bytes_done: read.capital_bytes_done.or(read.bytes_done).unwrap_or_default(),
            units: read.units.unwrap_or_default(),
            total_units: read.total_units.unwrap_or_default(),
            units_done: read.units_done.unwrap_or_default(),
            unknown: read.unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn terminal_phase_is_recognised_in_any_case_and_kept_as_written() {
        for (text, outcome) in [
            ("Completed", Some(VolumePluginOutcome::Completed)),
            ("COMPLETED", Some(VolumePluginOutcome::Completed)),
            ("failed", Some(VolumePluginOutcome::Failed)),
            ("canceled", Some(VolumePluginOutcome::Canceled)),
            ("Canceled", Some(VolumePluginOutcome::Canceled)),
            ("New", None),
            ("InProgress", None),
            ("Uploading", None),
            ("", None),
        ] {
            let phase = VolumePluginPhase::from(text);
            assert_eq!(phase.outcome(), outcome, "{text}");
            assert_eq!(phase.is_terminal(), outcome.is_some(), "{text}");
            assert_eq!(phase.to_string(), text);
        }
    }

    #[test]
    fn progress_is_read_in_both_spellings_and_written_in_one() {
        for read in [
            json!({ "totalBytes": 9, "bytesDone": 4 }),
            json!({ "TotalBytes": 9, "BytesDone": 4 }),
            json!({ "totalBytes": 9, "BytesDone": 4 }),
            json!({ "totalBytes": 0, "bytesDone": 0, "TotalBytes": 9, "BytesDone": 4 }),
        ] {
            let progress: VolumePluginProgress = serde_json::from_value(read).unwrap();
            let written = serde_json::to_value(progress).unwrap();
            assert_eq!(written, json!({ "totalBytes": 9, "bytesDone": 4 }));
        }
    }

    #[test]
    fn progress_in_other_units_is_kept_and_absent_where_there_is_none() {
        let read = json!({
            "totalBytes": 0, "bytesDone": 0, "units": "Files", "totalUnits": 40, "unitsDone": 12,
        });
        let progress: VolumePluginProgress = serde_json::from_value(read.clone()).unwrap();
        assert_eq!((progress.units.as_str(), progress.units_done), ("Files", 12));
        assert_eq!(serde_json::to_value(progress).unwrap(), read);
        let null: VolumePluginProgress = serde_json::from_value(json!({"units": null})).unwrap();
        assert_eq!(null, VolumePluginProgress::default());
    }

    #[test]
    fn progress_keeps_unknown_fields() {
        let read = json!({ "totalBytes": 9, "bytesDone": 4, "files": { "done": 2 } });
        let progress: VolumePluginProgress = serde_json::from_value(read.clone()).unwrap();
        assert_eq!(serde_json::to_value(progress).unwrap(), read);
    }
}
