//! Snapshots requested from plugins without a known answer, as recorded in a journal.

use std::collections::{BTreeMap, BTreeSet};

use super::{Intent, JournalEntry};

/// Requests for snapshots whose answers are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Of blocks that have not ended.
    requested: BTreeMap<u64, Vec<Intent>>,
    /// Of blocks that have ended or were aborted, and said so.
    given_up: BTreeMap<u64, Vec<Intent>>,
    /// Snapshots of blocks that have ended, by location and ID. An end whose write has failed may be in the journal
    /// all the same, beside the entry that the next attempt deletes these snapshots: they belong to the backup.
    recorded: BTreeSet<(String, String)>,
}

impl InFlight {
    /// Applies a journal entry.
    pub fn apply(&mut self, record: &JournalEntry) {
        let of_snapshots = |intents: &'_ [Intent]| -> Vec<Intent> {
            intents.iter().filter(|intent| intent.snapshot.is_some()).cloned().collect()
        };
        match record {
            JournalEntry::BlockStarted(started) => {
                self.requested.insert(started.block, of_snapshots(&started.intents));
            }
            JournalEntry::MoreIntents { block, intents } => {
                self.requested.entry(*block).or_default().extend(of_snapshots(intents));
            }
            JournalEntry::InFlight { block, intents, .. } => {
                self.requested.remove(block);
                self.given_up.insert(*block, of_snapshots(intents));
            }
            JournalEntry::BlockEnded(ended) => {
                self.requested.remove(&ended.block);
                self.recorded.extend(ended.snapshots.iter().map(|snapshot| {
                    let id = &snapshot.status.provider_snapshot_id;
                    (snapshot.spec.location.clone(), id.clone())
                }));
                if !ended.in_flight.is_empty() {
                    self.given_up.insert(ended.block, of_snapshots(&ended.in_flight));
                }
            }
            JournalEntry::Reclaimed { request } => {
                let is_other = |intent: &Intent| {
                    intent.snapshot.as_ref().is_none_or(|wanted| wanted.request != *request)
                };
                for intents in self.requested.values_mut().chain(self.given_up.values_mut()) {
                    intents.retain(is_other);
                }
            }
            _ => {}
        }
    }

    /// All such requests.
    pub fn all(&self) -> Vec<Intent> {
        self.iter().cloned().collect()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    fn iter(&self) -> impl Iterator<Item = &Intent> {
        let all = self.requested.values().chain(self.given_up.values()).flatten();
        all.filter(|intent| !self.is_recorded(intent))
    }

    fn is_recorded(&self, intent: &Intent) -> bool {
        intent.snapshot.as_ref().is_some_and(|snapshot| {
            let key = |id: &String| (snapshot.location.clone(), id.clone());
            snapshot.created.as_ref().is_some_and(|id| self.recorded.contains(&key(id)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{AbandonedOperations, BlockEnded, BlockStarted, SnapshotIntent};

    fn intent(request: &str) -> Intent {
        let snapshot_intent =
            SnapshotIntent { request: request.into(), ..SnapshotIntent::default() };
        Intent { snapshot: Some(snapshot_intent), ..Intent::default() }
    }

    fn given_up(block: u64, intents: Vec<Intent>) -> JournalEntry {
        JournalEntry::InFlight { block, intents, operations: AbandonedOperations::default() }
    }

    fn requests(records: &[JournalEntry]) -> Vec<String> {
        let mut in_flight = InFlight::default();
        for record in records {
            in_flight.apply(record);
        }
        let all = in_flight.all();
        assert_eq!(in_flight.is_empty(), all.is_empty());
        all.into_iter().map(|intent| intent.snapshot.unwrap().request).collect()
    }

    #[test]
    fn snapshot_request_is_in_flight_until_its_block_ends() {
        let of_item = Intent::default();
        let block_started = |block, intents| {
            JournalEntry::BlockStarted(BlockStarted { block, intents, ..BlockStarted::default() })
        };
        let ended =
            JournalEntry::BlockEnded(Box::new(BlockEnded { block: 0, ..BlockEnded::default() }));
        let mut records =
            vec![block_started(0, vec![intent("a"), of_item]), block_started(1, vec![intent("b")])];
        records.push(JournalEntry::MoreIntents { block: 1, intents: vec![intent("c")] });
        assert_eq!(requests(&records), ["a", "b", "c"]);
        records.push(ended);
        assert_eq!(requests(&records), ["b", "c"]);
        // A block that was aborted names the snapshots that may still appear.
        records.push(given_up(1, vec![intent("c")]));
        assert_eq!(requests(&records), ["c"]);
        records.push(JournalEntry::Reclaimed { request: "c".into() });
        assert_eq!(requests(&records), [""; 0]);
    }

    #[test]
    fn given_up_snapshot_stays_in_flight_after_its_block_ends() {
        let block_started = JournalEntry::BlockStarted(BlockStarted {
            intents: vec![intent("a")],
            ..BlockStarted::default()
        });
        let in_flight = vec![intent("a")];
        let ended = BlockEnded { in_flight: in_flight.clone(), ..BlockEnded::default() };
        assert_eq!(
            requests(&[block_started.clone(), JournalEntry::BlockEnded(Box::new(ended))]),
            ["a"]
        );
        // As earlier servers wrote it.
        let earlier = given_up(0, in_flight);
        assert_eq!(
            requests(&[block_started, earlier, JournalEntry::BlockEnded(Box::default())]),
            ["a"]
        );
    }

    #[test]
    fn snapshot_of_an_ended_block_is_not_in_flight_whichever_entry_came_first() {
        let mut answered = intent("a");
        answered.snapshot.as_mut().unwrap().created = Some("snap-1".to_owned());
        let mut snapshot = bowline_store::file::Snapshot::default();
        "snap-1".clone_into(&mut snapshot.status.provider_snapshot_id);
        let ended = BlockEnded { snapshots: vec![snapshot], ..BlockEnded::default() };
        let ended = JournalEntry::BlockEnded(Box::new(ended));
        let in_flight = given_up(0, vec![answered]);
        assert_eq!(requests(std::slice::from_ref(&in_flight)), ["a"]);
        assert_eq!(requests(&[ended.clone(), in_flight.clone()]), [""; 0]);
        assert_eq!(requests(&[in_flight, ended]), [""; 0]);
    }
}
