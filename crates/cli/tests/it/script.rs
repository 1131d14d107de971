//! A script that was written for `velero` does the same with `bowline` in its place.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use bowline_testbed::program::{self, Program};

use crate::bowline::{Ended, World};
use crate::switch::stage::{Stage, for_cluster};

/// What both servers are told.
const FLAGS: [&str; 2] = ["--store-validation-frequency=2s", "--backup-sync-period=2s"];

/// Runs the script with a binary that it finds under the name `velero`.
fn run(stage: &Stage, name: &str, binary: &Path) -> Ended {
    let [kubectl] = stage.runtime.block_on(program::locate([Program::Kubectl])).unwrap();
    let home = stage.bed.subdir(name).unwrap();
    symlink(binary, home.join("velero")).unwrap();
    symlink(kubectl, home.join("kubectl")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/scripts/nightly.sh");
    let mut command = Command::new("/bin/sh");
    for_cluster(&mut command, &stage.plane, &home);
    command
        .arg(script)
        .env("PATH", format!("{}:/usr/bin:/bin", home.display()))
        .env("TMPDIR", &home)
        .stdin(Stdio::null());
    World::end_of(&mut command)
}

#[test]
fn a_script_for_velero_finds_the_same_with_bowline() {
    let stage = Stage::set(&[Program::VeleroPluginForAws]);
    let running = stage.start_velero(&FLAGS);
    let [velero] = stage.runtime.block_on(program::locate([Program::Velero])).unwrap();
    let theirs = run(&stage, "with-velero", &velero);
    assert_eq!(theirs.code, Some(0), "{}\n{}", theirs.stdout, theirs.stderr);
    drop(running);
    // The script has found what it was made for.
    for fact in [
        "backup phase: Completed",
        "in the archive: resources/configmaps/namespaces/ci-shop/settings.json",
        "restore phase: Completed",
        "currency: thaler",
        "backs up twice under a name: no",
        "the restore went with its backup: yes",
    ] {
        assert!(theirs.stdout.lines().any(|line| line == fact), "{fact}: {}", theirs.stdout);
    }
    let empty: Vec<&str> = theirs.stdout.lines().filter(|line| line.ends_with(": ")).collect();
    assert_eq!(empty, ["unpaused: "], "{}", theirs.stdout);

    stage.ok(&["install", "--profile=full", "--no-secret", "--no-default-backup-location"]);
    let mut flags = FLAGS.map(str::to_owned).to_vec();
    flags.push("--metrics-address=127.0.0.1:0".to_owned());
    let server = stage.start_bowline(&flags);
    let ours = run(&stage, "with-bowline", Path::new(env!("CARGO_BIN_EXE_bowline")));
    assert_eq!(ours.code, Some(0), "{}\n{}", ours.stdout, ours.stderr);
    assert_eq!(ours.stdout, theirs.stdout, "{}", ours.stderr);
    server.end(&stage);
}
