//! The fixture plugins, in Go and in Rust, in a plugin folder of their own.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_api::{Backup, Restore};
use bowline_plugin::{Encoded, Item, Name};
use bowline_plugin_host::{Host, Limits, Named, Options};
use bowline_testbed::fixture;
use bowline_testbed::program::{self, Program};
use serde_json::{Value, json};

/// Implementation of the fixture plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// Built with Velero's framework; version 2 of the snapshotter stands on go-plugin alone.
    Go,
    /// Built with our SDK, all in one binary.
    Rust,
}

impl Set {
    pub(crate) async fn binaries(self) -> Vec<(&'static str, PathBuf)> {
        match self {
            Self::Go => {
                let [all, snapshotter] =
                    program::locate([Program::FixturePlugins, Program::SnapshotterV2])
                        .await
                        .unwrap();
                vec![("fixture", all), ("snapshotter", snapshotter)]
            }
            Self::Rust => vec![("fixture", fixture::rust_plugins().await.unwrap())],
        }
    }
}

/// A plugin folder with a set in it, a folder for its state, and a host.
pub(crate) struct Fixture {
    pub(crate) host: Host,
    folder: tempfile::TempDir,
}

impl Fixture {
    pub(crate) async fn start(set: Set) -> Self {
        Self::with_limits(set, Limits::default()).await
    }

    pub(crate) async fn with_limits(set: Set, limits: Limits) -> Self {
        Self::with(set, |options| options.limits = limits).await
    }

    pub(crate) async fn with(set: Set, change: impl FnOnce(&mut Options)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let plugin_dir = folder.path().join("plugins");
        std::fs::create_dir(&plugin_dir).unwrap();
        for (name, binary) in set.binaries().await {
            symlink(binary, plugin_dir.join(name)).unwrap();
        }
        let state = folder.path().join("state");
        std::fs::create_dir(&state).unwrap();
        std::fs::create_dir(folder.path().join("root")).unwrap();
        let mut options = Options {
            plugin_dir,
            // A plugin that is killed before its handshake leaves its socket where it was.
            environment: vec![
                ("FIXTURE_STATE_DIR".into(), state.into()),
                ("TMPDIR".into(), folder.path().into()),
            ],
            ..Options::default()
        };
        change(&mut options);
        Self { host: Host::discover(options).await, folder }
    }

    pub(crate) fn state(&self, file: &str) -> PathBuf {
        self.folder.path().join("state").join(file)
    }

    pub(crate) fn plugin_dir(&self) -> PathBuf {
        self.folder.path().join("plugins")
    }

    /// The folder that stores and snapshotters work in.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub(crate) fn config(&self, more: &[(&str, &str)]) -> bowline_plugin::Config {
        let root = self.root().display().to_string();
        let to_owned_pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        more.iter().copied().chain([("root", root.as_str())]).map(to_owned_pair).collect()
    }
}

pub(crate) fn name(short_name: &str) -> Name {
    format!("fixture.bowline.io/{short_name}").parse().unwrap()
}

/// The plugin with this name among those of a run.
pub(crate) fn pick<T: ?Sized>(plugins: Vec<Named<T>>, short_name: &str) -> Named<T> {
    let name = name(short_name);
    plugins.into_iter().find(|plugin| plugin.name == name).expect("it is listed")
}

/// A pod with annotations in the fixture's domain.
pub(crate) fn pod(annotations: &[(&str, &str)]) -> Item {
    let annotations: serde_json::Map<String, Value> = annotations
        .iter()
        .map(|(key, value)| (format!("fixture.bowline.io/{key}"), Value::from(*value)))
        .collect();
    let metadata = json!({"name": "p", "namespace": "app-1", "annotations": annotations});
    Item::from_object(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})).unwrap()
}

/// An annotation of an item in the fixture's domain.
pub(crate) fn annotation(item: &Item, key: &str) -> Option<String> {
    let object: Value = item.parse().unwrap();
    let pointer = format!("/metadata/annotations/fixture.bowline.io~1{key}");
    object.pointer(&pointer).and_then(Value::as_str).map(str::to_owned)
}

pub(crate) fn backup() -> Encoded<Backup> {
    Encoded::new(serde_json::from_value(json!({"metadata": {"name": "b"}})).unwrap())
}

pub(crate) fn restore(annotations: &Value) -> Encoded<Restore> {
    let metadata = json!({"name": "r", "annotations": annotations});
    Encoded::new(serde_json::from_value(json!({"metadata": metadata})).unwrap())
}

/// Limits that a test can wait for.
pub(crate) fn short_limits() -> Limits {
    let second = Duration::from_secs(1);
    Limits {
        relist: Duration::ZERO,
        metadata: 2 * second,
        applies_to: 2 * second,
        execute: 2 * second,
        volume: 2 * second,
        ..Limits::default()
    }
}

pub(crate) fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}
