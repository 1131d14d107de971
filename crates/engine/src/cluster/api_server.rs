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

mod follow;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{Item, one_line};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams};
use kube::client::Body;
use kube::core::discovery::v2::{APIGroupDiscovery, APIGroupDiscoveryList};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{Instant, timeout};

use super::split::{NotAList, OBJECT_MAX, Splitter};
use super::{Change, Cluster, Discovery, Door, Error, Exec, Executed, Query, Result};
use crate::item::Object;
use crate::resource::{GroupResource, Resource};

/// How long the API server may be silent, before its answer or in the middle of it.
const SILENCE: Duration = Duration::from_mins(1);
/// How often something is asked for that the API server refuses for the moment, unless there is
/// progress between the tries.
const TRIES: u32 = 5;
/// For how long it is asked for while the API server is not there, counted from the first failure
/// since there was progress. A restart takes less.
const OUTAGE: Duration = Duration::from_mins(2);
/// The pause before the second try; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause, also where the API server asks for a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
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

    async fn discover_once(&self) -> Result<Discovery, Failed> {
        let core: APIGroupDiscoveryList =
            in_time(self.client.list_core_api_versions_aggregated()).await?;
        if core.items.is_empty() {
            return self.discover_one_by_one().await;
        }
        let groups = in_time(self.client.list_api_groups_aggregated()).await?;
        let mut discovery = Discovery::default();
        for group in core.items.into_iter().chain(groups.items) {
            add_group(&mut discovery, group);
        }
        Ok(discovery)
    }

    /// Discovery by one request for each group version, for API servers before Kubernetes 1.27.
    async fn discover_one_by_one(&self) -> Result<Discovery, Failed> {
        let mut discovery = Discovery::default();
        let core = in_time(self.client.list_core_api_versions()).await?;
        let groups = in_time(self.client.list_api_groups()).await?;
        let mut group_versions: Vec<(String, String)> =
            core.versions.into_iter().map(|version| (String::new(), version)).collect();
        for group in groups.groups {
            let preferred = group.preferred_version.map(|preferred| preferred.version);
            let mut versions: Vec<String> =
                group.versions.into_iter().map(|version| version.version).collect();
            // A stable sort: the preferred one first, the others as they are.
            versions.sort_by_key(|version| Some(version) != preferred.as_ref());
            group_versions
                .extend(versions.into_iter().map(|version| (group.name.clone(), version)));
        }
        for (group, version) in group_versions {
            let listed = if group.is_empty() {
                in_time(self.client.list_core_api_resources(&version)).await
            } else {
                let name = format!("{group}/{version}");
                in_time(self.client.list_api_group_resources(&name)).await
            };
            match listed {
                Ok(list) => {
                    discovery.resources.extend(list.resources.into_iter().map(|found| Resource {
                        id: GroupResource::new(&group, found.name),
                        version: version.clone(),
                        kind: found.kind,
                        singular: found.singular_name,
                        short_names: found.short_names.unwrap_or_default(),
                        is_namespaced: found.namespaced,
                        verbs: found.verbs,
                    }));
                }
                // The API server itself is gone, not one of those behind it.
                Err(error @ Error::Unreachable(_)) => return Err(error.into()),
                Err(error) => discovery.failed.push(format!("{group}/{version}: {error}")),
            }
        }
        Ok(discovery)
    }
}

#[async_trait]
impl Cluster for ApiServer {
    async fn discover(&self) -> Result<Discovery> {
        self.patiently(|| self.discover_once()).await
    }

