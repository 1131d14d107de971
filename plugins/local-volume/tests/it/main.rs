//! The plugin on real folders, with a real repository. Owners, mounts and devices need root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod filesystems;
mod full;
mod hostile;
mod listing;
mod process;
mod repository;
mod s3;
mod sample;
mod stages;
mod test_env;
mod upload;
mod velero;
