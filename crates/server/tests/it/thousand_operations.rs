//! A thousand concurrent operations. This is a measurement, so it runs only on request:
//! `cargo test --release -p bowline-server --test it thousand -- --ignored --nocapture`.

use std::collections::HashMap;
use std::time::Duration;

use bowline_api::Backup;
use bowline_store::BackupName;
use bowline_store::file::{BackupOperation, OperationPhase};
use futures::StreamExt as _;
use kube::Api;
use serde_json::json;
use tokio::time::Instant;

use crate::bed::SETS;
use crate::support::operations::OperationWorld;
use crate::support::runs::{counts, is_over, phase};

/// Operations of each set: some succeed, some fail, some never end.
const GOOD: usize = 450;
const BAD: usize = 25;
const ENDLESS: usize = 25;
/// Duration of successful operations, and time limit for all.
const TAKES_MS: u64 = 60_000;
const TIMEOUT: &str = "2m";
/// Number of claims that are created concurrently.
const CONCURRENT_OPERATIONS: usize = 16;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a benchmark, of three minutes"]
async fn thousand_concurrent_operations_complete() {
    let trial = OperationWorld::start("thousand").await;
    let good = format!("operation={TAKES_MS}");
    let mut orders = Vec::new();
    for set in SETS {
        for number in 0..GOOD + BAD + ENDLESS {
            let verbs = match number {
                number if number < GOOD => good.clone(),
                number if number < GOOD + BAD => "operation=20000,outcome=no luck".to_owned(),
                _ => "operation=86400000".to_owned(),
            };
            orders.push((set, format!("{set}-{number}"), verbs));
        }
    }
    let total = orders.len();
    let create = async |(set, name, verbs): (&str, String, String)| {
        trial.add_claim(set, &name, &verbs).await;
    };
    futures::stream::iter(orders).for_each_concurrent(CONCURRENT_OPERATIONS, create).await;

    let began = Instant::now();
    trial.back_up("b", json!({"itemOperationTimeout": TIMEOUT})).await;
    let backups: Api<Backup> = trial.world.api();
    let name = BackupName::new("b").unwrap();
    let mut heard: HashMap<String, (i64, Instant)> = HashMap::new();
    let (mut largest_gap, mut collected) = (Duration::ZERO, None);
    let ended = loop {
        let backup = backups.get("b").await.unwrap();
        if is_over(&backup) {
            break backup;
        }
        assert!(began.elapsed() < Duration::from_mins(8), "{}", phase(&backup));
        if phase(&backup).starts_with("Waiting") {
            collected.get_or_insert_with(|| began.elapsed());
            let read = trial.store.get::<Vec<BackupOperation>>(&name).await.unwrap();
            for operation in read.unwrap_or_default() {
                let id = operation.spec.resource_identifier.name;
                let status = operation.status;
                let is_over = status.phase.as_ref().is_some_and(OperationPhase::is_terminal);
                match heard.get(&id) {
                    // Its last report.
                    Some((i64::MAX, _)) => continue,
                    Some((done, _)) if *done == status.n_completed && !is_over => continue,
                    Some((_, at)) => largest_gap = largest_gap.max(at.elapsed()),
                    None => {}
                }
                let done = if is_over { i64::MAX } else { status.n_completed };
                heard.insert(id, (done, Instant::now()));
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    println!(
        "{total} operations: begun within {:.1?}, ended after {:.1?}; the largest time without news of \
         one in the bucket was {largest_gap:.1?}, and between two polls of one {:.1?}; memory of this \
         process, which is the server and the test: {}",
        collected.unwrap_or_default(),
        began.elapsed(),
        longest_pause(&trial),
        peak.trim_start_matches("VmHWM:").trim(),
    );
    let failed = SETS.len() * (BAD + ENDLESS);
    let expected = [total, total - failed, failed].map(|count| i64::try_from(count).unwrap());
    assert_eq!(counts(&ended), expected);
    assert_eq!(phase(&ended), "PartiallyFailed");
}

/// The longest time between two polls of an operation, from the log of the SDK plugin.
fn longest_pause(trial: &OperationWorld) -> Duration {
    let calls = std::fs::read_to_string(trial.world.path("sdk").join("calls")).unwrap();
    let mut asked: HashMap<&str, u64> = HashMap::new();
    let mut longest = 0;
    for line in calls.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [at, _, "progress", _, _, operation] = words[..] else { continue };
        let at = at.parse().unwrap();
        if let Some(before) = asked.insert(operation, at) {
            longest = longest.max(at - before);
        }
    }
    Duration::from_millis(longest)
}
