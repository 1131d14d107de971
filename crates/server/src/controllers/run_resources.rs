//! Resources that a backup or a restore holds while it is active.

mod outage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use bowline_api::backup::BackupHooks;
use bowline_api::{Backup, label};
use bowline_engine::backup::{ThawContext, ThawRetry, give_up_if_canceled, thaw_leftover_pods};
use bowline_engine::cluster::Cluster;
use bowline_engine::failpoint::{self, Failpoint};
use bowline_engine::journal::{self, Journal as _, JournalEntry, RecoveredRun, recover};
use bowline_engine::operation::Counts;
use bowline_engine::phase::Stage;
use bowline_engine::report::Report;
use bowline_plugin_host as plugin_host;
use bowline_store::BackupStore;
use bowline_store::name::RunUid;
use bowline_store::sabotage::{self, Sabotage};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::lookup::bucket_identity_of;
use super::run::RunError;
use super::thawer;
use crate::error_text::status_message;
use crate::events::{Milestone, newly_passed_quarter};
use crate::journal::{ConfigMapJournal, Error, JournalId, SavedHooks};
use crate::log::RunLog;
use crate::runs::OpenJournal;
use crate::server::Context;

/// Journal, plugins, log and cancellation token of a run.
pub(super) struct RunResources<'a> {
    pub(super) uid: RunUid,
    pub(super) journal: Arc<ConfigMapJournal>,
    pub(super) plugins: plugin_host::PluginRun,
    pub(super) log: &'a RunLog,
    /// True if the log continues what an earlier process has written to the bucket.
    needs_earlier_log: AtomicBool,
    /// Last published quarter of its operations, in percent.
    reported_quarter: AtomicU8,
    /// True if the hooks of the Backup may be saved beside the journal.
    has_saved_hooks: AtomicBool,
    /// True if the journal names leftovers that only it knows of.
    must_keep_journal: AtomicBool,
    /// Time since which the bucket cannot be used, according to the journal.
    bucket_lost: Mutex<Option<Timestamp>>,
    /// Canceled when the user cancels the run.
    pub(super) cancel: CancellationToken,
    /// Keeps the journal from being taken for an orphan.
    _open_journal: OpenJournal,
}

impl<'a> RunResources<'a> {
    /// Opens the journal of a run at a stage, with its files in a location, and returns its contents as well. If the
    /// journal is damaged, the pods that can still be read from it are thawed.
    pub(super) async fn open(
        context: &Context,
        (kind, name, uid): (&str, &str, RunUid),
        location: &str,
        stage: Option<Stage>,
        log: &'a RunLog,
        cancel: CancellationToken,
    ) -> Result<(Self, RecoveredRun), Error> {
        let (client, namespace) = (context.client.clone(), &context.options.namespace);
        let open = context.runs.open_journal(uid.as_str()).await;
        let opened = ConfigMapJournal::open(client, namespace, &uid, kind, name).await;
        if opened.as_ref().is_err_and(is_damaged) {
            let (run, kind, name) = (uid.clone(), kind.to_owned(), name.to_owned());
            let damaged = JournalId { run, kind, name };
            let given_up = context.stop.child_token();
            tokio::select! {
                () = thawer::thaw_damaged(context, &damaged, ThawRetry::DuringOutage(&given_up)) => {}
                never = give_up_if_canceled(&cancel, &given_up) => match never {},
            }
        }
        let (journal, records) = opened?;
        // An earlier process may have saved hooks.
        let is_resumed = !records.is_empty();
        let recovered = recover(records);
        // The first page of the journal records it.
        let bucket = match kind {
            "Backup" if !is_resumed => bucket_identity_of(context, location).await,
            _ => None,
        };
        let journal = Arc::new(journal.with_location(location).with_bucket(bucket));
        open.set(&journal);
        let is_past_items = stage.is_some_and(|stage| stage > Stage::Items);
        let resources = Self {
            uid,
            journal,
            plugins: context.host.run(),
            log,
            needs_earlier_log: AtomicBool::new(is_past_items),
            reported_quarter: AtomicU8::new(0),
            has_saved_hooks: AtomicBool::new(is_resumed && kind == "Backup"),
            must_keep_journal: AtomicBool::new(false),
            bucket_lost: Mutex::new(recovered.bucket_lost),
            cancel,
            _open_journal: open,
        };
        Ok((resources, recovered))
    }

