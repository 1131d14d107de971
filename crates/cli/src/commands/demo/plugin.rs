//! The plugin that takes snapshots of the application's volume.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bowline_testbed::fixture;

use crate::output::Step;

/// The binary, which comes beside ours.
const BINARY: &str = "bowline-plugin-local-volume";

/// Where the plugin is to come from.
#[derive(Debug, PartialEq, Eq)]
enum Origin {
    Ready(PathBuf),
    Sources,
    Nowhere,
}

/// Finds the plugin, or builds it. May take minutes the first time.
pub(super) async fn locate() -> anyhow::Result<PathBuf> {
    let ours = std::env::current_exe().context("cannot find out where this program is")?;
    let folder = ours.parent().unwrap_or(Path::new("/"));
    let is_run_by_cargo = std::env::var_os("CARGO").is_some();
    let how_to = || {
        format!(
            "the demo needs the plugin {BINARY}: put it into {}, beside this program; \
             `cargo build --release --package {BINARY}` in Bowline's sources makes it",
            folder.display()
        )
    };
    match origin(&folder.join(BINARY), is_run_by_cargo, fixture::has_sources()) {
        Origin::Ready(path) => Ok(path),
        Origin::Sources => {
            let step = Step::start("building the plugin for local volumes");
            let path = fixture::local_volume().await.with_context(how_to)?;
            step.done();
            Ok(path)
        }
        Origin::Nowhere => Err(anyhow::anyhow!(how_to())),
    }
}

/// A binary beside ours is the one that belongs to us, unless we were just built by Cargo, who builds
/// only what it is told to: then it may be an old one.
fn origin(beside: &Path, is_run_by_cargo: bool, has_sources: bool) -> Origin {
    match (is_run_by_cargo, has_sources) {
        (true, true) => Origin::Sources,
        _ if beside.is_file() => Origin::Ready(beside.to_owned()),
        (_, true) => Origin::Sources,
        (_, false) => Origin::Nowhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_beside_us_is_ours_unless_cargo_may_have_left_an_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let beside = folder.path().join(BINARY);
        for is_run_by_cargo in [true, false] {
            assert_eq!(origin(&beside, is_run_by_cargo, true), Origin::Sources);
            assert_eq!(origin(&beside, is_run_by_cargo, false), Origin::Nowhere);
        }
        std::fs::write(&beside, "").unwrap();
        let ready = || Origin::Ready(beside.clone());
        assert_eq!(origin(&beside, true, true), Origin::Sources);
        assert_eq!(origin(&beside, true, false), ready());
        assert_eq!(origin(&beside, false, true), ready());
        assert_eq!(origin(&beside, false, false), ready());
    }
}
