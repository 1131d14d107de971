//! What a backup or a restore carries with it as long as it is on its way.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bowline_api::{Backup, label};
use bowline_engine::backup::{ThawError, thaw_left};
use bowline_engine::cluster::Cluster;
use bowline_engine::journal::{self, InMemory, Journal as _, Record, Recovered, recover};
use bowline_engine::operation::Counts;
use bowline_engine::phase::Stage;
use bowline_engine::point::{self, Point};
use bowline_engine::report::Report;
use bowline_plugin_host as plugin_host;
use bowline_store::BackupStore;
use bowline_store::name::RunUid;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::events::{Milestone, passed};
use crate::journal::{ConfigMaps, Error};
use crate::log::RunLog;
use crate::runs::OpenJournal;
use crate::server::Context;
use crate::story::one_line;

/// The journal, the plugins and the log of a run, and the way to cancel it.
pub(super) struct Kit<'a> {
    pub(super) uid: RunUid,
    pub(super) journal: Arc<ConfigMaps>,
    pub(super) plugins: plugin_host::Run,
    pub(super) log: &'a RunLog,
    /// Whether the log begins with what an earlier process has written, which is in the bucket.
    log_is_short: AtomicBool,
    /// The last quarter of its operations that was told, in percent.
    told: AtomicU8,
    /// Whether the journal says that pods may be frozen, and nobody in this run thaws them any more.
    leaves_frozen: AtomicBool,
    /// Whether the journal names something else that nobody knows of but it.
    keeps_journal: AtomicBool,
    /// Since when the bucket cannot be used, as the journal says.
    bucket_lost: Mutex<Option<Timestamp>>,
    /// Set when its user cancels it.
    pub(super) cancel: CancellationToken,
    /// So that nobody takes the journal for one that is left.
    _open: OpenJournal,
}

/// Why an attempt could not be noted.
pub(super) struct NotNoted {
    pub(super) reason: String,
    /// Whether it is the same the next time.
    pub(super) is_for_good: bool,
}

impl NotNoted {
    pub(super) fn of(error: &journal::Error) -> Self {
        Self { is_for_good: is_full(error), reason: error.to_string() }
    }
}

impl<'a> Kit<'a> {
    /// Opens the journal of a run that is at a stage, with its files in a location. Returns as well what it
    /// says.
    pub(super) async fn open(
        context: &Context,
        (kind, name, uid): (&str, &str, RunUid),
        location: &str,
        stage: Option<Stage>,
        log: &'a RunLog,
        cancel: CancellationToken,
    ) -> Result<(Self, Recovered), Error> {
        let (client, namespace) = (context.client.clone(), &context.options.namespace);
        let open = context.runs.open_journal(uid.as_str());
        let (journal, records) = ConfigMaps::open(client, namespace, &uid, kind, name).await?;
        let recovered = recover(records);
        let is_past_items = stage.is_some_and(|stage| stage > Stage::Items);
        let kit = Self {
            uid,
            journal: Arc::new(journal.with_location(location)),
            plugins: context.host.run(),
            log,
            log_is_short: AtomicBool::new(is_past_items),
            told: AtomicU8::new(0),
            leaves_frozen: AtomicBool::new(is_past_items && !recovered.frozen.is_empty()),
            keeps_journal: AtomicBool::new(false),
            bucket_lost: Mutex::new(recovered.bucket_lost),
            cancel,
            _open: open,
        };
        Ok((kit, recovered))
    }

    /// Notes that this process has taken the run up.
    pub(super) async fn note_attempt(&self) -> Result<(), NotNoted> {
        let noted = self.journal.append(&Record::Attempt { at: Timestamp::now() }).await;
        noted.map_err(|error| NotNoted::of(&error))?;
        point::pass(Point::Attempt);
        Ok(())
    }

    /// Notes that pods may be frozen still when the run is over.
    pub(super) fn leave_frozen(&self) {
        self.leaves_frozen.store(true, Ordering::Relaxed);
    }

    /// Keeps the journal when the run is over.
    pub(super) fn keep_journal(&self) {
        self.keeps_journal.store(true, Ordering::Relaxed);
    }

