//! In-memory API server, as a service under the client of the server.

mod controllers;
mod exec;
mod kind;
mod object_store;
mod route;
mod watch_stream;

use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::anyhow;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use serde_json::{Value, json};
use tower_service::Service;

pub(crate) use object_store::{Change, Key, ObjectStore, Preconditions, Refusal};

use crate::fault::{FaultKind, Part};
use crate::os;
use crate::world::{Link, Verdict};
use object_store::metadata_only;
use route::{Route, Target};

/// Error of a connection.
pub(crate) type ConnectionError = Box<dyn std::error::Error + Send + Sync>;
/// Body of an answer.
pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, ConnectionError>;
type Answer = Response<AnswerBody>;

/// API server as one server sees it.
#[derive(Clone)]
pub(crate) struct ApiServer {
    link: Link,
}

impl ApiServer {
    /// Client of a server.
    pub(crate) fn client(link: &Link, namespace: &str) -> kube::Client {
        kube::Client::new(Self { link: link.clone() }, namespace)
    }

    async fn answer(self, request: Request<Body>) -> Result<Answer, ConnectionError> {
        let (parts, body) = request.into_parts();
        let what = format!("{} {}", parts.method, parts.uri);
        let is_exec = parts.headers.contains_key(header::UPGRADE);
        let part = if is_exec { Part::Exec } else { Part::Api };
        let verdict = match self.link.before(Part::Api, &what).await {
            Verdict::Proceed if is_exec => self.link.before(part, "exec").await,
            verdict => verdict,
        };
        if let Verdict::Fail(kind) = verdict {
            return self.fail(kind);
        }
        let body = body.collect_bytes().await?;
        let route = Route::of(&parts);
        if is_exec {
            let answer = exec::answer(&self.link, &route, parts).await;
            return if verdict == Verdict::LoseAnswer { Err(cut()) } else { answer };
        }
        let wants_metadata = parts
            .headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .is_some_and(|accept| accept.contains("as=PartialObjectMetadata"));
        let answer = if route.is_watch() {
            watch_stream::answer(&self.link, &route)
        } else {
            let outcome = self
                .link
                .world
                .with(|state| respond(&mut state.objects, &route, &parts.method, &body));
            json_answer(outcome, wants_metadata)
        };
        self.link.after(part).await;
        if verdict == Verdict::LoseAnswer { Err(cut()) } else { answer }
    }

    fn fail(&self, kind: FaultKind) -> Result<Answer, ConnectionError> {
        if kind != FaultKind::ApiError {
            return Err(cut());
        }
        let refusals = [
            Refusal::new(500, "InternalError", "the storage has failed"),
            Refusal::new(503, "ServiceUnavailable", "the API server is starting"),
            Refusal::new(429, "TooManyRequests", "too many requests"),
            Refusal::new(504, "Timeout", "the request did not complete in time"),
        ];
        let chosen = self.link.world.with(|state| state.random.below(refusals.len() as u64));
        let [first, second, third, fourth] = refusals;
        let refusal = match chosen {
            0 => first,
            1 => second,
            2 => third,
            _ => fourth,
        };
        json_answer(Err(refusal), false)
    }
}

impl Service<Request<Body>> for ApiServer {
    type Response = Answer;
    type Error = ConnectionError;
    type Future = BoxFuture<'static, Result<Answer, ConnectionError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.clone().answer(request).boxed()
    }
}

fn cut() -> ConnectionError {
    anyhow!("the connection to the API server was cut").into()
}

/// Answer with this body.
fn answer_with(code: u16, body: AnswerBody) -> Result<Answer, ConnectionError> {
    let seconds = i64::try_from(os::now().as_secs()).unwrap_or_default();
    let time = jiff::Timestamp::from_second(os::BEGIN + seconds)?.to_zoned(jiff::tz::TimeZone::UTC);
    let date = time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let answer = Response::builder()
        .status(StatusCode::from_u16(code)?)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::DATE, date)
        .body(body)?;
    Ok(answer)
}

