//! Plugins in Rust that are part of this workspace.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use crate::Error;

/// Builds the fixture plugins that use the SDK of this workspace.
pub async fn rust_plugins() -> Result<PathBuf, Error> {
    build("bowline-plugin-fixture", Stdio::piped()).await
}

/// Builds the plugin for volumes that are folders of a node.
pub async fn local_volume() -> Result<PathBuf, Error> {
    build("bowline-plugin-local-volume", Stdio::piped()).await
}

/// The same, with Cargo's messages on standard error: that it waits for a lock, for example.
pub async fn local_volume_with_build_output() -> Result<PathBuf, Error> {
    build("bowline-plugin-local-volume", Stdio::inherit()).await
}

/// Folder with the sources of the plugins, if it still exists where it was when this crate was built.
pub fn sources() -> Option<&'static Path> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = crates.ancestors().nth(2)?;
    crates.join("Cargo.toml").is_file().then_some(folder)
}

/// Builds the plugin of a package from the current sources, with the profile of this crate: a benchmark needs optimised
/// plugins.
///
/// Cargo ensures that parallel tests build once, and that nothing up to date is rebuilt.
async fn build(package: &str, stderr: Stdio) -> Result<PathBuf, Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(&cargo)
        .args(["build", "--package", package, "--message-format=json"])
        .args((!cfg!(debug_assertions)).then_some("--release"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .kill_on_drop(true)
        .spawn()
        .map_err(Error::io("run", cargo.as_ref()))?
        .wait_with_output()
        .await
        .map_err(Error::io("run", cargo.as_ref()))?;
    let failed = |reason: &str| Error::Failed { program: "cargo build", reason: reason.to_owned() };
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::Deserializer::from_slice(&output.stdout)
        .into_iter::<Value>()
        .filter_map(|message| Some(PathBuf::from(message.ok()?.get("executable")?.as_str()?)))
        .last()
        .ok_or_else(|| failed("cargo reported no binary"))
}
