use std::time::{Duration, Instant};

use crate::bowline::World;
use crate::cluster::cluster;
use crate::restore;

#[test]
fn names_are_completed_from_the_cluster() {
    let env = cluster().test_env("completion");
    restore::put_completed_backup(&env, "nightly-1");
    restore::put_completed_backup(&env, "nightly-2");
    let kubectl = |words: &[&str]| env.run_ok(&[&["__complete"], words].concat());
    assert_eq!(kubectl(&["backup", "describe", ""]), "nightly-1\t\nnightly-2\t\n:4\n");
    assert_eq!(kubectl(&["describe", "backups", "nightly-2"]), "nightly-2\t\n:4\n");
    assert_eq!(kubectl(&["restore", "create", "--from-backup", "nightly-1"]), "nightly-1\t\n:4\n");
    assert_eq!(kubectl(&["backup", "get", "-n", "elsewhere", ""]), ":4\n");
    assert!(!kubectl(&["backup", "create", ""]).contains("nightly"));
    let commands = kubectl(&["sch"]);
    assert!(commands.starts_with("schedule\tManage backup schedules"), "{commands}");

    // The call of the bash script.
    let mut command = env.bowline(&["--", "bowline", "backup", "logs", "nightly"]);
    command.env("BOWLINE_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "3").env("_CLAP_IFS", "\n");
    let ended = World::run_command(&mut command);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "nightly-1\nnightly-2"));
}

#[test]
fn unreachable_cluster_completes_no_names() {
    // Takes connections and says nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    });
    std::fs::write(kubeconfig.path(), text.to_string()).unwrap();
    let world = World::new();
    for kubeconfig in [kubeconfig.path(), std::path::Path::new("/dev/null")] {
        let started = Instant::now();
        let mut command = world.bowline(&["__complete", "backup", "describe", "x"]);
        let ended = World::run_command(command.env("KUBECONFIG", kubeconfig));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ":4\n"));
        assert_eq!(ended.stderr, "");
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
}

#[test]
fn each_shell_has_a_completion_script() {
    let world = World::new();
    for (shell, word) in [
        ("bash", "complete -o"),
        ("zsh", "#compdef bowline"),
        ("fish", "complete --keep-order"),
        ("powershell", "Register-ArgumentCompleter"),
        ("kubectl", "exec kubectl-bowline __complete \"$@\""),
    ] {
        let ended = world.run(&["completion", shell]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stdout.contains(word), "{shell}: {}", ended.stdout);
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("pages");
    let ended = World::new().run(&["man", "--dir", pages.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for page in ["bowline.1", "bowline-backup-create.1", "bowline-get-backups.1", "bowline-debug.1"]
    {
        let text = std::fs::read_to_string(pages.join(page)).unwrap_or_default();
        assert!(text.contains(".SH NAME"), "{page}: {text}");
    }
}
