//! Plugins that break the rules, each in a real process: the call ends with a precise error within
//! its limit, and the next call works if possible.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use bowline_plugin::{Class, Code};
use bowline_plugin_host::{Host, Limits, Options};
use bowline_testbed::{eventually, leftover};
use bytes::Bytes;

use crate::fixture::{Fixture, Set, annotation, backup, pick, pod, short_limits, write};

/// Variable that is set for the scripts and their children.
const MARK: &str = "BOWLINE_TEST_MARK";

/// A plugin folder with shell scripts in it, beside a plugin that works.
async fn problems_of(scripts: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, script) in scripts {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
    let good = Set::Go.binaries().await.remove(0).1;
    std::os::unix::fs::symlink(good, folder.path().join("works")).unwrap();
    let limits = Limits { start: Duration::from_secs(3), ..short_limits() };
    let plugin_dir = folder.path().to_owned();
    let environment = vec![(MARK.into(), folder.path().into())];
    let host =
        Host::discover(Options { plugin_dir, environment, limits, ..Options::default() }).await;
    assert_eq!(host.registry().plugins().len(), 10, "what works is not affected");
    // The children of the scripts have ended with them.
    let mark = folder.path().display().to_string();
    eventually("no process of a script remains", Duration::from_secs(20), async || {
        let remaining = leftover::processes(MARK, &mark);
        if remaining.is_empty() { Ok(()) } else { Err(remaining) }
    })
    .await;
    let prefix = format!("plugin {}/", folder.path().display());
    let problem_text = |problem: &_| ToString::to_string(problem).replace(&prefix, "");
    host.registry().problems().iter().map(problem_text).collect()
}

#[tokio::test]
async fn invalid_handshakes_are_reported_with_name_and_reason() {
    let started = Instant::now();
    let problems = problems_of(&[
        ("a-garbage", "echo hello world; sleep 60"),
        ("b-nothing", "sleep 60"),
        ("c-exits", "echo 'no license' >&2; exit 5"),
        ("d-version", "echo '1|1|unix|/tmp/x|grpc|'; sleep 60"),
        ("e-megabyte", "head -c 1000000 /dev/zero | tr '\\0' x; sleep 60"),
        ("f-closes", "exec >&-; sleep 60"),
        ("g-nobody", "echo '1|2|unix|/tmp/no-such-socket|grpc|'; sleep 60"),
        ("h-binary", "printf '\\377\\376|\\0|\\n'; sleep 60"),
    ])
    .await;
    let expected = [
        "a-garbage: invalid handshake: the first line on standard output is not a handshake: \
         `hello world",
        "b-nothing: no handshake within 3 s",
        "c-exits: the process ended before its handshake (exit status: 5): no license",
        "d-version: invalid handshake: unsupported plugin protocol version 1: expected 2",
        "e-megabyte: invalid handshake: the first line on standard output is not a handshake: `xxx",
        "f-closes: no handshake within 3 s",
        "g-nobody: cannot connect to the socket",
        "h-binary: invalid handshake: the first line on standard output is not a handshake",
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.starts_with(expected), "{problem}");
    }
    // Two of them are waited for, side by side with the others.
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn files_that_are_not_programs_are_reported() {
    let problems = problems_of(&[("text", "")]).await;
    assert_eq!(problems, ["text: the process ended before its handshake (exit status: 0)"]);
}

/// A plugin folder with one file in it.
async fn host_of(content: &str) -> (Host, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (plugin_dir, path) = (folder.path().join("plugins"), folder.path().join("plugins/it"));
    std::fs::create_dir(&plugin_dir).unwrap();
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let limits = Limits { relist: Duration::from_mins(1), ..short_limits() };
    let environment = vec![("STATE".into(), folder.path().into())];
    (
        Host::discover(Options { plugin_dir, environment, limits, ..Options::default() }).await,
        folder,
    )
}

#[tokio::test]
async fn binary_that_fails_at_first_is_retried() {
    let good = Set::Go.binaries().await.remove(0).1;
    let script = format!(
        "#!/bin/sh\necho >> \"$STATE/starts\"\n[ -e \"$STATE/failed\" ] || {{ touch \"$STATE/failed\"; exit 1; }}\nexec '{}' \"$@\"\n",
        good.display()
    );
    let (host, folder) = host_of(&script).await;
    assert_eq!(host.registry().problems(), []);
    assert_eq!(host.registry().plugins().len(), 10);
    let starts = std::fs::read_to_string(folder.path().join("starts")).unwrap();
    assert_eq!(starts.lines().count(), 2, "once more, and not again");
}

#[tokio::test]
async fn permanent_failures_are_not_retried_and_text_files_hide_no_plugins() {
    for (content, is_unlisted) in [
        ("#!/bin/sh\necho >> \"$STATE/starts\"\necho hello\n", true),
        // A system may hand it to a shell.
        ("echo >> \"$STATE/starts\"\n", false),
    ] {
        let (host, folder) = host_of(content).await;
        assert_eq!(host.registry().problems().len(), 1);
        assert_eq!(host.registry().unlisted().len(), usize::from(is_unlisted), "{content}");
        let starts = std::fs::read_to_string(folder.path().join("starts")).unwrap_or_default();
        assert!(starts.lines().count() <= 1, "{content}: {starts:?}");
    }
}

