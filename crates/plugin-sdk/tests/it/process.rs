//! The example binary as a process.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use bowline_plugin_sdk::serde_json::Value;
use bowline_plugin_sdk::{serde_json, tokio};
use bowline_plugin_wire::{Connection, handshake};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};

/// The example, built from the sources as they are.
fn template_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let output = std::process::Command::new(env!("CARGO"))
            .args(["build", "--example=template", "--message-format=json"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let messages = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
        let paths =
            messages.filter_map(|message| Some(message.ok()?["executable"].as_str()?.into()));
        paths.last().expect("cargo names the binary that it has built")
    })
}

fn host_command(folder: &Path) -> Command {
    let mut command = Command::new(template_binary());
    command
        .args(["--features=X", "--log-level", "debug"])
        .env_remove(handshake::COOKIE_ENV)
        .env_remove(handshake::SOCKET_DIR_ENV)
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Starts it as a person does.
pub(crate) async fn run_by_hand() -> Output {
    host_command(Path::new("/tmp")).output().await.unwrap()
}

/// A process of the example that a host has started.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) connection: Connection,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts it with a folder for all that it keeps.
    pub(crate) async fn start(folder: &Path) -> Self {
        let mut child = host_command(folder)
            .envs(handshake::ENVIRONMENT)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).await.unwrap();
        let address = handshake::parse(&line).unwrap();
        assert_eq!(address.path().parent(), Some(folder));
        let connection = Connection::unix(address.path()).await.unwrap();
        Self { child, connection, stdout }
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let id = self.child.id().unwrap().try_into().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), signal).unwrap();
    }

    /// Waits for a clean and early end. Returns the log.
    pub(crate) async fn wait_for_end(mut self) -> Vec<Value> {
        let end = tokio::time::timeout(Duration::from_secs(2), self.child.wait()).await;
        assert!(end.expect("it ends in time").unwrap().success());
        let mut more = String::new();
        self.stdout.read_to_string(&mut more).await.unwrap();
        assert_eq!(more, "", "the handshake is all there is on standard output");
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).await.unwrap();
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}
