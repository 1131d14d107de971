//! Snapshots of volumes that are folders on this node: PersistentVolumes of type `local` and
//! `hostPath`. The reference implementation of a version 2 VolumeSnapshotter, and of practical use
//! on clusters with one node.
//!
//! | stage | |
//! |---|---|
//! | `create_snapshot` | clones the folder (`tree`), and records the snapshot (`state`, `record`) |
//! | `upload_snapshot` | uploads the clone to a repository (`upload`, `repository`) |
//! | `create_volume_from_snapshot` | creates a folder, from the clone or from the repository |
//! | `delete_snapshot` | removes the clone, and the snapshot in the repository |
//!
//! # Trust and state
//! - Paths come from PersistentVolumes, and those may come from other people's backups. A path
//!   becomes a `VolumePath`, and is opened only below the roots of the configuration (`roots`).
//! - The files in a volume belong to its pods, which may change them while they are read. Nothing
//!   in a volume is opened by a path that a symbolic link could redirect (`tree::beneath`).
//! - All state that is needed later is in files: any process can resume where another one was
//!   killed.

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

/// The provider name in VolumeSnapshotLocations.
pub const NAME: &str = "bowline.io/local-volume";
