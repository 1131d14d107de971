//! Layout and encoding of the files in a bucket, and the buckets themselves.
//!
//! Files and keys are Velero's: Bowline reads Velero's buckets and Velero reads Bowline's. From the
//! outside in:
//!
//! | module | content |
//! |---|---|
//! | [`store`] | [`BackupStore`]: the operations of the engine on a bucket, in terms of backups and restores |
//! | [`backend`] | where objects are stored: a folder, S3, or a plugin; [`backend::open`] chooses |
//! | [`layout`] | the key of every file |
//! | [`sabotage`] | mends that a simulation undoes |
//! | [`blocking`] | work off the threads of the async runtime |
//! | [`mod@file`] | the content of the JSON files |
//! | [`encode`], [`decode`] | writing bytes as Go writes them, and reading untrusted bytes within limits |
//! | [`download`] | signed links to the objects in a folder |
//!
//! # Guarantees
//! - **No partial objects.** An object is stored completely or not at all; a broken stream, a
//!   dropped call or a kill leaves the old object.
//! - **One commit.** A backup exists when its `velero-backup.json` does. That file is written last,
//!   and created only if absent where the backend supports it; see [`store::commit`].
//! - **Buckets are untrusted.** Keys that a backend lists are checked, names are valid by
//!   construction, reads are bounded, and no location that a user configures can make the server
//!   read files or contact addresses that it should not.

pub mod backend;
pub mod blocking;
pub mod decode;
pub mod download;
pub mod encode;
pub mod file;
pub mod layout;
pub mod name;
pub mod sabotage;
pub mod store;

pub use backend::{Backend, Creation, Guarantee, open};
pub use layout::{BackupFile, Key, Layout, Prefix, RestoreFile};
pub use name::{BackupName, InvalidName, RestoreName};
pub use store::{BackupStore, Deadlines, Error};
