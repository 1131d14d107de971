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

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use bowline_store::file::{
    BackupOperation, FreezeWindow, ResourceIdentifier, RestoreOperation, Snapshot, VolumeOperation,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::backup::csi;
use crate::phase::Stage;
use crate::report::Message;
pub use frozen::{FrozenByBlock, FrozenPods, apply_thaw};
pub use in_flight::InFlight;
#[cfg(feature = "testing")]
pub use in_memory::InMemory;

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
    async fn append(&self, record: &JournalEntry) -> Result<(), Error>;
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
    Left {
        /// Time of leaving.
        at: Timestamp,
    },
    /// The run is about to touch a block.
    Begun(BlockStarted),
    /// The run is about to ask plugins for more in a block that has started.
    Also {
        /// The block.
        block: u64,
        /// Requests to plugins that follow.
        intents: Vec<Intent>,
    },
    /// A block has ended.
    Ended(Box<BlockEnded>),
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
    /// Snapshots requested by a block that will be repeated and that may still appear. Its other requests are
    /// settled. Earlier servers also wrote this entry before `Ended`.
    InFlight {
        /// The block.
        block: u64,
        /// Requests to the plugins.
        intents: Vec<Intent>,
    },
    /// A snapshot that was in flight is gone, or its fate cannot be determined.
    Reclaimed {
        /// The request for it.
        request: String,
    },
    /// A restore is about to ask a plugin for a volume.
    VolumeBegun(VolumeRequested),
    /// The plugin has answered.
    VolumeEnded(VolumeAnswered),
    /// A process has resumed the run at a stage after the items. `Left` undoes it, as it does an `Attempt`.
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
    Abandoned {
        /// The stage at which the run ended. A record can exist only after the operations.
        stage: Stage,
        /// Time of the end.
        at: Timestamp,
    },
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<StoredBlock>,
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
    pub csi_snapshots: Vec<csi::CsiSnapshotRecord>,
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
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
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

/// State of a run, recovered from its journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovered {
    /// Number of attempts at the run.
    pub attempts: usize,
    /// Number of attempts at each stage after the items.
    pub stage_attempts: BTreeMap<Stage, usize>,
    /// Time since which the bucket of the run is unavailable.
    pub bucket_lost: Option<Timestamp>,
    /// The stage at which the run waits for its bucket, if it does and the journal says so.
    pub bucket_lost_at_stage: Option<Stage>,
    /// The stage at which the run ended without its bucket, if it did.
    pub abandoned: Option<Stage>,
    /// Blocks that have ended, in order.
    pub finished: Vec<BlockEnded>,
    /// Blocks that have not ended.
    pub unfinished: Vec<BlockStarted>,
    /// Pods that may be frozen now, by block.
    pub frozen: FrozenByBlock,
    /// Snapshots requested from plugins without a known answer; they may have been taken.
    pub in_flight: Vec<Intent>,
    /// Errors while thawing pods.
    pub thaw_errors: Vec<JournaledMessage>,
    /// The number of the next block.
    pub next_block: u64,
    /// Volumes requested from plugins, in order. Those without an answer may have been created.
    pub volumes: Vec<VolumeRequest>,
}

impl Recovered {
    /// Number of attempts at a stage.
    pub fn attempts_at(&self, stage: Stage) -> usize {
        match stage {
            Stage::Items => self.attempts,
            _ => self.stage_attempts.get(&stage).copied().unwrap_or_default(),
        }
    }
}

/// A volume requested from a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeRequest {
    /// The request.
    pub started: VolumeRequested,
    /// The answer, if it is known.
    pub ended: Option<VolumeAnswered>,
}

