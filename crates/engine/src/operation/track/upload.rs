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
        let Some(upload) = self.board.get(place) else { return };
        let location = upload.volume.as_ref().map_or("", |volume| volume.location.as_str());
        let mut again_at = Timestamp::now();
        loop {
            // The slot is held for one attempt, and not between two: an upload that waits for its storage keeps
            // no other from its turn.
            let ready = async {
                tokio::time::sleep(since(Timestamp::now(), again_at)).await;
                if !self.until_created(place).await {
                    return None;
                }
                Some(self.uploads.acquire(location).await)
            };
            let slot = tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    // It was not begun, or by a process that is gone; the plugin is told in any case.
                    return self.end_before_call(place, unwanted()).await;
                }
                () = tokio::time::sleep(since(Timestamp::now(), upload.deadline)) => {
                    return self.end_before_call(place, Observation::Unwanted(Why::Deadline)).await;
                }
                slot = ready => slot,
            };
            let Some(_slot) = slot else {
                let error = Error::new(Code::FailedPrecondition, NO_SNAPSHOT);
                self.observe(place, Observation::Returned(Err(error)));
                return;
            };
            match self.attempt(place, cancel, reason).await.poll_at {
                Some(at) => again_at = at,
                None => return,
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
                observation = self.poll(place, poll_at, false) => self.observe(place, observation),
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
