//! Journals whose Backup or Restore was deleted while no server ran.
//!
//! Nobody will ever go on with such a run. What it may have left frozen is thawed, as far as the pods
//! say how: hooks that only the Backup knew are gone with it. Then the journal is removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Backup, Restore};
use bowline_engine::backup::thaw_left;
use bowline_engine::cluster::ApiServer;
use bowline_engine::journal::recover;
use bowline_engine::report::Report;
use kube::api::ListParams;

use crate::journal::{ConfigMaps, Orphan, orphans};
use crate::server::{Context, Error};
use crate::story::one_line;

/// How often it is looked for them.
const PERIOD: Duration = Duration::from_mins(10);

/// Works until asked to stop.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    loop {
        if let Err(error) = clean(&context).await {
            tracing::warn!("journals of deleted runs cannot be cleaned up: {error}");
        }
        tokio::select! {
            () = context.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

async fn clean(context: &Context) -> Result<(), String> {
    let (client, namespace) = (context.client.clone(), &context.options.namespace);
    // Runs of this process end by themselves, whatever became of their objects.
    let mut live: BTreeSet<String> = context.runs.uids().into_iter().collect();
    let params = ListParams::default();
    let backups = context.api::<Backup>().list_metadata(&params).await;
    live.extend(
        backups.map_err(|error| one_line(&error))?.iter().filter_map(kube::ResourceExt::uid),
    );
    let restores = context.api::<Restore>().list_metadata(&params).await;
    live.extend(
        restores.map_err(|error| one_line(&error))?.iter().filter_map(kube::ResourceExt::uid),
    );
    let found = orphans(client, namespace, &live).await.map_err(|error| one_line(&error))?;
    for orphan in found {
        let Orphan { kind, name, .. } = &orphan;
        match forget(context, &orphan).await {
            Ok(()) => tracing::info!("forgot the journal of the {kind} {name}, which was deleted"),
            Err(error) => {
                tracing::warn!("the journal of the deleted {kind} {name} stays: {error}");
            }
        }
    }
    Ok(())
}

async fn forget(context: &Context, orphan: &Orphan) -> Result<(), String> {
    let Orphan { run, kind, name } = orphan;
    let (client, namespace) = (context.client.clone(), &context.options.namespace);
    let opened = ConfigMaps::open(client.clone(), namespace, run, kind, name).await;
    let (journal, records) = opened.map_err(|error| one_line(&error))?;
    let cluster = ApiServer::new(client, context.options.client_page_size);
    let report = Report::default();
    let (backup, recovered) = (Backup::default(), recover(records));
    let thawed = thaw_left(&cluster, &backup, &recovered, &journal, &report).await;
    thawed.map_err(|error| one_line(&error))?;
    journal.remove().await.map_err(|error| one_line(&error))
}
