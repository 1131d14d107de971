//! Velero itself, run as a server outside the cluster: the reference for compatibility.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use nix::fcntl::{Flock, FlockArg};
use serde_json::json;
use tokio::time::Instant;

use crate::apply::apply;
use crate::process::Process;
use crate::program::{self, Program};
use crate::{Bed, ControlPlane, Error, S3, s3};

/// Namespace of the server.
pub const NAMESPACE: &str = "velero";

/// Name of its storage location, and of its bucket.
pub const LOCATION: &str = "default";
const BUCKET: &str = "velero";

const START_TIMEOUT: Duration = Duration::from_mins(2);

/// Longest wait for another Velero server to end.
const PORT_LOCK_TIMEOUT: Duration = Duration::from_mins(20);

/// Options of a Velero server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Plugins in addition to the one for S3.
    pub plugins: Vec<PathBuf>,
    /// Environment variables for the server, and so for its plugins.
    pub environment: Vec<(OsString, OsString)>,
    /// Flags of `velero server`, besides those that it needs here.
    pub arguments: Vec<String>,
}

/// Running Velero server. Dropping it ends it, including its plugin processes.
#[derive(Debug)]
pub struct Velero {
    // Declared first: the process ends before the next server may start.
    process: Process,
    _port_lock: Flock<File>,
    binary: PathBuf,
    kubeconfig: PathBuf,
    bucket: PathBuf,
    bed: Bed,
}

impl Velero {
    /// CustomResourceDefinitions of Velero, as its `install` command prints them.
    pub async fn crds() -> Result<String, Error> {
        let [binary] = program::locate([Program::Velero]).await?;
        let output = tokio::process::Command::new(&binary)
            .args(["install", "--crds-only", "--dry-run", "-o", "yaml"])
            .kill_on_drop(true)
            .output()
            .await
            .map_err(Error::io("run", &binary))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Failed { program: "velero install", reason });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a server for a cluster in which the definitions are already installed, with a storage location in `s3`,
    /// and waits until that location is available.
    pub async fn start(plane: &ControlPlane, s3: &S3, options: Options) -> Result<Self, Error> {
        let [binary, aws] = program::locate([Program::Velero, Program::VeleroPluginForAws]).await?;
        let port_lock = acquire_port_lock().await?;
        let bed = Bed::new()?;
        let plugins = bed.subdir("plugins").map_err(Error::io("create", bed.dir()))?;
        for plugin in options.plugins.iter().chain([&aws]) {
            let name = plugin.file_name().unwrap_or(plugin.as_os_str());
            symlink(plugin, plugins.join(name)).map_err(Error::io("link", plugin))?;
        }
        let bucket = s3.create_bucket(BUCKET).map_err(Error::io("create bucket in", bed.dir()))?;
        let client = plane.client().await?;
        for object in setup_objects(s3) {
            apply(&client, object).await?;
        }

        let kubeconfig = plane.kubeconfig().to_owned();
        let mut command = velero_command(&binary, &kubeconfig, bed.dir());
        command
            .arg("server")
            .arg(format!("--plugin-dir={}", plugins.display()))
            .args(["--metrics-address=127.0.0.1:0", "--profiler-address=127.0.0.1:0"])
            .args(options.arguments)
            .env("VELERO_SCRATCH_DIR", bed.dir())
            // Its plugins create their sockets there, and leave them when they are killed.
            .env("TMPDIR", bed.dir())
            .env("AWS_SHARED_CREDENTIALS_FILE", s3.credentials_file())
            .envs(options.environment)
            .current_dir(bed.dir());
        let mut process = Process::start(&bed, "velero", command)?;
        process.wait_until(START_TIMEOUT, || is_available(&client)).await?;
        Ok(Self { process, _port_lock: port_lock, binary, kubeconfig, bucket, bed })
    }

    /// Command line of Velero for this server, ready for arguments.
    pub fn command(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::from(velero_command(
            &self.binary,
            &self.kubeconfig,
            self.bed.dir(),
        ));
        command.kill_on_drop(true);
        command
    }

    /// Process id of the server; its plugins are children of it.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Folder with the content of its bucket.
    pub fn bucket(&self) -> &Path {
        &self.bucket
    }
}

/// Waits for the lock on port 8080: Velero listens on it regardless of its flags, so only one server can run on a
/// machine. A process that dies releases the lock.
async fn acquire_port_lock() -> Result<Flock<File>, Error> {
    let path = std::env::temp_dir().join(format!("bowline-velero-{}.turn", nix::unistd::getuid()));
    let file = File::create(&path).map_err(Error::io("create", &path))?;
    let mut file = Some(file);
    let deadline = Instant::now() + PORT_LOCK_TIMEOUT;
    while let Some(open) = file.take() {
        match Flock::lock(open, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((open, _)) if Instant::now() < deadline => file = Some(open),
            Err((_, error)) => return Err(Error::io("lock", &path)(error.into())),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Err(Error::Failed { program: "velero", reason: "another Velero holds the lock".to_owned() })
}

/// `HOME` is the bed, to keep the user's own settings out.
fn velero_command(binary: &Path, kubeconfig: &Path, home: &Path) -> Command {
    let mut command = Command::new(binary);
    command
        .env("HOME", home)
        .env("KUBECONFIG", kubeconfig)
        .env("VELERO_NAMESPACE", NAMESPACE)
        .env_remove("AWS_PROFILE");
    command
}

fn setup_objects(s3: &S3) -> [serde_json::Value; 3] {
    let labels = json!({"deploy": "velero"});
    [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "BackupStorageLocation",
            "metadata": {"name": LOCATION, "namespace": NAMESPACE},
            "spec": {
                "default": true,
                "provider": "aws",
                "objectStorage": {"bucket": BUCKET},
                "config": {
                    "region": s3::REGION,
                    "s3ForcePathStyle": "true",
                    "s3Url": s3.url(),
                },
            },
        }),
        // Velero's restore actions read the image of this Deployment; nothing runs in it.
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "velero", "namespace": NAMESPACE},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "velero", "image": "velero/velero:v1.18.3"}]},
                },
            },
        }),
    ]
}

async fn is_available(client: &Client) -> Option<()> {
    let kind = GroupVersionKind::gvk("velero.io", "v1", "BackupStorageLocation");
    let resource = ApiResource::from_gvk(&kind);
    let locations: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
    let location = locations.get(LOCATION).await.ok()?;
    (location.data.pointer("/status/phase")?.as_str()? == "Available").then_some(())
}
