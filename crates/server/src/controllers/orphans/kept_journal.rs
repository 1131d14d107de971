//! Memory of this process about a journal that stays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bowline_engine::journal::Intent;
use jiff::Timestamp;

use super::DAY;
use super::scratch::ScratchAttempts;
use crate::controllers::bucket_wait::elapsed;

/// Time for which a bucket must answer that it has no commit record, after the attempt to write one: the write may still
/// arrive.
const COMMIT_SETTLE_TIME: Duration = Duration::from_hours(1);

/// State of the cleanup of one journal, from one attempt to the next.
#[derive(Debug, Default)]
pub(super) struct KeptJournal {
    /// Time of the last report.
    pub(super) reported: Option<Timestamp>,
    /// Time since which a snapshot in flight cannot be reclaimed, by its request. An unreachable bucket does not count
    /// as such a failure.
    failing: BTreeMap<String, Timestamp>,
    /// True if this process has canceled the operations of the run, whose bucket was away.
    pub(super) operations_canceled: bool,
    /// Requests of snapshots in flight that are settled. The journal says so only if it stays and can be written.
    pub(super) settled: BTreeSet<String>,
    /// Time since which the bucket answers that it has no commit record.
    pub(super) no_record_since: Option<Timestamp>,
    pub(super) scratch: ScratchAttempts,
}

impl KeptJournal {
    /// True if it is time to report that the journal stays: the first time, and then once a day.
    pub(super) fn is_report_due(&mut self, now: Timestamp) -> bool {
        let is_due = self.reported.is_none_or(|at| elapsed(at, now) >= DAY);
        if is_due {
            self.reported = Some(now);
        }
        is_due
    }

    /// True if a commit record that was attempted will not arrive any more, as the bucket has none again.
    pub(super) fn is_commit_settled(&mut self, now: Timestamp) -> bool {
        let since = *self.no_record_since.get_or_insert(now);
        elapsed(since, now) >= COMMIT_SETTLE_TIME
    }

    /// True if a snapshot in flight that could not be reclaimed is given up: after a day of failures. A snapshot that is
    /// known to exist never is: only the journal knows its ID.
    pub(super) fn gives_up(&mut self, intent: &Intent, now: Timestamp) -> bool {
        if intent.snapshot.as_ref().is_some_and(|wanted| wanted.created.is_some()) {
            return false;
        }
        let request = intent.snapshot.as_ref().map(|wanted| wanted.request.clone());
        let since = *self.failing.entry(request.unwrap_or_default()).or_insert(now);
        elapsed(since, now) >= DAY
    }
}
