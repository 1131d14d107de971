//! State that a run must remember across a kill of its process.
//!
//! Before a run touches a block of items, it writes which pods it may freeze and which plugins it will ask to start
//! something ([`BlockStarted`]). When the block has ended, it writes the outcome ([`BlockEnded`]). Nothing is written
//! in between, while an application is frozen. After a restart, [`recover`] separates finished blocks, which are
//! taken over, from unfinished ones, which are repeated.
//!
//! Commands are never written to the journal: hooks are derived again from the pod and the run. A journal alone can
//! therefore execute only the hooks that a pod or its Backup has. A server keeps the hooks of a Backup beside the
//! journal, though, and anyone who can write both chooses the command and the pod: see decision 030.

mod frozen;
mod in_flight;
#[cfg(feature = "testing")]
mod in_memory;
mod recover;

use std::collections::BTreeMap;

use async_trait::async_trait;
use bowline_store::file::{
    BackupOperation, FreezeWindow, ResourceIdentifier, RestoreOperation, Snapshot, VolumeOperation,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::csi::record::CsiSnapshotRecord;
use crate::phase::Stage;
use crate::report::Message;
pub use frozen::{FrozenByBlock, FrozenPods, apply_thaw};
pub use in_flight::InFlight;
#[cfg(feature = "testing")]
pub use in_memory::InMemory;
pub use recover::{CommitAttempt, RecoveredRun, VolumeRequest, recover};

/// Default number of attempts at a stage of a run. A run that kills the server each time must not be resumed for
/// ever.
pub const MAX_ATTEMPTS: usize = 4;

/// Failure to append an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The journal has no room for another entry. A retry does not help.
    #[error("cannot write the journal of the run: {0}")]
    Full(String),
    /// Any other failure.
    #[error("cannot write the journal of the run: {0}")]
    Failed(String),
}

/// Journal of a run.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Appends an entry. The entry survives a kill once this returns.
    async fn append(&self, entry: &JournalEntry) -> Result<(), Error>;
}

/// Journal entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "what")]
pub enum JournalEntry {
    /// A process has started or resumed the run.
    Attempt {
        /// Time of the attempt.
        at: Timestamp,
    },
    /// A process has left the run in good order, so the attempt does not count.
    #[serde(rename = "left")]
    AttemptLeft {
        /// Time of leaving.
        at: Timestamp,
    },
    /// The run is about to touch a block.
    #[serde(rename = "begun")]
    BlockStarted(BlockStarted),
    /// The run is about to ask plugins for more in a block that has started.
    #[serde(rename = "also")]
    MoreIntents {
        /// The block.
        block: u64,
        /// Requests to plugins that follow.
        intents: Vec<Intent>,
    },
    /// A block has ended.
    #[serde(rename = "ended")]
    BlockEnded(Box<BlockEnded>),
    /// Later: the pods of a block have been thawed.
    Thawed {
        /// The block.
        block: u64,
        /// Errors while thawing.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        errors: Vec<JournaledMessage>,
    },
    /// Later: post-hooks of one pod of a block have run.
    PostHooks {
        /// The block.
        block: u64,
        /// The uid of the pod.
        pod: String,
        /// Post-hooks that have run, by their index among the post-hooks of the pod.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ran: Vec<usize>,
        /// True if no post-hook is left, so that the pod is thawed.
        #[serde(default)]
        is_thawed: bool,
        /// Errors of the post-hooks.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        errors: Vec<JournaledMessage>,
    },
    /// What a block that a later attempt repeats leaves behind: of its snapshots those that it created, and those that
    /// may still appear; its other requests are settled. Earlier servers also wrote this entry before `BlockEnded`.
    InFlight {
        /// The block.
        block: u64,
        /// Requests to the plugins.
        intents: Vec<Intent>,
        /// Operations on items. Nobody waits for them, because the actions are called again. Earlier servers did not
        /// write them.
        #[serde(default, flatten)]
        operations: AbandonedOperations,
    },
    /// A snapshot that was in flight is gone, or it cannot be determined whether it exists.
    Reclaimed {
        /// The request for it.
        request: String,
    },
    /// A restore is about to ask a plugin for a volume.
    #[serde(rename = "volumeBegun")]
    VolumeRequested(VolumeRequested),
    /// The plugin has answered.
    #[serde(rename = "volumeEnded")]
    VolumeAnswered(VolumeAnswered),
    /// A process has resumed the run at a stage after the items. `AttemptLeft` undoes it, as it does an `Attempt`.
    StageAttempt {
        /// The stage.
        stage: Stage,
        /// Time of the attempt.
        at: Timestamp,
    },
    /// The bucket of the run is unavailable. Written once, until the bucket is available again.
    BucketLost {
        /// Time of the first observation.
        at: Timestamp,
        /// The stage that the run had in the cluster, which it cannot leave without its bucket. Earlier servers did
        /// not write it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stage: Option<Stage>,
    },
    /// The bucket of the run is available again.
    BucketBack {
        /// Time of the observation.
        at: Timestamp,
    },
    /// The run has ended without its bucket. Everything that it created and that this journal names must still be
    /// deleted, unless the bucket turns out to hold the record of the backup.
    #[serde(rename = "abandoned")]
    EndedWithoutBucket {
        /// The stage at which the run ended. A record can exist only after the operations.
        stage: Stage,
        /// Time of the end.
        at: Timestamp,
    },
    /// The commit record is about to be written. An answer of the bucket that it has no record is not final from here
    /// on: the write may still arrive.
    CommitAttempted {
        /// Time of the attempt.
        at: Timestamp,
        /// True if the record is that of a canceled backup, whose snapshots are deleted.
        is_canceled: bool,
    },
}

