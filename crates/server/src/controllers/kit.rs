//! What a backup or a restore carries with it as long as it is on its way.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bowline_api::backup::BackupHooks;
use bowline_api::{Backup, label};
use bowline_engine::backup::{ThawRetry, Thawing, give_up_if_canceled, thaw_left};
use bowline_engine::cluster::Cluster;
use bowline_engine::journal::{self, Journal as _, Record, Recovered, recover};
use bowline_engine::operation::Counts;
use bowline_engine::phase::Stage;
use bowline_engine::point::{self, Point};
use bowline_engine::report::Report;
use bowline_plugin_host as plugin_host;
use bowline_store::BackupStore;
use bowline_store::name::RunUid;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::lookup::bucket_identity_of;
use super::thaw;
use crate::events::{Milestone, passed};
use crate::journal::{ConfigMaps, Error, KeptHooks, Orphan};
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
    /// Whether the hooks of the Backup may be kept beside the journal.
    keeps_hooks: AtomicBool,
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
        let is_for_good = matches!(error, journal::Error::Full(_));
        Self { is_for_good, reason: error.to_string() }
    }
}

impl<'a> Kit<'a> {
    /// Opens the journal of a run that is at a stage, with its files in a location. Returns as well what it
    /// says. Of one that is damaged, the pods are thawed that can still be read of it.
    pub(super) async fn open(
        context: &Context,
        (kind, name, uid): (&str, &str, RunUid),
        location: &str,
        stage: Option<Stage>,
        log: &'a RunLog,
        cancel: CancellationToken,
    ) -> Result<(Self, Recovered), Error> {
        let (client, namespace) = (context.client.clone(), &context.options.namespace);
        let open = context.runs.open_journal(uid.as_str()).await;
        let opened = ConfigMaps::open(client, namespace, &uid, kind, name).await;
        if opened.as_ref().is_err_and(is_damaged) {
            let (run, kind, name) = (uid.clone(), kind.to_owned(), name.to_owned());
            let damaged = Orphan { run, kind, name, location: None, bucket: None, abandoned: None };
            let given_up = context.stop.child_token();
            tokio::select! {
                () = thaw::salvage(context, &damaged, ThawRetry::DuringOutage(&given_up)) => {}
                () = give_up_if_canceled(&cancel, &given_up) => {}
            }
        }
        let (journal, records) = opened?;
        // An earlier process may have kept hooks.
        let is_resumed = !records.is_empty();
        let recovered = recover(records);
        // The first page says it.
        let bucket = match kind {
            "Backup" if !is_resumed => bucket_identity_of(context, location).await,
            _ => None,
        };
        let journal = Arc::new(journal.with_location(location).with_bucket(bucket));
        open.set(&journal);
        let is_past_items = stage.is_some_and(|stage| stage > Stage::Items);
        let kit = Self {
            uid,
            journal,
            plugins: context.host.run(),
            log,
            log_is_short: AtomicBool::new(is_past_items),
            told: AtomicU8::new(0),
            keeps_hooks: AtomicBool::new(is_resumed && kind == "Backup"),
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

    /// Keeps the hooks of the Backup, in case that it is deleted while pods are frozen.
    pub(super) async fn keep_hooks(&self, context: &Context, hooks: &BackupHooks) {
        if !KeptHooks::is_needed(hooks) {
            return;
        }
        self.keeps_hooks.store(true, Ordering::Relaxed);
        if let Err(error) = self.kept_hooks(context).keep(hooks).await {
            tracing::warn!(
                "the hooks of the backup are not kept: {error}; if the Backup is deleted while a pod is frozen, \
                 the pod is not thawed"
            );
        }
    }

    fn kept_hooks(&self, context: &Context) -> KeptHooks {
        KeptHooks::new(context.client.clone(), &context.options.namespace, &self.uid)
    }

    /// Thaws what an earlier process may have left frozen. A pod that is not reached is given up as in a
    /// running backup: it stays in the journal, and is thawed later.
    pub(super) async fn thaw(
        &self,
        context: &Context,
        cluster: &dyn Cluster,
        backup: &Backup,
        report: &Report,
    ) {
        let claim = self.journal.claim_frozen().await;
        let thawing = Thawing {
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
            outcome = thaw_left(thawing, claim.frozen(), retry) => outcome,
            never = give_up_if_canceled(&self.cancel, &given_up) => never,
        };
        if let Some(error) = &outcome.unwritten {
            tracing::warn!("pods were thawed, but the journal does not say so: {error}");
        }
        if let Some(error) = &outcome.error {
            tracing::error!("{}; the backup goes on without them", one_line(error));
        }
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

    /// Removes what was kept for the case that the server ends. A journal stays that says which pods are frozen,
    /// which snapshots may yet come, or whose files could not be deleted: it is found like one that nobody
    /// will open again, and that is seen to.
    pub(super) async fn forget(
        self,
        context: &Context,
        store: Result<&BackupStore, String>,
    ) -> Result<(), Error> {
        let hooks = self.keeps_hooks.load(Ordering::Relaxed).then(|| self.kept_hooks(context));
        self.plugins.end().await;
        context.metrics.forget(self.uid.as_str());
        context.runs.forget(self.uid.as_str());
        let deleted = match store {
            Ok(store) => store.delete_scratch(&self.uid).await.map_err(|error| one_line(&error)),
            Err(reason) => Err(reason),
        };
        if self.journal.is_needed() {
            tracing::warn!(
                "pods may be frozen still, or snapshots may yet come: the journal stays until they are seen to"
            );
        } else if self.keeps_journal.into_inner() {
            tracing::warn!("the journal stays until what it names is deleted");
        } else if let Err(reason) = deleted {
            tracing::warn!(
                "scratch files are left, and the journal stays until they are deleted: {reason}"
            );
        } else if remove(context, &self.journal, &self.uid, hooks).await? {
            point::pass(Point::JournalRemoved);
            return Ok(());
        }
        context.runs.tell_leftovers();
        Ok(())
    }
}

/// Removes a journal, and the hooks beside it before it. Returns whether both are gone.
pub(super) async fn remove(
    context: &Context,
    journal: &ConfigMaps,
    run: &RunUid,
    hooks: Option<KeptHooks>,
) -> Result<bool, Error> {
    if let Some(hooks) = hooks
        && let Err(error) = hooks.remove().await
    {
        tracing::warn!("the journal stays, because the hooks beside it cannot be removed: {error}");
        return Ok(false);
    }
    journal.remove().await?;
    context.runs.unwritten_thaws.forget(run.as_str());
    Ok(true)
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
        assert!(NotNoted::of(&Error::Full.into()).is_for_good);
        assert!(!NotNoted::of(&Error::Silent.into()).is_for_good);
    }
}
