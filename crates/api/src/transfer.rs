//! What the kinds that move a volume's data have in common.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{serde_help::is_zero, string_set::string_set, unknown::Unknown};

/// How many bytes were moved so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct TransferProgress {
    /// Bytes to move.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_bytes: i64,

    /// Bytes moved.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_done: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// Where the move of a volume's data is.
    checked TransferPhase {
        /// Created, not looked at.
        New = "New",
        /// A node has taken it.
        Accepted = "Accepted",
        /// The volume is mounted.
        Prepared = "Prepared",
        /// Data is being moved.
        InProgress = "InProgress",
        /// It is being stopped.
        Canceling = "Canceling",
        /// It was stopped.
        Canceled = "Canceled",
        /// All data was moved.
        Completed = "Completed",
        /// It broke off.
        Failed = "Failed",
    }
}

impl TransferPhase {
    /// Whether nothing more will be moved.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::New
            | Self::Accepted
            | Self::Prepared
            | Self::InProgress
            | Self::Canceling
            | Self::Other(_) => false,
            Self::Canceled | Self::Completed | Self::Failed => true,
        }
    }
}

string_set! {
    /// What copies the files of a volume.
    #[derive(Default)]
    checked UploaderType {
        /// Kopia.
        Kopia = "kopia",
        /// Restic.
        Restic = "restic",
        /// Not set: restic, in old objects.
        #[default]
        Unset = "",
    }
}

string_set! {
    /// The operating system of the node that moves data.
    checked NodeOs {
        /// Whichever fits the volume.
        Auto = "auto",
        /// Linux.
        Linux = "linux",
        /// Windows.
        Windows = "windows",
    }
}
