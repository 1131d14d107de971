//! Restores of the same archives into empty clusters, round by round, and the floor under them.
//!
//! Each restore has a new control plane. One that is emptied by deletions keeps traces of the deleted objects for
//! minutes, in etcd and in its controllers, and the next contender would pay for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bowline_api::{Backup, BackupPhase, Restore, RestorePhase, RestoreStatus};
use bowline_testbed::{S3, velero};
use kube::Api;
use kube::api::PostParams;
use serde::Serialize;
use serde_json::json;

use crate::bench_env::{BenchEnv, Binaries, MachineUsage};
use crate::contender::{BOWLINE_NAMESPACE, Bucket, Contender, Server, run_failure_text};
use crate::create::{self, CreationMeasurement};
use crate::fill::Load;
use crate::measure::{self, UsageWatch};
use crate::{archive, backup, load_check, print_line, requests};

const RESTORE_TIMEOUT: Duration = Duration::from_hours(3);

/// Longest wait until a server finds a backup in its bucket. Velero syncs once a minute.
const SYNC_TIMEOUT: Duration = Duration::from_mins(5);

/// Backup to restore.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    pub(crate) load: Load,
    /// Items as the Backup counts them.
    pub(crate) items: u64,
    pub(crate) bytes: u64,
    name: String,
    tarball: PathBuf,
}

/// Measurement of one restore.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct RestoreMeasurement {
    /// From the creation of the Restore to its last phase.
    pub(crate) wall_s: f64,
    /// CPU time of the server and its plugins.
    pub(crate) cpu_s: f64,
    /// Largest memory of the server and its plugins at one time.
    pub(crate) peak_rss_bytes: u64,
    /// Items as the Restore counts them, including those that existed.
    pub(crate) items: u64,
    pub(crate) warnings: u64,
    /// Requests that the API server answered meanwhile, from any client.
    pub(crate) api_requests: u64,
    #[serde(flatten)]
    pub(crate) machine_usage: MachineUsage,
}

/// Measurements of all restores of an archive, round by round.
#[derive(Clone, Debug)]
pub(crate) struct Restores {
    pub(crate) archive: Archive,
    /// First round, with each number of connections.
    pub(crate) trial_creations: Vec<CreationMeasurement>,
    /// All rounds, each with the fastest number of connections.
    pub(crate) creations: Vec<CreationMeasurement>,
    pub(crate) runs: Vec<(Contender, Vec<RestoreMeasurement>)>,
}

impl Archive {
    /// Backs up the load of a cluster, into the bucket that all servers read.
    pub(crate) async fn create(env: &BenchEnv, by: Contender, load: Load) -> anyhow::Result<Self> {
        let name = format!("archive-{}", load.len());
        let server = by.start(env, Bucket::Shared).await?;
        // The servers' own namespaces are excluded.
        let without = [BOWLINE_NAMESPACE, velero::NAMESPACE];
        let run = backup::measure_backup(env, &server, &name, load.len(), &without).await;
        let run = run.context("the backup that is to be restored failed")?;
        let tarball = server.tarball(&name);
        print_line(format_args!("{name}: {} items by {}", run.items, by.name()));
        Ok(Self { load, items: run.items, bytes: run.bytes, name, tarball })
    }
}

impl Restores {
    pub(crate) fn new(archive: Archive, contenders: &[Contender]) -> Self {
        let runs = contenders.iter().map(|contender| (*contender, Vec::new())).collect();
        Self { archive, trial_creations: Vec::new(), creations: Vec::new(), runs }
    }

    /// Runs one more round.
    pub(crate) async fn round(
        &mut self,
        s3: &Arc<S3>,
        binaries: &Binaries,
        round: u16,
    ) -> anyhow::Result<()> {
        let set_up = async || BenchEnv::set_up(s3, binaries).await;
        let objects = self.archive.load.len();
        let report_time = |name: &str, wall_s: f64| {
            print_line(format_args!("restore of {objects}, round {round}: {name} {wall_s:.2} s"));
        };
        let tarball = self.archive.tarball.clone();
        let posts = tokio::task::spawn_blocking(move || archive::read(&tarball)).await??;
        let connections: &[usize] = match self.creations.first() {
            Some(creation) => &[creation.in_flight],
            None => &create::IN_FLIGHT,
        };
        let mut creations = Vec::new();
        for &in_flight in connections {
            let creation = create::create(&set_up().await?, &posts, in_flight).await?;
            report_time(&format!("raw create, {in_flight} at a time,"), creation.wall_s);
            creations.push(creation);
        }
        drop(posts);
        if self.trial_creations.is_empty() {
            self.trial_creations.clone_from(&creations);
        }
        self.creations.extend(fastest(&creations));
        for (contender, runs) in backup::alternate_order(&mut self.runs, round) {
            let env = set_up().await?;
            let server = contender.start(&env, Bucket::Shared).await?;
            let run = measure_restore(&env, &server, &self.archive).await;
            let run = run.with_context(|| format!("the restore of {} failed", contender.name()))?;
            report_time(contender.name(), run.wall_s);
            runs.push(run);
        }
        Ok(())
    }
}

