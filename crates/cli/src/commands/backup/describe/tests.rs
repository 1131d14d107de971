use anyhow::anyhow;
use bowline_store::file::Messages;
use serde_json::json;

use super::*;
use crate::volume_progress::{self, VolumeProgress};

/// Backup with content in every section.
fn full() -> Backup {
    serde_json::from_value(json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {
            "name": "full", "namespace": "velero",
            "labels": {"velero.io/storage-location": "default", "a": "b"},
            "annotations": {"velero.io/global-backup-volume-policy-configmap": "everywhere"},
        },
        "spec": {
            "includedNamespaces": ["app", "db"], "excludedNamespaces": ["kube-system"],
            "includedResources": ["pods"], "includeClusterResources": true,
            "labelSelector": {"matchLabels": {"app": "web"}},
            "storageLocation": "default", "volumeSnapshotLocations": ["fast"],
            "snapshotVolumes": true, "defaultVolumesToFsBackup": false, "ttl": "720h0m0s",
            "csiSnapshotTimeout": "10m0s", "itemOperationTimeout": "4h0m0s",
            "resourcePolicy": {"kind": "configmap", "name": "policy"},
            "uploaderConfig": {"parallelFilesUpload": 4},
            "orderedResources": {"pods": "app/a,app/b", "persistentvolumes": "pv1"},
            "hooks": {"resources": [{
                "name": "freeze", "includedNamespaces": ["db"],
                "labelSelector": {"matchLabels": {"app": "db"}},
                "pre": [{"exec": {"container": "db", "command": ["fsfreeze", "-f", "/data"],
                         "onError": "Fail", "timeout": "30s"}}],
                "post": [{"exec": {"command": ["fsfreeze", "-u", "/data"], "timeout": "0s"}}],
            }]},
        },
        "status": {
            "phase": "PartiallyFailed", "formatVersion": "1.1.0", "errors": 2, "warnings": 1,
            "startTimestamp": "2026-01-02T03:04:05Z", "completionTimestamp": "2026-01-02T03:05:06Z",
            "expiration": "2026-02-01T03:04:05Z",
            "progress": {"totalItems": 121, "itemsBackedUp": 120},
            "backupItemOperationsAttempted": 2, "backupItemOperationsCompleted": 1,
            "backupItemOperationsFailed": 1,
            "hookStatus": {"hooksAttempted": 4, "hooksFailed": 1},
            "freezeWindows": [
                {"namespace": "db", "pod": "db-0", "startTimestamp": "2026-01-02T03:04:06Z",
                 "milliseconds": 120},
                {"namespace": "db", "pod": "replica-10", "milliseconds": 7},
            ],
        },
    }))
    .unwrap()
}

