//! A server among thousands of finished Backups and Restores, and of Schedules that are not due.
//!
//! All Backups have their commit records in the bucket, and expire in a month: the server's synchronization and
//! retention check them as in a cluster in use, find nothing to do, and must not remove any. What is measured is the
//! cost of an idle server, and how long users wait for the things that they do often.

mod probe;
mod resources;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bowline_api::BackupStorageLocation;
use bowline_testbed::apply::apply;
use jiff::Timestamp;
use kube::Api;
use serde_json::json;

use crate::bench_env::BenchEnv;
use crate::contender::{BOWLINE_NAMESPACE, Bucket, Contender, LOCATION, Server};
use crate::measure::{self, UsageWatch};
use crate::{fill, print_line, raw};
use resources::FinishedBackup;

/// Longest wait for the first synchronization with the bucket.
const SYNC_TIMEOUT: Duration = Duration::from_mins(5);
/// Scrapes of the metrics per round: Prometheus scrapes much more often than users list backups.
const SCRAPES_PER_ROUND: u16 = 5;

/// Numbers of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceCounts {
    pub(crate) backups: usize,
    pub(crate) schedules: usize,
    pub(crate) restores: usize,
}

/// Extent of the measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManyPlan {
    pub(crate) counts: ResourceCounts,
    /// Number of new backups and of lists.
    pub(crate) rounds: u16,
    /// Time for which the idle server is watched.
    pub(crate) idle: Duration,
}

/// Usage of an idle server, and of the cluster because of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct IdleUsage {
    pub(crate) span_s: f64,
    pub(crate) cpu_s: f64,
    pub(crate) api_server_cpu_s: f64,
    /// Resident set at the end.
    pub(crate) rss_bytes: u64,
}

/// Everything that was measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ManyMeasurement {
    pub(crate) counts: ResourceCounts,
    pub(crate) idle: IdleUsage,
    /// Largest resident set of the server from its start to the end.
    pub(crate) peak_rss_bytes: u64,
    /// From the creation of a Backup to its phase `InProgress`.
    pub(crate) backup_starts_s: Vec<f64>,
    /// Answers to `GET /metrics`. The first one is that of a server that was never asked.
    pub(crate) scrapes_s: Vec<f64>,
    /// Length of the last answer.
    pub(crate) metrics_bytes: u64,
    /// Runs of `bowline backup get`.
    pub(crate) lists_s: Vec<f64>,
}

/// Fills a cluster and a bucket, and measures a server among these resources.
pub(crate) async fn measure(env: &BenchEnv, plan: &ManyPlan) -> anyhow::Result<ManyMeasurement> {
    fill_all(env, plan.counts).await?;
    let server = Contender::Bowline.start(env, Bucket::Own).await?;
    wait_until_synced(env, &server).await?;
    measure::wait_until_quiet().await;
    check_backups(env, plan.counts.backups).await?;

    print_line(format_args!("watching the idle server for {} s", plan.idle.as_secs()));
    let idle = measure_idle(env, &server, plan.idle).await?;
    let metrics = server.metrics.context("the server serves no metrics")?;
    let (mut scrapes_s, mut metrics_bytes) = (Vec::new(), 0);
    for _ in 0..plan.rounds.saturating_mul(SCRAPES_PER_ROUND) {
        let scrape = probe::scrape(metrics).await.context("cannot read the metrics")?;
        scrapes_s.push(scrape.wall_s);
        metrics_bytes = scrape.bytes;
    }
    let (mut lists_s, mut backup_starts_s) = (Vec::new(), Vec::new());
    for round in 1..=plan.rounds {
        lists_s.push(probe::list_backups(env, plan.counts.backups).await?);
        let start = probe::start_backup(env, &server, &format!("new-{round}")).await;
        backup_starts_s.push(start.context("a new backup did not run")?);
    }
    check_backups(env, plan.counts.backups + usize::from(plan.rounds)).await?;
    let peak_rss_bytes = measure::peak_resident_bytes(server.pid());
    ensure!(measure::is_running(server.pid()), "the server ended");
    Ok(ManyMeasurement {
        counts: plan.counts,
        idle,
        peak_rss_bytes,
        backup_starts_s,
        scrapes_s,
        metrics_bytes,
        lists_s,
    })
}

/// Creates all resources, and the records of the backups in the bucket.
async fn fill_all(env: &BenchEnv, counts: ResourceCounts) -> anyhow::Result<()> {
    let ResourceCounts { backups, schedules, restores } = counts;
    for namespace in [BOWLINE_NAMESPACE, probe::NAMESPACE] {
        let metadata = json!({"name": namespace});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        apply(&env.client, namespace).await?;
    }
    let now = Timestamp::now();
    let backup = move |number| FinishedBackup { number, schedules, now };
    let bucket = env.s3.create_bucket(Bucket::Own.name()).context("cannot create a bucket")?;
    let mut records = (0..backups).map(backup);
    tokio::task::spawn_blocking(move || records.try_for_each(|one| store(&bucket, &one))).await??;
    let objects = (0..schedules)
        .map(|number| resources::schedule(number, now))
        .chain((0..backups).map(|number| backup(number).object()))
        .chain((0..restores).map(|number| resources::restore(number, &backup(number % backups))));
    fill::create_objects(&env.client, backups + schedules + restores, objects).await
}

/// Writes the commit record of a backup.
fn store(bucket: &Path, backup: &FinishedBackup) -> anyhow::Result<()> {
    let folder = bucket.join("backups").join(backup.name());
    std::fs::create_dir_all(&folder).context("cannot fill the bucket")?;
    let record = serde_json::to_vec(&backup.record())?;
    std::fs::write(folder.join("velero-backup.json"), record).context("cannot fill the bucket")
}

async fn wait_until_synced(env: &BenchEnv, server: &Server) -> anyhow::Result<()> {
    let locations: Api<BackupStorageLocation> =
        Api::namespaced(env.client.clone(), server.namespace);
    let is_synced = |location: BackupStorageLocation| location.status?.last_synced_time.map(drop);
    let synced = server.wait_until(&locations, LOCATION, SYNC_TIMEOUT, is_synced).await;
    synced.context("the server did not synchronize with its bucket")
}

/// Fails unless there are exactly so many Backups: the server must not import, expire or remove any.
async fn check_backups(env: &BenchEnv, expected: usize) -> anyhow::Result<()> {
    let kind = format!("/apis/velero.io/v1/namespaces/{BOWLINE_NAMESPACE}/backups");
    let found = raw::count(&env.client, &[kind]).await?;
    ensure!(found == expected as u64, "there are {found} Backups, of {expected}");
    Ok(())
}

async fn measure_idle(
    env: &BenchEnv,
    server: &Server,
    span: Duration,
) -> anyhow::Result<IdleUsage> {
    let [api_server, ..] = env.cluster;
    let watch = UsageWatch::start([server.pid(), api_server]);
    tokio::time::sleep(span).await;
    let [usage, api_server] = watch.stop()?;
    Ok(IdleUsage {
        span_s: span.as_secs_f64(),
        cpu_s: usage.cpu_s,
        api_server_cpu_s: api_server.cpu_s,
        rss_bytes: measure::resident_bytes(server.pid()),
    })
}