/// Operations that nobody waits for, and that are to be canceled: their blocks are repeated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AbandonedOperations {
    /// Those of a backup.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backup_operations: Vec<BackupOperation>,
    /// Those of a restore.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restore_operations: Vec<RestoreOperation>,
}

/// A volume that a plugin is about to create from a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeRequested {
    /// The number of the request in the run; requests and blocks share one sequence.
    pub block: u64,
    /// The plugin.
    pub plugin: String,
    /// The provider's ID of the snapshot.
    pub snapshot: String,
    /// The PersistentVolume, as stored in the backup.
    pub item: ResourceIdentifier,
    /// Name of the PersistentVolume in the cluster.
    pub name: String,
}

/// Answer of a plugin to the request for a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeAnswered {
    /// The number of the request.
    pub block: u64,
    /// The provider's ID of the volume; none if the plugin created none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
}

/// A block that the run is about to touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BlockStarted {
    /// Its number in the run.
    pub block: u64,
    /// Pods that may be frozen from now on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<Pod>,
    /// Requests to plugins that follow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intents: Vec<Intent>,
}

/// A pod that may be frozen. A pod of the same name with another uid is a different pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Post-hooks that have run although others did not reach the pod, by index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ran: Vec<usize>,
}

/// A request to a plugin that must not be repeated unnoticed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Intent {
    /// The plugin.
    pub plugin: String,
    /// The item that the plugin receives.
    pub item: ResourceIdentifier,
    /// The snapshot to take, if the plugin is a snapshotter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotIntent>,
    /// The VolumeSnapshot to create, if the item is a claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csi: Option<CsiIntent>,
}

/// A VolumeSnapshot, or a group of them, that is about to be created. Only this run uses its name, so it can be found
/// and deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CsiIntent {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// True for a VolumeGroupSnapshot.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_group: bool,
}

/// A snapshot that a plugin is asked to take. The request can be repeated with it: a plugin that implements version 2
/// of the contract answers with the same snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotIntent {
    /// The VolumeSnapshotLocation.
    pub location: String,
    /// The provider's ID of the volume.
    pub volume: String,
    /// Availability zone of the volume.
    pub zone: String,
    /// Unique ID of this request.
    pub request: String,
    /// The provider's ID of the snapshot, if the plugin has answered. A plugin of version 1 cannot be asked for it
    /// again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
}

/// Outcome of a block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BlockEnded {
    /// Its number in the run.
    pub block: u64,
    /// Items visited, stored or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub visited: Vec<ResourceIdentifier>,
    /// Additional items to restore that its actions returned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional: Vec<ResourceIdentifier>,
    /// Location of the stored items' bytes.
    #[serde(rename = "kept", skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredBlock>,
    /// Reason why nothing is stored or restored, if the block failed as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Operations that a backup started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backup_operations: Vec<BackupOperation>,
    /// Operations that a restore started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restore_operations: Vec<RestoreOperation>,
    /// Snapshots of its volumes, taken or failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<Snapshot>,
    /// Operations of plugins on the snapshots that were taken.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_operations: Vec<VolumeOperation>,
    /// Snapshots requested from CSI drivers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub csi_snapshots: Vec<CsiSnapshotRecord>,
    /// Volumes for which no snapshot was requested, with the reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lacking_volumes: BTreeMap<String, String>,
    /// Volumes that no plugin supports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmatched_volumes: Vec<String>,
    /// Snapshots requested from plugins that the run gave up on and that may still appear.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub in_flight: Vec<Intent>,
    /// Pods that may still be frozen because they could not be reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<Pod>,
    /// Freeze windows of its pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub freeze_windows: Vec<FreezeWindow>,
    /// Errors of the report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<JournaledMessage>,
    /// Warnings of the report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<JournaledMessage>,
    /// Number of hooks run.
    #[serde(skip_serializing_if = "is_zero")]
    pub hooks_attempted: u64,
    /// Number of hooks that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub hooks_failed: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Stored items of a block, as an object in the bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredBlock {
    /// The number of the object.
    pub number: u64,
    /// The SHA-256 of the object's bytes, in hex.
    pub sha256: String,
}

impl From<Message> for JournaledMessage {
    fn from(message: Message) -> Self {
        Self { item: message.item.map(Into::into), text: message.text }
    }
}

impl From<JournaledMessage> for Message {
    fn from(message: JournaledMessage) -> Self {
        Self { item: message.item.map(Into::into), text: message.text }
    }
}

/// The SHA-256 of bytes, in hex.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// A message of the report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JournaledMessage {
    /// The item that the message concerns; none for the run itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<ResourceIdentifier>,
    /// Text of the message.
    pub text: String,
}

#[cfg(test)]
mod tests;
