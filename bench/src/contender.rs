//! Contenders: Bowline, another build of it, Velero with its defaults, and Velero with its limits raised.
//!
//! One server runs at a time, started anew for each round. All use the same S3 server, and are timed from outside in
//! the same way.

use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bowline_api::BackupStorageLocation;
use bowline_api::location::LocationPhase;
use bowline_testbed::apply::apply;
use bowline_testbed::process::Process;
use bowline_testbed::{Velero, port, s3, velero};
use kube::api::DeleteParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::bench_env::BenchEnv;
use crate::measure;

/// Storage location of every server.
pub(crate) const LOCATION: &str = velero::LOCATION;

/// Namespace of Bowline; Velero has its own.
pub(crate) const BOWLINE_NAMESPACE: &str = "bowline";

/// Flags that are commonly raised when Velero is too slow.
const TUNED_VELERO_FLAGS: [&str; 3] =
    ["--client-qps=1000", "--client-burst=2000", "--item-block-worker-count=4"];

const START_TIMEOUT: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Measured server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Bowline,
    /// Another build of Bowline, for comparison.
    Baseline,
    Velero,
    VeleroTuned,
}

/// Bucket that Bowline uses. Velero has only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bucket {
    /// A bucket that Velero does not read.
    Own,
    /// Velero's bucket, so that both find the same backups.
    Shared,
}

/// Running server. Dropping it ends it.
pub(crate) struct Server {
    process: ServerProcess,
    /// Namespace of the server.
    pub(crate) namespace: &'static str,
    /// Folder of its bucket.
    bucket: PathBuf,
    /// Address of the metrics of Bowline.
    pub(crate) metrics: Option<SocketAddr>,
}

enum ServerProcess {
    Bowline(Process),
    Velero(Velero),
}

impl Contender {
    /// Name in the results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bowline => "bowline",
            Self::Baseline => "baseline",
            Self::Velero => "velero",
            Self::VeleroTuned => "velero_tuned",
        }
    }

    /// Starts the server, and waits until its storage location is available.
    pub(crate) async fn start(self, env: &BenchEnv, bucket: Bucket) -> anyhow::Result<Server> {
        let started = match self {
            Self::Bowline => start_bowline(env, &env.binaries.bowline, bucket).await,
            Self::Baseline => match &env.binaries.baseline {
                Some(binary) => start_bowline(env, binary, bucket).await,
                None => bail!("there is no other build"),
            },
            Self::Velero => start_velero(env, &[]).await,
            Self::VeleroTuned => start_velero(env, &TUNED_VELERO_FLAGS).await,
        };
        started.with_context(|| format!("cannot start {}", self.name()))
    }
}

impl Bucket {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "bowline",
            Self::Shared => "velero",
        }
    }
}

impl Server {
    /// Process of the server, the parent of its plugins.
    pub(crate) fn pid(&self) -> u32 {
        match &self.process {
            ServerProcess::Bowline(process) => process.pid(),
            ServerProcess::Velero(velero) => velero.pid(),
        }
    }

    /// Archive of a backup.
    pub(crate) fn tarball(&self, backup: &str) -> PathBuf {
        self.bucket.join(format!("backups/{backup}/{backup}.tar.gz"))
    }

