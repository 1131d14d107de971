//! Nothing is left on the machine when a test process is killed.
//!
//! The victim is this test binary, started again with the name of an ignored test, which starts a bed, reports that,
//! and
//! waits to be killed.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use bowline_testbed::node::require_for_test;
use bowline_testbed::{Bed, ControlPlane, Node, Options, env, leftover};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::eventually;

#[tokio::test]
async fn killed_test_leaves_no_control_plane() {
    assert_no_leftovers_of("killed::victim_with_a_control_plane").await;
}

#[tokio::test]
async fn killed_test_leaves_no_node() {
    if require_for_test("a_killed_test_leaves_no_node_behind") {
        assert_no_leftovers_of("killed::victim_with_a_node").await;
    }
}

#[tokio::test]
#[ignore = "started by another test, in a process of its own"]
async fn victim_with_a_control_plane() {
    let bed = Bed::new().unwrap();
    let _plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    wait_to_be_killed(&bed).await;
}

#[tokio::test]
#[ignore = "started by another test, in a process of its own"]
async fn victim_with_a_node() {
    let bed = Bed::isolated().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let _node = Node::start(&plane).await.unwrap();
    // A running container has a shim that outlives containerd and kubelet.
    let client = plane.client().await.unwrap();
    crate::node::run_pod(&client, "victim").await;
    wait_to_be_killed(&bed).await;
}

async fn wait_to_be_killed(bed: &Bed) {
    println!("bed {}", bed.dir().display());
    std::future::pending::<()>().await;
}

/// The network devices and the kernel settings of this machine that a node would change.
fn machine_state() -> Vec<String> {
    let settings = ["vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"];
    let setting = |name: &str| {
        let value = std::fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap_or_default();
        format!("{name}={}", value.trim())
    };
    let devices = std::fs::read_dir("/sys/class/net").unwrap().flatten();
    let mut machine: Vec<String> =
        devices.map(|device| device.file_name().display().to_string()).collect();
    machine.sort();
    machine.extend(settings.map(setting));
    machine
}

async fn assert_no_leftovers_of(victim: &str) {
    let before = machine_state();
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--exact", victim])
        .env_remove(env::KEEP_BEDS)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let dir = loop {
        let line = lines.next_line().await.unwrap().expect("the victim ended by itself");
        if let Some((_, dir)) = line.split_once("bed ") {
            break PathBuf::from(dir);
        }
    };
    let id = dir.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(machine_state(), before, "also while it runs");
    // The check itself must be able to see something.
    assert!(leftovers(&id, &dir).len() > 2, "{:?}", leftovers(&id, &dir));

    child.kill().await.unwrap();

    eventually(&format!("{victim} leaves nothing"), async || {
        leftovers(&id, &dir).is_empty().then_some(())
    })
    .await;
}

/// Processes, folders, control groups and mounts that belong to a bed.
fn leftovers(id: &str, dir: &Path) -> Vec<String> {
    let mut leftovers = leftover::processes(env::BED_ID, id);
    // Containers do not inherit the mark, but they name the bed in their control group.
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let groups = std::fs::read_to_string(process.path().join("cgroup")).unwrap_or_default();
        if groups.contains(id) {
            leftovers.push(format!("container process {}", process.file_name().display()));
        }
    }
    if dir.exists() {
        leftovers.push(format!("directory {}", dir.display()));
    }
    // One hierarchy, or many.
    let groups = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
    for hierarchy in groups.chain([PathBuf::from("/sys/fs/cgroup")]) {
        let group = hierarchy.join(id);
        if group.exists() {
            leftovers.push(format!("control group {}", group.display()));
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    leftovers.extend(
        mounts.lines().filter(|line| line.contains(id)).map(|line| format!("mount {line}")),
    );
    leftovers
}
