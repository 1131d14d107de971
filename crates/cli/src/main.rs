//! The `bowline` binary: the user's commands.
//!
//! A command is one file of [`commands`], with a clap struct and a function `run`. Data goes to
//! standard output, everything said to people to standard error.
//!
//! Exit codes are a contract: see [`exit::Exit`].

mod args;
mod cancel;
mod client_config;
mod cluster;
mod commands;
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
mod output;
mod pace;
mod run;
mod selector;
mod sheet;
mod transfer;
mod trust;
mod wait;

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

use crate::exit::Exit;

/// Memory that a large backup has used is given back, where others keep it: see `.cargo/config.toml`
/// for how soon, and docs/decisions/019-allocator.md for what that brings.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
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
    let exit = match runtime.block_on(commands::run(args)) {
        Ok(exit) => exit,
        Err(error) => {
            output::error(&output::one_line(&error));
            Exit::CannotRun
        }
    };
    exit.into()
}
