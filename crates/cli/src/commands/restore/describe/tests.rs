use anyhow::anyhow;
use bowline_api::VolumePluginRestore;
use bowline_store::file::Messages;
use serde_json::json;

use super::*;
use crate::volume_progress::{VolumeProgress, VolumeReport as _};

/// Restore with content in every section.
fn full() -> Restore {
    serde_json::from_value(json!({
        "apiVersion": "velero.io/v1", "kind": "Restore",
        "metadata": {
            "name": "full", "namespace": "velero", "labels": {"a": "b"},
            "annotations": {"bowline.io/allow-empty-volumes": "true"},
        },
        "spec": {
            "backupName": "b", "includedNamespaces": ["app", "db"],
            "excludedNamespaces": ["kube-system"], "excludedResources": ["nodes", "events"],
            "includeClusterResources": false, "namespaceMapping": {"app": "copy", "db": "db2"},
            "labelSelector": {"matchLabels": {"app": "web"}}, "restorePVs": false,
            "existingResourcePolicy": "update", "itemOperationTimeout": "4h0m0s",
            "preserveNodePorts": true, "hooks": {},
            "resourceModifier": {"kind": "configmap", "name": "rules"},
            "resourcePolicy": {"kind": "configmap", "name": "policies"},
            "restoreStatus": {"includedResources": ["workflows"]},
            "uploaderConfig": {"writeSparseFiles": true, "parallelFilesDownload": 4},
        },
        "status": {
            "phase": "PartiallyFailed", "errors": 2, "warnings": 1,
            "startTimestamp": "2026-01-02T03:04:05Z", "completionTimestamp": "2026-01-02T03:05:06Z",
            "progress": {"totalItems": 121, "itemsRestored": 120},
            "restoreItemOperationsAttempted": 2, "restoreItemOperationsCompleted": 1,
            "restoreItemOperationsFailed": 1,
            "hookStatus": {"hooksAttempted": 4, "hooksFailed": 1},
        },
    }))
    .unwrap()
}

fn files() -> Files {
    let mut errors = Messages::default();
    errors.velero.push("plugin x.io/a\u{1b}[2J: it\nhas two lines".to_owned());
    errors.add("db", "pods/db-0: the object cannot be created: no");
    let mut warnings = Messages::default();
    warnings.add("", "clusterroles/r: it differs");
    let volumes = json!([
        {"pvcName": "data", "pvcNamespace": "copy", "pvName": "pv-1",
         "restoreMethod": "NativeSnapshot", "snapshotDataMoved": false, "nativeSnapshotInfo": {
             "snapshotHandle": "snap-1", "volumeType": "ssd", "volumeAZ": "z1", "iops": "0",
             "Phase": "Completed"}},
        {"pvcName": "log", "pvcNamespace": "copy", "pvName": "", "restoreMethod": "CSISnapshot",
         "snapshotDataMoved": false,
         "csiSnapshotInfo": {"snapshotHandle": "h", "size": 4096, "driver": "csi.x.io",
                             "vscName": "vsc"}},
        {"pvcName": "big", "pvcNamespace": "copy", "restoreMethod": "CSISnapshot",
         "snapshotDataMoved": true,
         "snapshotDataMovementInfo": {"dataMover": "", "uploaderType": "kopia",
                                      "snapshotHandle": "s", "operationID": "dd-1", "size": 5}},
        {"pvcName": "tmp", "pvcNamespace": "copy", "restoreMethod": "PodVolumeRestore",
         "snapshotDataMoved": false,
         "pvrInfo": {"snapshotHandle": "k", "size": 7, "uploaderType": "kopia",
                     "volumeName": "tmp", "podName": "web-0", "podNamespace": "copy",
                     "Phase": "Completed"}},
        {"pvName": "pv-4", "restoreMethod": "Teleport"},
    ]);
    let operations = json!([
        {"spec": {"restoreName": "full", "restoreItemAction": "x.io/a", "operationID": "op-1",
                  "resourceIdentifier": {"Group": "", "Resource": "persistentvolumeclaims",
                                         "Namespace": "app", "Name": "data"}},
         "status": {"phase": "Failed", "error": "no space", "nCompleted": 1, "nTotal": 3,
                    "operationUnits": "bytes", "description": "downloading",
                    "created": "2026-01-02T03:04:06Z", "updated": "2026-01-02T03:04:07Z"}},
    ]);
    let resources = json!({
        "v1/Pod": ["copy/web-0(created)", "db2/db-0(failed)"], "v1/Namespace": ["copy(skipped)"],
    });
    Files {
        results: Some(Ok(Results { errors, warnings })),
        volumes: Some(Ok(serde_json::from_value(volumes).unwrap())),
        operations: Some(Ok(serde_json::from_value(operations).unwrap())),
        resources: Some(Ok(serde_json::from_value(resources).unwrap())),
    }
}

