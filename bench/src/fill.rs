//! Fills a cluster, as fast as its API server takes it.

mod content;
mod dice;
mod mix;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use bowline_testbed::apply::apply;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;

pub(crate) use mix::{Load, Object, definitions};

use crate::say;

/// How many objects are being created at a time.
const IN_FLIGHT: usize = 32;

/// How long one object may take, all tries together.
const CREATE_LIMIT: Duration = Duration::from_mins(1);
const CREATE_PAUSE: Duration = Duration::from_millis(200);

/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(5);

/// Creates all objects of `load` that are not there.
pub(crate) async fn fill(client: &Client, load: Load) -> anyhow::Result<()> {
    for definition in definitions() {
        apply(client, definition).await?;
    }
    let mut progress = Progress::start(load.len());
    create_all(client, load.namespaces(), &mut progress).await?;
    create_all(client, load.contents(), &mut progress).await?;
    progress.tell();
    Ok(())
}

async fn create_all(
    client: &Client,
    objects: impl Iterator<Item = Object>,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let mut created =
        stream::iter(objects).map(|object| create(client, object)).buffer_unordered(IN_FLIGHT);
    while created.try_next().await?.is_some() {
        progress.step();
    }
    Ok(())
}

async fn create(client: &Client, object: Object) -> anyhow::Result<()> {
    let path = format!("{}?fieldManager={}", object.collection, object.manager);
    let body = serde_json::to_vec(&object.body)?;
    post(client, &path, &body).await.map(drop)
}

/// What came of an object that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    Created,
    /// It is there: somebody else made it, or a try whose answer did not arrive.
    WasThere,
}

/// Creates one object. A refusal is not taken for an answer at once: the definition of its kind or
/// the service account that its namespace must have may be a moment old.
pub(crate) async fn post(client: &Client, path: &str, body: &[u8]) -> anyhow::Result<Posted> {
    let deadline = Instant::now() + CREATE_LIMIT;
    loop {
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_vec())?;
        let answer = tokio::time::timeout(CREATE_LIMIT, client.request_text(request)).await;
        let error = match answer {
            Ok(Ok(_)) => return Ok(Posted::Created),
            Ok(Err(kube::Error::Api(status))) if status.is_already_exists() => {
                return Ok(Posted::WasThere);
            }
            Ok(Err(error)) => anyhow::Error::new(error),
            Err(_) => anyhow::anyhow!("no answer for {} s", CREATE_LIMIT.as_secs()),
        };
        if Instant::now() >= deadline {
            return Err(error).with_context(|| format!("cannot create an object at {path}"));
        }
        tokio::time::sleep(CREATE_PAUSE).await;
    }
}

/// A line every few seconds for whoever waits.
struct Progress {
    done: usize,
    total: usize,
    started: Instant,
    told: Instant,
}

impl Progress {
    fn start(total: usize) -> Self {
        let now = Instant::now();
        Self { done: 0, total, started: now, told: now }
    }

    fn step(&mut self) {
        self.done += 1;
        if self.told.elapsed() >= PROGRESS {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.told = Instant::now();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = self.done as f64 / self.started.elapsed().as_secs_f64();
        say(format_args!("created {} of {} objects, {rate:.0}/s", self.done, self.total));
    }
}
