//! One plugin process: start, handshake, connection, output, end.
//!
//! # Guarantees
//! - The process answers the handshake within a limit, or is killed and the reason reported.
//! - All its output is read: a full pipe would block it.
//! - The process ends with the host ([`crate::spawn`]), with the last owner of its [`Process`], or
//!   on [`stop`](Process::stop), which takes three times the limit at most. Its own child processes
//!   end with it, too, unless the host is killed: a death signal reaches only the process it is
//!   for.
//! - Its socket is removed when it has ended; a killed Go plugin leaves it behind.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin_wire::{Connection, client, handshake};
use futures::StreamExt as _;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tracing::Instrument as _;

use crate::{Options, log, spawn};

/// Maximum number of bytes that a plugin may write before its handshake is complete.
const HANDSHAKE_MAX: u64 = 4 * 1024;

/// Number of last lines of a plugin that are kept to explain its end.
const LAST_LINES: usize = 8;

/// Time limit for reading the pipes of a process that has ended.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);

/// Maximum length of a line that is quoted in an error.
const QUOTE_CHARS: usize = 300;

/// Reasons why a plugin could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system refused.
    #[error("the process cannot be started")]
    Spawn(#[source] std::io::Error),
    /// The process ended before its handshake.
    #[error("the process ended before its handshake ({status}){}", said(words))]
    Ended {
        /// Its exit status.
        status: String,
        /// Its last output.
        words: String,
    },
    /// No handshake in time.
    #[error("no handshake within {} s{}", waited.as_secs_f32(), said(words))]
    Silent {
        /// The time limit.
        waited: Duration,
        /// Its last output.
        words: String,
    },
    /// Invalid handshake.
    #[error("invalid handshake")]
    Handshake(#[source] handshake::HandshakeError),
    /// The socket named in the handshake does not accept connections.
    #[error("cannot connect to the socket")]
    Connect(#[source] bowline_plugin::Error),
}

impl StartError {
    /// True if a retry will fail as well.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Handshake(_) => true,
            Self::Spawn(error) => {
                matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
                    || error.raw_os_error() == Some(nix::libc::ENOEXEC)
            }
            Self::Ended { .. } | Self::Silent { .. } | Self::Connect(_) => false,
        }
    }
}

fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

/// Progress of the end of a process.
#[derive(Clone, Debug)]
enum ProcessEnd {
    NotYet,
    /// The process is gone, and no call can reach it any more.
    Exited,
    /// Its last output has been read, too. Contains its exit status.
    Reaped(String),
}

/// A running plugin process, connected. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    command: PathBuf,
    connection: Connection,
    end: watch::Receiver<ProcessEnd>,
    kill: Arc<Notify>,
    keeper: AbortHandle,
    last_lines: LastLines,
    stop_limit: Duration,
}

impl Process {
    /// Starts `command` and connects to it. After a failure, none of its processes is left running.
    pub async fn start(command: &Path, options: &Options) -> Result<Self, StartError> {
        let limit = options.limits.start;
        let last_lines = LastLines::default();
        let mut child =
            spawn::spawn(build_command(command, options)).await.map_err(StartError::Spawn)?;
        // From here on every exit from this function kills the whole group.
        let group = child.id().map(GroupKilledWhenDropped);
        let mut drains = JoinSet::new();
        if let Some(stderr) = child.stderr.take() {
            let lines = log_lines(stderr, name_of(command), last_lines.clone());
            drains.spawn(lines.in_current_span());
        }
        let handshake =
            tokio::time::timeout(limit, connect(&mut child, &last_lines, &mut drains, options))
                .await;
        let silent =
            |_| StartError::Silent { waited: limit, words: last_lines.most_informative_line() };
        let (socket, connection) = match handshake.map_err(silent).flatten() {
            Ok(met) => met,
            Err(error) => {
                drop(group);
                let _ = tokio::time::timeout(options.limits.stop, child.kill()).await;
                return Err(error);
            }
        };
        let (note_end, end) = watch::channel(ProcessEnd::NotYet);
        let kill = Arc::new(Notify::new());
        let supervision = supervise(child, Arc::clone(&kill), note_end, drains, (socket, group));
        let keeper = tokio::spawn(supervision).abort_handle();
        Ok(Self {
            command: command.to_owned(),
            connection,
            end,
            kill,
            keeper,
            last_lines,
            stop_limit: options.limits.stop,
        })
    }

    /// The connection for calls.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// True if the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        !matches!(*self.end.borrow(), ProcessEnd::NotYet)
    }

    /// Waits, with a limit, until the process has ended and its last output has been read. Returns
    /// its exit status.
    pub async fn wait_for_end(&self, limit: Duration) -> Option<String> {
        let mut end = self.end.clone();
        let is_over = |end: &ProcessEnd| matches!(end, ProcessEnd::Reaped(_));
        let end = tokio::time::timeout(limit, end.wait_for(is_over)).await.ok()?.ok()?;
        match &*end {
            ProcessEnd::Reaped(status) => Some(status.clone()),
            ProcessEnd::NotYet | ProcessEnd::Exited => None,
        }
    }

    /// The most informative of its last lines.
    pub(crate) fn last_error_line(&self) -> String {
        self.last_lines.most_informative_line()
    }

    /// Asks the process to end, and kills it if it does not.
    pub async fn stop(&self) {
        // Go plugins end before they answer, so an error is not a failure.
        let request = client::shutdown(&self.connection);
        let _ = tokio::time::timeout(self.stop_limit, request).await;
        if self.wait_for_end(self.stop_limit).await.is_none() {
            tracing::warn!(
                command = %self.command.display(),
                "the plugin does not stop; killing its process"
            );
            self.kill.notify_one();
            self.wait_for_end(self.stop_limit).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            // Ends the task that owns the child, which kills it.
            self.keeper.abort();
        }
    }
}