fn files() -> Files {
    let mut errors = Messages::default();
    errors.velero.push("plugin x.io/a\u{1b}[2J: it\nhas two lines".to_owned());
    errors.add("db", "pods/db-0: the hook failed");
    let mut warnings = Messages::default();
    warnings.add("", "nodes/n: skipped");
    let volumes = json!([
        {"pvName": "pv-skip", "pvcName": "tmp", "pvcNamespace": "app", "skipped": true,
         "skippedReason": "volumeSnapshot: no snapshotter;"},
        {"pvName": "pv-1", "pvcName": "data", "pvcNamespace": "app", "backupMethod": "NativeSnapshot",
         "result": "succeeded", "preserveLocalSnapshot": true, "nativeSnapshotInfo": {
             "snapshotHandle": "snap-1", "volumeType": "ssd", "volumeAZ": "z1", "iops": "0",
             "Phase": "Completed"}},
        {"pvName": "pv-2", "pvcName": "log", "pvcNamespace": "app", "backupMethod": "CSISnapshot",
         "result": "failed", "snapshotDataMoved": true, "preserveLocalSnapshot": true,
         "csiSnapshotInfo": {"snapshotHandle": "h", "size": 4096, "driver": "csi.x.io",
                             "vscName": "vsc", "operationID": "op"},
         "snapshotDataMovementInfo": {"dataMover": "", "uploaderType": "kopia",
                                      "snapshotHandle": "s", "operationID": "du-1", "size": 5,
                                      "incrementalSize": 1, "Phase": "Failed"}},
        {"pvcName": "tmp", "pvcNamespace": "app", "pvName": "pv-3", "backupMethod": "PodVolumeBackup",
         "result": "succeeded", "pvbInfo": {"snapshotHandle": "k", "size": 7, "uploaderType": "kopia",
            "volumeName": "tmp", "podName": "web-0", "podNamespace": "app", "nodeName": "n",
            "Phase": "Completed"}},
        {"pvName": "pv-4", "backupMethod": "Teleport"},
    ]);
    let operations = json!([
        {"spec": {"backupName": "full", "backupItemAction": "x.io/a", "operationID": "op-1",
                  "resourceIdentifier": {"Group": "", "Resource": "persistentvolumeclaims",
                                         "Namespace": "app", "Name": "data"},
                  "postOperationItems": [{"Group": "x.io", "Resource": "things", "Namespace": "",
                                          "Name": "t"}]},
         "status": {"phase": "Failed", "error": "no space", "nCompleted": 1, "nTotal": 3,
                    "operationUnits": "bytes", "description": "uploading",
                    "created": "2026-01-02T03:04:06Z", "updated": "2026-01-02T03:04:07Z"}},
    ]);
    let resources = json!({"v1/Pod": ["app/web-0", "db/db-0"], "v1/Namespace": ["app"]});
    Files {
        results: Some(Ok(Results { errors, warnings })),
        volumes: Some(Ok(serde_json::from_value(volumes).unwrap())),
        operations: Some(Ok(serde_json::from_value(operations).unwrap())),
        resources: Some(Ok(serde_json::from_value(resources).unwrap())),
        deletions: Some(Ok(Vec::new())),
    }
}

/// Files downloaded without `--details`.
fn few_files() -> Files {
    Files { operations: None, resources: None, ..files() }
}

/// A volume that is being uploaded, a completed one, a failed one, and one whose plugin reports nothing.
fn transfers() -> Vec<VolumeProgress> {
    let running = json!({
        "phase": "InProgress", "snapshotID": "snap-1", "message": "uploading",
        "startTimestamp": "2026-01-02T03:04:05Z",
        "progress": {"bytesDone": 3_145_728, "totalBytes": 12_582_912},
    });
    let done = json!({
        "phase": "Completed", "snapshotID": "snap-2", "startTimestamp": "2026-01-02T03:04:05Z",
        "completionTimestamp": "2026-01-02T03:05:17Z",
        "progress": {"bytesDone": 9000, "totalBytes": 3000},
    });
    let failed = json!({
        "phase": "Failed", "snapshotID": "snap-3", "message": "no space\u{1b}[2J",
        "startTimestamp": "2026-01-02T03:04:05Z", "completionTimestamp": "2026-01-02T03:04:06Z",
        "progress": {"bytesDone": 5, "totalBytes": 0},
    });
    let silent = json!({"snapshotID": "snap-4"});
    let volumes = [("pv-1", running), ("pv-2", done), ("pv-3", failed), ("pv-4", silent)];
    volumes.iter().map(|(volume, status)| volume_progress::tests::backup(volume, status)).collect()
}

fn unlisted() -> FetchedVolumeProgress {
    Err(anyhow!("cannot list the VolumePluginBackups: you may not"))
}

fn unreadable() -> Files {
    Files {
        results: Some(Err(anyhow!("cannot read BackupResults: no"))),
        volumes: Some(Err(anyhow!("cannot read BackupVolumeInfos: no"))),
        operations: Some(Err(anyhow!("cannot read BackupItemOperations: no"))),
        resources: Some(Err(anyhow!("cannot read BackupResourceList: no"))),
        deletions: Some(Err(anyhow!("cannot list the requests"))),
    }
}

fn early(status: &Value) -> Backup {
    let mut backup = full();
    backup.metadata.labels = None;
    backup.metadata.annotations = None;
    backup.spec = serde_json::from_value(json!({
        "includedClusterScopedResources": ["*"], "excludedNamespaceScopedResources": ["events"],
        "orLabelSelectors": [{"matchLabels": {"a": "b"}}, {"matchLabels": {"c": "d"}}],
    }))
    .unwrap();
    backup.status = serde_json::from_value(status.clone()).unwrap();
    backup
}

