//! Backups of pods with volumes of a CSI driver, round by round, and the floor: the snapshots alone.
//!
//! The pods run on a real node, and their hooks record each freeze and thaw: so the pods themselves measure the freeze
//! window of every contender. The driver and its controllers are fast, so that the measurement shows the requests of
//! the contenders.

mod cluster;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bowline_api::{Backup, BackupPhase, BackupStatus, DeleteBackupRequest};
use bowline_testbed::{S3, node};
use kube::Api;
use kube::api::PostParams;
use serde::Serialize;
use serde_json::json;

use crate::bench_env::Binaries;
use crate::contender::{Bucket, Contender, LOCATION, Server, run_failure_text};
use crate::measure::{self, UsageWatch};
use crate::print_line;
use crate::report::median;
use cluster::Cluster;

const BACKUP_TIMEOUT: Duration = Duration::from_hours(1);
/// Longest time for a server to delete a backup.
const DELETE_TIMEOUT: Duration = Duration::from_mins(15);

/// Measurement of one backup.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct CsiBackupMeasurement {
    /// From the creation of the Backup to its last phase.
    pub(crate) wall_s: f64,
    /// From the pre-hook of a pod to its post-hook: median of the pods.
    pub(crate) freeze_window_ms: f64,
    /// The same for the pod with the longest freeze.
    pub(crate) freeze_window_max_ms: f64,
    /// Median according to the Backup, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reported_freeze_window_ms: Option<f64>,
    /// CPU time of the server and its plugins.
    pub(crate) cpu_s: f64,
    /// Largest memory of the server and its plugins at one time.
    pub(crate) peak_rss_bytes: u64,
    pub(crate) apiserver_cpu_s: f64,
    /// Snapshots that the driver still had when the server reported the backup as deleted, and for a while afterwards.
    pub(crate) left_after_deletion: u64,
}

/// Measurements of all backups, round by round.
#[derive(Clone, Debug)]
pub(crate) struct CsiBackups {
    pub(crate) claims: usize,
    pub(crate) pods: usize,
    /// Seconds until snapshots that are all requested at once become ready.
    pub(crate) raw: Vec<f64>,
    pub(crate) runs: Vec<(Contender, Vec<CsiBackupMeasurement>)>,
}

/// Creates pods with so many claims, and has each contender back them up.
pub(crate) async fn rounds(
    s3: &Arc<S3>,
    binaries: &Binaries,
    claims: usize,
    contenders: &[Contender],
    rounds: u16,
) -> anyhow::Result<CsiBackups> {
    if let Some(reason) = node::unavailable_reason() {
        bail!("{reason}");
    }
    let cluster = Cluster::set_up(s3, binaries, claims).await?;
    let runs = contenders.iter().map(|contender| (*contender, Vec::new())).collect();
    let mut backups = CsiBackups { claims, pods: cluster.pods.len(), raw: Vec::new(), runs };
    for round in 1..=rounds {
        let report_time = |name: &str, wall_s: f64, more: String| {
            print_line(format_args!("csi, round {round}: {name} {wall_s:.2} s{more}"));
        };
        let wall_s = measure_raw_snapshots(&cluster).await?;
        report_time("raw snapshots", wall_s, String::new());
        backups.raw.push(wall_s);
        for (contender, runs) in &mut backups.runs {
            let name = format!("{}-{round}", contender.name().replace('_', "-"));
            let server = contender.start(&cluster.env, Bucket::Own).await?;
            let run = measure_backup(&cluster, &server, &name).await;
            let run = run.with_context(|| format!("the backup of {} failed", contender.name()))?;
            let (middle, longest) = (run.freeze_window_ms, run.freeze_window_max_ms);
            let more = format!(", pods frozen for {middle:.0} ms, {longest:.0} ms at most");
            report_time(contender.name(), run.wall_s, more);
            runs.push(run);
        }
    }
    Ok(backups)
}

/// Requests all snapshots at once, without any backup, and waits until they are ready.
async fn measure_raw_snapshots(cluster: &Cluster) -> anyhow::Result<f64> {
    measure::wait_until_quiet().await;
    let started = Instant::now();
    cluster.snapshot_all().await?;
    let wall_s = started.elapsed().as_secs_f64();
    cluster.remove_snapshots().await?;
    Ok(wall_s)
}

