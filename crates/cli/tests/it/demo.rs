use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bowline::World;

#[test]
fn demo_with_exit_restores_what_it_destroyed_and_leaves_nothing() {
    let world = World::new();
    let ended = world.run(&["demo", "--exit"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    for words in [
        "with 4 pods running",
        "Discount",
        "The backup is complete",
        "demo.tar.gz",
        "Of its 18 objects, pods included, none is left",
        "The restore is complete",
        "All 18 objects are back, and equal to the originals",
    ] {
        assert!(ended.stdout.contains(words), "no {words:?} in {}", ended.stdout);
    }
    // What was created, and the pods that controllers made of it.
    let is_equal = |line: &&str| line.ends_with("   equal");
    let kinds: BTreeMap<&str, usize> =
        ended.stdout.lines().filter(is_equal).fold(BTreeMap::new(), |mut kinds, line| {
            let mut cells = line.split_whitespace().rev().skip(2);
            *kinds.entry(cells.next().unwrap()).or_default() += 1;
            kinds
        });
    let expected = [
        ("ConfigMap", 1),
        ("CronJob", 1),
        ("CustomResourceDefinition", 1),
        ("Deployment", 1),
        ("Discount", 1),
        ("Namespace", 2),
        ("Pod", 4),
        ("Role", 1),
        ("RoleBinding", 1),
        ("Secret", 1),
        ("Service", 2),
        ("ServiceAccount", 1),
        ("StatefulSet", 1),
    ];
    assert_eq!(kinds, expected.into(), "{}", ended.stdout);
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn a_demo_can_be_reached_with_kubectl_until_it_is_interrupted() {
    let world = World::new();
    let mut demo = world.bowline(&["demo"]).spawn().unwrap();
    let said = output_until_reachable(&mut demo);
    let line = |prefix: &str| {
        let found = said.iter().find_map(|line| line.trim().strip_prefix(prefix));
        let found = found.unwrap_or_else(|| panic!("no {prefix:?} in {said:?}"));
        found.trim_matches('\'').to_owned()
    };
    for kind in ["backups.velero.io", "restores.velero.io"] {
        let kubectl = Command::new(line("alias kubectl="))
            .args(["get", kind, "-A"])
            .env("KUBECONFIG", line("export KUBECONFIG="))
            .output()
            .unwrap();
        assert!(kubectl.status.success(), "{kubectl:?}");
        let listed = String::from_utf8_lossy(&kubectl.stdout);
        assert!(listed.contains("demo") && listed.contains("Completed"), "{listed}");
    }

    signal(&demo, Signal::SIGINT);
    assert_eq!(demo.wait().unwrap().code(), Some(0));
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn a_demo_that_is_ended_while_it_starts_leaves_nothing() {
    let world = World::new();
    let mut demo = world.bowline(&["demo"]).spawn().unwrap();
    World::wait_until("the API server has been started", || {
        assert_eq!(demo.try_wait().unwrap(), None, "the demo ended by itself");
        world.leftovers().iter().any(|left| left.contains("kube-apiserver"))
    });
    signal(&demo, Signal::SIGTERM);
    assert_eq!(demo.wait().unwrap().code(), Some(143));
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn a_demo_that_is_interrupted_while_it_restores_says_no_more_and_leaves_nothing() {
    let world = World::new();
    let mut demo = world.bowline(&["demo"]).spawn().unwrap();
    let stderr = BufReader::new(demo.stderr.take().unwrap());
    let mut lines = stderr.lines().map(Result::unwrap);
    // The second is what `restore create --wait` says, should the demo ever leave the waiting to it.
    let waits =
        |line: String| line.starts_with("waiting for the restore") || line == "demo: InProgress";
    assert!(lines.any(waits), "the demo ended by itself");
    signal(&demo, Signal::SIGINT);
    let said: Vec<String> = lines.collect();
    let ended = demo.wait().unwrap();
    // On a slow machine it may be through by then, and wait for the signal.
    let was_through = said.iter().any(|line| line.starts_with("Press Ctrl-C"));
    assert_eq!(ended.code(), Some(if was_through { 0 } else { 130 }), "{said:?}");
    // What `restore create --wait` alone would say.
    assert!(!said.iter().any(|line| line.contains("goes on without")), "{said:?}");
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn a_demo_that_is_killed_leaves_nothing() {
    let world = World::new();
    let mut demo = world.bowline(&["demo"]).spawn().unwrap();
    output_until_reachable(&mut demo);
    signal(&demo, Signal::SIGKILL);
    demo.wait().unwrap();
    World::wait_until("the rest has followed", || world.leftovers().is_empty());
}

/// Reads what the demo says until it has said how it can be reached.
fn output_until_reachable(demo: &mut Child) -> Vec<String> {
    let mut said = Vec::new();
    for line in BufReader::new(demo.stdout.take().unwrap()).lines() {
        said.push(line.unwrap());
        if said.last().is_some_and(|line| line.contains("they have no logs")) {
            return said;
        }
    }
    panic!("the demo ended: {said:?}")
}

fn signal(process: &Child, signal: Signal) {
    kill(Pid::from_raw(process.id().cast_signed()), signal).unwrap();
}
