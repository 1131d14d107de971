//! The engine on an in-memory cluster.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod backup;
mod backup_failures;
mod backup_items;
mod csi;
mod csi_cleanup;
mod restore_collisions;
mod restore_csi;
mod restore_failures;
mod restore_volumes;
mod resume;
mod snapshots;
mod support;
