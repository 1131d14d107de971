//! The indexes of an open repository, in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use super::Error;
use crate::blobs::{self, Store};
use crate::crypto::Crypter;
use crate::epoch;
use crate::id::BlobId;
use crate::index::{Index, IndexSet};

/// Index blobs that are read at a time.
const PARALLEL_READS: usize = 8;

/// Longest index blob. One with kopia's greatest number of entries has about 560 MiB.
const MAX_INDEX_BLOB: u64 = 1 << 30;

/// Attempts to read all blobs of one listing: maintenance deletes merged ones hours after they are superseded.
const ATTEMPTS: usize = 3;

/// The indexes that a listing named.
#[derive(Default)]
pub(super) struct LoadedIndexes {
    by_blob: BTreeMap<BlobId, Arc<Index>>,
    set: Arc<IndexSet>,
}

impl LoadedIndexes {
    pub(super) fn set(&self) -> Arc<IndexSet> {
        Arc::clone(&self.set)
    }

    /// Lists the indexes anew, and reads those that are not in memory.
    pub(super) async fn reload(&self, store: &Store, crypter: &Crypter) -> Result<Self, Error> {
        for _ in 0..ATTEMPTS {
            match self.reload_once(store, crypter).await {
                Err(Error::Blobs(blobs::Error::NotFound(_))) => {}
                result => return result,
            }
        }
        Err(Error::UnstableIndexes)
    }

    async fn reload_once(&self, store: &Store, crypter: &Crypter) -> Result<Self, Error> {
        let listing = store.list(epoch::PREFIX).await?;
        let epochs = epoch::select(listing.into_iter().map(|blob| blob.id));
        let by_blob: BTreeMap<BlobId, Arc<Index>> = stream::iter(epochs.index_blobs)
            .map(|blob| async move {
                let index = match self.by_blob.get(&blob) {
                    Some(index) => Arc::clone(index),
                    None => Arc::new(read_index(store, crypter, &blob).await?),
                };
                Ok::<_, Error>((blob, index))
            })
            .buffer_unordered(PARALLEL_READS)
            .try_collect()
            .await?;
        let indexes = by_blob.values().cloned().collect();
        Ok(Self { by_blob, set: Arc::new(IndexSet::new(indexes, epochs.deletion_watermark)) })
    }
}

async fn read_index(store: &Store, crypter: &Crypter, blob: &BlobId) -> Result<Index, Error> {
    let iv = blob.hash_suffix().ok_or_else(|| Error::IndexName(blob.clone()))?;
    let sealed = store.get(blob, MAX_INDEX_BLOB).await?;
    let plain = crypter
        .decrypt(sealed.into(), &iv)
        .map_err(|source| Error::DecryptIndex { blob: blob.clone(), source })?;
    if crypter.hash(&plain).last_chunk() != Some(&iv) {
        return Err(Error::IndexHash(blob.clone()));
    }
    Index::parse(plain.into()).map_err(|source| Error::Index { blob: blob.clone(), source })
}
