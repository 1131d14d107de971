//! The plugin as a process, started and killed as by a server.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin_check::{self as check, Input, RuleVerdict};
use bowline_plugin_host::{Host, Options};
use bowline_plugin_local_volume::NAME;
use bowline_plugin_sdk::{Class, Kind, SnapshotId, State, VolumeInfo, VolumeSnapshotter};
use rustix::process::{Pid, Signal, kill_process};

use crate::listing::{self, assert_same, names};
use crate::stages::wait_until;
use crate::test_env::{TestEnv, id_of, persistent_volume};
use crate::{sample, upload};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_bowline-plugin-local-volume");

/// A host with our plugin in its folder.
struct HostedPlugin {
    host: Host,
    folder: tempfile::TempDir,
}

impl HostedPlugin {
    async fn start(announces_own_kinds: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let plugin_dir = folder.path().join("plugins");
        fs::create_dir(&plugin_dir).unwrap();
        // All that it logs goes to a file.
        let script = format!(
            "#!/bin/sh\nexec {BINARY} --log-level=trace 2>>{}\n",
            folder.path().join("log").display()
        );
        let path = plugin_dir.join("local-volume");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        // The name of the folder is also how we find our process.
        let environment = vec![("TMPDIR".into(), folder.path().into())];
        let options =
            Options { plugin_dir, environment, announces_own_kinds, ..Options::default() };
        let host = Host::discover(options).await;
        assert_eq!(host.registry().problems(), []);
        Self { host, folder }
    }

