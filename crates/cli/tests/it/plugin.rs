//! `bowline plugin`, on real plugin binaries.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use bowline_testbed::program::{self, Program};
use bowline_testbed::{Bed, S3, eventually_blocking, fixture, s3};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::bowline::{CommandResult, TIMEOUT, World};

fn locate(program: Program) -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let [path] = runtime.block_on(program::locate([program])).unwrap();
    path.to_str().unwrap().to_owned()
}

fn rust_fixture() -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let path = runtime.block_on(fixture::rust_plugins()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Folders of the fixture plugins: state, a store, a volume.
struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("root/volumes/vol");
        std::fs::create_dir_all(&volume).unwrap();
        std::fs::write(volume.join("file"), "data").unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `--config root=…`
    fn root(&self) -> String {
        format!("--config=root={}", self.path("root").display())
    }

    /// A file with a pod that configures the fixture plugins.
    fn pod(&self, verbs: &str) -> String {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  namespace: app-1\n  \
             annotations:\n    fixture.bowline.io/do: {verbs}\n"
        );
        self.file("pod.yaml", &text)
    }

    fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    fn script(&self, text: &str) -> String {
        let path = self.file("script", text);
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn run(&self, world: &World, arguments: &[&str]) -> CommandResult {
        let mut command = world.bowline(arguments);
        let ended = World::run_command(command.env("FIXTURE_STATE_DIR", self.folder.path()));
        assert_eq!(world.leftovers(), [] as [&str; 0]);
        ended
    }

    /// The files below a folder of the stores and snapshotters.
    fn files(&self, folder: &str) -> Vec<PathBuf> {
        files_below(self.path("root").join(folder))
    }
}

fn files_below(folder: PathBuf) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_folder = entry.file_type().unwrap().is_dir();
            if is_folder { &mut folders } else { &mut files }.push(entry.path());
        }
    }
    files
}

/// The lines below a heading.
fn section<'a>(stdout: &'a str, heading: &str) -> Vec<&'a str> {
    let lines = stdout.lines().skip_while(|line| *line != heading).skip(1);
    lines.take_while(|line| !line.is_empty()).collect()
}

fn assert_refused(ended: &CommandResult, words: &[&str]) {
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    for word in words {
        assert!(ended.stderr.contains(word), "no {word:?} in {}", ended.stderr);
    }
}

