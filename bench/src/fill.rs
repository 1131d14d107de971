//! Fills a cluster, as fast as its API server allows.

mod content;
mod mix;
mod prng;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use bowline_testbed::apply::apply;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;

pub(crate) use mix::{Load, Object, definitions};

use crate::{measure, print_line};

/// Number of objects created in parallel.
const IN_FLIGHT: usize = 32;

/// Longest time for one object, over all attempts.
const CREATE_TIMEOUT: Duration = Duration::from_mins(1);
const CREATE_PAUSE: Duration = Duration::from_millis(200);

/// Interval of progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Time for the controllers to finish their work on each new object. Deployments, Services and namespaces lead to
/// further objects, which the controllers create at a limited rate.
const SETTLE_TIME_PER_OBJECT: Duration = Duration::from_millis(2);

/// Creates the objects of `load` beyond those of a smaller load, of so many objects, that exist already; waits for the
/// controllers to finish their work on them; and returns the number of objects that exist now.
pub(crate) async fn fill(client: &Client, load: Load, existing: usize) -> anyhow::Result<usize> {
    let count = load.len().saturating_sub(existing);
    if count == 0 {
        return Ok(existing);
    }
    for definition in definitions() {
        apply(client, definition).await?;
    }
    let mut progress = FillProgress::start(count);
    create_all(client, load.namespaces_after(existing), &mut progress).await?;
    create_all(client, load.contents_after(existing), &mut progress).await?;
    progress.report();
    let objects = u32::try_from(count).unwrap_or(u32::MAX);
    measure::wait_until_quiet_beyond(SETTLE_TIME_PER_OBJECT.saturating_mul(objects)).await;
    Ok(load.len())
}

/// Creates so many objects that need no others.
pub(crate) async fn create_objects(
    client: &Client,
    count: usize,
    objects: impl Iterator<Item = Object>,
) -> anyhow::Result<()> {
    let mut progress = FillProgress::start(count);
    create_all(client, objects, &mut progress).await?;
    progress.report();
    Ok(())
}

async fn create_all(
    client: &Client,
    objects: impl Iterator<Item = Object>,
    progress: &mut FillProgress,
) -> anyhow::Result<()> {
    let mut created =
        stream::iter(objects).map(|object| create(client, object)).buffer_unordered(IN_FLIGHT);
    while created.try_next().await?.is_some() {
        progress.add_created();
    }
    Ok(())
}

async fn create(client: &Client, object: Object) -> anyhow::Result<()> {
    let path = format!("{}?fieldManager={}", object.collection, object.manager);
    let body = serde_json::to_vec(&object.body)?;
    post(client, &path, &body).await.map(drop)
}

/// Outcome of posting an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostOutcome {
    Created,
    /// The object exists: from another client, or from an attempt whose answer was lost.
    AlreadyExisted,
}

/// Creates one object. A rejection is retried for a while: the definition of its kind or the service account of its
/// namespace may be a moment old.
pub(crate) async fn post(client: &Client, path: &str, body: &[u8]) -> anyhow::Result<PostOutcome> {
    let deadline = Instant::now() + CREATE_TIMEOUT;
    loop {
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_vec())?;
        let answer = tokio::time::timeout(CREATE_TIMEOUT, client.request_text(request)).await;
        let error = match answer {
            Ok(Ok(_)) => return Ok(PostOutcome::Created),
            Ok(Err(kube::Error::Api(status))) if status.is_already_exists() => {
                return Ok(PostOutcome::AlreadyExisted);
            }
            Ok(Err(error)) => anyhow::Error::new(error),
            Err(_) => anyhow::anyhow!("no answer for {} s", CREATE_TIMEOUT.as_secs()),
        };
        if Instant::now() >= deadline {
            return Err(error).with_context(|| format!("cannot create an object at {path}"));
        }
        tokio::time::sleep(CREATE_PAUSE).await;
    }
}

/// Progress, as a line every few seconds.
struct FillProgress {
    done: usize,
    total: usize,
    started: Instant,
    last_report: Instant,
}

impl FillProgress {
    fn start(total: usize) -> Self {
        let now = Instant::now();
        Self { done: 0, total, started: now, last_report: now }
    }

    fn add_created(&mut self) {
        self.done += 1;
        if self.last_report.elapsed() >= PROGRESS_INTERVAL {
            self.report();
        }
    }

    fn report(&mut self) {
        self.last_report = Instant::now();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = self.done as f64 / self.started.elapsed().as_secs_f64();
        print_line(format_args!("created {} of {} objects, {rate:.0}/s", self.done, self.total));
    }
}
