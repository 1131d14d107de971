//! A program of the bed: started with its output in a log file, watched until it is ready.

use std::fs::File;
use std::future::Future;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::Bed;

/// Interval of checks while waiting for a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Length of the end of a log that is searched for the cause of an exit.
const LOG_TAIL_BYTES: i64 = 16 * 1024;

/// Longest cause quoted from a log.
const REASON_CHARS: usize = 400;

/// A running program. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
    /// Held so that the bed ends after its processes.
    _bed: Bed,
}

/// Failure of a program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program could not be started at all.
    #[error("cannot start {name}")]
    Start {
        /// Name of the program.
        name: &'static str,
        #[source]
        /// Reason given by the system.
        source: io::Error,
    },
    /// The program ended while it should have been running.
    #[error("{name} ended at start ({status}): {reason}")]
    Died {
        /// Name of the program.
        name: &'static str,
        /// Exit status.
        status: ExitStatus,
        /// Most informative line of its log.
        reason: String,
    },
    /// The program runs, but the expected condition did not come true.
    #[error("{name} was not ready after {} s: {reason}", waited.as_secs())]
    NotReady {
        /// Name of the program.
        name: &'static str,
        /// Time for which it was waited.
        waited: Duration,
        /// Most informative line of its log.
        reason: String,
    },
}

impl Error {
    /// True if the program died because another one had taken its port in the meantime.
    pub fn is_port_conflict(&self) -> bool {
        matches!(self, Self::Died { reason, .. } if reason.contains("address already in use"))
    }
}

impl Process {
    /// Starts `command` in the bed, with its output in `log/<name>.log` there.
    pub fn start(bed: &Bed, name: &'static str, mut command: Command) -> Result<Self, Error> {
        let start_error = |source| Error::Start { name, source };
        let log = bed.subdir("log").map_err(start_error)?.join(format!("{name}.log"));
        let out = File::create(&log).map_err(start_error)?;
        let err = out.try_clone().map_err(start_error)?;
        command.stdout(out).stderr(err);
        let child = bed.spawn(command).map_err(start_error)?;
        Ok(Self { name, child, log, _bed: bed.clone() })
    }

    /// Process id, as seen from outside the bed.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the program and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns an error if the program has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                Err(Error::Died { name: self.name, status, reason: self.failure_reason() })
            }
            Err(source) => Err(Error::Start { name: self.name, source }),
        }
    }

    /// Waits for the end of the program, which should not come, and returns it as an error.
    pub async fn wait_for_exit(&mut self) -> Error {
        loop {
            if let Err(error) = self.check() {
                return error;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Calls `probe` until it returns an answer; fails as soon as the program dies, or after `limit`.
    pub async fn wait_until<T, F>(
        &mut self,
        limit: Duration,
        mut probe: impl FnMut() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Option<T>>,
    {
        let deadline = Instant::now() + limit;
        loop {
            self.check()?;
            // A probe may hang in a half-open connection: it never outlives the limit.
            if let Ok(Some(answer)) = tokio::time::timeout_at(deadline, probe()).await {
                return Ok(answer);
            }
            if Instant::now() >= deadline {
                let reason = self.failure_reason();
                return Err(Error::NotReady { name: self.name, waited: limit, reason });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn failure_reason(&self) -> String {
        let text = log_tail(&self.log).unwrap_or_default();
        match most_informative_line(&text) {
            Some(line) => line_message(line).chars().take(REASON_CHARS).collect(),
            None => "no output".to_owned(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn log_tail(log: &Path) -> io::Result<String> {
    let mut file = File::open(log)?;
    let length = i64::try_from(file.metadata()?.len()).unwrap_or(i64::MAX);
    file.seek(SeekFrom::End(-length.min(LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Last line that mentions a failure, else the last line that is not empty.
fn most_informative_line(text: &str) -> Option<&str> {
    let lines = || text.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let speaks_of_failure = |line: &&str| {
        let lower = line.to_lowercase();
        ["error", "fatal", "panic", "cannot", "in use"].iter().any(|word| lower.contains(word))
    };
    lines().find(speaks_of_failure).or_else(|| lines().next())
}

/// Message of a line: for JSON, as etcd writes it, message and error.
fn line_message(line: &str) -> String {
    let Ok(Value::Object(object)) = serde_json::from_str(line) else { return line.to_owned() };
    let texts: Vec<&str> =
        ["msg", "error"].iter().filter_map(|key| object.get(*key)?.as_str()).collect();
    if texts.is_empty() { line.to_owned() } else { texts.join(": ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_reason_is_the_last_line_about_a_failure() {
        let cases = [
            ("", None),
            ("\n  \n", None),
            (
                "starting\nError: unknown flag: --x\nUsage:\n  etcd [flags]\n",
                Some("Error: unknown flag: --x"),
            ),
            ("one\ntwo\n", Some("two")),
        ];
        for (log, expected) in cases {
            assert_eq!(most_informative_line(log), expected, "{log:?}");
        }
    }

    #[test]
    fn json_log_line_is_reduced_to_its_message() {
        let line =
            r#"{"level":"fatal","msg":"discovery failed","error":"no disk","stacktrace":"x"}"#;
        assert_eq!(line_message(line), "discovery failed: no disk");
        assert_eq!(line_message("plain"), "plain");
    }

    #[tokio::test]
    async fn program_that_dies_at_start_is_reported_with_its_output() {
        let bed = Bed::new().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo 'fatal: no such disk' >&2; exit 3"]);
        let mut process = Process::start(&bed, "victim", command).unwrap();
        let never = || std::future::ready(None::<()>);
        let error = process.wait_until(Duration::from_secs(20), never).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "victim ended at start (exit status: 3): fatal: no such disk"
        );
    }

    #[tokio::test]
    async fn program_that_never_becomes_ready_is_killed() {
        let bed = Bed::new().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo waiting; exec sleep 600"]);
        let mut process = Process::start(&bed, "sleeper", command).unwrap();
        let never = || std::future::pending::<Option<()>>();
        let error = process.wait_until(Duration::from_millis(200), never).await.unwrap_err();
        assert!(matches!(error, Error::NotReady { .. }), "{error}");
        let pid = process.pid();
        drop(process);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