#[tokio::test]
async fn plugin_that_dies_in_a_call_is_restarted_by_the_next_call() {
    let fixture = Fixture::start(Set::Go).await;
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v1").plugin;
    for _ in 0..3 {
        let error = action.execute(&pod(&[("do", "die")]), &backup()).await.unwrap_err();
        assert!(error.message().ends_with("exited during Execute (exit status: 3)"), "{error}");
        assert_eq!(error.class(), Class::Transient);
        let output = action.execute(&pod(&[]), &backup()).await.unwrap();
        assert!(annotation(&output.item, "seen-by").is_some());
    }
    run.shut_down().await;
}

#[tokio::test]
async fn hanging_call_times_out_and_others_continue() {
    let fixture = Fixture::with_limits(Set::Go, short_limits()).await;
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v1").plugin;
    let hang = pod(&[("do", "hang")]);
    let error = action.execute(&hang, &backup()).await.unwrap_err();
    assert!(error.message().ends_with("no answer to Execute within 2 s"), "{error}");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    action.execute(&pod(&[]), &backup()).await.unwrap();
    run.shut_down().await;
}

#[tokio::test]
async fn failing_hanging_or_dying_init_is_reported() {
    let fixture = Fixture::with_limits(Set::Go, short_limits()).await;
    for (key, value, expected) in [
        ("fail", "no such bucket", "no such bucket"),
        ("hang", "true", "no answer to Init within 2 s"),
        ("die", "true", "exited during Init (exit status: 3)"),
    ] {
        let config = fixture.config(&[(key, value)]);
        let store = fixture.host.object_store("fixture.bowline.io/os", config.clone()).await;
        let store = store.unwrap().unwrap();
        let error = store.object_exists("b", "k").await.unwrap_err();
        assert!(error.message().ends_with(expected), "{error}");
        let snapshotter = fixture.host.volume_snapshotter("fixture.bowline.io/vs-v2", config).await;
        let volume = bowline_plugin::VolumeId::new("v").unwrap();
        let error = snapshotter.unwrap().unwrap().get_volume_info(&volume, "").await.unwrap_err();
        assert!(error.message().ends_with(expected), "{error}");
    }
    // The plugin itself is fine.
    let store = fixture.host.object_store("fixture.bowline.io/os", fixture.config(&[])).await;
    assert!(!store.unwrap().unwrap().object_exists("b", "k").await.unwrap());
}

#[tokio::test]
async fn panic_with_a_long_stack_arrives_complete() {
    let fixture = Fixture::start(Set::Go).await;
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v2").plugin;
    let item = pod(&[("do", "panic=40960")]);
    let error = action.execute(&item, &backup()).await.unwrap_err();
    assert_eq!(error.code(), Code::Aborted);
    assert!(error.message().starts_with("plugin panicked: fixture panic xxx"));
    assert!(error.message().len() > 40960, "{} bytes", error.message().len());
    action.execute(&pod(&[]), &backup()).await.unwrap();
    run.shut_down().await;
}

#[tokio::test]
async fn large_plugin_output_does_not_block_it() {
    let fixture = Fixture::with_limits(Set::Go, short_limits()).await;
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v1").plugin;
    for _ in 0..3 {
        action.execute(&pod(&[("do", "print=1000000")]), &backup()).await.unwrap();
    }
    run.shut_down().await;
}

#[tokio::test]
async fn snapshot_call_that_hangs_or_kills_its_plugin_is_reported() {
    let fixture = Fixture::with_limits(Set::Go, short_limits()).await;
    for (volume, expected) in [
        ("hang", "no answer to CreateSnapshot within 2 s"),
        ("die", "exited during CreateSnapshot (exit status: 3)"),
        ("error", "volume error cannot be snapshotted"),
    ] {
        let config = fixture.config(&[]);
        let plugin = fixture.host.volume_snapshotter("fixture.bowline.io/vs-v1", config).await;
        let plugin = plugin.unwrap().unwrap();
        let id = bowline_plugin::VolumeId::new(volume).unwrap();
        let error = plugin.create_snapshot(&id, "", &BTreeMap::new()).await.unwrap_err();
        assert!(error.message().ends_with(expected), "{error}");
        write(&fixture.root().join("volumes/fine/f"), "x");
        let good_volume = bowline_plugin::VolumeId::new("fine").unwrap();
        plugin.create_snapshot(&good_volume, "", &BTreeMap::new()).await.unwrap();
    }
}

#[tokio::test]
async fn silent_stream_times_out() {
    let limits = Limits { stream_silence: Duration::from_millis(300), ..short_limits() };
    let fixture = Fixture::with_limits(Set::Go, limits).await;
    let store = fixture.host.object_store("fixture.bowline.io/os", fixture.config(&[])).await;
    let store = store.unwrap().unwrap();
    let body = futures::stream::unfold(0, |n| async move {
        if n > 3 {
            std::future::pending::<()>().await;
        }
        Some((Ok(Bytes::from("x")), n + 1))
    });
    let error = store.put_object("b", "k", Box::pin(body)).await.unwrap_err();
    assert_eq!(error.message(), "no data to upload for object k for 0.3 s");
    assert!(!store.object_exists("b", "k").await.unwrap());
}
