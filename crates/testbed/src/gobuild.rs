//! Builds programs from pinned Go modules into a cache that all clones of this project share.
//!
//! # Guarantees
//! The cache contains a program completely or not at all: it is built elsewhere and moved in. A lock per module makes
//! parallel tests build once; those that wait print a message. The folder's name contains the version and a hash of the
//! module's files, so that a change of either never finds an old binary.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::Bed;
use crate::console::print_line;
use crate::env;
use crate::lock;
use crate::program::{Module, Program};

/// Interval of progress messages where there is no terminal to draw on.
const PLAIN_REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Number of last lines quoted from a failed build.
const QUOTED_LINES: usize = 5;

/// Longest download of one module.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_mins(10);

/// Failure to build a program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither a cache folder nor a home folder is known.
    #[error("no directory for built binaries: set HOME, or {} to a directory", env::CACHE)]
    NoCache,
    /// There is no Go toolchain.
    #[error(
        "`go` was not found, and {programs} must be built: install Go 1.26 or newer, or set {} to \
         a directory that has them",
        env::ASSETS
    )]
    NoGo {
        /// Programs to build.
        programs: String,
    },
    /// The cache cannot be used.
    #[error("cannot use the cache {}: {reason}; set {} to a directory that you can write to", path.display(), env::CACHE)]
    Cache {
        /// File or folder.
        path: PathBuf,
        /// Reason given by the system.
        reason: io::Error,
    },
    /// The Go toolchain failed.
    #[error("cannot build {programs} with `go build`: {reason}")]
    Build {
        /// Programs to build.
        programs: String,
        /// Last lines of Go's output.
        reason: String,
    },
    /// A module could not be downloaded.
    #[error("cannot download {module} with `go mod download`: {reason}")]
    Download {
        /// Module path.
        module: String,
        /// Reason given by Go.
        reason: String,
    },
}

