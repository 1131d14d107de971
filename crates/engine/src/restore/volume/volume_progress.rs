//! The port to whoever shows how volumes are made.

use async_trait::async_trait;
use bowline_plugin::{Progress, SnapshotId, State, VolumeId};
use jiff::Timestamp;

/// Who is told how volumes are made from snapshots.
///
/// Of each volume it is told once or more that it was begun, after a restart again, then how it goes,
/// and in the end how it ended, one after the other. What it cannot show is told to the user, and
/// changes nothing else. A call that takes too long is given up.
#[async_trait]
pub trait VolumeProgressReporter: Send + Sync {
    /// A plugin was asked for a volume.
    async fn creation_started(&self, creation: &VolumeCreation) -> Result<(), String>;

    /// So far it is. At most once a second.
    async fn report_bytes(
        &self,
        creation: &VolumeCreation,
        bytes: ByteProgress,
    ) -> Result<(), String>;

    /// So far it is, in units that are no bytes. At most once a second.
    async fn report_units(
        &self,
        creation: &VolumeCreation,
        units: &UnitProgress,
    ) -> Result<(), String> {
        let _ = (creation, units);
        Ok(())
    }

    /// It goes on, whether or not the plugin tells how. At most once a second.
    async fn report_running(&self, creation: &VolumeCreation) -> Result<(), String> {
        let _ = creation;
        Ok(())
    }

    /// It has ended.
    async fn creation_ended(
        &self,
        creation: &VolumeCreation,
        end: &VolumeCreationResult,
    ) -> Result<(), String>;
}

/// A volume that a plugin makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeCreation {
    /// The PersistentVolume that it is for, as the backup calls it.
    pub persistent_volume: String,
    /// The same, as the cluster will call it.
    pub target: String,
    /// The snapshot that it is made from.
    pub snapshot: SnapshotId,
    /// The plugin, or the CSI driver.
    pub plugin: String,
    /// Since when.
    pub started_at: Timestamp,
}

/// How far a plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteProgress {
    /// Bytes that are done.
    pub done: i64,
    /// Bytes that there are; zero if nobody knows.
    pub total: i64,
}

impl ByteProgress {
    /// What progress says in bytes, if it says anything. A plugin that has no word for the making of a
    /// volume speaks of the snapshot itself, and that it is complete.
    pub(super) fn of(progress: &Progress) -> Option<Self> {
        let is_in_bytes = progress.units.is_empty() || progress.units.eq_ignore_ascii_case("bytes");
        let Progress { done, total, .. } = *progress;
        let is_reported = progress.state == State::Running && is_in_bytes && done >= 0;
        (is_reported && (done, total) != (0, 0)).then_some(Self { done, total: total.max(0) })
    }
}

/// How far a plugin is that counts something else than bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitProgress {
    /// What it counts, such as `Files`.
    pub name: String,
    /// How many are done.
    pub done: i64,
    /// How many there are; zero if nobody knows.
    pub total: i64,
}

impl UnitProgress {
    /// What progress says in other units than bytes, if it says anything.
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

/// How the making of a volume ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeCreationResult {
    /// The plugin has made this one.
    Completed(VolumeId),
    /// There is none, and why.
    Failed(String),
    /// The restore was cancelled.
    Canceled(String),
}

/// Nobody is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReporter;

#[async_trait]
impl VolumeProgressReporter for NoReporter {
    async fn creation_started(&self, _: &VolumeCreation) -> Result<(), String> {
        Ok(())
    }

    async fn report_bytes(&self, _: &VolumeCreation, _: ByteProgress) -> Result<(), String> {
        Ok(())
    }

    async fn creation_ended(
        &self,
        _: &VolumeCreation,
        _: &VolumeCreationResult,
    ) -> Result<(), String> {
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
