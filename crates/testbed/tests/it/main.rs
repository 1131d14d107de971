//! The test bed, and the rules of the workspace.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod architecture;
mod control_plane;
mod csi;
mod killed;
mod kwok;
mod language;
mod node;
mod velero;
mod workspace;

use std::time::Duration;

use bowline_testbed::Poll;

/// Polls until there is an answer, for a minute at most.
async fn eventually<P: Poll>(description: &str, poll: impl AsyncFnMut() -> P) -> P::Answer {
    bowline_testbed::eventually(description, Duration::from_mins(1), poll).await
}

/// Runs a command to its end; its standard output, if it succeeded.
async fn run_for_output(command: &mut tokio::process::Command) -> Result<String, String> {
    let output = command.output().await.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(format!("{}: {} {}", output.status, text(&output.stdout), text(&output.stderr)))
}
