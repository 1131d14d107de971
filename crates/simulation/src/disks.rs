//! What plugins work on, and remember when the server does not: volumes, snapshots and operations.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::os;

/// Snapshot of a volume.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) volume: String,
    pub(crate) backup: String,
    /// Request that created it.
    pub(crate) request: String,
    pub(crate) created: Duration,
    /// When its creation is complete.
    pub(crate) ready: Duration,
    pub(crate) is_uploaded: bool,
}

/// Operation of an item action.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    /// Folder of the run and its name: `backups/b`.
    pub(crate) run: String,
    pub(crate) item: String,
    pub(crate) started: Duration,
    pub(crate) ends: Duration,
    pub(crate) is_canceled: bool,
}

/// Everything that the plugins have.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    pub(crate) snapshots: BTreeMap<String, Snapshot>,
    /// Volumes created from snapshots, and the snapshot of each.
    pub(crate) restored: BTreeMap<String, String>,
    pub(crate) operations: BTreeMap<String, Operation>,
    count: u64,
}

impl Disks {
    /// Next id of anything.
    pub(crate) fn next_id(&mut self, prefix: &str) -> String {
        self.count += 1;
        format!("{prefix}-{}", self.count)
    }

    /// The snapshot of a request, if the plugin can search for it.
    pub(crate) fn of_request(&self, request: &str) -> Option<String> {
        let mut all = self.snapshots.iter();
        all.find(|(_, one)| one.request == request).map(|(id, _)| id.clone())
    }
}

impl Operation {
    pub(crate) fn is_over(&self) -> bool {
        self.is_canceled || os::now() >= self.ends
    }
}
