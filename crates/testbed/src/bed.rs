//! A bed: one private folder and the processes that run in it, both removed at the end.
//!
//! # Guarantees
//! When the last clone of a [`Bed`] is dropped, and also when this process panics or is killed in any way, every
//! process started in the bed is killed, including all descendants, and the folder is removed.
//!
//! # Mechanism
//! A *janitor*, a shell script of a few lines in its own process group, waits for the end of its standard input. This
//! process holds the other end of that pipe and never writes to it, so the end comes when the pipe is closed or this
//! process dies. Processes are recognised by [`env::BED_ID`] in their environment, which their children inherit: a
//! process id may have been reused, this id cannot be.
//!
//! The orderly and the disorderly end take the same path, so each run tests the disorderly one. The alternative, a
//! death signal on each child, does not reach grandchildren, and neither container shims nor plugin processes die with
//! the server that started them.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use crate::console::print_line;
use crate::env;
use crate::isolation::Isolation;
use crate::test_deadline::test_deadline;

/// Script of the janitor, run once no clone of the bed is left. Arguments: id of the bed, its folder, and whether to
/// keep the folder.
///
/// Processes are killed until none is found, in at most a hundred rounds, since a process may be forking. Control
/// groups created by a node are empty by then; only those named after the bed are removed.
const JANITOR: &str = r#"
cat >/dev/null
i=0
while [ $i -lt 100 ]; do
  pids=$(grep -lzsx "BOWLINE_BED=$1" /proc/[0-9]*/environ | cut -d/ -f3)
  [ -z "$pids" ] && break
  kill -9 $pids 2>/dev/null
  i=$((i+1)); sleep 0.05
done
i=0
while [ $i -lt 100 ]; do
  find /sys/fs/cgroup -depth -type d -path "*/$1*" -exec rmdir {} + 2>/dev/null
  groups=$(find /sys/fs/cgroup -type d -path "*/$1*" 2>/dev/null)
  [ "$3" = keep ] || rm -rf -- "$2" 2>/dev/null
  [ -z "$groups" ] && { [ "$3" = keep ] || [ ! -e "$2" ]; } && break
  i=$((i+1)); sleep 0.05
done
exit 0
"#;

/// Private folder and everything that runs in it. Clones share the same bed.
#[derive(Clone, Debug)]
pub struct Bed {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    id: String,
    dir: PathBuf,
    isolation: Option<Isolation>,
    janitor: Child,
    /// Held open while the bed is in use; never written to.
    lifeline: Option<ChildStdin>,
}

/// Failure to create a bed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The private folder could not be created.
    #[error("cannot create a private directory in {}: {reason}; choose a directory that you can \
             write to", parent.display())]
    Folder {
        /// Folder in which it should have been created.
        parent: PathBuf,
        /// Reason given by the system.
        reason: String,
    },
    /// The janitor could not be started.
    #[error("cannot start /bin/sh, which cleans up after the test bed")]
    Janitor(#[source] io::Error),
    /// The namespaces could not be made.
    #[error(transparent)]
    Isolation(#[from] crate::isolation::Error),
}

/// Reason why `parent` cannot hold a new folder, without the name that the folder would have had.
fn folder_error(parent: &Path, error: &io::Error) -> String {
    match parent.metadata() {
        Err(error) => error.to_string(),
        Ok(found) if !found.is_dir() => "not a directory".to_owned(),
        Ok(_) => error.kind().to_string(),
    }
}

impl Bed {
    /// Creates a bed in the system's folder for temporary files.
    pub fn new() -> Result<Self, Error> {
        Self::below(&std::env::temp_dir())
    }

    /// Creates a bed in a new folder below `parent`.
    pub fn below(parent: &Path) -> Result<Self, Error> {
        Self::make(parent, |_, _| Ok(None))
    }

    /// Creates a bed whose processes run in their own process, mount and network namespaces, as a real node requires.
    /// For root only; see [`crate::isolation`].
    pub fn isolated() -> Result<Self, Error> {
        Self::make(&std::env::temp_dir(), |id, dir| Ok(Some(Isolation::enter(id, dir)?)))
    }

    fn make(
        parent: &Path,
        isolation: impl FnOnce(&str, &Path) -> Result<Option<Isolation>, Error>,
    ) -> Result<Self, Error> {
        test_deadline();
        let dir = tempfile::Builder::new()
            .prefix("bowline-bed-")
            .rand_bytes(8)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)
            .map_err(|error| Error::Folder {
                parent: parent.to_owned(),
                reason: folder_error(parent, &error),
            })?
            .keep();
        let id = dir.file_name().and_then(OsStr::to_str).unwrap_or("bowline-bed").to_owned();

        let mut janitor = Command::new("/bin/sh")
            .args(["-c", JANITOR, "bowline-janitor", &id])
            .arg(&dir)
            .arg(if env::get(env::KEEP_BEDS).is_some() { "keep" } else { "remove" })
            .env_remove(env::BED_ID)
            // The PATH of this process may be anything; these folders have the tools that the janitor needs on every
            // system.
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Error::Janitor)?;
        let lifeline = janitor.stdin.take();
        let mut inner = Inner { id, dir, isolation: None, janitor, lifeline };
        inner.isolation = isolation(&inner.id, &inner.dir)?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Name of this bed, unique on this machine.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Private folder of this bed.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Namespaces that this bed's processes run in, if it has its own.
    pub fn isolation(&self) -> Option<&Isolation> {
        self.inner.isolation.as_ref()
    }

    /// Creates a folder in the bed unless it already exists.
    pub fn subdir(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Starts a program that does not outlive the bed, in its own process group so that a Ctrl-C reaches this process
    /// first.
    pub fn spawn(&self, mut command: Command) -> io::Result<Child> {
        command.env(env::BED_ID, self.id()).process_group(0).stdin(Stdio::null());
        match self.isolation() {
            None => command.spawn(),
            Some(isolation) => isolation.run(move || command.spawn()),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if env::get(env::KEEP_BEDS).is_some() {
            print_line(&format!("kept {}", self.dir.display()));
        }
        drop(self.lifeline.take());
        // Bounded by the janitor's own loops of a hundred rounds each.
        let _ = self.janitor.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_bed_removes_its_folder_and_all_descendants() {
        let bed = Bed::new().unwrap();
        let dir = bed.dir().to_owned();
        let pid_file = dir.join("grandchild");
        let mut shell = Command::new("/bin/sh");
        // The shell ends at once; the process that it started in a new session continues.
        shell.args(["-c", "setsid sleep 600 & echo $! > $0"]).arg(&pid_file);
        assert!(bed.spawn(shell).unwrap().wait().unwrap().success());
        let pid: i32 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        assert!(Path::new(&format!("/proc/{pid}")).exists());

        drop(bed);

        assert!(!dir.exists() || env::get(env::KEEP_BEDS).is_some());
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "still running: {state}");
    }

    #[test]
    fn an_unwritable_parent_is_named_in_the_error() {
        let error = Bed::below(Path::new("/proc/no-such-folder")).unwrap_err();
        assert!(error.to_string().contains("/proc/no-such-folder"), "{error}");
    }
}
