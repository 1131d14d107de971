//! Backups that were being imported when the server ended.
//!
//! A file in a bucket can be crafted so that reading it crashes the server: limits are estimates. The next server would
//! start with the same file, and so would the one after that. So backups about to be read are recorded on the location
//! first. A backup that is still recorded when a server starts is read alone; if it is recorded a second time, it is
//! not read until the annotation or the backup is removed.

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::{BackupStorageLocation, annotation};
use kube::ResourceExt as _;

/// Maximum number of attempts to read a backup, if none of them ends.
const MAX_ATTEMPTS: u8 = 2;
/// Maximum number of backups that are recorded.
const MAX_RECORDED_BACKUPS: usize = 1000;

/// Number of attempts to read each backup that have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImportAttempts(BTreeMap<String, u8>);

/// Backups to read, in this order: each list concurrently, after the previous list has ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ImportBatches<T> {
    pub(super) batches: Vec<Vec<T>>,
    /// Backups that are not read any more.
    pub(super) given_up: Vec<T>,
}

impl ImportAttempts {
    /// Attempts recorded on a location. An invalid annotation counts as none.
    pub(super) fn from_location(location: &BackupStorageLocation) -> Self {
        let recorded = location.annotations().get(annotation::SYNC_ATTEMPTS);
        Self(recorded.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default())
    }

    /// Value of the annotation; none if there is nothing to record.
    pub(super) fn to_annotation(&self) -> Option<String> {
        if self.0.is_empty() { None } else { serde_json::to_string(&self.0).ok() }
    }

    /// Drops backups that are no longer in the location.
    pub(super) fn retain_listed(&mut self, listed: &BTreeSet<&str>) {
        self.0.retain(|name, _| listed.contains(name.as_str()));
    }

    /// Orders the backups to read: first those without earlier attempts, several at a time; then the others, alone.
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

    /// Records that these backups are about to be read.
    pub(super) fn record_started<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            if self.0.len() < MAX_RECORDED_BACKUPS || self.0.contains_key(name) {
                let attempts = self.0.entry(name.to_owned()).or_default();
                *attempts = attempts.saturating_add(1);
            }
        }
    }

    /// Records that reading these backups has ended, successfully or not.
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

    /// State that the next server finds after a crash in the middle.
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
        // The server crashes here, twice.
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
