//! The user's commands: all of the `bowline` binary but its process.
//!
//! A command is one file of `commands`, with a clap struct and a function `run`. Data goes to standard output,
//! messages for people go to standard error.
//!
//! Exit codes are a contract: see `exit::Exit`.

mod active_runs;
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
#[cfg(test)]
mod fake_installation;
mod flags;
mod follow;
mod installation;
mod key_value_page;
mod listing;
mod logs;
mod output;
mod pages;
mod plugin_image;
mod program;
mod rate;
mod redact;
mod relative_time;
mod run;
mod selection;
mod selector;
mod server_deployment;
mod server_status;
mod table;
#[cfg(feature = "testing")]
pub mod testing;
mod tls_trust;
mod velero_flags;
mod volume_progress;
mod wait;

use std::process::ExitCode;

use crate::exit::Exit;

/// Runs the command of this process, and returns its exit code.
pub fn main() -> ExitCode {
    if complete::complete_if_requested() {
        return Exit::Success.into();
    }
    let args = match args::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(exit) => return exit.into(),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::print_error(&format!("cannot start: {error}"));
            return Exit::CannotRun.into();
        }
    };
    let exit = match runtime.block_on(commands::run(args.command)) {
        Ok(exit) => exit,
        Err(error) => {
            output::print_error(&output::error_chain(&error));
            Exit::CannotRun
        }
    };
    // Dropping the runtime would wait for all threads in system calls, and those of a file system that hangs never
    // return.
    runtime.shutdown_timeout(std::time::Duration::from_secs(10));
    exit.into()
}
