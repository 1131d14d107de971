//! What lies where in the bucket and how it is encoded, and the buckets themselves.
//!
//! The files and their keys are Velero's, so that its buckets are ours and ours are its. From the
//! outside in:
//!
//! | module | what it is |
//! |---|---|
//! | [`store`] | [`BackupStore`]: what the engine asks of a bucket, in the words of backups and restores |
//! | [`backend`] | where objects are kept: a folder, S3, or a plugin; [`backend::open`] chooses |
//! | [`layout`] | the key of every file |
//! | [`mod@file`] | what is in the JSON files |
//! | [`encode`], [`decode`] | how that becomes bytes as Go writes them, and how bytes from outside are read: with limits |
//! | [`download`] | signed links to what a folder holds |
//! | [`pipe`] | from a thread that writes to a stream that is uploaded |
//!
//! # What holds
//! - **Nothing half.** An object is there whole or not at all; a broken stream, a dropped call or a
//!   kill leaves the old object.
//! - **One commit.** A backup exists when its `velero-backup.json` does, and that one is written
//!   last, created only if absent where the backend can; see [`store::commit`].
//! - **Buckets are outside.** Keys that a backend lists are checked, names are valid by
//!   construction, what is read is bounded, and no location of a user can make the server read
//!   files or ask addresses that it should not.

pub mod backend;
pub mod decode;
pub mod download;
pub mod encode;
pub mod file;
pub mod layout;
pub mod name;
pub mod pipe;
pub mod store;

pub use backend::{Backend, Creation, Guarantee, open};
pub use layout::{BackupFile, Key, Layout, Prefix, RestoreFile};
pub use name::{BackupName, InvalidName, RestoreName};
pub use store::{BackupStore, Deadlines, Error};
