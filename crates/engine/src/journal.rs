//! What a run must not forget, whatever happens to the process that runs it.
//!
//! Before a block of items is touched, the run notes which pods it may freeze and which plugins it
//! will ask to begin something ([`BlockStarted`]). When all of that is over it notes what came of it
//! ([`BlockEnded`]). Nothing is written in between, while an application is frozen. After a restart,
//! [`recover`] tells what is finished, and is taken over, from what is not, and is done again.
//!
//! Commands are never noted: hooks are derived again from the pod and the run. So a journal alone makes nobody execute
//! anything but the hooks that a pod or its Backup has. A server keeps the hooks of a Backup beside the journal, though,
//! and whoever can write both chooses the command and the pod: see decision 030.

mod frozen;
mod in_flight;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};

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

/// How often a stage of a run is attempted unless a server is told otherwise. A run that ends the server each
/// time must not be resumed for ever.
pub const MAX_ATTEMPTS: usize = 4;

/// Why a record could not be appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No record fits any more. That does not change by itself.
    #[error("cannot write the journal of the run: {0}")]
    Full(String),
    /// Another reason.
    #[error("cannot write the journal of the run: {0}")]
    Failed(String),
}

/// Where a run notes what it must not forget.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Adds a record. It is safe from a kill when this returns.
    async fn append(&self, record: &JournalEntry) -> Result<(), Error>;
}

/// A journal that does not outlast its process, for tests.
#[derive(Default)]
pub struct InMemory {
    records: Mutex<Vec<JournalEntry>>,
    refusal: Option<Box<Refusal>>,
}

type Refusal = dyn Fn(&JournalEntry) -> bool + Send + Sync;

impl InMemory {
    /// One that refuses some records, as an API server may that is away or has a quota.
    pub fn refusing(refuses: impl Fn(&JournalEntry) -> bool + Send + Sync + 'static) -> Self {
        Self { records: Mutex::default(), refusal: Some(Box::new(refuses)) }
    }

    /// What was noted, in order.
    pub fn records(&self) -> Vec<JournalEntry> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for InMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("InMemory").field(&self.records()).finish()
    }
}

#[async_trait]
impl Journal for InMemory {
    async fn append(&self, record: &JournalEntry) -> Result<(), Error> {
        if self.refusal.as_ref().is_some_and(|refuses| refuses(record)) {
            return Err(Error::Failed("the journal refuses the record".to_owned()));
        }
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record.clone());
        Ok(())
    }
}

/// One note.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "what")]
pub enum JournalEntry {
    /// A process has taken the run up.
    Attempt {
        /// When.
        at: Timestamp,
    },
    /// A process has left the run in good order, so that the attempt does not count.
    Left {
        /// When.
        at: Timestamp,
    },
    /// A block is about to be touched.
    Begun(BlockStarted),
    /// More is asked of plugins in a block that was begun.
    Also {
        /// The block.
        block: u64,
        /// What plugins will be asked to do.
        intents: Vec<Intent>,
    },
    /// A block is over.
    Ended(Box<BlockEnded>),
    /// Later: the pods of a block have been thawed.
    Thawed {
        /// The block.
        block: u64,
        /// What went wrong with that.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        errors: Vec<JournaledMessage>,
    },
    /// Later: post-hooks of one pod of a block have been run.
    PostHooks {
        /// The block.
        block: u64,
        /// The uid of the pod.
        pod: String,
        /// Those that have run, by their place among the post-hooks of the pod.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ran: Vec<usize>,
        /// Whether none is left, so that the pod is thawed.
        #[serde(default)]
        is_thawed: bool,
        /// What went wrong with that.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        errors: Vec<JournaledMessage>,
    },
    /// Of the snapshots that a block asked plugins for that is done again, these may yet come; the others are
    /// settled. Earlier servers wrote it before `Ended`, too.
    InFlight {
        /// The block.
        block: u64,
        /// What the plugins were asked for.
        intents: Vec<Intent>,
    },
    /// A snapshot that was in flight is gone, or nobody can find out.
    Reclaimed {
        /// The request for it.
        request: String,
    },
    /// A plugin is about to be asked for a volume, in a restore.
    VolumeBegun(VolumeRequested),
    /// It has answered.
    VolumeEnded(VolumeAnswered),
    /// A process has resumed the run at a stage behind the items. Undone by `Left`, as an `Attempt` is.
    StageAttempt {
        /// The stage.
        stage: Stage,
        /// When.
        at: Timestamp,
    },
    /// The bucket of the run could not be used. Noted once, until it can be again.
    BucketLost {
        /// When that was first seen.
        at: Timestamp,
    },
    /// The bucket of the run can be used again.
    BucketBack {
        /// When that was seen.
        at: Timestamp,
    },
    /// The run has ended without its bucket. What it has made and this journal names is still to be
    /// deleted, unless the bucket turns out to have the record of the backup.
    Abandoned {
        /// The stage at which it has ended. Only behind the operations can there be a record.
        stage: Stage,
        /// When.
        at: Timestamp,
    },
}

/// A volume that a plugin is about to make from a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeRequested {
    /// The number of the request in the run, among those of blocks.
    pub block: u64,
    /// The plugin.
    pub plugin: String,
    /// The snapshot, in the words of the plugin.
    pub snapshot: String,
    /// The PersistentVolume, as the backup has it.
    pub item: ResourceIdentifier,
    /// What it is called in the cluster.
    pub name: String,
}

/// What a plugin answered that was asked for a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeAnswered {
    /// The number of the request.
    pub block: u64,
    /// The volume, in the words of the plugin; none if it has made none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
}

