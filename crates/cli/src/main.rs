//! The `bowline` binary: the user's commands.
//!
//! A command is one file of [`commands`], with a clap struct and a function `run`. Data goes to
//! standard output, everything said to people to standard error.
//!
//! Exit codes are a contract: see [`exit::Exit`].

mod age;
mod args;
mod cancel;
mod client_config;
mod cluster;
mod commands;
mod complete;
mod confirm;
mod describe;
mod download;
mod exit;
mod flags;
mod follow;
mod installation;
mod listing;
mod logs;
mod moment;
mod open_runs;
mod output;
mod pace;
mod plugin_image;
mod program;
mod redact;
mod run;
mod selection;
mod selector;
mod server_deployment;
mod server_status;
mod sheet;
mod table;
mod transfer;
mod trust;
mod velero_flags;
mod wait;

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

use crate::exit::Exit;

/// Memory that a large backup has used is given back, where others keep it: see `.cargo/config.toml`
/// for how soon, and docs/decisions/019-allocator.md for what that brings.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    if complete::answered() {
        return Exit::Success.into();
    }
    let args = match args::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(exit) => return exit.into(),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::error(&format!("cannot start: {error}"));
            return Exit::CannotRun.into();
        }
    };
    let exit = match runtime.block_on(commands::run(args.command)) {
        Ok(exit) => exit,
        Err(error) => {
            output::error(&output::one_line(&error));
            Exit::CannotRun
        }
    };
    // Dropped, it would wait for all threads in system calls, and those of a file system that hangs never return.
    runtime.shutdown_timeout(std::time::Duration::from_secs(10));
    exit.into()
}