/// Folder of built programs.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Cache of the user: [`env::CACHE`], else `bowline` in the XDG cache folder.
    pub fn of_user() -> Result<Self, Error> {
        let home = || env::get("HOME").map(|home| Path::new(&home).join(".cache"));
        let xdg = || env::get("XDG_CACHE_HOME").map(PathBuf::from);
        env::get(env::CACHE)
            .map(PathBuf::from)
            .or_else(|| xdg().or_else(home).map(|cache| cache.join("bowline")))
            .map(|root| Self::at_folder(&root.join("testbed")))
            .ok_or(Error::NoCache)
    }

    /// Cache in the given folder.
    pub fn at_folder(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Folder of the cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Path of a program once it is built.
    pub fn path(&self, program: Program) -> PathBuf {
        self.module_folder(program.module()).join(program.file_name())
    }

    /// Builds those of `programs` that are missing, module by module.
    ///
    /// Dropping the future ends the build.
    pub(crate) async fn build(&self, programs: &[Program]) -> Result<(), Error> {
        let mut modules: BTreeMap<&str, Vec<Program>> = BTreeMap::new();
        for &program in programs {
            modules.entry(program.module().name).or_default().push(program);
        }
        for programs in modules.values() {
            self.build_module(programs).await?;
        }
        Ok(())
    }

    fn module_folder(&self, module: &Module) -> PathBuf {
        let mut hash = Sha256::new();
        for (name, text) in module.files {
            hash.update(name);
            hash.update(text);
        }
        hash.update(module.ldflags);
        let hash = hex::encode(hash.finalize());
        let short = hash.get(..8).unwrap_or(&hash);
        self.root.join(format!("{}-{}-{short}", module.name, module.version))
    }

    /// All of `programs` belong to one module.
    async fn build_module(&self, programs: &[Program]) -> Result<(), Error> {
        let Some(first) = programs.first() else { return Ok(()) };
        let module = first.module();
        let folder = self.module_folder(module);
        std::fs::create_dir_all(&folder).map_err(cache_error(&folder))?;
        let purpose = format!("the build of {} {}", module.name, module.version);
        let _lock =
            lock::acquire(&folder.join(".lock"), &purpose).await.map_err(cache_error(&folder))?;
        let missing: Vec<Program> =
            programs.iter().copied().filter(|&program| !self.path(program).is_file()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let bed = create_build_bed(module, &folder, &names(&missing))?;
        run_go(module, &missing, &bed).await?;
        for program in missing {
            let built = bed.dir().join("out").join(default_name(program.package()));
            let path = self.path(program);
            std::fs::rename(&built, &path).map_err(cache_error(&path))?;
        }
        Ok(())
    }

    /// Copies into the cache the files in one folder of a module that one of these modules requires, downloaded and
    /// checked by Go.
    pub(crate) async fn fetch(
        &self,
        module: &Module,
        required: &str,
        files: &str,
    ) -> Result<PathBuf, Error> {
        let folder = self.module_folder(module);
        let copy = folder.join(default_name(files));
        if copy.is_dir() {
            return Ok(copy);
        }
        std::fs::create_dir_all(&folder).map_err(cache_error(&folder))?;
        let purpose = format!("the build of {} {}", module.name, module.version);
        let _lock =
            lock::acquire(&folder.join(".lock"), &purpose).await.map_err(cache_error(&folder))?;
        if copy.is_dir() {
            return Ok(copy);
        }
        let bed = create_build_bed(module, &folder, required)?;
        let source = download(required, &bed).await?.join(files);
        let staging = bed.subdir("out").map_err(cache_error(&folder))?;
        for entry in std::fs::read_dir(&source).map_err(cache_error(&source))? {
            let file = entry.map_err(cache_error(&source))?;
            let target = staging.join(file.file_name());
            std::fs::copy(file.path(), &target).map_err(cache_error(&target))?;
        }
        std::fs::rename(&staging, &copy).map_err(cache_error(&copy))?;
        Ok(copy)
    }
}

/// Creates a bed in the cache, from where a rename into place is possible, with the files of a module: the bed ends Go
/// and removes Go's files, also when this process is killed.
fn create_build_bed(module: &Module, folder: &Path, purpose: &str) -> Result<Bed, Error> {
    let bed = Bed::below(folder).map_err(|error| Error::Build {
        programs: purpose.to_owned(),
        reason: error.to_string(),
    })?;
    for (name, text) in module.files {
        let path = bed.dir().join(name);
        std::fs::write(&path, text).map_err(cache_error(&path))?;
    }
    Ok(bed)
}

/// Downloads a module that the one in the bed requires. Returns the folder of its files.
async fn download(required: &str, bed: &Bed) -> Result<PathBuf, Error> {
    let failed = |reason: String| Error::Download { module: required.to_owned(), reason };
    let ran = Command::new("go")
        .args(["mod", "download", "-json", required])
        .current_dir(bed.dir())
        .env("GOFLAGS", "")
        .env("GOWORK", "off")
        .env(env::BED_ID, bed.id())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(DOWNLOAD_TIMEOUT, ran)
        .await
        .map_err(|_| failed("the download timed out".to_owned()))?
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NoGo { programs: required.to_owned() },
            _ => failed(error.to_string()),
        })?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    answer.get("Dir").and_then(|dir| dir.as_str()).map(PathBuf::from).ok_or_else(|| {
        let stderr_text = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        failed(
            answer.get("Error").and_then(|error| error.as_str()).map_or(stderr_text, str::to_owned),
        )
    })
}

fn cache_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |reason| Error::Cache { path, reason }
}

fn names(programs: &[Program]) -> String {
    programs.iter().map(|program| program.file_name()).collect::<Vec<_>>().join(", ")
}

