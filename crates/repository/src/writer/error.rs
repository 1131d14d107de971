//! Failures of a writer.

use crate::id::InvalidId;
use crate::{blobs, content, crypto, directory, index, manifest, object, pack, repository};

/// Failure to write to a repository.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The repository has indexes of version 1.
    #[error("repositories with index version {0} can be read, not written")]
    IndexVersion(u32),
    /// The repository splits files in an unknown way.
    #[error("the splitter of the repository is not supported, so that it can be read, not written")]
    UnsupportedSplitter,
    /// The repository asks the store to lock blobs.
    #[error("the repository locks its blobs in the store, which is not supported yet")]
    RetentionMode,
    /// There is a repository already.
    #[error("a repository exists already")]
    Exists,
    /// The repository cannot be read.
    #[error(transparent)]
    Repository(#[from] repository::Error),
    /// The store failed.
    #[error(transparent)]
    Blobs(#[from] blobs::Error),
    /// A content is too long.
    #[error("a content of {0} bytes is too long")]
    TooLong(usize),
    /// A content cannot be encoded.
    #[error(transparent)]
    Encode(content::EncodeError),
    /// A blob cannot be encrypted.
    #[error("cannot encrypt a blob")]
    Encrypt(#[source] crypto::Error),
    /// A pack cannot be completed.
    #[error(transparent)]
    Pack(pack::Error),
    /// An index cannot be built.
    #[error("cannot build an index")]
    Index(#[source] index::BuildError),
    /// The list of an object cannot be encoded.
    #[error("cannot encode the list of an object")]
    List(#[source] object::Error),
    /// The lists of an object become too deep.
    #[error("an object is too long")]
    TooDeep,
    /// A directory cannot be encoded.
    #[error("cannot encode a directory")]
    Directory(#[source] directory::Error),
    /// A manifest cannot be encoded.
    #[error("cannot encode a manifest")]
    EncodeManifest(#[source] serde_json::Error),
    /// The list of manifests cannot be encoded.
    #[error("cannot encode the list of manifests")]
    Manifests(#[source] manifest::Error),
    /// The marker of the session cannot be encoded.
    #[error("cannot encode the marker of a session")]
    Session(#[source] serde_json::Error),
    /// The format of a new repository cannot be encoded.
    #[error(transparent)]
    Format(Box<crate::format::Error>),
    /// The name of a blob is invalid.
    #[error(transparent)]
    BlobName(InvalidId),
    /// Epochs begin faster than an index can be written.
    #[error("the epochs of the repository advance faster than an index can be written")]
    EpochsAdvance,
    /// An earlier failure lost contents.
    #[error("an earlier write failed, so that nothing more can be written in this session")]
    Broken,
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random,
    /// The program ends.
    #[error("interrupted")]
    Interrupted,
}