#[test]
fn a_backup_with_details() {
    insta::assert_snapshot!(text::render(&full(), &files(), &Ok(transfers()), true));
}

#[test]
fn a_backup_without_details() {
    insta::assert_snapshot!(text::render(&full(), &few_files(), &Ok(transfers()), false));
}

#[test]
fn a_backup_whose_files_cannot_be_read() {
    let text = text::render(&full(), &unreadable(), &unlisted(), true);
    for line in [
        "Warnings:  1 <cannot read BackupResults: no>",
        "Errors:    2 <cannot read BackupResults: no>",
        "Backup Item Operations:  1 of 2 completed successfully, 1 failed \
         <cannot read BackupItemOperations: no>",
        "Resource List:  <cannot read BackupResourceList: no>",
        "Backup Volumes:  <cannot read BackupVolumeInfos: no>",
        "Volume Plugin Backups:  <cannot list the VolumePluginBackups: you may not>",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in {text}");
    }
    let json = json::render(&full(), &unreadable(), &unlisted(), true);
    assert_eq!(json["errors"]["errorGettingErrors"], "cannot read BackupResults: no");
    let deletions = &json["deletionAttempts"]["errorGettingDeleteBackupRequests"];
    assert_eq!(deletions, "cannot list the requests");
    assert_eq!(json["status"]["errorGettingResourceList"], "cannot read BackupResourceList: no");
    let volumes = &json["status"]["volumePluginBackups"]["errorGettingVolumes"];
    assert_eq!(volumes, "cannot list the VolumePluginBackups: you may not");
}

#[test]
fn a_backup_that_runs() {
    let running = early(&json!({
        "phase": "InProgress", "formatVersion": "1.1.0",
        "startTimestamp": "2026-01-02T03:04:05Z", "expiration": "2026-02-01T03:04:05Z",
        "progress": {"totalItems": 121, "itemsBackedUp": 12},
    }));
    insta::assert_snapshot!(text::render(&running, &Files::default(), &Ok(Vec::new()), false));
}

#[test]
fn a_backup_that_was_refused() {
    let refused = early(&json!({
        "phase": "FailedValidation", "validationErrors": ["no location `x`", "no namespace `y`"],
    }));
    let text = text::render(&refused, &Files::default(), &Ok(Vec::new()), false);
    let errors = "Validation errors:  no location `x`\n                    no namespace `y`\n";
    assert!(text.contains(errors), "{text}");
    assert!(!text.contains("Backup Volumes"), "{text}");
    assert!(!text.contains("Volume Plugin") && !text.contains("Freeze"), "{text}");
}

#[test]
fn a_backup_as_json() {
    insta::assert_snapshot!(format!(
        "{:#}",
        json::render(&full(), &files(), &Ok(transfers()), true)
    ));
}

