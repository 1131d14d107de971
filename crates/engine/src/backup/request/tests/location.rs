use serde_json::json;

use super::*;

#[test]
fn the_storage_location_is_named_or_the_default_one() {
    let defaults = Defaults::default();
    for (spec, default_location, expected) in [
        (json!({}), None, "default"),
        (json!({}), Some("first"), "first"),
        (json!({"storageLocation": "own"}), Some("first"), "own"),
    ] {
        let facts = Facts { default_storage_location: default_location.map(Into::into), ..facts() };
        let backup = backup(spec);
        assert_eq!(storage_location_name(&backup, default_location, &defaults), expected);
        let prepared = prepare(&backup, &facts, &defaults, now());
        assert_eq!(prepared.backup.spec.storage_location, expected);
        let labels = prepared.backup.metadata.labels.unwrap();
        assert_eq!(labels["velero.io/storage-location"], expected);
    }
    let long = "x".repeat(64);
    let PreparedBackup { backup, .. } = prepared(json!({"storageLocation": long}), &facts());
    assert_eq!(backup.metadata.labels.unwrap()["velero.io/storage-location"].len(), 63);
}

#[test]
fn a_storage_location_that_cannot_be_used_is_an_error() {
    let with = |storage_location| Facts { storage_location, ..facts() };
    for (spec, facts, expected) in [
        (
            json!({}),
            with(Lookup::Missing),
            "an existing backup storage location was not specified at backup creation time and the \
             server default default does not exist. Please address this issue (see `bowline \
             backup-location -h` for options) and create a new backup. Error: \
             backupstoragelocations.velero.io \"default\" not found",
        ),
        (
            json!({"storageLocation": "own"}),
            with(Lookup::Missing),
            "an existing backup storage location was not specified at backup creation time and the \
             default own was not found. Please address this issue (see `bowline backup-location -h` \
             for options) and create a new backup. Error: backupstoragelocations.velero.io \"own\" \
             not found",
        ),
        (
            json!({}),
            with(Lookup::Failed("no route".into())),
            "error getting backup storage location: no route",
        ),
        (
            json!({}),
            with(storage("ReadOnly", "Available")),
            "backup can't be created because backup storage location default is currently in \
             read-only mode",
        ),
        (
            json!({}),
            with(storage("ReadWrite", "Unavailable")),
            "backup can't be created because BackupStorageLocation default is in Unavailable status.",
        ),
        (
            json!({}),
            with(storage("ReadWrite", "")),
            "backup can't be created because BackupStorageLocation default is in Unavailable status.",
        ),
    ] {
        assert_eq!(errors(spec, &facts), [expected]);
    }
}

#[test]
fn each_provider_has_one_snapshot_location() {
    let defaults = |pairs: &[(&str, &str)]| Defaults {
        snapshot_locations: pairs.iter().map(|(p, n)| ((*p).into(), (*n).into())).collect(),
        ..Defaults::default()
    };
    let two = &[("a", "p"), ("b", "p"), ("c", "q")][..];
    for (asked, locations, configured, expected) in [
        (&[][..], &[][..], &[][..], Ok(&[][..])),
        (&[], &[("a", "p")], &[], Ok(&["a"])),
        (&[], &[("z", "p"), ("y", "q")], &[], Ok(&["z", "y"])),
        (&["b"], two, &[], Ok(&["b", "c"])),
        (&["c", "b"], two, &[], Ok(&["c", "b"])),
        (&["b", "b"], two, &[], Ok(&["b", "c"])),
        (&[], two, &[("p", "b")], Ok(&["b", "c"])),
        (&["a"], two, &[("p", "b")], Ok(&["a", "c"])),
        (
            &["x"],
            two,
            &[],
            Err("a VolumeSnapshotLocation CRD for the location x with the name specified in the \
                 backup spec needs to be created before this snapshot can be executed. Error: \
                 volumesnapshotlocations.velero.io \"x\" not found"),
        ),
        (
            &["a", "b"],
            two,
            &[],
            Err(
                "more than one VolumeSnapshotLocation name specified for provider p: b; unexpected \
                 name was a",
            ),
        ),
        (
            &[],
            two,
            &[],
            Err("provider p has more than one possible volume snapshot location, and none were \
                 specified explicitly or as a default"),
        ),
        (
            &[],
            two,
            &[("p", "c")],
            Err(
                "error getting volume snapshot location named c: volumesnapshotlocations.velero.io \
                 \"c\" not found",
            ),
        ),
    ] {
        let facts = Facts { snapshot_locations: Ok(snapshot_locations(locations)), ..facts() };
        let spec = json!({"volumeSnapshotLocations": asked, "snapshotVolumes": false});
        let PreparedBackup { backup, outcome } =
            prepare(&backup(spec), &facts, &defaults(configured), now());
        match expected {
            Ok(names) => {
                assert_eq!(outcome.unwrap().snapshot_locations, names);
                assert_eq!(backup.spec.volume_snapshot_locations, names);
            }
            Err(error) => assert_eq!(outcome.unwrap_err().0, [error]),
        }
    }
    let unlisted = Facts { snapshot_locations: Err("no route".into()), ..facts() };
    assert_eq!(errors(json!({}), &unlisted), ["error listing volume snapshot locations: no route"]);
}