/// A block that is about to be touched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BlockStarted {
    /// Its number in the run.
    pub block: u64,
    /// Pods that may be frozen from now on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<Pod>,
    /// What plugins will be asked to do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intents: Vec<Intent>,
}

/// A pod that may be frozen. Another of the same name is another pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The post-hooks that have run although others did not reach it, by their place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ran: Vec<usize>,
}

/// Something that a plugin is asked to do, and that must not be done twice unnoticed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Intent {
    /// The plugin.
    pub plugin: String,
    /// The item that it is shown.
    pub item: ResourceIdentifier,
    /// The snapshot that it is to take, if it is a snapshotter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotIntent>,
    /// The VolumeSnapshot that is made of it, if it is a claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csi: Option<CsiIntent>,
}

/// A VolumeSnapshot that is about to be made, or a group of them. Its name is ours alone, so that it can be found and taken
/// away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CsiIntent {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it is a VolumeGroupSnapshot.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_group: bool,
}

/// A snapshot that a plugin is asked to take. With it the plugin can be asked for the same once more,
/// and answers with the same snapshot if it keeps version 2 of the contract.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotIntent {
    /// The VolumeSnapshotLocation.
    pub location: String,
    /// The volume in the words of its provider.
    pub volume: String,
    /// Its zone.
    pub zone: String,
    /// What tells this request from all others.
    pub request: String,
}

/// What came of a block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BlockEnded {
    /// Its number in the run.
    pub block: u64,
    /// The items that were visited, stored or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub visited: Vec<ResourceIdentifier>,
    /// Items that its actions wanted restored with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional: Vec<ResourceIdentifier>,
    /// Where the bytes of those that were stored are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<StoredBlock>,
    /// Why nothing is stored or restored, if that failed as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// The operations that were begun, of a backup.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backup_operations: Vec<BackupOperation>,
    /// The operations that were begun, of a restore.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restore_operations: Vec<RestoreOperation>,
    /// The snapshots that were taken of its volumes, or could not be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<Snapshot>,
    /// What plugins do with those that were.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_operations: Vec<VolumeOperation>,
    /// The snapshots that CSI drivers were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub csi_snapshots: Vec<csi::CsiSnapshotRecord>,
    /// Volumes that nobody was asked to snapshot, with the reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lacking_volumes: BTreeMap<String, String>,
    /// Volumes that no plugin has a method for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmatched_volumes: Vec<String>,
    /// Of the snapshots that plugins were asked for, those that were given up and may yet come.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub in_flight: Vec<Intent>,
    /// Pods that may be frozen still, because nobody could reach them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<Pod>,
    /// For how long its pods were frozen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub freeze_windows: Vec<FreezeWindow>,
    /// What could not be done.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<JournaledMessage>,
    /// What was not done as one might think.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<JournaledMessage>,
    /// How many hooks were run.
    #[serde(skip_serializing_if = "is_zero")]
    pub hooks_attempted: u64,
    /// How many of them failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub hooks_failed: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Bytes in the bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredBlock {
    /// The number of the object.
    pub number: u64,
    /// The SHA-256 of its bytes, in hex.
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
    /// The item that it is about; none for the run itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<ResourceIdentifier>,
    /// What it says.
    pub text: String,
}

/// What a journal says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovered {
    /// How often the run was taken up.
    pub attempts: usize,
    /// How often each stage behind the items was resumed.
    pub stage_attempts: BTreeMap<Stage, usize>,
    /// Since when the bucket of the run cannot be used.
    pub bucket_lost: Option<Timestamp>,
    /// The stage at which the run has ended without its bucket, if it has.
    pub abandoned: Option<Stage>,
    /// Blocks that are over, in order.
    pub finished: Vec<BlockEnded>,
    /// Blocks that are not.
    pub unfinished: Vec<BlockStarted>,
    /// Pods that may be frozen at this moment, by block.
    pub frozen: FrozenByBlock,
    /// Snapshots that plugins were asked for and that may have been taken, though nobody has heard of them.
    pub in_flight: Vec<Intent>,
    /// What went wrong when pods were thawed.
    pub thaw_errors: Vec<JournaledMessage>,
    /// The number of the next block.
    pub next_block: u64,
    /// Volumes that plugins were asked for, in order. Those that nobody has heard of since may have
    /// been made.
    pub volumes: Vec<VolumeRequest>,
}

impl Recovered {
    /// How often a stage was attempted.
    pub fn attempts_at(&self, stage: Stage) -> usize {
        match stage {
            Stage::Items => self.attempts,
            _ => self.stage_attempts.get(&stage).copied().unwrap_or_default(),
        }
    }
}

/// A volume that a plugin was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeRequest {
    /// What was asked.
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
            JournalEntry::BucketLost { at } => {
                recovered.bucket_lost.get_or_insert(at);
            }
            JournalEntry::BucketBack { .. } => recovered.bucket_lost = None,
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
        let bucket_lost = |second| JournalEntry::BucketLost { at: at(second) };
        assert_eq!(recover([bucket_lost(5), bucket_lost(9)]).bucket_lost, Some(at(5)));
        let back = [bucket_lost(5), JournalEntry::BucketBack { at: at(7) }];
        assert_eq!(recover(back.clone()).bucket_lost, None);
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
            JournalEntry::BucketLost { at: Timestamp::UNIX_EPOCH },
            JournalEntry::BucketBack { at: Timestamp::UNIX_EPOCH },
            JournalEntry::Abandoned { stage: Stage::Items, at: Timestamp::UNIX_EPOCH },
        ];
        for record in records {
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<JournalEntry>(&text).unwrap(), record, "{text}");
        }
    }
}
