//! Faults that tests switch on in the driver.

use std::path::Path;

use serde::Serialize;

use crate::Error;

/// Faults of the driver, from its next call on.
///
/// Lists name snapshots by their own name or by that of the claim they are taken of, as `namespace/name`, or by their
/// handle. `*` stands for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Switches {
    /// Age in milliseconds at which a snapshot becomes ready to use. Until then it exists, with a handle.
    pub ready_after_ms: u64,
    /// Snapshots that do not become ready to use while they are on this list.
    pub never_ready: Vec<String>,
    /// Milliseconds from the first attempt to create a snapshot until it has a handle. The snapshotter gives up a call
    /// after a minute and retries.
    pub create_takes_ms: u64,
    /// Snapshots that cannot be created. The snapshotter retries, so that they are created once they are off this list.
    pub fail_create: Vec<String>,
    /// Every n-th snapshot cannot be created, however often it is retried; 0 for none. Snapshots are counted at their
    /// first attempt, a group as one, from the start of the driver.
    pub fail_create_every: u32,
    /// Snapshots that cannot be deleted.
    pub fail_delete: Vec<String>,
    /// Milliseconds from the first attempt to create a volume until it exists.
    pub volume_takes_ms: u64,
    /// Claims that get no volume.
    pub fail_volume: Vec<String>,
}

/// Writes the switches where the driver reads them, atomically: the driver finds the new ones or the old ones.
pub(super) fn write(root: &Path, switches: &Switches) -> Result<(), Error> {
    let path = root.join("switches.json");
    let text =
        serde_json::to_vec(switches).map_err(|error| Error::io("write", &path)(error.into()))?;
    let new = tempfile::NamedTempFile::new_in(root).map_err(Error::io("write", &path))?;
    std::fs::write(new.path(), text).map_err(Error::io("write", &path))?;
    new.persist(&path).map_err(|error| Error::io("write", &path)(error.error))?;
    Ok(())
}
