//! Outcome of the demo, for programs.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

/// Outcome of the demo. Times are in milliseconds.
#[derive(Debug, Default, Serialize)]
pub(super) struct DemoOutcome {
    /// True if all files of the volume are equal to the originals.
    pub(super) files_equal: bool,
    /// True if all objects are equal to the originals.
    pub(super) objects_equal: bool,
    /// Longest freeze of a pod.
    pub(super) freeze_window_ms: u64,
    /// From the thaw until its volume was uploaded.
    pub(super) upload_ms: u64,
    /// Duration of the pause as the application measured it.
    pub(super) held_ms: u64,
    /// Files, folders and links in the volume, and their bytes.
    pub(super) files: usize,
    pub(super) bytes: u64,
    pub(super) objects: usize,
    /// Number of kills of the server during the upload.
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

/// File for the outcome. It is empty until then, so that an old outcome is not mistaken for that of a failed demo.
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
        // One line per value, which simple tools can read.
        for line in ["  \"files_equal\": true,\n", "  \"freeze_window_ms\": 42,\n"] {
            assert!(written.contains(line), "{written}");
        }
        assert!(OutcomeFile::open(&folder.path().join("none/outcome.json")).is_err());
    }
}
