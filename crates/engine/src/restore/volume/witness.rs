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
pub trait Witness: Send + Sync {
    /// A plugin was asked for a volume.
    async fn began(&self, making: &Making) -> Result<(), String>;

    /// So far it is. At most once a second.
    async fn progressed(&self, making: &Making, bytes: Bytes) -> Result<(), String>;

    /// So far it is, in units that are no bytes. At most once a second.
    async fn counted(&self, making: &Making, units: &Units) -> Result<(), String> {
        let _ = (making, units);
        Ok(())
    }

    /// It goes on, whether or not the plugin tells how. At most once a second.
    async fn goes_on(&self, making: &Making) -> Result<(), String> {
        let _ = making;
        Ok(())
    }

    /// It has ended.
    async fn ended(&self, making: &Making, end: &End) -> Result<(), String>;
}

/// A volume that a plugin makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Making {
    /// The PersistentVolume that it is for, as the backup calls it.
    pub persistent_volume: String,
    /// The same, as the cluster will call it.
    pub target: String,
    /// The snapshot that it is made from.
    pub snapshot: SnapshotId,
    /// The plugin, or the CSI driver.
    pub plugin: String,
    /// Since when.
    pub began: Timestamp,
}

/// How far a plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// Bytes that are done.
    pub done: i64,
    /// Bytes that there are; zero if nobody knows.
    pub total: i64,
}

impl Bytes {
    /// What progress says in bytes, if it says anything. A plugin that has no word for the making of a
    /// volume speaks of the snapshot itself, and that it is complete.
    pub(super) fn of(progress: &Progress) -> Option<Self> {
        let is_in_bytes = progress.units.is_empty() || progress.units.eq_ignore_ascii_case("bytes");
        let Progress { done, total, .. } = *progress;
        let says_something = progress.state == State::Running && is_in_bytes && done >= 0;
        (says_something && (done, total) != (0, 0)).then_some(Self { done, total: total.max(0) })
    }
}

/// How far a plugin is that counts something else than bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Units {
    /// What it counts, such as `Files`.
    pub name: String,
    /// How many are done.
    pub done: i64,
    /// How many there are; zero if nobody knows.
    pub total: i64,
}

impl Units {
    /// What progress says in other units than bytes, if it says anything.
    pub(super) fn of(progress: &Progress) -> Option<Self> {
        let Progress { done, total, ref units, .. } = *progress;
        let is_in_bytes = units.is_empty() || units.eq_ignore_ascii_case("bytes");
        let says_something = progress.state == State::Running && !is_in_bytes && done >= 0;
        (says_something && (done, total) != (0, 0)).then(|| Self {
            name: units.clone(),
            done,
            total: total.max(0),
        })
    }
}

/// How the making of a volume ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The plugin has made this one.
    Completed(VolumeId),
    /// There is none, and why.
    Failed(String),
    /// The restore was cancelled.
    Canceled(String),
}

/// Nobody is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWitness;

#[async_trait]
impl Witness for NoWitness {
    async fn began(&self, _: &Making) -> Result<(), String> {
        Ok(())
    }

    async fn progressed(&self, _: &Making, _: Bytes) -> Result<(), String> {
        Ok(())
    }

    async fn ended(&self, _: &Making, _: &End) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_in_bytes_while_it_is_about_work_that_goes_on() {
        let progress = |state, done, total, units: &str| Progress {
            state,
            done,
            total,
            units: units.into(),
            ..Progress::default()
        };
        let some = |done, total| Some(Bytes { done, total });
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
            assert_eq!(Bytes::of(&progress), expected, "{progress:?}");
        }
        let files = |total| Some(Units { name: "Files".to_owned(), done: 3, total });
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
            assert_eq!(Units::of(&progress), expected, "{progress:?}");
        }
    }
}
