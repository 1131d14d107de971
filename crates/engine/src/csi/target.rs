//! Objects of retention: VolumeSnapshots and VolumeGroupSnapshots.

use std::fmt;

use bowline_plugin::ResourceIdentifier;

use super::record::is_csi_operation;
use super::{SNAPSHOTS, id};
use crate::operation::{Operation, State};

/// A VolumeSnapshot or VolumeGroupSnapshot of a backup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// True for a VolumeGroupSnapshot.
    pub is_group: bool,
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, is_group } = self;
        let kind = if *is_group { "VolumeGroupSnapshot" } else { "VolumeSnapshot" };
        write!(formatter, "the {kind} {namespace}/{name}")
    }
}

impl Target {
    pub(crate) fn id(&self) -> ResourceIdentifier {
        id(SNAPSHOTS, &self.namespace, &self.name)
    }

    /// The VolumeSnapshot that an operation waits for; none for another kind of operation.
    pub fn of_operation(operation: &Operation) -> Option<Self> {
        let item = &operation.item;
        let is_meant = is_csi_operation(operation) && item.resource == SNAPSHOTS;
        let (namespace, name) = (item.namespace.clone(), item.name.clone());
        is_meant.then_some(Self { namespace, name, is_group: false })
    }
}

/// The snapshots of operations that have succeeded, and of those that have not.
pub fn targets_of_operations(operations: &[Operation]) -> (Vec<Target>, Vec<Target>) {
    let (mut completed, mut failed) = (Vec::new(), Vec::new());
    for operation in operations {
        if let Some(target) = Target::of_operation(operation) {
            let is_kept = operation.state == State::Completed;
            if is_kept { completed.push(target) } else { failed.push(target) }
        }
    }
    (completed, failed)
}

/// Leftovers of snapshots that were to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Snapshots that could not be deleted.
    targets: Vec<Target>,
    /// Snapshots without any object in the cluster. Their drivers may still have them.
    not_found: Vec<Target>,
}

impl Leftovers {
    pub(crate) fn new(targets: Vec<Target>, not_found: Vec<Target>) -> Self {
        Self { targets, not_found }
    }

    /// True if there is no known leftover.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Snapshots that could not be deleted.
    pub fn iter(&self) -> std::slice::Iter<'_, Target> {
        self.targets.iter()
    }

    /// True if there may be a snapshot of a VolumeSnapshot, known or not.
    pub(crate) fn may_include(&self, namespace: &str, name: &str) -> bool {
        let mut all = self.targets.iter().chain(&self.not_found);
        all.any(|one| one.namespace == namespace && one.name == name)
    }
}

impl<'a> IntoIterator for &'a Leftovers {
    type Item = &'a Target;
    type IntoIter = std::slice::Iter<'a, Target>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<Vec<Target>> for Leftovers {
    fn from(targets: Vec<Target>) -> Self {
        Self { targets, not_found: Vec::new() }
    }
}
