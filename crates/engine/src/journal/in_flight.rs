//! Snapshots that plugins were asked for and that nobody has heard of since, as the records of a journal say.

use std::collections::BTreeMap;

use super::{Intent, Record};

/// Requests for snapshots whose answers are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Of blocks that have not ended.
    asked: BTreeMap<u64, Vec<Intent>>,
    /// Of blocks that have ended, or were broken off, and said so.
    given_up: BTreeMap<u64, Vec<Intent>>,
}

impl InFlight {
    /// Takes note of a record.
    pub fn see(&mut self, record: &Record) {
        let of_snapshots = |intents: &'_ [Intent]| -> Vec<Intent> {
            intents.iter().filter(|intent| intent.snapshot.is_some()).cloned().collect()
        };
        match record {
            Record::Begun(begun) => {
                self.asked.insert(begun.block, of_snapshots(&begun.intents));
            }
            Record::Also { block, intents } => {
                self.asked.entry(*block).or_default().extend(of_snapshots(intents));
            }
            Record::InFlight { block, intents } => {
                self.asked.remove(block);
                self.given_up.insert(*block, of_snapshots(intents));
            }
            Record::Ended(ended) => {
                self.asked.remove(&ended.block);
                if !ended.in_flight.is_empty() {
                    self.given_up.insert(ended.block, of_snapshots(&ended.in_flight));
                }
            }
            Record::Reclaimed { request } => {
                let is_other = |intent: &Intent| {
                    intent.snapshot.as_ref().is_none_or(|wanted| wanted.request != *request)
                };
                for intents in self.asked.values_mut().chain(self.given_up.values_mut()) {
                    intents.retain(is_other);
                }
            }
            _ => {}
        }
    }

    /// All of them.
    pub fn all(&self) -> Vec<Intent> {
        self.asked.values().chain(self.given_up.values()).flatten().cloned().collect()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.asked.values().chain(self.given_up.values()).all(Vec::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Begun, Ended, SnapshotIntent};

    fn intent(request: &str) -> Intent {
        let wanted = SnapshotIntent { request: request.into(), ..SnapshotIntent::default() };
        Intent { snapshot: Some(wanted), ..Intent::default() }
    }

    fn requests(records: &[Record]) -> Vec<String> {
        let mut in_flight = InFlight::default();
        for record in records {
            in_flight.see(record);
        }
        let all = in_flight.all();
        assert_eq!(in_flight.is_empty(), all.is_empty());
        all.into_iter().map(|intent| intent.snapshot.unwrap().request).collect()
    }

    #[test]
    fn what_was_asked_for_is_in_flight_until_its_block_has_ended() {
        let of_item = Intent::default();
        let begun = |block, intents| Record::Begun(Begun { block, intents, ..Begun::default() });
        let ended = Record::Ended(Box::new(Ended { block: 0, ..Ended::default() }));
        let mut records = vec![begun(0, vec![intent("a"), of_item]), begun(1, vec![intent("b")])];
        records.push(Record::Also { block: 1, intents: vec![intent("c")] });
        assert_eq!(requests(&records), ["a", "b", "c"]);
        records.push(ended);
        assert_eq!(requests(&records), ["b", "c"]);
        // A block that was broken off says which may yet come.
        records.push(Record::InFlight { block: 1, intents: vec![intent("c")] });
        assert_eq!(requests(&records), ["c"]);
        records.push(Record::Reclaimed { request: "c".into() });
        assert_eq!(requests(&records), [""; 0]);
    }

    #[test]
    fn a_snapshot_that_was_given_up_outlasts_the_end_of_its_block() {
        let begun = Record::Begun(Begun { intents: vec![intent("a")], ..Begun::default() });
        let in_flight = vec![intent("a")];
        let ended = Ended { in_flight: in_flight.clone(), ..Ended::default() };
        assert_eq!(requests(&[begun.clone(), Record::Ended(Box::new(ended))]), ["a"]);
        // As earlier servers wrote it.
        let given_up = Record::InFlight { block: 0, intents: in_flight };
        assert_eq!(requests(&[begun, given_up, Record::Ended(Box::default())]), ["a"]);
    }
}
