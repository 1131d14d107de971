//! Port for publishing the progress of volume creation.

use async_trait::async_trait;
use bowline_plugin::{Progress, SnapshotId, State, VolumeId};
use jiff::Timestamp;

/// Receives the progress of volumes that are created from snapshots.
///
/// For each volume the calls are sequential: the start, once or more (again after a restart), then the progress, and
/// finally the end. A failure is reported to the user and has no other effect. A call that takes too long is
/// abandoned.
#[async_trait]
pub trait VolumeProgressReporter: Send + Sync {
    /// A plugin was asked to create a volume.
    async fn creation_started(&self, creation: &VolumeCreation) -> Result<(), ProgressReportError>;

    /// Progress in bytes. At most once a second.
    async fn report_bytes(
        &self,
        creation: &VolumeCreation,
        bytes: ByteProgress,
    ) -> Result<(), ProgressReportError>;

    /// Progress in units other than bytes. At most once a second.
    async fn report_units(
        &self,
        creation: &VolumeCreation,
        units: &UnitProgress,
    ) -> Result<(), ProgressReportError> {
        let _ = (creation, units);
        Ok(())
    }

    /// The creation is still running, with or without progress from the plugin. At most once a second.
    async fn report_running(&self, creation: &VolumeCreation) -> Result<(), ProgressReportError> {
        let _ = creation;
        Ok(())
    }

    /// The creation has ended.
    async fn creation_ended(
        &self,
        creation: &VolumeCreation,
        end: &VolumeCreationResult,
    ) -> Result<(), ProgressReportError>;
}

/// Why progress was not published, in the words of the reporter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProgressReportError(pub String);

/// Creation of a volume by a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeCreation {
    /// Name of the PersistentVolume in the backup.
    pub persistent_volume: String,
    /// Name of the PersistentVolume in the cluster.
    pub target: String,
    /// Source snapshot.
    pub snapshot: SnapshotId,
    /// Name of the plugin or the CSI driver.
    pub plugin: String,
    /// Start time.
    pub started_at: Timestamp,
}

/// Progress of a plugin in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteProgress {
    /// Completed bytes.
    pub done: i64,
    /// Total bytes; zero if unknown.
    pub total: i64,
}

impl ByteProgress {
    /// Progress in bytes, if available. A plugin that cannot report on volume creation reports on the snapshot itself:
    /// that it is complete.
    pub(super) fn of(progress: &Progress) -> Option<Self> {
        let is_in_bytes = progress.units.is_empty() || progress.units.eq_ignore_ascii_case("bytes");
        let Progress { done, total, .. } = *progress;
        let is_reported = progress.state == State::Running && is_in_bytes && done >= 0;
        (is_reported && (done, total) != (0, 0)).then_some(Self { done, total: total.max(0) })
    }
}

/// Progress of a plugin in units other than bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitProgress {
    /// Name of the unit, such as `Files`.
    pub name: String,
    /// Completed units.
    pub done: i64,
    /// Total units; zero if unknown.
    pub total: i64,
}

impl UnitProgress {
    /// Progress in units other than bytes, if available.
    pub(super) fn of(progress: &Progress) -> Option<Self> {
        let Progress { done, total, ref units, .. } = *progress;
        let is_in_bytes = units.is_empty() || units.eq_ignore_ascii_case("bytes");
        let is_reported = progress.state == State::Running && !is_in_bytes && done >= 0;
        (is_reported && (done, total) != (0, 0)).then(|| Self {
            name: units.clone(),
            done,
            total: total.max(0),
        })
    }
}

/// Result of the creation of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeCreationResult {
    /// The plugin created this volume.
    Completed(VolumeId),
    /// No volume was created, with the reason.
    Failed(String),
    /// The restore was canceled.
    Canceled(String),
}

/// Reporter that discards all calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReporter;

#[async_trait]
impl VolumeProgressReporter for NoReporter {
    async fn creation_started(&self, _: &VolumeCreation) -> Result<(), ProgressReportError> {
        Ok(())
    }

    async fn report_bytes(
        &self,
        _: &VolumeCreation,
        _: ByteProgress,
    ) -> Result<(), ProgressReportError> {
        Ok(())
    }

    async fn creation_ended(
        &self,
        _: &VolumeCreation,
        _: &VolumeCreationResult,
    ) -> Result<(), ProgressReportError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_progress_is_reported_in_bytes_or_units() {
        let progress = |state, done, total, units: &str| Progress {
            state,
            done,
            total,
            units: units.into(),
            ..Progress::default()
        };
        let some = |done, total| Some(ByteProgress { done, total });
        for (state, done, total, units, expected) in [
            (State::Running, 3, 9, "Bytes", some(3, 9)),
            (State::Running, 3, 9, "bytes", some(3, 9)),
            (State::Running, 3, 9, "", some(3, 9)),
            (State::Running, 3, 0, "Bytes", some(3, 0)),
            (State::Running, 3, -1, "Bytes", some(3, 0)),
            (State::Running, 0, 9, "Bytes", some(0, 9)),
            (State::Running, 0, 0, "Bytes", None),
            (State::Running, -3, 9, "Bytes", None),
            (State::Running, 3, 9, "Files", None),
            (State::Succeeded, 9, 9, "Bytes", None),
            (State::Failed("no".into()), 3, 9, "Bytes", None),
        ] {
            let progress = progress(state, done, total, units);
            assert_eq!(ByteProgress::of(&progress), expected, "{progress:?}");
        }
        let files = |total| Some(UnitProgress { name: "Files".to_owned(), done: 3, total });
        for (state, done, total, units, expected) in [
            (State::Running, 3, 9, "Files", files(9)),
            (State::Running, 3, -1, "Files", files(0)),
            (State::Running, 0, 0, "Files", None),
            (State::Running, -3, 9, "Files", None),
            (State::Running, 3, 9, "bytes", None),
            (State::Running, 3, 9, "", None),
            (State::Succeeded, 9, 9, "Files", None),
        ] {
            let progress = progress(state, done, total, units);
            assert_eq!(UnitProgress::of(&progress), expected, "{progress:?}");
        }
    }
}
