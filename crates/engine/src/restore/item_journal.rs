//! Journal of a restore: the operations that actions start, and the volumes that plugins create.
//!
//! As in backups, an intent is journaled before an item is passed to an action that may start an operation, and an
//! entry when all actions have seen it, with their result stored in the bucket. A later process uses that result
//! and runs no action on the item again.
//!
//! Likewise, an entry is written before a plugin is asked for a volume, and another with its answer. A later process
//! uses the known volume, and reports one that may be a leftover.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_plugin::{InvalidItem, Item, ResourceIdentifier, VolumeId, error_chain};
use bowline_store::BackupStore;
use bowline_store::file::RestoreOperation;
use bowline_store::name::RunUid;
use bytes::Bytes;
use serde_json::Value;

use super::Context;
use super::item::SkipReason;
use super::item::actions::ActionsError;
use super::request::Request;
use crate::failpoint::{self, Failpoint, FailpointAction};
use crate::journal::{
    self, AbandonedOperations, BlockEnded, BlockStarted, Intent, Journal, JournalEntry,
    JournaledMessage, RecoveredRun, StoredBlock, VolumeAnswered, VolumeRequest, VolumeRequested,
    digest,
};
use crate::leftover::{self, INTERRUPTED_PLUGIN, LEFT_OVER};
use crate::operation::{Operation, record};
use crate::report::{Message, Report, ReportSubject, error_text};

/// Maximum size of one item.
const MAX_ITEM_BYTES: u64 = 64 << 20;

/// Journal of a restore.
pub(super) struct ItemJournal {
    journal: Arc<dyn Journal>,
    store: BackupStore,
    run: RunUid,
    next: AtomicU64,
    /// Items that an earlier process finished.
    finished_items: HashMap<ResourceIdentifier, BlockEnded>,
    /// Volumes that earlier processes requested.
    volumes: Vec<VolumeRequest>,
}

/// Work of earlier processes on a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EarlierVolume {
    /// Name of the PersistentVolume in the cluster.
    pub(super) name: String,
    /// The volume that a plugin created, by the plugin's id.
    pub(super) volume: Option<VolumeId>,
}

/// Result of the actions on an item.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ActionsOutcome {
    /// Restore the item as this.
    Changed(Value),
    /// Skip the item, for this reason.
    Skipped(SkipReason),
}

/// An item that the actions have seen.
pub(super) struct ActionsRecord<'a> {
    pub(super) id: &'a ResourceIdentifier,
    pub(super) outcome: &'a Result<ActionsOutcome, ActionsError>,
    pub(super) operations: &'a [Operation],
    pub(super) report: &'a Report,
    /// Additional items that must be included whatever the filters say.
    pub(super) additional: Vec<ResourceIdentifier>,
}

/// Why the result of an earlier process is lost.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoredItemError {
    #[error(transparent)]
    Item(#[from] InvalidItem),
    #[error("the file of the item in the bucket was changed")]
    Changed,
    #[error("the file of the item is missing in the bucket")]
    Missing,
    /// In one line, without the query strings of URLs, which may be signed.
    #[error("{}", error_chain(&**.0))]
    Store(Box<bowline_store::Error>),
}

impl ItemJournal {
    pub(super) fn new(
        journal: Arc<dyn Journal>,
        store: BackupStore,
        request: &Request,
        recovered: &RecoveredRun,
    ) -> Self {
        let of_item = |ended: &BlockEnded| {
            let item = ended.visited.first()?.clone();
            Some((item.into(), ended.clone()))
        };
        Self {
            journal,
            store,
            run: request.uid.clone(),
            next: AtomicU64::new(recovered.next_block),
            finished_items: recovered.finished.iter().filter_map(of_item).collect(),
            volumes: recovered.volumes.clone(),
        }
    }

