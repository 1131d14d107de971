//! Lease object in the cluster: read, write and release.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::error::Elapsed;

use super::record::{LeaseRecord, LeaseTerm};
use super::{Error, NAME};
use crate::patch;

/// Number of attempts at a release while other servers change the Lease.
const MAX_CONFLICTS: usize = 5;

/// Failed request.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// No answer in time.
    #[error("no answer from the API server within {0:?}")]
    Timeout(Duration),
    /// Error answer.
    #[error("the API server refused the request")]
    Api(#[source] kube::Error),
    /// Other servers were faster each time.
    #[error("other servers changed the Lease at every attempt")]
    TooManyConflicts,
}

impl RequestError {
    /// Error, unless a retry may succeed.
    pub(super) fn retryable_or_error(self, namespace: &str) -> Result<Self, Error> {
        let namespace = || namespace.to_owned();
        match self {
            Self::Api(source) if patch::is_forbidden(&source) => {
                Err(Error::Forbidden { namespace: namespace(), source })
            }
            Self::Api(source) if patch::is_permanent(&source) => {
                Err(Error::Refused { namespace: namespace(), source })
            }
            other => Ok(other),
        }
    }
}

/// Answer to a request with this timeout.
pub(super) fn flatten_timeout<T>(
    outcome: Result<Result<T, RequestError>, Elapsed>,
    limit: Duration,
) -> Result<T, RequestError> {
    outcome.unwrap_or(Err(RequestError::Timeout(limit)))
}

/// Lease object, existing or not.
#[derive(Clone, Debug)]
pub(super) struct LeaseObject {
    leases: Api<Lease>,
    duration: Duration,
}

impl LeaseObject {
    pub(super) fn new(client: Client, namespace: &str, duration: Duration) -> Self {
        Self { leases: Api::namespaced(client, namespace), duration }
    }

    /// Current contents; `None` if the object does not exist.
    pub(super) async fn read(&self) -> Result<Option<LeaseRecord>, RequestError> {
        let lease = self.leases.get_opt(NAME).await.map_err(RequestError::Api)?;
        Ok(lease.map(|lease| LeaseRecord::of(lease, self.duration)))
    }

    /// Writes a term, as renewed now. `None` if the Lease is no longer as in `read`, which is
    /// `None` for a Lease that does not exist.
    pub(super) async fn write(
        &self,
        read: Option<&LeaseRecord>,
        term: &LeaseTerm,
    ) -> Result<Option<LeaseRecord>, RequestError> {
        let spec = self.spec(term);
        let written = if let Some(record) = read {
            let version = Some(record.version.as_str());
            patch::patch(&self.leases, NAME, version, json!({ "spec": spec })).await
        } else {
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(spec) };
            self.leases.create(&patch::post_params(), &lease).await
        };
        self.none_on_conflict(written, read.is_some())
    }

    /// Ends a term, if it is still the current one.
    pub(super) async fn release(&self, term: &LeaseTerm) -> Result<bool, RequestError> {
        for _ in 0..MAX_CONFLICTS {
            let Some(record) = self.read().await?.filter(|record| record.term == *term) else {
                return Ok(false);
            };
            let version = Some(record.version.as_str());
            let no_holder = json!({"spec": {"holderIdentity": null}});
            let written = patch::patch(&self.leases, NAME, version, no_holder).await;
            if self.none_on_conflict(written, true)?.is_some() {
                return Ok(true);
            }
        }
        Err(RequestError::TooManyConflicts)
    }

    fn spec(&self, term: &LeaseTerm) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(term.holder.clone()),
            acquire_time: term.acquired.map(MicroTime),
            renew_time: Some(MicroTime(Timestamp::now())),
            lease_duration_seconds: Some(whole_seconds(self.duration)),
            lease_transitions: Some(term.transitions),
            ..LeaseSpec::default()
        }
    }

    /// `None` if the write failed because another server was faster.
    fn none_on_conflict(
        &self,
        written: kube::Result<Lease>,
        was_there: bool,
    ) -> Result<Option<LeaseRecord>, RequestError> {
        match written {
            Ok(lease) => Ok(Some(LeaseRecord::of(lease, self.duration))),
            Err(error) if patch::is_conflict(&error) || patch::is_already_exists(&error) => {
                Ok(None)
            }
            // For a creation, "not found" means that the namespace does not exist.
            Err(error) if patch::is_not_found(&error) && was_there => Ok(None),
            Err(error) => Err(RequestError::Api(error)),
        }
    }
}

/// Rounds up to whole seconds.
pub(super) fn whole_seconds(duration: Duration) -> i32 {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i32::try_from(seconds).unwrap_or(i32::MAX)
}