fn json_answer(
    outcome: Result<Outcome, Refusal>,
    wants_metadata: bool,
) -> Result<Answer, ConnectionError> {
    let (code, value) = match outcome {
        Err(refusal) => (refusal.code, refusal.status()),
        Ok(Outcome::Other(value)) => (200, value),
        Ok(Outcome::Object(code, object)) if wants_metadata => (code, metadata_only(&object)),
        Ok(Outcome::Object(code, object)) => (code, (*object).clone()),
        Ok(Outcome::List { mut frame, items }) => {
            let item = |object: Arc<Value>| {
                if wants_metadata { metadata_only(&object) } else { (*object).clone() }
            };
            if wants_metadata {
                frame["apiVersion"] = json!("meta.k8s.io/v1");
                frame["kind"] = json!("PartialObjectMetadataList");
            }
            frame["items"] = items.into_iter().map(item).collect();
            (200, frame)
        }
    };
    let body = Full::new(Bytes::from(value.to_string()));
    answer_with(code, body.map_err(|never| match never {}).boxed_unsync())
}

/// Answer before it is written down.
enum Outcome {
    Object(u16, Arc<Value>),
    List { frame: Value, items: Vec<Arc<Value>> },
    Other(Value),
}

fn respond(
    objects: &mut ObjectStore,
    route: &Route,
    method: &Method,
    body: &[u8],
) -> Result<Outcome, Refusal> {
    let parse = || -> Result<Value, Refusal> {
        serde_json::from_slice(body)
            .map_err(|error| Refusal::new(400, "BadRequest", format!("no JSON: {error}")))
    };
    let is_dry_run = route.parameter("dryRun").is_some();
    let (place, key) = match &route.target {
        Target::Version => return Ok(Outcome::Other(json!({"major": "1", "minor": "36"}))),
        Target::Discovery { is_core } => {
            return Ok(Outcome::Other(kind::discovery(&objects.kinds, *is_core)));
        }
        Target::Unknown => return Err(Refusal::not_found("the path")),
        Target::Resource { group, plural, namespace, name } => {
            let place = objects.place(group, plural);
            let place = place.ok_or_else(|| Refusal::not_found(&format!("kind {plural}")))?;
            (place, name.as_ref().map(|name| (place, namespace.clone(), name.clone())))
        }
    };
    let Some(key) = key else {
        return match *method {
            Method::GET => list(objects, place, route),
            Method::POST => {
                let namespace = route.namespace();
                Ok(Outcome::Object(201, objects.create(place, namespace, parse()?, is_dry_run)?))
            }
            _ => Err(unsupported(method)),
        };
    };
    match *method {
        Method::GET => {
            let missing =
                || Refusal::not_found(&format!("{} {:?}", objects.kinds[place].plural, key.2));
            Ok(Outcome::Object(200, objects.get(&key).ok_or_else(missing)?))
        }
        Method::PATCH => Ok(Outcome::Object(200, objects.patch(&key, parse()?, is_dry_run)?)),
        Method::PUT => Ok(Outcome::Object(200, objects.replace(&key, parse()?, is_dry_run)?)),
        Method::DELETE => {
            let options = if body.is_empty() { Value::Null } else { parse()? };
            let text = |field: &str| options["preconditions"][field].as_str().map(str::to_owned);
            let preconditions =
                Preconditions { uid: text("uid"), version: text("resourceVersion") };
            Ok(Outcome::Object(200, objects.delete(&key, &preconditions, is_dry_run)?))
        }
        _ => Err(unsupported(method)),
    }
}

fn unsupported(method: &Method) -> Refusal {
    Refusal::new(405, "MethodNotAllowed", format!("{method} is not simulated"))
}

/// A page of a list. The token is the place of the next object, among all that match.
fn list(objects: &ObjectStore, place: usize, route: &Route) -> Result<Outcome, Refusal> {
    let selection = route.selection()?;
    let number = |name: &str| route.parameter(name).and_then(|text| text.parse::<usize>().ok());
    let (from, limit) = (number("continue").unwrap_or(0), number("limit").unwrap_or(0));
    let mut items: Vec<Arc<Value>> = objects
        .of_kind(place)
        .filter(|(_, object)| selection.matches(object))
        .skip(from)
        .map(|(_, object)| Arc::clone(object))
        .collect();
    let mut meta = json!({"resourceVersion": objects.version().to_string()});
    if limit > 0 && items.len() > limit {
        meta["remainingItemCount"] = json!(items.len() - limit);
        meta["continue"] = json!((from + limit).to_string());
        items.truncate(limit);
    }
    let kind = &objects.kinds[place];
    let frame = json!({
        "apiVersion": kind.api_version(), "kind": format!("{}List", kind.name), "metadata": meta,
    });
    Ok(Outcome::List { frame, items })
}
