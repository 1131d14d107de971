//! Stored items of a block, as an object in the bucket.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::backup::Context;
use crate::backup::archive::Entry;
use crate::failpoint::{self, Failpoint};
use crate::item::{InvalidObject, Object};
use crate::journal::{BlockEnded, StoredBlock, digest};
use crate::resource::GroupResource;

/// Size limit of a stored block. A larger one is not stored, and repeated if necessary.
const MAX_STORED_BLOCK_BYTES: u64 = 256 << 20;

/// Retries of reading a stored block, for half a minute.
const READ_RETRIES: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_millis(500)).with_max_times(6);

/// An item as it is stored in the bucket.
#[derive(Serialize)]
struct StoredItem<'a> {
    group: &'a str,
    resource: &'a str,
    item: &'a RawValue,
}

#[derive(Deserialize)]
struct OwnedStoredItem {
    group: String,
    resource: String,
    item: Box<RawValue>,
}

/// Stores the items of a block in the bucket. `None` if that fails; `Some(None)` if there is nothing to store.
pub(super) async fn store_block(
    context: &Context,
    block: u64,
    stored: &[(Object, Entry)],
) -> Option<Option<StoredBlock>> {
    if stored.is_empty() {
        return Some(None);
    }
    let packed = match encode_block(stored.iter().map(|(object, _)| object)) {
        Ok(packed) => packed,
        Err(error) => {
            tracing::warn!("an item block cannot be saved for a restart of the server: {error}");
            return None;
        }
    };
    if packed.len() as u64 > MAX_STORED_BLOCK_BYTES {
        tracing::warn!("an item block is too large to be saved for a restart of the server");
        return None;
    }
    let sha256 = digest(&packed);
    failpoint::hit(Failpoint::StoreBlock);
    let Context { store, request, .. } = context;
    match store.put_scratch(&request.uid, block, packed).await {
        Ok(()) => {
            failpoint::hit(Failpoint::BlockStored);
            Some(Some(StoredBlock { number: block, sha256 }))
        }
        Err(error) => {
            let error = bowline_plugin::error_chain(&error);
            tracing::warn!("an item block cannot be saved for a restart of the server: {error}");
            None
        }
    }
}

fn encode_block<'a>(objects: impl Iterator<Item = &'a Object>) -> serde_json::Result<Bytes> {
    let mut packed = Vec::new();
    for object in objects {
        let GroupResource { group, resource } = &object.resource.id;
        let item = serde_json::from_slice(object.item.json())?;
        serde_json::to_writer(&mut packed, &StoredItem { group, resource, item })?;
        packed.push(b'\n');
    }
    Ok(packed.into())
}

/// Reason why the stored items of a block are lost.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadBlockError {
    #[error("file {0} is missing in the bucket")]
    Missing(u64),
    #[error("{}", bowline_plugin::error_chain(.0))]
    Read(bowline_store::Error),
    #[error("file {0} in the bucket was changed")]
    Changed(u64),
    #[error(transparent)]
    Decode(#[from] serde_json::Error),
    #[error("{0} is no longer served")]
    NotServed(GroupResource),
    #[error(transparent)]
    Object(#[from] InvalidObject),
}

/// The stored items of a block.
pub(super) async fn load_block(
    context: &Context,
    ended: &BlockEnded,
) -> Result<Vec<Object>, LoadBlockError> {
    let Some(stored_block) = &ended.kept else { return Ok(Vec::new()) };
    let Context { store, request, .. } = context;
    let read = || store.scratch(&request.uid, stored_block.number, MAX_STORED_BLOCK_BYTES);
    let read = read.retry(READ_RETRIES).when(bowline_store::Error::is_retryable).await;
    let packed = match read {
        Ok(Some(packed)) => packed,
        Ok(None) => return Err(LoadBlockError::Missing(stored_block.number)),
        Err(error) => return Err(LoadBlockError::Read(error)),
    };
    if digest(&packed) != stored_block.sha256 {
        return Err(LoadBlockError::Changed(stored_block.number));
    }
    let mut objects = Vec::new();
    for line in serde_json::Deserializer::from_slice(&packed).into_iter::<OwnedStoredItem>() {
        let OwnedStoredItem { group, resource, item } = line?;
        let id = GroupResource { group, resource };
        let Some(resource) = context.resources.find(&id) else {
            return Err(LoadBlockError::NotServed(id));
        };
        let json = Bytes::from(Box::<str>::from(item).into_string());
        objects.push(Object::from_json(resource, json)?);
    }
    Ok(objects)
}
