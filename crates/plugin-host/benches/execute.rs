//! What a call of a plugin costs: `Execute` of a backup action with an item of 4 KiB, against a
//! plugin in Go, one in Rust, and an action in this process.
//!
//! Run it with `cargo bench -p bowline-plugin-host`. Compare the rows of one run with each other:
//! the figures of two runs, on machines that do something else meanwhile, say little.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    missing_docs,
    dead_code,
    reason = "a program for developers; the fixture has more than it needs"
)]

#[path = "../tests/it/fixture.rs"]
mod fixture;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bowline_api::Backup;
use bowline_plugin::{BackupItemAction, BackupOutput, Encoded, Item, ResourceSelector, Result};

use fixture::{Fixture, Set, backup, pick, pod};

/// How many calls are measured, after a tenth as many to warm up.
const CALLS: u32 = 5_000;

/// What a built-in action would be: the same trait, no process.
struct BuiltIn;

#[async_trait::async_trait]
impl BackupItemAction for BuiltIn {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::default())
    }

    /// Does what the fixture does: reads the item, adds an annotation, writes it.
    async fn execute(&self, item: &Item, _: &Encoded<Backup>) -> Result<BackupOutput> {
        let mut object: serde_json::Value = item.parse().unwrap();
        object["metadata"]["annotations"]["fixture.bowline.io/seen-by"] = "built-in".into();
        Ok(BackupOutput::unchanged(&Item::from_object(&object).unwrap()))
    }
}

#[tokio::main]
async fn main() {
    let ballast = "x".repeat(4096);
    let item = Arc::new(pod(&[("note", &ballast)]));
    println!("Execute, item of {} bytes, {CALLS} calls", item.json().len());
    println!("{:10} {:>9} {:>10} {:>10} {:>10}", "plugin", "in flight", "calls/s", "p50", "p99");
    for (name, set) in [("Go", Set::Go), ("Rust", Set::Rust)] {
        let fixture = Fixture::start(set).await;
        let run = fixture.host.run();
        let action = pick(run.backup_item_actions(), "bia-v2").plugin;
        measure(name, &action, &item).await;
        run.shut_down().await;
        fixture.host.shut_down().await;
    }
    let built_in: Arc<dyn BackupItemAction> = Arc::new(BuiltIn);
    measure("built-in", &built_in, &item).await;
}

async fn measure(name: &str, action: &Arc<dyn BackupItemAction>, item: &Arc<Item>) {
    for in_flight in [1, 32] {
        run_calls(action, item, in_flight, CALLS / 10).await;
        let started = Instant::now();
        let mut latencies = run_calls(action, item, in_flight, CALLS).await;
        let rate = f64::from(CALLS) / started.elapsed().as_secs_f64();
        latencies.sort_unstable();
        let at = |share: usize| format!("{:.0?}", latencies[latencies.len() * share / 100]);
        println!("{name:10} {in_flight:>9} {rate:>10.0} {:>10} {:>10}", at(50), at(99));
    }
}

/// Makes calls with so many in flight at a time; how long each took.
async fn run_calls(
    action: &Arc<dyn BackupItemAction>,
    item: &Arc<Item>,
    in_flight: usize,
    count: u32,
) -> Vec<Duration> {
    let backup = Arc::new(backup());
    let remaining = Arc::new(AtomicU32::new(count));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..in_flight {
        let (action, item) = (Arc::clone(action), Arc::clone(item));
        let (backup, remaining) = (Arc::clone(&backup), Arc::clone(&remaining));
        callers.spawn(async move {
            let mut latencies = Vec::new();
            while remaining
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok()
            {
                let started = Instant::now();
                action.execute(&item, &backup).await.unwrap();
                latencies.push(started.elapsed());
            }
            latencies
        });
    }
    callers.join_all().await.concat()
}