    /// Journals that a plugin is about to be asked for a volume. Returns the number of the entry.
    pub(super) async fn journal_volume_start(
        &self,
        mut started: VolumeRequested,
    ) -> Result<u64, journal::Error> {
        let block = self.next.fetch_add(1, Ordering::Relaxed);
        started.block = block;
        if failpoint::should_skip(Failpoint::JournalBlockStart) == FailpointAction::Continue {
            self.journal.append(&JournalEntry::VolumeRequested(started)).await?;
        }
        failpoint::hit(Failpoint::BlockStartJournaled);
        Ok(block)
    }

    /// Journals the answer: a volume, or none.
    pub(super) async fn journal_volume_end(&self, block: u64, volume: Option<&VolumeId>) {
        let ended = VolumeAnswered { block, volume: volume.map(ToString::to_string) };
        if failpoint::should_skip(Failpoint::JournalBlockEnd) == FailpointAction::Continue
            && let Err(error) = self.journal.append(&JournalEntry::VolumeAnswered(ended)).await
        {
            tracing::warn!("{error}; if the server restarts now, the volume is created again");
        }
        failpoint::hit(Failpoint::BlockEndJournaled);
    }

    /// Work of earlier processes on the volume of a PersistentVolume.
    pub(super) fn earlier_volume(&self, id: &ResourceIdentifier) -> Option<EarlierVolume> {
        let requests = self
            .volumes
            .iter()
            .filter(|one| ResourceIdentifier::from(one.started.item.clone()) == *id);
        // A created volume takes precedence over attempts before or after it.
        let last = requests.max_by_key(|one| (created_volume(one).is_some(), one.started.block))?;
        let volume = created_volume(last).and_then(VolumeId::new);
        Some(EarlierVolume { name: last.started.name.clone(), volume })
    }

    /// Journals that actions are about to run on an item. Returns the number of the entry.
    pub(super) async fn journal_start(&self, intents: Vec<Intent>) -> Result<u64, journal::Error> {
        let block = self.next.fetch_add(1, Ordering::Relaxed);
        if failpoint::should_skip(Failpoint::JournalBlockStart) == FailpointAction::Continue {
            let record = JournalEntry::BlockStarted(BlockStarted {
                block,
                intents,
                ..BlockStarted::default()
            });
            self.journal.append(&record).await?;
        }
        failpoint::hit(Failpoint::BlockStartJournaled);
        Ok(block)
    }

    /// Journals the result.
    pub(super) async fn journal_end(
        &self,
        block: u64,
        actions_record: ActionsRecord<'_>,
        request: &Request,
    ) {
        let ActionsRecord { id, outcome, operations, report, additional } = actions_record;
        let run = request.run_identity();
        let restore_operations: Vec<_> =
            operations.iter().map(|one| record::of_restore(one, run)).collect();
        let stored_item = match outcome {
            Ok(ActionsOutcome::Changed(value)) => match self.store_item(block, value).await {
                Some(stored_item) => Some(stored_item),
                // Without the stored result the entry would be useless.
                None => return self.journal_abandoned(block, restore_operations).await,
            },
            _ => None,
        };
        let (errors, warnings) = report.messages();
        let ended = BlockEnded {
            block,
            visited: vec![id.clone().into()],
            additional: additional.into_iter().map(Into::into).collect(),
            stored: stored_item,
            failed: outcome.as_ref().err().map(|error| error_text(error)),
            restore_operations: restore_operations.clone(),
            errors: errors.into_iter().map(JournaledMessage::from).collect(),
            warnings: warnings.into_iter().map(JournaledMessage::from).collect(),
            ..BlockEnded::default()
        };
        if failpoint::should_skip(Failpoint::JournalBlockEnd) == FailpointAction::Continue
            && let Err(error) =
                self.journal.append(&JournalEntry::BlockEnded(Box::new(ended))).await
        {
            tracing::warn!("{error}; if the server restarts now, some work is repeated");
            self.journal_abandoned(block, restore_operations).await;
        }
        failpoint::hit(Failpoint::BlockEndJournaled);
    }

