//! Renews a lease for as long as it is ours.

use tokio::time::{Instant, sleep_until, timeout_at};

use super::object::{Object, Trouble, answer};
use super::record::{Loss, Record, Standing, Term, standing};
use super::{NAME, Terms};
use crate::fence::Fence;
use crate::story::one_line;

/// How often one renewal is tried while others change the Lease.
const ROUNDS: usize = 5;

/// What renews a lease.
pub(super) struct Keeper {
    object: Object,
    terms: Terms,
    ours: Term,
    fence: Fence,
    /// The Lease as it was seen last; none if it was gone.
    seen: Option<Record>,
}

/// What came of a renewal.
enum Renewal {
    /// It was sent at this moment, and is written.
    Sent(Instant),
    Lost(Loss),
}

impl Keeper {
    pub(super) fn new(object: Object, record: Record, terms: Terms, fence: Fence) -> Self {
        Self { object, terms, ours: record.term.clone(), fence, seen: Some(record) }
    }

    /// Renews the lease, which was taken by a request sent then, until it is lost.
    pub(super) async fn run(mut self, taken: Instant) -> Loss {
        let Terms { renew, give_up, .. } = self.terms;
        let (mut next, mut end) = (taken + renew, taken + give_up);
        loop {
            sleep_until(next.min(end)).await;
            let now = Instant::now();
            // An answer may have come late, and told of a renewal that is over by now.
            if now >= end {
                return Loss::Expired(give_up);
            }
            let limit = self.terms.patience().min(end.duration_since(now));
            match answer(timeout_at(now + limit, self.renew()).await, limit) {
                Ok(Renewal::Sent(sent)) => {
                    (next, end) = (sent + renew, sent + give_up);
                    self.fence.open_until(end);
                }
                Ok(Renewal::Lost(loss)) => return loss,
                Err(trouble) => {
                    let now = Instant::now();
                    next = now + renew / 2;
                    tracing::warn!(
                        error = one_line(&trouble),
                        "cannot renew the lease `{NAME}`, which is lost in {:?}",
                        end.saturating_duration_since(now)
                    );
                }
            }
        }
    }

    /// Writes the lease anew, also if it was deleted. Where somebody changed it, looks at it first:
    /// this may have been a request of ours whose answer was lost.
    async fn renew(&mut self) -> Result<Renewal, Trouble> {
        for _ in 0..ROUNDS {
            let sent = Instant::now();
            if let Some(written) = self.object.write(self.seen.as_ref(), &self.ours).await? {
                self.seen = Some(written);
                return Ok(Renewal::Sent(sent));
            }
            let found = self.object.read().await?;
            match standing(found.as_ref(), &self.ours) {
                Standing::Ours => self.seen = found,
                Standing::Lost(loss) => return Ok(Renewal::Lost(loss)),
            }
        }
        Err(Trouble::Contested)
    }
}
