//! Archive of a support bundle. Secrets are removed here from everything that is added, so that no caller can forget
//! it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bowline_store::encode;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::{output, redact};

/// Folder of all files in the archive.
const FOLDER: &str = "bundle";
/// File with the problems of the collection.
const PROBLEMS_FILE: &str = "problems.txt";

/// Archive that is being written. No file has its name until the end.
pub(super) struct Bundle {
    target: PathBuf,
    archive: tar::Builder<GzEncoder<NamedTempFile>>,
    now: Timestamp,
    is_verbose: bool,
    problems: Vec<String>,
}

impl Bundle {
    pub(super) fn new(target: &Path, now: Timestamp, is_verbose: bool) -> anyhow::Result<Self> {
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // Readable by the user only, as temporary files are created.
        let file = NamedTempFile::with_prefix_in(".bowline-debug-", folder)
            .with_context(|| format!("cannot write in {}", folder.display()))?;
        let archive = tar::Builder::new(encode::gzip(file));
        let target = target.to_owned();
        Ok(Self { target, archive, now, is_verbose, problems: Vec::new() })
    }

    /// Adds an object without its secrets.
    pub(super) fn add_object(&mut self, file: &str, mut object: Value) -> anyhow::Result<()> {
        redact::object(&mut object);
        self.add(file, format!("{object:#}\n").as_bytes())
    }

    /// Adds a text without its secrets.
    pub(super) fn add_text(&mut self, file: &str, text: &str) -> anyhow::Result<()> {
        self.add(file, redact::text(text).as_bytes())
    }

    /// Records the reason why a file is missing or incomplete.
    pub(super) fn record_problem(&mut self, file: &str, error: &anyhow::Error) {
        self.problems.push(format!("{file}: {}", output::error_chain(error)));
    }

    /// Closes the archive and renames it into place. Returns the problems of the collection.
    pub(super) fn finish(mut self) -> anyhow::Result<Vec<String>> {
        let problems = std::mem::take(&mut self.problems);
        let problems: Vec<String> = problems.iter().map(|problem| redact::text(problem)).collect();
        if !problems.is_empty() {
            self.add_text(PROBLEMS_FILE, &format!("{}\n", problems.join("\n")))?;
        }
        let cannot = || format!("cannot write {}", self.target.display());
        let file = self.archive.into_inner().with_context(cannot)?.finish().with_context(cannot)?;
        file.persist_noclobber(&self.target).map_err(|error| error.error).with_context(cannot)?;
        Ok(problems)
    }

    fn add(&mut self, file: &str, content: &[u8]) -> anyhow::Result<()> {
        if self.is_verbose {
            output::print_message(output::strip_control_chars(file));
        }
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.now.as_second().unsigned_abs());
        let added = self.archive.append_data(&mut header, archive_path(file), content);
        added.with_context(|| format!("cannot write {}", self.target.display()))
    }
}

/// Path of a file in the archive. Names come from outside, so none may lead out of it.
fn archive_path(file: &str) -> PathBuf {
    let parts = file.split('/').filter(|part| !part.is_empty() && !part.starts_with('.'));
    [FOLDER].into_iter().chain(parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_name_escapes_the_bundle_folder() {
        for (file, expected) in [
            ("objects/backups.json", "bundle/objects/backups.json"),
            ("logs/../../etc/passwd", "bundle/logs/etc/passwd"),
            ("/etc/passwd", "bundle/etc/passwd"),
        ] {
            assert_eq!(archive_path(file), Path::new(expected));
        }
    }
}
