//! Plugin that takes snapshots of the application's volume.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use bowline_testbed::fixture;

use crate::output;

/// Binary, which is shipped beside `bowline`.
const BINARY: &str = "bowline-plugin-local-volume";

/// Source of the plugin.
#[derive(Debug, PartialEq, Eq)]
enum PluginOrigin {
    Binary(PathBuf),
    Sources,
    Missing,
}

/// Finds the plugin, or builds it. May take minutes the first time.
pub(super) async fn locate() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let is_run_by_cargo = std::env::var_os("CARGO").is_some();
    let missing_plugin_message = || {
        format!(
            "the demo needs the plugin {BINARY}: put it into {}, next to this program; build it \
             with `cargo build --release --package {BINARY}` in Bowline's sources",
            folder.display()
        )
    };
    let sources =
        fixture::sources().filter(|sources| is_trusted(sources, &program, is_run_by_cargo));
    match (find_origin(&folder.join(BINARY), is_run_by_cargo, sources.is_some()), sources) {
        (PluginOrigin::Binary(path), _) => Ok(path),
        (PluginOrigin::Sources, Some(sources)) => {
            let started = Instant::now();
            output::print_message(format_args!(
                "building the plugin for local volumes with `cargo build` in {}; this takes minutes the \
                 first time …",
                sources.display()
            ));
            // Cargo prints its own progress, and what it waits for.
            let path = fixture::local_volume_with_build_output()
                .await
                .with_context(missing_plugin_message)?;
            let seconds = started.elapsed().as_secs_f64();
            output::print_message(format_args!(
                "building the plugin for local volumes: done in {seconds:.1} s"
            ));
            Ok(path)
        }
        (PluginOrigin::Sources | PluginOrigin::Missing, _) => {
            Err(anyhow::anyhow!(missing_plugin_message()))
        }
    }
}

/// True if the folder where the sources were may be trusted: Cargo runs this program anyway, or the program lies in
/// that folder. Elsewhere the path means nothing, and anyone may have created it.
fn is_trusted(sources: &Path, program: &Path, is_run_by_cargo: bool) -> bool {
    is_run_by_cargo || program.starts_with(sources)
}

/// A binary beside this one belongs to it, unless Cargo has just built this one: Cargo builds only what it is asked to,
/// so the binary may be old.
fn find_origin(adjacent: &Path, is_run_by_cargo: bool, has_sources: bool) -> PluginOrigin {
    match (is_run_by_cargo, has_sources) {
        (true, true) => PluginOrigin::Sources,
        _ if adjacent.is_file() => PluginOrigin::Binary(adjacent.to_owned()),
        (_, true) => PluginOrigin::Sources,
        (_, false) => PluginOrigin::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_sources_are_not_built() {
        let sources = Path::new("/home/somebody/bowline");
        let built = sources.join("target/release/bowline");
        for (program, is_run_by_cargo, expected) in [
            (built.as_path(), false, true),
            (Path::new("/usr/local/bin/bowline"), false, false),
            (Path::new("/home/somebody/bowline-elsewhere/bowline"), false, false),
            (Path::new("/target/elsewhere/bowline"), true, true),
        ] {
            assert_eq!(
                is_trusted(sources, program, is_run_by_cargo),
                expected,
                "{}",
                program.display()
            );
        }
    }

    #[test]
    fn adjacent_plugin_is_used_unless_cargo_may_have_left_a_stale_one() {
        let folder = tempfile::tempdir().unwrap();
        let adjacent = folder.path().join(BINARY);
        for is_run_by_cargo in [true, false] {
            assert_eq!(find_origin(&adjacent, is_run_by_cargo, true), PluginOrigin::Sources);
            assert_eq!(find_origin(&adjacent, is_run_by_cargo, false), PluginOrigin::Missing);
        }
        std::fs::write(&adjacent, "").unwrap();
        let ready = || PluginOrigin::Binary(adjacent.clone());
        assert_eq!(find_origin(&adjacent, true, true), PluginOrigin::Sources);
        assert_eq!(find_origin(&adjacent, true, false), ready());
        assert_eq!(find_origin(&adjacent, false, true), ready());
        assert_eq!(find_origin(&adjacent, false, false), ready());
    }
}
