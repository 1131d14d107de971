//! Cluster behind a real API server.
//!
//! # Guarantees
//! - Lists are read page by page and object by object, never more than one object ahead of their
//!   reader.
//! - Transient failures are retried: a few times if the API server refuses, and for about the time
//!   of its restart if it is unreachable. A page whose reader makes progress with every attempt is
//!   never given up. The reader sees some objects of such a page twice.
//! - A list whose continue token has expired continues with the one that the API server offers
//!   instead, so it may mix two points in time; objects that existed all the time are never missed.

mod discovery;
mod exec_status;
mod pages;
mod retry;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{Item, error_chain};
use bytes::Bytes;
use futures::stream::BoxStream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams};
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use super::list_splitter::OBJECT_MAX;
use super::{
    Announce, Cluster, Discovery, Error, Exec, ExecOutcome, Query, Result, Subresource, WatchEvent,
};
use crate::item::Object;
use crate::resource::{GroupResource, Resource};
use pages::ListSource;
use retry::{FailedAttempt, MAX_OUTAGE, RetryBudget, RetryHint, retry_after};

/// Maximum silence of the API server, before its answer or in the middle of it.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);
/// Timeout for the connection to a container. An API server that cannot reach the node knows by
/// then.
const EXEC_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Field manager of all writes.
const FIELD_MANAGER: &str = "bowline";
/// Number of bytes read of an error response.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Number of bytes kept of a command's output.
const MAX_OUTPUT_BYTES: usize = 8 << 10;

/// Real cluster.
#[derive(Clone)]
pub struct ApiServer {
    client: kube::Client,
    page_size: u32,
    is_dry_run: bool,
    max_outage: Duration,
}

impl ApiServer {
    /// Cluster behind a client. Lists have pages of `page_size` objects; 0 for no pages.
    pub fn new(client: kube::Client, page_size: u32) -> Self {
        Self { client, page_size, is_dry_run: false, max_outage: MAX_OUTAGE }
    }

    /// Turns all writes into dry runs: the API server validates them without storing anything.
    #[must_use]
    pub fn dry_run(self) -> Self {
        Self { is_dry_run: true, ..self }
    }

    /// Disables retries of an unreachable API server, which is then an error at once.
    #[must_use]
    pub fn without_outage_retries(self) -> Self {
        Self { max_outage: Duration::ZERO, ..self }
    }

    async fn get_once(&self, path: &str) -> Result<Response<Body>, FailedAttempt> {
        let request = Request::get(path)
            .header(http::header::ACCEPT, "application/json")
            .body(Body::empty())
            .map_err(|error| Error::Unreachable(error.to_string()))?;
        let response = with_timeout(self.client.send(request)).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(&response);
        let error = error_response(response).await;
        Err(match FailedAttempt::from(error) {
            FailedAttempt { error, retry_hint: RetryHint::After(_) } => {
                FailedAttempt { error, retry_hint: RetryHint::After(retry_after) }
            }
            failed => failed,
        })
    }

