//! Whether a piece of work has to stop, and why.

use std::fmt::Display;
use std::sync::OnceLock;

use tokio_util::sync::CancellationToken;

/// Shared by those who do a piece of work and those who may stop it: somebody who cancels it, or the
/// part of it that fails first. The library that uploads goes on after some failures, and must not.
#[derive(Debug, Default)]
pub(crate) struct StopSignal {
    token: CancellationToken,
    failure: OnceLock<String>,
}

/// The text of all that was canceled.
pub(crate) const CANCELED: &str = "canceled";

impl StopSignal {
    /// Nobody wants the work any more.
    pub(crate) fn cancel(&self) {
        self.token.cancel();
    }

    /// A part has failed, so that the rest is of no use. The first reason counts.
    pub(crate) fn fail(&self, reason: impl Display) {
        // After a cancel others fail because of it, and that is no reason.
        if !self.is_set() {
            let _ = self.failure.set(reason.to_string());
        }
        self.token.cancel();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Why it has to stop; none if it has not.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.is_set().then(|| self.failure.get().map_or(CANCELED, String::as_str))
    }

    /// Returns when it has to stop.
    pub(crate) async fn wait(&self) {
        self.token.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_reason_wins() {
        let stop = StopSignal::default();
        assert_eq!(stop.reason(), None);
        stop.fail("the disk is full");
        stop.fail("something else");
        stop.cancel();
        assert_eq!(stop.reason(), Some("the disk is full"));

        let stop = StopSignal::default();
        stop.cancel();
        stop.fail("a file could not be read to its end");
        assert_eq!(stop.reason(), Some(CANCELED));
    }
}