async fn run_go(module: &Module, programs: &[Program], bed: &Bed) -> Result<(), Error> {
    let names = names(programs);
    let failed = |reason: String| Error::Build { programs: names.clone(), reason };
    let scratch = bed.subdir("tmp").map_err(|error| failed(error.to_string()))?;
    let spawned = Command::new("go")
        .args(["build", "-v", "-ldflags"])
        .arg(format!("-s -w {}", module.ldflags))
        .args(["-o", "out/"])
        .args(programs.iter().map(|program| program.package()))
        .current_dir(bed.dir())
        .env("GOFLAGS", "-buildvcs=false -trimpath")
        .env("GOWORK", "off")
        .env("GOTMPDIR", scratch)
        .env("CGO_ENABLED", "0")
        .env_remove("GOOS")
        .env_remove("GOARCH")
        .env(env::BED_ID, bed.id())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = spawned.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::NoGo { programs: names.clone() },
        _ => failed(error.to_string()),
    })?;
    let mut progress = BuildProgress::start(module, &names);
    let mut last_lines = VecDeque::new();
    if let Some(output) = child.stderr.take() {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            progress.add_line(&line);
            if last_lines.len() == QUOTED_LINES {
                last_lines.pop_front();
            }
            last_lines.push_back(line);
        }
    }
    let succeeded = child.wait().await.is_ok_and(|status| status.success());
    progress.finish(succeeded);
    if succeeded {
        return Ok(());
    }
    Err(failed(Vec::from(last_lines).join("; ")))
}

/// Name that Go gives the program of a package: the last part of its path that is not a version.
fn default_name(package: &str) -> &str {
    let is_version =
        |part: &&str| part.strip_prefix('v').is_some_and(|n| n.chars().all(|c| c.is_ascii_digit()));
    package.rsplit('/').find(|part| !is_version(part)).unwrap_or(package)
}

const PROGRESS_TEMPLATE: &str =
    "{spinner} building {prefix}: {pos} packages, {elapsed} {wide_msg:.dim}";

/// Progress of a build: a changing line on a terminal, a line at intervals elsewhere.
struct BuildProgress {
    bar: Option<ProgressBar>,
    target: String,
    packages: u64,
    started: Instant,
    reported: Instant,
}

impl BuildProgress {
    fn start(module: &Module, names: &str) -> Self {
        let target = format!("{names} ({} {})", module.name, module.version);
        let bar = io::stderr().is_terminal().then(ProgressBar::new_spinner);
        if let Some(bar) = &bar {
            if let Ok(style) = ProgressStyle::with_template(PROGRESS_TEMPLATE) {
                bar.set_style(style);
            }
            bar.set_prefix(target.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
        } else {
            print_line(&format!("building {target}; the first time this takes minutes"));
        }
        let now = Instant::now();
        Self { bar, target, packages: 0, started: now, reported: now }
    }

    /// Adds one line of Go's output: the name of a package, or of a module being downloaded.
    fn add_line(&mut self, line: &str) {
        self.packages += u64::from(!line.starts_with("go: "));
        if let Some(bar) = &self.bar {
            bar.set_position(self.packages);
            bar.set_message(line.to_owned());
        } else if self.reported.elapsed() >= PLAIN_REPORT_INTERVAL {
            self.reported = Instant::now();
            let seconds = self.started.elapsed().as_secs();
            print_line(&format!(
                "building {}: {} packages after {seconds} s",
                self.target, self.packages
            ));
        }
    }

    fn finish(self, succeeded: bool) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        if succeeded {
            print_line(&format!("built {} in {} s", self.target, self.started.elapsed().as_secs()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_suffix_of_a_package_is_not_its_name() {
        assert_eq!(default_name("go.etcd.io/etcd/server/v3"), "server");
        assert_eq!(default_name("sigs.k8s.io/kwok/cmd/kwok"), "kwok");
        assert_eq!(default_name("example.com/versitygw"), "versitygw");
    }

    #[test]
    fn cache_separates_versions() {
        let cache = Cache::at_folder(Path::new("/c"));
        let path = cache.path(Program::Kubectl).display().to_string();
        assert!(path.starts_with("/c/kubernetes-v1.36.3-"), "{path}");
        assert!(path.ends_with("/kubectl"), "{path}");
    }
}