    /// One attempt at a write. The caller decides about a retry: the write may have been carried
    /// out.
    async fn write_once(
        &self,
        resource: &Arc<Resource>,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Object> {
        let dry_run = if self.is_dry_run { "&dryRun=All" } else { "" };
        let path = format!("{path}?fieldManager={FIELD_MANAGER}{dry_run}");
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .header(http::header::ACCEPT, "application/json")
            .body(Body::from(body.to_vec()))
            .map_err(|error| Error::Unreachable(error.to_string()))?;
        let response = with_timeout(self.client.send(request)).await?;
        if !response.status().is_success() {
            return Err(error_response(response).await);
        }
        let json = read_body(response.into_body(), OBJECT_MAX).await?;
        Ok(Object::from_json(resource, json)?)
    }

    /// One attempt at a deletion. The answer is the object or a status, and is ignored.
    async fn delete_once(&self, address: &str, uid: Option<&str>) -> Result<()> {
        let dry_run = if self.is_dry_run { "?dryRun=All" } else { "" };
        let mut options = serde_json::json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if let Some(uid) = uid {
            options["preconditions"] = serde_json::json!({ "uid": uid });
        }
        let request = Request::delete(format!("{address}{dry_run}"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .header(http::header::ACCEPT, "application/json")
            .body(Body::from(options.to_string().into_bytes()))
            .map_err(|error| Error::Unreachable(error.to_string()))?;
        let response = with_timeout(self.client.send(request)).await?;
        if response.status().is_success() { Ok(()) } else { Err(error_response(response).await) }
    }

    /// Retries until there is a final answer.
    async fn with_retries<T, F>(&self, attempt: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, FailedAttempt>>,
    {
        let mut retry_budget = RetryBudget::new(self.max_outage);
        loop {
            match attempt().await {
                Ok(answer) => return Ok(answer),
                Err(failed) => retry_budget.wait_or_give_up(failed).await?,
            }
        }
    }

    async fn read_object(&self, path: &str) -> Result<Bytes, FailedAttempt> {
        Ok(read_body(self.get_once(path).await?.into_body(), OBJECT_MAX).await?)
    }
}

#[async_trait]
impl Cluster for ApiServer {
    async fn discover(&self) -> Result<Discovery> {
        self.with_retries(|| self.discover_once()).await
    }

    fn list(&self, resource: &Arc<Resource>, query: Query) -> BoxStream<'static, Result<Object>> {
        self.list_announced(resource, query, Box::new(|_| ()))
    }

    fn list_announced(
        &self,
        resource: &Arc<Resource>,
        query: Query,
        announce: Announce,
    ) -> BoxStream<'static, Result<Object>> {
        let resource = Arc::clone(resource);
        pages::list(ListSource { server: self.clone(), resource, query }, announce)
    }

    async fn get(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let path = format!("{}/{}", path_of(resource, namespace), segment(name));
        let json = match self.with_retries(|| self.read_object(&path)).await {
            Err(error) if error.is_not_found() => return Ok(None),
            json => json?,
        };
        Ok(Some(Object::from_json(resource, json)?))
    }

    async fn create(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        item: &Item,
    ) -> Result<Object> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let path = path_of(resource, namespace);
        self.write_once(resource, Method::POST, &path, "application/json", item.json().clone())
            .await
    }

    async fn patch(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        subresource: Subresource,
        patch: &Value,
    ) -> Result<Object> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let subresource_path = match subresource {
            Subresource::None => "",
            Subresource::Status => "/status",
        };
        let address =
            format!("{}/{}{subresource_path}", path_of(resource, namespace), segment(name));
        let body = patch.to_string().into();
        self.write_once(resource, Method::PATCH, &address, "application/merge-patch+json", body)
            .await
    }

    async fn delete(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<()> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let address = format!("{}/{}", path_of(resource, namespace), segment(name));
        self.delete_once(&address, uid).await
    }

    fn watch(
        &self,
        resource: &Arc<Resource>,
        query: Query,
    ) -> BoxStream<'static, Result<WatchEvent>> {
        watch::watch(ListSource { server: self.clone(), resource: Arc::clone(resource), query })
    }

    async fn exec(&self, exec: &Exec) -> Result<ExecOutcome> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &exec.namespace);
        let parameters = AttachParams::default()
            .container(exec.container.clone())
            .stdin(false)
            .stdout(true)
            .stderr(true);
        let opening = pods.exec(&exec.pod, &exec.command, &parameters);
        let mut process = match timeout(EXEC_CONNECT_TIMEOUT, opening).await {
            Ok(opened) => opened.map_err(|error| exec_status::redact_command(from_kube(error)))?,
            Err(_) => return Err(Error::Timeout(EXEC_CONNECT_TIMEOUT)),
        };
        let run = async {
            let status = process.take_status();
            let output =
                futures::future::join(tail(process.stdout()), tail(process.stderr())).await;
            let status = match status {
                Some(status) => status.await,
                None => None,
            };
            let output = [output.0, output.1].concat();
            let failure = exec_status::failure(status)?;
            Ok(ExecOutcome { output: output.trim().to_owned(), failure })
        };
        match timeout(exec.timeout, run).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::ExecTimeout(exec.timeout)),
        }
    }
}

