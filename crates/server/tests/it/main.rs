//! The server against a real API server and real buckets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod access;
mod backup;
mod bed;
mod cancel;
mod csi;
mod csi_restore;
mod damaged_journals;
mod deletion;
mod download;
mod events;
mod existing_objects;
mod fault_injection;
mod freeze;
mod gc;
mod handover;
mod http;
mod journal;
mod lease;
mod location;
mod log;
mod metrics;
mod operations;
mod outage;
mod restore;
mod restore_actions;
mod restore_failures;
mod restore_volumes;
mod rich_cluster;
mod runs;
mod schedule;
mod server;
mod support;
mod sync;
mod thaw;
mod thousand_operations;
mod unlisted;
mod velero;
mod volumes;
mod watch;
mod webhook;
