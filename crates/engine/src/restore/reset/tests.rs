use bowline_store::file::{
    BackupVolumeInfo, CsiSnapshotInfo, DataMovementInfo, Method, NativeSnapshotInfo, Outcome,
    Snapshot, SnapshotPhase,
};
use serde_json::json;

use super::*;
use crate::restore::item::SkipReason;

#[test]
fn server_metadata_and_status_are_removed() {
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
    assert_eq!(reset_metadata_and_status(&mut object), Ok(Some(json!({"phase": "Bound"}))));
    let expected = json!({
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
    assert_eq!(object, expected);
    assert_eq!(reset_metadata_and_status(&mut object), Ok(None));
    assert_eq!(object, expected, "twice is as good as once");
}

#[test]
fn an_object_without_metadata_is_refused() {
    for mut object in [json!({}), json!({"metadata": 1}), json!([]), json!(null)] {
        assert_eq!(reset_metadata_and_status(&mut object), Err(NoMetadata));
        assert_eq!(set_restore_labels(&mut object, "b", "r"), Err(NoMetadata));
        assert_eq!(set_namespace(&mut object, "n"), Err(NoMetadata));
    }
}

#[test]
fn labels_name_the_backup_and_the_restore() {
    let long = "n".repeat(100);
    let rows = [json!({"app": "x", "velero.io/backup-name": "old"}), json!(null), json!("broken")];
    for before in rows {
        let mut object = json!({"metadata": {"labels": before.clone()}});
        set_restore_labels(&mut object, "b", &long).unwrap();
        let labels = &object["metadata"]["labels"];
        assert_eq!(labels["velero.io/backup-name"], "b");
        assert_eq!(labels["velero.io/restore-name"], *label::value(&long));
        assert_eq!(labels.get("app"), before.get("app"));
    }
}

#[test]
fn only_namespaced_objects_change_namespace() {
    let mut pod = json!({"metadata": {"namespace": "a"}});
    set_namespace(&mut pod, "b").unwrap();
    assert_eq!(pod, json!({"metadata": {"namespace": "b"}}));
    let mut role = json!({"metadata": {"name": "r"}});
    set_namespace(&mut role, "").unwrap();
    assert_eq!(role, json!({"metadata": {"name": "r"}}));
}

#[test]
fn claim_is_rebound_to_its_volume_or_a_new_one() {
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
        (ClaimBinding::Same, Some("pv-1")),
        (ClaimBinding::Provisioned, None),
        (ClaimBinding::Renamed("pv-2"), Some("pv-2")),
    ] {
        let mut object = bound();
        rebind_claim(&mut object, volume);
        assert_eq!(object["metadata"]["annotations"], json!({"note": "x"}), "{volume:?}");
        assert_eq!(claim_volume(&object), name, "{volume:?}");
        assert_eq!(object["spec"]["storageClassName"], "fast");
    }
    // A claim that was not bound stays unchanged.
    let unbound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": ""}});
    let mut object = unbound.clone();
    rebind_claim(&mut object, ClaimBinding::Renamed("pv-2"));
    assert_eq!(object, unbound);
}

#[test]
fn volume_is_unbound_and_follows_its_claims_namespace() {
    let mapping = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    for (from, to) in [("a", "b"), ("c", "c")] {
        let mut object = json!({
            "metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
            "spec": {"claimRef": {
                "namespace": from, "name": "data", "uid": "1", "resourceVersion": "2"
            }},
        });
        unbind_volume(&mut object, &mapping);
        let expected = json!({
            "metadata": {"annotations": {}},
            "spec": {"claimRef": {"namespace": to, "name": "data"}},
        });
        assert_eq!(object, expected);
    }
    let mut unclaimed = json!({"metadata": {}, "spec": {}});
    unbind_volume(&mut unclaimed, &mapping);
    assert_eq!(unclaimed, json!({"metadata": {}, "spec": {}}));
}

#[test]
fn renamed_volume_is_annotated_with_its_old_name() {
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
#[expect(clippy::too_many_lines, reason = "one table")]
fn volume_decision_depends_on_data_and_reclaim_policy() {
    let options = VolumeOptions { restore_pvs: true, allow_empty: false };
    let no_pvs = VolumeOptions { restore_pvs: false, ..options };
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
    let new_snapshot = snapshot("snap-1", Some(SnapshotPhase::New));
    let odd = snapshot("snap-1", Some(SnapshotPhase::Other("Paused".into())));
    let silent = snapshot("snap-1", None);

    // A word of the reason, by decision.
    let as_is = ("as is", "");
    let from = |id| ("from", id);
    let fresh = |word| ("reprovision", word);
    let unavailable = |word| ("lacking", word);
    let from_claim = ("from claim", "from a CSI snapshot");
    let saved = SavedData::default();
    let known = |info| SavedData { info: Some(info), ..saved };
    let with = |snapshot, info| SavedData { info, snapshot: Some(snapshot), ..saved };
    for (policy, saved, options, expected) in [
        ("Delete", saved, options, fresh("not in the backup")),
        ("Retain", saved, options, as_is),
        ("", saved, options, as_is),
        ("Delete", known(&none), options, fresh("not in the backup")),
        ("Delete", known(&skipped), options, fresh("not opted in")),
        ("Retain", known(&skipped), options, as_is),
        ("Delete", known(&files), options, unavailable("by file-system backup")),
        ("Retain", known(&files), no_pvs, unavailable("by file-system backup")),
        ("Delete", known(&csi), options, from_claim),
        ("Retain", known(&csi), no_pvs, from_claim),
        ("Delete", known(&lost), options, unavailable("its snapshot or copy failed")),
        ("Delete", known(&moved), options, unavailable("saved by a data mover (kopia-7)")),
        (
            "Retain",
            known(&native),
            options,
            unavailable("the location of the plugin snapshot (snap-1)"),
        ),
        ("Delete", known(&native), no_pvs, as_is),
        ("Delete", with(&whole, Some(&native)), options, from("snap-1")),
        ("Retain", with(&whole, Some(&native)), options, from("snap-1")),
        ("Delete", with(&whole, Some(&native)), no_pvs, as_is),
        (
            "Delete",
            with(&broken, Some(&native)),
            options,
            unavailable("its snapshot or copy failed"),
        ),
        ("Delete", with(&broken, Some(&native)), no_pvs, as_is),
        (
            "Delete",
            with(&whole, Some(&not_uploaded)),
            options,
            unavailable("its snapshot or copy failed"),
        ),
        (
            "Delete",
            with(&new_snapshot, Some(&native)),
            options,
            unavailable("snapshot snap-1 is New"),
        ),
        ("Delete", with(&odd, Some(&native)), options, unavailable("snapshot snap-1 is Paused")),
        ("Delete", with(&silent, Some(&native)), options, unavailable("snap-1 is unknown")),
        ("Delete", with(&unnamed, Some(&native)), options, unavailable("has no id")),
        ("Delete", known(&other), options, unavailable("Magic")),
        ("Retain", known(&failed), options, unavailable("its snapshot or copy failed")),
        // Old backups have no volume information.
        ("Delete", with(&whole, None), options, from("snap-1")),
        ("Delete", with(&broken, None), options, unavailable("its snapshot or copy failed")),
        ("Retain", with(&whole, None), no_pvs, as_is),
        (
            "Delete",
            SavedData { has_pod_volume_backup: true, ..saved },
            options,
            unavailable("file-system backup"),
        ),
        ("Delete", SavedData { has_csi_snapshot: true, ..saved }, options, from_claim),
        (
            "Delete",
            SavedData { has_data_upload: true, ..saved },
            options,
            unavailable("data mover"),
        ),
        // The volume information takes precedence over other findings.
        ("Retain", with(&whole, Some(&none)), options, as_is),
        ("Delete", with(&whole, Some(&skipped)), options, fresh("not opted in")),
        ("Delete", with(&whole, Some(&files)), options, unavailable("by file-system backup")),
    ] {
        let volume = json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
        let found = decide_volume(&volume, saved, options);
        let (kind, reason) = match &found {
            VolumeDecision::AsIs => ("as is", String::new()),
            VolumeDecision::FromSnapshot(snapshot) => {
                ("from", snapshot.status.provider_snapshot_id.clone())
            }
            VolumeDecision::FromClaim { snapshot } => {
                ("from claim", SkipReason::FromClaim { snapshot: snapshot.clone() }.to_string())
            }
            VolumeDecision::Reprovision(reason) => ("reprovision", reason.to_string()),
            VolumeDecision::DataUnavailable(reason) => ("lacking", reason.to_string()),
        };
        assert_eq!(kind, expected.0, "{policy} {saved:?}: {found:?}");
        assert!(reason.contains(expected.1), "{policy} {saved:?}: {found:?}");
    }
}

#[test]
fn a_user_may_allow_empty_volumes() {
    let volume = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    let info = info(Method::PodVolumeBackup);
    let saved = SavedData { info: Some(&info), ..SavedData::default() };
    let options = VolumeOptions { restore_pvs: true, allow_empty: true };
    let VolumeDecision::Reprovision(reason) = decide_volume(&volume, saved, options) else {
        panic!("not allowed")
    };
    assert!(reason.to_string().contains("cannot restore the data of the volume"), "{reason}");
    let broken = snapshot("snap-1", Some(SnapshotPhase::Failed));
    let saved = SavedData { snapshot: Some(&broken), ..SavedData::default() };
    let VolumeDecision::Reprovision(reason) = decide_volume(&volume, saved, options) else {
        panic!("not allowed")
    };
    assert!(reason.to_string().contains("its snapshot or copy failed"), "{reason}");
    let whole = snapshot("snap-1", Some(SnapshotPhase::Completed));
    let saved = SavedData { snapshot: Some(&whole), ..SavedData::default() };
    assert_eq!(
        decide_volume(&volume, saved, options),
        VolumeDecision::FromSnapshot(&whole),
        "there is no need"
    );
}

#[test]
fn managed_fields_are_returned_only_for_applied_objects() {
    let entry = |operation: &str, of: &str| json!({"manager": "m", "operation": operation, "subresource": of});
    for (entries, is_kept) in [
        (json!([entry("Update", ""), entry("Apply", "")]), true),
        (json!([{"manager": "m", "operation": "Apply"}]), true),
        (json!([entry("Update", "")]), false),
        (json!([entry("Apply", "status")]), false),
        (json!("nonsense"), false),
    ] {
        let mut object = json!({"metadata": {"name": "a", "managedFields": entries}});
        assert_eq!(remove_managed_fields(&mut object), is_kept.then_some(entries));
        assert_eq!(object, json!({"metadata": {"name": "a"}}));
    }
    assert_eq!(remove_managed_fields(&mut json!({"metadata": {}})), None);
}
