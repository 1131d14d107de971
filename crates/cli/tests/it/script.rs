//! A script for `velero` that gives the same output with `bowline`.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use bowline_testbed::program::{self, Program};

use crate::bowline::{CommandResult, World};
use crate::switch::stage::{MigrationEnv, set_cluster_env};

/// Settings of both servers.
const FLAGS: [&str; 2] = ["--store-validation-frequency=2s", "--backup-sync-period=2s"];

/// Runs the script with a binary that it finds under the name `velero`.
fn run(env: &MigrationEnv, name: &str, binary: &Path) -> CommandResult {
    let [kubectl] = env.runtime.block_on(program::locate([Program::Kubectl])).unwrap();
    let home = env.bed.subdir(name).unwrap();
    symlink(binary, home.join("velero")).unwrap();
    symlink(kubectl, home.join("kubectl")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/scripts/nightly.sh");
    let mut command = Command::new("/bin/sh");
    set_cluster_env(&mut command, &env.plane, &home);
    command
        .arg(script)
        .env("PATH", format!("{}:/usr/bin:/bin", home.display()))
        .env("TMPDIR", &home)
        .stdin(Stdio::null());
    World::run_command(&mut command)
}

#[test]
fn velero_script_gives_the_same_output_with_bowline() {
    let env = MigrationEnv::start(&[Program::VeleroPluginForAws]);
    let running = env.start_velero(&FLAGS);
    let [velero] = env.runtime.block_on(program::locate([Program::Velero])).unwrap();
    let with_velero = run(&env, "with-velero", &velero);
    assert_eq!(with_velero.code, Some(0), "{}\n{}", with_velero.stdout, with_velero.stderr);
    drop(running);
    // The script found the backup that it looked for.
    for fact in [
        "backup phase: Completed",
        "in the archive: resources/configmaps/namespaces/ci-shop/settings.json",
        "restore phase: Completed",
        "currency: thaler",
        "backs up twice under a name: no",
        "the restore went with its backup: yes",
    ] {
        assert!(
            with_velero.stdout.lines().any(|line| line == fact),
            "{fact}: {}",
            with_velero.stdout
        );
    }
    let empty: Vec<&str> = with_velero.stdout.lines().filter(|line| line.ends_with(": ")).collect();
    assert_eq!(empty, ["unpaused: "], "{}", with_velero.stdout);

    env.ok(&["install", "--profile=full", "--no-secret", "--no-default-backup-location"]);
    let mut flags = FLAGS.map(str::to_owned).to_vec();
    flags.push("--metrics-address=127.0.0.1:0".to_owned());
    let server = env.start_bowline(&flags);
    let with_bowline = run(&env, "with-bowline", Path::new(env!("CARGO_BIN_EXE_bowline")));
    assert_eq!(with_bowline.code, Some(0), "{}\n{}", with_bowline.stdout, with_bowline.stderr);
    assert_eq!(with_bowline.stdout, with_velero.stdout, "{}", with_bowline.stderr);
    server.stop(&env);
}
