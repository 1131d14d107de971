//! Kopia's repository format, in which Velero keeps the data of volumes.
//!
//! A repository is a set of blobs ([`blobs::Blobs`]). Upwards from there:
//!
//! | layer | module | what it adds |
//! |---|---|---|
//! | keys | [`mod@format`], [`crypto`] | the password opens `kopia.repository`, which contains the keys of everything else |
//! | contents | [`index`], [`epoch`], [`pack`], [`compression`] | pieces of data named by their hash, many in a pack blob; indexes say where |
//! | objects | [`object`], [`splitter`] | a file of any length: one content, or a list of them |
//! | manifests | [`manifest`] | small documents with labels: snapshots, policies |
//! | snapshots | [`snapshot`], [`directory`] | a tree of directories and files |
//!
//! Everything that decodes is pure over bytes: [`repository::Repository`] reads, [`writer::Writer`] writes. The format is kopia's, as of the
//! fork that Velero 1.18 pins; docs/decisions/060-kopia-repositories.md says what is read, and what is refused.
//!
//! # Guarantees
//! Every content is compared with its hash after it was decrypted. What a repository contains is not trusted: lengths,
//! depths and counts have limits, and what does not fit gives an error that names the blob.

pub mod blobs;
pub mod compression;
pub mod content;
pub mod create;
pub mod crypto;
pub mod directory;
pub mod epoch;
pub mod format;
pub mod id;
pub mod index;
pub mod manifest;
pub mod object;
pub mod pack;
pub mod repository;
pub mod snapshot;
pub mod splitter;
pub mod writer;

mod json;

pub use crate::id::{BlobId, ContentId, ContentPrefix, ManifestId, ObjectId};
pub use crate::repository::Repository;
pub use crate::writer::Writer;
