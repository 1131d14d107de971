//! This crate and kopia's own command on the same repositories.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod kopia;
mod read;
mod tree;
mod write;
