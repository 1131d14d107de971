//! The `bowline` binary, run as users run it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod access;
mod backup;
mod backup_location;
mod bad_input;
mod bowline;
mod client;
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
mod killed_restore;
mod plugin;
mod plugin_add;
mod process_memory;
mod recovery;
mod restore;
mod schedule;
mod script;
mod server;
mod server_status;
mod snapshot_location;
mod switch;
mod velero_parity;
mod verbs;
mod volumes;
