//! Journals that nobody will open again, because their server ended at the wrong moment.
//!
//! - The Backup or Restore was deleted while no server ran. Nobody will ever go on with such a run. What
//!   it may have left frozen is thawed, as far as the pods say how: hooks that only the Backup knew are
//!   gone with it.
//! - The run is over, and its server ended before it could forget it. What was kept of it in the bucket
//!   is removed.
//!
//! Then the journal is removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Backup, BackupPhase, BackupStorageLocation, Restore, RestorePhase};
use bowline_engine::backup::request::Lookup;
use bowline_engine::backup::thaw_left;
use bowline_engine::cluster::ApiServer;
use bowline_engine::journal::recover;
use bowline_engine::report::Report;
use kube::ResourceExt as _;

use super::lookup::{lookup, open};
use crate::journal::{ConfigMaps, Orphan, orphans};
use crate::server::{Context, Error};
use crate::story::one_line;

/// How often it is looked for them.
const PERIOD: Duration = Duration::from_mins(10);

/// Works until asked to stop.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    loop {
        if let Err(error) = clean(&context).await {
            tracing::warn!("journals that nobody needs cannot be cleaned up: {error}");
        }
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// What became of the run of a journal.
enum Fate {
    /// It goes on, or will.
    Alive,
    /// Its object was deleted.
    Deleted,
    /// It is over. The Backup is its own, or the one that it restored, if that is still there.
    Over(Option<Box<Backup>>),
}

async fn clean(context: &Context) -> Result<(), String> {
    let (client, namespace) = (context.client.clone(), &context.options.namespace);
    // First the journals and then the runs: a run that begins in between has none among them.
    let all = orphans(client, namespace, &BTreeSet::new()).await;
    for journal in all.map_err(|error| one_line(&error))? {
        let Orphan { kind, name, .. } = &journal;
        let ended = match fate(context, &journal).await {
            Ok(Fate::Alive) => continue,
            Ok(Fate::Deleted) => forget(context, &journal, &Backup::default()).await,
            Ok(Fate::Over(backup)) => {
                let backup = backup.map_or_else(Backup::default, |found| *found);
                // As long as its files are there, the journal says whose they are.
                match delete_scratch(context, &journal, &backup).await {
                    Ok(()) => forget(context, &journal, &backup).await,
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(()) => tracing::info!("forgot the journal of the {kind} {name}"),
            Err(error) => tracing::warn!("the journal of the {kind} {name} stays: {error}"),
        }
    }
    Ok(())
}

/// What became of the run of a journal.
async fn fate(context: &Context, journal: &Orphan) -> Result<Fate, String> {
    let Orphan { run, kind, name } = journal;
    // Runs of this process end by themselves, whatever became of their objects.
    if context.runs.uids().iter().any(|uid| uid == run.as_str()) {
        return Ok(Fate::Alive);
    }
    let told = |error: kube::Error| one_line(&error);
    let is_it = |uid: Option<String>| uid.as_deref() == Some(run.as_str());
    let backups = context.api::<Backup>();
    if kind == "Backup" {
        let found = backups.get_opt(name).await.map_err(told)?;
        return Ok(match found.filter(|backup| is_it(backup.uid())) {
            None => Fate::Deleted,
            Some(backup) => {
                let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
                let is_over = phase.is_some_and(BackupPhase::is_terminal);
                if is_over { Fate::Over(Some(Box::new(backup))) } else { Fate::Alive }
            }
        });
    }
    let found = context.api::<Restore>().get_opt(name).await.map_err(told)?;
    let Some(restore) = found.filter(|restore| is_it(restore.uid())) else {
        return Ok(Fate::Deleted);
    };
    let phase = restore.status.as_ref().and_then(|status| status.phase.as_ref());
    if !phase.is_some_and(RestorePhase::is_terminal) {
        return Ok(Fate::Alive);
    }
    let backup = backups.get_opt(&restore.spec.backup_name).await.map_err(told)?;
    Ok(Fate::Over(backup.map(Box::new)))
}

/// Removes what was kept of a run that is over. Without a location there is nowhere that it could be.
async fn delete_scratch(
    context: &Context,
    journal: &Orphan,
    backup: &Backup,
) -> Result<(), String> {
    let locations = context.api::<BackupStorageLocation>();
    let name = &backup.spec.storage_location;
    if name.is_empty() {
        return Ok(());
    }
    let location = lookup(locations.get_opt(name).await).map_err(|error| one_line(&error))?;
    if matches!(location, Lookup::Missing) {
        return Ok(());
    }
    let store = open(context, &location).await.map_err(|error| one_line(&error))?;
    store.delete_scratch(&journal.run).await.map_err(|error| one_line(&error))
}

async fn forget(context: &Context, orphan: &Orphan, backup: &Backup) -> Result<(), String> {
    let Orphan { run, kind, name } = orphan;
    let (client, namespace) = (context.client.clone(), &context.options.namespace);
    let opened = ConfigMaps::open(client.clone(), namespace, run, kind, name).await;
    let (journal, records) = opened.map_err(|error| one_line(&error))?;
    let cluster = ApiServer::new(client, context.options.client_page_size);
    let report = Report::default();
    let thawed = thaw_left(&cluster, backup, &recover(records), &journal, &report).await;
    thawed.map_err(|error| one_line(&error))?;
    journal.remove().await.map_err(|error| one_line(&error))
}