    fn list(&self, resource: &Arc<Resource>, query: Query) -> BoxStream<'static, Result<Object>> {
        let pages = Pages {
            source: Source { server: self.clone(), resource: Arc::clone(resource), query },
            page: None,
            next: Some(String::new()),
            read: 0,
            furthest: 0,
            patience: Patience::new(self.outage),
        };
        stream::unfold(Some(pages), async |pages| {
            let mut pages = pages?;
            match pages.next_object().await {
                Ok(Some(object)) => Some((Ok(object), Some(pages))),
                Ok(None) => None,
                // One bad object does not hide the others.
                Err(error @ Error::Object(_)) => Some((Err(error), Some(pages))),
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed()
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
        let run = async {
            let mut process =
                pods.exec(&exec.pod, &exec.command, &parameters).await.map_err(from_kube)?;
            let status = process.take_status();
            let output =
                futures::future::join(tail(process.stdout()), tail(process.stderr())).await;
            let status = match status {
                Some(status) => status.await,
                None => None,
            };
            let output = [output.0, output.1].concat();
            let failure = match status {
                Some(status) if status.status.as_deref() == Some("Success") => None,
                Some(status) => Some(status.message.unwrap_or_else(|| "it failed".to_owned())),
                None => Some("the connection to the container ended before the command".to_owned()),
            };
            Ok(Executed { output: output.trim().to_owned(), failure })
        };
        match timeout(exec.timeout, run).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::ExecTimeout(exec.timeout)),
        }
    }
}

/// A list in the middle of its pages.
struct Pages {
    source: Source,
    page: Option<Page>,
    /// The token of the page that is read, or that comes next; none when the last one is through.
    next: Option<String>,
    /// How many objects this try has read of the page of that token.
    read: usize,
    /// The most that any try has.
    furthest: usize,
    patience: Patience,
}

/// What is listed.
struct Source {
    server: ApiServer,
    resource: Arc<Resource>,
    query: Query,
}

struct Page {
    body: Body,
    splitter: Splitter,
}

impl Pages {
    async fn next_object(&mut self) -> Result<Option<Object>> {
        loop {
            let Some(page) = &mut self.page else {
                let Some(token) = self.next.clone() else { return Ok(None) };
                match self.source.open_page(&token).await {
                    Ok(page) => (self.page, self.read) = (Some(page), 0),
                    Err(failed) => self.recover(failed).await?,
                }
                continue;
            };
            let step = page.step().await;
            match step {
                Ok(Step::Object(json)) => {
                    self.read += 1;
                    if self.read > self.furthest {
                        self.furthest = self.read;
                        self.patience.renew();
                    }
                    return Ok(Some(Object::from_json(&self.source.resource, json)?));
                }
                Ok(Step::End) => {
                    if let Err(failed) = self.end_page() {
                        self.recover(failed).await?;
                    }
                }
                Err(error) => {
                    self.page = None;
                    self.recover(error.into()).await?;
                }
            }
        }
    }

    fn end_page(&mut self) -> Result<(), Failed> {
        let Some(page) = self.page.take() else { return Ok(()) };
        let frame = page.splitter.finish().map_err(|error| {
            // The connection may have ended before the page did.
            let hope = if error == NotAList::Cut { Hope::Back } else { Hope::None };
            Failed { error: Error::Unreadable(error.to_string()), hope }
        })?;
        let token = frame.metadata.continue_token;
        if !token.is_empty() && self.next.as_ref() == Some(&token) {
            let text = "it gives the same continue token again".to_owned();
            return Err(Error::Unreadable(text).into());
        }
        self.next = Some(token).filter(|token| !token.is_empty());
        self.furthest = 0;
        self.patience.renew();
        Ok(())
    }

    /// Makes ready for another try after a page failed, or gives up.
    async fn recover(&mut self, failed: Failed) -> Result<()> {
        let resource = &self.source.resource.id;
        if let Error::Expired { next: Some(token) } = &failed.error {
            tracing::info!(%resource, "the list took so long that it goes on at a later time");
            self.next = Some(token.clone());
            self.furthest = 0;
        } else {
            tracing::debug!(%resource, "a page failed: {}", failed.error);
        }
        self.patience.wait(failed).await
    }
}

/// A try that failed.
struct Failed {
    error: Error,
    hope: Hope,
}

/// Why another try may end better.
enum Hope {
    /// It will not.
    None,
    /// The API server will be back.
    Back,
    /// It said "not now", and perhaps for how long.
    Later(Option<Duration>),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let hope = match &error {
            Error::Refused { code: 429 | 500 | 502 | 503 | 504, .. } => Hope::Later(None),
            Error::Unreachable(_) | Error::Silent(_) => Hope::Back,
            // There is nothing to wait for, but this must not go on for ever.
            Error::Expired { next: Some(_) } => Hope::Later(Some(Duration::ZERO)),
            Error::Refused { .. }
            | Error::Expired { next: None }
            | Error::Unreadable(_)
            | Error::Object(_)
            | Error::ExecTimeout(_) => Hope::None,
        };
        Self { error, hope }
    }
}

