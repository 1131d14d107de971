//! Failures of an open repository.

use crate::id::{BlobId, ContentId, ObjectId};
use crate::{blobs, content, crypto, directory, format, index, manifest, object, snapshot};

/// Failure to open or read a repository.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no repository.
    #[error("there is no repository: kopia.repository does not exist")]
    NotInitialized,
    /// The format cannot be read, or is not supported.
    #[error(transparent)]
    Format(Box<format::Error>),
    /// The store failed, or lacks a blob.
    #[error(transparent)]
    Blobs(#[from] blobs::Error),
    /// An index blob has a name without a hash.
    #[error("the name of index blob {0} does not contain a hash")]
    IndexName(BlobId),
    /// An index blob cannot be decrypted.
    #[error("index blob {blob} cannot be decrypted")]
    DecryptIndex {
        /// Blob.
        blob: BlobId,
        /// Reason.
        source: crypto::Error,
    },
    /// An index blob is not what its name says.
    #[error("index blob {0} has another hash than its name")]
    IndexHash(BlobId),
    /// An index blob is damaged.
    #[error("index blob {blob} is damaged")]
    Index {
        /// Blob.
        blob: BlobId,
        /// Reason.
        source: index::Error,
    },
    /// Index blobs disappear as fast as they are listed.
    #[error("the index blobs change faster than they can be read")]
    UnstableIndexes,
    /// No index knows the content.
    #[error("content {0} is not in the repository")]
    ContentNotFound(ContentId),
    /// A content is damaged.
    #[error("pack {pack} is damaged")]
    Content {
        /// Pack.
        pack: BlobId,
        /// Reason.
        source: content::Error,
    },
    /// The list of an object is damaged.
    #[error("object {object} is damaged")]
    Object {
        /// Object.
        object: ObjectId,
        /// Reason.
        source: object::Error,
    },
    /// A part of an object has another length than its list says.
    #[error("a part of object {object} has {found} bytes instead of {expected}")]
    PartLength {
        /// Object.
        object: ObjectId,
        /// Length in the list.
        expected: u64,
        /// Length of the data.
        found: u64,
    },
    /// Lists are in lists too deep.
    #[error("the lists of object {0} are too deep")]
    TooDeep(ObjectId),
    /// The object is longer than the caller accepts.
    #[error("object {object} is longer than {max_length} bytes")]
    TooLong {
        /// Object.
        object: ObjectId,
        /// Greatest length.
        max_length: u64,
    },
    /// An object that was compressed as a whole is damaged.
    #[error("object {object} cannot be decompressed")]
    Decompress {
        /// Object.
        object: ObjectId,
        /// Reason.
        source: crate::compression::Error,
    },
    /// A directory is damaged.
    #[error("directory {object} is damaged")]
    Directory {
        /// Object.
        object: ObjectId,
        /// Reason.
        source: directory::Error,
    },
    /// A list of manifests is damaged.
    #[error("content {content} is damaged")]
    Manifests {
        /// Content.
        content: ContentId,
        /// Reason.
        source: manifest::Error,
    },
    /// The manifest of a snapshot is damaged.
    #[error(transparent)]
    Snapshot(snapshot::Error),
    /// The program ends.
    #[error("interrupted")]
    Interrupted,
}
