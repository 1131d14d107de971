//! Client and server over a real socket: the public interface of the crate on both sides.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

mod calls;
mod connection;
mod fake;
mod objects;
mod snapshots;
mod values;
