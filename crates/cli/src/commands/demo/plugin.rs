//! The plugin that takes snapshots of the application's volume.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use bowline_testbed::fixture;

use crate::output;

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
    let ours = std::env::current_exe().context("cannot find the path of this program")?;
    let folder = ours.parent().unwrap_or(Path::new("/"));
    let is_run_by_cargo = std::env::var_os("CARGO").is_some();
    let how_to = || {
        format!(
            "the demo needs the plugin {BINARY}: put it into {}, next to this program; build it \
             with `cargo build --release --package {BINARY}` in Bowline's sources",
            folder.display()
        )
    };
    let sources = fixture::sources().filter(|sources| is_trusted(sources, &ours, is_run_by_cargo));
    match (origin(&folder.join(BINARY), is_run_by_cargo, sources.is_some()), sources) {
        (Origin::Ready(path), _) => Ok(path),
        (Origin::Sources, Some(sources)) => {
            let started = Instant::now();
            output::say(format_args!(
                "building the plugin for local volumes with `cargo build` in {}; this takes minutes the \
                 first time …",
                sources.display()
            ));
            // Cargo says by itself how far it is, and what it waits for.
            let path = fixture::local_volume_in_sight().await.with_context(how_to)?;
            let took = started.elapsed().as_secs_f64();
            output::say(format_args!("building the plugin for local volumes: done in {took:.1} s"));
            Ok(path)
        }
        (Origin::Sources | Origin::Nowhere, _) => Err(anyhow::anyhow!(how_to())),
    }
}

/// Whether what lies where our sources were may be run: Cargo runs it anyway, or our own program lies
/// in it. Elsewhere that path means nothing, and anybody may have made it.
fn is_trusted(sources: &Path, ours: &Path, is_run_by_cargo: bool) -> bool {
    is_run_by_cargo || ours.starts_with(sources)
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
    fn nothing_is_built_where_others_may_have_put_something() {
        let sources = Path::new("/home/somebody/bowline");
        let built = sources.join("target/release/bowline");
        for (ours, is_run_by_cargo, expected) in [
            (built.as_path(), false, true),
            (Path::new("/usr/local/bin/bowline"), false, false),
            (Path::new("/home/somebody/bowline-elsewhere/bowline"), false, false),
            (Path::new("/target/elsewhere/bowline"), true, true),
        ] {
            assert_eq!(is_trusted(sources, ours, is_run_by_cargo), expected, "{}", ours.display());
        }
    }

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
