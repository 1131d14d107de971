//! State of a run, read from its journal.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{
    AbandonedOperations, BlockEnded, BlockStarted, FrozenByBlock, FrozenPods, InFlight, Intent,
    JournalEntry, JournaledMessage, VolumeAnswered, VolumeRequested,
};
use crate::phase::Stage;

/// State of a run, recovered from its journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecoveredRun {
    /// Number of attempts at the run.
    pub attempts: usize,
    /// Number of attempts at each stage after the items.
    pub stage_attempts: BTreeMap<Stage, usize>,
    /// Time since which the bucket of the run is unavailable.
    pub bucket_lost: Option<Timestamp>,
    /// The stage at which the run waits for its bucket, if it does and the journal says so.
    pub bucket_lost_at_stage: Option<Stage>,
    /// The stage at which the run ended without its bucket, if it did.
    pub ended_without_bucket: Option<Stage>,
    /// If the commit record may have been written: whether it is that of a canceled backup.
    pub commit_attempted: Option<CommitAttempt>,
    /// Blocks that have ended, in order.
    pub finished: Vec<BlockEnded>,
    /// Blocks that have not ended.
    pub unfinished: Vec<BlockStarted>,
    /// Pods that may be frozen now, by block.
    pub frozen: FrozenByBlock,
    /// Snapshots requested from plugins without a known answer; they may have been taken.
    pub in_flight: Vec<Intent>,
    /// Operations of blocks that are repeated.
    pub abandoned: AbandonedOperations,
    /// Errors while thawing pods.
    pub thaw_errors: Vec<JournaledMessage>,
    /// The number of the next block.
    pub next_block: u64,
    /// Volumes requested from plugins, in order. Those without an answer may have been created.
    pub volumes: Vec<VolumeRequest>,
}

impl RecoveredRun {
    /// Number of attempts at a stage.
    pub fn attempts_at(&self, stage: Stage) -> usize {
        match stage {
            Stage::Items => self.attempts,
            _ => self.stage_attempts.get(&stage).copied().unwrap_or_default(),
        }
    }
}

/// An attempt to write the commit record, which may still arrive in the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitAttempt {
    /// True if the record is that of a canceled backup.
    pub is_canceled: bool,
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
pub fn recover(entries: impl IntoIterator<Item = JournalEntry>) -> RecoveredRun {
    let mut recovered = RecoveredRun::default();
    let mut open_blocks: BTreeMap<u64, BlockStarted> = BTreeMap::new();
    let (mut frozen, mut in_flight) = (FrozenPods::default(), InFlight::default());
    let mut ended_blocks = BTreeSet::new();
    let mut abandoned: BTreeMap<u64, AbandonedOperations> = BTreeMap::new();
    let mut current_stage = Stage::Items;
    for entry in entries {
        frozen.apply(&entry);
        in_flight.apply(&entry);
        match entry {
            JournalEntry::Attempt { .. } => {
                recovered.attempts += 1;
                current_stage = Stage::Items;
            }
            JournalEntry::StageAttempt { stage, .. } => {
                *recovered.stage_attempts.entry(stage).or_default() += 1;
                current_stage = stage;
            }
            JournalEntry::AttemptLeft { .. } => {
                match recovered.stage_attempts.get_mut(&current_stage) {
                    Some(attempts) => *attempts = attempts.saturating_sub(1),
                    None => recovered.attempts = recovered.attempts.saturating_sub(1),
                }
            }
            JournalEntry::BucketLost { at, stage } => {
                recovered.bucket_lost.get_or_insert(at);
                recovered.bucket_lost_at_stage = stage;
            }
            JournalEntry::BucketBack { .. } => {
                (recovered.bucket_lost, recovered.bucket_lost_at_stage) = (None, None);
            }
            JournalEntry::EndedWithoutBucket { stage, .. } => {
                recovered.ended_without_bucket = Some(stage);
            }
            JournalEntry::CommitAttempted { is_canceled, .. } => {
                recovered.commit_attempted.get_or_insert(CommitAttempt { is_canceled });
            }
            JournalEntry::BlockStarted(block) => {
                recovered.next_block = recovered.next_block.max(block.block.saturating_add(1));
                open_blocks.insert(block.block, block);
            }
            JournalEntry::MoreIntents { block, intents } => {
                if let Some(started) = open_blocks.get_mut(&block) {
                    started.intents.extend(intents);
                }
            }
            JournalEntry::BlockEnded(ended) => {
                recovered.next_block = recovered.next_block.max(ended.block.saturating_add(1));
                open_blocks.remove(&ended.block);
                if ended_blocks.insert(ended.block) {
                    recovered.finished.push(*ended);
                }
            }
            JournalEntry::Thawed { errors, .. } | JournalEntry::PostHooks { errors, .. } => {
                recovered.thaw_errors.extend(errors);
            }
            JournalEntry::InFlight { block, operations, .. } => {
                abandoned.insert(block, operations);
            }
            JournalEntry::Reclaimed { .. } => {}
            JournalEntry::VolumeRequested(requested) => {
                recovered.next_block = recovered.next_block.max(requested.block.saturating_add(1));
                recovered.volumes.push(VolumeRequest { started: requested, ended: None });
            }
            JournalEntry::VolumeAnswered(ended) => {
                let mut all = recovered.volumes.iter_mut();
                if let Some(one) = all.find(|one| one.started.block == ended.block) {
                    one.ended = Some(ended);
                }
            }
        }
    }
    // An end whose write has failed may be in the journal all the same: the block is then not repeated, and its
    // operations belong to the backup.
    abandoned.retain(|block, _| !ended_blocks.contains(block));
    for operations in abandoned.into_values() {
        recovered.abandoned.backup_operations.extend(operations.backup_operations);
        recovered.abandoned.restore_operations.extend(operations.restore_operations);
    }
    recovered.frozen = frozen.all();
    recovered.in_flight = in_flight.all();
    recovered.unfinished = open_blocks.into_values().collect();
    recovered
}
