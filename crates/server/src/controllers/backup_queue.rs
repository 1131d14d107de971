//! Starts backups, one after the other or concurrently: `New` → `Queued` → `ReadyToStart`.
//!
//! [`queue::decide`] decides which backups may start; this controller observes and changes the Backups. All changes
//! that arrive during a pass over the queue lead to one more pass, so that a change costs one walk over the Backups,
//! however many there are. Progress of runs changes nothing here and costs no more than that.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Backup, BackupPhase};
use bowline_engine::backup::filter::Scope;
use bowline_engine::backup::filter::namespaces::{self, Namespace};
use bowline_engine::glob::{Glob, Globs};
use futures::StreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::backup::facts::live_namespaces;
use crate::error_text::status_message;
use crate::patch;
use crate::queue::{self, Decision, Entry, NamespaceScope, QueueState};
use crate::server::{Context, Error};
use crate::watch::drop_managed_fields;

/// Interval between passes over the queue when nothing changes.
const RESYNC: Duration = Duration::from_mins(1);
/// Pause before the next pass after a failed write: the first, and the longest.
const FIRST_FAILURE_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Time for which a list of namespaces is reused.
const NAMESPACE_CACHE_TTL: Duration = Duration::from_secs(2);

/// Starts backups until the server stops.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let api: Api<Backup> = context.api();
    let (backups, writer) = reflector::store();
    let watching = watcher(api.clone(), watcher::Config::default())
        .modify(drop_managed_fields)
        .default_backoff();
    let mut changes = std::pin::pin!(watching.reflect(writer));
    let mut ends = std::pin::pin!(context.runs.end_notifications());
    let queue = Queue {
        api,
        context: Arc::clone(&context),
        backups,
        limit: context.options.concurrent_backups.max(1),
        last_view: Mutex::default(),
        live: Mutex::default(),
    };
    let mut is_listed = false;
    // Time of the next pass, if nothing changes until then.
    let mut next = Instant::now() + RESYNC;
    let mut failures = 0;
    loop {
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            change = changes.next() => match change {
                Some(Ok(change)) => is_listed |= matches!(change, watcher::Event::InitDone),
                Some(Err(error)) => {
                    tracing::warn!(
                        error = status_message(&error),
                        "cannot watch Backups; retrying"
                    );
                }
                None => return Err(Error::Ended("backup-queue")),
            },
            _ = ends.next() => {}
            () = tokio::time::sleep_until(next) => queue.invalidate_view(),
        }
        if !is_listed {
            continue;
        }
        // Changes that arrived meanwhile are handled in the same pass.
        while let Some(Some(Ok(_))) = futures::FutureExt::now_or_never(changes.next()) {}
        next = Instant::now() + RESYNC;
        match queue.advance().await {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                let pause =
                    FIRST_FAILURE_BACKOFF.saturating_mul(1 << failures.min(16)).min(MAX_BACKOFF);
                next = Instant::now() + pause;
                if !patch::is_conflict(&error) {
                    let error = status_message(&error);
                    tracing::warn!(error, "cannot advance the backup queue; retrying in {pause:?}");
                }
            }
        }
    }
}

struct Queue {
    api: Api<Backup>,
    context: Arc<Context>,
    backups: Store<Backup>,
    limit: usize,
    last_view: Mutex<QueueView>,
    /// Namespaces of the cluster, with the time of the list.
    live: Mutex<Option<(Instant, Arc<[Namespace]>)>>,
}

/// State that the queue keeps from its last pass.
#[derive(Debug, Default)]
struct QueueView {
    /// Writes that the watch does not show yet, by uid: the resource version before the write, and the state after it.
    written: HashMap<String, (Option<String>, QueueState)>,
    /// All backups relevant to the queue, if no decision was left to carry out.
    settled: Option<Vec<(String, QueueState)>>,
}

/// A backup relevant to the queue.
struct QueuedBackup<'a> {
    backup: &'a Backup,
    uid: String,
    state: QueueState,
}

impl Queue {
    /// Starts all backups that may start.
    async fn advance(&self) -> kube::Result<()> {
        let backups = self.backups.state();
        let running = self.context.runs.backup_scopes();
        let mut open = self.queued_backups(&backups, &running);
        // Most Backups ended long ago.
        if !open.iter().any(|one| matches!(one.state, QueueState::New | QueueState::Queued(_))) {
            return Ok(());
        }
        let mut observed: Vec<(String, QueueState)> =
            open.iter().map(|one| (one.uid.clone(), one.state)).collect();
        observed.extend(running.iter().map(|(uid, _)| (uid.clone(), QueueState::Running)));
        if self.last_view.lock().settled.as_ref() == Some(&observed) {
            return Ok(());
        }
        open.sort_by_cached_key(|one| (one.backup.creation_timestamp(), one.backup.name_any()));
        let entries = self.entries(&open, &running).await;
        let decisions = queue::decide(&entries, self.limit);
        let is_settled = decisions.iter().all(|decision| *decision == Decision::Stay);
        self.last_view.lock().settled = is_settled.then_some(observed);
        let mut changed = Ok(());
        // Runs without a Backup come last, and nothing is decided for them. Backups that may start do not wait for
        // updates of queue positions.
        let mut decided: Vec<_> = open.iter().zip(decisions).collect();
        decided.sort_by_key(|(_, decision)| *decision != Decision::Start);
        for (one, decision) in decided {
            let (status, state) = match decision {
                Decision::Stay => continue,
                Decision::Start => {
                    let status =
                        json!({ "phase": BackupPhase::ReadyToStart, "queuePosition": null });
                    (status, QueueState::Running)
                }
                Decision::Wait(position) => {
                    let status = json!({ "phase": BackupPhase::Queued, "queuePosition": position });
                    (status, QueueState::Queued(position))
                }
            };
            let (name, version) = (one.backup.name_any(), one.backup.resource_version());
            match patch::patch_status(&self.api, &name, version.as_deref(), status).await {
                Ok(_) => {
                    self.last_view.lock().written.insert(one.uid.clone(), (version, state));
                }
                // A deleted Backup has left the queue as well.
                Err(error) if patch::is_not_found(&error) => {}
                // The others need not wait for this one.
                Err(error) => changed = Err(error),
            }
        }
        changed
    }

