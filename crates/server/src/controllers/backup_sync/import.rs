//! Conversion of a backup in a bucket to objects in the cluster.

use std::fmt;
use std::time::Duration;

use bowline_api::backup::BackupHooks;
use bowline_api::{Backup, BackupPhase, PodVolumeBackup, VolumePluginBackup, annotation, label};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt as _};

use super::INCOMPLETE;
use crate::patch::truncate_to_second;

/// Minimum time for which a backup is kept after its import. Its record contains the expiry, and anyone who can write
/// to a bucket writes records: without this minimum, a planted record would cause deletions within a minute, before
/// anyone has seen it. Nor should a backup that has outlived its expiry in a bucket, which may be the last one there
/// is, be deleted the moment that a new cluster finds it. See docs/decisions/032-trust-in-buckets.md.
pub(super) const GRACE: Duration = Duration::from_hours(24);

const OWN_ANNOTATIONS_PREFIX: &str = "bowline.io/";

/// Target of an import.
pub(super) struct ImportTarget<'a> {
    pub(super) namespace: &'a str,
    /// Location that the backups come from, under its name in this cluster.
    pub(super) location: &'a str,
}

/// Decision for a record.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ImportDecision {
    /// Do nothing, for now.
    Skip(SkipReason),
    /// Create this Backup.
    Create(Box<Backup>),
}

/// Reason why a record is not imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SkipReason {
    /// Another cluster is working on it.
    NotEnded(BackupPhase),
    /// It is being written, or deleted.
    NoRecord,
    /// A Backup of its name was created in the cluster meanwhile.
    CreatedMeanwhile,
    /// The Backup of an earlier attempt was deleted or completed meanwhile.
    ChangedMeanwhile,
    /// No server writes such a record.
    NotTerminal(Option<BackupPhase>),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEnded(phase) => write!(f, "the phase is {phase}: the backup has not ended"),
            Self::NoRecord => {
                f.write_str("velero-backup.json is missing: the backup is being written or deleted")
            }
            Self::CreatedMeanwhile => {
                f.write_str("a Backup of the same name was created meanwhile")
            }
            Self::ChangedMeanwhile => f.write_str("the Backup was changed or deleted meanwhile"),
            Self::NotTerminal(Some(phase)) => {
                write!(f, "phase {:?} is not final", phase.to_string())
            }
            Self::NotTerminal(None) => write!(f, "the backup has no phase"),
        }
    }
}

/// Names of the schedules that a record names as its owners.
pub(super) fn owner_schedules(record: &Backup) -> Vec<String> {
    let owners = record.owner_references().iter();
    owners.filter(|owner| owner.kind == "Schedule").map(|owner| owner.name.clone()).collect()
}

/// Decides if a record is imported; `schedules` are those that exist here, by name and uid.
pub(super) fn decide(
    record: Backup,
    target: &ImportTarget<'_>,
    schedules: &[(String, String)],
    now: Timestamp,
) -> ImportDecision {
    use BackupPhase as Phase;
    let mut status = record.status.clone().unwrap_or_default();
    let phase = match status.phase.take() {
        Some(phase @ (Phase::Completed | Phase::PartiallyFailed | Phase::Failed)) => phase,
        // Its deletion was started elsewhere. It can be completed here.
        Some(Phase::Deleting) => Phase::Deleting,
        Some(
            phase @ (Phase::WaitingForPluginOperations
            | Phase::WaitingForPluginOperationsPartiallyFailed
            | Phase::Finalizing
            | Phase::FinalizingPartiallyFailed),
        ) => {
            let expiration = status.expiration.as_ref().map(|time| time.0);
            if expiration.is_none_or(|expiration| expiration > now) {
                return ImportDecision::Skip(SkipReason::NotEnded(phase));
            }
            // No server will finalize it any more; it can be deleted here.
            Phase::PartiallyFailed
        }
        // A Backup in any other phase would be run.
        other => return ImportDecision::Skip(SkipReason::NotTerminal(other)),
    };
    status.phase = Some(phase);
    let earliest_expiration = now.checked_add(GRACE).unwrap_or(Timestamp::MAX);
    if status.expiration.as_ref().is_some_and(|expiration| expiration.0 < earliest_expiration) {
        status.expiration = Some(truncate_to_second(earliest_expiration));
    }

    let mut backup = record;
    let owners = backup.metadata.owner_references.take().unwrap_or_default();
    let uid = backup.metadata.uid.take().unwrap_or_default();
    backup.metadata = imported_metadata(&backup.metadata, target);
    backup.metadata.owner_references = existing_owners(owners, schedules);
    let location = label::value(target.location).into_owned();
    backup.labels_mut().insert(label::STORAGE_LOCATION.to_owned(), location);
    backup.annotations_mut().insert(INCOMPLETE.to_owned(), "true".to_owned());
    // These annotations are about the work of a server in its own cluster.
    backup.annotations_mut().retain(|key, _| {
        !key.starts_with(OWN_ANNOTATIONS_PREFIX)
            || [annotation::SNAPSHOT_TYPE, INCOMPLETE].contains(&key.as_str())
    });
    // Set regardless of the record's own annotations: the Backup is recognised by this uid.
    backup.annotations_mut().insert(annotation::RECORD_UID.to_owned(), uid);
    target.location.clone_into(&mut backup.spec.storage_location);
    // Hooks are used only while a backup runs.
    backup.spec.hooks = BackupHooks::default();
    backup.status = Some(status);
    ImportDecision::Create(Box::new(backup))
}

