//! Blobs in memory, for tests.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use super::{BlobMetadata, Blobs, Error};
use crate::id::BlobId;

/// Blobs in memory. Their time of writing is fixed.
#[derive(Debug, Default)]
pub struct MemoryBlobs {
    blobs: Mutex<BTreeMap<BlobId, Bytes>>,
}

impl MemoryBlobs {
    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<BlobId, Bytes>) -> T) -> T {
        work(&mut self.blobs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Blobs for MemoryBlobs {
    async fn get(&self, blob: &BlobId, max_length: u64) -> Result<Bytes, Error> {
        let data = self.with(|blobs| blobs.get(blob).cloned());
        let data = data.ok_or_else(|| Error::NotFound(blob.clone()))?;
        if u64::try_from(data.len()).is_ok_and(|length| length <= max_length) {
            return Ok(data);
        }
        Err(Error::TooLong { blob: blob.clone(), max_length })
    }

    async fn get_range(&self, blob: &BlobId, offset: u64, length: u64) -> Result<Bytes, Error> {
        let data = self.get(blob, u64::MAX).await?;
        let start = usize::try_from(offset).ok();
        let end = offset.checked_add(length).and_then(|end| usize::try_from(end).ok());
        start
            .zip(end)
            .filter(|(_, end)| *end <= data.len())
            .map(|(start, end)| data.slice(start..end))
            .ok_or_else(|| Error::Truncated { blob: blob.clone(), offset, length })
    }

    async fn put(&self, blob: &BlobId, data: Bytes) -> Result<(), Error> {
        self.with(|blobs| blobs.insert(blob.clone(), data));
        Ok(())
    }

    async fn delete(&self, blob: &BlobId) -> Result<(), Error> {
        self.with(|blobs| blobs.remove(blob));
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<BlobMetadata>, Error> {
        let metadata = |(id, data): (&BlobId, &Bytes)| BlobMetadata {
            id: id.clone(),
            length: u64::try_from(data.len()).unwrap_or(u64::MAX),
            modified: Timestamp::UNIX_EPOCH,
        };
        Ok(self.with(|blobs| {
            let named = blobs.iter().filter(|(id, _)| id.as_str().starts_with(prefix));
            named.map(metadata).collect()
        }))
    }
}