/// Takes one backup when the machine is quiet, and deletes it again.
async fn measure_backup(
    cluster: &Cluster,
    server: &Server,
    name: &str,
) -> anyhow::Result<CsiBackupMeasurement> {
    let env = &cluster.env;
    cluster.remove_hook_files()?;
    measure::wait_until_quiet().await;
    let backups: Api<Backup> = Api::namespaced(env.client.clone(), server.namespace);
    let backup = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "storageLocation": LOCATION,
            "includedNamespaces": [cluster::NAMESPACE],
            "snapshotVolumes": true,
        },
    }))?;
    let [api_server, ..] = env.cluster;
    let watch = UsageWatch::start([server.pid(), api_server]);
    let started = Instant::now();
    backups.create(&PostParams::default(), &backup).await.context("cannot create a Backup")?;
    let ended = |backup: Backup| {
        backup.status.filter(|status| status.phase.as_ref().is_some_and(BackupPhase::is_terminal))
    };
    let status = server.wait_until(&backups, name, BACKUP_TIMEOUT, ended).await?;
    let wall_s = started.elapsed().as_secs_f64();
    let [usage, api_server] = watch.stop()?;

    let reported_freeze_window_ms = reported_freeze_window(&status)?;
    let windows = cluster.freeze_windows()?;
    let snapshot_count = cluster.csi.snapshots()?.len();
    let wanted = cluster.claims.len();
    ensure!(
        snapshot_count == wanted,
        "the driver has {snapshot_count} snapshots, of {wanted} claims"
    );
    delete(cluster, server, name).await?;
    Ok(CsiBackupMeasurement {
        wall_s,
        freeze_window_ms: median(windows.clone()),
        freeze_window_max_ms: windows.into_iter().fold(0.0, f64::max),
        reported_freeze_window_ms,
        cpu_s: usage.cpu_s,
        peak_rss_bytes: usage.peak_rss_bytes,
        apiserver_cpu_s: api_server.cpu_s,
        left_after_deletion: cluster.remove_snapshots().await?,
    })
}

/// Freeze window in the status of a completed backup, or the reason why it did not complete.
fn reported_freeze_window(status: &BackupStatus) -> anyhow::Result<Option<f64>> {
    if status.phase != Some(BackupPhase::Completed) {
        let phase = status.phase.as_ref().map(ToString::to_string).unwrap_or_default();
        let counts = [status.errors, status.warnings];
        bail!(run_failure_text(&phase, counts, &status.failure_reason, &status.validation_errors));
    }
    #[expect(clippy::cast_precision_loss, reason = "milliseconds, far below 2^52")]
    let windows: Vec<f64> =
        status.freeze_windows.iter().map(|window| window.milliseconds as f64).collect();
    Ok((!windows.is_empty()).then(|| median(windows)))
}

/// Has a server delete a backup, and waits for the end.
async fn delete(cluster: &Cluster, server: &Server, name: &str) -> anyhow::Result<()> {
    let client = cluster.env.client.clone();
    let requests: Api<DeleteBackupRequest> = Api::namespaced(client.clone(), server.namespace);
    let request = json!({"metadata": {"name": name}, "spec": {"backupName": name}});
    let request = serde_json::from_value(request)?;
    requests.create(&PostParams::default(), &request).await.context("cannot ask for a deletion")?;
    let backups: Api<Backup> = Api::namespaced(client, server.namespace);
    server.wait_until_gone(&backups, name, DELETE_TIMEOUT).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: serde_json::Value) -> BackupStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_a_completed_backup_counts_and_may_report_freeze_windows() {
        let window = |ms| json!({"namespace": "n", "pod": "p", "milliseconds": ms});
        let with_windows =
            json!({"phase": "Completed", "freezeWindows": [window(9), window(5), window(7)]});
        assert_eq!(reported_freeze_window(&status(with_windows)).unwrap(), Some(7.0));
        assert_eq!(reported_freeze_window(&status(json!({"phase": "Completed"}))).unwrap(), None);
        let partial = status(json!({"phase": "PartiallyFailed", "errors": 2}));
        let text = reported_freeze_window(&partial).unwrap_err().to_string();
        assert!(text.contains("PartiallyFailed, with 2 errors"), "{text}");
    }
}
