//! Backup method of each volume, or the reason why it was not backed up.

use bowline_api::Backup;
use bowline_store::file::{BackupVolumeInfo, Method, Outcome};

use super::super::super::phase;
use super::super::Files;
use crate::describe::Fetched;
use crate::describe::section::{DETAILS_HINT, volume_name, volumes as volumes_of};
use crate::key_value_page::KeyValuePage;
use crate::output::error_chain;

pub(super) fn render(page: &mut KeyValuePage, backup: &Backup, files: &Files, details: bool) {
    let volumes: &Fetched<Vec<BackupVolumeInfo>> = match &files.volumes {
        Some(volumes) => volumes,
        None if phase(backup).is_terminal() => return,
        None => {
            page.blank_line();
            page.field(0, "Backup Volumes", "<known when all items are backed up>");
            return;
        }
    };
    page.blank_line();
    let volumes = match volumes {
        Ok(volumes) => volumes,
        Err(error) => {
            page.field(0, "Backup Volumes", format_args!("<{}>", error_chain(error)));
            return;
        }
    };
    page.heading(0, "Backup Volumes");
    let with_method = |method: Method| {
        volumes
            .iter()
            .filter(move |v| !v.skipped && v.backup_method.as_ref() == Some(&method))
            .collect::<Vec<_>>()
    };
    volumes_of(
        page,
        1,
        "Velero-Native Snapshots",
        &with_method(Method::NativeSnapshot),
        |page, volume| {
            native_snapshot(page, volume, details);
        },
    );
    page.blank_line();
    volumes_of(page, 1, "CSI Snapshots", &with_method(Method::CsiSnapshot), |page, volume| {
        csi_snapshot(page, volume, details);
    });
    page.blank_line();
    volumes_of(
        page,
        1,
        "Pod Volume Backups",
        &with_method(Method::PodVolumeBackup),
        |page, volume| {
            pod_volume(page, volume, details);
        },
    );
    let is_other = |v: &&BackupVolumeInfo| {
        !v.skipped && matches!(&v.backup_method, None | Some(Method::Other(_)))
    };
    let other: Vec<_> = volumes.iter().filter(is_other).collect();
    if !other.is_empty() {
        page.blank_line();
        volumes_of(page, 1, "Others", &other, |page, volume| {
            page.field(2, &name(volume), outcome(volume));
        });
    }
    let skipped: Vec<_> = volumes.iter().filter(|volume| volume.skipped).collect();
    if !skipped.is_empty() {
        page.blank_line();
        volumes_of(page, 1, "Skipped", &skipped, |page, volume| {
            page.field(2, &name(volume), &volume.skipped_reason);
        });
    }
}

fn native_snapshot(page: &mut KeyValuePage, volume: &BackupVolumeInfo, details: bool) {
    let Some(info) = volume.native_snapshot_info.as_ref().filter(|_| details) else {
        page.field(2, &name(volume), format_args!("{}, {DETAILS_HINT}", outcome(volume)));
        return;
    };
    page.heading(2, &name(volume));
    page.field(3, "Snapshot ID", &info.snapshot_handle);
    page.field(3, "Type", &info.volume_type);
    page.field(3, "Availability Zone", &info.volume_az);
    page.field(3, "IOPS", &info.iops);
    page.field(3, "Result", outcome(volume));
}

fn csi_snapshot(page: &mut KeyValuePage, volume: &BackupVolumeInfo, details: bool) {
    page.heading(2, &name(volume));
    if volume.preserve_local_snapshot {
        match volume.csi_snapshot_info.as_ref().filter(|_| details) {
            None => page.field(3, "Snapshot", format_args!("included, {DETAILS_HINT}")),
            Some(info) => {
                page.heading(3, "Snapshot");
                if !volume.snapshot_data_moved && !info.operation_id.is_empty() {
                    page.field(4, "Operation ID", &info.operation_id);
                }
                page.field(4, "Snapshot Content Name", &info.vsc_name);
                page.field(4, "Storage Snapshot ID", &info.snapshot_handle);
                page.field(4, "Snapshot Size (bytes)", info.size);
                page.field(4, "CSI Driver", &info.driver);
                page.field(4, "Result", outcome(volume));
            }
        }
    }
    if volume.snapshot_data_moved {
        match volume.snapshot_data_movement_info.as_ref().filter(|_| details) {
            None => page.field(3, "Data Movement", format_args!("included, {DETAILS_HINT}")),
            Some(info) => {
                page.heading(3, "Data Movement");
                page.field(4, "Operation ID", &info.operation_id);
                let mover = if info.data_mover.is_empty() { "velero" } else { &info.data_mover };
                page.field(4, "Data Mover", mover);
                page.field(4, "Uploader Type", &info.uploader_type);
                page.field(4, "Moved data Size (bytes)", info.size);
                if info.incremental_size > 0 {
                    page.field(4, "Incremental data Size (bytes)", info.incremental_size);
                }
                page.field(4, "Result", outcome(volume));
            }
        }
    }
}

fn pod_volume(page: &mut KeyValuePage, volume: &BackupVolumeInfo, details: bool) {
    let Some(info) = &volume.pvb_info else {
        page.field(2, &name(volume), outcome(volume));
        return;
    };
    let pod = format!("{}/{}, volume {}", info.pod_namespace, info.pod_name, info.volume_name);
    if !details {
        page.field(2, &pod, format_args!("{}, {DETAILS_HINT}", outcome(volume)));
        return;
    }
    page.heading(2, &pod);
    page.field(3, "Uploader Type", &info.uploader_type);
    page.field(3, "Snapshot ID", &info.snapshot_handle);
    page.field(3, "Size (bytes)", info.size);
    if info.incremental_size > 0 {
        page.field(3, "Incremental Size (bytes)", info.incremental_size);
    }
    page.field(3, "Node", &info.node_name);
    page.field(3, "Result", outcome(volume));
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