    /// Reads an object repeatedly, until `outcome` returns a value for it.
    pub(crate) async fn wait_until<K, T>(
        &self,
        api: &Api<K>,
        name: &str,
        limit: Duration,
        outcome: impl Fn(K) -> Option<T>,
    ) -> anyhow::Result<T>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let started = Instant::now();
        loop {
            let found = api.get_opt(name).await.with_context(|| format!("cannot read {name}"))?;
            if let Some(outcome) = found.and_then(&outcome) {
                return Ok(outcome);
            }
            ensure!(measure::is_running(self.pid()), "the server ended before {name} did");
            if started.elapsed() >= limit {
                bail!("{name} was not through after {} s", limit.as_secs());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until an object is gone.
    pub(crate) async fn wait_until_gone<K>(
        &self,
        api: &Api<K>,
        name: &str,
        limit: Duration,
    ) -> anyhow::Result<()>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let started = Instant::now();
        while api.get_opt(name).await.with_context(|| format!("cannot read {name}"))?.is_some() {
            ensure!(measure::is_running(self.pid()), "the server ended before {name} was gone");
            ensure!(started.elapsed() < limit, "{name} was not gone after {} s", limit.as_secs());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

/// Reason why a run did not complete, in one line.
pub(crate) fn run_failure_text(
    phase: &str,
    [errors, warnings]: [i64; 2],
    failure: &str,
    validation_errors: &[String],
) -> String {
    let refused = validation_errors.join(" ");
    format!("it is {phase}, with {errors} errors and {warnings} warnings: {failure}{refused}")
}

async fn start_velero(env: &BenchEnv, arguments: &[&str]) -> anyhow::Result<Server> {
    delete_location(&env.client, velero::NAMESPACE).await?;
    let csi = env.has_csi.then_some("--features=EnableCSI");
    let arguments = arguments.iter().copied().chain(csi).map(str::to_owned).collect();
    let options = velero::Options { arguments, ..velero::Options::default() };
    let velero = Velero::start(&env.plane, &env.s3, options).await?;
    let bucket = velero.bucket().to_owned();
    let process = ServerProcess::Velero(velero);
    Ok(Server { process, namespace: velero::NAMESPACE, bucket, metrics: None })
}

async fn start_bowline(env: &BenchEnv, binary: &Path, bucket: Bucket) -> anyhow::Result<Server> {
    let (bed, namespace) = (&env.servers, BOWLINE_NAMESPACE);
    let folder = env.s3.create_bucket(bucket.name()).context("cannot create a bucket")?;
    delete_location(&env.client, namespace).await?;
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "BackupStorageLocation",
            "metadata": {"name": LOCATION, "namespace": namespace},
            "spec": {
                "default": true,
                "provider": "aws",
                "objectStorage": {"bucket": bucket.name()},
                "config": {
                    "region": s3::REGION,
                    "s3ForcePathStyle": "true",
                    "s3Url": env.s3.url(),
                },
            },
        }),
    ] {
        apply(&env.client, object).await?;
    }
    let scratch = bed.subdir("bowline").context("cannot create a directory")?;
    bed.subdir("bowline/plugins").context("cannot create a directory")?;
    // The default port may belong to another server on this machine.
    let [port] = port::free_ports().context("cannot find a free port")?;
    let metrics = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut command = bowline_command(env, binary, namespace, &scratch);
    command.arg(format!("--metrics-address={metrics}"));
    let mut process = Process::start(bed, "bowline", command)?;
    process.wait_until(START_TIMEOUT, || is_available(&env.client, namespace)).await?;
    let process = ServerProcess::Bowline(process);
    Ok(Server { process, namespace, bucket: folder, metrics: Some(metrics) })
}

fn bowline_command(env: &BenchEnv, binary: &Path, namespace: &str, scratch: &Path) -> Command {
    let mut command = Command::new(binary);
    command
        .arg("server")
        .arg(format!("--kubeconfig={}", env.plane.kubeconfig().display()))
        .arg(format!("--namespace={namespace}"))
        // Without plugins: the store for S3 is built in.
        .arg(format!("--plugin-dir={}", scratch.join("plugins").display()))
        .env("HOME", scratch)
        .env("TMPDIR", scratch)
        .env("VELERO_SCRATCH_DIR", scratch)
        .env("AWS_SHARED_CREDENTIALS_FILE", env.s3.credentials_file())
        .env_remove("AWS_PROFILE")
        .current_dir(scratch);
    command
}

/// Removes the storage location of an earlier server, whose status would still be Available.
async fn delete_location(client: &Client, namespace: &str) -> anyhow::Result<()> {
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
