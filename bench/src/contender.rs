//! Who is measured: Bowline, Velero as it comes, and Velero with its limits raised.
//!
//! One server runs at a time, started anew for each round. Each backs up the same cluster into the
//! same S3 server, and is timed from outside in the same way.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bowline_api::location::LocationPhase;
use bowline_api::{Backup, BackupPhase, BackupStatus, BackupStorageLocation};
use bowline_testbed::apply::apply;
use bowline_testbed::process::Process;
use bowline_testbed::{ControlPlane, S3, Velero, s3, velero};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde_json::json;

use crate::measure::{self, Watch};

const LOCATION: &str = velero::LOCATION;

/// Where Bowline works; Velero has its own.
const BOWLINE_NAMESPACE: &str = "bowline";

/// What is commonly raised when Velero is too slow.
const TUNED: [&str; 3] =
    ["--client-qps=1000", "--client-burst=2000", "--item-block-worker-count=4"];

const START_LIMIT: Duration = Duration::from_mins(2);
const BACKUP_LIMIT: Duration = Duration::from_hours(1);
const POLL: Duration = Duration::from_millis(50);

/// A server that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Bowline,
    Velero,
    VeleroTuned,
}

/// What all contenders work on.
pub(crate) struct Stage {
    pub(crate) s3: S3,
    pub(crate) plane: ControlPlane,
    pub(crate) client: Client,
    /// The binary that is measured.
    pub(crate) bowline: PathBuf,
    /// The process of the API server.
    pub(crate) api_server: u32,
    /// How many objects a backup must hold at least.
    pub(crate) objects: usize,
}

/// What one backup took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Run {
    /// From the creation of the Backup to its last phase.
    pub(crate) wall_s: f64,
    /// Of the server and its plugins.
    pub(crate) cpu_s: f64,
    /// The same, at one time.
    pub(crate) peak_rss_bytes: u64,
    /// As the Backup counts them.
    pub(crate) items: u64,
    /// Of the tarball.
    pub(crate) bytes: u64,
    pub(crate) apiserver_cpu_s: f64,
}

/// A running server. Dropping it ends it.
struct Server {
    process: Kept,
    namespace: &'static str,
    /// The folder of its bucket.
    bucket: PathBuf,
}

enum Kept {
    Bowline(Process),
    Velero(Velero),
}

impl Contender {
    /// Its name in the results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bowline => "bowline",
            Self::Velero => "velero",
            Self::VeleroTuned => "velero_tuned",
        }
    }

    /// Starts the server, takes one backup named `name` and ends the server.
    pub(crate) async fn backup(self, stage: &Stage, name: &str) -> anyhow::Result<Run> {
        let server = self.start(stage).await;
        let server = server.with_context(|| format!("cannot start {}", self.name()))?;
        measure::until_quiet().await;
        server.backup(stage, name).await.with_context(|| format!("{} failed", self.name()))
    }

    async fn start(self, stage: &Stage) -> anyhow::Result<Server> {
        match self {
            Self::Bowline => start_bowline(stage).await,
            Self::Velero => start_velero(stage, &[]).await,
            Self::VeleroTuned => start_velero(stage, &TUNED).await,
        }
    }
}

impl Server {
    fn pid(&self) -> u32 {
        match &self.process {
            Kept::Bowline(process) => process.pid(),
            Kept::Velero(velero) => velero.pid(),
        }
    }

    async fn backup(&self, stage: &Stage, name: &str) -> anyhow::Result<Run> {
        let backups: Api<Backup> = Api::namespaced(stage.client.clone(), self.namespace);
        let backup = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "storageLocation": LOCATION,
                // Without it Velero leaves most cluster-scoped kinds out.
                "includeClusterResources": true,
            },
        }))?;
        let (watch, api_server) = (Watch::start(self.pid()), Watch::start(stage.api_server));
        let started = Instant::now();
        backups.create(&PostParams::default(), &backup).await.context("cannot create a Backup")?;
        let status = self.until_over(&backups, name, started).await?;
        let wall_s = started.elapsed().as_secs_f64();
        let (usage, api_server) = (watch.stop()?, api_server.stop()?);

        let items = items_of(&status)?;
        ensure!(
            items >= stage.objects as u64,
            "the backup holds {items} items, of {} that were created",
            stage.objects
        );
        Ok(Run {
            wall_s,
            cpu_s: usage.cpu_s,
            peak_rss_bytes: usage.peak_rss_bytes,
            items,
            bytes: tarball_bytes(&self.bucket, name)?,
            apiserver_cpu_s: api_server.cpu_s,
        })
    }

    async fn until_over(
        &self,
        backups: &Api<Backup>,
        name: &str,
        started: Instant,
    ) -> anyhow::Result<BackupStatus> {
        loop {
            let status = backups.get(name).await.context("cannot read the Backup")?.status;
            if let Some(status) = status
                && status.phase.as_ref().is_some_and(BackupPhase::is_terminal)
            {
                return Ok(status);
            }
            ensure!(measure::is_running(self.pid()), "the server ended during the backup");
            ensure!(started.elapsed() < BACKUP_LIMIT, "the backup took more than an hour");
            tokio::time::sleep(POLL).await;
        }
    }
}