/// Keys that scripts with `jq` rely on, after `backup_structured_describer.go` of Velero 1.18.
#[test]
fn volumes_as_json_have_veleros_keys() {
    let json = json::render(&full(), &files(), &Ok(transfers()), true);
    let volumes = &json["status"]["backupVolumes"];
    let native = json!({
        "snapshotID": "snap-1", "type": "ssd", "availabilityZone": "z1", "IOPS": "0",
        "result": "succeeded",
    });
    assert_eq!(volumes["nativeSnapshots"], json!({"pv-1": native}));
    let snapshot = json!({
        "snapshotContentName": "vsc", "storageSnapshotID": "h", "snapshotSize(bytes)": 4096,
        "csiDriver": "csi.x.io", "result": "failed",
    });
    let movement = json!({
        "operationID": "du-1", "dataMover": "velero", "uploaderType": "kopia", "result": "failed",
        "size": 5, "incrementalSize": 1,
    });
    let csi = json!({"app/log": {"snapshot": snapshot, "dataMovement": movement}});
    assert_eq!(volumes["csiSnapshots"], csi);
    let pods = json!({"Completed": [{"app/web-0": "tmp"}]});
    let copied = json!({"uploderType": "kopia", "podVolumeBackupsDetails": pods});
    assert_eq!(volumes["podVolumeBackups"], copied);

    let json = json::render(&full(), &few_files(), &Ok(transfers()), false);
    let volumes = &json["status"]["backupVolumes"];
    let more = "specify --details for more information";
    assert_eq!(volumes["nativeSnapshots"], json!({"pv-1": more}));
    assert_eq!(volumes["csiSnapshots"]["app/log"]["snapshot"], format!("included, {more}"));
    assert_eq!(volumes["podVolumeBackups"]["podVolumeBackupsDetails"], json!({"Completed": 1}));

    let none = Files { volumes: Some(Ok(Vec::new())), ..few_files() };
    let json = json::render(&full(), &none, &Ok(transfers()), false);
    for key in ["nativeSnapshots", "csiSnapshots", "podVolumeBackups"] {
        assert_eq!(json["status"]["backupVolumes"][key], "<none included>", "{key}");
    }
}

#[test]
fn delete_requests_are_shown_with_their_outcome() {
    let requests = json!([
        {"metadata": {"name": "a", "creationTimestamp": "2026-01-02T03:04:05Z"},
         "spec": {"backupName": "full"},
         "status": {"phase": "Processed", "errors": ["no\u{1b} snapshotter"]}},
        {"metadata": {"name": "b", "creationTimestamp": "2026-01-02T03:04:06Z"},
         "spec": {"backupName": "full"}},
    ]);
    let deletions = Some(Ok(serde_json::from_value(requests).unwrap()));
    let files = Files { deletions, ..few_files() };
    let json = json::render(&full(), &files, &Ok(transfers()), false);
    let expected = json!({
        "failed": 1,
        "deleteBackupRequests": [
            {"creationTimestamp": "2026-01-02 03:04:05 +0000 UTC", "phase": "Processed",
             "errors": ["no\u{1b} snapshotter"]},
            {"creationTimestamp": "2026-01-02 03:04:06 +0000 UTC", "phase": "New"},
        ],
    });
    assert_eq!(json["deletionAttempts"], expected);
    let text = text::render(&full(), &files, &Ok(transfers()), false);
    let lines = "\nDeletion Attempts (1 failed):\n  2026-01-02 03:04:05 +0000 UTC:  Processed\n    \
                 no\u{fffd} snapshotter\n  2026-01-02 03:04:06 +0000 UTC:  New\n";
    assert!(text.contains(lines), "{text}");
}

#[test]
fn json_filters_have_velero_keys_plus_scoped_filters() {
    let resources = |backup: &Backup| json::spec(&backup.spec)["resources"].clone();
    let plain = json!({"included": "pods", "excluded": "<none>", "clusterScoped": "included"});
    assert_eq!(resources(&full()), plain);
    let scoped = resources(&early(&json!({})));
    assert_eq!((&scoped["included"], &scoped["clusterScoped"]), (&json!("*"), &json!("auto")));
    assert_eq!(scoped["includedClusterScoped"], "*");
    assert_eq!(scoped["excludedNamespaceScoped"], "events");
}

#[test]
fn a_backup_as_json_without_details() {
    let json = json::render(&full(), &few_files(), &Ok(transfers()), false);
    insta::assert_snapshot!(format!("{:#}", json["status"]));
}

#[test]
fn freeze_windows_beyond_the_status_limit_are_marked() {
    let mut backup = full();
    let window = backup.status.as_ref().unwrap().freeze_windows[0].clone();
    for (count, expected) in [(1, "1 pod, "), (99, "99 pods, "), (100, "100 pods or more, ")] {
        backup.status.as_mut().unwrap().freeze_windows = vec![window.clone(); count];
        let text = text::render(&backup, &few_files(), &Ok(transfers()), false);
        let line = format!("Freeze windows:  {expected}the longest 120 ms (db/db-0) (specify");
        assert!(text.contains(&line), "no {line:?} in {text}");
    }
}
