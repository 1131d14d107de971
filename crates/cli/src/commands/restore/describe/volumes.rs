//! How each volume was restored.

use bowline_api::Restore;
use bowline_store::file::{Method, RestoreVolumeInfo};

use super::Files;
use crate::describe::Fetched;
use crate::describe::section::{self, MORE, volume_name};
use crate::run::Run as _;
use crate::sheet::Sheet;

pub(super) fn render(sheet: &mut Sheet, restore: &Restore, files: &Files, details: bool) {
    let volumes: &Fetched<Vec<RestoreVolumeInfo>> = match &files.volumes {
        Some(volumes) => volumes,
        None if restore.summary().stage.is_over() => return,
        None => {
            sheet.gap();
            sheet.field(0, "Restored Volumes", "<known when all items are restored>");
            return;
        }
    };
    sheet.gap();
    let volumes = match volumes {
        Ok(volumes) => volumes,
        Err(reason) => {
            sheet.field(0, "Restored Volumes", format_args!("<{reason}>"));
            return;
        }
    };
    let of = |method: Method| -> Vec<&RestoreVolumeInfo> {
        volumes.iter().filter(|v| v.restore_method.as_ref() == Some(&method)).collect()
    };
    let native = of(Method::NativeSnapshot);
    if !native.is_empty() {
        section::volumes(sheet, 0, "Velero-Native Snapshot Restores", &native, |sheet, volume| {
            native_snapshot(sheet, volume, details);
        });
        sheet.gap();
    }
    let copied = of(Method::PodVolumeRestore);
    if !copied.is_empty() {
        section::volumes(sheet, 0, "Pod Volume Restores", &copied, |sheet, volume| {
            pod_volume(sheet, volume, details);
        });
        sheet.gap();
    }
    // Velero says of these alone that there are none.
    let csi = of(Method::CsiSnapshot);
    section::volumes(sheet, 0, "CSI Snapshot Restores", &csi, |sheet, volume| {
        csi_snapshot(sheet, volume, details);
    });
    let is_other = |volume: &&RestoreVolumeInfo| {
        let method = volume.restore_method.as_ref();
        matches!(method, None | Some(Method::Other(_) | Method::PodVolumeBackup))
    };
    let other: Vec<_> = volumes.iter().filter(is_other).collect();
    if !other.is_empty() {
        sheet.gap();
        section::volumes(sheet, 0, "Other Volume Restores", &other, |sheet, volume| {
            sheet.line(1, name(volume));
        });
    }
}

fn native_snapshot(sheet: &mut Sheet, volume: &RestoreVolumeInfo, details: bool) {
    let Some(info) = volume.native_snapshot_info.as_ref().filter(|_| details) else {
        sheet.field(1, &name(volume), more(details));
        return;
    };
    sheet.heading(1, &name(volume));
    sheet.field(2, "Snapshot ID", &info.snapshot_handle);
    sheet.field(2, "Type", &info.volume_type);
    sheet.field(2, "Availability Zone", &info.volume_az);
    sheet.field(2, "IOPS", &info.iops);
}

fn csi_snapshot(sheet: &mut Sheet, volume: &RestoreVolumeInfo, details: bool) {
    sheet.heading(1, &name(volume));
    if volume.snapshot_data_moved {
        match volume.snapshot_data_movement_info.as_ref().filter(|_| details) {
            None => sheet.field(2, "Data Movement", more(details)),
            Some(info) => {
                sheet.heading(2, "Data Movement");
                sheet.field(3, "Operation ID", &info.operation_id);
                let mover = if info.data_mover.is_empty() { "velero" } else { &info.data_mover };
                sheet.field(3, "Data Mover", mover);
                sheet.field(3, "Uploader Type", &info.uploader_type);
            }
        }
        return;
    }
    match volume.csi_snapshot_info.as_ref().filter(|_| details) {
        None => sheet.field(2, "Snapshot", more(details)),
        Some(info) => {
            sheet.heading(2, "Snapshot");
            sheet.field(3, "Snapshot Content Name", &info.vsc_name);
            sheet.field(3, "Storage Snapshot ID", &info.snapshot_handle);
            sheet.field(3, "CSI Driver", &info.driver);
        }
    }
}

fn pod_volume(sheet: &mut Sheet, volume: &RestoreVolumeInfo, details: bool) {
    let Some(info) = &volume.pvr_info else {
        sheet.line(1, name(volume));
        return;
    };
    let pod = format!("{}/{}, volume {}", info.pod_namespace, info.pod_name, info.volume_name);
    let phase = if info.phase.is_empty() { "New" } else { &info.phase };
    if !details {
        sheet.field(1, &pod, format_args!("{phase}, {MORE}"));
        return;
    }
    sheet.heading(1, &pod);
    sheet.field(2, "Phase", phase);
    sheet.field(2, "Uploader Type", &info.uploader_type);
    sheet.field(2, "Snapshot ID", &info.snapshot_handle);
    sheet.field(2, "Size (bytes)", info.size);
}

/// Where there is more to see, if there is.
fn more(details: bool) -> &'static str {
    if details { "<not known>" } else { MORE }
}

fn name(volume: &RestoreVolumeInfo) -> String {
    volume_name(&volume.pvc_namespace, &volume.pvc_name, &volume.pv_name)
}
