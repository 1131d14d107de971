//! An API server that is away, busy, or broken off in the middle.

use std::future::{Ready, ready};
use std::sync::Mutex;
use std::task::{Context, Poll};

use futures::TryStreamExt as _;
use serde_json::json;
use tokio::time::Instant;

use super::patience::{LONGEST_PAUSE, TRIES};
use super::*;
use crate::cluster::fake::usual_resources;
use crate::resource::Resources;

/// What one request is answered with.
#[derive(Clone)]
enum Answer {
    /// Nobody listens.
    Refused,
    /// A status, seconds to wait, and the body.
    Said(u16, Option<&'static str>, String),
}

/// Answers the n-th request as it is told to, and notes when it came.
#[derive(Clone)]
struct Stage {
    answer: Arc<dyn Fn(usize) -> Answer + Send + Sync>,
    asked: Arc<Mutex<Vec<Instant>>>,
}

impl Stage {
    fn new(answer: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), asked: Arc::default() }
    }

    fn server(&self) -> ApiServer {
        ApiServer::new(kube::Client::new(self.clone(), "default"), 500)
    }

    /// The seconds between the first request and the last, and how many there were.
    fn asked(&self) -> (u64, usize) {
        let asked = self.asked.lock().unwrap();
        let lasted = asked.last().unwrap().duration_since(asked[0]);
        (lasted.as_secs(), asked.len())
    }
}

impl tower_service::Service<Request<Body>> for Stage {
    type Response = Response<Body>;
    type Error = std::io::Error;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let mut asked = self.asked.lock().unwrap();
        asked.push(Instant::now());
        ready(match (self.answer)(asked.len() - 1) {
            Answer::Refused => Err(std::io::ErrorKind::ConnectionRefused.into()),
            Answer::Said(status, retry_after, body) => {
                let mut response = Response::builder().status(status);
                if let Some(seconds) = retry_after {
                    response = response.header("Retry-After", seconds);
                }
                Ok(response.body(Body::from(body.into_bytes())).unwrap())
            }
        })
    }
}

/// A page of config maps.
fn page(count: usize) -> String {
    let items: Vec<Value> = (0..count)
        .map(|n| json!({"metadata": {"name": format!("m{n}"), "namespace": "a"}}))
        .collect();
    json!({"kind": "ConfigMapList", "metadata": {}, "items": items}).to_string()
}

/// The beginning of a page, with so many whole objects.
fn cut(count: usize) -> String {
    let whole = page(count + 1);
    let at = whole.find(&format!("\"m{count}\"")).unwrap();
    whole[..at].to_owned()
}

fn config_maps() -> Arc<Resource> {
    Arc::clone(Resources::new(usual_resources()).core("configmaps").unwrap())
}

async fn list(stage: &Stage) -> Result<Vec<String>> {
    let listed: Vec<Object> =
        stage.server().list(&config_maps(), Query::default()).try_collect().await?;
    Ok(listed.into_iter().map(|object| object.name).collect())
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_api_server_is_waited_for() {
    let began = Instant::now();
    let back = |_| Answer::Said(200, None, page(2));
    let away = move |n| if began.elapsed().as_secs() < 100 { Answer::Refused } else { back(n) };
    assert_eq!(list(&Stage::new(away)).await.unwrap(), ["m0", "m1"]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_stays_away_is_given_up_after_the_time_of_an_outage() {
    let stage = Stage::new(|_| Answer::Refused);
    assert!(matches!(list(&stage).await, Err(Error::Unreachable(_))));
    let (seconds, _) = stage.asked();
    assert!((115..=130).contains(&seconds), "{seconds}");

    let stage = Stage::new(|_| Answer::Refused);
    assert!(matches!(stage.server().discover().await, Err(Error::Unreachable(_))));
    assert!((115..=130).contains(&stage.asked().0));
    let stage = Stage::new(|_| Answer::Refused);
    assert!(stage.server().get(&config_maps(), "a", "m").await.is_err());
    assert!((115..=130).contains(&stage.asked().0));

    let stage = Stage::new(|_| Answer::Refused);
    assert!(stage.server().impatient().discover().await.is_err());
    assert_eq!(stage.asked(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_busy_api_server_says_when_to_come_again() {
    for (retry_after, seconds) in [("3", 3), ("3600", LONGEST_PAUSE.as_secs())] {
        for status in [429, 503] {
            let stage = Stage::new(move |n| match n {
                0 => Answer::Said(status, Some(retry_after), String::new()),
                _ => Answer::Said(200, None, page(1)),
            });
            assert_eq!(list(&stage).await.unwrap(), ["m0"]);
            assert_eq!(stage.asked(), (seconds, 2), "{status} {retry_after}");
        }
    }
    let busy = Stage::new(|_| Answer::Said(503, None, String::new()));
    assert!(matches!(list(&busy).await, Err(Error::Refused { code: 503, .. })));
    assert_eq!(busy.asked().1, usize::try_from(TRIES).unwrap());
    let forbidden = Stage::new(|_| Answer::Said(403, Some("1"), String::new()));
    assert!(list(&forbidden).await.is_err());
    assert_eq!(forbidden.asked().1, 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_ends_in_the_middle_is_asked_for_again() {
    let stage = Stage::new(|n| match n {
        0 => Answer::Said(200, None, cut(2)),
        _ => Answer::Said(200, None, page(3)),
    });
    assert_eq!(list(&stage).await.unwrap(), ["m0", "m1", "m0", "m1", "m2"]);

    let stage = Stage::new(|_| Answer::Said(200, None, cut(0)));
    assert!(list(&stage).await.unwrap_err().to_string().contains("ends in the middle"));
    assert!((115..=130).contains(&stage.asked().0));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_gets_further_is_not_given_up() {
    // Between two pages that get one object further, it refuses as often as it may.
    let round = usize::try_from(TRIES).unwrap();
    let stage = Stage::new(move |n| match (n / round, n % round) {
        (20, _) => Answer::Said(200, None, page(21)),
        (further, 0) => Answer::Said(200, None, cut(further + 1)),
        _ => Answer::Said(500, None, String::new()),
    });
    assert_eq!(list(&stage).await.unwrap().last().unwrap(), "m20");
    // Without getting further it is.
    let stage = Stage::new(move |n| match n % 2 {
        0 => Answer::Said(200, None, cut(5)),
        _ => Answer::Said(500, None, String::new()),
    });
    assert!(list(&stage).await.is_err());
}
