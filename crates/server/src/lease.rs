//! One active server: a Lease in the server's namespace, and a guard that says when it is lost.
//!
//! # Guarantees
//! - **No two guards at a time**, as long as nobody edits the Lease by hand and clocks run about
//!   equally fast. A holder counts from *before* each renewal is sent and stops after
//!   [`LeaseTimings::renew_deadline`]; others count from *after* they have read that renewal and wait for
//!   [`LeaseTimings::duration`], which is longer.
//! - **Times of two machines are never compared.** Those in the Lease are for people.
//! - **Every write names the version that it was decided on.** Where somebody was faster, it fails,
//!   and the Lease is looked at again.
//! - **A guard that is not kept is lost**: also when the task that renews it panics or is dropped.
//! - **The [fence](crate::fence) is open for as long as the lease is ours**, by the clock and not by a task that
//!   has to notice: also a process that was paused finds it closed.
//!
//! # Caveats
//! - A server takes the Lease from its own name at once, since after a restart nobody else has it.
//!   Two live servers of one name take it from each other; the one that had it finds out at its next
//!   renewal.
//! - The same holds for a Lease that is deleted or emptied by hand: whoever comes first has it.
//! - The clock of Linux stands still while a machine sleeps. A server that wakes up finds out at its
//!   next renewal.

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

/// The name of the Lease.
pub const NAME: &str = "bowline-server";

/// The longest that a lease may last: after a server has died nobody works for that long.
pub const MAX_DURATION: Duration = Duration::from_mins(10);

/// How long giving back may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after somebody else was faster.
const CONFLICT_PAUSE: Duration = Duration::from_millis(50);

/// How long a lease lasts, and when it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimings {
    /// How long others must wait after they have seen a renewal. Whole seconds; a part counts as one.
    /// At most [`MAX_DURATION`].
    pub duration: Duration,
    /// How long after a renewal the next one follows.
    pub renew_interval: Duration,
    /// How long after the last renewal the guard is lost. The rest of the duration is for stopping
    /// what is under way, before another server begins.
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
    /// How long one request may take. Half, so that one that hangs leaves time for another.
    fn request_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }

    /// Whether a lease can be kept by them.
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

/// Why a server cannot apply for the lease.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The terms contradict each other.
    #[error(
        "a lease that is renewed each {:?}, given up after {:?} and lasts {:?} cannot be kept: each \
         must be longer than the one before",
        .0.renew_interval, .0.renew_deadline, .0.duration
    )]
    Timings(LeaseTimings),
    /// It lasts longer than others can be asked to wait.
    #[error(
        "a lease that lasts {0:?} leaves nobody at work for that long after a server has died: let it \
         last at most {MAX_DURATION:?}"
    )]
    TooLong(Duration),
    /// The server has no name.
    #[error("a server needs a name to hold the lease `{NAME}`, and this one's is empty")]
    NoIdentity,
    /// The server's role lacks rights.
    #[error(
        "may not use the lease `{NAME}`: let the role of the server have the verbs `get`, `create` \
         and `patch` on `leases` of `coordination.k8s.io` in the namespace `{namespace}`"
    )]
    Forbidden {
        /// Where the lease is.
        namespace: String,
        /// What the API server says.
        source: kube::Error,
    },
    /// The API server does not want the lease.
    #[error("the API server refuses the lease `{NAME}` in the namespace `{namespace}`")]
    Refused {
        /// Where the lease is.
        namespace: String,
        /// What the API server says.
        source: kube::Error,
    },
}

/// The lease, as long as it is ours. Dropping it ends the renewals; others then wait as if this
/// server had died. See [`LeaseGuard::release`].
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
    /// Waits until the lease is ours, or until asked to stop, for which there is no guard. The log
    /// says who has it. An API server that does not answer is asked again; one that refuses is an
    /// error. The fence is open as long as the lease is ours.
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
            // Not ended half-way when asked to stop: the lease could be taken, and nobody would know.
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
                        tracing::warn!(error, "cannot get the lease `{NAME}`, trying again");
                    }
                    terms.renew_interval
                }
            };
            if stop.run_until_cancelled(sleep(pause)).await.is_none() {
                return Ok(None);
            }
        }
    }

    /// Cancelled when the lease is lost, and when the guard is dropped or given back: nothing may be
    /// done outside any more.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Gives the lease back, so that the next server need not wait. Where that fails it does have to,
    /// and the log says so.
    pub async fn release(mut self) {
        // A renewal after this would take it again.
        self.renewer.shutdown().await;
        let released = timeout(RELEASE_TIMEOUT, self.object.release(&self.term)).await;
        match object::flatten_timeout(released, RELEASE_TIMEOUT) {
            Ok(true) => tracing::info!("gave back the lease `{NAME}`"),
            Ok(false) => tracing::info!("the lease `{NAME}` is no longer ours to give back"),
            Err(trouble) => tracing::warn!(
                error = status_message(&trouble),
                "cannot give back the lease `{NAME}`, so the next server has to wait for its end"
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
            tracing::error!("lost the lease `{NAME}`: {loss}");
        });
        Self { object, term, lost, renewer: keeper }
    }
}

/// What came of applying.
enum AcquireStep {
    /// It is ours, by a request sent then.
    Acquired(LeaseRecord, Instant),
    /// Look again after this long.
    Retry(Duration),
}

/// A server that wants the lease.
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

    /// Takes the lease that has just been read, if that may be.
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
                    tracing::info!(holder, "waiting for the lease `{NAME}`");
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
        tracing::info!(identity = self.identity, "took the lease `{NAME}`: {reason}");
        Ok(AcquireStep::Acquired(record, sent))
    }
}
