//! Plugins in Rust that are part of this workspace.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use crate::Error;

/// The fixture plugins that are built with our SDK.
pub async fn rust_plugins() -> Result<PathBuf, Error> {
    build("bowline-plugin-fixture").await
}

/// The plugin for volumes that are folders of a node.
pub async fn local_volume() -> Result<PathBuf, Error> {
    build("bowline-plugin-local-volume").await
}

/// Whether the sources that plugins are built from are still where they were when this was built.
pub fn has_sources() -> bool {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").is_file()
}

/// Builds the plugin of a package from the sources as they are. Built as we are ourselves: a benchmark
/// wants the real thing.
///
/// Cargo makes sure that parallel tests build once, and that nothing is built that is up to date.
async fn build(package: &str) -> Result<PathBuf, Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(&cargo)
        .args(["build", "--package", package, "--message-format=json"])
        .args((!cfg!(debug_assertions)).then_some("--release"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
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
        .ok_or_else(|| failed("it named no binary"))
}
