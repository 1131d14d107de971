use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command};

use bowline_testbed::eventually_blocking;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::bowline::{CommandResult, TIMEOUT, World};

/// Runs the demo to its end. Returns its output for people and its JSON.
fn run_demo(world: &World, more: &[&str]) -> (CommandResult, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outcome.json");
    let mut words = vec!["demo", "--exit", "--json", file.to_str().unwrap()];
    words.extend(more);
    let ended = world.run(&words);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let outcome: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(outcome["files_equal"], true, "{}", ended.stdout);
    assert_eq!(outcome["objects_equal"], true, "{}", ended.stdout);
    // The freeze was real, and its length is correct: the database records how long it held still.
    let number = |key: &str| outcome[key].as_u64().unwrap_or_else(|| panic!("{key}: {outcome}"));
    assert!(number("held_ms") > 0, "{outcome}");
    assert!(number("held_ms") <= number("freeze_window_ms"), "{outcome}");
    // The upload is not part of the freeze.
    assert!(number("upload_ms") > number("freeze_window_ms"), "{outcome}");
    assert!(number("files") > 250 && number("bytes") > 40_000_000, "{outcome}");
    (ended, outcome)
}

/// The orders in the order log: when the database held still, when it was destroyed, and restored.
fn orders(output: &str) -> (u64, u64, u64) {
    let number_after = |text: &str| -> u64 {
        let (_, rest) =
            output.split_once(text).unwrap_or_else(|| panic!("no {text:?} in {output}"));
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
    };
    let paused = number_after(" orders; it had ");
    (paused, number_after("Now there are "), number_after("The order log has "))
}

#[test]
fn demo_with_exit_restores_what_it_destroyed_and_leaves_nothing() {
    let world = World::new();
    let (ended, outcome) = run_demo(&world, &[]);
    assert_eq!(outcome["server_kills"], 0);
    let (paused, later, restored) = orders(&ended.stdout);
    assert!(0 < paused && paused < later, "it goes on while it is uploaded: {paused} {later}");
    assert_eq!(restored, paused);
    for words in [
        "with 4 pods running",
        "Discount",
        "The backup is complete",
        "demo.tar.gz",
        "none of its 20 objects, pods included",
        "The restore is complete",
        "All 20 objects are restored and equal to the originals",
        "with their original checksums, modes, times and targets",
    ] {
        assert!(ended.stdout.contains(words), "no {words:?} in {}", ended.stdout);
    }
    // The created objects, and the pods that controllers created for them.
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
        ("PersistentVolume", 1),
        ("PersistentVolumeClaim", 1),
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
fn files_are_equal_after_the_server_was_killed_during_the_upload() {
    let world = World::new();
    let (ended, outcome) = run_demo(&world, &["--kill-server"]);
    assert_eq!(outcome["server_kills"], 1);
    let killed = "killed the server with SIGKILL during the upload, at ";
    let line = ended.stderr.lines().find_map(|line| line.strip_prefix(killed));
    let line = line.unwrap_or_else(|| panic!("no {killed:?} in {}", ended.stderr));
    let percent = line.split_once('(').and_then(|(_, rest)| rest.split_once(" %)")).unwrap().0;
    assert!((0..100).contains(&percent.parse::<u32>().unwrap()), "{line}");
    let (paused, _, restored) = orders(&ended.stdout);
    assert_eq!(restored, paused);
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn unwritable_outcome_file_is_refused_before_the_demo_starts() {
    let world = World::new();
    let ended = world.run(&["demo", "--exit", "--json", "/proc/none/outcome.json"]);
    assert_eq!(ended.code, Some(2), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("cannot write to /proc/none/outcome.json"), "{}", ended.stderr);
    assert_eq!((ended.stdout.as_str(), ended.stderr.lines().count()), ("", 1), "{}", ended.stderr);
}

#[test]
fn demo_is_reachable_with_kubectl_until_interrupted() {
    let world = World::new();
    let mut demo = world.bowline(&["demo"]).spawn().unwrap();
    let output = output_until_reachable(&mut demo);
    let line = |prefix: &str| {
        let found = output.iter().find_map(|line| line.trim().strip_prefix(prefix));
        let found = found.unwrap_or_else(|| panic!("no {prefix:?} in {output:?}"));
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
    // The application lives on with the volume that was restored: it can be frozen and backed up again.
    let words = ["backup", "create", "mine", "--include-namespaces", "shop,shop-data", "--wait"];
    let mut again = world.bowline(&words);
    let again = World::run_command(again.env("KUBECONFIG", line("export KUBECONFIG=")));
    assert_eq!(again.code, Some(0), "{}{}", again.stdout, again.stderr);

    signal(&demo, Signal::SIGINT);
    assert_eq!(demo.wait().unwrap().code(), Some(0));
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn demo_terminated_during_start_leaves_nothing() {
    let world = World::new();
    let mut demo = world.bowline(&["demo"]).spawn().unwrap();
    eventually_blocking("the API server has been started", TIMEOUT, || {
        assert_eq!(demo.try_wait().unwrap(), None, "the demo ended by itself");
        world.leftovers().iter().any(|leftover| leftover.contains("kube-apiserver"))
    });
    signal(&demo, Signal::SIGTERM);
    assert_eq!(demo.wait().unwrap().code(), Some(143));
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn demo_interrupted_during_restore_prints_no_more_and_leaves_nothing() {
    let world = World::new();
    let mut demo = world.bowline(&["demo"]).spawn().unwrap();
    let stderr = BufReader::new(demo.stderr.take().unwrap());
    let mut lines = stderr.lines().map(Result::unwrap);
    let restores = |line: String| line.starts_with("restore `demo` created");
    assert!(lines.any(restores), "the demo ended by itself");
    signal(&demo, Signal::SIGINT);
    let output: Vec<String> = lines.collect();
    let ended = demo.wait().unwrap();
    // On a slow machine it may be through by then, and wait for the signal.
    let was_through = output.iter().any(|line| line.starts_with("Press Ctrl-C"));
    assert_eq!(ended.code(), Some(if was_through { 0 } else { 130 }), "{output:?}");
    // Output of `restore create --wait` alone.
    assert!(!output.iter().any(|line| line.contains("continues without")), "{output:?}");
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn a_demo_that_is_killed_leaves_nothing() {
    let world = World::new();
    let mut demo = world.bowline(&["demo"]).spawn().unwrap();
    output_until_reachable(&mut demo);
    signal(&demo, Signal::SIGKILL);
    demo.wait().unwrap();
    eventually_blocking("the rest has followed", TIMEOUT, || world.leftovers().is_empty());
}

/// Reads the output of the demo until it shows how to reach the cluster.
fn output_until_reachable(demo: &mut Child) -> Vec<String> {
    let mut output = Vec::new();
    for line in BufReader::new(demo.stdout.take().unwrap()).lines() {
        output.push(line.unwrap());
        if output.last().is_some_and(|line| line.contains("they have no logs")) {
            return output;
        }
    }
    panic!("the demo ended: {output:?}")
}

fn signal(process: &Child, signal: Signal) {
    kill(Pid::from_raw(process.id().cast_signed()), signal).unwrap();
}