/// Reads a journal.
pub fn recover(records: impl IntoIterator<Item = JournalEntry>) -> Recovered {
    let mut recovered = Recovered::default();
    let mut request: BTreeMap<u64, BlockStarted> = BTreeMap::new();
    let (mut frozen, mut in_flight) = (FrozenPods::default(), InFlight::default());
    let mut ended_blocks = BTreeSet::new();
    let mut current_stage = Stage::Items;
    for record in records {
        frozen.apply(&record);
        in_flight.apply(&record);
        match record {
            JournalEntry::Attempt { .. } => {
                recovered.attempts += 1;
                current_stage = Stage::Items;
            }
            JournalEntry::StageAttempt { stage, .. } => {
                *recovered.stage_attempts.entry(stage).or_default() += 1;
                current_stage = stage;
            }
            JournalEntry::Left { .. } => match recovered.stage_attempts.get_mut(&current_stage) {
                Some(attempts) => *attempts = attempts.saturating_sub(1),
                None => recovered.attempts = recovered.attempts.saturating_sub(1),
            },
            JournalEntry::BucketLost { at, stage } => {
                recovered.bucket_lost.get_or_insert(at);
                recovered.bucket_lost_at_stage = stage;
            }
            JournalEntry::BucketBack { .. } => {
                (recovered.bucket_lost, recovered.bucket_lost_at_stage) = (None, None);
            }
            JournalEntry::Abandoned { stage, .. } => recovered.abandoned = Some(stage),
            JournalEntry::Begun(block) => {
                recovered.next_block = recovered.next_block.max(block.block.saturating_add(1));
                request.insert(block.block, block);
            }
            JournalEntry::Also { block, intents } => {
                if let Some(begun) = request.get_mut(&block) {
                    begun.intents.extend(intents);
                }
            }
            JournalEntry::Ended(answer) => {
                recovered.next_block = recovered.next_block.max(answer.block.saturating_add(1));
                request.remove(&answer.block);
                if ended_blocks.insert(answer.block) {
                    recovered.finished.push(*answer);
                }
            }
            JournalEntry::Thawed { errors, .. } | JournalEntry::PostHooks { errors, .. } => {
                recovered.thaw_errors.extend(errors);
            }
            JournalEntry::InFlight { .. } | JournalEntry::Reclaimed { .. } => {}
            JournalEntry::VolumeBegun(begun) => {
                recovered.next_block = recovered.next_block.max(begun.block.saturating_add(1));
                recovered.volumes.push(VolumeRequest { started: begun, ended: None });
            }
            JournalEntry::VolumeEnded(ended) => {
                let mut all = recovered.volumes.iter_mut();
                if let Some(one) = all.find(|one| one.started.block == ended.block) {
                    one.ended = Some(ended);
                }
            }
        }
    }
    recovered.frozen = frozen.all();
    recovered.in_flight = in_flight.all();
    recovered.unfinished = request.into_values().collect();
    recovered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(block: u64, pods: &[&str]) -> JournalEntry {
        let pod = |name: &&str| Pod {
            namespace: "shop".into(),
            name: (*name).into(),
            uid: format!("uid-{name}"),
            ..Pod::default()
        };
        JournalEntry::Begun(BlockStarted {
            block,
            pods: pods.iter().map(pod).collect(),
            ..BlockStarted::default()
        })
    }

    fn answer(block: u64) -> JournalEntry {
        JournalEntry::Ended(Box::new(BlockEnded { block, ..BlockEnded::default() }))
    }

    #[test]
    fn block_without_end_is_redone_and_its_pods_stay_frozen_until_thawed() {
        let attempt = || JournalEntry::Attempt { at: Timestamp::UNIX_EPOCH };
        let read = recover([
            attempt(),
            request(0, &["a"]),
            request(1, &["b"]),
            answer(0),
            request(2, &[]),
            request(3, &["c"]),
            attempt(),
            JournalEntry::Thawed { block: 1, errors: vec![JournaledMessage::default()] },
            attempt(),
            JournalEntry::Left { at: Timestamp::UNIX_EPOCH },
        ]);
        let blocks =
            |list: &[BlockStarted]| list.iter().map(|block| block.block).collect::<Vec<_>>();
        assert_eq!(read.attempts, 2, "what was left in good order does not count");
        assert_eq!(read.thaw_errors.len(), 1);
        assert_eq!(read.finished.iter().map(|ended| ended.block).collect::<Vec<_>>(), [0]);
        assert_eq!(blocks(&read.unfinished), [1, 2, 3]);
        assert_eq!(read.frozen.keys().copied().collect::<Vec<_>>(), [3]);
        assert_eq!(read.next_block, 4);
        assert_eq!(recover([]), Recovered::default());
    }

    #[test]
    fn pods_not_reached_at_block_end_stay_frozen_until_thawed() {
        let pod = Pod { name: "a".into(), ..Pod::default() };
        let not_reached = JournalEntry::Ended(Box::new(BlockEnded {
            block: 0,
            frozen: vec![pod.clone()],
            ..BlockEnded::default()
        }));
        let text = serde_json::to_string(&not_reached).unwrap();
        assert_eq!(serde_json::from_str::<JournalEntry>(&text).unwrap(), not_reached, "{text}");
        let mut records = vec![request(0, &["a", "b"]), not_reached];
        let read = recover(records.clone());
        assert_eq!(read.frozen, BTreeMap::from([(0, vec![pod])]));
        assert_eq!(read.unfinished, [], "it is over all the same");
        records.push(JournalEntry::Thawed { block: 0, errors: Vec::new() });
        assert_eq!(recover(records).frozen, BTreeMap::new());
    }

    #[test]
    fn attempts_are_counted_per_stage_and_clean_exits_are_not_counted() {
        let at = Timestamp::UNIX_EPOCH;
        let stage = |stage| JournalEntry::StageAttempt { stage, at };
        let read = recover([
            JournalEntry::Attempt { at },
            stage(Stage::Waiting),
            stage(Stage::Waiting),
            JournalEntry::Left { at },
            stage(Stage::Finalizing),
        ]);
        assert_eq!(read.attempts, 1);
        let expected = BTreeMap::from([(Stage::Waiting, 1), (Stage::Finalizing, 1)]);
        assert_eq!(read.stage_attempts, expected);
    }

    #[test]
    fn bucket_outage_starts_at_first_failure_and_ends_when_bucket_is_back() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let bucket_lost =
            |second| JournalEntry::BucketLost { at: at(second), stage: Some(Stage::Waiting) };
        assert_eq!(recover([bucket_lost(5), bucket_lost(9)]).bucket_lost, Some(at(5)));
        let back = [bucket_lost(5), JournalEntry::BucketBack { at: at(7) }];
        assert_eq!(recover([bucket_lost(5)]).bucket_lost_at_stage, Some(Stage::Waiting));
        assert_eq!(recover(back.clone()).bucket_lost, None);
        assert_eq!(recover(back.clone()).bucket_lost_at_stage, None);
        assert_eq!(recover(back.into_iter().chain([bucket_lost(9)])).bucket_lost, Some(at(9)));
        let abandoned = JournalEntry::Abandoned { stage: Stage::Waiting, at: at(6) };
        assert_eq!(recover([bucket_lost(5), abandoned]).abandoned, Some(Stage::Waiting));
        assert_eq!(recover([bucket_lost(5)]).abandoned, None);
    }

    #[test]
    fn duplicate_block_end_counts_once() {
        let read = recover([request(0, &[]), answer(0), answer(0)]);
        assert_eq!((read.finished.len(), read.unfinished.len()), (1, 0));
    }

    #[test]
    fn volume_answers_are_matched_by_request_number() {
        let volume_requested = |block, name: &str| {
            JournalEntry::VolumeBegun(VolumeRequested {
                block,
                name: name.into(),
                ..VolumeRequested::default()
            })
        };
        let volume_answered = |block, volume: Option<&str>| {
            JournalEntry::VolumeEnded(VolumeAnswered { block, volume: volume.map(str::to_owned) })
        };
        let read = recover([
            volume_requested(3, "pv-a"),
            volume_requested(4, "pv-b"),
            volume_requested(5, "pv-c"),
            volume_answered(5, None),
            volume_answered(3, Some("vol-1")),
            volume_answered(9, Some("of nobody")),
        ]);
        let answers: Vec<_> = read
            .volumes
            .iter()
            .map(|one| {
                (one.started.name.as_str(), one.ended.as_ref().map(|end| end.volume.clone()))
            })
            .collect();
        assert_eq!(
            answers,
            [("pv-a", Some(Some("vol-1".to_owned()))), ("pv-b", None), ("pv-c", Some(None))]
        );
        assert_eq!(read.next_block, 6);
        assert_eq!(read.unfinished, [], "it is no block");
    }

    #[test]
    fn entries_round_trip_through_json() {
        let item = ResourceIdentifier { name: "db".into(), ..ResourceIdentifier::default() };
        let records = [
            JournalEntry::Attempt { at: Timestamp::UNIX_EPOCH },
            request(7, &["a"]),
            JournalEntry::Ended(Box::new(BlockEnded {
                block: 7,
                visited: vec![item.clone()],
                kept: Some(StoredBlock { number: 3, sha256: "00".into() }),
                backup_operations: vec![BackupOperation::default()],
                errors: vec![JournaledMessage { item: Some(item), text: "no".into() }],
                hooks_attempted: 2,
                ..BlockEnded::default()
            })),
            JournalEntry::Thawed { block: 7, errors: Vec::new() },
            JournalEntry::PostHooks {
                block: 7,
                pod: "uid-a".into(),
                ran: vec![0, 2],
                is_thawed: false,
                errors: Vec::new(),
            },
            JournalEntry::InFlight {
                block: 7,
                intents: vec![Intent {
                    snapshot: Some(SnapshotIntent::default()),
                    ..Intent::default()
                }],
            },
            JournalEntry::Reclaimed { request: "r".into() },
            JournalEntry::Left { at: Timestamp::UNIX_EPOCH },
            JournalEntry::VolumeBegun(VolumeRequested {
                block: 8,
                plugin: "example.io/disk".into(),
                snapshot: "snap-1".into(),
                item: ResourceIdentifier::default(),
                name: "pv".into(),
            }),
            JournalEntry::VolumeEnded(VolumeAnswered { block: 8, volume: Some("vol-1".into()) }),
            JournalEntry::VolumeEnded(VolumeAnswered { block: 8, volume: None }),
            JournalEntry::StageAttempt { stage: Stage::Waiting, at: Timestamp::UNIX_EPOCH },
            JournalEntry::BucketLost { at: Timestamp::UNIX_EPOCH, stage: None },
            JournalEntry::BucketLost { at: Timestamp::UNIX_EPOCH, stage: Some(Stage::Items) },
            JournalEntry::BucketBack { at: Timestamp::UNIX_EPOCH },
            JournalEntry::Abandoned { stage: Stage::Items, at: Timestamp::UNIX_EPOCH },
        ];
        for record in records {
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<JournalEntry>(&text).unwrap(), record, "{text}");
        }
    }
}
