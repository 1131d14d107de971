//! Server of the demo: a separate process, as in production, with a folder for backups and a plugin for volumes.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bowline_api::location::LocationPhase;
use bowline_api::{BackupStorageLocation, DEFAULT_NAMESPACE};
use bowline_testbed::apply::apply;
use bowline_testbed::process::Process;
use bowline_testbed::{Bed, ControlPlane, kwok};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;

use super::sample::SampleApplication;

/// Name of the locations, the folder, the backup and the restore.
pub(super) const NAME: &str = "demo";
/// Longest wait until the server has a location.
const START_TIMEOUT: Duration = Duration::from_mins(2);
/// Interval of checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Plugins create sockets in the folder for temporary files. The path of a socket has at most 107 bytes.
const MAX_SOCKET_DIR_LENGTH: usize = 80;
/// Bytes uploaded per second: few, so that the upload is visible.
const UPLOAD_LIMIT: u32 = 8 * 1024 * 1024;

/// Running server. Dropping it ends it.
pub(super) struct Server {
    process: Process,
    bed: Bed,
    kubeconfig: PathBuf,
}

impl Server {
    /// Starts a server with a folder for backups and a plugin for volumes, and waits until its location is available.
    pub(super) async fn start(
        plane: &ControlPlane,
        client: &Client,
        sample: &SampleApplication,
        plugin: PathBuf,
    ) -> anyhow::Result<Self> {
        let bed = plane.bed().clone();
        for folder in ["buckets/demo", "scratch", "plugins"] {
            bed.subdir(folder)
                .with_context(|| format!("cannot create a directory for {folder}"))?;
        }
        symlink(plugin, bed.dir().join("plugins/local-volume")).context("cannot add a plugin")?;
        for object in config_objects(&bed, sample) {
            apply(client, object).await?;
        }
        let kubeconfig = plane.kubeconfig().to_owned();
        let process = start_process(&bed, &kubeconfig, "server")?;
        let mut server = Self { process, bed, kubeconfig };
        server.wait_for_location(client).await?;
        Ok(server)
    }

    /// Kills the server with SIGKILL, and starts another one.
    pub(super) fn kill_and_restart(&mut self) -> anyhow::Result<()> {
        self.check()?;
        // The old server is dead before the next one starts. The plugin dies with it.
        self.process.kill();
        self.process = start_process(&self.bed, &self.kubeconfig, "server-again")?;
        Ok(())
    }

    /// Returns an error if the server has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.process.check().context("the server has exited")
    }

    /// Folder with the files of the backup.
    pub(super) fn backup_dir(&self) -> PathBuf {
        self.bed.dir().join("buckets").join(NAME).join("backups").join(NAME)
    }

    async fn wait_for_location(&mut self, client: &Client) -> anyhow::Result<()> {
        let api: Api<BackupStorageLocation> = Api::namespaced(client.clone(), DEFAULT_NAMESPACE);
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let found = api.get(NAME).await.context("cannot read the storage location")?;
            let phase = found.status.and_then(|status| status.phase);
            if phase == Some(LocationPhase::Available) {
                return Ok(());
            }
            self.check()?;
            if Instant::now() >= deadline {
                bail!("timed out waiting for the storage location to become available");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Configuration of the server: locations for backups and snapshots, and its secret.
fn config_objects(bed: &Bed, sample: &SampleApplication) -> [serde_json::Value; 4] {
    let metadata = json!({"name": NAME, "namespace": DEFAULT_NAMESPACE});
    [
        json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DEFAULT_NAMESPACE},
        }),
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "BackupStorageLocation",
            "metadata": metadata,
            "spec": {
                "provider": "filesystem",
                "default": true,
                "objectStorage": {"bucket": NAME},
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata,
            "stringData": {"credentials": "RUSTIC_PASSWORD=for-a-repository-that-is-soon-gone\n"},
        }),
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "VolumeSnapshotLocation",
            "metadata": metadata,
            "spec": {
                "provider": "bowline.io/local-volume",
                "credential": {"name": NAME, "key": "credentials"},
                "config": {
                    "roots": sample.volumes(),
                    "repository": bed.dir().join("repository"),
                    "node": kwok::NODE,
                    "uploadLimit": UPLOAD_LIMIT.to_string(),
                },
            },
        }),
    ]
}

/// Process of this program. `name` is that of its log.
fn start_process(bed: &Bed, kubeconfig: &PathBuf, name: &'static str) -> anyhow::Result<Process> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new(program);
    command.args(["server", "--namespace", DEFAULT_NAMESPACE, "--metrics-address=0"]);
    // The janitor of a bed finds processes by their environment, which is unreadable otherwise.
    command.arg("--core-dumps");
    // With the identity of the killed server, it need not wait for the Lease to expire.
    command.args(["--identity", NAME]);
    for (flag, folder) in [
        ("--filesystem-root", "buckets"),
        ("--scratch-dir", "scratch"),
        ("--plugin-dir", "plugins"),
    ] {
        command.arg(flag).arg(bed.dir().join(folder));
    }
    command.arg("--kubeconfig").arg(kubeconfig);
    // Leftovers of a killed server and its plugins are removed with the bed.
    let temporary = bed.dir().join("scratch");
    if temporary.as_os_str().len() <= MAX_SOCKET_DIR_LENGTH {
        command.env("TMPDIR", temporary);
    }
    Ok(Process::start(bed, name, command)?)
}
