//! Backups whose files are gone.

use std::collections::BTreeSet;

use bowline_api::{BackupPhase, label};
use jiff::{SignedDuration, Timestamp};

use super::summary::BackupSummary;

/// Times in Kubernetes are truncated to the second.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// Decision about Backups without files.
#[derive(Debug, PartialEq)]
pub(super) enum Orphans<'a> {
    /// These can be removed.
    Remove(Vec<&'a BackupSummary>),
    /// The location is completely empty, though this many Backups should be in it: more likely its
    /// volume is not mounted, or it is another one, than that it was emptied.
    Keep(usize),
}

/// Backups of a location that have ended or are being deleted, and that have no files in it.
/// `cluster` was listed before `began`, the location after. `has_others` is true if the location
/// contains anything else.
pub(super) fn find<'a>(
    cluster: &'a [BackupSummary],
    location: &str,
    listed: &BTreeSet<&str>,
    has_others: bool,
    began: Timestamp,
) -> Orphans<'a> {
    let label = label::value(location);
    let is_orphan = |backup: &&BackupSummary| {
        use BackupPhase as Phase;
        let is_older =
            backup.created.is_some_and(|created| created.duration_until(began) >= SECOND);
        matches!(backup.phase, Some(Phase::Completed | Phase::PartiallyFailed | Phase::Deleting))
            && backup.location_label.as_deref() == Some(&*label)
            && backup.location == location
            && !backup.is_being_deleted
            && is_older
            && !listed.contains(backup.name.as_str())
    };
    let orphans: Vec<_> = cluster.iter().filter(is_orphan).collect();
    if listed.is_empty() && !has_others && !orphans.is_empty() {
        return Orphans::Keep(orphans.len());
    }
    Orphans::Remove(orphans)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn backup(phase: &str) -> BackupSummary {
        BackupSummary {
            name: "b".to_owned(),
            created: Some(at(100)),
            location: "default".to_owned(),
            location_label: Some("default".to_owned()),
            phase: Some(phase.into()),
            ..BackupSummary::default()
        }
    }

    fn is_orphan(backup: BackupSummary, listed: &[&str]) -> bool {
        let listed = listed.iter().copied().collect();
        find(&[backup], "default", &listed, true, at(1000)) != Orphans::Remove(Vec::new())
    }

    #[test]
    fn only_finished_backups_can_be_orphans() {
        for phase in BackupPhase::KNOWN {
            let expected = ["Completed", "PartiallyFailed", "Deleting"].contains(phase);
            assert_eq!(is_orphan(backup(phase), &["other"]), expected, "{phase}");
        }
        assert!(!is_orphan(BackupSummary { phase: None, ..backup("") }, &["other"]));
    }

    #[test]
    fn backup_with_files_is_not_an_orphan() {
        assert!(!is_orphan(backup("Completed"), &["a", "b"]));
        assert!(is_orphan(backup("Completed"), &["a", "b2"]));
    }

    #[test]
    fn backups_of_other_locations_and_new_backups_are_kept() {
        type Change = fn(&mut BackupSummary);
        let changes: [(&str, Change); 6] = [
            ("another label", |backup| backup.location_label = Some("x".to_owned())),
            ("no label", |backup| backup.location_label = None),
            ("another location", |backup| backup.location = "x".to_owned()),
            ("as young as the list", |backup| backup.created = Some(at(1000))),
            ("of unknown age", |backup| backup.created = None),
            ("on its way out", |backup| backup.is_being_deleted = true),
        ];
        for (what, change) in changes {
            let mut backup = backup("Completed");
            change(&mut backup);
            assert!(!is_orphan(backup, &["other"]), "{what}");
        }
    }

    #[test]
    fn location_with_a_long_name_is_matched_by_label() {
        let long = "x".repeat(100);
        let backup = BackupSummary {
            location_label: Some(label::value(&long).into_owned()),
            location: long.clone(),
            ..backup("Completed")
        };
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
