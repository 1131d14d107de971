use super::*;

fn backup(file: BackupFile) -> Key {
    Key::Backup(BackupName::new("b").unwrap(), file)
}

fn restore(file: RestoreFile) -> Key {
    Key::Restore(RestoreName::new("r").unwrap(), file)
}

fn layout(prefix: &str) -> Layout {
    Layout::new(&Prefix::new(prefix).unwrap())
}

#[test]
fn every_key_is_spelled_as_velero_spells_it() {
    let keys: Vec<String> =
        BackupFile::ALL.map(backup).iter().map(|key| layout("").key(key)).collect();
    assert_eq!(
        keys,
        [
            "backups/b/velero-backup.json",
            "backups/b/b.tar.gz",
            "backups/b/b-bowline-index",
            "backups/b/b-logs.gz",
            "backups/b/b-podvolumebackups.json.gz",
            "backups/b/b-volumesnapshots.json.gz",
            "backups/b/b-itemoperations.json.gz",
            "backups/b/b-resource-list.json.gz",
            "backups/b/b-results.gz",
            "backups/b/b-volumeinfo.json.gz",
            "backups/b/b-volumepluginbackups.json.gz",
            "backups/b/b-bowline.json.gz",
            "backups/b/b-csi-volumesnapshots.json.gz",
            "backups/b/b-csi-volumesnapshotcontents.json.gz",
            "backups/b/b-csi-volumesnapshotclasses.json.gz",
        ]
    );
    let keys: Vec<String> =
        RestoreFile::ALL.map(restore).iter().map(|key| layout("").key(key)).collect();
    assert_eq!(
        keys,
        [
            "restores/r/restore-r-logs.gz",
            "restores/r/restore-r-results.gz",
            "restores/r/restore-r-resource-list.json.gz",
            "restores/r/restore-r-itemoperations.json.gz",
            "restores/r/r-volumeinfo.json.gz",
        ]
    );
    let run = RunUid::new("0f5c7a0e-7c8b").unwrap();
    assert_eq!(layout("").key(&Key::Scratch(run, 7)), "plugins/bowline/0f5c7a0e-7c8b/000007");
}

#[test]
fn a_prefix_is_trimmed_and_leads_every_key() {
    for prefix in ["a/b", "/a/b", "a/b/", "//a/b//"] {
        assert_eq!(
            layout(prefix).key(&backup(BackupFile::Record)),
            "a/b/backups/b/velero-backup.json"
        );
        assert_eq!(layout(prefix).backups(), "a/b/backups/");
    }
    for prefix in ["", "/", "//"] {
        assert_eq!(layout(prefix).root(), "");
    }
}

#[test]
fn prefix_that_leaves_the_bucket_is_refused() {
    for prefix in ["..", "a/../b", "./a", "a//b", "a/.", "a\0"] {
        assert!(Prefix::new(prefix).is_err(), "{prefix:?}");
    }
}

#[test]
fn only_veleros_folders_may_be_at_the_top() {
    let expected =
        ["p/backups/", "p/restores/", "p/restic/", "p/metadata/", "p/plugins/", "p/kopia/"];
    assert_eq!(layout("p").unexpected_folders(expected), Vec::<String>::new());
    assert_eq!(layout("p").unexpected_folders(["p/photos/", "p/backups/"]), ["photos"]);
    assert_eq!(layout("").unexpected_folders(["backups/", "Backups/"]), ["Backups"]);
}

#[test]
fn every_kind_of_download_has_its_key() {
    let key = |kind: &str, name: &str| {
        let target =
            DownloadTarget { kind: kind.into(), name: name.to_owned(), ..Default::default() };
        Key::try_from(&target).map(|key| layout("").key(&key))
    };
    for (kind, expected) in [
        ("BackupLog", "backups/n/n-logs.gz"),
        ("BackupContents", "backups/n/n.tar.gz"),
        ("BackupVolumeSnapshots", "backups/n/n-volumesnapshots.json.gz"),
        ("BackupItemOperations", "backups/n/n-itemoperations.json.gz"),
        ("BackupResourceList", "backups/n/n-resource-list.json.gz"),
        ("BackupResults", "backups/n/n-results.gz"),
        ("RestoreLog", "restores/n/restore-n-logs.gz"),
        ("RestoreResults", "restores/n/restore-n-results.gz"),
        ("RestoreResourceList", "restores/n/restore-n-resource-list.json.gz"),
        ("RestoreItemOperations", "restores/n/restore-n-itemoperations.json.gz"),
        ("CSIBackupVolumeSnapshots", "backups/n/n-csi-volumesnapshots.json.gz"),
        ("CSIBackupVolumeSnapshotContents", "backups/n/n-csi-volumesnapshotcontents.json.gz"),
        ("BackupVolumeInfos", "backups/n/n-volumeinfo.json.gz"),
        ("RestoreVolumeInfo", "restores/n/n-volumeinfo.json.gz"),
    ] {
        assert_eq!(key(kind, "n").as_deref(), Ok(expected));
    }
    assert_eq!(DownloadTargetKind::KNOWN.len(), 14, "a new kind needs a row above");
    assert_eq!(key("Secrets", "n"), Err(InvalidDownload::Kind("Secrets".to_owned())));
    assert!(matches!(key("BackupLog", "../n"), Err(InvalidDownload::Name(_))));
}
