//! Commands in pods, over a connection that is upgraded to WebSocket as a real API server does.

use std::future::ready;
use std::time::Duration;

use bytes::Bytes;
use futures::SinkExt as _;
use http::request::Parts;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::route::{Route, Target};
use super::{Answer, ConnectionError, Refusal, json_answer};
use crate::world::Link;

const PROTOCOL: &str = "v4.channel.k8s.io";
/// Channel of the exit status.
const STATUS_CHANNEL: u8 = 3;
/// Size of the buffers of a connection.
const BUFFER: usize = 64 << 10;

/// Command to run.
#[derive(Clone)]
struct Command {
    link: Link,
    namespace: String,
    pod: String,
    words: Vec<String>,
}

/// Opens a connection to a container.
pub(super) async fn answer(
    link: &Link,
    route: &Route,
    parts: Parts,
) -> Result<Answer, ConnectionError> {
    let Target::Resource { namespace, name: Some(pod), .. } = &route.target else {
        return json_answer(Err(Refusal::not_found("the path")), false);
    };
    let exists = link.world.with(|state| {
        let pods = state.objects.place_of_kind("Pod").unwrap_or_default();
        state.objects.get(&(pods, namespace.clone(), pod.clone())).is_some()
    });
    if !exists {
        return json_answer(Err(Refusal::not_found(&format!("pods {pod:?}"))), false);
    }
    let command = Command {
        link: link.clone(),
        namespace: namespace.clone(),
        pod: pod.clone(),
        words: route.values("command"),
    };
    let (near, far) = tokio::io::duplex(BUFFER);
    let service = service_fn(move |request| ready(accept(command.clone(), request)));
    let serving = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(far), service)
        .with_upgrades();
    tokio::spawn(serving);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(TokioIo::new(near)).await?;
    tokio::spawn(connection.with_upgrades());
    let answer = sender.send_request(Request::from_parts(parts, Empty::new())).await?;
    Ok(answer.map(|body: Incoming| body.map_err(Into::into).boxed_unsync()))
}

/// Accepts the upgrade, and runs the command on the upgraded connection.
fn accept(
    command: Command,
    mut request: Request<Incoming>,
) -> Result<Response<Empty<Bytes>>, ConnectionError> {
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY).cloned();
    let accepted = derive_accept_key(key.as_ref().map_or(&[], |key| key.as_bytes()));
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let upgraded = TokioIo::new(upgraded);
        let mut socket = WebSocketStream::from_raw_socket(upgraded, Role::Server, None).await;
        let status = command.run().await.to_string();
        let message = [&[STATUS_CHANNEL], status.as_bytes()].concat();
        // A client that is gone does not want it.
        let _ = socket.send(Message::Binary(message.into())).await;
        let _ = socket.close(None).await;
    });
    let answer = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, accepted)
        .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
        .body(Empty::new())?;
    Ok(answer)
}

impl Command {
    /// Runs the command. Returns its status.
    async fn run(&self) -> Value {
        let Self { link, namespace, pod, words } = self;
        let wait = link.world.with(|state| {
            let duration = Duration::from_millis(state.random.between(5, 900));
            state.pods.begin(namespace, pod, duration)
        });
        tokio::time::sleep(wait).await;
        link.stop_if_dead().await;
        let is_known = link.world.with(|state| {
            state.record(&format!("{namespace}/{pod} runs {words:?}"));
            state.pods.run(namespace, pod, words)
        });
        if is_known {
            return json!({"metadata": {}, "status": "Success"});
        }
        json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "code": 500,
            "message": "command terminated with exit code 127",
        })
    }
}
