//! The server as a process.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Command;

use bowline_testbed::{Bed, ControlPlane, Options};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bowline::World;

#[test]
fn a_server_says_in_one_line_what_it_lacks_and_ends_cleanly_when_asked() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let bed = Bed::new().unwrap();
    let plane = runtime.block_on(ControlPlane::start(&bed, Options::default())).unwrap();
    let world = World::new();
    let server = |arguments: &[&str]| {
        let mut command = world.bowline(&["server", "--plugin-dir=/nowhere"]);
        command.args(arguments).env("KUBECONFIG", plane.kubeconfig());
        command
    };
    let cannot_start = |mut command: Command, reason: &str| {
        let ended = World::end_of(&mut command);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.starts_with("error: "), "{}", ended.stderr);
        assert!(ended.stderr.contains(reason), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    };
    cannot_start(server(&[]), "the namespace `velero` does not exist");
    let mut other = server(&[]);
    other.env("VELERO_NAMESPACE", "elsewhere");
    cannot_start(other, "the namespace `elsewhere` does not exist");
    cannot_start(server(&["--namespace=default"]), "backups.velero.io, restores.velero.io");
    cannot_start(server(&["--kubeconfig=/nowhere/at/all"]), "/nowhere/at/all");

    let installed = World::end_of(
        world.bowline(&["install", "--crds-only"]).env("KUBECONFIG", plane.kubeconfig()),
    );
    assert_eq!(installed.code, Some(0), "{}", installed.stderr);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut process = server(&["-n", "default", "--log-format=json"]).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("the server is up") {
            assert_ne!(lines.read_line(&mut said).unwrap(), 0, "it ended: {said}");
        }
        kill(Pid::from_raw(process.id().cast_signed()), signal).unwrap();
        lines.read_to_string(&mut said).unwrap();
        assert_eq!(process.wait().unwrap().code(), Some(0), "{said}");
        assert!(!said.contains("given up"), "something did not end by itself: {said}");
        assert!(said.lines().all(|line| line.starts_with("{\"") && line.ends_with('}')), "{said}");
    }
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}
