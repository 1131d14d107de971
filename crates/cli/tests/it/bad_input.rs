//! Wrong input: one line with the problem and its fix, exit code 2, and no process stays behind.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use crate::bowline::{CommandResult, World};

/// One line on standard error, exit code 2, nothing on standard output, no remaining process.
fn assert_refused(world: &World, ended: &CommandResult, words: &[&str]) {
    let errors: Vec<&str> =
        ended.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    let [error] = errors.as_slice() else { panic!("not one error: {:?}", ended.stderr) };
    for word in words {
        assert!(error.contains(word), "no {word:?} in {error:?}");
    }
    assert_eq!(ended.code, Some(2), "{error}");
    assert_eq!(ended.stdout, "");
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn an_unknown_flag() {
    let world = World::new();
    let ended = world.run(&["demo", "--exti"]);
    assert_refused(
        &world,
        &ended,
        &["--exti", "(did you mean `--exit`?)", "`bowline demo --help`"],
    );
}

#[test]
fn an_unknown_command() {
    let world = World::new();
    let ended = world.run(&["instal"]);
    assert_refused(&world, &ended, &["instal", "(did you mean `install`?)", "`bowline --help`"]);
}

#[test]
fn a_port_that_is_no_number() {
    let world = World::new();
    let ended = world.run(&["demo", "--port", "https"]);
    assert_refused(&world, &ended, &["https", "--port", "`bowline demo --help`"]);
}

#[test]
fn a_folder_that_is_not_there() {
    let world = World::new();
    let ended = world.run(&["demo", "--dir", "/proc/none"]);
    assert_refused(&world, &ended, &["/proc/none", "choose a directory that you can write to"]);
}

#[test]
fn a_port_in_use() {
    let world = World::new();
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = occupied.local_addr().unwrap().port().to_string();
    let ended = world.run(&["demo", "--exit", "--port", &port]);
    assert_refused(&world, &ended, &[&format!("port {port}"), "in use", "choose another one"]);
}

#[test]
fn a_value_that_is_not_among_the_possible_ones() {
    let world = World::new();
    let ended = world.run(&["install", "--crds-only", "-o", "xml"]);
    assert_refused(&world, &ended, &["'xml'", "--output", "possible values are yaml, json"]);
}

#[test]
fn an_argument_that_is_missing() {
    let world = World::new();
    let ended = world.run(&["completion"]);
    assert_refused(&world, &ended, &["not provided", "<SHELL>", "`bowline completion --help`"]);
}

#[test]
fn a_standard_output_that_is_full() {
    let world = World::new();
    let mut command = world.bowline(&["install", "--crds-only", "--dry-run", "-o", "yaml"]);
    command.stdout(std::fs::File::create("/dev/full").unwrap());
    let ended = World::run_command(&mut command);
    assert_refused(&world, &ended, &["cannot write to standard output", "No space"]);
}

#[test]
fn a_kubeconfig_that_is_broken_is_not_quoted() {
    let world = World::new();
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(kubeconfig.path(), "users:\n  - user: {token: s3cr3t\n").unwrap();
    let mut command = world.bowline(&["install", "--crds-only"]);
    let ended = World::run_command(command.env("KUBECONFIG", kubeconfig.path()));
    assert!(!ended.stderr.contains("s3cr3t"), "{}", ended.stderr);
    assert_refused(
        &world,
        &ended,
        &["the kubeconfig is not valid kubeconfig YAML", "--kubeconfig"],
    );
}

#[test]
fn a_binary_that_dies_at_start() {
    let world = World::new();
    let assets = tempfile::tempdir().unwrap();
    let etcd = assets.path().join("etcd");
    std::fs::write(&etcd, "#!/bin/sh\necho 'fatal: this is no etcd' >&2\nexit 7\n").unwrap();
    std::fs::set_permissions(&etcd, Permissions::from_mode(0o755)).unwrap();
    let mut command = world.bowline(&["demo", "--exit"]);
    let ended = World::run_command(command.env("BOWLINE_TESTBED_ASSETS", assets.path()));
    assert_refused(&world, &ended, &["etcd", "exit status: 7", "fatal: this is no etcd"]);
}

#[test]
fn a_binary_that_cannot_be_run() {
    let world = World::new();
    let assets = tempfile::tempdir().unwrap();
    std::fs::write(assets.path().join("etcd"), "not a program").unwrap();
    let mut command = world.bowline(&["demo", "--exit"]);
    let ended = World::run_command(command.env("BOWLINE_TESTBED_ASSETS", assets.path()));
    assert_refused(&world, &ended, &["cannot start etcd", "ermission denied"]);
}

#[test]
fn no_go_toolchain() {
    let world = World::new();
    let empty = tempfile::tempdir().unwrap();
    let mut command = world.bowline(&["demo", "--exit"]);
    command.env("BOWLINE_CACHE", empty.path()).env("PATH", empty.path());
    command.env_remove("BOWLINE_TESTBED_ASSETS").env_remove("KUBEBUILDER_ASSETS");
    let ended = World::run_command(&mut command);
    assert_refused(&world, &ended, &["`go` was not found", "install Go", "BOWLINE_TESTBED_ASSETS"]);
}

#[test]
fn a_cache_that_cannot_be_written() {
    let world = World::new();
    let mut command = world.bowline(&["demo", "--exit"]);
    command.env("BOWLINE_CACHE", "/proc/none");
    command.env_remove("BOWLINE_TESTBED_ASSETS").env_remove("KUBEBUILDER_ASSETS");
    let ended = World::run_command(&mut command);
    assert_refused(&world, &ended, &["/proc/none", "BOWLINE_CACHE"]);
}

#[test]
fn a_kubeconfig_that_is_not_there() {
    let world = World::new();
    let ended = world.run(&["install", "--crds-only", "--kubeconfig", "/proc/none"]);
    assert_refused(&world, &ended, &["cannot read the kubeconfig /proc/none"]);
}

/// A kubeconfig with one context, `x`, whose cluster does not answer.
fn unreachable_kubeconfig() -> tempfile::NamedTempFile {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"x",
        "clusters":[{{"name":"x","cluster":{{"server":"http://127.0.0.1:{port}"}}}}],
        "users":[{{"name":"x","user":{{}}}}],
        "contexts":[{{"name":"x","context":{{"cluster":"x","user":"x"}}}}]}}"#
    );
    std::fs::write(kubeconfig.path(), text).unwrap();
    kubeconfig
}

