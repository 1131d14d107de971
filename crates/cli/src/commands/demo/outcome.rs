//! What the demo has shown, for programs.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

/// What came of the demo. Times are in milliseconds.
#[derive(Debug, Default, Serialize)]
pub(super) struct DemoOutcome {
    /// Whether all files of the volume are what they were.
    pub(super) files_equal: bool,
    /// Whether all objects are.
    pub(super) objects_equal: bool,
    /// For how long the application was frozen: the longest of its pods.
    pub(super) freeze_window_ms: u64,
    /// From then on until its volume was uploaded.
    pub(super) upload_ms: u64,
    /// For how long the application itself says that it has held still.
    pub(super) held_ms: u64,
    /// Files, folders and links in the volume, and the bytes in them.
    pub(super) files: usize,
    pub(super) bytes: u64,
    pub(super) objects: usize,
    /// How often the server was killed while it uploaded.
    pub(super) server_kills: u32,
}

impl DemoOutcome {
    pub(super) fn is_equal(&self) -> bool {
        self.files_equal && self.objects_equal
    }
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The file that the outcome is written to. It is empty until then, so that nobody takes an old one for
/// that of a demo that has failed.
pub(super) struct OutcomeFile(File);

impl OutcomeFile {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path);
        Ok(Self(file.with_context(|| format!("cannot write to {}", path.display()))?))
    }

    pub(super) fn write(mut self, outcome: &DemoOutcome) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(outcome)? + "\n";
        self.0.write_all(text.as_bytes()).context("cannot write the results")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_outcome_is_truncated_before_the_new_one_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outcome.json");
        std::fs::write(&path, "{\"files_equal\": true}").unwrap();
        let target = OutcomeFile::open(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        let outcome =
            DemoOutcome { files_equal: true, freeze_window_ms: 42, ..DemoOutcome::default() };
        assert!(!outcome.is_equal());
        target.write(&outcome).unwrap();
        let written = std::fs::read_to_string(&path).unwrap();
        // One line for each, which also simple tools can read.
        for line in ["  \"files_equal\": true,\n", "  \"freeze_window_ms\": 42,\n"] {
            assert!(written.contains(line), "{written}");
        }
        assert!(OutcomeFile::open(&folder.path().join("none/outcome.json")).is_err());
    }
}
