use bowline_store::file::{
    BackupVolumeInfo, CsiSnapshotInfo, DataMovementInfo, Method, NativeSnapshotInfo, Outcome,
    Snapshot, SnapshotPhase,
};
use serde_json::json;

use super::*;

#[test]
fn the_former_life_goes_and_the_rest_stays() {
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "a",
            "namespace": "n",
            "labels": {"app": "x"},
            "annotations": {"note": "y"},
            "finalizers": ["example.io/protect"],
            "generateName": "a-",
            "selfLink": "/api/v1/namespaces/n/configmaps/a",
            "uid": "1",
            "resourceVersion": "2",
            "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": 0,
            "ownerReferences": [{"uid": "3"}],
            "managedFields": [{"manager": "kubectl"}],
        },
        "data": {"status": "kept"},
        "status": {"phase": "Bound"},
    });
    assert_eq!(former_life(&mut object), Ok(Some(json!({"phase": "Bound"}))));
    let left = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "a",
            "namespace": "n",
            "labels": {"app": "x"},
            "annotations": {"note": "y"},
            "finalizers": ["example.io/protect"],
            "managedFields": [{"manager": "kubectl"}],
        },
        "data": {"status": "kept"},
    });
    assert_eq!(object, left);
    assert_eq!(former_life(&mut object), Ok(None));
    assert_eq!(object, left, "twice is as good as once");
}

#[test]
fn an_object_without_metadata_is_refused() {
    for mut object in [json!({}), json!({"metadata": 1}), json!([]), json!(null)] {
        assert_eq!(former_life(&mut object), Err(NoMetadata));
        assert_eq!(labels(&mut object, "b", "r"), Err(NoMetadata));
        assert_eq!(namespace(&mut object, "n"), Err(NoMetadata));
    }
}

#[test]
fn labels_name_the_backup_and_the_restore() {
    let long = "n".repeat(100);
    let rows = [json!({"app": "x", "velero.io/backup-name": "old"}), json!(null), json!("broken")];
    for before in rows {
        let mut object = json!({"metadata": {"labels": before.clone()}});
        labels(&mut object, "b", &long).unwrap();
        let labels = &object["metadata"]["labels"];
        assert_eq!(labels["velero.io/backup-name"], "b");
        assert_eq!(labels["velero.io/restore-name"], *label::value(&long));
        assert_eq!(labels.get("app"), before.get("app"));
    }
}

#[test]
fn only_what_is_in_a_namespace_is_moved() {
    let mut pod = json!({"metadata": {"namespace": "a"}});
    namespace(&mut pod, "b").unwrap();
    assert_eq!(pod, json!({"metadata": {"namespace": "b"}}));
    let mut role = json!({"metadata": {"name": "r"}});
    namespace(&mut role, "").unwrap();
    assert_eq!(role, json!({"metadata": {"name": "r"}}));
}

#[test]
fn a_claim_is_freed_for_its_volume_or_for_a_new_one() {
    let bound = || {
        json!({
            "metadata": {"annotations": {
                "pv.kubernetes.io/bind-completed": "yes",
                "pv.kubernetes.io/bound-by-controller": "yes",
                "note": "x",
            }},
            "spec": {"volumeName": "pv-1", "storageClassName": "fast"},
        })
    };
    for (volume, name) in [
        (Volume::Same, Some("pv-1")),
        (Volume::Provisioned, None),
        (Volume::Renamed("pv-2"), Some("pv-2")),
    ] {
        let mut object = bound();
        claim(&mut object, volume);
        assert_eq!(object["metadata"]["annotations"], json!({"note": "x"}), "{volume:?}");
        assert_eq!(claim_volume(&object), name, "{volume:?}");
        assert_eq!(object["spec"]["storageClassName"], "fast");
    }
    // A claim that was not bound keeps what it has.
    let unbound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": ""}});
    let mut object = unbound.clone();
    claim(&mut object, Volume::Renamed("pv-2"));
    assert_eq!(object, unbound);
}

#[test]
fn a_volume_is_freed_for_its_claim_where_that_is_now() {
    let mapping = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    for (from, to) in [("a", "b"), ("c", "c")] {
        let mut object = json!({
            "metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
            "spec": {"claimRef": {
                "namespace": from, "name": "data", "uid": "1", "resourceVersion": "2"
            }},
        });
        volume(&mut object, &mapping);
        let expected = json!({
            "metadata": {"annotations": {}},
            "spec": {"claimRef": {"namespace": to, "name": "data"}},
        });
        assert_eq!(object, expected);
    }
    let mut unclaimed = json!({"metadata": {}, "spec": {}});
    volume(&mut unclaimed, &mapping);
    assert_eq!(unclaimed, json!({"metadata": {}, "spec": {}}));
}

