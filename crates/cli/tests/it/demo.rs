use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bowline::World;

#[test]
fn demo_with_exit_shows_the_application_and_leaves_nothing() {
    let world = World::new();
    let ended = world.run(&["demo", "--exit"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for words in ["with 4 pods running", "Discount", "The backup is complete", "demo.tar.gz"] {
        assert!(ended.stdout.contains(words), "no {words:?} in {}", ended.stdout);
    }
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
    let kubectl = Command::new(line("alias kubectl="))
        .args(["get", "backups.velero.io", "-A"])
        .env("KUBECONFIG", line("export KUBECONFIG="))
        .output()
        .unwrap();
    assert!(kubectl.status.success(), "{kubectl:?}");
    let backups = String::from_utf8_lossy(&kubectl.stdout);
    assert!(backups.contains("demo") && backups.contains("Completed"), "{backups}");

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
