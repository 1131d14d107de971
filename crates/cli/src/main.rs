//! The `bowline` binary.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// Returns the memory of a large backup to the system, where other allocators keep it: see `.cargo/config.toml` for the
/// delay, and docs/decisions/019-allocator.md for the effect.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    bowline::main()
}
