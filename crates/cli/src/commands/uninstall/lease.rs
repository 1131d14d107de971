//! The Lease by which one server at a time works. It is removed once nobody holds it: without it, a server that
//! stands by would begin beside the one that works.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt as _};
use tokio::time::Instant;

use super::LOOK;
use crate::installation::{Installation, is_not_found};
use crate::output;

/// The longest time that a Lease is believed to last.
const LONGEST: Duration = Duration::from_mins(1);
/// How often somebody may be faster than we.
const MOST_TRIES: usize = 5;

/// Removes the Lease unless a server keeps renewing it. Returns that server's name.
pub(super) async fn remove(installation: &Installation) -> anyhow::Result<Option<String>> {
    let api: Api<Lease> = installation.api();
    let name = bowline_server::lease::NAME;
    for _ in 0..MOST_TRIES {
        let lease = match look(installation, &api).await? {
            Sight::Nothing => return Ok(None),
            Sight::Live(holder) => return Ok(Some(holder)),
            Sight::Silent(lease) => lease,
        };
        let preconditions =
            Preconditions { resource_version: lease.resource_version(), uid: lease.uid() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let request = async {
            match api.delete(name, &params).await {
                Err(error) if is_not_found(&error) => Ok(true),
                // Somebody has written it meanwhile.
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
                deleted => deleted.map(|_| true),
            }
        };
        if installation.ask("remove the Lease", request).await? {
            output::say(format_args!("Lease {name}: removed"));
            return Ok(None);
        }
    }
    Ok(Some("somebody".to_owned()))
}

enum Sight {
    Nothing,
    /// Nobody holds it, or whoever did has not renewed it in time.
    Silent(Box<Lease>),
    /// It is renewed.
    Live(String),
}

/// Looks at the Lease until it is clear. Times of two machines are not compared: one that does not change for as
/// long as it lasts is let go.
async fn look(installation: &Installation, api: &Api<Lease>) -> anyhow::Result<Sight> {
    let name = bowline_server::lease::NAME;
    let get = async || installation.ask("look at the Lease", api.get_opt(name)).await;
    let Some(first) = get().await? else { return Ok(Sight::Nothing) };
    let deadline = Instant::now() + lasts(&first);
    while !holder(&first).is_empty() && Instant::now() < deadline {
        tokio::time::sleep(LOOK).await;
        let Some(now) = get().await? else { return Ok(Sight::Nothing) };
        if holder(&now).is_empty() {
            return Ok(Sight::Silent(Box::new(now)));
        }
        if now.resource_version() != first.resource_version() {
            return Ok(Sight::Live(holder(&now).to_owned()));
        }
    }
    Ok(Sight::Silent(Box::new(first)))
}

fn holder(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

fn lasts(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(LONGEST, Duration::from_secs).min(LONGEST)
}
