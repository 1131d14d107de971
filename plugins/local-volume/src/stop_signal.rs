//! Signal to stop a job, with the reason.

use std::fmt::Display;
use std::sync::OnceLock;

use tokio_util::sync::CancellationToken;

/// Shared by the threads of a job and those that may stop it: a cancel call, or the part of the job
/// that fails first. The library that uploads continues after some failures, and must not.
#[derive(Debug, Default)]
pub(crate) struct StopSignal {
    token: CancellationToken,
    failure: OnceLock<String>,
}

/// The error text of canceled jobs.
pub(crate) const CANCELED: &str = "canceled";

impl StopSignal {
    /// Cancels the job.
    pub(crate) fn cancel(&self) {
        self.token.cancel();
    }

    /// A part has failed, so that the rest is useless. The first reason counts.
    pub(crate) fn fail(&self, reason: impl Display) {
        // After a cancellation other parts fail as a consequence, which is not the reason.
        if !self.is_set() {
            let _ = self.failure.set(reason.to_string());
        }
        self.token.cancel();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.token.is_cancelled()
    }

    /// The reason to stop; `None` if the job may continue.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.is_set().then(|| self.failure.get().map_or(CANCELED, String::as_str))
    }

    /// Returns when the job has to stop.
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
