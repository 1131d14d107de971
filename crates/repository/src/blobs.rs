//! The store of a repository: named blobs.

pub mod filesystem;
pub mod memory;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use crate::id::BlobId;

/// Longest time that one call of a store may take: enough for a pack on a slow line.
const CALL_TIMEOUT: Duration = Duration::from_mins(10);

/// Failure of a store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The blob does not exist.
    #[error("blob {0} does not exist")]
    NotFound(BlobId),
    /// The blob is longer than it may be.
    #[error("blob {blob} is longer than {max_length} bytes")]
    TooLong {
        /// Blob.
        blob: BlobId,
        /// Greatest length.
        max_length: u64,
    },
    /// The blob ends before the range that was asked for.
    #[error("blob {blob} has no {length} bytes at offset {offset}")]
    Truncated {
        /// Blob.
        blob: BlobId,
        /// Start of the range.
        offset: u64,
        /// Length of the range.
        length: u64,
    },
    /// The store failed.
    #[error("cannot {operation} blob {blob}")]
    Blob {
        /// What failed.
        operation: Operation,
        /// Blob.
        blob: BlobId,
        /// Reason.
        source: io::Error,
    },
    /// The store cannot list its blobs.
    #[error("cannot list blobs")]
    List(#[source] io::Error),
    /// The store does not answer.
    #[error("the store does not answer for {} s (cannot {operation} {name})", CALL_TIMEOUT.as_secs())]
    Timeout {
        /// What failed.
        operation: Operation,
        /// Name or prefix.
        name: String,
    },
}

/// What is done with a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading.
    Get,
    /// Writing.
    Put,
    /// Deletion.
    Delete,
    /// Listing.
    List,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Get => "read",
            Self::Put => "write",
            Self::Delete => "delete",
            Self::List => "list",
        })
    }
}

/// A blob in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobMetadata {
    /// Name.
    pub id: BlobId,
    /// Length in bytes.
    pub length: u64,
    /// Time of writing, by the clock of the store.
    pub modified: Timestamp,
}

/// Stores blobs.
#[async_trait]
pub trait Blobs: Send + Sync {
    /// The whole blob, which may have no more than `max_length` bytes.
    async fn get(&self, blob: &BlobId, max_length: u64) -> Result<Bytes, Error>;

    /// Exactly this range of the blob.
    async fn get_range(&self, blob: &BlobId, offset: u64, length: u64) -> Result<Bytes, Error>;

    /// Writes the blob completely or not at all. One that exists is replaced.
    async fn put(&self, blob: &BlobId, data: Bytes) -> Result<(), Error>;

    /// Deletes the blob, if it exists.
    async fn delete(&self, blob: &BlobId) -> Result<(), Error>;

    /// The blobs whose names start with the prefix, in any order. Names that no repository contains are left out.
    async fn list(&self, prefix: &str) -> Result<Vec<BlobMetadata>, Error>;
}

/// A store with a deadline for each call.
#[derive(Clone)]
pub(crate) struct Store(Arc<dyn Blobs>);

impl Store {
    pub(crate) fn new(blobs: Arc<dyn Blobs>) -> Self {
        Self(blobs)
    }

    pub(crate) async fn get(&self, blob: &BlobId, max_length: u64) -> Result<Bytes, Error> {
        within_deadline(Operation::Get, blob.as_str(), self.0.get(blob, max_length)).await
    }

    pub(crate) async fn get_range(
        &self,
        blob: &BlobId,
        offset: u64,
        length: u64,
    ) -> Result<Bytes, Error> {
        let call = self.0.get_range(blob, offset, length);
        within_deadline(Operation::Get, blob.as_str(), call).await
    }

    pub(crate) async fn put(&self, blob: &BlobId, data: Bytes) -> Result<(), Error> {
        within_deadline(Operation::Put, blob.as_str(), self.0.put(blob, data)).await
    }

    pub(crate) async fn delete(&self, blob: &BlobId) -> Result<(), Error> {
        within_deadline(Operation::Delete, blob.as_str(), self.0.delete(blob)).await
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<BlobMetadata>, Error> {
        within_deadline(Operation::List, prefix, self.0.list(prefix)).await
    }
}

async fn within_deadline<T>(
    operation: Operation,
    name: &str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let timeout = |_| Error::Timeout { operation, name: name.to_owned() };
    tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(timeout)?
}

#[cfg(test)]
mod tests;