/// How long something is tried again.
struct Patience {
    outage: Duration,
    failures: u32,
    refusals: u32,
    /// When the API server was first found to be away.
    away_since: Option<Instant>,
}

impl Patience {
    fn new(outage: Duration) -> Self {
        Self { outage, failures: 0, refusals: 0, away_since: None }
    }

    /// There was progress.
    fn renew(&mut self) {
        *self = Self::new(self.outage);
    }

    /// Waits until the next try, or gives up.
    async fn wait(&mut self, failed: Failed) -> Result<()> {
        let Failed { error, hope } = failed;
        let doubled = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures += 1;
        let pause = match hope {
            Hope::None => return Err(error),
            Hope::Back => {
                let since = *self.away_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= self.outage {
                    return Err(error);
                }
                doubled
            }
            Hope::Later(asked) => {
                self.refusals += 1;
                if self.refusals >= TRIES {
                    return Err(error);
                }
                asked.unwrap_or(doubled)
            }
        };
        tracing::debug!("asking again: {error}");
        tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
        Ok(())
    }
}

/// For how long the API server asks to be left alone. The time of day that it may say instead is not
/// understood; Kubernetes says seconds.
fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let seconds = response.headers().get(http::header::RETRY_AFTER)?.to_str().ok()?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

/// Waits for an answer, but not for ever.
async fn in_time<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T> {
    match timeout(SILENCE, answer).await {
        Ok(answer) => answer.map_err(from_kube),
        Err(_) => Err(Error::Silent(SILENCE)),
    }
}

impl Source {
    async fn open_page(&self, token: &str) -> Result<Page, Failed> {
        let mut path = path_of(&self.resource, self.query.namespace.as_deref());
        let mut separator = '?';
        let limit = match self.server.page_size {
            0 => String::new(),
            size => size.to_string(),
        };
        for (name, value) in [
            ("limit", limit.as_str()),
            ("continue", token),
            ("labelSelector", self.query.label_selector.as_str()),
            ("fieldSelector", self.query.field_selector.as_str()),
        ] {
            if !value.is_empty() {
                path.push(separator);
                path.push_str(name);
                path.push('=');
                path.push_str(&segment(value));
                separator = '&';
            }
        }
        let response = self.server.ask(&path).await?;
        let splitter = Splitter::new(&self.resource.api_version(), &self.resource.kind);
        Ok(Page { body: response.into_body(), splitter })
    }
}

enum Step {
    Object(Bytes),
    End,
}

impl Page {
    async fn step(&mut self) -> Result<Step> {
        loop {
            let found = self.splitter.next_object();
            if let Some(json) = found.map_err(|error| Error::Unreadable(error.to_string()))? {
                return Ok(Step::Object(json));
            }
            match next_bytes(&mut self.body).await? {
                Some(bytes) => self.splitter.push(&bytes),
                None => return Ok(Step::End),
            }
        }
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

fn add_group(discovery: &mut Discovery, group: APIGroupDiscovery) {
    let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
    for version in group.versions {
        let version_name = version.version.unwrap_or_default();
        if version.freshness.as_deref() == Some("Stale") {
            let reason = "its API server does not answer";
            discovery.failed.push(format!("{name}/{version_name}: {reason}"));
            continue;
        }
        for found in version.resources {
            let kind = found.response_kind.and_then(|kind| kind.kind).unwrap_or_default();
            discovery.resources.push(Resource {
                id: GroupResource::new(&name, found.resource.unwrap_or_default()),
                version: version_name.clone(),
                kind,
                singular: found.singular_resource.unwrap_or_default(),
                short_names: found.short_names,
                is_namespaced: found.scope.as_deref() == Some("Namespaced"),
                verbs: found.verbs,
            });
        }
    }
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
