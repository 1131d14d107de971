//! One active server: a Lease in the server's namespace, and a guard that signals its loss.
//!
//! # Guarantees
//! - **Never two guards at a time**, as long as the Lease is not edited by hand and clocks run
//!   about equally fast. A holder counts from *before* each renewal is sent and stops after
//!   [`LeaseTimings::renew_deadline`]; others count from *after* they have read that renewal and
//!   wait for [`LeaseTimings::duration`], which is longer.
//! - **Times of two machines are never compared.** Those in the Lease are for people.
//! - **Every write names the resource version that it was decided on.** If another server was
//!   faster, the write fails, and the Lease is read again.
//! - **A guard that is not renewed is lost**, also when the renewing task panics or is dropped.
//! - **The [fence](crate::fence) is open for as long as this server holds the lease**, by the clock
//!   and not by a task that has to notice: a process that was paused finds it closed, too.
//!
//! # Caveats
//! - A server takes over a Lease with its own identity at once, since after a restart no other
//!   server has it. Two live servers with one identity take it from each other; the previous holder
//!   notices at its next renewal.
//! - The same holds for a Lease that is deleted or emptied by hand: the first server to come holds
//!   it.
//! - The Linux clock stops while a machine sleeps. A server that wakes up notices at its next
//!   renewal.

mod object;
mod record;
mod renew;
#[cfg(test)]
mod tests;

use std::time::Duration;

use kube::Client;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::error_text::status_message;
use crate::fence::Fence;
use object::{LeaseObject, RequestError};
use record::{
    AcquireReason, LeaseDecision, LeaseObservation, LeaseRecord, LeaseTerm, LogThrottle, decide,
};
use renew::LeaseRenewer;

/// Name of the Lease.
pub const NAME: &str = "bowline-server";

/// Maximum duration of a lease: after the death of a server no server is active for that long.
pub const MAX_DURATION: Duration = Duration::from_mins(10);

const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after another server was faster.
const CONFLICT_PAUSE: Duration = Duration::from_millis(50);

/// Duration of a lease and times of its renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimings {
    /// Time that other servers wait after they have seen a renewal. Rounded up to whole seconds. At
    /// most [`MAX_DURATION`].
    pub duration: Duration,
    /// Interval between renewals.
    pub renew_interval: Duration,
    /// Time after the last renewal at which the guard is lost. The rest of the duration is for
    /// stopping work under way, before another server starts.
    pub renew_deadline: Duration,
}

impl Default for LeaseTimings {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_interval: Duration::from_secs(2),
            renew_deadline: Duration::from_secs(10),
        }
    }
}

impl LeaseTimings {
    /// Timeout of one request. Half of the available time, so that a request that hangs leaves time
    /// for another.
    fn request_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }

    /// Checks that a lease can be kept with these timings.
    pub fn check(self) -> Result<(), Error> {
        let ordered = [Duration::ZERO, self.renew_interval, self.renew_deadline, self.duration];
        if !ordered.is_sorted_by(|shorter, longer| shorter < longer) {
            return Err(Error::Timings(self));
        }
        if self.duration > MAX_DURATION {
            return Err(Error::TooLong(self.duration));
        }
        Ok(())
    }
}

/// Reason why a server cannot apply for the lease.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Contradictory timings.
    #[error(
        "invalid Lease times: retry period {:?}, renew deadline {:?}, Lease duration {:?}; each \
         must be longer than the one before",
        .0.renew_interval, .0.renew_deadline, .0.duration
    )]
    Timings(LeaseTimings),
    /// Duration above [`MAX_DURATION`].
    #[error(
        "invalid Lease duration {0:?}: after a crash, no server would be active for that long; \
         use at most {MAX_DURATION:?}"
    )]
    TooLong(Duration),
    /// Missing identity of the server.
    #[error("the identity of this server is empty, and the Lease `{NAME}` needs one")]
    NoIdentity,
    /// Missing permissions of the server's role.
    #[error(
        "the server may not use the Lease `{NAME}`; give its role the verbs `get`, `create` and \
         `patch` on `leases` of `coordination.k8s.io` in namespace `{namespace}`"
    )]
    Forbidden {
        /// Namespace of the lease.
        namespace: String,
        /// Answer of the API server.
        source: kube::Error,
    },
    /// The API server rejects the lease.
    #[error("the API server rejected the Lease `{NAME}` in namespace `{namespace}`")]
    Refused {
        /// Namespace of the lease.
        namespace: String,
        /// Answer of the API server.
        source: kube::Error,
    },
}

/// Lease held by this server. Dropping the guard ends the renewals; other servers then wait as if
/// this server had died. See [`LeaseGuard::release`].
#[derive(Debug)]
pub struct LeaseGuard {
    object: LeaseObject,
    term: LeaseTerm,
    lost: CancellationToken,
    renewer: JoinSet<()>,
}

/// Closes a fence when it is dropped.
struct CloseFenceOnDrop(Fence);

