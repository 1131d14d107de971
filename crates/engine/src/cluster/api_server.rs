//! The API server.
//!
//! # What holds
//! - Lists are read page by page and object by object, never more than one object ahead of their
//!   reader.
//! - What fails in a way that may pass is asked for again: a few times if the API server refuses, and
//!   for about as long as its restart takes if it is not there. A page whose reader gets further with
//!   every try is never given up. The reader sees some objects of such a page twice.
//! - A list whose continue token has expired goes on with the one that the API server offers
//!   instead, so it may be of two points in time; nothing that was there all the while is missed.

mod discovery;
mod ended;
mod follow;
mod pages;
mod patience;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{Item, one_line};
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

use super::split::OBJECT_MAX;
use super::{Announce, Change, Cluster, Discovery, Door, Error, Exec, Executed, Query, Result};
use crate::item::Object;
use crate::resource::{GroupResource, Resource};
use pages::Source;
use patience::{Failed, Hope, OUTAGE, Patience, retry_after};

/// How long the API server may be silent, before its answer or in the middle of it.
const SILENCE: Duration = Duration::from_mins(1);
/// How long it may take to open the way to a container. An API server that cannot reach the node knows it
/// by then.
const OPENING: Duration = Duration::from_secs(30);
/// Who owns the fields that are written.
const FIELD_MANAGER: &str = "bowline";
/// How much of an error's answer is read.
const ERROR_MAX: usize = 64 << 10;
/// How much is kept of what a command writes.
const OUTPUT_MAX: usize = 8 << 10;

/// A real cluster.
#[derive(Clone)]
pub struct ApiServer {
    client: kube::Client,
    page_size: u32,
    is_dry_run: bool,
    outage: Duration,
}

impl ApiServer {
    /// A cluster behind a client. Lists have pages of `page_size` objects; 0 for no pages.
    pub fn new(client: kube::Client, page_size: u32) -> Self {
        Self { client, page_size, is_dry_run: false, outage: OUTAGE }
    }

    /// The same cluster, asked only what would happen: whatever is written is checked as if it were
    /// meant, and not kept.
    #[must_use]
    pub fn dry_run(self) -> Self {
        Self { is_dry_run: true, ..self }
    }

    /// The same cluster, of which it is known at once that it is not there.
    #[must_use]
    pub fn impatient(self) -> Self {
        Self { outage: Duration::ZERO, ..self }
    }

    /// Asks once.
    async fn ask(&self, path: &str) -> Result<Response<Body>, Failed> {
        let request = Request::get(path)
            .header(http::header::ACCEPT, "application/json")
            .body(Body::empty())
            .map_err(|error| Error::Unreachable(error.to_string()))?;
        let response = in_time(self.client.send(request)).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(&response);
        let error = refusal(response).await;
        Err(match Failed::from(error) {
            Failed { error, hope: Hope::Later(_) } => {
                Failed { error, hope: Hope::Later(retry_after) }
            }
            failed => failed,
        })
    }

    /// Writes once. Whether to write again is for the caller to say: it may have been done.
    async fn write(
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
        let response = in_time(self.client.send(request)).await?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let json = read(response.into_body(), OBJECT_MAX).await?;
        Ok(Object::from_json(resource, json)?)
    }

    /// Deletes once. Its answer is the object, or something else: it does not matter.
    async fn erase(&self, address: &str, uid: Option<&str>) -> Result<()> {
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
        let response = in_time(self.client.send(request)).await?;
        if response.status().is_success() { Ok(()) } else { Err(refusal(response).await) }
    }

    /// Tries until there is an answer other than "not now".
    async fn patiently<T, F>(&self, attempt: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        let mut patience = Patience::new(self.outage);
        loop {
            match attempt().await {
                Ok(answer) => return Ok(answer),
                Err(failed) => patience.wait(failed).await?,
            }
        }
    }

    /// Reads an object once.
    async fn read_object(&self, path: &str) -> Result<Bytes, Failed> {
        Ok(read(self.ask(path).await?.into_body(), OBJECT_MAX).await?)
    }
}

#[async_trait]
impl Cluster for ApiServer {
    async fn discover(&self) -> Result<Discovery> {
        self.patiently(|| self.discover_once()).await
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
        pages::list(Source { server: self.clone(), resource, query }, announce)
    }

    async fn get(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let path = format!("{}/{}", path_of(resource, namespace), segment(name));
        let json = match self.patiently(|| self.read_object(&path)).await {
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
        self.write(resource, Method::POST, &path, "application/json", item.json().clone()).await
    }

    async fn patch(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        door: Door,
        patch: &Value,
    ) -> Result<Object> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let door = match door {
            Door::Whole => "",
            Door::Status => "/status",
        };
        let address = format!("{}/{}{door}", path_of(resource, namespace), segment(name));
        let body = patch.to_string().into();
        self.write(resource, Method::PATCH, &address, "application/merge-patch+json", body).await
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
        self.erase(&address, uid).await
    }

    fn watch(&self, resource: &Arc<Resource>, query: Query) -> BoxStream<'static, Result<Change>> {
        follow::follow(Source { server: self.clone(), resource: Arc::clone(resource), query })
    }

    async fn exec(&self, exec: &Exec) -> Result<Executed> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &exec.namespace);
        let parameters = AttachParams::default()
            .container(exec.container.clone())
            .stdin(false)
            .stdout(true)
            .stderr(true);
        let opening = pods.exec(&exec.pod, &exec.command, &parameters);
        let mut process = match timeout(OPENING, opening).await {
            Ok(opened) => opened.map_err(|error| ended::untold(from_kube(error)))?,
            Err(_) => return Err(Error::Silent(OPENING)),
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
            let failure = ended::failure(status)?;
            Ok(Executed { output: output.trim().to_owned(), failure })
        };
        match timeout(exec.timeout, run).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::ExecTimeout(exec.timeout)),
        }
    }
}

/// Waits for an answer, but not for ever.
async fn in_time<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T> {
    match timeout(SILENCE, answer).await {
        Ok(answer) => answer.map_err(from_kube),
        Err(_) => Err(Error::Silent(SILENCE)),
    }
}

async fn next_bytes(body: &mut Body) -> Result<Option<Bytes>> {
    loop {
        let frame = timeout(SILENCE, body.frame()).await.map_err(|_| Error::Silent(SILENCE))?;
        match frame {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
            Some(Err(error)) => return Err(Error::Unreachable(one_line(&error))),
        }
    }
}

async fn read(mut body: Body, limit: usize) -> Result<Bytes> {
    let mut whole = Vec::new();
    while let Some(bytes) = next_bytes(&mut body).await? {
        if whole.len() + bytes.len() > limit {
            return Err(Error::Unreadable(format!("it is longer than {limit} bytes")));
        }
        whole.extend_from_slice(&bytes);
    }
    Ok(whole.into())
}

/// What the API server says when it refuses.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    reason: String,
    metadata: BTreeMap<String, serde_json::Value>,
}

async fn refusal(response: Response<Body>) -> Error {
    let code = response.status();
    let text = read(response.into_body(), ERROR_MAX).await.unwrap_or_default();
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
        error => Error::Unreachable(one_line(&error)),
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

/// Text as a part of an address.
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

/// Reads what a command writes to its end, and keeps the last of it.
async fn tail(output: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut output) = output else { return String::new() };
    let mut kept = VecDeque::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        kept.extend(&buffer[..count]);
        let surplus = kept.len().saturating_sub(OUTPUT_MAX);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(kept.make_contiguous()).into_owned()
}
