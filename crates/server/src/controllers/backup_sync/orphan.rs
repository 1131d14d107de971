//! Backups whose files are gone.

use std::collections::BTreeSet;

use bowline_api::{Backup, BackupPhase, label};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

/// Times in Kubernetes are truncated to the second.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// Decision about Backups without files.
#[derive(Debug, PartialEq)]
pub(super) enum Orphans<'a> {
    /// These can be removed.
    Remove(Vec<&'a Backup>),
    /// The location is completely empty, though this many Backups should be in it: more likely its
    /// volume is not mounted, or it is another one, than that it was emptied.
    Keep(usize),
}

/// Backups of a location that have ended or are being deleted, and that have no files in it.
/// `cluster` was listed before `began`, the location after. `has_others` is true if the location
/// contains anything else.
pub(super) fn find<'a>(
    cluster: &'a [Backup],
    location: &str,
    listed: &BTreeSet<&str>,
    has_others: bool,
    began: Timestamp,
) -> Orphans<'a> {
    let label = label::value(location);
    let is_orphan = |backup: &&Backup| {
        use BackupPhase as Phase;
        let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
        let created = backup.creation_timestamp().map(|created| created.0);
        let is_older = created.is_some_and(|created| created.duration_until(began) >= SECOND);
        matches!(phase, Some(Phase::Completed | Phase::PartiallyFailed | Phase::Deleting))
            && backup.labels().get(label::STORAGE_LOCATION).is_some_and(|value| *value == label)
            && backup.spec.storage_location == location
            && backup.metadata.deletion_timestamp.is_none()
            && is_older
            && !listed.contains(backup.name_any().as_str())
    };
    let orphans: Vec<_> = cluster.iter().filter(is_orphan).collect();
    if listed.is_empty() && !has_others && !orphans.is_empty() {
        return Orphans::Keep(orphans.len());
    }
    Orphans::Remove(orphans)
}

#[cfg(test)]
mod tests {
    use bowline_api::BackupStatus;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn backup(phase: &str) -> Backup {
        let mut backup = Backup::default();
        backup.metadata.name = Some("b".to_owned());
        backup.metadata.creation_timestamp = Some(Time(at(100)));
        backup.labels_mut().insert(label::STORAGE_LOCATION.to_owned(), "default".to_owned());
        backup.spec.storage_location = "default".to_owned();
        backup.status = Some(BackupStatus { phase: Some(phase.into()), ..Default::default() });
        backup
    }

    fn is_orphan(backup: Backup, listed: &[&str]) -> bool {
        let listed = listed.iter().copied().collect();
        find(&[backup], "default", &listed, true, at(1000)) != Orphans::Remove(Vec::new())
    }

    #[test]
    fn only_finished_backups_can_be_orphans() {
        for phase in BackupPhase::KNOWN {
            let expected = ["Completed", "PartiallyFailed", "Deleting"].contains(phase);
            assert_eq!(is_orphan(backup(phase), &[]), expected, "{phase}");
        }
        assert!(!is_orphan(Backup { status: None, ..backup("") }, &[]));
    }

    #[test]
    fn backup_with_files_is_not_an_orphan() {
        assert!(is_orphan(backup("Completed"), &["a", "c"]));
        assert!(!is_orphan(backup("Completed"), &["a", "b"]));
    }

    #[test]
    fn backups_of_other_locations_and_new_backups_are_kept() {
        type Change = fn(&mut Backup);
        let changes: [(&str, Change); 6] = [
            ("another label", |backup| {
                backup.labels_mut().insert(label::STORAGE_LOCATION.to_owned(), "x".to_owned());
            }),
            ("no label", |backup| backup.metadata.labels = None),
            ("another location", |backup| backup.spec.storage_location = "x".to_owned()),
            ("as young as the list", |backup| {
                backup.metadata.creation_timestamp = Some(Time(at(1000)));
            }),
            ("of unknown age", |backup| backup.metadata.creation_timestamp = None),
            ("on its way out", |backup| {
                backup.metadata.deletion_timestamp = Some(Time(at(999)));
            }),
        ];
        for (what, change) in changes {
            let mut backup = backup("Completed");
            change(&mut backup);
            assert!(!is_orphan(backup, &[]), "{what}");
        }
    }

    #[test]
    fn location_with_a_long_name_is_matched_by_label() {
        let long = "x".repeat(100);
        let mut backup = backup("Completed");
        let value = label::value(&long).into_owned();
        backup.labels_mut().insert(label::STORAGE_LOCATION.to_owned(), value);
        backup.spec.storage_location.clone_from(&long);
        let found = find(std::slice::from_ref(&backup), &long, &BTreeSet::new(), true, at(1000));
        assert_eq!(found, Orphans::Remove(vec![&backup]));
    }

    #[test]
    fn empty_location_deletes_no_backup() {
        let cluster = [backup("Completed"), backup("Completed"), backup("Failed")];
        let find = |listed: &[&str], has_others| {
            let listed = listed.iter().copied().collect();
            find(&cluster, "default", &listed, has_others, at(1000))
        };
        let both = || Orphans::Remove(vec![&cluster[0], &cluster[1]]);
        assert_eq!(find(&[], false), Orphans::Keep(2));
        assert_eq!(find(&[], true), both());
        assert_eq!(find(&["a"], false), both());
        assert_eq!(find(&["b"], false), Orphans::Remove(Vec::new()));
    }
}