/// The parts of another cluster's metadata that are valid here: name, labels and annotations.
fn imported_metadata(original: &ObjectMeta, target: &ImportTarget<'_>) -> ObjectMeta {
    ObjectMeta {
        name: original.name.clone(),
        namespace: Some(target.namespace.to_owned()),
        labels: original.labels.clone(),
        annotations: original.annotations.clone(),
        ..ObjectMeta::default()
    }
}

/// Owners that exist here. Kubernetes would delete an object whose owners do not exist.
fn existing_owners(
    owners: Vec<OwnerReference>,
    schedules: &[(String, String)],
) -> Option<Vec<OwnerReference>> {
    let is_alive = |owner: &OwnerReference| {
        owner.kind == "Schedule"
            && schedules.iter().any(|(name, uid)| *name == owner.name && *uid == owner.uid)
    };
    let alive: Vec<_> = owners.into_iter().filter(is_alive).collect();
    (!alive.is_empty()).then_some(alive)
}

/// Object that belongs to a backup and is imported with it.
pub(super) trait Child: Resource<DynamicType = ()> {
    /// True if the work on it has ended. Otherwise a controller here would continue it.
    fn has_ended(&self) -> bool;
    /// Sets the names of this cluster: backup and location.
    fn relocate(&mut self, backup: &Backup, target: &ImportTarget<'_>);
}

impl Child for PodVolumeBackup {
    fn has_ended(&self) -> bool {
        let phase = self.status.as_ref().and_then(|status| status.phase.as_ref());
        phase.is_some_and(bowline_api::transfer::TransferPhase::is_terminal)
    }

    fn relocate(&mut self, _: &Backup, target: &ImportTarget<'_>) {
        target.location.clone_into(&mut self.spec.backup_storage_location);
    }
}

impl Child for VolumePluginBackup {
    /// The backup has ended, so no plugin continues the work, whatever word the plugin has for the end.
    fn has_ended(&self) -> bool {
        true
    }

    fn relocate(&mut self, backup: &Backup, _: &ImportTarget<'_>) {
        self.spec.backup = backup.name_any();
    }
}

/// Converts a child; none if it is not imported.
pub(super) fn import_child<K: Child>(
    mut child: K,
    target: &ImportTarget<'_>,
    backup: &Backup,
) -> Option<K> {
    if !child.has_ended() {
        return None;
    }
    *child.meta_mut() = imported_metadata(child.meta(), target);
    child.relocate(backup, target);
    let owner = OwnerReference { controller: Some(true), ..backup.owner_ref(&())? };
    child.meta_mut().owner_references = Some(vec![owner]);
    let name = label::value(&backup.name_any()).into_owned();
    child.labels_mut().insert(label::BACKUP_NAME.to_owned(), name);
    child.labels_mut().insert(label::BACKUP_UID.to_owned(), backup.uid()?);
    Some(child)
}

#[cfg(test)]
mod tests;
