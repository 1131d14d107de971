//! Volumes of a backup for programs, by backup method. Keys and shapes are those of Velero 1.18
//! (`pkg/cmd/util/output/backup_structured_describer.go`); `others` and `skipped` are additions of Bowline.

use std::collections::BTreeMap;

use bowline_store::file::{BackupVolumeInfo, Method};
use serde_json::{Map, Value, json};

use crate::describe::section::{DETAILS_HINT, NONE_INCLUDED};

pub(super) fn render(volumes: &[BackupVolumeInfo], details: bool) -> Value {
    let with_method = |method: Method| {
        let is_meant =
            move |v: &&BackupVolumeInfo| !v.skipped && v.backup_method.as_ref() == Some(&method);
        volumes.iter().filter(is_meant).collect::<Vec<_>>()
    };
    let is_other = |v: &&BackupVolumeInfo| {
        !v.skipped && matches!(&v.backup_method, None | Some(Method::Other(_)))
    };
    let others = volumes.iter().filter(is_other).map(|volume| other(volume, details));
    let skipped = volumes.iter().filter(|v| v.skipped).map(|volume| other(volume, details));
    json!({
        "nativeSnapshots": map(&with_method(Method::NativeSnapshot), |v| v.pv_name.clone(), |v| native(v, details)),
        "csiSnapshots": map(&with_method(Method::CsiSnapshot), claim, |v| csi(v, details)),
        "podVolumeBackups": pod_volumes(&with_method(Method::PodVolumeBackup), details),
        "others": others.collect::<Vec<_>>(),
        "skipped": skipped.collect::<Vec<_>>(),
    })
}

/// Volumes by name, or Velero's words for an empty list.
fn map(
    volumes: &[&BackupVolumeInfo],
    name: impl Fn(&BackupVolumeInfo) -> String,
    value: impl Fn(&BackupVolumeInfo) -> Value,
) -> Value {
    if volumes.is_empty() {
        return json!(NONE_INCLUDED);
    }
    volumes.iter().map(|volume| (name(volume), value(volume))).collect::<Map<_, _>>().into()
}

fn claim(volume: &BackupVolumeInfo) -> String {
    format!("{}/{}", volume.pvc_namespace, volume.pvc_name)
}

/// Result; empty if it is not recorded.
fn result(volume: &BackupVolumeInfo) -> Value {
    volume.result.as_ref().map_or_else(|| json!(""), |result| json!(result))
}

fn native(volume: &BackupVolumeInfo, details: bool) -> Value {
    if !details {
        return json!(DETAILS_HINT);
    }
    let info = volume.native_snapshot_info.clone().unwrap_or_default();
    json!({
        "snapshotID": info.snapshot_handle,
        "type": info.volume_type,
        "availabilityZone": info.volume_az,
        "IOPS": info.iops,
        "result": result(volume),
    })
}

fn csi(volume: &BackupVolumeInfo, details: bool) -> Value {
    let included = || json!(format!("included, {DETAILS_HINT}"));
    let mut csi = json!({});
    if volume.preserve_local_snapshot {
        csi["snapshot"] = if details { local_snapshot(volume) } else { included() };
    }
    if volume.snapshot_data_moved {
        csi["dataMovement"] = if details { data_movement(volume) } else { included() };
    }
    csi
}

fn local_snapshot(volume: &BackupVolumeInfo) -> Value {
    let info = volume.csi_snapshot_info.clone().unwrap_or_default();
    let mut snapshot = json!({
        "snapshotContentName": info.vsc_name,
        "storageSnapshotID": info.snapshot_handle,
        "snapshotSize(bytes)": info.size,
        "csiDriver": info.driver,
        "result": result(volume),
    });
    if !volume.snapshot_data_moved {
        snapshot["operationID"] = json!(info.operation_id);
    }
    snapshot
}

fn data_movement(volume: &BackupVolumeInfo) -> Value {
    let info = volume.snapshot_data_movement_info.clone().unwrap_or_default();
    let mover = if info.data_mover.is_empty() { "velero" } else { &info.data_mover };
    let mut movement = json!({
        "operationID": info.operation_id,
        "dataMover": mover,
        "uploaderType": info.uploader_type,
        "result": result(volume),
    });
    if info.size > 0 || info.incremental_size > 0 {
        movement["size"] = json!(info.size);
        movement["incrementalSize"] = json!(info.incremental_size);
    }
    movement
}

/// By phase: the number, or with details the volumes of each pod.
fn pod_volumes(volumes: &[&BackupVolumeInfo], details: bool) -> Value {
    let infos: Vec<_> = volumes.iter().map(|v| v.pvb_info.clone().unwrap_or_default()).collect();
    let Some(first) = infos.first() else { return json!(NONE_INCLUDED) };
    let mut phases: BTreeMap<&str, BTreeMap<String, Vec<&str>>> = BTreeMap::new();
    for info in &infos {
        let pods =
            phases.entry(if info.phase.is_empty() { "New" } else { &info.phase }).or_default();
        let pod = format!("{}/{}", info.pod_namespace, info.pod_name);
        pods.entry(pod).or_default().push(&info.volume_name);
    }
    let shown = phases.into_iter().map(|(phase, pods)| {
        let shown = if details {
            pods.iter().map(|(pod, volumes)| json!({pod.as_str(): volumes.join(", ")})).collect()
        } else {
            json!(pods.values().map(Vec::len).sum::<usize>())
        };
        (phase.to_owned(), shown)
    });
    json!({
        // Spelled as in Velero.
        "uploderType": first.uploader_type,
        "podVolumeBackupsDetails": shown.collect::<Map<_, _>>(),
    })
}

/// Volume for which Velero's document has no place: with details, as in the file.
fn other(volume: &BackupVolumeInfo, details: bool) -> Value {
    if details {
        return json!(volume);
    }
    let BackupVolumeInfo { pvc_namespace, pvc_name, pv_name, result, .. } = volume;
    let mut summary = json!({
        "pvcNamespace": pvc_namespace, "pvcName": pvc_name, "pvName": pv_name, "result": result,
    });
    if volume.skipped {
        summary["skippedReason"] = json!(volume.skipped_reason);
    }
    summary
}