    async fn plugin(&self, env: &TestEnv) -> Arc<dyn VolumeSnapshotter> {
        let plugin = self.host.volume_snapshotter(NAME, env.config.clone()).await;
        plugin.unwrap().expect("it is listed")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Kills the process that answers calls.
    fn kill(&self) {
        let mark = format!("TMPDIR={}", self.folder.path().display());
        let is_own_process = |folder: &Path| {
            let environment = fs::read(folder.join("environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
        };
        let folders = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let folders: Vec<PathBuf> = folders.filter(|folder| is_own_process(folder)).collect();
        assert_eq!(folders.len(), 1, "{folders:?}");
        let pid = folders[0].file_name().unwrap().to_str().unwrap().parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }
}

async fn create(
    plugin: &dyn VolumeSnapshotter,
    env: &TestEnv,
) -> bowline_plugin_sdk::Result<SnapshotId> {
    let tags = [("bowline.io/request-id".to_owned(), "r-1".to_owned())].into();
    plugin.create_snapshot(&id_of(&env.volume()), "", &tags).await
}

async fn restore(plugin: &dyn VolumeSnapshotter, snapshot: &SnapshotId) -> PathBuf {
    let info = VolumeInfo::default();
    plugin.create_volume_from_snapshot(snapshot, &info, "").await.unwrap().as_str().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_passes_the_snapshotter_check() {
    let env = TestEnv::new().await;
    sample::fill_volume(&env.volume());
    for announces_own_kinds in [true, false] {
        let mut input = Input::new(format!("test-{announces_own_kinds}")).unwrap();
        input.config = env.config.clone();
        input.volume = Some(id_of(&env.volume()));
        let path = env.volume();
        input.persistent_volume = Some(persistent_volume("local", path.to_str().unwrap()));
        input.timeout = Duration::from_mins(5);
        let options = Options { announces_own_kinds, ..Options::default() };
        let never = std::future::pending();
        let findings = check::run(BINARY.as_ref(), options, input, never, |_| {}).await.unwrap();
        for finding in &findings {
            assert!(matches!(finding.verdict, RuleVerdict::Holds(_)), "{finding:#?}");
            assert_eq!(finding.leftovers, [""; 0]);
        }
        assert!(findings.len() >= 12, "{findings:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_resumes_after_a_kill() {
    let env = TestEnv::new().await;
    upload::fill_volume(&env.volume());
    let before = listing::of(&env.volume());
    let hosted = HostedPlugin::start(true).await;
    let plugin = hosted.plugin(&env).await;
    let snapshot = create(&*plugin, &env).await.unwrap();
    let call = tokio::spawn({
        let (plugin, snapshot) = (Arc::clone(&plugin), snapshot.clone());
        async move { plugin.upload_snapshot(&snapshot).await }
    });
    loop {
        let progress = plugin.progress(&snapshot).await.unwrap();
        if progress.done > 0 && progress.state == State::Running {
            break;
        }
        assert!(!call.is_finished(), "it was too fast for the test");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    hosted.kill();
    assert_eq!(call.await.unwrap().unwrap_err().class(), Class::Transient);
    assert_eq!(names(&env.path("repository/snapshots")), [""; 0]);
    // The clone is still there, and known to the next process.
    assert_eq!(plugin.progress(&snapshot).await.unwrap().state, State::Succeeded);
    plugin.upload_snapshot(&snapshot).await.unwrap();
    assert_eq!(names(&env.path("repository/snapshots")).len(), 1);
    assert!(!env.clone_of(&snapshot).exists());
    assert_same(&listing::of(&restore(&*plugin, &snapshot).await), &before);
    hosted.host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_during_a_snapshot_leaves_no_partial_snapshot() {
    let env = TestEnv::new().await;
    for number in 0..3000 {
        fs::write(env.volume().join(number.to_string()), "content").unwrap();
    }
    let before = listing::of(&env.volume());
    let hosted = HostedPlugin::start(true).await;
    let plugin = hosted.plugin(&env).await;
    // The process runs, and nothing of the start is in the way.
    plugin.get_volume_info(&id_of(&env.volume()), "").await.unwrap();
    let call = tokio::spawn({
        let plugin = Arc::clone(&plugin);
        let volume = id_of(&env.volume());
        let tags = [("bowline.io/request-id".to_owned(), "r-1".to_owned())].into();
        async move { plugin.create_snapshot(&volume, "", &tags).await }
    });
    wait_until("a snapshot is being created", || {
        names(&env.state()).iter().any(|name| name.starts_with(".new-"))
    })
    .await;
    hosted.kill();
    assert!(call.await.unwrap().is_err(), "it was too fast for the test");
    let is_half = |name: &String| name.starts_with(".new-");
    assert!(names(&env.state()).iter().all(is_half), "{:?}", names(&env.state()));

    let snapshot = create(&*plugin, &env).await.unwrap();
    assert_same(&listing::of(&env.clone_of(&snapshot)), &before);
    wait_until("only the snapshot remains", || names(&env.state()) == [snapshot.as_str()]).await;
    hosted.host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn for_version_1_servers_the_upload_happens_during_creation() {
    let env = TestEnv::new().await;
    fs::write(env.volume().join("file"), "content").unwrap();
    let hosted = HostedPlugin::start(false).await;
    let plugins = hosted.host.registry().plugins();
    let kinds: Vec<Kind> = plugins.iter().map(|plugin| plugin.kind).collect();
    assert_eq!(kinds, [Kind::VolumeSnapshotter]);
    let plugin = hosted.plugin(&env).await;
    let snapshot = create(&*plugin, &env).await.unwrap();
    assert_eq!(names(&env.path("repository/snapshots")).len(), 1);
    assert!(!env.clone_of(&snapshot).exists());
    let restored = restore(&*plugin, &snapshot).await;
    assert_eq!(fs::read_to_string(restored.join("file")).unwrap(), "content");

    // What cannot be uploaded is no snapshot.
    fs::remove_dir_all(env.path("repository")).unwrap();
    fs::write(env.path("repository"), "in the way").unwrap();
    plugin.delete_snapshot(&snapshot).await.unwrap_err();
    let tags = [].into();
    let error = plugin.create_snapshot(&id_of(&env.volume()), "", &tags).await.unwrap_err();
    assert!(error.message().contains("the directory of the repository"), "{error}");
    hosted.host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_reach_neither_errors_nor_the_log() {
    let env = TestEnv::new().await;
    let mut hosted = HostedPlugin::start(true).await;
    let plugin = hosted.plugin(&env).await;
    fs::write(env.volume().join("file"), "content").unwrap();
    let snapshot = create(&*plugin, &env).await.unwrap();
    plugin.upload_snapshot(&snapshot).await.unwrap();
    let mut log = hosted.log();
    hosted.host.shut_down().await;

    fs::write(env.path("password"), "hunter3-wrong").unwrap();
    hosted = HostedPlugin::start(true).await;
    let plugin = hosted.plugin(&env).await;
    let error = plugin.delete_snapshot(&snapshot).await.unwrap_err();
    assert!(error.message().contains("wrong password for repository"), "{error}");
    log += &hosted.log();
    hosted.host.shut_down().await;
    assert!(log.contains("created the repository") && log.contains("7 bytes"), "{log}");
    for text in [&log, error.message(), &env.record_of(&snapshot).to_string()] {
        assert!(!text.contains("hunter"), "{text}");
    }
}
