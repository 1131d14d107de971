//! How much a location may bring into the cluster.
//!
//! All that is in a cluster is in its etcd, which is a few gigabytes for everybody. A bucket that somebody else writes
//! must not fill it.

use std::sync::atomic::{AtomicU64, Ordering};

use bowline_api::{Backup, annotation};
use kube::ResourceExt as _;
use serde::Serialize;

/// The largest Backup that is brought in, as JSON. One with thousands of namespaces in its lists has some hundred KiB.
const BACKUP_SIZE: u64 = 256 << 10;
/// The largest PodVolumeBackup or VolumePluginBackup.
const CHILD_SIZE: u64 = 16 << 10;
/// How much all Backups of a location may have together, for each one that it may bring in: 64 MiB for 10,000.
const AVERAGE_SIZE: u64 = 6_711;
/// How many PodVolumeBackups, and how many VolumePluginBackups, there may be in a namespace before none is brought in.
pub(super) const CHILDREN: u64 = 50_000;

/// Why something is not brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OverQuota {
    #[error("the record is larger than {} KiB", BACKUP_SIZE >> 10)]
    Backup,
    #[error("a PodVolumeBackup or VolumePluginBackup is larger than {} KiB", CHILD_SIZE >> 10)]
    Child,
    #[error(
        "the location has brought in {0} Backups, which is the limit (--backup-sync-limit); delete some, or \
         raise it"
    )]
    Count(u64),
    #[error("the Backups of the location are larger than {} MiB together (--backup-sync-limit)", .0 >> 20)]
    Sum(u64),
    #[error(
        "the namespace holds {CHILDREN} PodVolumeBackups or VolumePluginBackups, which is the limit"
    )]
    Children,
}

/// What a location may still bring in.
#[derive(Debug)]
pub(super) struct Quota {
    /// How many it may bring in at all; none is no limit.
    limit: Option<u64>,
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Quota {
    /// What is left of a limit, given the Backups of the location that are there. Zero is no limit.
    pub(super) fn new<'a>(limit: usize, here: impl Iterator<Item = &'a Backup>) -> Self {
        let limit = u64::try_from(limit).ok().filter(|limit| *limit > 0);
        let (mut count, mut bytes) = (0, 0);
        for backup in here.filter(|one| one.annotations().contains_key(annotation::RECORD_UID)) {
            count += 1;
            bytes += size(backup);
        }
        Self { limit, count: AtomicU64::new(count), bytes: AtomicU64::new(bytes) }
    }

    /// Takes what a Backup needs, or says why it cannot have it.
    pub(super) fn take(&self, backup: &Backup) -> Result<(), OverQuota> {
        let size = size(backup);
        if size > BACKUP_SIZE {
            return Err(OverQuota::Backup);
        }
        let Some(limit) = self.limit else { return Ok(()) };
        let most = limit.saturating_mul(AVERAGE_SIZE).max(BACKUP_SIZE);
        // Whoever was not let in takes nothing: what is counted too much is one round's.
        if self.count.fetch_add(1, Ordering::Relaxed) >= limit {
            return Err(OverQuota::Count(limit));
        }
        if self.bytes.fetch_add(size, Ordering::Relaxed) + size > most {
            return Err(OverQuota::Sum(most));
        }
        Ok(())
    }
}

/// Whether a child can be brought in.
pub(super) fn check_child(child: &impl Serialize) -> Result<(), OverQuota> {
    if size(child) > CHILD_SIZE { Err(OverQuota::Child) } else { Ok(()) }
}

/// How long something is as JSON. What cannot be written is too long.
fn size(object: &impl Serialize) -> u64 {
    struct Count(u64);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
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

    #[test]
    fn a_location_brings_in_so_many_backups_and_no_more() {
        let here = [backup("a", 0), backup("b", 0)];
        let quota = Quota::new(4, here.iter());
        assert_eq!(quota.take(&backup("c", 0)), Ok(()));
        assert_eq!(quota.take(&backup("d", 0)), Ok(()));
        assert_eq!(quota.take(&backup("e", 0)), Err(OverQuota::Count(4)));
        // Those that this cluster made are not its.
        let mut own = backup("own", 0);
        own.annotations_mut().remove(annotation::RECORD_UID);
        let quota = Quota::new(1, std::iter::repeat_n(&own, 10));
        assert_eq!(quota.take(&backup("c", 0)), Ok(()));
        let unlimited = Quota::new(0, here.iter());
        assert!((0..10).all(|_| unlimited.take(&backup("c", 0)).is_ok()));
    }

    #[test]
    fn large_records_are_left_out_and_many_large_ones_too() {
        let quota = Quota::new(100, std::iter::empty());
        assert_eq!(quota.take(&backup("huge", 300 << 10)), Err(OverQuota::Backup));
        let taken = (0..100).take_while(|_| quota.take(&backup("b", 200 << 10)).is_ok()).count();
        assert_eq!(taken, 3, "{AVERAGE_SIZE} bytes for each of a hundred");
        assert_eq!(check_child(&backup("c", 1000)), Ok(()));
        assert_eq!(check_child(&backup("c", 20_000)), Err(OverQuota::Child));
    }
}