/// A volume that was created, and one that was not, so that it has no name yet.
fn transfers() -> Vec<VolumeProgress> {
    let restore = |snapshot: &str, status: &Value| {
        let report = json!({
            "metadata": {"name": snapshot}, "status": status,
            "spec": {"snapshotID": snapshot, "backup": "b", "plugin": "x.io/a"},
        });
        serde_json::from_value::<VolumePluginRestore>(report).unwrap().into_progress()
    };
    let report = json!({
        "phase": "Completed", "volumeID": "pv-1", "startTimestamp": "2026-01-02T03:04:05Z",
        "completionTimestamp": "2026-01-02T03:04:35Z",
        "progress": {"bytesDone": 2048, "totalBytes": 2048},
    });
    let canceled = json!({"phase": "Canceled", "message": "the restore was canceled"});
    vec![restore("snap-1", &report), restore("snap-2", &canceled)]
}

/// Files downloaded without `--details`.
fn few_files() -> Files {
    Files { operations: None, resources: None, ..files() }
}

#[test]
fn a_restore_with_details() {
    insta::assert_snapshot!(text::render(&full(), &files(), &Ok(transfers()), true));
}

#[test]
fn a_restore_without_details() {
    insta::assert_snapshot!(text::render(&full(), &few_files(), &Ok(transfers()), false));
}

#[test]
fn a_restore_as_json() {
    insta::assert_snapshot!(format!(
        "{:#}",
        json::render(&full(), &files(), &Ok(transfers()), true)
    ));
}

#[test]
fn a_restore_as_json_without_details() {
    let json = json::render(&full(), &few_files(), &Ok(transfers()), false);
    insta::assert_snapshot!(format!("{:#}", json["status"]));
}

#[test]
fn a_restore_whose_files_cannot_be_read() {
    let unreadable = Files {
        results: Some(Err(anyhow!("cannot read RestoreResults: no"))),
        volumes: Some(Err(anyhow!("cannot read RestoreVolumeInfo: no"))),
        operations: Some(Err(anyhow!("cannot read RestoreItemOperations: no"))),
        resources: Some(Err(anyhow!("cannot read RestoreResourceList: no"))),
    };
    let unlisted = Err(anyhow!("cannot list the VolumePluginRestores: you may not"));
    let text = text::render(&full(), &unreadable, &unlisted, true);
    for line in [
        "Warnings:  1 <cannot read RestoreResults: no>",
        "Errors:    2 <cannot read RestoreResults: no>",
        "Restore Item Operations:  1 of 2 completed successfully, 1 failed \
         <cannot read RestoreItemOperations: no>",
        "Resource List:  <cannot read RestoreResourceList: no>",
        "Restored Volumes:  <cannot read RestoreVolumeInfo: no>",
        "Volume Plugin Restores:  <cannot list the VolumePluginRestores: you may not>",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in {text}");
    }
    let json = json::render(&full(), &unreadable, &unlisted, true);
    assert_eq!(json["errors"]["errorGettingErrors"], "cannot read RestoreResults: no");
    assert_eq!(json["status"]["errorGettingResourceList"], "cannot read RestoreResourceList: no");
}

#[test]
fn new_and_refused_restores_are_described() {
    let mut restore = Restore::new("r", bowline_api::RestoreSpec::default());
    restore.spec.schedule_name = "nightly".to_owned();
    let text = text::render(&restore, &Files::default(), &Ok(Vec::new()), false);
    for line in [
        "Phase:  New",
        "Started:    <n/a>",
        "Schedule:  nightly",
        "  Included:  all namespaces found in the backup",
        "Restored Volumes:  <known when all items are restored>",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in {text}");
    }
    let status = json!({"phase": "FailedValidation", "validationErrors": ["no `x`", "no `y`"]});
    restore.status = serde_json::from_value(status).unwrap();
    let text = text::render(&restore, &Files::default(), &Ok(Vec::new()), false);
    let errors = "Validation errors:  no `x`\n                    no `y`\n";
    assert!(text.contains(errors), "{text}");
    assert!(!text.contains("Restored Volumes"), "{text}");
}
