//! The container runtime of the node: containerd, runc, the network plugins and a static busybox.
//!
//! Searched in the folder of [`env::ASSETS`], among the installed programs, and in the user's cache; else their Debian
//! packages are downloaded and unpacked into that cache. Nothing is installed on the machine.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::console::print_line;
use crate::env;
use crate::gobuild::{self, Cache};
use crate::lock;

const PACKAGES: [&str; 4] = ["containerd", "runc", "containernetworking-plugins", "busybox-static"];

/// Folders of installed programs, below the root of a system.
const PROGRAM_FOLDERS: [&str; 4] = ["usr/local/bin", "usr/bin", "usr/sbin", "bin"];

/// Longest download.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_mins(5);

/// Programs with which the node runs containers.
#[derive(Debug)]
pub(super) struct Runtime {
    pub(super) containerd: PathBuf,
    pub(super) ctr: PathBuf,
    pub(super) runc: PathBuf,
    pub(super) cni_plugins: PathBuf,
    pub(super) busybox: PathBuf,
}

/// Failure to find a container runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither installed nor available from Debian's packages.
    #[error(
        "the real node needs {packages}, and `apt-get download` failed: {reason}; install them, or \
         set {assets} to a directory that has them",
        packages = PACKAGES.join(", "),
        assets = env::ASSETS
    )]
    Missing {
        /// Reason given by the tool.
        reason: String,
    },
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] gobuild::Error),
}

/// Finds the runtime, and downloads it if necessary.
pub(super) async fn locate() -> Result<Runtime, Error> {
    let unpacked = Cache::of_user()?.root().join(format!("debian-{}", release()));
    if let Some(runtime) = find(&unpacked) {
        return Ok(runtime);
    }
    download(&unpacked).await.map_err(|error| Error::Missing { reason: error.to_string() })?;
    find(&unpacked).ok_or_else(|| Error::Missing { reason: "files are missing".to_owned() })
}

/// Release and processor of the system, since packages of another would not run.
fn release() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    format!("{}-{}", name.unwrap_or("unknown").trim_matches('"'), std::env::consts::ARCH)
}

/// True if a program needs no libraries: only such a program runs in an otherwise empty image. Its program headers
/// (ELF, 64 bits) then name no interpreter.
fn is_static(program: &Path) -> bool {
    const INTERPRETER: [u8; 4] = 3_u32.to_le_bytes();
    let Ok(elf) = std::fs::read(program) else { return false };
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = elf.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte)))
    };
    let (Some(start), Some(size), Some(count)) =
        (number(0x20, 8), number(0x36, 2), number(0x38, 2))
    else {
        return false;
    };
    elf.starts_with(b"\x7fELF")
        && (0..count).all(|n| elf.get(start + n * size..start + n * size + 4) != Some(&INTERPRETER))
}

/// Runtime, if every part of it is found.
fn find(unpacked: &Path) -> Option<Runtime> {
    let assets = env::get(env::ASSETS).map(PathBuf::from);
    let roots = [Path::new("/"), unpacked];
    let files = |name: &'static str| {
        let given = assets.iter().map(move |folder| folder.join(name));
        let installed = roots
            .iter()
            .flat_map(move |root| PROGRAM_FOLDERS.map(|folder| root.join(folder).join(name)));
        given.chain(installed).filter(|path| path.is_file())
    };
    let file = |name| files(name).next();
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
        busybox: files("busybox").find(|path| is_static(path))?,
        containerd,
    })
}

/// Downloads the packages and unpacks them, completely or not at all.
async fn download(unpacked: &Path) -> io::Result<()> {
    let parent = unpacked.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent)?;
    let _lock = lock::acquire(&parent.join("debian.lock"), "the download of packages").await?;
    if find(unpacked).is_some() {
        return Ok(());
    }
    if unpacked.exists() {
        // Left over from another version of this program, which needed less.
        std::fs::remove_dir_all(unpacked)?;
    }
    print_line(&format!(
        "downloading Debian packages into {}: {}",
        parent.display(),
        PACKAGES.join(", ")
    ));
    let work = tempfile::tempdir_in(parent)?;
    let mut get = Command::new("apt-get");
    get.arg("download").args(PACKAGES).current_dir(work.path());
    if run(&mut get).await.is_err() {
        // A machine that has never updated its package list finds no packages.
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
    let ran = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(DOWNLOAD_TIMEOUT, ran)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, format!("{program} takes too long")))?
        .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(text.lines().last().unwrap_or("no output").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_an_interpreter_is_not_static() {
        assert!(!is_static(Path::new("/bin/sh")));
        assert!(!is_static(Path::new("/etc/os-release")));
        assert!(!is_static(Path::new("/no/such/file")));
    }
}
