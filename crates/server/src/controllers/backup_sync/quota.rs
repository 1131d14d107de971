//! Limits on the objects that a location may import into the cluster.
//!
//! All objects of a cluster are in its etcd, which has a few gigabytes for all users. A bucket that someone else writes
//! must not fill it.

use std::sync::atomic::{AtomicU64, Ordering};

use bowline_api::{Backup, annotation};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde::Serialize;

use crate::list::visit_all;

/// Size of the largest Backup that is imported, as JSON. A Backup with thousands of namespaces in its lists has some
/// hundred KiB.
const MAX_BACKUP_BYTES: u64 = 256 << 10;
/// Size of the largest PodVolumeBackup or VolumePluginBackup that is imported.
const MAX_CHILD_BYTES: u64 = 16 << 10;
/// Size of all Backups of a location together, for each one that it may import: 64 MiB for 10,000.
const AVERAGE_BACKUP_BYTES: u64 = 6_711;
/// Number of PodVolumeBackups, and of VolumePluginBackups, in a namespace from which on none is imported.
pub(super) const MAX_CHILDREN: u64 = 50_000;

/// Reason why an object is not imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OverQuota {
    #[error("velero-backup.json is larger than {} KiB", MAX_BACKUP_BYTES >> 10)]
    Backup,
    #[error("a PodVolumeBackup or VolumePluginBackup is larger than {} KiB", MAX_CHILD_BYTES >> 10)]
    Child,
    #[error(
        "{0} Backups are synced from the location, which is the limit (--backup-sync-limit); \
         delete some, or raise the limit"
    )]
    Count(u64),
    #[error("the Backups of the location are larger than {} MiB together (--backup-sync-limit)", .0 >> 20)]
    Sum(u64),
    #[error(
        "the namespace has {MAX_CHILDREN} PodVolumeBackups or VolumePluginBackups, which is the \
         limit"
    )]
    Children,
}

/// Quota that a location has left.
#[derive(Debug)]
pub(super) struct ImportQuota {
    /// Maximum number of Backups; none is unlimited.
    limit: Option<u64>,
    count: AtomicU64,
    bytes: AtomicU64,
}

impl ImportQuota {
    /// Quota of a location without Backups. Zero is unlimited.
    pub(super) fn new(limit: usize) -> Self {
        let limit = u64::try_from(limit).ok().filter(|limit| *limit > 0);
        Self { limit, count: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// Remainder of a limit after the existing Backups of a location, which are read for it.
    pub(super) async fn read(
        limit: usize,
        backups: &Api<Backup>,
        location: &str,
    ) -> kube::Result<Self> {
        let quota = Self::new(limit);
        if quota.limit.is_some() {
            let count = |backup: Backup| {
                if backup.spec.storage_location == location {
                    quota.count_existing(&backup);
                }
            };
            visit_all(backups, ListParams::default(), count).await?;
        }
        Ok(quota)
    }

    /// Counts an existing Backup of the location, if it was imported.
    fn count_existing(&self, backup: &Backup) {
        if backup.annotations().contains_key(annotation::RECORD_UID) {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(json_size(backup), Ordering::Relaxed);
        }
    }

    /// Reserves the quota that a Backup needs, or returns why that is not possible.
    pub(super) fn reserve(&self, backup: &Backup) -> Result<(), OverQuota> {
        let size = json_size(backup);
        if size > MAX_BACKUP_BYTES {
            return Err(OverQuota::Backup);
        }
        let Some(limit) = self.limit else { return Ok(()) };
        let max_bytes = limit.saturating_mul(AVERAGE_BACKUP_BYTES).max(MAX_BACKUP_BYTES);
        // A rejected Backup uses no quota: the excess count lasts for one round only.
        if self.count.fetch_add(1, Ordering::Relaxed) >= limit {
            return Err(OverQuota::Count(limit));
        }
        if self.bytes.fetch_add(size, Ordering::Relaxed) + size > max_bytes {
            return Err(OverQuota::Sum(max_bytes));
        }
        Ok(())
    }
}

/// Checks that a child can be imported.
pub(super) fn check_child(child: &impl Serialize) -> Result<(), OverQuota> {
    if json_size(child) > MAX_CHILD_BYTES { Err(OverQuota::Child) } else { Ok(()) }
}

/// Length of an object as JSON. An object that cannot be serialized is too long.
fn json_size(object: &impl Serialize) -> u64 {
    struct ByteCounter(u64);
    impl std::io::Write for ByteCounter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = ByteCounter(0);
    serde_json::to_writer(&mut count, object).map_or(u64::MAX, |()| count.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup(name: &str, padding: usize) -> Backup {
        let mut backup = Backup::default();
        backup.metadata.name = Some(name.to_owned());
        backup.annotations_mut().insert(annotation::RECORD_UID.to_owned(), "u".to_owned());
        backup.annotations_mut().insert("padding".to_owned(), "x".repeat(padding));
        backup
    }

    fn quota<'a>(limit: usize, existing: impl IntoIterator<Item = &'a Backup>) -> ImportQuota {
        let quota = ImportQuota::new(limit);
        existing.into_iter().for_each(|backup| quota.count_existing(backup));
        quota
    }

    #[test]
    fn imported_backups_are_limited_per_location() {
        let existing = [backup("a", 0), backup("b", 0)];
        let limited = quota(4, &existing);
        assert_eq!(limited.reserve(&backup("c", 0)), Ok(()));
        assert_eq!(limited.reserve(&backup("d", 0)), Ok(()));
        assert_eq!(limited.reserve(&backup("e", 0)), Err(OverQuota::Count(4)));
        // Backups that this cluster made do not count.
        let mut own = backup("own", 0);
        own.annotations_mut().remove(annotation::RECORD_UID);
        let limited = quota(1, std::iter::repeat_n(&own, 10));
        assert_eq!(limited.reserve(&backup("c", 0)), Ok(()));
        let unlimited = quota(0, &existing);
        assert!((0..10).all(|_| unlimited.reserve(&backup("c", 0)).is_ok()));
    }

    #[test]
    fn oversized_records_are_skipped_alone_and_in_sum() {
        let quota = quota(100, []);
        assert_eq!(quota.reserve(&backup("huge", 300 << 10)), Err(OverQuota::Backup));
        let reserved =
            (0..100).take_while(|_| quota.reserve(&backup("b", 200 << 10)).is_ok()).count();
        assert_eq!(reserved, 3, "{AVERAGE_BACKUP_BYTES} bytes for each of a hundred");
        assert_eq!(check_child(&backup("c", 1000)), Ok(()));
        assert_eq!(check_child(&backup("c", 20_000)), Err(OverQuota::Child));
    }
}
