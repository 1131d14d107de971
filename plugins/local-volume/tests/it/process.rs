//! The plugin as the process that it is, started and killed as by a server.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin_host::check::{self, Input, Verdict};
use bowline_plugin_host::{Host, Options};
use bowline_plugin_local_volume::NAME;
use bowline_plugin_sdk::{Class, Kind, SnapshotId, State, VolumeInfo, VolumeSnapshotter};
use rustix::process::{Pid, Signal, kill_process};

use crate::listing::{self, assert_same, names};
use crate::place::{Place, id_of, persistent_volume};
use crate::stages::until;
use crate::{sample, upload};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_bowline-plugin-local-volume");

/// A host with our plugin in its folder.
struct Hosted {
    host: Host,
    folder: tempfile::TempDir,
}

impl Hosted {
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

    async fn plugin(&self, place: &Place) -> Arc<dyn VolumeSnapshotter> {
        let plugin = self.host.volume_snapshotter(NAME, place.config.clone()).await;
        plugin.unwrap().expect("it is listed")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Kills the process that answers calls.
    fn kill(&self) {
        let mark = format!("TMPDIR={}", self.folder.path().display());
        let ours = |folder: &Path| {
            let environment = fs::read(folder.join("environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
        };
        let folders = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let folders: Vec<PathBuf> = folders.filter(|folder| ours(folder)).collect();
        assert_eq!(folders.len(), 1, "{folders:?}");
        let pid = folders[0].file_name().unwrap().to_str().unwrap().parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }
}

async fn create(
    plugin: &dyn VolumeSnapshotter,
    place: &Place,
) -> bowline_plugin_sdk::Result<SnapshotId> {
    let tags = [("bowline.io/request-id".to_owned(), "r-1".to_owned())].into();
    plugin.create_snapshot(&id_of(&place.volume()), "", &tags).await
}

async fn restore(plugin: &dyn VolumeSnapshotter, snapshot: &SnapshotId) -> PathBuf {
    let info = VolumeInfo::default();
    plugin.create_volume_from_snapshot(snapshot, &info, "").await.unwrap().as_str().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_all_rules_for_snapshotters() {
    let place = Place::new().await;
    sample::make(&place.volume());
    for announces_own_kinds in [true, false] {
        let mut input = Input::new(format!("test-{announces_own_kinds}")).unwrap();
        input.config = place.config.clone();
        input.volume = Some(id_of(&place.volume()));
        let path = place.volume();
        input.persistent_volume = Some(persistent_volume("local", path.to_str().unwrap()));
        input.timeout = Duration::from_mins(5);
        let options = Options { announces_own_kinds, ..Options::default() };
        let never = std::future::pending();
        let findings = check::run(BINARY.as_ref(), options, input, never, |_| {}).await.unwrap();
        for finding in &findings {
            assert!(matches!(finding.verdict, Verdict::Holds(_)), "{finding:#?}");
            assert_eq!(finding.left, [""; 0]);
        }
        assert!(findings.len() >= 12, "{findings:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_goes_on_after_a_kill() {
    let place = Place::new().await;
    upload::fill(&place.volume());
    let before = listing::of(&place.volume());
    let hosted = Hosted::start(true).await;
    let plugin = hosted.plugin(&place).await;
    let snapshot = create(&*plugin, &place).await.unwrap();
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
    assert_eq!(names(&place.path("repository/snapshots")), [""; 0]);
    // The clone is still there, and known to the next process.
    assert_eq!(plugin.progress(&snapshot).await.unwrap().state, State::Succeeded);
    plugin.upload_snapshot(&snapshot).await.unwrap();
    assert_eq!(names(&place.path("repository/snapshots")).len(), 1);
    assert!(!place.clone_of(&snapshot).exists());
    assert_same(&listing::of(&restore(&*plugin, &snapshot).await), &before);
    hosted.host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_while_a_snapshot_is_made_leaves_no_half_of_it() {
    let place = Place::new().await;
    for number in 0..3000 {
        fs::write(place.volume().join(number.to_string()), "content").unwrap();
    }
    let before = listing::of(&place.volume());
    let hosted = Hosted::start(true).await;
    let plugin = hosted.plugin(&place).await;
    // The process runs, and nothing of the start is in the way.
    plugin.get_volume_info(&id_of(&place.volume()), "").await.unwrap();
    let call = tokio::spawn({
        let plugin = Arc::clone(&plugin);
        let volume = id_of(&place.volume());
        let tags = [("bowline.io/request-id".to_owned(), "r-1".to_owned())].into();
        async move { plugin.create_snapshot(&volume, "", &tags).await }
    });
    until(|| names(&place.state()).iter().any(|name| name.starts_with(".new-"))).await;
    hosted.kill();
    assert!(call.await.unwrap().is_err(), "it was too fast for the test");
    let is_half = |name: &String| name.starts_with(".new-");
    assert!(names(&place.state()).iter().all(is_half), "{:?}", names(&place.state()));

    let snapshot = create(&*plugin, &place).await.unwrap();
    assert_same(&listing::of(&place.clone_of(&snapshot)), &before);
    until(|| names(&place.state()) == [snapshot.as_str()]).await;
    hosted.host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn for_servers_that_know_only_version_1_it_uploads_while_it_creates() {
    let place = Place::new().await;
    fs::write(place.volume().join("file"), "content").unwrap();
    let hosted = Hosted::start(false).await;
    let plugins = hosted.host.registry().plugins();
    let kinds: Vec<Kind> = plugins.iter().map(|plugin| plugin.kind).collect();
    assert_eq!(kinds, [Kind::VolumeSnapshotter]);
    let plugin = hosted.plugin(&place).await;
    let snapshot = create(&*plugin, &place).await.unwrap();
    assert_eq!(names(&place.path("repository/snapshots")).len(), 1);
    assert!(!place.clone_of(&snapshot).exists());
    let made = restore(&*plugin, &snapshot).await;
    assert_eq!(fs::read_to_string(made.join("file")).unwrap(), "content");

    // What cannot be uploaded is no snapshot.
    fs::remove_dir_all(place.path("repository")).unwrap();
    fs::write(place.path("repository"), "in the way").unwrap();
    plugin.delete_snapshot(&snapshot).await.unwrap_err();
    let tags = [].into();
    let error = plugin.create_snapshot(&id_of(&place.volume()), "", &tags).await.unwrap_err();
    assert!(error.message().contains("the folder of the repository"), "{error}");
    hosted.host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_reach_neither_errors_nor_the_log() {
    let place = Place::new().await;
    let mut hosted = Hosted::start(true).await;
    let plugin = hosted.plugin(&place).await;
    fs::write(place.volume().join("file"), "content").unwrap();
    let snapshot = create(&*plugin, &place).await.unwrap();
    plugin.upload_snapshot(&snapshot).await.unwrap();
    let mut log = hosted.log();
    hosted.host.shut_down().await;

    fs::write(place.path("password"), "hunter3-wrong").unwrap();
    hosted = Hosted::start(true).await;
    let plugin = hosted.plugin(&place).await;
    let error = plugin.delete_snapshot(&snapshot).await.unwrap_err();
    assert!(error.message().contains("the password does not open"), "{error}");
    log += &hosted.log();
    hosted.host.shut_down().await;
    assert!(log.contains("made the repository") && log.contains("7 bytes"), "{log}");
    for text in [&log, error.message(), &place.record_of(&snapshot).to_string()] {
        assert!(!text.contains("hunter"), "{text}");
    }
}
