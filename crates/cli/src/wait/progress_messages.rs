//! Decides what is worth saying while a run is waited for, from what it is shown and nothing else.

use std::time::Duration;

use bowline_api::condition;

use super::{NO_SERVER_HINT_DELAY, WaitReason};
use crate::run::{Run, Stage, Summary};
use crate::volume_progress::{VolumeProgress, VolumeTotals};

/// How often a line about progress is worth it.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Something worth a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProgressMessage {
    /// It is in another state than before.
    State(String),
    /// So many items are done, of so many known.
    Progress(i64, i64),
    /// So many operations have ended, of so many.
    Operations(i64, i64),
    /// So far are the plugins with its volumes.
    Volumes(VolumeTotals),
    /// Nobody seems to be at it.
    NoServer,
    /// Another run is worked on first, which has this name.
    WaitsForRun(String),
}

/// Decides what is worth saying.
#[derive(Debug, Default)]
pub(super) struct ProgressMessages {
    reason: WaitReason,
    state: String,
    items: (i64, i64),
    operations: (i64, i64),
    volumes: VolumeTotals,
    /// When it last spoke of a state or items, and of volumes.
    last_message: Duration,
    last_volume_message: Duration,
    has_hinted: bool,
}

impl ProgressMessages {
    pub(super) fn new(reason: WaitReason) -> Self {
        Self { reason, ..Self::default() }
    }

    pub(super) fn observe<R: Run>(
        &mut self,
        run: &R,
        transfers: &[VolumeProgress],
        elapsed: Duration,
    ) -> Vec<ProgressMessage> {
        let mut messages = Vec::new();
        let (state, Summary { stage, items, operations, .. }) = (run.state(), run.summary());
        if state != self.state {
            self.state.clone_from(&state);
            self.last_message = elapsed;
            messages.push(ProgressMessage::State(state));
        }
        if items != self.items && elapsed >= self.last_message + PROGRESS_INTERVAL {
            self.items = items;
            self.last_message = elapsed;
            messages.push(ProgressMessage::Progress(items.0, items.1));
        }
        let ended = operations.ended();
        if stage == Stage::Finalizing && ended != self.operations {
            self.operations = ended;
            messages.push(ProgressMessage::Operations(ended.0, ended.1));
        }
        let volumes = VolumeTotals::from_volumes(transfers);
        if volumes != self.volumes && elapsed >= self.last_volume_message + PROGRESS_INTERVAL {
            self.volumes.clone_from(&volumes);
            self.last_volume_message = elapsed;
            messages.push(ProgressMessage::Volumes(volumes));
        }
        // A server that has seen a cancel says so at once.
        let is_unnoticed = match self.reason {
            WaitReason::Result => stage == Stage::New,
            WaitReason::Cancel => !stage.is_terminal() && self.state != condition::CANCELING,
        };
        if is_unnoticed && elapsed >= NO_SERVER_HINT_DELAY && !self.has_hinted {
            self.has_hinted = true;
            messages.push(ProgressMessage::NoServer);
        }
        messages
    }
}
