//! Kopia's command, built from the fork that Velero pins, with Velero's settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bowline_repository::Repository;
use bowline_repository::blobs::filesystem::FilesystemBlobs;
use bowline_repository::format::Password;
use bowline_testbed::program::{self, Program};
use bowline_testbed::test_deadline;
use jiff::Timestamp;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

/// Longest run of the command.
const TIMEOUT: Duration = Duration::from_mins(5);

/// Velero's default.
pub(crate) const PASSWORD: &str = "static-passw0rd";

/// Kopia's command with a repository in a folder of its own.
pub(crate) struct Kopia {
    binary: PathBuf,
    /// Everything: the repository, configuration, cache, and what tests add.
    folder: TempDir,
}

impl Kopia {
    /// The command, with an empty folder for the repository.
    pub(crate) async fn new() -> Self {
        test_deadline();
        let [binary] = program::locate([Program::Kopia]).await.unwrap();
        let kopia = Self { binary, folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(kopia.repository_folder()).unwrap();
        kopia
    }

    /// The command, with a repository that it made. The flags change the format.
    pub(crate) async fn with_repository(flags: &[&str]) -> Self {
        let kopia = Self::new().await;
        let folder = kopia.repository_folder().display().to_string();
        let create = ["repository", "create", "filesystem", "--path", &folder];
        kopia.run_as_velero(&[&create, flags].concat()).await;
        kopia
    }

    /// Connects to the repository that something else made.
    pub(crate) async fn connect(&self) {
        let folder = self.repository_folder().display().to_string();
        self.run_as_velero(&["repository", "connect", "filesystem", "--path", &folder]).await;
    }

    pub(crate) fn repository_folder(&self) -> PathBuf {
        self.path("repository")
    }

    /// A path in the folder of this test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a snapshot of a folder. Returns its manifest.
    pub(crate) async fn snapshot(&self, folder: &Path) -> Value {
        let folder = folder.display().to_string();
        let output = self.run(&["snapshot", "create", "--json", &folder]).await;
        serde_json::from_str(&output).unwrap()
    }

    /// Runs the command. Returns its standard output.
    pub(crate) async fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.binary)
            .args(arguments)
            .env_clear()
            .env("HOME", self.folder.path())
            .env("KOPIA_PASSWORD", PASSWORD)
            .env("KOPIA_CONFIG_PATH", self.path("repository.config"))
            .env("KOPIA_CACHE_DIRECTORY", self.path("cache"))
            .env("KOPIA_LOG_DIR", self.path("logs"))
            .env("KOPIA_CHECK_FOR_UPDATES", "false")
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(TIMEOUT, output).await.unwrap().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kopia {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Opens the repository with this crate.
    pub(crate) async fn open(&self) -> Repository {
        let blobs = self.blobs().await;
        Repository::open(blobs, &password(), Timestamp::now()).await.unwrap()
    }

    /// The blobs of the repository.
    pub(crate) async fn blobs(&self) -> Arc<FilesystemBlobs> {
        Arc::new(FilesystemBlobs::open(&self.repository_folder()).await.unwrap())
    }

    async fn run_as_velero(&self, arguments: &[&str]) {
        let identity = ["--override-hostname=default", "--override-username=default"];
        self.run(&[arguments, &identity, &["--no-check-for-updates"]].concat()).await;
    }
}

pub(crate) fn password() -> Password {
    Password::new(PASSWORD.to_owned())
}
