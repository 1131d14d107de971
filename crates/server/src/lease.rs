//! One active server: a Lease in the server's namespace, and a guard that says when it is lost.
//!
//! # Guarantees
//! - **No two guards at a time**, as long as nobody edits the Lease by hand and clocks run about
//!   equally fast. A holder counts from *before* each renewal is sent and stops after
//!   [`Terms::give_up`]; others count from *after* they have read that renewal and wait for
//!   [`Terms::duration`], which is longer.
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

mod keep;
mod object;
mod record;
#[cfg(test)]
mod tests;

use std::time::Duration;

use kube::Client;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::fence::Fence;
use crate::story::one_line;
use keep::Keeper;
use object::{Object, Trouble};
use record::{Herald, Record, Sight, Term, Verdict, Why, decide};

/// The name of the Lease.
pub const NAME: &str = "bowline-server";

/// The longest that a lease may last: after a server has died nobody works for that long.
pub const LONGEST: Duration = Duration::from_mins(10);

/// How long giving back may take.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// The pause after somebody else was faster.
const AFTER_CONFLICT: Duration = Duration::from_millis(50);

/// How long a lease lasts, and when it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long others must wait after they have seen a renewal. Whole seconds; a part counts as one.
    /// At most [`LONGEST`].
    pub duration: Duration,
    /// How long after a renewal the next one follows.
    pub renew: Duration,
    /// How long after the last renewal the guard is lost. The rest of the duration is for stopping
    /// what is under way, before another server begins.
    pub give_up: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew: Duration::from_secs(2),
            give_up: Duration::from_secs(10),
        }
    }
}

impl Terms {
    /// How long one request may take. Half, so that one that hangs leaves time for another.
    fn patience(&self) -> Duration {
        self.give_up / 2
    }

    /// Whether a lease can be kept by them.
    pub fn check(self) -> Result<(), Error> {
        let ordered = [Duration::ZERO, self.renew, self.give_up, self.duration];
        if !ordered.is_sorted_by(|shorter, longer| shorter < longer) {
            return Err(Error::Terms(self));
        }
        if self.duration > LONGEST {
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
        .0.renew, .0.give_up, .0.duration
    )]
    Terms(Terms),
    /// It lasts longer than others can be asked to wait.
    #[error(
        "a lease that lasts {0:?} leaves nobody at work for that long after a server has died: let it \
         last at most {LONGEST:?}"
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
/// server had died. See [`Guard::release`].
#[derive(Debug)]
pub struct Guard {
    object: Object,
    term: Term,
    lost: CancellationToken,
    keeper: JoinSet<()>,
}

/// Closes a fence when it is dropped.
struct Closing(Fence);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Guard {
    /// Waits until the lease is ours, or until asked to stop, for which there is no guard. The log
    /// says who has it. An API server that does not answer is asked again; one that refuses is an
    /// error. The fence is open as long as the lease is ours.
    pub async fn acquire(
        client: Client,
        namespace: &str,
        identity: &str,
        terms: Terms,
        fence: &Fence,
        stop: &CancellationToken,
    ) -> Result<Option<Self>, Error> {
        terms.check()?;
        if identity.is_empty() {
            return Err(Error::NoIdentity);
        }
        let object = Object::new(client, namespace, terms.duration);
        let mut applicant = Applicant::new(object, identity, terms);
        let mut troubles = Herald::default();
        loop {
            let Some(read) = stop.run_until_cancelled(applicant.look()).await else {
                return Ok(None);
            };
            // Not ended half-way when asked to stop: the lease could be taken, and nobody would know.
            let applied = match read {
                Ok(record) => applicant.apply(record.as_ref()).await,
                Err(trouble) => Err(trouble),
            };
            let pause = match applied {
                Ok(Step::Held(record, sent)) => {
                    return Ok(Some(Self::keep(applicant.object, record, sent, terms, fence)));
                }
                Ok(Step::Again(pause)) => pause,
                Err(trouble) => {
                    let trouble = trouble.unless_refused(namespace)?;
                    if troubles.is_due("", Instant::now()) {
                        let error = one_line(&trouble);
                        tracing::warn!(error, "cannot get the lease `{NAME}`, trying again");
                    }
                    terms.renew
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
        self.keeper.shutdown().await;
        let given_back = timeout(RELEASE_LIMIT, self.object.give_back(&self.term)).await;
        match object::answer(given_back, RELEASE_LIMIT) {
            Ok(true) => tracing::info!("gave back the lease `{NAME}`"),
            Ok(false) => tracing::info!("the lease `{NAME}` is no longer ours to give back"),
            Err(trouble) => tracing::warn!(
                error = one_line(&trouble),
                "cannot give back the lease `{NAME}`, so the next server has to wait for its end"
            ),
        }
    }

    fn keep(object: Object, record: Record, sent: Instant, terms: Terms, fence: &Fence) -> Self {
        let lost = CancellationToken::new();
        let term = record.term.clone();
        fence.open_until(sent + terms.give_up);
        let closing = Closing(fence.clone());
        let renewing = Keeper::new(object.clone(), record, terms, fence.clone()).run(sent);
        let mut keeper = JoinSet::new();
        let at_the_end = lost.clone().drop_guard();
        keeper.spawn(async move {
            // Cancels however this task ends.
            let _at_the_end = (closing, at_the_end);
            let why = renewing.await;
            tracing::error!("lost the lease `{NAME}`: {why}");
        });
        Self { object, term, lost, keeper }
    }
}

/// What came of applying.
enum Step {
    /// It is ours, by a request sent then.
    Held(Record, Instant),
    /// Look again after this long.
    Again(Duration),
}

/// A server that wants the lease.
struct Applicant<'a> {
    object: Object,
    identity: &'a str,
    terms: Terms,
    sight: Sight,
    holders: Herald,
}

impl<'a> Applicant<'a> {
    fn new(object: Object, identity: &'a str, terms: Terms) -> Self {
        Self { object, identity, terms, sight: Sight::default(), holders: Herald::default() }
    }

    async fn look(&self) -> Result<Option<Record>, Trouble> {
        let limit = self.terms.patience();
        object::answer(timeout(limit, self.object.read()).await, limit)
    }

    /// Takes the lease that has just been read, if that may be.
    async fn apply(&mut self, record: Option<&Record>) -> Result<Step, Trouble> {
        let now = Instant::now();
        let since = self.sight.since(record, now);
        match decide(record, self.identity, since, now) {
            Verdict::Take(why) => self.take(record, why).await,
            Verdict::Wait { holder, left } => {
                if self.holders.is_due(holder, now) {
                    tracing::info!(holder, "waiting for the lease `{NAME}`");
                }
                Ok(Step::Again(left.min(self.terms.renew)))
            }
        }
    }

    async fn take(&self, record: Option<&Record>, why: Why) -> Result<Step, Trouble> {
        let term = Term::after(record, self.identity, jiff::Timestamp::now());
        let limit = self.terms.patience();
        let sent = Instant::now();
        let written = timeout(limit, self.object.write(record, &term)).await;
        let Some(record) = object::answer(written, limit)? else {
            return Ok(Step::Again(AFTER_CONFLICT));
        };
        tracing::info!(identity = self.identity, "took the lease `{NAME}`: {why}");
        Ok(Step::Held(record, sent))
    }
}
