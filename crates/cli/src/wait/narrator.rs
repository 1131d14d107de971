//! Decides what is worth saying while a run is waited for, from what it is shown and nothing else.

use std::time::Duration;

use bowline_api::condition;

use super::{Reason, SERVER_LIMIT};
use crate::run::{Run, Stage, Summary};
use crate::transfer::{Tally, Transfer};

/// How often a line about progress is worth it.
const PROGRESS_PAUSE: Duration = Duration::from_secs(5);

/// Something worth a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Remark {
    /// It is in another state than before.
    State(String),
    /// So many items are done, of so many known.
    Progress(i64, i64),
    /// So many operations have ended, of so many.
    Operations(i64, i64),
    /// So far are the plugins with its volumes.
    Volumes(Tally),
    /// Nobody seems to be at it.
    NoServer,
    /// Another run is worked on first, which has this name.
    WaitsFor(String),
}

/// Decides what is worth saying.
#[derive(Debug, Default)]
pub(super) struct Narrator {
    reason: Reason,
    state: String,
    items: (i64, i64),
    operations: (i64, i64),
    volumes: Tally,
    /// When it last spoke of a state or items, and of volumes.
    spoke: Duration,
    spoke_of_volumes: Duration,
    has_hinted: bool,
}

impl Narrator {
    pub(super) fn new(reason: Reason) -> Self {
        Self { reason, ..Self::default() }
    }

    pub(super) fn observe<R: Run>(
        &mut self,
        run: &R,
        transfers: &[Transfer],
        elapsed: Duration,
    ) -> Vec<Remark> {
        let mut remarks = Vec::new();
        let (state, Summary { stage, items, operations, .. }) = (run.state(), run.summary());
        if state != self.state {
            self.state.clone_from(&state);
            self.spoke = elapsed;
            remarks.push(Remark::State(state));
        }
        if items != self.items && elapsed >= self.spoke + PROGRESS_PAUSE {
            self.items = items;
            self.spoke = elapsed;
            remarks.push(Remark::Progress(items.0, items.1));
        }
        let ended = operations.ended();
        if stage == Stage::Closing && ended != self.operations {
            self.operations = ended;
            remarks.push(Remark::Operations(ended.0, ended.1));
        }
        let volumes = Tally::of(transfers);
        if volumes != self.volumes && elapsed >= self.spoke_of_volumes + PROGRESS_PAUSE {
            self.volumes.clone_from(&volumes);
            self.spoke_of_volumes = elapsed;
            remarks.push(Remark::Volumes(volumes));
        }
        // A server that has seen a cancel says so at once.
        let is_unseen = match self.reason {
            Reason::Result => stage == Stage::New,
            Reason::Cancel => !stage.is_over() && self.state != condition::CANCELING,
        };
        if is_unseen && elapsed >= SERVER_LIMIT && !self.has_hinted {
            self.has_hinted = true;
            remarks.push(Remark::NoServer);
        }
        remarks
    }
}
