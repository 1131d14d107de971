//! Status of a VolumePluginBackup, from the operations on its snapshot.

use bowline_api::VolumePluginBackupStatus;
use bowline_api::volume_plugin::{VolumePluginPhase, VolumePluginProgress};
use bowline_engine::operation::{Operation, State};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Status of the resource of a snapshot, from the operations on it. `before` is its previous status.
pub(super) fn resource_status(
    before: &VolumePluginBackupStatus,
    operations: &[&Operation],
    now: Timestamp,
) -> VolumePluginBackupStatus {
    let failure = operations.iter().find_map(|operation| match &operation.state {
        State::Failed(failure) => Some(failure),
        State::New | State::InProgress | State::Completed => None,
    });
    let has_ended = operations.iter().all(|operation| operation.state.is_terminal());
    let phase = match failure {
        _ if !has_ended && operations.iter().all(|one| one.state == State::New) => {
            VolumePluginPhase::New
        }
        _ if !has_ended => VolumePluginPhase::InProgress,
        Some(failure) if failure.is_canceled() => VolumePluginPhase::Canceled,
        Some(_) => VolumePluginPhase::Failed,
        None => VolumePluginPhase::Completed,
    };
    // The upload is more informative than the creation, once it reports anything.
    let reporting =
        operations.iter().rev().find(|one| one.progress.done > 0 || one.progress.total > 0);
    let (mut done, total) = reporting
        .map_or((0, 0), |Operation { progress, .. }| (progress.done.max(0), progress.total.max(0)));
    // A completed snapshot states how much there is to upload, and that nothing has been uploaded yet. An upload that
    // ended without any report of its own has not uploaded all of it.
    let is_of_creation = reporting.is_some_and(|operation| match operation.state {
        State::Completed => phase != VolumePluginPhase::Completed,
        _ => !has_ended && operation.state.is_terminal(),
    });
    if is_of_creation {
        done = 0;
    }
    // The last report of a plugin may be from shortly before the end.
    if phase == VolumePluginPhase::Completed && total > 0 {
        done = total;
    }
    let nothing = VolumePluginProgress {
        unknown: before.progress.unknown.clone(),
        ..VolumePluginProgress::default()
    };
    let progress = match reporting.map(|operation| operation.progress.units.as_str()) {
        Some(units) if !is_bytes(units) => VolumePluginProgress {
            units: units.to_owned(),
            total_units: total,
            units_done: done,
            ..nothing
        },
        Some(_) | None => VolumePluginProgress { total_bytes: total, bytes_done: done, ..nothing },
    };
    let message = match failure {
        Some(failure) => failure.to_string(),
        None => operations
            .iter()
            .rev()
            .map(|one| &one.progress.description)
            .find(|text| !text.is_empty())
            .cloned()
            .unwrap_or_default(),
    };
    VolumePluginBackupStatus {
        phase: Some(phase),
        message,
        completion_timestamp: has_ended
            .then(|| before.completion_timestamp.clone().unwrap_or(Time(now))),
        progress,
        ..before.clone()
    }
}

/// True if a plugin counts bytes, which is the default.
fn is_bytes(units: &str) -> bool {
    units.is_empty() || units.eq_ignore_ascii_case("bytes")
}
