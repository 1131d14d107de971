//! What a backup or a restore carries with it as long as it is on its way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use bowline_engine::journal::{Journal as _, Record, Recovered, recover};
use bowline_engine::operation::Counts;
use bowline_engine::phase::Stage;
use bowline_engine::point::{self, Point};
use bowline_plugin_host as plugin_host;
use bowline_store::BackupStore;
use bowline_store::name::RunUid;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::events::{Milestone, passed};
use crate::journal::{ConfigMaps, Error};
use crate::log::RunLog;
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
    /// Set when its user cancels it.
    pub(super) cancel: CancellationToken,
}

impl<'a> Kit<'a> {
    /// Opens the journal of a run that is at a stage. Returns as well what it says.
    pub(super) async fn open(
        context: &Context,
        (kind, name, uid): (&str, &str, RunUid),
        stage: Option<Stage>,
        log: &'a RunLog,
        cancel: CancellationToken,
    ) -> Result<(Self, Recovered), Error> {
        let (client, namespace) = (context.client.clone(), &context.options.namespace);
        let (journal, records) = ConfigMaps::open(client, namespace, &uid, kind, name).await?;
        let kit = Self {
            uid,
            journal: Arc::new(journal),
            plugins: context.host.run(),
            log,
            log_is_short: AtomicBool::new(stage.is_some_and(|stage| stage > Stage::Items)),
            told: AtomicU8::new(0),
            cancel,
        };
        Ok((kit, recover(records)))
    }

    /// Notes that this process has taken the run up.
    pub(super) async fn note_attempt(&self) -> Result<(), String> {
        let noted = self.journal.append(&Record::Attempt { at: Timestamp::now() }).await;
        noted.map_err(|error| error.to_string())?;
        point::pass(Point::Attempt);
        Ok(())
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
    pub(super) async fn forget(
        self,
        context: &Context,
        store: Result<&BackupStore, String>,
    ) -> Result<(), Error> {
        self.plugins.end().await;
        context.metrics.forget(self.uid.as_str());
        let deleted = match store {
            Ok(store) => store.delete_scratch(&self.uid).await.map_err(|error| one_line(&error)),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = deleted {
            tracing::warn!("scratch files may be left: {reason}");
        }
        if let Some(journal) = Arc::into_inner(self.journal) {
            journal.remove().await?;
        }
        point::pass(Point::JournalRemoved);
        Ok(())
    }
}
