//! Queries version and plugins of the server, with a ServerStatusRequest.

use std::time::Duration;

use anyhow::{anyhow, bail};
use bowline_api::ServerStatusRequest;
use bowline_api::server_status_request::ServerStatusRequestPhase;
use kube::ResourceExt as _;
use kube::api::PostParams;
use tokio::time::{Instant, sleep, timeout_at};

use crate::installation::{Installation, is_not_found, is_transient};
use crate::listing;

/// Interval of checks for the answer.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Version and plugins of the server. The request is deleted afterwards.
pub(crate) async fn request_status(
    installation: &Installation,
    answer_timeout: Duration,
) -> anyhow::Result<ServerStatusRequest> {
    let deadline = Instant::now() + answer_timeout;
    let mut request = ServerStatusRequest::default();
    request.metadata.generate_name = Some("bowline-cli-".to_owned());
    let api = installation.api::<ServerStatusRequest>();
    let params = PostParams::default();
    let creating =
        installation.call_api("request the server's status", api.create(&params, &request));
    let Ok(created) = timeout_at(deadline, creating).await else {
        bail!(
            "no response from the cluster within {}",
            bowline_api::Duration::from(answer_timeout)
        );
    };
    let name = created?.name_any();
    let answer = wait_for_answer(installation, &name, deadline).await;
    // The server deletes it as well, after a while.
    let _ = listing::delete::<ServerStatusRequest>(installation, &name).await;
    answer?.ok_or_else(|| {
        anyhow!(
            "no response from a server within {}; check that one runs in namespace `{}`",
            bowline_api::Duration::from(answer_timeout),
            installation.namespace(),
        )
    })
}

async fn wait_for_answer(
    installation: &Installation,
    name: &str,
    deadline: Instant,
) -> anyhow::Result<Option<ServerStatusRequest>> {
    let api = installation.api::<ServerStatusRequest>();
    loop {
        match timeout_at(deadline, api.get(name)).await {
            Ok(Ok(request)) if is_answered(&request) => return Ok(Some(request)),
            Ok(Err(error)) if is_not_found(&error) => {
                bail!("the request to the server was deleted before it was answered");
            }
            Ok(Err(error)) if !is_transient(&error) => {
                return Err(installation.explain_error("read the server's response", error));
            }
            Ok(_) => {}
            Err(_) => return Ok(None),
        }
        if Instant::now() + POLL_INTERVAL >= deadline {
            return Ok(None);
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn is_answered(request: &ServerStatusRequest) -> bool {
    let phase = request.status.as_ref().and_then(|status| status.phase.as_ref());
    phase.is_some_and(ServerStatusRequestPhase::is_terminal)
}