    /// Journals that this process has started or resumed the run.
    pub(super) async fn journal_attempt(&self) -> Result<(), journal::Error> {
        self.journal.append(&JournalEntry::Attempt { at: Timestamp::now() }).await?;
        failpoint::hit(Failpoint::AttemptJournaled);
        Ok(())
    }

    /// Saves the hooks of the Backup, in case it is deleted while pods are frozen.
    pub(super) async fn save_hooks(&self, context: &Context, hooks: &BackupHooks) {
        if !SavedHooks::has_post_hooks(hooks) || sabotage::is_active(Sabotage::HooksNotSaved) {
            return;
        }
        self.has_saved_hooks.store(true, Ordering::Relaxed);
        if let Err(error) = self.saved_hooks(context).save(hooks).await {
            let error = status_message(&error);
            tracing::warn!(
                "cannot save the hooks of the backup: {error}; if the Backup is deleted while a \
                 pod is frozen, the pod cannot be thawed"
            );
        }
    }

    fn saved_hooks(&self, context: &Context) -> SavedHooks {
        SavedHooks::new(context.client.clone(), &context.options.namespace, &self.uid)
    }

    /// Thaws pods that an earlier process may have left frozen. A pod that cannot be reached is given up as in a
    /// running backup: it stays in the journal, and is thawed later.
    pub(super) async fn thaw_own_pods(
        &self,
        context: &Context,
        cluster: &dyn Cluster,
        backup: &Backup,
        report: &Report,
    ) {
        if sabotage::is_active(Sabotage::ThawForgotten) {
            return;
        }
        let lock = self.journal.lock_frozen().await;
        let thawing = ThawContext {
            cluster,
            run: self.uid.as_str(),
            hooks: Ok(&backup.spec.hooks),
            journal: &*self.journal,
            unwritten: &context.runs.unwritten_thaws,
            report,
        };
        let given_up = context.stop.child_token();
        let retry = ThawRetry::DuringOutage(&given_up);
        let outcome = tokio::select! {
            outcome = thaw_leftover_pods(thawing, lock.frozen(), retry) => outcome,
            never = give_up_if_canceled(&self.cancel, &given_up) => match never {},
        };
        if let Some(error) = &outcome.unwritten {
            tracing::warn!("pods were thawed, but the journal does not record it: {error}");
        }
        if let Some(error) = &outcome.error {
            tracing::error!(
                "{}; the backup continues, and the server retries to thaw these pods",
                status_message(error)
            );
        }
    }

    /// Keeps the journal after the end of the run.
    pub(super) fn keep_journal(&self) {
        self.must_keep_journal.store(true, Ordering::Relaxed);
    }

    /// Time since which the bucket cannot be used, according to the journal.
    pub(super) fn bucket_lost_since(&self) -> Option<Timestamp> {
        *self.bucket_lost.lock()
    }

    pub(super) fn set_bucket_lost_since(&self, since: Option<Timestamp>) {
        *self.bucket_lost.lock() = since;
    }

    /// True, once, if the log has to continue what is in the bucket.
    pub(super) fn take_needs_earlier_log(&self) -> bool {
        self.needs_earlier_log.swap(false, Ordering::Relaxed)
    }

    /// Milestone of operations that was not published yet.
    pub(super) fn next_milestone(&self, counts: Counts) -> Option<Milestone> {
        let (ended, total) = (counts.completed + counts.failed, counts.attempted);
        let reported_percent = self.reported_quarter.load(Ordering::Relaxed);
        let percent = newly_passed_quarter(reported_percent, ended as u64, total as u64)?;
        self.reported_quarter.store(percent, Ordering::Relaxed);
        Some(Milestone::OperationsProgress { ended, total })
    }

    /// Leaves the run cleanly, for another process to resume it.
    pub(super) async fn hand_over(self) {
        if let Err(error) =
            self.journal.append(&JournalEntry::AttemptLeft { at: Timestamp::now() }).await
        {
            tracing::warn!("{error}; this attempt counts as failed");
        }
        self.plugins.shut_down().await;
    }