#[test]
fn inspect_lists_veleros_plugin_for_aws() {
    let world = World::new();
    let ended = world.run(&["plugin", "inspect", &locate(Program::VeleroPluginForAws)]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(ended.stdout);
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn inspect_shows_which_items_actions_apply_to() {
    let world = World::new();
    let ended = world.run(&["plugin", "inspect", &locate(Program::FixturePlugins)]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(ended.stdout);
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn inspect_prints_json_for_programs() {
    let path = locate(Program::FixturePlugins);
    let ended = World::new().run(&["plugin", "inspect", &path, "-o", "json"]);
    let listed: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    let find = |name: &str| listed.iter().find(|plugin| plugin["name"] == name).unwrap();
    assert_eq!(listed.len(), 10);
    assert_eq!(
        *find("fixture.bowline.io/ria-v2"),
        json!({
            "command": path,
            "kind": "RestoreItemAction",
            "name": "fixture.bowline.io/ria-v2",
            "version": "v2",
            "appliesTo": {
                "includedNamespaces": ["app-*"],
                "excludedNamespaces": ["kube-system"],
                "includedResources": ["pods", "persistentvolumeclaims"],
                "excludedResources": ["nodes"],
                "labelSelector": "fixture!=no",
            },
        })
    );
    assert_eq!(find("fixture.bowline.io/os")["appliesTo"], Value::Null);
}

#[test]
fn a_snapshotter_of_version_2_is_listed_as_such() {
    let ended = World::new().run(&["plugin", "inspect", &locate(Program::SnapshotterV2)]);
    insta::assert_snapshot!(ended.stdout);
}

#[test]
fn non_plugin_is_refused_in_one_line() {
    let scratch = Scratch::new();
    let world = World::new();
    let script = scratch.script("#!/bin/sh\necho 'no luck today' >&2\nexit 3\n");
    for command in ["inspect", "check"] {
        let ended = scratch.run(&world, &["plugin", command, &script]);
        assert_refused(&ended, &["error: plugin ", &script, "exit status: 3", "no luck today"]);
    }
    let script = scratch.script("#!/bin/sh\necho 'Usage: script FILE'\n");
    let ended = scratch.run(&world, &["plugin", "inspect", &script]);
    assert_refused(&ended, &[&script, "is not a handshake", "Usage: script FILE"]);
    let ended = scratch.run(&world, &["plugin", "inspect", "/proc/none"]);
    assert_refused(&ended, &["/proc/none", "cannot be started", "No such file"]);
    let folder = scratch.path("root");
    let text = scratch.file("text", "no program");
    for (path, reason) in [(folder.to_str().unwrap(), "directory"), (&text, "not executable")] {
        for command in ["inspect", "check"] {
            let ended = scratch.run(&world, &["plugin", command, path]);
            assert_refused(&ended, &[path, reason]);
        }
    }
    // A name is a file, not a program of the PATH.
    let ended = scratch.run(&world, &["plugin", "inspect", "true"]);
    assert_refused(&ended, &["/true: the process cannot be started"]);
}

#[test]
fn check_finds_the_fixture_plugins_in_order() {
    let scratch = Scratch::new();
    let path = locate(Program::FixturePlugins);
    let pod = scratch.pod("operation=600000");
    let volume = scratch.file(
        "pv.json",
        r#"{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
        "spec": {"csi": {"driver": "fixture.bowline.io", "volumeHandle": "vol"}}}"#,
    );
    let root = scratch.root();
    let arguments = ["plugin", "check", &path, &root, "--volume=vol", "--item", &pod];
    let more = ["--persistent-volume", &volume, "--bucket=bowline-check"];
    let ended = scratch.run(&World::new(), &[&arguments[..], &more].concat());
    let shown = ended.stdout.replace(&path, "/plugins/fixture");
    insta::assert_snapshot!(shown);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(scratch.files("bowline-check"), [] as [PathBuf; 0]);
    assert_eq!(scratch.files("snapshots"), [] as [PathBuf; 0]);
}

#[test]
fn check_takes_a_snapshotter_of_version_2_through_its_life() {
    let scratch = Scratch::new();
    let path = locate(Program::SnapshotterV2);
    let root = scratch.root();
    let slow = ["--config=create-ms=300", "--config=upload-ms=300"];
    let arguments = ["plugin", "check", &path, &root, "--volume=vol"];
    let ended = scratch.run(&World::new(), &[&arguments[..], &slow].concat());
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stdout);
    let rules = section(&ended.stdout, "VolumeSnapshotter v2 fixture.bowline.io/vs-v2");
    insta::assert_snapshot!(rules.join("\n"));
    assert_eq!(scratch.files("snapshots"), [] as [PathBuf; 0]);
}

#[test]
fn check_finds_the_plugins_of_our_sdk_in_order() {
    let scratch = Scratch::new();
    let pod = scratch.pod("operation=600000");
    let arguments = ["plugin", "check", &rust_fixture(), &scratch.root(), "--volume=vol"];
    let ended = scratch.run(
        &World::new(),
        &[&arguments[..], &["--item", &pod, "--bucket=bowline-check"]].concat(),
    );
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stdout);
    // One for each of the two snapshotters, which are given no PersistentVolume of theirs, and one
    // for the delete action, which was not asked for.
    assert!(ended.stdout.ends_with("\n92 rules hold, 0 broken, 3 skipped\n"), "{}", ended.stdout);
    assert_eq!(scratch.files("bowline-check"), [] as [PathBuf; 0]);
    assert_eq!(scratch.files("snapshots"), [] as [PathBuf; 0]);
}

#[test]
fn check_takes_veleros_plugin_for_aws_through_a_real_bucket() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let bed = Bed::new().unwrap();
    let s3 = runtime.block_on(S3::start(&bed)).unwrap();
    let bucket = s3.create_bucket("bowline-check").unwrap();
    let config = [
        format!("--config=region={}", s3::REGION),
        format!("--config=s3Url={}", s3.url()),
        format!("--config=credentialsFile={}", s3.credentials_file().display()),
        "--config=s3ForcePathStyle=true".to_owned(),
        "--config=prefix=some/where".to_owned(),
    ];
    let path = locate(Program::VeleroPluginForAws);
    let world = World::new();
    let mut command = world.bowline(&["plugin", "check", &path, "--kind=ObjectStore"]);
    let ended = World::run_command(command.args(config).arg("--bucket=bowline-check"));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stdout);
    assert!(ended.stdout.ends_with("\n20 rules hold, 0 broken, 0 skipped\n"), "{}", ended.stdout);
    assert_eq!(files_below(bucket.join("some")), [] as [PathBuf; 0]);
    assert_eq!(files_below(bucket.join("plugins")), [] as [PathBuf; 0]);
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn a_binary_that_does_not_stop_or_share_and_that_velero_would_refuse() {
    let scratch = Scratch::new();
    let script = scratch.script(&format!(
        "#!/bin/sh\nexport BOWLINE_PLUGIN_KINDS=VolumeSnapshotterV2\n\
         mkdir '{lock}' || {{ echo 'I run already' >&2; exit 1; }}\n\
         '{plugin}' &\nwait $!\nrmdir '{lock}'\nexec sleep 600\n",
        lock = scratch.path("lock").display(),
        plugin = locate(Program::SnapshotterV2),
    ));
    let arguments = ["plugin", "check", &script, "--kind=VolumeSnapshotter"];
    let ended = scratch.run(&World::new(), &arguments);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(1), ""), "{}", ended.stdout);
    insta::assert_snapshot!(section(&ended.stdout, &script).join("\n"));
}

