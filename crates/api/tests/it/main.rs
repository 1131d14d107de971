//! Compares our types and CRDs with Velero's. The files come from `golden/`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

mod crd_parity;
mod golden;
mod round_trip;
mod schema_walk;
mod yaml;
