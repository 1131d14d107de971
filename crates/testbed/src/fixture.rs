//! The fixture plugins in Rust, which are part of this workspace.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use crate::Error;

/// The fixture plugins that are built with our SDK, from the sources as they are. Built as we are
/// ourselves: a benchmark wants the real thing.
///
/// Cargo makes sure that parallel tests build once, and that nothing is built that is up to date.
pub async fn rust_plugins() -> Result<PathBuf, Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(&cargo)
        .args(["build", "--package=bowline-plugin-fixture", "--message-format=json"])
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
