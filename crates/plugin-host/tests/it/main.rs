//! The host, with real plugin processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod aws;
mod conformance;
mod environment;
mod fixture;
mod hostile;
mod misbehaviour;
mod supervision;
mod velero;
