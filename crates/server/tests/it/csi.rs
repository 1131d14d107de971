//! Snapshots by a CSI driver behind the real snapshot controller.

use bowline_api::VolumePluginBackup;
use bowline_store::file::{BackupOperation, Outcome};
use bowline_testbed::apply::apply;
use bowline_testbed::csi::{self, Switches};
use bowline_testbed::{Bed, ControlPlane, Node, node};
use kube::api::DeleteParams;
use serde_json::json;

use crate::csi_restore::{assert_application_restored, assert_group_deleted_with_backup};
use crate::support::csi::{CsiScenario, claim, run_csi_scenario};
use crate::support::runs::{is_over, is_waiting, phase};

#[tokio::test(flavor = "multi_thread")]
async fn application_is_frozen_until_snapshots_are_taken_not_until_ready() {
    if !node::require_for_test("an_application_is_frozen_until_its_driver_has_the_snapshots") {
        return;
    }
    let bed = Bed::isolated().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    let node = Node::start(&plane).await.unwrap();
    Box::pin(run_csi_scenario(&bed, &plane, Some(&node), assert_one_freeze_window)).await;
}

fn phase_of(one: &VolumePluginBackup) -> String {
    one.status.as_ref().and_then(|status| status.phase.as_ref()).unwrap().to_string()
}

