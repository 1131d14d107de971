//! The container runtime of the node: where containerd, runc, the network plugins and a static
//! busybox come from.
//!
//! Looked for in the folder of [`env::ASSETS`], among the installed programs, and in the user's
//! cache; else their Debian packages are downloaded and unpacked into that cache. Nothing is
//! installed on the machine.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::env;
use crate::gobuild::{self, Cache};
use crate::lock;
use crate::say::say;

const PACKAGES: [&str; 4] = ["containerd", "runc", "containernetworking-plugins", "busybox-static"];

/// What the node runs containers with.
#[derive(Debug)]
pub(super) struct Runtime {
    pub(super) containerd: PathBuf,
    pub(super) ctr: PathBuf,
    pub(super) runc: PathBuf,
    pub(super) cni_plugins: PathBuf,
    pub(super) busybox: PathBuf,
}

/// Why there is no container runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not found, and not to be had from Debian's packages either.
    #[error(
        "the real node needs {packages}, and `apt-get download` failed: {reason}; install them, or set {assets} to a folder that has them",
        packages = PACKAGES.join(", "),
        assets = env::ASSETS
    )]
    Missing {
        /// What the tool said.
        reason: String,
    },
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] gobuild::Error),
}

/// Finds the runtime, downloading it if need be.
pub(super) async fn locate() -> Result<Runtime, Error> {
    let unpacked = Cache::of_user()?.root().join("debian");
    if let Some(runtime) = find(&unpacked) {
        return Ok(runtime);
    }
    download(&unpacked).await.map_err(|error| Error::Missing { reason: error.to_string() })?;
    find(&unpacked).ok_or_else(|| Error::Missing { reason: "files are missing".to_owned() })
}

/// The runtime if every part of it is somewhere. A busybox that needs libraries would not run in an
/// otherwise empty image, so only those that say that they are static count.
fn find(unpacked: &Path) -> Option<Runtime> {
    let assets = env::get(env::ASSETS).map(PathBuf::from);
    let roots = [Path::new("/"), unpacked];
    let file = |name: &str| {
        let given = assets.iter().map(|folder| folder.join(name));
        let installed = roots.iter().flat_map(|root| {
            ["usr/local/bin", "usr/bin", "usr/sbin", "bin"]
                .map(|folder| root.join(folder).join(name))
        });
        given.chain(installed).find(|path| path.is_file())
    };
    let cni = |folder: &PathBuf| {
        ["bridge", "host-local", "loopback"].iter().all(|name| folder.join(name).is_file())
    };
    let cni_folders = roots
        .iter()
        .flat_map(|root| ["usr/lib/cni", "opt/cni/bin"].map(|folder| root.join(folder)));
    let containerd = file("containerd")?;
    containerd.with_file_name("containerd-shim-runc-v2").is_file().then_some(())?;
    Some(Runtime {
        ctr: file("ctr")?,
        runc: file("runc")?,
        cni_plugins: assets.clone().into_iter().chain(cni_folders).find(cni)?,
        busybox: Some(unpacked.join("bin/busybox")).filter(|path| path.is_file())?,
        containerd,
    })
}

/// Downloads the packages and unpacks them, whole or not at all.
async fn download(unpacked: &Path) -> io::Result<()> {
    let parent = unpacked.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent)?;
    let _lock = lock::acquire(&parent.join("debian.lock"), "Debian packages").await?;
    if unpacked.exists() {
        return Ok(());
    }
    say(&format!("downloading Debian packages into {}: {}", parent.display(), PACKAGES.join(", ")));
    let work = tempfile::tempdir_in(parent)?;
    let mut get = Command::new("apt-get");
    get.arg("download").args(PACKAGES).current_dir(work.path());
    if run(&mut get).await.is_err() {
        // A machine that has never updated its list of packages knows none.
        run(Command::new("apt-get").arg("update")).await?;
        run(&mut get).await?;
    }
    let root = work.path().join("root");
    for entry in std::fs::read_dir(work.path())? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&root)).await?;
        }
    }
    std::fs::rename(&root, unpacked)
}

async fn run(command: &mut Command) -> io::Result<()> {
    let program = command.as_std().get_program().display().to_string();
    let output = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(text.lines().last().unwrap_or("it failed").to_owned()))
}
