//! What a backup in a bucket becomes in the cluster.

use std::fmt;
use std::time::Duration;

use bowline_api::backup::BackupHooks;
use bowline_api::{Backup, BackupPhase, PodVolumeBackup, VolumePluginBackup, annotation, label};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt as _};

use super::INCOMPLETE;
use crate::patch::truncate_to_second;

/// How long a backup is kept at least after it was taken in. Its record says when it expires, and whoever can write a
/// bucket writes records: without this one that was planted would have things deleted within a minute, before anybody
/// has seen it. Nor is a backup that outlived its time in a bucket, which may be the last there is, to go the moment that a
/// new cluster finds it. See docs/decisions/032-what-a-bucket-may-do.md.
pub(super) const GRACE: Duration = Duration::from_hours(24);

/// What our own annotations begin with.
const OWN_ANNOTATIONS_PREFIX: &str = "bowline.io/";

/// Where backups are taken in.
pub(super) struct ImportTarget<'a> {
    pub(super) namespace: &'a str,
    /// The location that they come from, under the name that it has here.
    pub(super) location: &'a str,
}

/// What is to be done with a record.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ImportDecision {
    /// Nothing, for now.
    Skip(SkipReason),
    /// Create this.
    Create(Box<Backup>),
}

/// Why a record is not taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SkipReason {
    /// Another cluster is working on it.
    NotEnded(BackupPhase),
    /// Nobody writes such a record.
    NotTerminal(Option<BackupPhase>),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEnded(phase) => write!(f, "it is {phase}, so it has not ended"),
            Self::NotTerminal(Some(phase)) => {
                write!(f, "its phase is {:?}, not an end", phase.to_string())
            }
            Self::NotTerminal(None) => write!(f, "it has no phase"),
        }
    }
}

/// The names of the schedules that a record says it belongs to.
pub(super) fn owner_schedules(record: &Backup) -> Vec<String> {
    let owners = record.owner_references().iter();
    owners.filter(|owner| owner.kind == "Schedule").map(|owner| owner.name.clone()).collect()
}

/// What becomes of a record; `schedules` are those that are here, by name and uid.
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
        // Somebody began to delete it. Here that can be finished.
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
            // Nobody will finish it any more; here it can be deleted.
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
    // Those are about what servers do in their own clusters.
    backup.annotations_mut().retain(|key, _| {
        !key.starts_with(OWN_ANNOTATIONS_PREFIX)
            || [annotation::SNAPSHOT_TYPE, INCOMPLETE].contains(&key.as_str())
    });
    // Whatever the record says of itself: this is how it is known again.
    backup.annotations_mut().insert(annotation::RECORD_UID.to_owned(), uid);
    target.location.clone_into(&mut backup.spec.storage_location);
    // They are of use only while a backup runs.
    backup.spec.hooks = BackupHooks::default();
    backup.status = Some(status);
    ImportDecision::Create(Box::new(backup))
}

/// Of another cluster's metadata what means something here: name, labels and annotations.
fn imported_metadata(original: &ObjectMeta, target: &ImportTarget<'_>) -> ObjectMeta {
    ObjectMeta {
        name: original.name.clone(),
        namespace: Some(target.namespace.to_owned()),
        labels: original.labels.clone(),
        annotations: original.annotations.clone(),
        ..ObjectMeta::default()
    }
}

/// The owners that are here. Kubernetes would delete whatever has none that is.
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

/// What belongs to a backup and is taken in with it.
pub(super) trait Child: Resource<DynamicType = ()> {
    /// Whether the work on it is over. If not, somebody here would go on with it.
    fn has_ended(&self) -> bool;
    /// Writes down where it is now.
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
    /// Its backup has ended, so nobody goes on with it, whatever the word is that its plugin has for the end.
    fn has_ended(&self) -> bool {
        true
    }

    fn relocate(&mut self, backup: &Backup, _: &ImportTarget<'_>) {
        self.spec.backup = backup.name_any();
    }
}

/// What a child becomes here; none if it is not taken in.
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