/// Two claims of a pod are of one instant, and slow ones do not hold the freeze.
async fn assert_one_freeze_window(stage: &CsiScenario) {
    stage.claims("db", &["orders", "log"]).await;
    stage.pod("db", &["orders", "log"]).await;
    let ready_after_ms = 10_000;
    stage.csi.set_switches(&Switches { ready_after_ms, ..Switches::default() }).unwrap();
    stage.back_up("frozen", "db", json!({})).await;
    let waiting = stage.backup("frozen", is_waiting).await;
    assert_eq!(phase(&waiting), "WaitingForPluginOperations", "{:?}", waiting.status);
    stage
        .until("two VolumePluginBackups in progress", async || {
            let shown = stage.volume_plugin_backups("frozen").await;
            let phases: Vec<String> = shown.iter().map(phase_of).collect();
            (phases == ["InProgress", "InProgress"]).then_some(())
        })
        .await;
    let backup = stage.backup("frozen", is_over).await;
    assert_eq!(stage.errors("frozen").await, [""; 0]);
    assert_eq!(phase(&backup), "Completed", "{:?}", backup.status);
    let status = backup.status.unwrap();
    assert_eq!(
        (status.csi_volume_snapshots_attempted, status.csi_volume_snapshots_completed),
        (2, 2)
    );
    let [window] = &status.freeze_windows[..] else { panic!("{:?}", status.freeze_windows) };
    println!("frozen for {} ms", window.milliseconds);
    let ready_after = i64::try_from(ready_after_ms).unwrap();
    assert!(window.milliseconds * 2 < ready_after, "frozen for {} ms", window.milliseconds);

    let infos = stage.infos("frozen").await;
    let mut counts = Vec::new();
    for (claim, info) in &infos {
        assert_eq!(info.result, Some(Outcome::Succeeded), "{claim}");
        let csi = info.csi_snapshot_info.as_ref().unwrap();
        let counted = std::fs::read_to_string(stage.csi.snapshot(&csi.snapshot_handle).join("n"));
        counts.push(counted.unwrap().lines().last().unwrap().parse::<i64>().unwrap());
        assert_eq!((csi.driver.as_str(), csi.ready_to_use), (csi::DRIVER, Some(true)));
        assert!(info.completion_timestamp.is_some() && info.start_timestamp.is_some());
    }
    assert_eq!(counts.len(), 2, "{infos:?}");
    assert!((counts[0] - counts[1]).abs() <= 1, "of one instant: {counts:?}");

    let archive = stage.archive("frozen").await;
    let claim = &archive["resources/persistentvolumeclaims/namespaces/shop/orders.json"];
    let name = claim["metadata"]["annotations"]["velero.io/volume-snapshot-name"].as_str().unwrap();
    let path =
        format!("resources/volumesnapshots.snapshot.storage.k8s.io/namespaces/shop/{name}.json");
    let snapshot = &archive[&path];
    assert_eq!(snapshot["status"]["readyToUse"], true, "as it was at the end");
    let handle = &infos["orders"].csi_snapshot_info.as_ref().unwrap().snapshot_handle;
    let marks = &snapshot["metadata"]["annotations"];
    assert_eq!(marks["velero.io/csi-volumesnapshot-handle"], *handle);
    let class = "resources/volumesnapshotclasses.snapshot.storage.k8s.io/cluster/folders.json";
    assert!(archive.contains_key(class));

    let shown = stage.volume_plugin_backups("frozen").await;
    for one in &shown {
        let status = one.status.as_ref().unwrap();
        assert_eq!(phase_of(one), "Completed");
        assert!(status.progress.total_bytes > 0, "{status:?}");
        assert_eq!(status.progress.total_bytes, status.progress.bytes_done);
        assert_eq!(one.spec.plugin, format!("velero.io/csi/{}", csi::DRIVER));
    }
    // The snapshots are the driver's alone now.
    stage.until_no_objects().await;
    assert_eq!(stage.csi.snapshots().unwrap().len(), 2);
    assert_application_restored(stage, "frozen", "db", &["orders", "log"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn csi_driver_failures_are_reported_and_leave_nothing() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    run_csi_scenario(&bed, &plane, None, async |stage| {
        Box::pin(assert_half_of_the_snapshots_fail(stage)).await;
        Box::pin(assert_unready_snapshot_times_out(stage)).await;
        Box::pin(assert_canceled_backup_leaves_no_snapshot(stage)).await;
        Box::pin(assert_group_snapshot(stage)).await;
        Box::pin(assert_missing_class_is_reported(stage)).await;
    })
    .await;
}

/// A driver that fails half of its snapshots gives exactly those errors.
async fn assert_half_of_the_snapshots_fail(stage: &CsiScenario) {
    let names = ["half-0", "half-1", "half-2", "half-3"];
    stage.claims("half", &names).await;
    let fail_create = ["shop/half-1", "shop/half-3"].map(str::to_owned).to_vec();
    stage.csi.set_switches(&Switches { fail_create, ..Switches::default() }).unwrap();
    stage.back_up("half", "half", json!({})).await;
    let backup = stage.backup("half", is_over).await;
    assert_eq!(phase(&backup), "PartiallyFailed");
    let status = backup.status.unwrap();
    assert_eq!(
        (status.csi_volume_snapshots_attempted, status.csi_volume_snapshots_completed),
        (4, 2)
    );
    let errors = stage.errors("half").await;
    assert_eq!(errors.len(), 2, "{errors:#?}");
    let infos = stage.infos("half").await;
    for (name, fails) in names.into_iter().zip([false, true, false, true]) {
        let claim_errors =
            errors.iter().filter(|text| text.contains(&format!("persistentvolumeclaims/{name}:")));
        assert_eq!(claim_errors.count(), usize::from(fails), "{name} of {errors:#?}");
        let result = if fails { Outcome::Failed } else { Outcome::Succeeded };
        assert_eq!(infos[name].result, Some(result), "{name}");
    }
    stage.csi.set_switches(&Switches::default()).unwrap();
    stage.until_no_objects().await;
    assert_eq!(stage.csi.snapshots().unwrap().len(), 2);
}

/// A snapshot that never can be used is an operation that times out.
async fn assert_unready_snapshot_times_out(stage: &CsiScenario) {
    let before = stage.csi.snapshots().unwrap();
    stage.claims("never", &["soon", "never"]).await;
    let never_ready = vec!["shop/never".to_owned()];
    stage.csi.set_switches(&Switches { never_ready, ..Switches::default() }).unwrap();
    stage.back_up("never", "never", json!({"itemOperationTimeout": "8s"})).await;
    let backup = stage.backup("never", is_over).await;
    assert_eq!(phase(&backup), "PartiallyFailed");
    let errors = stage.errors("never").await;
    assert_eq!(errors.len(), 1, "{errors:#?}");
    for part in ["velero-never-", "timed out", "is not ready to use"] {
        assert!(errors[0].contains(part), "{part} in {errors:?}");
    }
    let operations: Vec<BackupOperation> = stage.get("never").await;
    assert_eq!(operations.len(), 2);
    let infos = stage.infos("never").await;
    assert_eq!(infos["never"].result, Some(Outcome::Failed));
    assert_eq!(infos["soon"].result, Some(Outcome::Succeeded));
    // The claim does not name a snapshot that is gone.
    let archive = stage.archive("never").await;
    let named = |claim: &str| {
        let stored =
            &archive[&format!("resources/persistentvolumeclaims/namespaces/shop/{claim}.json")];
        stored["metadata"]["annotations"]["velero.io/volume-snapshot-name"].is_string()
    };
    assert!(named("soon") && !named("never"));
    stage.until_no_objects().await;
    assert_eq!(stage.csi.snapshots().unwrap().len(), before.len() + 1);
    stage.csi.set_switches(&Switches::default()).unwrap();
}

/// A canceled backup leaves no snapshot.
async fn assert_canceled_backup_leaves_no_snapshot(stage: &CsiScenario) {
    let before = stage.csi.snapshots().unwrap();
    stage.claims("cancel", &["cancel-0", "cancel-1"]).await;
    let never_ready = vec!["*".to_owned()];
    stage.csi.set_switches(&Switches { never_ready, ..Switches::default() }).unwrap();
    stage.back_up("cancel", "cancel", json!({})).await;
    stage.backup("cancel", is_waiting).await;
    assert_eq!(stage.csi.snapshots().unwrap().len(), before.len() + 2);
    stage.cancel("cancel").await;
    stage.until_no_objects().await;
    assert_eq!(stage.csi.snapshots().unwrap(), before);
    for (_, info) in stage.infos("cancel").await {
        assert_eq!(info.csi_snapshot_info.unwrap().snapshot_handle, "");
    }
    stage.csi.set_switches(&Switches::default()).unwrap();
}

/// Claims of a volume group are snapshotted by one call, and deleted by one.
async fn assert_group_snapshot(stage: &CsiScenario) {
    let before = stage.csi.snapshots().unwrap();
    for name in ["group-0", "group-1"] {
        let mut claim = claim(name, "group");
        claim["metadata"]["labels"]["velero.io/volume-group"] = "Group_1".into();
        apply(&stage.client, claim).await.unwrap();
        let folder = stage.volume_of(name).await;
        std::fs::write(folder.join("file"), name).unwrap();
    }
    let groups = || {
        let calls = stage.csi.calls().unwrap();
        let calls = calls.into_iter().filter(|call| call.error.is_none());
        calls.map(|call| call.method).filter(|method| method.contains("Group")).collect::<Vec<_>>()
    };
    stage.back_up("group", "group", json!({})).await;
    let backup = stage.backup("group", is_over).await;
    assert_eq!(stage.errors("group").await, [""; 0]);
    assert_eq!(phase(&backup), "Completed");
    let calls = groups();
    assert_eq!(calls.iter().filter(|one| *one == "CreateVolumeGroupSnapshot").count(), 1);
    for (name, info) in stage.infos("group").await {
        let csi = info.csi_snapshot_info.unwrap();
        assert_ne!(csi.volume_group_snapshot_handle, "", "{name}");
        let saved = std::fs::read_to_string(stage.csi.snapshot(&csi.snapshot_handle).join("file"));
        assert_eq!(saved.unwrap(), name);
    }
    stage.until_no_objects().await;
    assert_eq!(stage.csi.snapshots().unwrap().len(), before.len() + 2);
    assert!(!groups().contains(&"DeleteVolumeGroupSnapshot".to_owned()), "they are kept");

    let never_ready = vec!["*".to_owned()];
    stage.csi.set_switches(&Switches { never_ready, ..Switches::default() }).unwrap();
    stage.back_up("group-off", "group", json!({})).await;
    stage.backup("group-off", is_waiting).await;
    stage.cancel("group-off").await;
    stage.until_no_objects().await;
    assert_eq!(stage.csi.snapshots().unwrap().len(), before.len() + 2, "those of the first");
    stage.csi.set_switches(&Switches::default()).unwrap();
    assert_group_deleted_with_backup(stage, "group", &before).await;
}

/// A claim whose driver has no class is reported.
async fn assert_missing_class_is_reported(stage: &CsiScenario) {
    stage.claims("none", &["lonely"]).await;
    let classes = stage.api("VolumeSnapshotClass");
    classes.delete(csi::SNAPSHOT_CLASS, &DeleteParams::default()).await.unwrap();
    stage.back_up("none", "none", json!({})).await;
    let backup = stage.backup("none", is_over).await;
    assert_eq!(phase(&backup), "PartiallyFailed");
    let errors = stage.errors("none").await;
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert!(errors[0].contains("no VolumeSnapshotClass exists for driver"), "{errors:?}");
    let infos = stage.infos("none").await;
    assert!(infos["lonely"].skipped, "{infos:?}");
}
