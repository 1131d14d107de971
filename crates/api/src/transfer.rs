//! Types of the kinds that move the data of volumes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{serde_help::is_zero, string_set::string_set, unknown::Unknown};

/// Progress in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct TransferProgress {
    /// Total bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_bytes: i64,

    /// Bytes done.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_done: i64,

    /// Fields of a newer version.
    #[serde(flatten)]
    pub unknown: Unknown,
}

string_set! {
    /// Phase of a data transfer.
    checked TransferPhase {
        /// Created, not processed yet.
        New = "New",
        /// A node has accepted the request.
        Accepted = "Accepted",
        /// The volume is mounted.
        Prepared = "Prepared",
        /// Data is being moved.
        InProgress = "InProgress",
        /// Being canceled.
        Canceling = "Canceling",
        /// Canceled.
        Canceled = "Canceled",
        /// All data was moved.
        Completed = "Completed",
        /// Failed.
        Failed = "Failed",
    }
}

impl TransferPhase {
    /// Returns true if the transfer has ended.
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
    /// Uploader of a volume's files.
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
