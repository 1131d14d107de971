//! Interpretation of VolumePluginBackups that a plugin writes itself.
//!
//! Pure functions. A resource that cannot be read, is gone or stale is no verdict on a snapshot: it is read again until
//! the deadline of the operation decides, with the last known state as the reason.

use std::time::Duration;

use bowline_api::VolumePluginBackup;
use bowline_api::volume_plugin::{VolumePluginOutcome, VolumePluginPhase, VolumePluginProgress};
use bowline_engine::operation::{Kind, Operation, State};
use bowline_plugin::{Class, Progress, Result, State as PluginState};
use jiff::Timestamp;
use kube::ResourceExt as _;

/// Time without a change after which a resource is called stale.
pub(super) const STALE_AFTER: Duration = Duration::from_mins(10);

/// State of a plugin's own resource for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PluginReport {
    Absent,
    /// A resource exists, or may exist, and cannot be read now, for this reason.
    Unreadable(String),
    /// Progress according to the resource.
    Reported(Progress),
}

/// Progress of an operation, from the answer of its plugin and its resource.
///
/// An answer takes precedence over a resource, which may cover creation and upload as one. Without an answer, a
/// resource that has ended ends the creation. A plugin that does not implement the call, because it writes a resource
/// instead, makes no statement by that.
pub(super) fn combine_progress(
    operation: &Operation,
    answer: Result<Progress>,
    report: PluginReport,
) -> Result<Progress> {
    let error = match answer {
        Ok(progress) => return Ok(progress),
        Err(error) => error,
    };
    let may_use_report = match error.class() {
        Class::Unimplemented => true,
        // The plugin may be down while another process of it writes the resource.
        Class::Transient => matches!(report, PluginReport::Reported(_)),
        Class::Permanent | Class::Unclear => false,
    };
    match report {
        // An upload ends when its call returns, whatever a resource says.
        PluginReport::Reported(progress)
            if may_use_report && operation.kind == Kind::SnapshotUpload =>
        {
            Ok(Progress { state: PluginState::Running, ..progress })
        }
        PluginReport::Reported(progress)
            if may_use_report
                || (progress.state != PluginState::Running
                    && operation.kind == Kind::SnapshotCreation) =>
        {
            Ok(progress)
        }
        PluginReport::Unreadable(reason)
            if may_use_report && operation.kind == Kind::SnapshotCreation =>
        {
            let description = reason;
            Ok(Progress { state: PluginState::Running, description, ..operation.progress.clone() })
        }
        PluginReport::Reported(_) | PluginReport::Unreadable(_) | PluginReport::Absent => {
            Err(error)
        }
    }
}

/// Progress according to a plugin's own resource.
pub(super) fn reported_progress(resource: &VolumePluginBackup, now: Timestamp) -> Progress {
    let status = resource.status.clone().unwrap_or_default();
    let phase = status.phase.unwrap_or(VolumePluginPhase::New);
    let state = match phase.outcome() {
        Some(VolumePluginOutcome::Completed) => PluginState::Succeeded,
        Some(VolumePluginOutcome::Failed) => PluginState::Failed(status.message.clone()),
        Some(VolumePluginOutcome::Canceled) => {
            PluginState::Failed(format!("canceled {}", status.message))
        }
        None => PluginState::Running,
    };
    let created = resource.creation_timestamp().map(|time| time.0);
    let updated = last_written(resource).or(created);
    let mut description = status.message;
    if state == PluginState::Running {
        let mut remarks = Vec::new();
        if let VolumePluginPhase::Other(word) = &phase
            && !word.is_empty()
        {
            remarks.push(format!("phase {word}"));
        }
        if !description.is_empty() {
            remarks.push(description);
        }
        if is_stale(resource, now) {
            let since = updated.map(|time| format!(" since {time}")).unwrap_or_default();
            remarks.push(format!("the VolumePluginBackup is unchanged{since}"));
        }
        description = remarks.join("; ");
    }
    let VolumePluginProgress { total_bytes, bytes_done, units, total_units, units_done, .. } =
        status.progress;
    let (done, total, units) = match (bytes_done, total_bytes, units) {
        (0, 0, units) if !units.is_empty() => (units_done, total_units, units),
        _ => (bytes_done, total_bytes, "Bytes".to_owned()),
    };
    Progress {
        state,
        done: done.max(0),
        total: total.max(0),
        units,
        description,
        // The existence of the resource shows that the work has started.
        started: status.start_timestamp.map(|time| time.0).or(created),
        updated,
    }
}

/// True if a resource that has not ended was not written for a long time.
pub(super) fn is_stale(resource: &VolumePluginBackup, now: Timestamp) -> bool {
    let phase = resource.status.as_ref().and_then(|status| status.phase.as_ref());
    let has_ended = phase.is_some_and(VolumePluginPhase::is_terminal);
    let created = resource.creation_timestamp().map(|time| time.0);
    let written = last_written(resource).or(created);
    !has_ended
        && written.is_none_or(|written| now.duration_since(written).unsigned_abs() >= STALE_AFTER)
}

/// Time of the last write to the status, by any writer.
fn last_written(resource: &VolumePluginBackup) -> Option<Timestamp> {
    let entries = resource.managed_fields().iter();
    let of_status = entries.filter(|entry| {
        entry.fields_v1.as_ref().is_some_and(|set| set.0.get("f:status").is_some())
    });
    of_status.filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max()
}

/// Handling of a resource when all operations of its backup have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ResourceEnd {
    /// Leave it as it is.
    Keep,
    /// Remove it: it is the server's, and about a snapshot that the backup does not have.
    Remove,
    /// End it: it shows work in progress, and there is none any more.
    End(VolumePluginPhase, String),
}

/// Decides how a resource ends when the operations on its snapshot have ended. A snapshot that the backup does not have
/// has no operations.
pub(super) fn resource_end(
    resource: &VolumePluginBackup,
    is_ours: bool,
    operations: &[&Operation],
) -> ResourceEnd {
    let phase = resource.status.as_ref().and_then(|status| status.phase.as_ref());
    let is_unknown = operations.is_empty();
    match phase.and_then(VolumePluginPhase::outcome) {
        // The snapshot was in flight when a server was killed, and was taken again.
        Some(VolumePluginOutcome::Completed) if is_unknown && !is_ours => {}
        Some(_) => return ResourceEnd::Keep,
        None => {}
    }
    let failure = operations.iter().find_map(|operation| match &operation.state {
        State::Failed(failure) => Some(failure),
        State::New | State::InProgress | State::Completed => None,
    });
    match failure {
        None if is_unknown && is_ours => ResourceEnd::Remove,
        None if is_unknown => ResourceEnd::End(
            VolumePluginPhase::Failed,
            "the backup does not have this snapshot".to_owned(),
        ),
        None if operations.iter().any(|operation| operation.state != State::Completed) => {
            ResourceEnd::Keep
        }
        None => match phase {
            // The plugin may have its own word for the end.
            Some(VolumePluginPhase::Other(word)) if !word.is_empty() => ResourceEnd::Keep,
            // A plugin that was killed with its server does not write the end. A plugin about to write it still can.
            _ => ResourceEnd::End(VolumePluginPhase::Completed, String::new()),
        },
        Some(failure) => {
            let phase = if failure.is_canceled() {
                VolumePluginPhase::Canceled
            } else {
                VolumePluginPhase::Failed
            };
            ResourceEnd::End(phase, failure.to_string())
        }
    }
}

#[cfg(test)]
mod tests;