#[test]
fn a_context_that_is_not_there() {
    let world = World::new();
    let kubeconfig = unreachable_kubeconfig();
    let path = kubeconfig.path().to_str().unwrap();
    let line = ["backup", "get", "--kubecontext", "nope"];
    let words = ["no context `nope`", path, "available contexts: `x`"];
    let ended = world.run(&[&line[..], &["--kubeconfig", path]].concat());
    assert_refused(&world, &ended, &words);
    let mut command = world.bowline(&line);
    let ended = World::run_command(command.env("KUBECONFIG", kubeconfig.path()));
    assert_refused(&world, &ended, &words);
}

#[test]
fn a_cluster_that_does_not_answer() {
    let world = World::new();
    let kubeconfig = unreachable_kubeconfig();
    let path = kubeconfig.path().to_str().unwrap();
    let ended = world.run(&["install", "--crds-only", "--kubeconfig", path]);
    assert_refused(&world, &ended, &["cannot reach the cluster", "refused"]);
}

#[test]
fn install_without_provider() {
    let world = World::new();
    let ended = world.run(&["install"]);
    assert_refused(&world, &ended, &["--secret-file", "--no-secret"]);
}

#[test]
fn unsupported_velero_flag() {
    let world = World::new();
    for (line, words) in [
        (
            &["install", "--use-node-agent", "--no-secret"][..],
            &["`--use-node-agent` is not supported", "no node agent", "omit the flag"][..],
        ),
        (&["install", "--node-agent-pod-cpu-limit", "1"], &["--node-agent-pod-cpu-limit"]),
        (&["install", "--restore-only"], &["`--restore-only` is not supported", "ReadOnly"]),
        (&["server", "--restore-only"], &["`--restore-only` is not supported", "ReadOnly"]),
        (&["server", "--disable-controllers=gc"], &["--disable-controllers", "pause schedules"]),
    ] {
        assert_refused(&world, &world.run(line), words);
    }
}

#[test]
fn provider_without_plugin() {
    let world = World::new();
    let line = ["install", "--no-secret", "--bucket=b", "--provider", "gcp"];
    assert_refused(&world, &world.run(&line), &["`gcp`", "--plugins", "velero-plugin-for-gcp"]);
    let line = ["install", "--no-secret", "--bucket=b", "--provider", "filesystem"];
    assert_refused(&world, &world.run(&line), &["--filesystem-root", "mount a volume"]);
}
