//! The Lease that allows one active server at a time. It is removed once no server holds it: without it, a standby
//! server would start work beside the active one.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, ResourceExt as _};
use tokio::time::Instant;

use super::{MANAGED_BY_LABEL, NAME, POLL_INTERVAL};
use crate::installation::{Installation, is_not_found};
use crate::output;

/// Assumed duration of a Lease that has none: longer than the default of any server.
const DEFAULT_LEASE_DURATION: Duration = Duration::from_mins(1);
/// More pods than a server has.
const MAX_PODS: u32 = 500;
/// Number of attempts after concurrent changes.
const MAX_ATTEMPTS: usize = 5;

/// Removes the Lease unless a server keeps renewing it. Returns that server's name.
pub(super) async fn remove(installation: &Installation) -> anyhow::Result<Option<String>> {
    let api: Api<Lease> = installation.api();
    let name = bowline_server::lease::NAME;
    for _ in 0..MAX_ATTEMPTS {
        let lease = match observe_lease(installation, &api).await? {
            LeaseLookup::Missing => return Ok(None),
            LeaseLookup::Renewed(holder) => return Ok(Some(holder)),
            LeaseLookup::Expired(lease) => lease,
        };
        let preconditions =
            Preconditions { resource_version: lease.resource_version(), uid: lease.uid() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let request = async {
            match api.delete(name, &params).await {
                Err(error) if is_not_found(&error) => Ok(true),
                // The Lease was changed meanwhile.
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
                deleted => deleted.map(|_| true),
            }
        };
        if installation.call_api("remove the Lease", request).await? {
            output::print_message(format_args!("Lease {name}: removed"));
            return Ok(None);
        }
    }
    Ok(Some("somebody".to_owned()))
}

/// Active server that holds the Lease, unless it belongs to Bowline's Deployment, which is removed.
pub(super) async fn other_holder(installation: &Installation) -> anyhow::Result<Option<String>> {
    let api: Api<Lease> = installation.api();
    let request = api.get_opt(bowline_server::lease::NAME);
    let lease = installation.call_api("read the Lease", request).await?;
    let Some(holder) = lease.as_ref().map(holder).filter(|holder| !holder.is_empty()) else {
        return Ok(None);
    };
    let deployments: Api<Deployment> = installation.api();
    let deployment =
        installation.call_api("read the server's Deployment", deployments.get_opt(NAME)).await?;
    if let Some(deployment) = deployment.filter(is_managed_by_bowline) {
        let pods: Api<Pod> = installation.api();
        let params = ListParams::default().labels(&pod_selector(&deployment)).limit(MAX_PODS);
        let pods = installation.call_api("list the server's pods", pods.list_metadata(&params));
        let is_pod = pods.await?.items.iter().any(|pod| pod.name_any() == holder);
        if is_pod || identity_flag(&deployment) == Some(holder) {
            return Ok(None);
        }
    }
    match observe_lease(installation, &api).await? {
        LeaseLookup::Missing | LeaseLookup::Expired(_) => Ok(None),
        LeaseLookup::Renewed(holder) => Ok(Some(holder)),
    }
}

fn is_managed_by_bowline(deployment: &Deployment) -> bool {
    deployment.labels().get(MANAGED_BY_LABEL).is_some_and(|by| by == NAME)
}

/// Selector for the pods of a Deployment.
fn pod_selector(deployment: &Deployment) -> String {
    let labels = deployment.spec.as_ref().and_then(|spec| spec.selector.match_labels.as_ref());
    let pairs = labels.into_iter().flatten().map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}

/// Identity set by a flag for the servers of a Deployment, if it is not the name of the pod.
fn identity_flag(deployment: &Deployment) -> Option<&str> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let mut words = pod.containers.iter().flat_map(|one| one.args.iter().flatten());
    let flag = words.find_map(|word| word.strip_prefix("--identity"))?;
    match flag.strip_prefix('=') {
        Some(name) => Some(name),
        None => words.next().map(String::as_str),
    }
}

enum LeaseLookup {
    Missing,
    /// No server holds it, or the holder has not renewed it in time.
    Expired(Box<Lease>),
    /// A server renews it.
    Renewed(String),
}

/// Observes the Lease until its state is clear. Clocks of two machines are not compared: a Lease that does not change
/// for its whole duration has expired.
async fn observe_lease(
    installation: &Installation,
    api: &Api<Lease>,
) -> anyhow::Result<LeaseLookup> {
    let name = bowline_server::lease::NAME;
    let get = async || installation.call_api("read the Lease", api.get_opt(name)).await;
    let Some(first) = get().await? else { return Ok(LeaseLookup::Missing) };
    if holder(&first).is_empty() {
        return Ok(LeaseLookup::Expired(Box::new(first)));
    }
    let Some(lasts) = duration(&first) else {
        return Ok(LeaseLookup::Renewed(holder(&first).to_owned()));
    };
    output::print_message(format_args!(
        "Lease {name}: waiting for up to {} s to check whether server `{}` is still active",
        lasts.as_secs(),
        holder(&first)
    ));
    let deadline = Instant::now() + lasts;
    while Instant::now() < deadline {
        tokio::time::sleep(POLL_INTERVAL).await;
        let Some(now) = get().await? else { return Ok(LeaseLookup::Missing) };
        if holder(&now).is_empty() {
            return Ok(LeaseLookup::Expired(Box::new(now)));
        }
        if now.resource_version() != first.resource_version() {
            return Ok(LeaseLookup::Renewed(holder(&now).to_owned()));
        }
    }
    Ok(LeaseLookup::Expired(Box::new(first)))
}

fn holder(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// Duration of a Lease after a renewal. None if that is longer than any that a Bowline server writes: waiting for it is
/// not possible, so its holder is never taken for dead.
fn duration(lease: &Lease) -> Option<Duration> {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let duration =
        seconds.filter(|seconds| *seconds > 0).map_or(DEFAULT_LEASE_DURATION, Duration::from_secs);
    (duration <= bowline_server::lease::MAX_DURATION).then_some(duration)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lease_is_observed_for_its_duration_up_to_the_maximum() {
        for (seconds, expected) in [
            (json!(15), Some(15)),
            (json!(180), Some(180)),
            (json!(600), Some(600)),
            (json!(601), None),
            (json!(null), Some(60)),
            (json!(0), Some(60)),
            (json!(-1), Some(60)),
        ] {
            let lease = json!({"metadata": {}, "spec": {"leaseDurationSeconds": seconds}});
            let lease: Lease = serde_json::from_value(lease).unwrap();
            assert_eq!(duration(&lease), expected.map(Duration::from_secs), "{seconds}");
        }
    }

    #[test]
    fn server_of_our_deployment_is_known_by_pod_name_or_identity_flag() {
        for (args, expected) in [
            (&["server"][..], None),
            (&["server", "--identity=one"], Some("one")),
            (&["server", "--identity", "one", "--log-level=debug"], Some("one")),
        ] {
            let deployment = json!({
                "metadata": {"labels": {MANAGED_BY_LABEL: NAME}},
                "spec": {
                    "selector": {"matchLabels": {"a": "b", "c": "d"}},
                    "template": {"spec": {"containers": [{"name": "x", "args": args}]}},
                },
            });
            let mut deployment: Deployment = serde_json::from_value(deployment).unwrap();
            assert_eq!(identity_flag(&deployment), expected);
            assert_eq!(pod_selector(&deployment), "a=b,c=d");
            assert!(is_managed_by_bowline(&deployment));
            deployment.metadata.labels = None;
            assert!(!is_managed_by_bowline(&deployment));
        }
    }
}
