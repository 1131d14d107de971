//! The plugin interface: the traits that a plugin implements and the engine calls, with their
//! values.
//!
//! There is one trait per kind of plugin, in the shape of its newest version. Built-in actions,
//! plugins written in Rust and plugins written in Go with Velero's framework are the same trait
//! objects, so that the engine cannot distinguish them. Older versions are adapted by the plugin
//! host, not here.
//!
//! | trait | purpose |
//! |---|---|
//! | [`BackupItemAction`] | inspect, change or accompany an item while it is backed up |
//! | [`RestoreItemAction`] | the same while it is restored |
//! | [`DeleteItemAction`] | clean up when the backup of an item is deleted |
//! | [`ItemBlockAction`] | name the items that must be backed up together |
//! | [`VolumeSnapshotter`] | snapshot volumes, upload snapshots, create volumes from them |
//! | [`ObjectStore`] | store and return objects in a bucket |
//!
//! # Rules for all traits
//! - Calls for different items are concurrent.
//! - A call whose caller has given up is dropped; it must be safe to start its work again.
//! - Long work is an *operation*: `execute` or `create_snapshot` starts it and returns its id,
//!   `progress` reports on it, also from another process after a restart, and `cancel` asks it to
//!   stop.
//! - Failures are an [`Error`]; its [`Class`] decides whether the call is retried.

mod error;
mod id;
mod identity;
mod item;
mod item_action;
pub mod nesting;
mod object_store;
mod progress;
mod resource;
mod volume;

pub use error::{Class, Code, Error, Origin, error_chain};
pub use identity::{InvalidName, Kind, Name, UnknownKind};
pub use item::{Encoded, InvalidItem, Item};
pub use item_action::{
    BackupItemAction, BackupOutput, DeleteItemAction, ItemBlockAction, OperationId,
    RestoreItemAction, RestoreOutput, Wait,
};
pub use object_store::{ByteStream, ObjectStore};
pub use progress::{Progress, State};
pub use resource::{ResourceIdentifier, ResourceSelector};
pub use volume::{Config, SnapshotId, VolumeId, VolumeInfo, VolumeSnapshotter};

/// Result of a plugin call.
pub type Result<T, E = Error> = std::result::Result<T, E>;
