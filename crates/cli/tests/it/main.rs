//! The `bowline` binary, run as a user runs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod access;
mod as_velero;
mod backup;
mod backup_location;
mod bad_input;
mod bowline;
mod client;
mod closed_memory;
mod cluster;
mod completion;
mod debug;
mod demo;
mod docs;
mod dry_run;
mod fake_server;
mod follow;
mod handover;
mod help;
mod install;
mod killed;
mod plugin;
mod plugin_add;
mod recovery;
mod restore;
mod schedule;
mod script;
mod server;
mod server_status;
mod snapshot_location;
mod switch;
mod verbs;
mod volumes;
