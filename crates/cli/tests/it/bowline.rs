//! Runs the binary in an environment of its own, and reports what remains of it.

use std::process::{Command, Stdio};
use std::time::Duration;

use bowline_testbed::{leftover, test_deadline};

/// Set on the binary and inherited by all that it starts, so that they can be found.
const MARK_VARIABLE: &str = "BOWLINE_TEST_MARK";

/// Time limit of a run. Programs may have to be built first.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(40);

/// A place to run the binary in: a folder for temporary files, and a mark on its processes.
pub(crate) struct World {
    tmp: tempfile::TempDir,
    mark: String,
}

pub(crate) struct CommandResult {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl World {
    pub(crate) fn new() -> Self {
        test_deadline();
        let tmp = tempfile::tempdir().unwrap();
        let mark = tmp.path().file_name().unwrap().to_str().unwrap().to_owned();
        Self { tmp, mark }
    }

    /// The binary, ready for more arguments. It knows no cluster.
    pub(crate) fn bowline(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bowline"));
        command
            .args(arguments)
            .env(MARK_VARIABLE, &self.mark)
            .env("TMPDIR", self.tmp.path())
            .env("KUBECONFIG", "/dev/null")
            .env_remove("BOWLINE_TESTBED_KEEP")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> CommandResult {
        Self::run_command(&mut self.bowline(arguments))
    }

    /// Runs a command to its end.
    pub(crate) fn run_command(command: &mut Command) -> CommandResult {
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        CommandResult {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Processes and files of this world that are still there.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut leftovers = leftover::processes(MARK_VARIABLE, &self.mark);
        for file in std::fs::read_dir(self.tmp.path()).unwrap().flatten() {
            leftovers.push(format!("file {}", file.path().display()));
        }
        leftovers
    }
}
