//! ServerStatusRequests: version and plugins of the server.
//!
//! A request is answered at once and removed a minute later, if the client has not removed it.

use std::sync::Arc;
use std::time::Duration;

use bowline_api::ServerStatusRequest;
use bowline_api::server_status_request::{PluginInfo, ServerStatusRequestPhase as Phase};
use bowline_plugin_host::Registry;
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::json;

use super::period::{self, Due};
use crate::patch;
use crate::server::{Context, Error};
use crate::watch::{Requeue, Watch};

const CONCURRENT_REQUESTS: u16 = 10;
/// Time for which an answer is kept, as in Velero.
const ANSWER_TTL: Duration = Duration::from_mins(1);

/// Answers requests until the server stops.
pub async fn run(context: Arc<Context>) -> Result<(), Error> {
    let watch = Watch::new(context.api::<ServerStatusRequest>()).concurrency(CONCURRENT_REQUESTS);
    let stop = context.stop.clone();
    let work = move |request: Arc<ServerStatusRequest>| {
        let context = Arc::clone(&context);
        async move { reconcile(&context, &request).await }
    };
    Ok(watch.run(&stop, work).await?)
}

/// Next step for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestStep {
    Answer,
    /// Remove it when due.
    Remove(Due),
    /// Leave it alone.
    Leave,
}

async fn reconcile(context: &Context, request: &ServerStatusRequest) -> kube::Result<Requeue> {
    let api = context.api::<ServerStatusRequest>();
    match decide(request, Timestamp::now()) {
        RequestStep::Leave | RequestStep::Remove(Due::Never) => Ok(Requeue::OnChange),
        RequestStep::Remove(Due::In(rest)) => Ok(Requeue::After(rest)),
        RequestStep::Remove(Due::Now) => {
            patch::delete_by_uid(&api, request).await?;
            Ok(Requeue::OnChange)
        }
        RequestStep::Answer => {
            let status = json!({
                "phase": Phase::Processed,
                "processedTimestamp": patch::truncate_to_second(Timestamp::now()),
                "serverVersion": VERSION,
                "plugins": plugin_infos(context.host.registry()),
            });
            patch::patch_status_of(&api, request, status).await?;
            Ok(Requeue::After(ANSWER_TTL))
        }
    }
}

/// Version that the server reports.
const VERSION: &str = concat!("bowline-", env!("CARGO_PKG_VERSION"));

fn decide(request: &ServerStatusRequest, now: Timestamp) -> RequestStep {
    if request.metadata.deletion_timestamp.is_some() {
        return RequestStep::Leave;
    }
    let status = request.status.clone().unwrap_or_default();
    match status.phase {
        None | Some(Phase::New) => RequestStep::Answer,
        Some(Phase::Processed) => {
            let processed = status.processed_timestamp.or_else(|| request.creation_timestamp());
            RequestStep::Remove(period::due(processed.map(|time| time.0), Some(ANSWER_TTL), now))
        }
        Some(Phase::Other(phase)) if phase.is_empty() => RequestStep::Answer,
        Some(Phase::Other(_)) => RequestStep::Leave,
    }
}

/// All plugins, by kind and then by name.
fn plugin_infos(registry: &Registry) -> Vec<PluginInfo> {
    let info = |plugin: &bowline_plugin_host::Plugin| PluginInfo {
        name: plugin.name.to_string(),
        kind: plugin.kind.to_string(),
        ..PluginInfo::default()
    };
    let mut plugins: Vec<PluginInfo> = registry.plugins().iter().map(info).collect();
    plugins.sort_by(|a, b| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
    plugins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_answered_once_and_deleted_after_a_minute() {
        let request = |phase: &str| -> ServerStatusRequest {
            serde_json::from_value(json!({
                "apiVersion": "velero.io/v1", "kind": "ServerStatusRequest",
                "metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {},
                "status": {"phase": phase, "processedTimestamp": "2026-01-01T00:00:10Z"},
            }))
            .unwrap()
        };
        let at = |text: &str| text.parse().unwrap();
        let (soon, late) = (at("2026-01-01T00:00:30Z"), at("2026-01-01T00:01:10Z"));
        let rest = Duration::from_secs(40);
        for (phase, now, expected) in [
            ("", late, RequestStep::Answer),
            ("New", late, RequestStep::Answer),
            ("Processed", soon, RequestStep::Remove(Due::In(rest))),
            ("Processed", late, RequestStep::Remove(Due::Now)),
            ("Pondered", late, RequestStep::Leave),
        ] {
            assert_eq!(decide(&request(phase), now), expected, "{phase}");
        }
        let mut old = request("Processed");
        old.status.as_mut().unwrap().processed_timestamp = None;
        assert_eq!(decide(&old, late), RequestStep::Remove(Due::Now));
        let mut leaving = request("New");
        leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
        assert_eq!(decide(&leaving, late), RequestStep::Leave);
    }
}
