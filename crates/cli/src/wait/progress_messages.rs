//! Chooses the messages to print while waiting for a run, from its input only.

use std::time::Duration;

use bowline_api::condition;

use super::{NO_SERVER_HINT_DELAY, WaitReason};
use crate::run::{Run, Stage, Summary};
use crate::volume_progress::{VolumeProgress, VolumeTotals};

/// Interval of progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProgressMessage {
    /// The state has changed.
    State(String),
    /// Items done, and total known so far.
    Progress(i64, i64),
    /// Operations ended, and their number.
    Operations(i64, i64),
    /// Progress of the plugins on its volumes.
    Volumes(VolumeTotals),
    /// No server seems to work on it.
    NoServer,
    /// Another run, with this name, is processed first.
    WaitsForRun(String),
}

#[derive(Debug, Default)]
pub(super) struct ProgressMessages {
    reason: WaitReason,
    state: String,
    items: (i64, i64),
    operations: (i64, i64),
    volumes: VolumeTotals,
    /// Time of the last message about state or items, and about volumes.
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
        // A server that has seen a cancellation reports it at once.
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
