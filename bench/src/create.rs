//! The floor under a restore: everything in the archive, posted from memory in parallel.
//!
//! Definitions and namespaces exist at the start. No restore that creates its objects one by one can be faster.

use std::time::Instant;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;
use serde::Serialize;

use crate::archive::{CreateRequest, CreateRequests};
use crate::bench_env::{BenchEnv, MachineUsage};
use crate::fill::{self, PostOutcome};
use crate::measure::{self, UsageWatch};

/// Numbers of connections to try; the fastest is the floor.
pub(crate) const IN_FLIGHT: [usize; 3] = [16, 32, 64];

/// Measurement of the creation of all objects of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct CreationMeasurement {
    pub(crate) wall_s: f64,
    /// CPU time of the client.
    pub(crate) cpu_s: f64,
    /// Parallel requests, each over its own connection.
    pub(crate) in_flight: usize,
    /// Number of posted objects.
    pub(crate) items: u64,
    /// Number of objects that existed: a controller was faster, or every cluster has them.
    pub(crate) existing: u64,
    #[serde(flatten)]
    pub(crate) machine_usage: MachineUsage,
}

/// Creates everything in an empty cluster.
pub(crate) async fn create(
    env: &BenchEnv,
    posts: &CreateRequests,
    in_flight: usize,
) -> anyhow::Result<CreationMeasurement> {
    let client = &env.client;
    for (posts, what) in [(&posts.definitions, "definitions"), (&posts.namespaces, "namespaces")] {
        let created = post_all(client, posts, in_flight).await;
        created.with_context(|| format!("cannot create the {what}"))?;
    }
    // The kinds are served, and the controllers have created the service account of every namespace.
    measure::wait_until_quiet().await;
    let watch = UsageWatch::start(env.cluster);
    let (started, cpu_before, idle) = (Instant::now(), measure::own_cpu_s(), measure::idle_s());
    let existing = post_all(client, &posts.others, in_flight).await?;
    let wall_s = started.elapsed().as_secs_f64();
    let (cpu_s, idle) = (measure::own_cpu_s() - cpu_before, measure::idle_s() - idle);
    let machine_usage = MachineUsage::new(watch.stop()?, idle);
    let items = posts.others.len() as u64;
    Ok(CreationMeasurement { wall_s, cpu_s, in_flight, items, existing, machine_usage })
}

/// Posts all objects. Returns the number of objects that existed already.
async fn post_all(
    client: &Client,
    posts: &[CreateRequest],
    in_flight: usize,
) -> anyhow::Result<u64> {
    let mut posted = stream::iter(posts)
        .map(|post| fill::post(client, &post.path, &post.body))
        .buffer_unordered(in_flight);
    let mut existing = 0;
    while let Some(posted) = posted.try_next().await? {
        existing += u64::from(posted == PostOutcome::AlreadyExisted);
    }
    Ok(existing)
}
