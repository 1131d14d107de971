//! Tests with an API server that is unreachable, busy, or cut off in the middle of an answer.

use std::future::ready;

use futures::TryStreamExt as _;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::retry::{LONGEST_PAUSE, MAX_REFUSALS};
use super::*;
use crate::fake::usual_resources;
use crate::resource::Resources;

/// Answer to one request.
#[derive(Clone)]
enum ScriptedAnswer {
    /// Connection refused.
    Refused,
    /// Status, seconds to wait, and body.
    Responds(u16, Option<&'static str>, String),
}

/// Answers the n-th request as scripted, and records its time.
#[derive(Clone)]
struct ScriptedServer {
    answer: Arc<dyn Fn(usize) -> ScriptedAnswer + Send + Sync>,
    requests: Arc<Mutex<Vec<Instant>>>,
}

impl ScriptedServer {
    fn new(answer: impl Fn(usize) -> ScriptedAnswer + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), requests: Arc::default() }
    }

    fn server(&self) -> ApiServer {
        let script = self.clone();
        let service = tower::service_fn(move |_: Request<Body>| ready(script.next_answer()));
        ApiServer::new(kube::Client::new(service, "default"), 500)
    }

    /// Seconds between the first and the last request, and the number of requests.
    fn elapsed_and_count(&self) -> (u64, usize) {
        let requests = self.requests.lock();
        let lasted = requests.last().unwrap().duration_since(requests[0]);
        (lasted.as_secs(), requests.len())
    }

    fn next_answer(&self) -> std::io::Result<Response<Body>> {
        let mut requests = self.requests.lock();
        requests.push(Instant::now());
        match (self.answer)(requests.len() - 1) {
            ScriptedAnswer::Refused => Err(std::io::ErrorKind::ConnectionRefused.into()),
            ScriptedAnswer::Responds(status, retry_after, body) => {
                let mut response = Response::builder().status(status);
                if let Some(seconds) = retry_after {
                    response = response.header("Retry-After", seconds);
                }
                Ok(response.body(Body::from(body.into_bytes())).unwrap())
            }
        }
    }
}

/// Page of ConfigMaps.
fn page(count: usize) -> String {
    let items: Vec<Value> = (0..count)
        .map(|n| json!({"metadata": {"name": format!("m{n}"), "namespace": "a"}}))
        .collect();
    json!({"kind": "ConfigMapList", "metadata": {}, "items": items}).to_string()
}

/// Truncated page, with this many whole objects.
fn cut(count: usize) -> String {
    let whole = page(count + 1);
    let at = whole.find(&format!("\"m{count}\"")).unwrap();
    whole[..at].to_owned()
}

fn config_maps() -> Arc<Resource> {
    Arc::clone(Resources::new(usual_resources()).core("configmaps").unwrap())
}

async fn list(server: &ScriptedServer) -> Result<Vec<String>> {
    let listed: Vec<Object> =
        server.server().list(&config_maps(), Query::default()).try_collect().await?;
    Ok(listed.into_iter().map(|object| object.name).collect())
}

#[tokio::test(start_paused = true)]
async fn api_server_restart_is_waited_for() {
    let began = Instant::now();
    let back = |_| ScriptedAnswer::Responds(200, None, page(2));
    let away =
        move |n| if began.elapsed().as_secs() < 100 { ScriptedAnswer::Refused } else { back(n) };
    assert_eq!(list(&ScriptedServer::new(away)).await.unwrap(), ["m0", "m1"]);
}

#[tokio::test(start_paused = true)]
async fn unreachable_api_server_is_given_up_after_max_outage() {
    let stage = ScriptedServer::new(|_| ScriptedAnswer::Refused);
    assert!(matches!(list(&stage).await, Err(Error::Unreachable(_))));
    let (seconds, _) = stage.elapsed_and_count();
    assert!((115..=130).contains(&seconds), "{seconds}");

    let stage = ScriptedServer::new(|_| ScriptedAnswer::Refused);
    assert!(matches!(stage.server().discover().await, Err(Error::Unreachable(_))));
    assert!((115..=130).contains(&stage.elapsed_and_count().0));
    let stage = ScriptedServer::new(|_| ScriptedAnswer::Refused);
    assert!(stage.server().get(&config_maps(), "a", "m").await.is_err());
    assert!((115..=130).contains(&stage.elapsed_and_count().0));

    let stage = ScriptedServer::new(|_| ScriptedAnswer::Refused);
    assert!(stage.server().without_outage_retries().discover().await.is_err());
    assert_eq!(stage.elapsed_and_count(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn retry_after_header_is_honoured() {
    for (retry_after, seconds) in [("3", 3), ("3600", LONGEST_PAUSE.as_secs())] {
        for status in [429, 503] {
            let stage = ScriptedServer::new(move |n| match n {
                0 => ScriptedAnswer::Responds(status, Some(retry_after), String::new()),
                _ => ScriptedAnswer::Responds(200, None, page(1)),
            });
            assert_eq!(list(&stage).await.unwrap(), ["m0"]);
            assert_eq!(stage.elapsed_and_count(), (seconds, 2), "{status} {retry_after}");
        }
    }
    let busy = ScriptedServer::new(|_| ScriptedAnswer::Responds(503, None, String::new()));
    assert!(matches!(list(&busy).await, Err(Error::Refused { code: 503, .. })));
    assert_eq!(busy.elapsed_and_count().1, usize::try_from(MAX_REFUSALS).unwrap());
    let forbidden =
        ScriptedServer::new(|_| ScriptedAnswer::Responds(403, Some("1"), String::new()));
    assert!(list(&forbidden).await.is_err());
    assert_eq!(forbidden.elapsed_and_count().1, 1);
}

#[tokio::test(start_paused = true)]
async fn truncated_page_is_requested_again() {
    let stage = ScriptedServer::new(|n| match n {
        0 => ScriptedAnswer::Responds(200, None, cut(2)),
        _ => ScriptedAnswer::Responds(200, None, page(3)),
    });
    assert_eq!(list(&stage).await.unwrap(), ["m0", "m1", "m0", "m1", "m2"]);

    let stage = ScriptedServer::new(|_| ScriptedAnswer::Responds(200, None, cut(0)));
    assert!(list(&stage).await.unwrap_err().to_string().contains("the list is incomplete"));
    assert!((115..=130).contains(&stage.elapsed_and_count().0));
}

#[tokio::test(start_paused = true)]
async fn list_that_makes_progress_is_not_given_up() {
    // Between two attempts that get one object further, the maximum number of refusals.
    let round = usize::try_from(MAX_REFUSALS).unwrap();
    let stage = ScriptedServer::new(move |n| match (n / round, n % round) {
        (20, _) => ScriptedAnswer::Responds(200, None, page(21)),
        (further, 0) => ScriptedAnswer::Responds(200, None, cut(further + 1)),
        _ => ScriptedAnswer::Responds(500, None, String::new()),
    });
    assert_eq!(list(&stage).await.unwrap().last().unwrap(), "m20");
    // Without progress the page is given up.
    let stage = ScriptedServer::new(move |n| match n % 2 {
        0 => ScriptedAnswer::Responds(200, None, cut(5)),
        _ => ScriptedAnswer::Responds(500, None, String::new()),
    });
    assert!(list(&stage).await.is_err());
}