#[test]
fn a_plugin_that_hangs_has_broken_the_rule_that_it_hung_in() {
    let scratch = Scratch::new();
    let path = locate(Program::FixturePlugins);
    let pod = scratch.pod("hang");
    let arguments = ["plugin", "check", &path, &scratch.root(), "--item", &pod, "--timeout", "1s"];
    let bucket = ["--bucket=bowline-check"];
    let ended = scratch.run(&World::new(), &[&arguments[..], &bucket].concat());
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(1), ""), "{}", ended.stdout);
    insta::assert_snapshot!(
        section(&ended.stdout, "ItemBlockAction v1 fixture.bowline.io/iba").join("\n")
    );
    // Each of the seven actions that are called, and that three of them may have started operations.
    assert!(ended.stdout.ends_with(" 10 broken, 35 skipped\n"), "{}", ended.stdout);
    let leftover_line = "\n           left: possibly operations of 1 call for bowline-check-";
    assert_eq!(ended.stdout.matches(leftover_line).count(), 3, "{}", ended.stdout);
}

#[test]
fn delete_actions_are_called_only_when_selected() {
    let scratch = Scratch::new();
    let path = locate(Program::FixturePlugins);
    let pod = scratch.pod("''");
    let arguments = ["plugin", "check", &path, "--item", &pod, "--kind"];
    let run = |kind| scratch.run(&World::new(), &[&arguments[..], &[kind]].concat());
    let ended = scratch.run(&World::new(), &[&arguments[..5], &[&scratch.root()]].concat());
    let hint = "to call it, add --kind DeleteItemAction";
    let rules = section(&ended.stdout, "DeleteItemAction v1 fixture.bowline.io/dia");
    assert!(rules[1].starts_with("  skipped") && rules[1].ends_with(hint), "{}", ended.stdout);
    run("BackupItemAction");
    assert!(!scratch.path("deleted").exists());
    let ended = run("DeleteItemAction");
    assert_eq!(ended.code, Some(0), "{}", ended.stdout);
    assert_eq!(std::fs::read_to_string(scratch.path("deleted")).unwrap(), "Pod/app-1/p\n");
}

#[test]
fn plugin_exit_status_is_reported() {
    let scratch = Scratch::new();
    let path = locate(Program::FixturePlugins);
    let arguments = ["plugin", "check", &path, &scratch.root(), "--item", &scratch.pod("die")];
    let ended = scratch.run(&World::new(), &arguments);
    assert_eq!(ended.code, Some(1));
    let rules = section(&ended.stdout, "ItemBlockAction v1 fixture.bowline.io/iba");
    let expected = "  FAILED   answers for the item: the plugin exited during GetRelatedItems (exit status: 3)";
    assert_eq!(rules[1], expected);
}

