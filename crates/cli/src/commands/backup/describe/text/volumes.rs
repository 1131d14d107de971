//! How each volume was saved, or why it was not.

use bowline_api::Backup;
use bowline_store::file::{BackupVolumeInfo, Method, Outcome};

use super::super::super::phase;
use super::super::Files;
use crate::describe::Fetched;
use crate::describe::section::{MORE, volume_name, volumes as volumes_of};
use crate::sheet::Sheet;

pub(super) fn render(sheet: &mut Sheet, backup: &Backup, files: &Files, details: bool) {
    let volumes: &Fetched<Vec<BackupVolumeInfo>> = match &files.volumes {
        Some(volumes) => volumes,
        None if phase(backup).is_terminal() => return,
        None => {
            sheet.gap();
            sheet.field(0, "Backup Volumes", "<known when all items are backed up>");
            return;
        }
    };
    sheet.gap();
    let volumes = match volumes {
        Ok(volumes) => volumes,
        Err(reason) => {
            sheet.field(0, "Backup Volumes", format_args!("<{reason}>"));
            return;
        }
    };
    sheet.heading(0, "Backup Volumes");
    let of = |method: Method| {
        volumes
            .iter()
            .filter(move |v| !v.skipped && v.backup_method.as_ref() == Some(&method))
            .collect::<Vec<_>>()
    };
    volumes_of(
        sheet,
        1,
        "Velero-Native Snapshots",
        &of(Method::NativeSnapshot),
        |sheet, volume| {
            native_snapshot(sheet, volume, details);
        },
    );
    sheet.gap();
    volumes_of(sheet, 1, "CSI Snapshots", &of(Method::CsiSnapshot), |sheet, volume| {
        csi_snapshot(sheet, volume, details);
    });
    sheet.gap();
    volumes_of(sheet, 1, "Pod Volume Backups", &of(Method::PodVolumeBackup), |sheet, volume| {
        pod_volume(sheet, volume, details);
    });
    let is_other = |v: &&BackupVolumeInfo| {
        !v.skipped && matches!(&v.backup_method, None | Some(Method::Other(_)))
    };
    let other: Vec<_> = volumes.iter().filter(is_other).collect();
    if !other.is_empty() {
        sheet.gap();
        volumes_of(sheet, 1, "Others", &other, |sheet, volume| {
            sheet.field(2, &name(volume), outcome(volume));
        });
    }
    let skipped: Vec<_> = volumes.iter().filter(|volume| volume.skipped).collect();
    if !skipped.is_empty() {
        sheet.gap();
        volumes_of(sheet, 1, "Skipped", &skipped, |sheet, volume| {
            sheet.field(2, &name(volume), &volume.skipped_reason);
        });
    }
}

fn native_snapshot(sheet: &mut Sheet, volume: &BackupVolumeInfo, details: bool) {
    let Some(info) = volume.native_snapshot_info.as_ref().filter(|_| details) else {
        sheet.field(2, &name(volume), format_args!("{}, {MORE}", outcome(volume)));
        return;
    };
    sheet.heading(2, &name(volume));
    sheet.field(3, "Snapshot ID", &info.snapshot_handle);
    sheet.field(3, "Type", &info.volume_type);
    sheet.field(3, "Availability Zone", &info.volume_az);
    sheet.field(3, "IOPS", &info.iops);
    sheet.field(3, "Result", outcome(volume));
}

fn csi_snapshot(sheet: &mut Sheet, volume: &BackupVolumeInfo, details: bool) {
    sheet.heading(2, &name(volume));
    if volume.preserve_local_snapshot {
        match volume.csi_snapshot_info.as_ref().filter(|_| details) {
            None => sheet.field(3, "Snapshot", format_args!("included, {MORE}")),
            Some(info) => {
                sheet.heading(3, "Snapshot");
                if !volume.snapshot_data_moved && !info.operation_id.is_empty() {
                    sheet.field(4, "Operation ID", &info.operation_id);
                }
                sheet.field(4, "Snapshot Content Name", &info.vsc_name);
                sheet.field(4, "Storage Snapshot ID", &info.snapshot_handle);
                sheet.field(4, "Snapshot Size (bytes)", info.size);
                sheet.field(4, "CSI Driver", &info.driver);
                sheet.field(4, "Result", outcome(volume));
            }
        }
    }
    if volume.snapshot_data_moved {
        match volume.snapshot_data_movement_info.as_ref().filter(|_| details) {
            None => sheet.field(3, "Data Movement", format_args!("included, {MORE}")),
            Some(info) => {
                sheet.heading(3, "Data Movement");
                sheet.field(4, "Operation ID", &info.operation_id);
                let mover = if info.data_mover.is_empty() { "velero" } else { &info.data_mover };
                sheet.field(4, "Data Mover", mover);
                sheet.field(4, "Uploader Type", &info.uploader_type);
                sheet.field(4, "Moved data Size (bytes)", info.size);
                if info.incremental_size > 0 {
                    sheet.field(4, "Incremental data Size (bytes)", info.incremental_size);
                }
                sheet.field(4, "Result", outcome(volume));
            }
        }
    }
}

fn pod_volume(sheet: &mut Sheet, volume: &BackupVolumeInfo, details: bool) {
    let Some(info) = &volume.pvb_info else {
        sheet.field(2, &name(volume), outcome(volume));
        return;
    };
    let pod = format!("{}/{}, volume {}", info.pod_namespace, info.pod_name, info.volume_name);
    if !details {
        sheet.field(2, &pod, format_args!("{}, {MORE}", outcome(volume)));
        return;
    }
    sheet.heading(2, &pod);
    sheet.field(3, "Uploader Type", &info.uploader_type);
    sheet.field(3, "Snapshot ID", &info.snapshot_handle);
    sheet.field(3, "Size (bytes)", info.size);
    if info.incremental_size > 0 {
        sheet.field(3, "Incremental Size (bytes)", info.incremental_size);
    }
    sheet.field(3, "Node", &info.node_name);
    sheet.field(3, "Result", outcome(volume));
}

fn name(volume: &BackupVolumeInfo) -> String {
    volume_name(&volume.pvc_namespace, &volume.pvc_name, &volume.pv_name)
}

fn outcome(volume: &BackupVolumeInfo) -> &str {
    match &volume.result {
        Some(Outcome::Succeeded) => "succeeded",
        Some(Outcome::Failed) => "failed",
        Some(Outcome::Other(other)) => other,
        None => "result not known",
    }
}