#[test]
fn a_renamed_volume_remembers_its_name() {
    let mut object = json!({"metadata": {"name": "pv-1"}});
    rename_volume(&mut object, "velero-clone-1").unwrap();
    let expected = json!({"metadata": {
        "name": "velero-clone-1",
        "annotations": {"velero.io/original-pv-name": "pv-1"},
    }});
    assert_eq!(object, expected);
}

fn info(method: Method) -> BackupVolumeInfo {
    BackupVolumeInfo { backup_method: Some(method), ..BackupVolumeInfo::default() }
}

/// A snapshot with this id, in this phase.
fn snapshot(id: &str, phase: Option<SnapshotPhase>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.status.provider_snapshot_id = id.into();
    snapshot.status.phase = phase;
    snapshot
}

#[test]
fn the_fate_of_a_volume_follows_from_its_data_and_its_policy() {
    let wishes = Wishes { restore_pvs: true, allow_empty: false };
    let no_pvs = Wishes { restore_pvs: false, ..wishes };
    let skipped = BackupVolumeInfo {
        skipped: true,
        skipped_reason: "not opted in".into(),
        ..info(Method::PodVolumeBackup)
    };
    let moved = BackupVolumeInfo {
        snapshot_data_moved: true,
        snapshot_data_movement_info: Some(DataMovementInfo {
            snapshot_handle: "kopia-7".into(),
            ..DataMovementInfo::default()
        }),
        csi_snapshot_info: Some(CsiSnapshotInfo::default()),
        ..info(Method::CsiSnapshot)
    };
    let failed =
        BackupVolumeInfo { result: Some(Outcome::Failed), ..info(Method::PodVolumeBackup) };
    let native = BackupVolumeInfo {
        native_snapshot_info: Some(NativeSnapshotInfo {
            snapshot_handle: "snap-1".into(),
            ..NativeSnapshotInfo::default()
        }),
        ..info(Method::NativeSnapshot)
    };
    let (files, csi) = (info(Method::PodVolumeBackup), info(Method::CsiSnapshot));
    let lost = BackupVolumeInfo { result: Some(Outcome::Failed), ..csi.clone() };
    let other = info(Method::Other("Magic".into()));
    let none = BackupVolumeInfo::default();
    let not_uploaded = BackupVolumeInfo { result: Some(Outcome::Failed), ..native.clone() };
    let whole = snapshot("snap-1", Some(SnapshotPhase::Completed));
    let unnamed = snapshot("", Some(SnapshotPhase::Completed));
    let broken = snapshot("snap-1", Some(SnapshotPhase::Failed));
    let begun = snapshot("snap-1", Some(SnapshotPhase::New));
    let odd = snapshot("snap-1", Some(SnapshotPhase::Other("Paused".into())));
    let silent = snapshot("snap-1", None);

    // A word of the reason, by the kind of fate.
    let as_is = ("as is", "");
    let from = |id| ("from", id);
    let fresh = |word| ("reprovision", word);
    let lacking = |word| ("lacking", word);
    let from_claim = ("from claim", "from a CSI snapshot");
    let saved = Saved::default();
    let known = |info| Saved { info: Some(info), ..saved };
    let with = |snapshot, info| Saved { info, snapshot: Some(snapshot), ..saved };
    for (policy, saved, wishes, expected) in [
        ("Delete", saved, wishes, fresh("not in the backup")),
        ("Retain", saved, wishes, as_is),
        ("", saved, wishes, as_is),
        ("Delete", known(&none), wishes, fresh("not in the backup")),
        ("Delete", known(&skipped), wishes, fresh("not opted in")),
        ("Retain", known(&skipped), wishes, as_is),
        ("Delete", known(&files), wishes, lacking("copy of its files")),
        ("Retain", known(&files), no_pvs, lacking("copy of its files")),
        ("Delete", known(&csi), wishes, from_claim),
        ("Retain", known(&csi), no_pvs, from_claim),
        ("Delete", known(&lost), wishes, lacking("saving it had failed")),
        ("Delete", known(&moved), wishes, lacking("data mover copied it into the store (kopia-7)")),
        ("Retain", known(&native), wishes, lacking("of a plugin (snap-1), but the backup does")),
        ("Delete", known(&native), no_pvs, as_is),
        ("Delete", with(&whole, Some(&native)), wishes, from("snap-1")),
        ("Retain", with(&whole, Some(&native)), wishes, from("snap-1")),
        ("Delete", with(&whole, Some(&native)), no_pvs, as_is),
        ("Delete", with(&broken, Some(&native)), wishes, lacking("saving it had failed")),
        ("Delete", with(&broken, Some(&native)), no_pvs, as_is),
        ("Delete", with(&whole, Some(&not_uploaded)), wishes, lacking("saving it had failed")),
        ("Delete", with(&begun, Some(&native)), wishes, lacking("snapshot snap-1 is New")),
        ("Delete", with(&odd, Some(&native)), wishes, lacking("snapshot snap-1 is Paused")),
        ("Delete", with(&silent, Some(&native)), wishes, lacking("snap-1 is not known")),
        ("Delete", with(&unnamed, Some(&native)), wishes, lacking("has no id")),
        ("Delete", known(&other), wishes, lacking("Magic")),
        ("Retain", known(&failed), wishes, lacking("had failed")),
        // Old backups have no volume information.
        ("Delete", with(&whole, None), wishes, from("snap-1")),
        ("Delete", with(&broken, None), wishes, lacking("saving it had failed")),
        ("Retain", with(&whole, None), no_pvs, as_is),
        ("Delete", Saved { has_pod_volume_backup: true, ..saved }, wishes, lacking("files")),
        ("Delete", Saved { has_csi_snapshot: true, ..saved }, wishes, from_claim),
        ("Delete", Saved { has_data_upload: true, ..saved }, wishes, lacking("data mover")),
        // What the backup says counts more than what else is found.
        ("Retain", with(&whole, Some(&none)), wishes, as_is),
        ("Delete", with(&whole, Some(&skipped)), wishes, fresh("not opted in")),
        ("Delete", with(&whole, Some(&files)), wishes, lacking("copy of its files")),
    ] {
        let volume = json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
        let found = fate(&volume, saved, wishes);
        let (kind, reason) = match &found {
            Fate::AsIs => ("as is", ""),
            Fate::FromSnapshot(snapshot) => ("from", snapshot.status.provider_snapshot_id.as_str()),
            Fate::FromClaim(reason) => ("from claim", reason.as_str()),
            Fate::Reprovision(reason) => ("reprovision", reason.as_str()),
            Fate::Lacking(reason) => ("lacking", reason.as_str()),
        };
        assert_eq!(kind, expected.0, "{policy} {saved:?}: {found:?}");
        assert!(reason.contains(expected.1), "{policy} {saved:?}: {found:?}");
    }
}

