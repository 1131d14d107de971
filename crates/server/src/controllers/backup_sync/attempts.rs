//! Which backups were being brought into the cluster when the server ended.
//!
//! A file in a bucket can be made so that reading it ends the server: limits are estimates. The next server would begin
//! with the same file, and the one after that. So what is about to be read is noted on the location first. What is still
//! noted when a server begins is read alone; and if it is noted a second time, not at all, until somebody removes the
//! annotation or the backup.

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::{BackupStorageLocation, annotation};
use kube::ResourceExt as _;

/// How often a backup is begun whose reading does not end.
const MAX_ATTEMPTS: u8 = 2;
/// How many backups are noted at most.
const MAX_RECORDED_BACKUPS: usize = 1000;

/// How often each backup was begun whose reading has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImportAttempts(BTreeMap<String, u8>);

/// What is to be read, in this order: each list at once, and the next when that has ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ImportBatches<T> {
    pub(super) batches: Vec<Vec<T>>,
    /// What is not read any more.
    pub(super) given_up: Vec<T>,
}

impl ImportAttempts {
    /// What a location says. What is no such note says nothing.
    pub(super) fn from_location(location: &BackupStorageLocation) -> Self {
        let recorded = location.annotations().get(annotation::SYNC_ATTEMPTS);
        Self(recorded.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default())
    }

    /// The note as it is written; none if there is nothing to note.
    pub(super) fn to_annotation(&self) -> Option<String> {
        if self.0.is_empty() { None } else { serde_json::to_string(&self.0).ok() }
    }

    /// Forgets backups that are not in the location any more.
    pub(super) fn retain_listed(&mut self, listed: &BTreeSet<&str>) {
        self.0.retain(|name, _| listed.contains(name.as_str()));
    }

    /// Puts in order what is to be read: first what nothing is known against, several at a time; then what is, alone.
    pub(super) fn plan_batches<T>(
        &self,
        wanted: Vec<T>,
        name: impl Fn(&T) -> &str,
        at_once: usize,
    ) -> ImportBatches<T> {
        let mut sorted = ImportBatches { batches: Vec::new(), given_up: Vec::new() };
        let mut suspects = Vec::new();
        for one in wanted {
            match self.0.get(name(&one)) {
                None => match sorted.batches.last_mut() {
                    Some(batch) if batch.len() < at_once => batch.push(one),
                    _ => sorted.batches.push(vec![one]),
                },
                Some(attempts) if *attempts < MAX_ATTEMPTS => suspects.push(vec![one]),
                Some(_) => sorted.given_up.push(one),
            }
        }
        sorted.batches.extend(suspects);
        sorted
    }

    /// Notes that these are about to be read.
    pub(super) fn record_started<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            if self.0.len() < MAX_RECORDED_BACKUPS || self.0.contains_key(name) {
                let attempts = self.0.entry(name.to_owned()).or_default();
                *attempts = attempts.saturating_add(1);
            }
        }
    }

    /// Notes that reading these has ended, well or not.
    pub(super) fn record_ended<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            self.0.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(batch: &[Vec<&'static str>]) -> Vec<Vec<&'static str>> {
        batch.to_vec()
    }

    /// What the next server finds after one was ended in the middle.
    fn next(attempts: &ImportAttempts) -> ImportAttempts {
        let mut location = BackupStorageLocation::default();
        if let Some(text) = attempts.to_annotation() {
            location.annotations_mut().insert(annotation::SYNC_ATTEMPTS.to_owned(), text);
        }
        ImportAttempts::from_location(&location)
    }

    #[test]
    fn crashing_file_is_skipped_without_blocking_others() {
        let wanted = || vec!["a", "bomb", "c", "d"];
        let mut first = ImportAttempts::default();
        let sorted = first.plan_batches(wanted(), |name| name, 2);
        assert_eq!(names(&sorted.batches), [vec!["a", "bomb"], vec!["c", "d"]]);
        first.record_started(sorted.batches[0].iter().copied());
        // The server ends here, twice.
        let mut second = next(&first);
        let sorted = second.plan_batches(wanted(), |name| name, 2);
        assert_eq!(names(&sorted.batches), [vec!["c", "d"], vec!["a"], vec!["bomb"]]);
        for batch in &sorted.batches[..2] {
            second.record_started(batch.iter().copied());
            second.record_ended(batch.iter().copied());
        }
        second.record_started(["bomb"].into_iter());
        let third = next(&second);
        let sorted = third.plan_batches(vec!["bomb", "e"], |name| name, 2);
        assert_eq!(names(&sorted.batches), [vec!["e"]]);
        assert_eq!(sorted.given_up, ["bomb"]);
    }

    #[test]
    fn deleted_backups_and_invalid_annotations_are_ignored() {
        let mut attempts = ImportAttempts::default();
        attempts.record_started(["a", "b"].into_iter());
        attempts.retain_listed(&BTreeSet::from(["b"]));
        assert_eq!(attempts.to_annotation().as_deref(), Some(r#"{"b":1}"#));
        attempts.record_ended(["b"].into_iter());
        assert_eq!(attempts.to_annotation(), None);
        let mut location = BackupStorageLocation::default();
        location.annotations_mut().insert(annotation::SYNC_ATTEMPTS.to_owned(), "nonsense".into());
        assert_eq!(ImportAttempts::from_location(&location), ImportAttempts::default());
    }
}
