//! Renewal of a lease for as long as this server holds it.

use tokio::time::{Instant, sleep_until, timeout_at};

use super::object::{LeaseObject, RequestError, flatten_timeout};
use super::record::{LeaseLoss, LeaseOwnership, LeaseRecord, LeaseTerm, ownership};
use super::{LeaseTimings, NAME};
use crate::error_text::status_message;
use crate::fence::Fence;

/// Number of attempts at one renewal while other clients change the Lease.
const MAX_CONFLICTS: usize = 5;

pub(super) struct LeaseRenewer {
    object: LeaseObject,
    terms: LeaseTimings,
    own_term: LeaseTerm,
    fence: Fence,
    /// Last known Lease; `None` if it was deleted.
    last_read: Option<LeaseRecord>,
}

/// Outcome of a renewal.
enum Renewal {
    /// Written, by a request sent at this instant.
    Sent(Instant),
    Lost(LeaseLoss),
}

impl LeaseRenewer {
    pub(super) fn new(
        object: LeaseObject,
        record: LeaseRecord,
        terms: LeaseTimings,
        fence: Fence,
    ) -> Self {
        Self { object, terms, own_term: record.term.clone(), fence, last_read: Some(record) }
    }

    /// Renews the lease, which was acquired by a request sent at `acquired`, until it is lost.
    pub(super) async fn run(mut self, acquired: Instant) -> LeaseLoss {
        let LeaseTimings { renew_interval: renew, renew_deadline: give_up, .. } = self.terms;
        let (mut next, mut end) = (acquired + renew, acquired + give_up);
        loop {
            sleep_until(next.min(end)).await;
            let now = Instant::now();
            // A late answer may confirm a renewal that has expired by now.
            if now >= end {
                return LeaseLoss::Expired(give_up);
            }
            let limit = self.terms.request_timeout().min(end.duration_since(now));
            match flatten_timeout(timeout_at(now + limit, self.renew()).await, limit) {
                Ok(Renewal::Sent(sent)) => {
                    (next, end) = (sent + renew, sent + give_up);
                    self.fence.open_until(end);
                }
                Ok(Renewal::Lost(loss)) => return loss,
                Err(trouble) => {
                    let now = Instant::now();
                    next = now + renew / 2;
                    tracing::warn!(
                        error = status_message(&trouble),
                        "cannot renew the Lease `{NAME}`, which expires in {:?}",
                        end.saturating_duration_since(now)
                    );
                }
            }
        }
    }

    /// Writes the lease again, also if it was deleted. After a conflict, reads it first: the change
    /// may be an earlier request of ours whose answer was lost.
    async fn renew(&mut self) -> Result<Renewal, RequestError> {
        for _ in 0..MAX_CONFLICTS {
            let sent = Instant::now();
            if let Some(written) =
                self.object.write(self.last_read.as_ref(), &self.own_term).await?
            {
                self.last_read = Some(written);
                return Ok(Renewal::Sent(sent));
            }
            let found = self.object.read().await?;
            match ownership(found.as_ref(), &self.own_term) {
                LeaseOwnership::Owned => self.last_read = found,
                LeaseOwnership::Lost(loss) => return Ok(Renewal::Lost(loss)),
            }
        }
        Err(RequestError::TooManyConflicts)
    }
}
