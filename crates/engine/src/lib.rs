//! Backup and restore: pure decisions, I/O through ports.
//!
//! | module | contents |
//! |---|---|
//! | [`backup`] | from a Backup resource to files in a bucket: the stages in order |
//! | [`delete`] | deletion of a backup: what may be deleted, and in which order |
//! | [`action`] | built-in item actions |
//! | [`archive_index`] | where each object is in an archive: the format, and reading of one object |
//! | [`backoff`] | growing pauses between attempts |
//! | [`cluster`] | port to the API server: `bowline-cluster` |
//! | [`compression`] | where archives are compressed |
//! | [`csi`] | the snapshot API: names, objects, and what is recorded of a snapshot |
//! | [`download`], [`unpack`] | the archive of a backup, read and checked |
//! | [`glob`] | patterns that users write, compiled once |
//! | [`leftover`] | wording of reports about leftovers |
//! | [`snapshotter`] | port to VolumeSnapshotLocations |
//! | [`schedule`] | when a backup of a Schedule is due, and the Backup to create |
//! | [`report`] | warnings and errors of a run, from which counts, phases and results are made |
//!
//! # Invariants
//! - **Failures of items are data.** A stage adds to the [`Report`]; a run returns an error only
//!   when it cannot continue. Counts and phases come from the report alone, never from log lines.
//! - **Three ports**: [`Cluster`], the traits of `bowline-plugin`, and
//!   [`BackupStore`](bowline_store::BackupStore). Time is passed in as an argument.
//! - **Memory use is constant.** Objects stream from the API server through the archive into the
//!   store; only a hash and the name of each are kept.

pub mod action;
pub mod archive_index;
pub mod backoff;
pub mod backup;
pub mod compression;
pub mod csi;
pub mod delete;
pub mod download;
pub mod failpoint;
mod filter_lists;
pub mod glob;
mod hook;
mod item_hash;
pub mod journal;
mod json;
pub mod leftover;
mod lookup;
pub mod operation;
pub mod phase;
mod quantity;
pub mod report;
pub mod restore;
pub mod schedule;
mod selection;
mod shared_names;
pub mod snapshotter;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod unpack;

pub use bowline_cluster as cluster;
pub use bowline_cluster::{
    Cluster, GroupResource, Object, Resource, Resources, item, resource, selector,
};
pub use report::Report;
