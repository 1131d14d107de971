//! The `bowline` binary, run as a user runs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod as_velero;
mod backup;
mod backup_location;
mod bad_input;
mod bowline;
mod cluster;
mod demo;
mod dry_run;
mod fake_server;
mod help;
mod install;
mod killed;
mod plugin;
mod restore;
mod server;
mod snapshot_location;
mod volumes;