/// Fastest creation.
fn fastest(creations: &[CreationMeasurement]) -> Option<CreationMeasurement> {
    creations.iter().min_by(|one, other| one.wall_s.total_cmp(&other.wall_s)).copied()
}

async fn measure_restore(
    env: &BenchEnv,
    server: &Server,
    archive: &Archive,
) -> anyhow::Result<RestoreMeasurement> {
    let backups: Api<Backup> = Api::namespaced(env.client.clone(), server.namespace);
    let is_there = |backup: Backup| (backup.status?.phase? == BackupPhase::Completed).then_some(());
    let found = server.wait_until(&backups, &archive.name, SYNC_TIMEOUT, is_there).await;
    found.context("the server did not find the backup in its bucket")?;
    measure::wait_until_quiet().await;

    let restores: Api<Restore> = Api::namespaced(env.client.clone(), server.namespace);
    let name = "restore";
    let restore = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"backupName": archive.name},
    }))?;
    let [api_server, etcd, controllers] = env.cluster;
    let answered = requests::answered_requests(&env.client).await?;
    let watch = UsageWatch::start([server.pid(), api_server, etcd, controllers]);
    let (started, idle) = (Instant::now(), measure::idle_s());
    restores.create(&PostParams::default(), &restore).await.context("cannot create a Restore")?;
    let ended = |restore: Restore| {
        restore.status.filter(|status| status.phase.as_ref().is_some_and(RestorePhase::is_terminal))
    };
    let status = server.wait_until(&restores, name, RESTORE_TIMEOUT, ended).await?;
    let (wall_s, idle) = (started.elapsed().as_secs_f64(), measure::idle_s() - idle);
    let [usage, cluster @ ..] = watch.stop()?;
    let api_requests = requests::answered_requests(&env.client).await?.saturating_sub(answered);

    let (items, warnings) = counts(&status)?;
    load_check::check(&env.client, archive.load).await?;
    Ok(RestoreMeasurement {
        wall_s,
        cpu_s: usage.cpu_s,
        peak_rss_bytes: usage.peak_rss_bytes,
        items,
        warnings,
        api_requests,
        machine_usage: MachineUsage::new(cluster, idle),
    })
}

/// Items and warnings of a completed restore, or the reason why it did not complete.
fn counts(status: &RestoreStatus) -> anyhow::Result<(u64, u64)> {
    if status.phase != Some(RestorePhase::Completed) {
        let phase = status.phase.as_ref().map(ToString::to_string).unwrap_or_default();
        let counts = [status.errors, status.warnings];
        bail!(run_failure_text(&phase, counts, &status.failure_reason, &status.validation_errors));
    }
    let progress = status.progress.as_ref().context("it is Completed and has no progress")?;
    ensure!(
        progress.items_restored == progress.total_items,
        "it is Completed with {} of {} items",
        progress.items_restored,
        progress.total_items
    );
    let count = |number: i64| u64::try_from(number).context("it counts less than nothing");
    Ok((count(progress.items_restored)?, count(status.warnings)?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Archive of so many objects and a fifth more items.
    pub(crate) fn archive(objects: usize) -> Archive {
        Archive {
            load: Load::Mix { objects, seed: 3 },
            items: (objects + objects / 5) as u64,
            bytes: 1_500_000,
            name: "archive".to_owned(),
            tarball: PathBuf::new(),
        }
    }

    fn status(value: serde_json::Value) -> RestoreStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_a_complete_restore_counts() {
        let progress = json!({"totalItems": 7, "itemsRestored": 7});
        let completed = status(json!({"phase": "Completed", "warnings": 3, "progress": progress}));
        assert_eq!(counts(&completed).unwrap(), (7, 3));

        let partial =
            status(json!({"phase": "PartiallyFailed", "errors": 2, "progress": progress}));
        let text = counts(&partial).unwrap_err().to_string();
        assert!(text.contains("PartiallyFailed, with 2 errors"), "{text}");

        let refused =
            status(json!({"phase": "FailedValidation", "validationErrors": ["no backup"]}));
        let text = counts(&refused).unwrap_err().to_string();
        assert!(text.contains("no backup"), "{text}");

        let short = json!({"totalItems": 7, "itemsRestored": 6});
        assert!(counts(&status(json!({"phase": "Completed", "progress": short}))).is_err());
        assert!(counts(&status(json!({"phase": "Completed"}))).is_err());
    }

    #[test]
    fn floor_is_the_fastest_creation() {
        let creation = |in_flight, wall_s| CreationMeasurement {
            wall_s,
            cpu_s: 0.0,
            in_flight,
            items: 0,
            existing: 0,
            machine_usage: MachineUsage::default(),
        };
        let all = [creation(16, 3.0), creation(32, 2.0), creation(64, 2.5)];
        assert_eq!(fastest(&all).map(|creation| creation.in_flight), Some(32));
        assert_eq!(fastest(&[]), None);
    }
}
