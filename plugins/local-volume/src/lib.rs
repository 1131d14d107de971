//! Snapshots of volumes that are folders on this node: PersistentVolumes of type `local` and
//! `hostPath`. The reference for a VolumeSnapshotter of version 2, and of use on clusters with one
//! node.
//!
//! | stage | |
//! |---|---|
//! | `create_snapshot` | the folder is cloned (`tree`), and noted (`state`, `record`) |
//! | `upload_snapshot` | the clone is brought into a repository (`upload`, `repository`) |
//! | `create_volume_from_snapshot` | a new folder is made, of the clone or from the repository |
//! | `delete_snapshot` | the clone is removed, the repository forgets |
//!
//! # What it relies on
//! - Paths come from PersistentVolumes, and those from backups of others. A path becomes a
//!   `VolumePath`, and is opened only below the roots of the configuration (`roots`).
//! - The files in a volume belong to its pods, which may change them while they are read. Nothing in
//!   a volume is opened by a path that a symbolic link could bend (`tree::beneath`).
//! - All that must be known later lies in files: any process can go on where another one was killed.

mod config;
mod credentials;
mod error;
mod id;
mod path;
mod persistent_volume;
mod rate_limiter;
mod record;
mod repository;
mod roots;
mod snapshotter;
mod state;
mod stop_signal;
mod tree;
mod upload;
mod volume;

pub use snapshotter::Snapshotter;

/// The name that VolumeSnapshotLocations give as their provider.
pub const NAME: &str = "bowline.io/local-volume";
