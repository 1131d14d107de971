//! The template, run as a real process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod process;
mod template;
