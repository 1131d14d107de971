//! Snapshots that the other backups reference.
//!
//! Each deletion of something outside of a bucket checks this. The files of a backup that has ended do not change, so
//! the references are cached for as long as the Backup exists. Backups that could not be read completely are read again
//! each time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bowline_api::{Backup, BackupPhase, BackupStorageLocation};
use bowline_engine::backup::request::Lookup;
use bowline_engine::delete::{
    BackupPossessions, InventoryError, OtherBackups, against_unreadable, referenced_snapshots,
};
use bowline_store::{BackupName, BackupStore};
use futures::{Stream, StreamExt as _, stream};
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;

use super::marker::phase_before_deletion;
use super::owned_objects::list;
use crate::controllers::lookup::{OpenError, lookup, open};
use crate::error_text::status_message;
use crate::server::Context;

const CONCURRENT_READS: usize = 16;

/// Reason why the references of other backups are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnknownPossessions {
    #[error(
        "backups in storage location {location}, which cannot be read, may refer to the same \
         snapshots"
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
        Ok(merge(reads.buffer_unordered(CONCURRENT_READS)).await)
    }

    async fn named(
        &self,
        store: &BackupStore,
        name: &str,
        uid: &str,
    ) -> Result<Possessions, InventoryError> {
        let lock = || self.0.lock();
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
        let mut cached = self.0.lock();
        cached.retain(|uid, _| uids.contains(uid.as_str()));
    }
}

/// References of all backups; the first failure ends the reads that are under way.
async fn merge(
    reads: impl Stream<Item = (String, Result<Possessions, InventoryError>)>,
) -> Result<OtherBackups, UnknownPossessions> {
    let mut reads = std::pin::pin!(reads);
    let mut all = OtherBackups::default();
    while let Some((backup, read)) = reads.next().await {
        match read {
            Ok(possessions) => all.add(&backup, &possessions),
            Err(error) => return Err(UnknownPossessions::ReadBackup { backup, error }),
        }
    }
    Ok(all)
}

/// True if the snapshots that a Backup references are kept when another is deleted. A Backup that is being deleted
/// keeps nothing, unless it may get its phase back, nor does one that has stored nothing anywhere; a running one takes
/// its own snapshots.
fn protects_possessions(other: &Backup, going: &Backup) -> bool {
    use BackupPhase as Phase;
    let phase = phase_before_deletion(other);
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
    use bowline_api::annotation;
    use bowline_plugin::{Code, Error};
    use bowline_store::Prefix;
    use bowline_store::backend::Memory;
    use bowline_store::backend::memory::StoreCall;
    use futures::FutureExt as _;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn the_first_backup_that_cannot_be_read_ends_the_search() {
        let denied = Memory::with_bucket("b").failing(|call, _| {
            (call == StoreCall::Get).then(|| Error::new(Code::PermissionDenied, "denied"))
        });
        let store = BackupStore::new(Arc::new(denied), "b", &Prefix::default());
        let index = PossessionIndex::default();
        let failed = index.named(&store, "broken", "u").await;
        let reads = stream::iter([("broken".to_owned(), failed)]);
        // The other backups are in a bucket that does not answer.
        let found = merge(reads.chain(stream::pending())).now_or_never();
        let found = found.expect("the failure is not reported until all backups are read");
        let Err(error) = found else { panic!("the backup was read") };
        let error = error.to_string();
        assert!(error.contains("broken") && error.contains("denied"), "{error}");
    }

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
        let mut unconfirmed = backup("v", "Deleting", "l");
        let before = (annotation::PHASE_BEFORE_DELETION.to_owned(), "Completed".to_owned());
        unconfirmed.metadata.annotations = Some([before].into());
        assert!(protects_possessions(&unconfirmed, &deleted), "its deletion may be called off");
    }
}