    /// Journals the operations of an item that a later attempt repeats, which then cancels them.
    async fn journal_abandoned(&self, block: u64, restore_operations: Vec<RestoreOperation>) {
        if restore_operations.is_empty() {
            return;
        }
        let operations =
            AbandonedOperations { restore_operations, ..AbandonedOperations::default() };
        let entry = JournalEntry::InFlight { block, intents: Vec::new(), operations };
        if let Err(error) = self.journal.append(&entry).await {
            tracing::warn!("{error}; if the server restarts now, operations may continue to run");
        }
    }

    async fn store_item(&self, block: u64, value: &Value) -> Option<StoredBlock> {
        let bytes = Bytes::from(serde_json::to_vec(value).ok()?);
        let sha256 = digest(&bytes);
        failpoint::hit(Failpoint::StoreBlock);
        match self.store.put_scratch(&self.run, block, bytes).await {
            Ok(()) => {
                failpoint::hit(Failpoint::BlockStored);
                Some(StoredBlock { number: block, sha256 })
            }
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!("an item cannot be saved for a restart of the server: {error}");
                None
            }
        }
    }

    /// Additional items that the actions of an item required in an earlier process.
    pub(super) fn earlier_additional_items(
        &self,
        id: &ResourceIdentifier,
    ) -> Vec<ResourceIdentifier> {
        let ended = self.finished_items.get(id);
        ended
            .into_iter()
            .flat_map(|ended| ended.additional.iter().cloned().map(Into::into))
            .collect()
    }

    /// Result of the actions on an item in an earlier process, if they ran there.
    pub(super) async fn earlier_outcome(
        &self,
        id: &ResourceIdentifier,
    ) -> Option<Result<ActionsOutcome, ActionsError>> {
        let ended = self.finished_items.get(id)?;
        if let Some(reason) = &ended.failed {
            return Some(Err(ActionsError::BeforeRestart(reason.clone())));
        }
        let Some(stored_item) = &ended.stored else {
            return Some(Ok(ActionsOutcome::Skipped(SkipReason::ActionBeforeRestart)));
        };
        let read = match self.store.scratch(&self.run, stored_item.number, MAX_ITEM_BYTES).await {
            Ok(Some(bytes)) if digest(&bytes) == stored_item.sha256 => {
                Item::from_json(bytes).and_then(|item| item.parse()).map_err(StoredItemError::Item)
            }
            Ok(Some(_)) => Err(StoredItemError::Changed),
            Ok(None) => Err(StoredItemError::Missing),
            Err(error) => Err(StoredItemError::Store(Box::new(error))),
        };
        Some(read.map(ActionsOutcome::Changed).map_err(ActionsError::Lost))
    }
}

/// The volume that a plugin created, if known.
fn created_volume(requested: &VolumeRequest) -> Option<&str> {
    requested.ended.as_ref()?.volume.as_deref()
}

/// Warning about a requested volume, in case no process resumes the restore.
fn leftover_message(requested: &VolumeRequest) -> Option<(ResourceIdentifier, String)> {
    let VolumeRequest { started: VolumeRequested { plugin, snapshot, item, .. }, ended } =
        requested;
    let text = match ended {
        None => format!(
            "{INTERRUPTED_PLUGIN}{plugin} created a volume from snapshot {snapshot}; the volume, \
             if it exists, may be {LEFT_OVER}"
        ),
        Some(VolumeAnswered { volume: Some(volume), .. }) => format!(
            "plugin {plugin} created volume {volume} from snapshot {snapshot}; the volume is \
             {LEFT_OVER} unless a PersistentVolume refers to it"
        ),
        Some(VolumeAnswered { volume: None, .. }) => return None,
    };
    Some((item.clone().into(), text))
}

/// Volumes that earlier processes requested from plugins, and that may be leftovers if no process resumes the
/// restore.
pub fn leftover_volumes(recovered: &RecoveredRun) -> Vec<(ResourceIdentifier, String)> {
    recovered.volumes.iter().filter_map(leftover_message).collect()
}