    /// Removes the journal and the scratch files, which were kept in case the server ended. A journal stays if it names
    /// frozen pods or snapshots that may still be created: it is then found and handled as an orphan. So is one whose
    /// files could not be deleted, for a few more attempts.
    pub(super) async fn clean_up(
        self,
        context: &Context,
        store: Result<&BackupStore, &RunError>,
    ) -> Result<(), Error> {
        let hooks = self.has_saved_hooks.load(Ordering::Relaxed).then(|| self.saved_hooks(context));
        self.plugins.shut_down().await;
        context.metrics.remove_run(self.uid.as_str());
        context.runs.remove(self.uid.as_str());
        let deleted = match store {
            Ok(store) => {
                store.delete_scratch(&self.uid).await.map_err(|error| status_message(&error))
            }
            Err(error) => Err(status_message(error)),
        };
        let is_dropped = sabotage::is_active(Sabotage::JournalDropped);
        if self.journal.has_unfinished_work() && !is_dropped {
            tracing::warn!(
                "pods may still be frozen, or snapshots may still be created; the journal is \
                 kept until they are cleaned up"
            );
        } else if self.must_keep_journal.into_inner() {
            tracing::warn!("the journal is kept until its leftovers are deleted");
        } else if let Err(reason) = deleted {
            tracing::warn!(
                "scratch files are left over, and their deletion is retried a few times: {reason}"
            );
        } else if remove_journal(context, &self.journal, &self.uid, hooks).await? {
            failpoint::hit(Failpoint::JournalRemoved);
            return Ok(());
        }
        context.runs.notify_leftovers();
        Ok(())
    }
}

/// Removes a journal, after the hooks beside it. Returns true if both are gone.
pub(super) async fn remove_journal(
    context: &Context,
    journal: &ConfigMapJournal,
    run: &RunUid,
    hooks: Option<SavedHooks>,
) -> Result<bool, Error> {
    if let Some(hooks) = hooks
        && let Err(error) = hooks.remove().await
    {
        tracing::warn!(
            "the journal is kept, because the ConfigMap with the hooks of the backup cannot be \
             removed: {}",
            status_message(&error)
        );
        return Ok(false);
    }
    journal.remove().await?;
    context.runs.unwritten_thaws.discard_run(run.as_str());
    Ok(true)
}

/// True if a journal is damaged, so that a retry does not help.
pub(super) fn is_damaged(error: &Error) -> bool {
    match error {
        Error::InvalidPage { .. } | Error::Missing { .. } | Error::TooMany { .. } | Error::Full => {
            true
        }
        Error::TooLarge { .. }
        | Error::Encode(_)
        | Error::TakenOver { .. }
        | Error::Changed { .. }
        | Error::Timeout
        | Error::Read(_)
        | Error::Write { .. }
        | Error::Remove { .. } => false,
    }
}

/// Message for a run that ends because its journal is damaged.
pub(super) fn damaged_journal_message(error: &Error, run: &RunUid) -> String {
    format!(
        "the journal of the run cannot be used: {}; pods may still be frozen, and snapshots and \
         operations may be left over; the ConfigMaps with the label {}={run} list them and are \
         kept",
        status_message(error),
        label::JOURNAL
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::PageDefect;

    #[test]
    fn damaged_journal_ends_the_run_and_unreachable_one_does_not() {
        let run = RunUid::new("0a-1b").unwrap();
        let page = || "bowline-journal-0a-1b-0".to_owned();
        let refused = || {
            let status = kube::core::Status::failure("no", "Forbidden").with_code(403);
            kube::Error::Api(Box::new(status))
        };
        let cases = [
            (Error::InvalidPage { page: page(), defect: PageDefect::Empty }, true),
            (Error::Missing { page: page() }, true),
            (Error::TooMany { run: run.clone() }, true),
            (Error::Full, true),
            (Error::TakenOver { page: page() }, false),
            (Error::Changed { page: page() }, false),
            (Error::Timeout, false),
            (Error::Read(refused()), false),
            (Error::Write { page: page(), source: refused() }, false),
        ];
        for (error, expected) in cases {
            assert_eq!(is_damaged(&error), expected, "{error}");
        }
        let message = damaged_journal_message(&Error::Missing { page: page() }, &run);
        for words in [&page(), "frozen", "snapshots", "bowline.io/journal=0a-1b", "are kept"] {
            assert!(message.contains(words), "no {words:?} in {message}");
        }
    }

    #[test]
    fn full_journal_is_distinguished_from_an_unwritable_one() {
        assert!(matches!(journal::Error::from(Error::Full), journal::Error::Full(_)));
        assert!(matches!(journal::Error::from(Error::Timeout), journal::Error::Failed(_)));
    }
}
