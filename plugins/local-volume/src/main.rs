//! The plugin as a binary that Bowline and Velero run.

use std::process::ExitCode;

use bowline_plugin_local_volume::{NAME, Snapshotter};
use bowline_plugin_sdk::Plugin;

fn main() -> ExitCode {
    Plugin::new().volume_snapshotter(NAME, Snapshotter::default()).serve()
}
