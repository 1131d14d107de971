//! Backup and restore: decisions pure, I/O through ports.
//!
//! | module | what it is |
//! |---|---|
//! | [`backup`] | from a Backup resource to files in a bucket: the stages in order |
//! | [`delete`] | from a Backup resource to nothing: what may go, and in which order |
//! | [`action`] | the item actions that are built in |
//! | [`cluster`] | the port to the API server, the real one behind it, and a fake |
//! | [`csi`] | names of the snapshot API |
//! | [`resource`], [`item`] | what the API server serves, and one object of it |
//! | [`glob`], [`selector`] | patterns that users write, compiled once |
//! | [`snapshotter`] | the port to VolumeSnapshotLocations |
//! | [`schedule`] | whether a backup of a Schedule is due, and what it is made of |
//! | [`report`] | what went wrong, from which counts, phases and results are made |
//!
//! # What holds
//! - **Failures of items are data.** A stage adds to the [`Report`]; a run returns an error only
//!   when it cannot go on. Counts and phases come from the report alone, never from log lines.
//! - **Three ports**: [`Cluster`], the traits of `bowline-plugin`, and
//!   [`BackupStore`](bowline_store::BackupStore). Time comes in as an argument.
//! - **Memory is flat.** Objects stream from the API server through the archive into the store;
//!   what is kept of each is a hash and its name.

pub mod action;
pub mod backup;
pub mod cluster;
pub mod csi;
pub mod delete;
pub mod failpoint;
pub mod glob;
mod hook;
pub mod item;
pub mod journal;
pub mod operation;
pub mod phase;
pub mod report;
pub mod resource;
pub mod restore;
pub mod schedule;
mod selection;
pub mod selector;
pub mod snapshotter;

pub use cluster::Cluster;
pub use item::Object;
pub use report::Report;
pub use resource::{GroupResource, Resource, Resources};