async fn with_timeout<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T> {
    match timeout(RESPONSE_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(from_kube),
        Err(_) => Err(Error::Timeout(RESPONSE_TIMEOUT)),
    }
}

async fn next_bytes(body: &mut Body) -> Result<Option<Bytes>> {
    loop {
        let frame = timeout(RESPONSE_TIMEOUT, body.frame())
            .await
            .map_err(|_| Error::Timeout(RESPONSE_TIMEOUT))?;
        match frame {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
            Some(Err(error)) => return Err(Error::Unreachable(error_chain(&error))),
        }
    }
}

async fn read_body(mut body: Body, limit: usize) -> Result<Bytes> {
    let mut whole = Vec::new();
    while let Some(bytes) = next_bytes(&mut body).await? {
        if whole.len() + bytes.len() > limit {
            return Err(Error::Unreadable(format!("the answer is longer than {limit} bytes")));
        }
        whole.extend_from_slice(&bytes);
    }
    Ok(whole.into())
}

/// Error answer of the API server.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    reason: String,
    metadata: BTreeMap<String, serde_json::Value>,
}

async fn error_response(response: Response<Body>) -> Error {
    let code = response.status();
    let text = read_body(response.into_body(), MAX_ERROR_BYTES).await.unwrap_or_default();
    let status: Status = serde_json::from_slice(&text).unwrap_or_default();
    if code == StatusCode::GONE {
        let token = status.metadata.get("continue").and_then(serde_json::Value::as_str);
        return Error::Expired { next: token.map(str::to_owned).filter(|token| !token.is_empty()) };
    }
    let message = match status.message {
        message if message.is_empty() => String::from_utf8_lossy(&text).trim().to_owned(),
        message => message,
    };
    let reason = match status.reason {
        reason if reason.is_empty() => code.canonical_reason().unwrap_or("unknown").to_owned(),
        reason => reason,
    };
    Error::Refused { code: code.as_u16(), reason, message }
}

fn from_kube(error: kube::Error) -> Error {
    match error {
        kube::Error::Api(status) => {
            Error::Refused { code: status.code, reason: status.reason, message: status.message }
        }
        kube::Error::SerdeError(error) => Error::Unreadable(error.to_string()),
        error => Error::Unreachable(error_chain(&error)),
    }
}

fn path_of(resource: &Resource, namespace: Option<&str>) -> String {
    let Resource { id: GroupResource { group, resource }, version, .. } = resource;
    let root = if group.is_empty() {
        format!("/api/{}", segment(version))
    } else {
        format!("/apis/{}/{}", segment(group), segment(version))
    };
    match namespace {
        Some(namespace) => {
            format!("{root}/namespaces/{}/{}", segment(namespace), segment(resource))
        }
        None => format!("{root}/{}", segment(resource)),
    }
}

/// Escapes text for a segment of a URL path.
fn segment(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut escaped, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(char::from(byte));
            }
            _ => {
                // Writing to a string does not fail.
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
        escaped
    })
}

/// Reads the output of a command to its end, and keeps the last part.
async fn tail(output: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut output) = output else { return String::new() };
    let mut last_output = VecDeque::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        last_output.extend(&buffer[..count]);
        let surplus = last_output.len().saturating_sub(MAX_OUTPUT_BYTES);
        last_output.drain(..surplus);
    }
    String::from_utf8_lossy(last_output.make_contiguous()).into_owned()
}