impl Drop for CloseFenceOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl LeaseGuard {
    /// Waits until this server holds the lease; returns no guard if it is asked to stop first. The
    /// log names the current holder. An API server that does not answer is retried; a refusal is an
    /// error. The fence is open for as long as this server holds the lease.
    pub async fn acquire(
        client: Client,
        namespace: &str,
        identity: &str,
        terms: LeaseTimings,
        fence: &Fence,
        stop: &CancellationToken,
    ) -> Result<Option<Self>, Error> {
        terms.check()?;
        if identity.is_empty() {
            return Err(Error::NoIdentity);
        }
        let object = LeaseObject::new(client, namespace, terms.duration);
        let mut candidate = LeaseCandidate::new(object, identity, terms);
        let mut error_log = LogThrottle::default();
        loop {
            let Some(read) = stop.run_until_cancelled(candidate.read()).await else {
                return Ok(None);
            };
            // Not interrupted by a stop request: the lease could be taken without this server
            // knowing.
            let attempt = match read {
                Ok(record) => candidate.acquire_if_free(record.as_ref()).await,
                Err(trouble) => Err(trouble),
            };
            let pause = match attempt {
                Ok(AcquireStep::Acquired(record, sent)) => {
                    return Ok(Some(Self::start_renewing(
                        candidate.object,
                        record,
                        sent,
                        terms,
                        fence,
                    )));
                }
                Ok(AcquireStep::Retry(pause)) => pause,
                Err(trouble) => {
                    let trouble = trouble.retryable_or_error(namespace)?;
                    if error_log.is_due("", Instant::now()) {
                        let error = status_message(&trouble);
                        tracing::warn!(error, "cannot acquire the Lease `{NAME}`; retrying");
                    }
                    terms.renew_interval
                }
            };
            if stop.run_until_cancelled(sleep(pause)).await.is_none() {
                return Ok(None);
            }
        }
    }

    /// Cancelled when the lease is lost, and when the guard is dropped or released: no external
    /// change is allowed from then on.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Releases the lease, so that the next server need not wait. If that fails, the next server
    /// does have to wait, and the log says so.
    pub async fn release(mut self) {
        // A renewal after this would take the lease again.
        self.renewer.shutdown().await;
        let released = timeout(RELEASE_TIMEOUT, self.object.release(&self.term)).await;
        match object::flatten_timeout(released, RELEASE_TIMEOUT) {
            Ok(true) => tracing::info!("released the Lease `{NAME}`"),
            Ok(false) => {
                tracing::info!("the Lease `{NAME}` is not released: another server holds it");
            }
            Err(trouble) => tracing::warn!(
                error = status_message(&trouble),
                "cannot release the Lease `{NAME}`; the next server waits until it expires"
            ),
        }
    }

    fn start_renewing(
        object: LeaseObject,
        record: LeaseRecord,
        sent: Instant,
        terms: LeaseTimings,
        fence: &Fence,
    ) -> Self {
        let lost = CancellationToken::new();
        let term = record.term.clone();
        fence.open_until(sent + terms.renew_deadline);
        let closing = CloseFenceOnDrop(fence.clone());
        let renewing = LeaseRenewer::new(object.clone(), record, terms, fence.clone()).run(sent);
        let mut keeper = JoinSet::new();
        let at_the_end = lost.clone().drop_guard();
        keeper.spawn(async move {
            // Cancels however this task ends.
            let _at_the_end = (closing, at_the_end);
            let loss = renewing.await;
            tracing::error!("lost the Lease `{NAME}`: {loss}");
        });
        Self { object, term, lost, renewer: keeper }
    }
}

enum AcquireStep {
    /// Acquired, by a request sent at this instant.
    Acquired(LeaseRecord, Instant),
    /// Retry after this time.
    Retry(Duration),
}

/// Server that applies for the lease.
struct LeaseCandidate<'a> {
    object: LeaseObject,
    identity: &'a str,
    terms: LeaseTimings,
    observation: LeaseObservation,
    holder_log: LogThrottle,
}

impl<'a> LeaseCandidate<'a> {
    fn new(object: LeaseObject, identity: &'a str, terms: LeaseTimings) -> Self {
        Self {
            object,
            identity,
            terms,
            observation: LeaseObservation::default(),
            holder_log: LogThrottle::default(),
        }
    }

    async fn read(&self) -> Result<Option<LeaseRecord>, RequestError> {
        let limit = self.terms.request_timeout();
        object::flatten_timeout(timeout(limit, self.object.read()).await, limit)
    }

    /// Takes the lease that has just been read, if it is free.
    async fn acquire_if_free(
        &mut self,
        record: Option<&LeaseRecord>,
    ) -> Result<AcquireStep, RequestError> {
        let now = Instant::now();
        let since = self.observation.unchanged_since(record, now);
        match decide(record, self.identity, since, now) {
            LeaseDecision::Acquire(reason) => self.acquire(record, reason).await,
            LeaseDecision::Wait { holder, remaining: left } => {
                if self.holder_log.is_due(holder, now) {
                    tracing::info!(holder, "waiting for the Lease `{NAME}`");
                }
                Ok(AcquireStep::Retry(left.min(self.terms.renew_interval)))
            }
        }
    }

    async fn acquire(
        &self,
        record: Option<&LeaseRecord>,
        reason: AcquireReason,
    ) -> Result<AcquireStep, RequestError> {
        let term = LeaseTerm::after(record, self.identity, jiff::Timestamp::now());
        let limit = self.terms.request_timeout();
        let sent = Instant::now();
        let written = timeout(limit, self.object.write(record, &term)).await;
        let Some(record) = object::flatten_timeout(written, limit)? else {
            return Ok(AcquireStep::Retry(CONFLICT_PAUSE));
        };
        tracing::info!(identity = self.identity, "acquired the Lease `{NAME}`: {reason}");
        Ok(AcquireStep::Acquired(record, sent))
    }
}
