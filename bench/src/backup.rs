//! Backups of one cluster, round by round, and the listing under them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bowline_api::{Backup, BackupPhase, BackupStatus};
use kube::Api;
use kube::api::PostParams;
use serde::Serialize;
use serde_json::json;

use crate::bench_env::BenchEnv;
use crate::contender::{Bucket, Contender, LOCATION, Server, run_failure_text};
use crate::measure::{self, UsageWatch};
use crate::raw::{self, ListingMeasurement};
use crate::{print_line, requests};

/// Velero's users report hours for 300,000 objects.
const BACKUP_TIMEOUT: Duration = Duration::from_hours(3);

/// Measurement of one backup.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct BackupMeasurement {
    /// From the creation of the Backup to its last phase.
    pub(crate) wall_s: f64,
    /// CPU time of the server and its plugins.
    pub(crate) cpu_s: f64,
    /// Largest memory of the server and its plugins at one time.
    pub(crate) peak_rss_bytes: u64,
    /// Items as the Backup counts them.
    pub(crate) items: u64,
    /// Size of the tarball.
    pub(crate) bytes: u64,
    pub(crate) apiserver_cpu_s: f64,
    /// Requests that the API server answered meanwhile, from any client.
    pub(crate) api_requests: u64,
}

/// Measurements of all backups, round by round.
#[derive(Clone, Debug)]
pub(crate) struct Backups {
    pub(crate) listings: Vec<ListingMeasurement>,
    pub(crate) runs: Vec<(Contender, Vec<BackupMeasurement>)>,
}

/// Has each contender back up a cluster in which so many objects were created.
pub(crate) async fn rounds(
    env: &BenchEnv,
    objects: usize,
    contenders: &[Contender],
    rounds: u16,
) -> anyhow::Result<Backups> {
    let kinds = raw::archived_kinds(&env.client).await?;
    let runs = contenders.iter().map(|contender| (*contender, Vec::new())).collect();
    let mut backups = Backups { listings: Vec::new(), runs };
    for round in 1..=rounds {
        let listing = measure_listing(env, &kinds).await?;
        print_line(format_args!("backup, round {round}: raw list {:.2} s", listing.wall_s));
        backups.listings.push(listing);
        for (contender, runs) in alternate_order(&mut backups.runs, round) {
            // The same cluster and bucket may have had fewer objects before.
            let name = format!("{}-{objects}-{round}", contender.name().replace('_', "-"));
            let server = contender.start(env, Bucket::Own).await?;
            let run = measure_backup(env, &server, &name, objects, &[]).await;
            let run = run.with_context(|| format!("the backup of {} failed", contender.name()))?;
            print_line(format_args!(
                "backup, round {round}: {} {:.2} s",
                contender.name(),
                run.wall_s
            ));
            runs.push(run);
        }
    }
    Ok(backups)
}

/// The first contender alternates from round to round, so that none has an advantage.
pub(crate) fn alternate_order<T>(all: &mut [T], round: u16) -> impl Iterator<Item = &mut T> {
    let mut all: Vec<&mut T> = all.iter_mut().collect();
    if round.is_multiple_of(2) {
        all.reverse();
    }
    all.into_iter()
}

async fn measure_listing(env: &BenchEnv, kinds: &[String]) -> anyhow::Result<ListingMeasurement> {
    measure::wait_until_quiet().await;
    let count = raw::count(&env.client, kinds).await?;
    let [api_server, ..] = env.cluster;
    let watch = UsageWatch::start([api_server]);
    let (wall, bytes) = raw::list(&env.client, kinds).await?;
    let [api_server] = watch.stop()?;
    let apiserver_cpu_s = api_server.cpu_s;
    Ok(ListingMeasurement { wall_s: wall.as_secs_f64(), bytes, count, apiserver_cpu_s })
}

/// Takes one backup, of all namespaces except some, when the machine is quiet.
pub(crate) async fn measure_backup(
    env: &BenchEnv,
    server: &Server,
    name: &str,
    objects: usize,
    excluded_namespaces: &[&str],
) -> anyhow::Result<BackupMeasurement> {
    measure::wait_until_quiet().await;
    let backups: Api<Backup> = Api::namespaced(env.client.clone(), server.namespace);
    let backup = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "storageLocation": LOCATION,
            // Without it Velero omits most cluster-scoped kinds.
            "includeClusterResources": true,
            "excludedNamespaces": excluded_namespaces,
        },
    }))?;
    let [api_server, ..] = env.cluster;
    let answered = requests::answered_requests(&env.client).await?;
    let watch = UsageWatch::start([server.pid(), api_server]);
    let started = Instant::now();
    backups.create(&PostParams::default(), &backup).await.context("cannot create a Backup")?;
    let ended = |backup: Backup| {
        backup.status.filter(|status| status.phase.as_ref().is_some_and(BackupPhase::is_terminal))
    };
    let status = server.wait_until(&backups, name, BACKUP_TIMEOUT, ended).await?;
    let wall_s = started.elapsed().as_secs_f64();
    let [usage, api_server] = watch.stop()?;
    let api_requests = requests::answered_requests(&env.client).await?.saturating_sub(answered);

    let items = items_of(&status)?;
    ensure!(
        items >= objects as u64,
        "the backup holds {items} items, of {objects} that were created"
    );
    let tarball = server.tarball(name).metadata();
    Ok(BackupMeasurement {
        wall_s,
        cpu_s: usage.cpu_s,
        peak_rss_bytes: usage.peak_rss_bytes,
        items,
        bytes: tarball.context("the backup is Completed and has no tarball")?.len(),
        apiserver_cpu_s: api_server.cpu_s,
        api_requests,
    })
}

/// Items of a completed backup, or the reason why it did not complete.
fn items_of(status: &BackupStatus) -> anyhow::Result<u64> {
    if status.phase != Some(BackupPhase::Completed) {
        let phase = status.phase.as_ref().map(ToString::to_string).unwrap_or_default();
        let counts = [status.errors, status.warnings];
        bail!(run_failure_text(&phase, counts, &status.failure_reason, &status.validation_errors));
    }
    let items = status.progress.as_ref().map(|progress| progress.items_backed_up);
    let items = items.context("the backup is Completed and has no progress")?;
    u64::try_from(items).context("the backup counts less than nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_alternate_in_going_first() {
        let mut all = ['a', 'b', 'c'];
        let order = |all: &mut [char], round| {
            alternate_order(all, round).map(|one| *one).collect::<String>()
        };
        assert_eq!(order(&mut all, 1), "abc");
        assert_eq!(order(&mut all, 2), "cba");
        assert_eq!(order(&mut all, 3), "abc");
    }

    fn status(value: serde_json::Value) -> BackupStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_a_completed_backup_is_counted() {
        let progress = json!({"totalItems": 7, "itemsBackedUp": 7});
        let completed = status(json!({"phase": "Completed", "progress": progress}));
        assert_eq!(items_of(&completed).unwrap(), 7);

        let partial =
            status(json!({"phase": "PartiallyFailed", "errors": 2, "progress": progress}));
        let text = items_of(&partial).unwrap_err().to_string();
        assert!(text.contains("PartiallyFailed, with 2 errors"), "{text}");

        let refused =
            status(json!({"phase": "FailedValidation", "validationErrors": ["no place"]}));
        let text = items_of(&refused).unwrap_err().to_string();
        assert!(text.contains("no place"), "{text}");

        assert!(items_of(&status(json!({"phase": "Completed"}))).is_err());
    }
}
