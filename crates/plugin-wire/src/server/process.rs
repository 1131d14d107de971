//! Services of the process, not of one of its plugins.

use std::pin::Pin;

use async_trait::async_trait;
use bowline_plugin::{Kind, Name};
use futures_util::{Stream, StreamExt as _, future, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::plugins::wait_for_stop;
use crate::handshake::SERVICE;
use crate::proto::generated::{self, ListPluginsResponse, PluginIdentifier};
use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::health::{self, HealthCheckRequest, HealthCheckResponse};
use crate::proto::plugin::{self, StdioData};

/// Lists the plugins.
pub(super) struct Lister(Vec<PluginIdentifier>);

impl Lister {
    pub(super) fn new(command: &str, plugins: Vec<(Kind, Name)>) -> Self {
        let entry = |(kind, name): (Kind, Name)| PluginIdentifier {
            command: command.to_owned(),
            kind: kind.to_string(),
            name: name.to_string(),
        };
        Self(plugins.into_iter().map(entry).collect())
    }
}

#[async_trait]
impl generated::plugin_lister_server::PluginLister for Lister {
    async fn list_plugins(
        &self,
        _: Request<generated::Empty>,
    ) -> Result<Response<ListPluginsResponse>, Status> {
        Ok(Response::new(ListPluginsResponse { plugins: self.0.clone() }))
    }
}

/// Passes on the request to stop.
pub(super) struct Controller(pub(super) watch::Sender<bool>);

#[async_trait]
impl plugin::grpc_controller_server::GrpcController for Controller {
    async fn shutdown(&self, _: Request<plugin::Empty>) -> Result<Response<plugin::Empty>, Status> {
        self.0.send_replace(true);
        Ok(Response::new(plugin::Empty {}))
    }
}

/// Sends nothing, until the process stops: printed output goes straight to standard error.
pub(super) struct Stdio(pub(super) watch::Receiver<bool>);

#[async_trait]
impl plugin::grpc_stdio_server::GrpcStdio for Stdio {
    type StreamStdioStream = Pin<Box<dyn Stream<Item = Result<StdioData, Status>> + Send>>;

    async fn stream_stdio(
        &self,
        _: Request<()>,
    ) -> Result<Response<Self::StreamStdioStream>, Status> {
        let end = stream::once(wait_for_stop(self.0.clone())).filter_map(|()| future::ready(None));
        Ok(Response::new(Box::pin(end)))
    }
}

/// Always healthy.
pub(super) struct Health;

#[async_trait]
impl health::health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match request.into_inner().service.as_str() {
            "" | SERVICE => {
                let status = ServingStatus::Serving.into();
                Ok(Response::new(HealthCheckResponse { status }))
            }
            other => Err(Status::not_found(format!("unknown service `{other}`"))),
        }
    }
}
