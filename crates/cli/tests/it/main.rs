//! The `bowline` binary, run as a user runs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod bad_input;
mod bowline;
mod demo;
mod help;
mod install;
mod plugin;
