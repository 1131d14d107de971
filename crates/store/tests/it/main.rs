//! The conformance suite over each backend, and tests with real servers, kills and files of Velero.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod conformance;
mod fake_server;
mod filesystem;
mod golden;
mod killed;
mod large;
mod memory;
mod odd_keys;
mod plugin;
mod s3;
mod s3_checksum;
mod store;
mod tls;