    /// Since when the bucket cannot be used, as the journal says.
    pub(super) fn bucket_lost(&self) -> Option<Timestamp> {
        *self.bucket_lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_bucket_lost(&self, since: Option<Timestamp>) {
        *self.bucket_lost.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Whether the log is to go on from what is in the bucket. It says so once.
    pub(super) fn wants_log(&self) -> bool {
        self.log_is_short.swap(false, Ordering::Relaxed)
    }

    /// What there is to tell of operations that was not told yet.
    pub(super) fn milestone(&self, counts: Counts) -> Option<Milestone> {
        let (ended, total) = (counts.completed + counts.failed, counts.attempted);
        let told = self.told.load(Ordering::Relaxed);
        let percent = passed(told, ended as u64, total as u64)?;
        self.told.store(percent, Ordering::Relaxed);
        Some(Milestone::OperationsProgress { ended, total })
    }

    /// Leaves the run in good order, for another process to go on with it.
    pub(super) async fn leave(self) {
        if let Err(error) = self.journal.append(&Record::Left { at: Timestamp::now() }).await {
            tracing::warn!("{error}; this attempt counts as one that failed");
        }
        self.plugins.end().await;
    }

    /// Removes what was kept for the case that the server ends. A store that cannot be opened keeps its part.
    /// A journal that says which pods are frozen stays: it is found like one that nobody will open again, and
    /// they are thawed.
    pub(super) async fn forget(
        self,
        context: &Context,
        store: Result<&BackupStore, String>,
    ) -> Result<(), Error> {
        self.plugins.end().await;
        context.metrics.forget(self.uid.as_str());
        context.runs.forget(self.uid.as_str());
        let deleted = match store {
            Ok(store) => store.delete_scratch(&self.uid).await.map_err(|error| one_line(&error)),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = deleted {
            tracing::warn!("scratch files may be left: {reason}");
        }
        if self.leaves_frozen.into_inner() {
            tracing::warn!("pods may be frozen still: the journal stays until they are thawed");
            return Ok(());
        }
        if self.keeps_journal.into_inner() {
            tracing::warn!("the journal stays until what it names is deleted");
            return Ok(());
        }
        if let Some(journal) = Arc::into_inner(self.journal) {
            journal.remove().await?;
        }
        point::pass(Point::JournalRemoved);
        Ok(())
    }
}

/// Whether a journal was not written because nothing fits into it any more.
fn is_full(error: &journal::Error) -> bool {
    error.0 == one_line(&Error::Full)
}

/// Whether a journal is damaged, so that it does not become better by itself.
pub(super) fn is_damaged(error: &Error) -> bool {
    match error {
        Error::Foreign { .. } | Error::Missing { .. } | Error::TooMany { .. } | Error::Full => true,
        Error::TooLarge { .. }
        | Error::Encode(_)
        | Error::TakenOver { .. }
        | Error::Changed { .. }
        | Error::Silent
        | Error::Read(_)
        | Error::Write { .. }
        | Error::Remove { .. } => false,
    }
}

/// What there is to tell of a run that ends because its journal is damaged.
pub(super) fn told_damaged(error: &Error, run: &RunUid) -> String {
    format!(
        "its journal cannot be used: {}; pods that it froze may be frozen still, and snapshots and operations \
         that it began may be left over: the ConfigMaps with the label {}={run} say which, and are kept",
        one_line(error),
        label::JOURNAL
    )
}

/// Thaws what a run may have left frozen. A journal that is full cannot note it; that keeps nobody frozen.
pub(super) async fn thaw(
    cluster: &dyn Cluster,
    backup: &Backup,
    recovered: &Recovered,
    journal: &ConfigMaps,
    report: &Report,
) -> Result<(), ThawError> {
    match thaw_left(cluster, backup, recovered, journal, report).await {
        Err(ThawError::Journal(error)) if is_full(&error) => {
            thaw_left(cluster, backup, recovered, &InMemory::default(), report).await
        }
        thawed => thawed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_for_a_journal_that_is_damaged_and_not_for_one_that_is_away() {
        let run = RunUid::new("0a-1b").unwrap();
        let page = || "bowline-journal-0a-1b-0".to_owned();
        let refused = || {
            let status = kube::core::Status::failure("no", "Forbidden").with_code(403);
            kube::Error::Api(Box::new(status))
        };
        let cases = [
            (Error::Foreign { page: page(), reason: "nothing is on it".to_owned() }, true),
            (Error::Missing { page: page() }, true),
            (Error::TooMany { run: run.clone() }, true),
            (Error::Full, true),
            (Error::TakenOver { page: page() }, false),
            (Error::Changed { page: page() }, false),
            (Error::Silent, false),
            (Error::Read(refused()), false),
            (Error::Write { page: page(), source: refused() }, false),
        ];
        for (error, expected) in cases {
            assert_eq!(is_damaged(&error), expected, "{error}");
        }
        let told = told_damaged(&Error::Missing { page: page() }, &run);
        for words in [&page(), "frozen", "snapshots", "bowline.io/journal=0a-1b", "are kept"] {
            assert!(told.contains(words), "no {words:?} in {told}");
        }
    }

    #[test]
    fn a_full_journal_is_told_from_one_that_cannot_be_written_now() {
        assert!(is_full(&journal::Error(one_line(&Error::Full))));
        assert!(!is_full(&journal::Error(one_line(&Error::Silent))));
    }
}