#[test]
fn a_user_may_allow_empty_volumes() {
    let volume = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    let info = info(Method::PodVolumeBackup);
    let saved = Saved { info: Some(&info), ..Saved::default() };
    let wishes = Wishes { restore_pvs: true, allow_empty: true };
    let Fate::Reprovision(reason) = fate(&volume, saved, wishes) else { panic!("not allowed") };
    assert!(reason.contains("cannot be brought back"), "{reason}");
    let broken = snapshot("snap-1", Some(SnapshotPhase::Failed));
    let saved = Saved { snapshot: Some(&broken), ..Saved::default() };
    let Fate::Reprovision(reason) = fate(&volume, saved, wishes) else { panic!("not allowed") };
    assert!(reason.contains("had failed"), "{reason}");
    let whole = snapshot("snap-1", Some(SnapshotPhase::Completed));
    let saved = Saved { snapshot: Some(&whole), ..Saved::default() };
    assert_eq!(fate(&volume, saved, wishes), Fate::FromSnapshot(&whole), "there is no need");
}

#[test]
fn owners_of_fields_go_and_are_kept_where_somebody_applied_the_object() {
    let entry = |operation: &str, of: &str| json!({"manager": "m", "operation": operation, "subresource": of});
    for (entries, is_kept) in [
        (json!([entry("Update", ""), entry("Apply", "")]), true),
        (json!([{"manager": "m", "operation": "Apply"}]), true),
        (json!([entry("Update", "")]), false),
        (json!([entry("Apply", "status")]), false),
        (json!("nonsense"), false),
    ] {
        let mut object = json!({"metadata": {"name": "a", "managedFields": entries}});
        assert_eq!(managed_fields(&mut object), is_kept.then_some(entries));
        assert_eq!(object, json!({"metadata": {"name": "a"}}));
    }
    assert_eq!(managed_fields(&mut json!({"metadata": {}})), None);
}
