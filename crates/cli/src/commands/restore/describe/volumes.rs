//! Restore method of each volume.

use bowline_api::Restore;
use bowline_store::file::{Method, RestoreVolumeInfo};

use super::Files;
use crate::describe::Fetched;
use crate::describe::section::{self, DETAILS_HINT, volume_name};
use crate::key_value_page::KeyValuePage;
use crate::output::error_chain;
use crate::run::Run as _;

pub(super) fn render(page: &mut KeyValuePage, restore: &Restore, files: &Files, details: bool) {
    let volumes: &Fetched<Vec<RestoreVolumeInfo>> = match &files.volumes {
        Some(volumes) => volumes,
        None if restore.summary().stage.is_terminal() => return,
        None => {
            page.blank_line();
            page.field(0, "Restored Volumes", "<known when all items are restored>");
            return;
        }
    };
    page.blank_line();
    let volumes = match volumes {
        Ok(volumes) => volumes,
        Err(error) => {
            page.field(0, "Restored Volumes", format_args!("<{}>", error_chain(error)));
            return;
        }
    };
    let with_method = |method: Method| -> Vec<&RestoreVolumeInfo> {
        volumes.iter().filter(|v| v.restore_method.as_ref() == Some(&method)).collect()
    };
    let native = with_method(Method::NativeSnapshot);
    if !native.is_empty() {
        section::volumes(page, 0, "Velero-Native Snapshot Restores", &native, |page, volume| {
            native_snapshot(page, volume, details);
        });
        page.blank_line();
    }
    let copied = with_method(Method::PodVolumeRestore);
    if !copied.is_empty() {
        section::volumes(page, 0, "Pod Volume Restores", &copied, |page, volume| {
            pod_volume(page, volume, details);
        });
        page.blank_line();
    }
    // Only for these does Velero print that there are none.
    let csi = with_method(Method::CsiSnapshot);
    section::volumes(page, 0, "CSI Snapshot Restores", &csi, |page, volume| {
        csi_snapshot(page, volume, details);
    });
    let is_other = |volume: &&RestoreVolumeInfo| {
        let method = volume.restore_method.as_ref();
        matches!(method, None | Some(Method::Other(_) | Method::PodVolumeBackup))
    };
    let other: Vec<_> = volumes.iter().filter(is_other).collect();
    if !other.is_empty() {
        page.blank_line();
        section::volumes(page, 0, "Other Volume Restores", &other, |page, volume| {
            page.line(1, name(volume));
        });
    }
}

fn native_snapshot(page: &mut KeyValuePage, volume: &RestoreVolumeInfo, details: bool) {
    let Some(info) = volume.native_snapshot_info.as_ref().filter(|_| details) else {
        page.field(1, &name(volume), more(details));
        return;
    };
    page.heading(1, &name(volume));
    page.field(2, "Snapshot ID", &info.snapshot_handle);
    page.field(2, "Type", &info.volume_type);
    page.field(2, "Availability Zone", &info.volume_az);
    page.field(2, "IOPS", &info.iops);
}

fn csi_snapshot(page: &mut KeyValuePage, volume: &RestoreVolumeInfo, details: bool) {
    page.heading(1, &name(volume));
    if volume.snapshot_data_moved {
        match volume.snapshot_data_movement_info.as_ref().filter(|_| details) {
            None => page.field(2, "Data Movement", more(details)),
            Some(info) => {
                page.heading(2, "Data Movement");
                page.field(3, "Operation ID", &info.operation_id);
                let mover = if info.data_mover.is_empty() { "velero" } else { &info.data_mover };
                page.field(3, "Data Mover", mover);
                page.field(3, "Uploader Type", &info.uploader_type);
            }
        }
        return;
    }
    match volume.csi_snapshot_info.as_ref().filter(|_| details) {
        None => page.field(2, "Snapshot", more(details)),
        Some(info) => {
            page.heading(2, "Snapshot");
            page.field(3, "Snapshot Content Name", &info.vsc_name);
            page.field(3, "Storage Snapshot ID", &info.snapshot_handle);
            page.field(3, "CSI Driver", &info.driver);
        }
    }
}

fn pod_volume(page: &mut KeyValuePage, volume: &RestoreVolumeInfo, details: bool) {
    let Some(info) = &volume.pvr_info else {
        page.line(1, name(volume));
        return;
    };
    let pod = format!("{}/{}, volume {}", info.pod_namespace, info.pod_name, info.volume_name);
    let phase = if info.phase.is_empty() { "New" } else { &info.phase };
    if !details {
        page.field(1, &pod, format_args!("{phase}, {DETAILS_HINT}"));
        return;
    }
    page.heading(1, &pod);
    page.field(2, "Phase", phase);
    page.field(2, "Uploader Type", &info.uploader_type);
    page.field(2, "Snapshot ID", &info.snapshot_handle);
    page.field(2, "Size (bytes)", info.size);
}

/// Hint at further details, if there are any.
fn more(details: bool) -> &'static str {
    if details { "<unknown>" } else { DETAILS_HINT }
}

fn name(volume: &RestoreVolumeInfo) -> String {
    volume_name(&volume.pvc_namespace, &volume.pvc_name, &volume.pv_name)
}
