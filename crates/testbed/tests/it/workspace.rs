//! The rules of the workspace: which crate may use which, and where versions are written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// For each crate, the crates of the workspace that its code may use. Tests may use more: see
/// `TEST_DEPENDENCIES`. The picture is in ARCHITECTURE.md; to change an arrow is to change the design.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 13] = [
    ("bowline-api", &[]),
    ("bowline-plugin", &["bowline-api"]),
    ("bowline-plugin-wire", &["bowline-api", "bowline-plugin"]),
    ("bowline-plugin-host", &["bowline-api", "bowline-plugin", "bowline-plugin-wire"]),
    ("bowline-plugin-sdk", &["bowline-api", "bowline-plugin", "bowline-plugin-wire"]),
    ("bowline-plugin-fixture", &["bowline-plugin-sdk"]),
    ("bowline-plugin-local-volume", &["bowline-plugin-sdk"]),
    ("bowline-store", &["bowline-api", "bowline-plugin"]),
    ("bowline-engine", &["bowline-api", "bowline-plugin", "bowline-store"]),
    (
        "bowline-server",
        &[
            "bowline-api",
            "bowline-engine",
            "bowline-plugin",
            "bowline-plugin-host",
            "bowline-store",
        ],
    ),
    ("bowline-testbed", &[]),
    // The engine plans a restore with `--dry-run`; the test bed is what `bowline demo` starts.
    (
        "bowline-cli",
        &[
            "bowline-api",
            "bowline-engine",
            "bowline-plugin",
            "bowline-plugin-host",
            "bowline-server",
            "bowline-store",
            "bowline-testbed",
        ],
    ),
    ("bowline-bench", &["bowline-api", "bowline-engine", "bowline-server", "bowline-testbed"]),
];

/// What any crate may use in its tests.
const TEST_DEPENDENCIES: [&str; 3] = ["bowline-api", "bowline-plugin-host", "bowline-testbed"];

#[test]
fn crates_use_only_what_the_architecture_allows() {
    let allowed: BTreeMap<_, BTreeSet<_>> = ALLOWED_DEPENDENCIES
        .iter()
        .map(|(krate, uses)| (*krate, uses.iter().copied().collect()))
        .collect();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let members: BTreeSet<String> = packages.iter().map(|p| text(&p["name"])).collect();
    let known: BTreeSet<String> = allowed.keys().map(|&name| name.to_owned()).collect();
    assert_eq!(
        members, known,
        "every crate of the workspace has a row in ALLOWED_DEPENDENCIES, and no other"
    );

    let mut wrong = Vec::new();
    for package in packages {
        let user = text(&package["name"]);
        for dependency in package["dependencies"].as_array().unwrap() {
            let target = text(&dependency["name"]);
            let in_tests =
                dependency["kind"] == "dev" && TEST_DEPENDENCIES.contains(&target.as_str());
            // A crate uses itself in its tests with a feature for tests.
            if members.contains(&target)
                && target != user
                && !in_tests
                && !allowed[user.as_str()].contains(target.as_str())
            {
                wrong.push(format!("{user} → {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "not allowed by ALLOWED_DEPENDENCIES: {wrong:?}");
}

#[test]
fn versions_are_written_in_one_place() {
    let mut wrong = Vec::new();
    for package in metadata()["packages"].as_array().unwrap() {
        let path = package["manifest_path"].as_str().unwrap();
        let manifest: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let table = manifest.get(section).and_then(toml::Value::as_table);
            for (name, value) in table.into_iter().flatten() {
                if value.get("workspace") != Some(&toml::Value::Boolean(true)) {
                    wrong.push(format!("{path}: {name}"));
                }
            }
        }
        if manifest.get("lints").and_then(|lints| lints.get("workspace")).is_none() {
            wrong.push(format!("{path}: no `lints.workspace`"));
        }
    }
    assert!(wrong.is_empty(), "write `workspace = true`: {wrong:?}");
}

#[test]
fn release_binary_contains_no_test_bed() {
    let tree = |features: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--package=bowline-cli", "--edges=normal", "--prefix=none", "--offline"])
            .args(features)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let has_test_bed = |tree: &str| tree.lines().any(|line| line.starts_with("bowline-testbed "));
    assert!(has_test_bed(&tree(&[])), "`cargo run -- demo` needs it");
    assert!(!has_test_bed(&tree(&["--no-default-features"])));
    // What ships is built that way.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let image = std::fs::read_to_string(root.join("Dockerfile")).unwrap();
    let builds: Vec<_> = image.lines().filter(|line| line.contains("cargo build")).collect();
    assert!(!builds.is_empty());
    assert!(builds.iter().all(|line| line.contains("--no-default-features")), "{builds:?}");
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
