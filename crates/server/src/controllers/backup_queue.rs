//! Lets backups start, one after the other or side by side: `New` → `Queued` → `ReadyToStart`.
//!
//! What may start is decided by [`queue::decide`]; here the Backups are looked at and changed.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bowline_api::{Backup, BackupPhase};
use bowline_engine::backup::filter::Scope;
use bowline_engine::backup::filter::namespaces::{self, Namespace};
use bowline_engine::glob::{Glob, Globs};
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::Instant;

use super::backup::facts::live_namespaces;
use crate::patch;
use crate::queue::{self, Decision, Entry, Reach, Stage};
use crate::server::{Context, Error};
use crate::watch::{Next, Watch};

/// How often the queue is looked at when nothing changes.
const RESYNC: Duration = Duration::from_mins(1);

/// For how long the namespaces are believed to be what they were.
const NAMESPACES: Duration = Duration::from_secs(2);

/// Works until asked to stop.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let api: Api<Backup> = context.api();
    let watch = Watch::new(api.clone()).resync(RESYNC).all_on(context.runs.ends());
    let stop = context.stop.clone();
    let queue = Arc::new(Queue {
        api,
        context: Arc::clone(&context),
        backups: watch.store(),
        limit: context.options.concurrent_backups.max(1),
        started: Mutex::default(),
        live: Mutex::default(),
    });
    let work = move |_: Arc<Backup>| {
        let queue = Arc::clone(&queue);
        async move { queue.advance().await }
    };
    Ok(watch.run(&stop, work).await?)
}

struct Queue {
    api: Api<Backup>,
    context: Arc<Context>,
    backups: Store<Backup>,
    limit: usize,
    /// The uids of backups that were let go but may still look as if they waited: the watch is
    /// behind what we write.
    started: Mutex<HashSet<String>>,
    /// The namespaces of the cluster, and when they were listed.
    live: Mutex<Option<(Instant, Arc<[Namespace]>)>>,
}

impl Queue {
    /// Lets go whatever may go.
    async fn advance(&self) -> kube::Result<Next> {
        let mut backups = self.backups.state();
        let running = self.context.runs.backups();
        // Most Backups ended long ago, and each of them is told when something changes.
        if !self.has_waiting(&backups, &running) {
            return Ok(Next::Done);
        }
        backups.sort_by_key(|backup| (backup.creation_timestamp(), backup.name_any()));
        let entries = self.entries(&backups, running).await;
        let mut changed = Ok(());
        // What runs without a Backup comes last, and nothing is decided for it.
        for (backup, decision) in backups.iter().zip(queue::decide(&entries, self.limit)) {
            let status = match decision {
                Decision::Stay => continue,
                Decision::Start => {
                    json!({ "phase": BackupPhase::ReadyToStart, "queuePosition": null })
                }
                Decision::Wait(position) => {
                    json!({ "phase": BackupPhase::Queued, "queuePosition": position })
                }
            };
            let version = backup.resource_version();
            let patched =
                patch::patch_status(&self.api, &backup.name_any(), version.as_deref(), status)
                    .await;
            match patched {
                Ok(_) if decision == Decision::Start => self.note_started(backup),
                Ok(_) => {}
                // It is gone, which is one way to leave a queue.
                Err(error) if patch::is_missing(&error) => {}
                // The others need not wait for this one.
                Err(error) => changed = Err(error),
            }
        }
        changed.map(|()| Next::Done)
    }

    fn has_waiting(&self, backups: &[Arc<Backup>], running: &[(String, Reach)]) -> bool {
        let mut stages = backups.iter().map(|backup| self.stage(backup, running));
        stages.any(|stage| matches!(stage, Stage::New | Stage::Queued(_)))
    }

    async fn entries(&self, backups: &[Arc<Backup>], running: Vec<(String, Reach)>) -> Vec<Entry> {
        let stages: Vec<Stage> =
            backups.iter().map(|backup| self.stage(backup, &running)).collect();
        let open = stages.iter().filter(|stage| **stage != Stage::Past).count();
        // Alone, a backup meets nobody. Where namespaces are not known, each meets all others.
        let is_alone = open + running.len() <= 1;
        let live = if is_alone { None } else { self.live_namespaces().await };
        let entry = |(backup, stage): (&Arc<Backup>, Stage)| Entry {
            stage,
            reach: match &live {
                Some(live) if stage != Stage::Past => reach(backup, live),
                _ => Reach::All,
            },
        };
        let mut entries: Vec<Entry> = backups.iter().zip(stages).map(entry).collect();
        let known: HashSet<String> = backups.iter().filter_map(|backup| backup.uid()).collect();
        let deleted = running.into_iter().filter(|(uid, _)| !known.contains(uid));
        entries.extend(deleted.map(|(_, reach)| Entry { stage: Stage::Running, reach }));
        entries
    }

    async fn live_namespaces(&self) -> Option<Arc<[Namespace]>> {
        let kept = self.live.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, live)) = kept.filter(|(since, _)| since.elapsed() < NAMESPACES) {
            return Some(live);
        }
        let live: Arc<[Namespace]> = live_namespaces(&self.context).await.ok()?.into();
        let now = Some((Instant::now(), Arc::clone(&live)));
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = now;
        Some(live)
    }

    /// Where a backup is. What this process runs does run, whatever its phase.
    fn stage(&self, backup: &Backup, running: &[(String, Reach)]) -> Stage {
        let status = backup.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_ref());
        let stage = Stage::of(phase, status.map_or(0, |status| status.queue_position));
        let Some(uid) = backup.uid() else { return stage };
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        match stage {
            Stage::New | Stage::Queued(_) if started.contains(&uid) => return Stage::Running,
            Stage::New | Stage::Queued(_) => {}
            Stage::Running | Stage::Past => {
                started.remove(&uid);
            }
        }
        if running.iter().any(|(run, _)| *run == uid) { Stage::Running } else { stage }
    }

    fn note_started(&self, backup: &Backup) {
        if let Some(uid) = backup.uid() {
            self.started.lock().unwrap_or_else(PoisonError::into_inner).insert(uid);
        }
    }
}

/// What a backup reaches into. One that cannot be understood reaches everywhere; it will fail its
/// validation soon.
pub(super) fn reach(backup: &Backup, live: &[Namespace]) -> Reach {
    let globs = |patterns: &[String]| -> Result<Vec<Glob>, _> {
        patterns.iter().map(|pattern| Glob::new(pattern)).collect()
    };
    let spec = &backup.spec;
    let (Ok(included), Ok(excluded)) =
        (globs(&spec.included_namespaces), globs(&spec.excluded_namespaces))
    else {
        return Reach::All;
    };
    let expanded = namespaces::expand(&included, &excluded, live);
    match expanded.scope {
        Scope::Only(names) => Reach::Only(names.into_iter().collect()),
        Scope::All => {
            let excluded: Globs = expanded.excluded.into_iter().collect();
            let names = live.iter().map(|namespace| namespace.name.clone());
            Reach::Only(names.filter(|name| !excluded.matches(name)).collect())
        }
    }
}
