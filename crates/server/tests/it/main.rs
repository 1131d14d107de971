//! The server against a real API server and real buckets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod backup;
mod bed;
mod download;
mod fault;
mod http;
mod location;
mod log;
mod restore;
mod rich;
mod runs;
mod server;
mod sync;
mod velero;
mod watch;