/// The items of a backup that is complete, or why it is not.
fn items_of(status: &BackupStatus) -> anyhow::Result<u64> {
    if status.phase != Some(BackupPhase::Completed) {
        let phase = status.phase.as_ref().map(ToString::to_string).unwrap_or_default();
        let validation: Vec<&str> = status.validation_errors.iter().map(String::as_str).collect();
        let reasons = [&[status.failure_reason.as_str()], &validation[..]].concat().join(" ");
        bail!(
            "the backup is {phase}, with {} errors and {} warnings: {reasons}",
            status.errors,
            status.warnings
        );
    }
    let items = status.progress.as_ref().map(|progress| progress.items_backed_up);
    let items = items.context("the backup is Completed and has no progress")?;
    u64::try_from(items).context("the backup counts less than nothing")
}

fn tarball_bytes(bucket: &Path, name: &str) -> anyhow::Result<u64> {
    let tarball = bucket.join(format!("backups/{name}/{name}.tar.gz"));
    let found = tarball.metadata().context("the backup is Completed and has no tarball")?;
    Ok(found.len())
}

async fn start_velero(stage: &Stage, arguments: &[&str]) -> anyhow::Result<Server> {
    forget_location(&stage.client, velero::NAMESPACE).await?;
    let arguments = arguments.iter().map(ToString::to_string).collect();
    let options = velero::Options { arguments, ..velero::Options::default() };
    let velero = Velero::start(&stage.plane, &stage.s3, options).await?;
    let bucket = velero.bucket().to_owned();
    Ok(Server { process: Kept::Velero(velero), namespace: velero::NAMESPACE, bucket })
}

async fn start_bowline(stage: &Stage) -> anyhow::Result<Server> {
    let (bed, namespace) = (stage.plane.bed(), BOWLINE_NAMESPACE);
    let bucket = stage.s3.create_bucket(namespace).context("cannot create a bucket")?;
    forget_location(&stage.client, namespace).await?;
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "BackupStorageLocation",
            "metadata": {"name": LOCATION, "namespace": namespace},
            "spec": {
                "default": true,
                "provider": "aws",
                "objectStorage": {"bucket": namespace},
                "config": {
                    "region": s3::REGION,
                    "s3ForcePathStyle": "true",
                    "s3Url": stage.s3.url(),
                },
            },
        }),
    ] {
        apply(&stage.client, object).await?;
    }
    let scratch = bed.subdir("bowline").context("cannot create a folder")?;
    bed.subdir("bowline/plugins").context("cannot create a folder")?;
    let mut command = Command::new(&stage.bowline);
    command
        .arg("server")
        .arg(format!("--kubeconfig={}", stage.plane.kubeconfig().display()))
        .arg(format!("--namespace={namespace}"))
        // Without plugins: the store for S3 is built in.
        .arg(format!("--plugin-dir={}", scratch.join("plugins").display()))
        .env("HOME", &scratch)
        .env("TMPDIR", &scratch)
        .env("VELERO_SCRATCH_DIR", &scratch)
        .env("AWS_SHARED_CREDENTIALS_FILE", stage.s3.credentials_file())
        .env_remove("AWS_PROFILE")
        .current_dir(&scratch);
    let mut process = Process::start(bed, "bowline", command)?;
    process.until(START_LIMIT, || is_available(&stage.client, namespace)).await?;
    Ok(Server { process: Kept::Bowline(process), namespace, bucket })
}

/// Removes the storage location of a server before this one, which says that it is available.
async fn forget_location(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let locations: Api<BackupStorageLocation> = Api::namespaced(client.clone(), namespace);
    match locations.delete(LOCATION, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error).context("cannot remove the storage location"),
    }
}

async fn is_available(client: &Client, namespace: &str) -> Option<()> {
    let locations: Api<BackupStorageLocation> = Api::namespaced(client.clone(), namespace);
    let phase = locations.get(LOCATION).await.ok()?.status?.phase?;
    (phase == LocationPhase::Available).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: serde_json::Value) -> BackupStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_a_completed_backup_has_items() {
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
