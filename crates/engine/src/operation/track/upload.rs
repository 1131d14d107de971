//! Upload of a snapshot, its second stage: starts when the first is complete, consists of one call
//! that may take hours, is polled meanwhile, and restarts after a transient failure.

use std::future::pending;

use bowline_plugin::{Code, Error};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{Tracker, poll_deadline};
use crate::failpoint::{self, Failpoint};
use crate::operation::step::{Effects, Observation, StopCause};
use crate::operation::{Kind, Operation, State, duration_between};

impl Tracker<'_> {
    /// Tracks an upload until it ends.
    pub(super) async fn upload(&self, index: usize, cancel: &CancellationToken, reason: &str) {
        if self.has_ended(index) {
            return;
        }
        let canceled = || Observation::StopRequested(StopCause::Canceled(reason.to_owned()));
        let Some(upload) = self.table.get(index) else { return };
        let location = upload.volume.as_ref().map_or("", |volume| volume.location.as_str());
        let mut retry_at = Timestamp::now();
        loop {
            // The slot is held for one attempt, and not between two: an upload that waits for its
            // storage blocks no other.
            let ready = async {
                tokio::time::sleep(duration_between(Timestamp::now(), retry_at)).await;
                if !self.wait_until_created(index).await {
                    return None;
                }
                Some(self.uploads.acquire(location).await)
            };
            let slot = tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    // The upload was not started, or by a process that has ended; the plugin is
                    // asked to stop it in any case.
                    return self.end_before_call(index, canceled()).await;
                }
                () = tokio::time::sleep(duration_between(Timestamp::now(), upload.deadline)) => {
                    return self.end_before_call(index, Observation::StopRequested(StopCause::Deadline)).await;
                }
                slot = ready => slot,
            };
            let Some(_slot) = slot else {
                self.observe(index, Observation::SnapshotNotCompleted);
                return;
            };
            match self.attempt(index, cancel, reason).await.poll_at {
                Some(at) => retry_at = at,
                None => return,
            }
        }
    }

    /// One call, from its start to its return, or until it is not awaited any more.
    async fn attempt(&self, index: usize, cancel: &CancellationToken, reason: &str) -> Effects {
        let mut effects = self.observe(index, Observation::UploadStarted);
        let Some(operation) = self.table.get(index) else { return Effects::default() };
        failpoint::hit(Failpoint::UploadSnapshot);
        let mut call = self.client.upload(&operation);
        loop {
            if effects.ended {
                return effects;
            }
            if effects.cancel {
                effects = tokio::select! {
                    asked = self.request_stop(index) => asked,
                    answer = &mut call => return self.upload_returned(index, answer),
                };
                continue;
            }
            let Some(operation) = self.table.get(index) else { return Effects::default() };
            let is_stopping = operation.stop_request.is_some();
            let canceled =
                async { if is_stopping { pending().await } else { cancel.cancelled().await } };
            let poll_at = effects.poll_at.unwrap_or_else(Timestamp::now);
            let last =
                tokio::time::sleep(duration_between(Timestamp::now(), poll_deadline(&operation)));
            effects = tokio::select! {
                biased;
                answer = &mut call => return self.upload_returned(index, answer),
                () = canceled => {
                    let cause = StopCause::Canceled(reason.to_owned());
                    self.observe(index, Observation::StopRequested(cause))
                }
                () = last => self.observe(index, Observation::TimePassed),
                observation = self.poll(index, poll_at, false) => self.observe(index, observation),
            };
        }
    }

    fn upload_returned(&self, index: usize, answer: bowline_plugin::Result<()>) -> Effects {
        failpoint::hit(Failpoint::SnapshotUploaded);
        self.observe(index, Observation::UploadReturned(answer))
    }

    /// Ends an upload that has no running call.
    async fn end_before_call(&self, index: usize, observation: Observation) {
        let effects = self.observe(index, observation);
        if effects.cancel {
            self.request_stop(index).await;
        }
        let error = Error::new(Code::Aborted, "the upload was not running");
        self.observe(index, Observation::UploadReturned(Err(error)));
    }

    /// Waits until the snapshot of an upload is complete, and that survives a kill: from the first
    /// upload call on, a poll of the plugin describes the upload. Returns true if it is complete.
    async fn wait_until_created(&self, index: usize) -> bool {
        let Some(upload) = self.table.get(index) else { return false };
        let mut changes = self.table.changes();
        loop {
            match self.table.find(|other| is_creation_of(other, &upload)) {
                // A snapshot without a creation operation was complete when it was taken.
                None => return true,
                Some((creation, State::Completed)) => {
                    self.table.wait_until_saved(creation).await;
                    return true;
                }
                Some((_, State::Failed(_))) => return false,
                Some((_, State::New | State::InProgress)) => {}
            }
            if changes.changed().await.is_err() {
                return false;
            }
        }
    }
}

/// True if an operation creates the snapshot that another uploads.
fn is_creation_of(creation: &Operation, upload: &Operation) -> bool {
    creation.kind == Kind::SnapshotCreation
        && creation.id == upload.id
        && creation.volume == upload.volume
        && creation.item == upload.item
}
