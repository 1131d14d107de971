//! Rules for the operations of item actions: known immediately and after a restart, cancelled
//! without an error, ended once and for all.

use std::time::Duration;

use bowline_plugin::{Class, Error, OperationId, Progress, State};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use super::item_action::ItemActionCheck;
use super::rule::{HOLDS, RuleFailure, RuleOutcome};

/// The pause between two progress calls for an operation.
pub(super) const PROGRESS_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl ItemActionCheck {
    pub(super) async fn knows_its_operation(&mut self) -> RuleOutcome {
        let operation = self.operation()?;
        self.progress(&operation).await?;
        HOLDS
    }

    pub(super) async fn knows_its_operation_after_a_restart(&mut self) -> RuleOutcome {
        let operation = self.operation()?;
        self.process.restart().await;
        self.progress(&operation).await?;
        HOLDS
    }

    pub(super) async fn accepts_cancel(&mut self) -> RuleOutcome {
        let operation = self.operation()?;
        self.cancel(&operation).await?;
        self.cancelled_at = Some(Instant::now());
        self.cancel(&operation).await?;
        HOLDS
    }

    pub(super) async fn ends_cancelled_operation(&mut self) -> RuleOutcome {
        let operation = self.operation()?;
        let Some(cancelled_at) = self.cancelled_at else {
            return Err(RuleFailure::skipped("the operation was not canceled"));
        };
        // The operation may have succeeded just before: only one that is seen running afterwards
        // has ignored the cancellation.
        let mut ran_on = false;
        let limit = self.input.timeout;
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            let state = self.progress(&operation).await?.state;
            if state != State::Running {
                self.running.retain(|running| *running != operation);
                let is_ignored = ran_on && state == State::Succeeded;
                self.ended = Some(state);
                return Ok(is_ignored.then(|| ignored_cancel_note(cancelled_at.elapsed())));
            }
            ran_on = true;
            tokio::time::sleep(PROGRESS_POLL_INTERVAL).await;
        }
        let late =
            format!("the operation still runs {} s after its cancellation", limit.as_secs_f32());
        Err(RuleFailure::Broken(late))
    }

    pub(super) async fn keeps_the_outcome(&mut self) -> RuleOutcome {
        let operation = self.operation()?;
        let Some(ended) = &self.ended else {
            return Err(RuleFailure::skipped("the operation has not ended"));
        };
        for _ in 0..2 {
            let state = self.progress(&operation).await?.state;
            if state != *ended {
                let both = format!("first {}, then {}", state_text(ended), state_text(&state));
                return Err(RuleFailure::Broken(both));
            }
        }
        HOLDS
    }

    pub(super) async fn refuses_unknown_operation(&mut self) -> RuleOutcome {
        let unknown = self.unknown_operation()?;
        expect_permanent_error(self.progress(&unknown).await)
    }

    pub(super) async fn accepts_cancel_of_unknown_operation(&mut self) -> RuleOutcome {
        let unknown = self.unknown_operation()?;
        match self.cancel(&unknown).await {
            // Velero's framework has an error for that, and runs accept it as an answer: there is
            // nothing to stop.
            Err(error) if error.class() == Class::Permanent => Ok(Some(format!(
                "the call is rejected permanently, which is valid, too: {}",
                error.message()
            ))),
            cancelled => {
                cancelled?;
                HOLDS
            }
        }
    }

    /// Cancels the operations that are still running. Plugins need not do that quickly, so the
    /// check does not wait for their end.
    pub(super) async fn cancel_all(&mut self) -> RuleOutcome {
        let running = self.running.clone();
        let (action, input) = (&self.action, &self.action_input);
        let cancel = async |operation| (operation, action.cancel(operation, input).await);
        let mut coming: FuturesUnordered<_> = running.iter().map(cancel).collect();
        let mut failure = None;
        while let Some((operation, cancelled)) = coming.next().await {
            match cancelled {
                Ok(()) => self.running.retain(|running| running != operation),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(HOLDS, |error| Err(error.into()))
    }

    /// The operation that the action started for the item.
    fn operation(&self) -> Result<OperationId, RuleFailure> {
        let operation = self.require_output()?.operation.clone();
        operation.ok_or_else(|| {
            RuleFailure::skipped(
                "the item started no operation; pass an item that does with --item",
            )
        })
    }

    fn unknown_operation(&self) -> Result<OperationId, RuleFailure> {
        OperationId::new(format!("{}-unknown", self.input.name()))
            .ok_or_else(|| RuleFailure::skipped("no unknown id can be generated"))
    }
}

/// Holds if the progress of an unknown operation is a permanent error.
pub(super) fn expect_permanent_error(progress: Result<Progress, Error>) -> RuleOutcome {
    match progress {
        Err(error) if error.class() == Class::Permanent => HOLDS,
        Err(error) => Err(RuleFailure::Broken(format!(
            "the error is of class {:?}, so a server would retry the call: {error}",
            error.class()
        ))),
        Ok(progress) => Err(RuleFailure::Broken(format!(
            "Progress returned a state: {}",
            state_text(&progress.state)
        ))),
    }
}

/// Remark for an operation that succeeded this long after its cancellation.
fn ignored_cancel_note(time: Duration) -> String {
    let seconds = (time.as_secs_f32() * 10.0).round() / 10.0;
    format!("the operation succeeded after {seconds} s, so the cancellation had no effect")
}

/// A state in words.
pub(super) fn state_text(state: &State) -> String {
    match state {
        State::Running => "running".to_owned(),
        State::Succeeded => "succeeded".to_owned(),
        State::Failed(reason) => format!("failed: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_cancellation_reports_tenths_of_a_second() {
        for (millis, seconds) in [(20_034, "20"), (249, "0.2")] {
            let remark = ignored_cancel_note(Duration::from_millis(millis));
            assert!(
                remark.starts_with(&format!("the operation succeeded after {seconds} s, ")),
                "{remark}"
            );
        }
    }
}
