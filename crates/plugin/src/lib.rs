//! What a plugin is: the traits that it implements and the engine calls, with their values.
//!
//! There is one trait per kind of plugin, shaped as its newest version. Built-in actions, plugins
//! written in Rust and plugins written in Go with Velero's framework all come as the same trait
//! objects, so that the engine cannot tell them apart. Older versions are adapted where plugins are
//! started, not here.
//!
//! | trait | is asked to |
//! |---|---|
//! | [`BackupItemAction`] | look at, change or accompany an item while it is backed up |
//! | [`RestoreItemAction`] | the same while it is restored |
//! | [`DeleteItemAction`] | clean up when the backup of an item is deleted |
//! | [`ItemBlockAction`] | say which items must be backed up together |
//! | [`VolumeSnapshotter`] | snapshot volumes, upload snapshots, make volumes from them |
//! | [`ObjectStore`] | keep and return objects in a bucket |
//!
//! # Rules for all of them
//! - Calls for different items come at the same time.
//! - A call that is no longer waited for is dropped; what it started must be safe to start again.
//! - Work that takes long is an *operation*: `execute` or `create_snapshot` starts it and returns
//!   its id, `progress` tells how it goes, also from another process after a restart, and `cancel`
//!   asks it to stop.
//! - What goes wrong is an [`Error`]; its [`Class`] decides whether it is tried again.

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

/// What a call of a plugin returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
