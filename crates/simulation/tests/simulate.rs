//! Seeds violate nothing, repeat exactly, and find mends that are undone.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

use std::process::Command;

use serde_json::Value;

/// Seeds of a test run, unless `BOWLINE_SIMULATED_SEEDS` says otherwise: a minute in a debug build.
const SEEDS: &str = "60";
/// Sabotages, and a seed near which each was found once. A change of the server shifts all seeds.
const SABOTAGES: [(&str, &str); 6] = [
    ("thaw-forgotten", "4"),
    ("commit-repeated", "14"),
    ("clock-trusted", "37"),
    ("orphans-ignored", "10"),
    ("journal-block-start", "4"),
    ("reclaim-skipped", "2"),
];
/// Seeds within which each of them is found from there on.
const SABOTAGE_SEEDS: &str = "200";

/// Standard output of a simulation, and true if it has succeeded.
fn simulate(arguments: &[&str]) -> (Value, bool) {
    let output = Command::new(env!("CARGO_BIN_EXE_simulate")).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let answer = serde_json::from_slice(&output.stdout);
    let answer = answer.unwrap_or_else(|error| panic!("{error}: {errors}"));
    (answer, output.status.success())
}

#[test]
fn seeds_violate_nothing() {
    let seeds = std::env::var("BOWLINE_SIMULATED_SEEDS").unwrap_or_else(|_| SEEDS.to_owned());
    let (figures, is_clean) = simulate(&["--seeds", &seeds, "--json"]);
    assert!(is_clean, "{figures:#}");
    assert_eq!(figures["seeds"].to_string(), seeds);
    assert_eq!(figures["violations"], 0);
    assert!(figures["kills"].as_u64().unwrap() >= seeds.parse::<u64>().unwrap(), "{figures:#}");
}

#[test]
fn seed_repeats_exactly() {
    let run = |seed| simulate(&["--worker", "--seed", seed]).0;
    for seed in ["2", "5", "7"] {
        let first = run(seed);
        assert_eq!(first, run(seed));
        assert_ne!(first["trace"], run("1")["trace"]);
    }
}

#[test]
#[ignore = "a search of minutes, which `bench/full` makes"]
fn every_sabotage_is_found() {
    let mut missed = Vec::new();
    for (sabotage, seed) in SABOTAGES {
        let arguments = ["--sabotage", sabotage, "--seed", seed, "--seeds", SABOTAGE_SEEDS];
        let (figures, is_clean) = simulate(&[&arguments[..], &["--json"]].concat());
        if is_clean || figures["violations"] == 0 {
            missed.push(sabotage);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
