//! The second stage of a snapshot: begun when the first is complete, done by one call that may take
//! hours, asked about meanwhile, and begun anew if it fails for a reason that may pass.

use std::future::pending;

use bowline_plugin::{Code, Error};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{Tracker, last_moment};
use crate::operation::step::{Effects, Observation, Why};
use crate::operation::{Kind, Operation, State, since};
use crate::point::{self, Point};

/// Why an upload is not begun.
pub(in crate::operation) const NO_SNAPSHOT: &str =
    "it was not begun, because the snapshot was not completed";

impl Tracker<'_> {
    /// Brings an upload to its end.
    pub(super) async fn upload(&self, place: usize, cancel: &CancellationToken, reason: &str) {
        if self.has_ended(place) {
            return;
        }
        let unwanted = || Observation::Unwanted(Why::Canceled(reason.to_owned()));
        let ready = async {
            let is_complete = self.until_created(place).await;
            (is_complete, self.uploads.acquire().await)
        };
        let deadline = self.board.get(place).map_or(Timestamp::MAX, |upload| upload.deadline);
        let (is_complete, _permit) = tokio::select! {
            biased;
            () = cancel.cancelled() => {
                // It was not begun, or by a process that is gone; the plugin is told in any case.
                return self.end_before_call(place, unwanted()).await;
            }
            () = tokio::time::sleep(since(Timestamp::now(), deadline)) => {
                return self.end_before_call(place, Observation::Unwanted(Why::Deadline)).await;
            }
            ready = ready => ready,
        };
        if !is_complete {
            let error = Error::new(Code::FailedPrecondition, NO_SNAPSHOT);
            self.observe(place, Observation::Returned(Err(error)));
            return;
        }
        loop {
            let effects = self.attempt(place, cancel, reason).await;
            let Some(again_at) = effects.poll_at else { return };
            let pause = tokio::time::sleep(since(Timestamp::now(), again_at));
            tokio::select! {
                biased;
                () = cancel.cancelled() => return self.end_before_call(place, unwanted()).await,
                () = pause => {}
            }
        }
    }

    /// One call, from its beginning to its return, or until it is not waited for any more.
    async fn attempt(&self, place: usize, cancel: &CancellationToken, reason: &str) -> Effects {
        let mut effects = self.observe(place, Observation::Called);
        let Some(operation) = self.board.get(place) else { return Effects::default() };
        point::pass(Point::UploadSnapshot);
        let mut call = self.asker.upload(&operation);
        loop {
            if effects.ended {
                return effects;
            }
            if effects.cancel {
                effects = tokio::select! {
                    asked = self.ask_to_stop(place) => asked,
                    answer = &mut call => return self.returned(place, answer),
                };
                continue;
            }
            let Some(operation) = self.board.get(place) else { return Effects::default() };
            let is_stopping = operation.stopping.is_some();
            let unwanted =
                async { if is_stopping { pending().await } else { cancel.cancelled().await } };
            let poll_at = effects.poll_at.unwrap_or_else(Timestamp::now);
            let last = tokio::time::sleep(since(Timestamp::now(), last_moment(&operation)));
            effects = tokio::select! {
                biased;
                answer = &mut call => return self.returned(place, answer),
                () = unwanted => {
                    let why = Why::Canceled(reason.to_owned());
                    self.observe(place, Observation::Unwanted(why))
                }
                () = last => self.observe(place, Observation::Passed),
                observation = self.poll(place, poll_at) => self.observe(place, observation),
            };
        }
    }

    fn returned(&self, place: usize, answer: bowline_plugin::Result<()>) -> Effects {
        point::pass(Point::SnapshotUploaded);
        self.observe(place, Observation::Returned(answer))
    }

    /// Ends an upload that no call is under way for.
    async fn end_before_call(&self, place: usize, observation: Observation) {
        let effects = self.observe(place, observation);
        if effects.cancel {
            self.ask_to_stop(place).await;
        }
        let error = Error::new(Code::Aborted, "it was not going on");
        self.observe(place, Observation::Returned(Err(error)));
    }

    fn has_ended(&self, place: usize) -> bool {
        self.board.get(place).is_none_or(|operation| operation.state.is_terminal())
    }

    /// Waits until the snapshot of an upload is complete, and that is safe from a kill: from the first
    /// call on, a plugin that is asked how it goes speaks of the upload. Returns whether it is.
    async fn until_created(&self, place: usize) -> bool {
        let Some(upload) = self.board.get(place) else { return false };
        let mut changes = self.board.changes();
        loop {
            match self.board.find(|other| is_creation_of(other, &upload)) {
                // One that has none was complete when it was taken.
                None => return true,
                Some((creation, State::Completed)) => {
                    self.board.until_kept(creation).await;
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

/// Whether an operation creates the snapshot that another uploads.
fn is_creation_of(creation: &Operation, upload: &Operation) -> bool {
    creation.kind == Kind::SnapshotCreation
        && creation.id == upload.id
        && creation.volume == upload.volume
        && creation.item == upload.item
}