/// Warns about volumes that earlier processes had created and that this one did not reach.
pub(super) fn warn_leftover_volumes(context: &Context) {
    let volumes = context.item_journal.iter().flat_map(|journal| &journal.volumes);
    let unused = volumes.filter(|one| created_volume(one).is_some());
    let unused = unused.filter(|one| !context.volume_outcomes.is_known(&one.started.item.name));
    for (id, text) in unused.filter_map(leftover_message) {
        context.report.warn(&id, text);
    }
}

/// Restores the state that an earlier process journaled.
pub(super) fn replay(context: &Context, recovered: &RecoveredRun) {
    let message = |journaled: &JournaledMessage| Message::from(journaled.clone());
    for ended in &recovered.finished {
        let (errors, warnings) = (ended.errors.iter(), ended.warnings.iter());
        context.report.append(errors.map(message), warnings.map(message));
        let timeout = context.request.timeouts.item_operation;
        for operation in &ended.restore_operations {
            match record::from_restore(operation.clone(), timeout, context.started_at) {
                Ok(operation) => context.record_operation(operation),
                Err(error) => context.report.error(ReportSubject::Run, error.to_string()),
            }
        }
    }
    for Intent { plugin, item, .. } in
        recovered.unfinished.iter().flat_map(|started| &started.intents)
    {
        let id: ResourceIdentifier = item.clone().into();
        let text = leftover::interrupted_action(plugin, "and the plugin is called again");
        context.report.warn(&id, text);
    }
    for (id, text) in
        recovered.volumes.iter().filter(|one| one.ended.is_none()).filter_map(leftover_message)
    {
        context.report.warn(&id, text);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bowline_plugin::{Code, Error, OperationId};
    use bowline_store::Prefix;
    use bowline_store::backend::Memory;
    use bowline_store::backend::memory::StoreCall;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::journal::{InMemory, recover};
    use crate::operation::Kind;
    use crate::restore::{abandoned_operations, operations_before_restart};
    use crate::testing::ValidRestore;

    #[tokio::test]
    async fn operations_of_an_item_that_cannot_be_saved_are_named_for_the_next_attempt() {
        let request = ValidRestore::new(json!({})).request();
        let no_room = |call, _: &str| {
            (call == StoreCall::Put).then(|| Error::new(Code::ResourceExhausted, "full"))
        };
        let full_bucket = Memory::with_bucket("b").failing(no_room);
        let refusing =
            || InMemory::refusing(|record| matches!(record, JournalEntry::BlockEnded(_)));
        for (memory, journal) in
            [(full_bucket, InMemory::default()), (Memory::with_bucket("b"), refusing())]
        {
            let journal = Arc::new(journal);
            let store = BackupStore::new(Arc::new(memory), "b", &Prefix::default());
            let recovered = RecoveredRun::default();
            let items = ItemJournal::new(Arc::clone(&journal) as _, store, &request, &recovered);
            let block = items.journal_start(vec![Intent::default()]).await.unwrap();
            let id = ResourceIdentifier { name: "data".into(), ..ResourceIdentifier::default() };
            let timeout = Duration::from_mins(1);
            let operation = Operation::started(
                Kind::ItemRestore,
                "test.io/begins".parse().unwrap(),
                id.clone(),
                OperationId::new("op-1".to_owned()).unwrap(),
                Timestamp::UNIX_EPOCH,
                timeout,
            );
            let actions_record = ActionsRecord {
                id: &id,
                outcome: &Ok(ActionsOutcome::Changed(json!({}))),
                operations: &[operation],
                report: &Report::default(),
                additional: Vec::new(),
            };
            items.journal_end(block, actions_record, &request).await;
            let recovered = recover(journal.records());
            assert_eq!(recovered.unfinished.len(), 1, "the item is repeated");
            let began = Timestamp::UNIX_EPOCH;
            for named in [
                abandoned_operations(&recovered, timeout, began),
                operations_before_restart(&recovered, timeout, began),
            ] {
                let ids: Vec<_> = named.iter().map(|one| one.id.to_string()).collect();
                assert_eq!(ids, ["op-1"]);
            }
        }
    }
}