#[test]
fn refused_configuration_fails_one_rule_and_skips_the_others() {
    let scratch = Scratch::new();
    let path = locate(Program::FixturePlugins);
    let arguments = ["plugin", "check", &path, "-o", "json", "--bucket=b", "--config=a=b"];
    let ended = scratch.run(&World::new(), &arguments);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(1), ""));
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let store_findings: Vec<&Value> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["plugin"]["kind"] == "ObjectStore")
        .collect();
    assert_eq!(
        *store_findings[0],
        json!({
            "plugin": {"kind": "ObjectStore", "name": "fixture.bowline.io/os", "version": "v1"},
            "rule": "Init accepts the configuration",
            "verdict": "broken",
            "reason": "config key \"root\" is required",
            "left": [],
        })
    );
    let rest = &store_findings[1..];
    assert!(!rest.is_empty() && rest.iter().all(|finding| finding["verdict"] == "skipped"));
    assert_eq!(report["summary"]["broken"], 2, "the store and the snapshotter");
}

#[test]
fn missing_input_skips_rules() {
    let scratch = Scratch::new();
    let path = locate(Program::FixturePlugins);
    let run = |more: &[&str]| {
        let arguments = ["plugin", "check", &path, "--kind=ObjectStore"];
        scratch.run(&World::new(), &[&arguments[..], more].concat())
    };
    let ended = run(&[]);
    assert_eq!(ended.code, Some(0), "{}", ended.stdout);
    let rules = section(&ended.stdout, "ObjectStore v1 fixture.bowline.io/os");
    let hint = "\"root\" is required; give its configuration with --config";
    assert!(rules[0].starts_with("  skipped") && rules[0].ends_with(hint), "{}", ended.stdout);
    let ended = run(&[&scratch.root()]);
    assert_eq!(ended.code, Some(0), "{}", ended.stdout);
    let rules = section(&ended.stdout, "ObjectStore v1 fixture.bowline.io/os");
    assert_eq!(rules[0], "  ok       Init accepts the configuration");
    let hint = ": name a scratch bucket with --bucket";
    let is_skipped = |rule: &&str| rule.starts_with("  skipped") && rule.ends_with(hint);
    assert!(rules.len() > 1 && rules[1..].iter().all(is_skipped), "{}", ended.stdout);
}

#[test]
fn missing_kind_is_refused_in_one_line() {
    let path = locate(Program::SnapshotterV2);
    let arguments = ["plugin", "check", &path, "--kind=VolumeSnapshotter", "--kind=ObjectStore"];
    let ended = Scratch::new().run(&World::new(), &arguments);
    assert_refused(&ended, &[&path, "the binary has no ObjectStore"]);
}

#[test]
fn interrupted_check_cleans_up() {
    let scratch = Scratch::new();
    let world = World::new();
    let path = locate(Program::SnapshotterV2);
    let arguments = ["plugin", "check", &path, &scratch.root(), "--volume=vol"];
    let mut command = world.bowline(&arguments);
    command.args(["--config=upload-ms=600000", "--timeout=5m"]);
    let check = command.env("FIXTURE_STATE_DIR", scratch.folder.path()).spawn().unwrap();
    let id = Pid::from_raw(check.id().cast_signed());
    eventually_blocking("it uploads a snapshot", TIMEOUT, || {
        scratch.files("snapshots").iter().any(|path| path.ends_with("upload.json"))
    });
    kill(id, Signal::SIGINT).unwrap();
    let output = check.wait_with_output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stdout}");
    assert!(
        stdout.contains("  ok       the check leaves no snapshot and no unknown volume\n"),
        "{stdout}"
    );
    assert_eq!(scratch.files("snapshots"), [] as [PathBuf; 0]);
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

#[test]
fn invalid_input_is_refused_before_the_plugin_is_started() {
    let scratch = Scratch::new();
    let world = World::new();
    let pod = scratch.pod("''");
    let secret = scratch.file("no-object.yaml", "just: some\nyaml: here\n");
    for (arguments, words) in [
        (["--item", "/proc/none"], ["cannot use /proc/none", "No such file"]),
        (["--item", secret.as_str()], ["no-object.yaml", "has no `kind`"]),
        (
            ["--persistent-volume", pod.as_str()],
            ["pod.yaml", "expected a PersistentVolume, not a Pod"],
        ),
        (["--bucket", ""], ["--bucket", "empty"]),
        (["--config", "root"], ["--config", "KEY=VALUE"]),
        (["--timeout", "30"], ["--timeout", "missing unit"]),
        (["--kind", "Plugin"], ["--kind", "possible values are BackupItemAction"]),
        (["--volume", ""], ["--volume", "empty"]),
    ] {
        let ended =
            scratch.run(&world, &[&["plugin", "check", "/proc/none"], &arguments[..]].concat());
        assert_refused(&ended, &words);
    }
}
