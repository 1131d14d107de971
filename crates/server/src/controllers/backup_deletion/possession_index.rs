//! Snapshots that the other backups reference.
//!
//! Each deletion of something outside of a bucket checks this. The files of a backup that has ended do not change, so
//! the references are cached for as long as the Backup exists. Backups that could not be read completely are read again
//! each time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use bowline_api::{Backup, BackupPhase, BackupStorageLocation};
use bowline_engine::backup::request::Lookup;
use bowline_engine::delete::{
    BackupPossessions, InventoryError, OtherBackups, against_unreadable, referenced_snapshots,
};
use bowline_store::{BackupName, BackupStore};
use futures::{StreamExt as _, stream};
use kube::{Api, ResourceExt as _};

use super::owned_objects::list;
use crate::controllers::lookup::{OpenError, lookup, open};
use crate::error_text::status_message;
use crate::server::Context;

const CONCURRENT_READS: usize = 16;

/// Reason why the references of other backups are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnknownPossessions {
    #[error(
        "the backups of storage location {location} may name the same snapshots, and it cannot be read"
    )]
    OpenLocation { location: String, source: OpenError },
    #[error("{}", against_unreadable(.backup, &status_message(.error)))]
    ReadBackup { backup: String, error: InventoryError },
}

type Possessions = Arc<BackupPossessions>;

/// References of backups that were read, by uid.
#[derive(Debug, Default)]
pub(super) struct PossessionIndex(Mutex<HashMap<String, Possessions>>);

impl PossessionIndex {
    /// References of all backups but one, each with a backup that has it; or the reason why they are not known.
    pub(super) async fn of_others(
        &self,
        context: &Context,
        backup: &Backup,
    ) -> kube::Result<Result<OtherBackups, UnknownPossessions>> {
        let all: Vec<Backup> = list(context, None).await?;
        let others: Vec<&Backup> =
            all.iter().filter(|one| protects_possessions(one, backup)).collect();
        self.retain_existing(&all);
        let mut stores: BTreeMap<&str, Option<BackupStore>> = BTreeMap::new();
        for other in &others {
            let location = other.spec.storage_location.as_str();
            if stores.contains_key(location) {
                continue;
            }
            match store(context, location).await? {
                Ok(store) => drop(stores.insert(location, store)),
                Err(source) => {
                    let location = location.to_owned();
                    return Ok(Err(UnknownPossessions::OpenLocation { location, source }));
                }
            }
        }
        let reads = others.into_iter().filter_map(|other| {
            let store = stores.get(other.spec.storage_location.as_str())?.clone()?;
            Some((other.name_any(), other.uid().unwrap_or_default(), store))
        });
        // Collected, because a closure over borrowed values must not live across an await.
        let reads: Vec<(String, String, BackupStore)> = reads.collect();
        let reads = stream::iter(reads).map(|(name, uid, store)| async move {
            let named = self.named(&store, &name, &uid).await;
            (name, named)
        });
        let reads: Vec<_> = reads.buffer_unordered(CONCURRENT_READS).collect().await;
        let mut all = OtherBackups::default();
        for (name, named) in reads {
            match named {
                Ok(named) => all.add(&name, &named),
                Err(error) => {
                    return Ok(Err(UnknownPossessions::ReadBackup { backup: name, error }));
                }
            }
        }
        Ok(Ok(all))
    }

    async fn named(
        &self,
        store: &BackupStore,
        name: &str,
        uid: &str,
    ) -> Result<Possessions, InventoryError> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(possessions_of) = lock().get(uid) {
            return Ok(Arc::clone(possessions_of));
        }
        let Ok(backup) = BackupName::new(name) else { return Ok(Possessions::default()) };
        let named = Arc::new(referenced_snapshots(store, &backup).await?);
        if named.unreadable.is_empty() {
            lock().insert(uid.to_owned(), Arc::clone(&named));
        }
        Ok(named)
    }

    fn retain_existing(&self, all: &[Backup]) {
        let uids: BTreeSet<&str> =
            all.iter().filter_map(|backup| backup.metadata.uid.as_deref()).collect();
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.retain(|uid, _| uids.contains(uid.as_str()));
    }
}

/// True if the snapshots that a Backup references are kept when another is deleted. A Backup that is being deleted
/// keeps nothing, nor does one that has stored nothing anywhere; a running one takes its own snapshots.
fn protects_possessions(other: &Backup, going: &Backup) -> bool {
    use BackupPhase as Phase;
    let phase = other.status.as_ref().and_then(|status| status.phase.as_ref());
    other.uid() != going.uid()
        && !other.spec.storage_location.is_empty()
        && matches!(phase, Some(Phase::Completed | Phase::PartiallyFailed | Phase::Failed))
}

/// Store of a location; none if the location no longer exists, so that nothing can be restored from it.
async fn store(
    context: &Context,
    name: &str,
) -> kube::Result<Result<Option<BackupStore>, OpenError>> {
    let locations: Api<BackupStorageLocation> = context.api();
    let location = lookup(locations.get_opt(name).await)?;
    if let Lookup::Missing = location {
        return Ok(Ok(None));
    }
    Ok(open(context, &location).await.map(Some))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finished_backups_protect_what_they_name() {
        let backup = |uid: &str, phase: &str, location: &str| -> Backup {
            serde_json::from_value(json!({
                "metadata": {"name": "b", "uid": uid}, "spec": {"storageLocation": location},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let deleted = backup("u", "Completed", "l");
        for (other, expected) in [
            (backup("v", "Completed", "l"), true),
            (backup("v", "PartiallyFailed", "other"), true),
            (backup("v", "Failed", "l"), true),
            (backup("v", "Deleting", "l"), false),
            (backup("v", "FailedValidation", "l"), false),
            (backup("v", "InProgress", "l"), false),
            (backup("v", "Completed", ""), false),
            (backup("u", "Completed", "l"), false),
        ] {
            assert_eq!(protects_possessions(&other, &deleted), expected, "{other:?}");
        }
    }
}