/// The base name, by which logs and users know a plugin binary.
fn name_of(command: &Path) -> String {
    command.file_name().unwrap_or(command.as_os_str()).display().to_string()
}

fn build_command(command: &Path, options: &Options) -> Command {
    let mut prepared = Command::new(command);
    prepared.env_clear().envs(options.inherited_environment.filter(std::env::vars_os()));
    for name in handshake::REMOVED_FROM_ENVIRONMENT {
        prepared.env_remove(name);
    }
    prepared
        .args(&options.arguments)
        .envs(options.environment.iter().map(|(name, value)| (name, value)))
        .envs(handshake::ENVIRONMENT)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Child processes, such as the program of a wrapper script, are in its group.
        .process_group(0)
        .kill_on_drop(true);
    if !options.announces_own_kinds {
        prepared.env_remove(handshake::KINDS_ENV);
    }
    prepared
}

/// Waits until the process accepts calls.
async fn connect(
    child: &mut Child,
    last_lines: &LastLines,
    drains: &mut JoinSet<()>,
    options: &Options,
) -> Result<(RemovedWhenDropped, Connection), StartError> {
    let socket = read_handshake(child, last_lines, drains).await?;
    let connection = Connection::unix(&socket.0).await.map_err(StartError::Connect)?;
    let connection = connection.with_message_limit(options.message_limit);
    // Go answers this call only with the first data, so it is not awaited.
    let stdio = client::output_stream(&connection);
    drains.spawn(stdio.for_each(|_| std::future::ready(())));
    Ok((socket, connection))
}

/// Waits for the handshake; what follows it on standard output is drained.
async fn read_handshake(
    child: &mut Child,
    last_lines: &LastLines,
    drains: &mut JoinSet<()>,
) -> Result<RemovedWhenDropped, StartError> {
    let Some(stdout) = child.stdout.take() else {
        return Err(StartError::Spawn(std::io::Error::other("the process has no standard output")));
    };
    let mut stdout = BufReader::new(stdout);
    let line = first_line(&mut stdout).await.map_err(StartError::Spawn)?;
    if line.is_empty() {
        // The process closed its output: it is about to end, or keeps running without a handshake.
        let status = child.wait().await.map_err(StartError::Spawn)?;
        drain_pipes(drains).await;
        return Err(StartError::Ended {
            status: status.to_string(),
            words: last_lines.most_informative_line(),
        });
    }
    let address = handshake::parse(&line).map_err(StartError::Handshake)?;
    drains.spawn(drain(stdout));
    Ok(RemovedWhenDropped(address.path().to_owned()))
}

/// The first line, up to the maximum length of a handshake.
async fn first_line(stdout: &mut BufReader<ChildStdout>) -> std::io::Result<String> {
    let mut line = Vec::new();
    stdout.take(HANDSHAKE_MAX).read_until(b'\n', &mut line).await?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}

async fn drain(mut output: impl AsyncRead + Unpin) {
    let _ = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
}

/// Logs standard error as events, line by line.
async fn log_lines(stderr: impl AsyncRead + Unpin, plugin: String, last_lines: LastLines) {
    let mut stderr = BufReader::new(stderr);
    let mut reader = log::LogLineReader::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut stderr).take(log::LINE_MAX as u64);
        match limited.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let entry = reader.read(&String::from_utf8_lossy(&line));
        if entry.may_explain_exit() {
            last_lines.add(&entry.message);
        }
        log::emit(&plugin, &entry);
    }
}

/// Owns the child until it has ended.
async fn supervise(
    mut child: Child,
    kill: Arc<Notify>,
    end_sender: watch::Sender<ProcessEnd>,
    mut drains: JoinSet<()>,
    _cleanup_guards: (RemovedWhenDropped, Option<GroupKilledWhenDropped>),
) {
    let status = tokio::select! {
        status = child.wait() => status,
        () = kill.notified() => {
            let _ = child.start_kill();
            child.wait().await
        }
    };
    end_sender.send_replace(ProcessEnd::Exited);
    drain_pipes(&mut drains).await;
    let exit_text = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    end_sender.send_replace(ProcessEnd::Reaped(exit_text));
}

/// Reads the remaining output of a process that has ended. A grandchild may hold the pipes open for
/// ever.
async fn drain_pipes(drains: &mut JoinSet<()>) {
    let rest = async { while drains.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(DRAIN_LIMIT, rest).await;
}

/// Processes that a plugin started and left running. They are killed immediately after the plugin's
/// end, before its process id can be reused.
#[derive(Debug)]
struct GroupKilledWhenDropped(u32);

impl Drop for GroupKilledWhenDropped {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.0.cast_signed()), Signal::SIGKILL);
    }
}

/// The socket of a plugin, which a killed one leaves behind.
#[derive(Debug)]
struct RemovedWhenDropped(PathBuf);

impl Drop for RemovedWhenDropped {
    fn drop(&mut self) {
        // The plugin chose the path, so check that it is a socket.
        let is_socket = std::fs::symlink_metadata(&self.0).is_ok_and(|m| m.file_type().is_socket());
        if is_socket {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// The last lines that a plugin wrote.
#[derive(Clone, Debug, Default)]
struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    fn add(&self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        let mut lines = self.0.lock();
        if lines.len() == LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(line.chars().take(QUOTE_CHARS).collect());
    }

    /// The last line that mentions a failure, otherwise the last one.
    fn most_informative_line(&self) -> String {
        let lines = self.0.lock();
        let failure = |line: &&String| {
            ["panic: ", "fatal error: ", "rror"].iter().any(|word| line.contains(word))
        };
        lines.iter().rev().find(failure).or(lines.back()).cloned().unwrap_or_default()
    }
}