    /// Backups relevant to the queue.
    fn queued_backups<'a>(
        &self,
        backups: &'a [Arc<Backup>],
        running: &[(String, NamespaceScope)],
    ) -> Vec<QueuedBackup<'a>> {
        let running: HashSet<&str> = running.iter().map(|(uid, _)| uid.as_str()).collect();
        let waiting = self.context.runs.waiting_for_bucket();
        let mut view = self.last_view.lock();
        let written = std::mem::take(&mut view.written);
        let mut open = Vec::new();
        for backup in backups {
            let status = backup.status.as_ref();
            let phase = status.and_then(|status| status.phase.as_ref());
            let shown = QueueState::of(phase, status.map_or(0, |status| status.queue_position));
            let uid = backup.metadata.uid.as_deref().unwrap_or_default();
            let state = match written.get(uid) {
                // The watch is behind this server's own write.
                Some((before, state)) if *before == backup.metadata.resource_version => {
                    view.written.insert(uid.to_owned(), (before.clone(), *state));
                    *state
                }
                _ => shown,
            };
            let state = queue_state(state, running.contains(uid), waiting.contains(uid));
            if state != QueueState::NotQueued {
                open.push(QueuedBackup { backup, uid: uid.to_owned(), state });
            }
        }
        open
    }

    async fn entries(
        &self,
        open: &[QueuedBackup<'_>],
        running: &[(String, NamespaceScope)],
    ) -> Vec<Entry> {
        let known: HashSet<&str> = open.iter().map(|one| one.uid.as_str()).collect();
        let deleted: Vec<&NamespaceScope> = running
            .iter()
            .filter(|(uid, _)| !known.contains(uid.as_str()))
            .map(|(_, scope)| scope)
            .collect();
        // A single backup conflicts with none. Where namespaces are not known, each conflicts with all others.
        let is_alone = open.len() + deleted.len() <= 1;
        let live = if is_alone { None } else { self.live_namespaces().await };
        let scope = |one: &QueuedBackup| {
            live.as_ref().map_or(NamespaceScope::All, |live| scope_of(one.backup, live))
        };
        let entry = |one: &QueuedBackup| Entry { state: one.state, scope: scope(one) };
        let deleted = deleted.into_iter();
        let deleted =
            deleted.map(|scope| Entry { state: QueueState::Running, scope: scope.clone() });
        open.iter().map(entry).chain(deleted).collect()
    }

    async fn live_namespaces(&self) -> Option<Arc<[Namespace]>> {
        let cached = self.live.lock().clone();
        if let Some((_, live)) = cached.filter(|(since, _)| since.elapsed() < NAMESPACE_CACHE_TTL) {
            return Some(live);
        }
        let live: Arc<[Namespace]> = live_namespaces(&self.context).await.ok()?.into();
        let now = Some((Instant::now(), Arc::clone(&live)));
        *self.live.lock() = now;
        Some(live)
    }

    /// Forces a complete pass the next time: namespaces come and go.
    fn invalidate_view(&self) {
        self.last_view.lock().settled = None;
    }
}

/// State of a backup. A run of this process is running, whatever its phase; one that waits for its bucket is not, and
/// asks again before it continues.
fn queue_state(reported: QueueState, is_active: bool, waits_for_bucket: bool) -> QueueState {
    match reported {
        _ if is_active => QueueState::Running,
        QueueState::Running if waits_for_bucket => QueueState::NotQueued,
        shown => shown,
    }
}

/// Namespaces of a backup. A spec that cannot be understood covers all of them; the backup will soon fail its
/// validation.
pub(super) fn scope_of(backup: &Backup, live: &[Namespace]) -> NamespaceScope {
    let globs = |patterns: &[String]| -> Result<Vec<Glob>, _> {
        patterns.iter().map(|pattern| Glob::new(pattern)).collect()
    };
    let spec = &backup.spec;
    let (Ok(included), Ok(excluded)) =
        (globs(&spec.included_namespaces), globs(&spec.excluded_namespaces))
    else {
        return NamespaceScope::All;
    };
    let expanded = namespaces::expand(&included, &excluded, live);
    match expanded.scope {
        Scope::Only(names) => NamespaceScope::Only(names.into_iter().collect()),
        Scope::All => {
            let excluded: Globs = expanded.excluded.into_iter().collect();
            let names = live.iter().map(|namespace| namespace.name.clone());
            NamespaceScope::Only(names.filter(|name| !excluded.matches(name)).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_waiting_for_its_bucket_is_not_running() {
        for (shown, is_run, waits, expected) in [
            (QueueState::Running, false, false, QueueState::Running),
            (QueueState::Running, false, true, QueueState::NotQueued),
            (QueueState::Running, true, true, QueueState::Running),
            (QueueState::NotQueued, true, false, QueueState::Running),
            (QueueState::NotQueued, false, true, QueueState::NotQueued),
            (QueueState::Queued(2), false, false, QueueState::Queued(2)),
            (QueueState::New, false, false, QueueState::New),
        ] {
            assert_eq!(queue_state(shown, is_run, waits), expected, "{shown:?} {is_run} {waits}");
        }
    }
}
