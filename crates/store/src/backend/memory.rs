//! A bucket in memory, for tests of the layers above: not persistent, and fails on demand.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Code, Config, Error, ObjectStore, Result};
use bytes::Bytes;
use futures::TryStreamExt as _;
use parking_lot::Mutex;

use super::{Backend, Creation, Guarantee, common_prefixes, single_piece_stream};

/// A call to a bucket in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCall {
    /// `put_object`
    Put,
    /// `create_object`
    Create,
    /// `object_exists`
    Exists,
    /// `get_object`
    Get,
    /// `list_objects` and `list_common_prefixes`
    List,
    /// `delete_object`
    Delete,
    /// `create_signed_url`
    Sign,
}

type FaultInjector = dyn Fn(StoreCall, &str) -> Option<Error> + Send + Sync;

/// Buckets in memory. Clones share them.
#[derive(Clone, Default)]
pub struct Memory {
    buckets: Arc<Mutex<BTreeMap<String, Objects>>>,
    fault: Option<Arc<FaultInjector>>,
}

type Objects = BTreeMap<String, Bytes>;

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Memory {
    /// With one empty bucket.
    pub fn with_bucket(name: &str) -> Self {
        let memory = Self::default();
        memory.buckets.lock().insert(name.to_owned(), Objects::new());
        memory
    }

    /// The same buckets, failing where `fault` returns an error for the call and its key or prefix.
    #[must_use]
    pub fn failing(
        &self,
        fault: impl Fn(StoreCall, &str) -> Option<Error> + Send + Sync + 'static,
    ) -> Self {
        Self { buckets: Arc::clone(&self.buckets), fault: Some(Arc::new(fault)) }
    }

    fn with_objects<T>(
        &self,
        call: StoreCall,
        bucket: &str,
        key: &str,
        job: impl FnOnce(&mut Objects) -> T,
    ) -> Result<T> {
        if let Some(error) = self.fault.as_ref().and_then(|fault| fault(call, key)) {
            return Err(error);
        }
        let mut buckets = self.buckets.lock();
        let missing =
            || Error::new(Code::FailedPrecondition, format!("bucket `{bucket}` does not exist"));
        Ok(job(buckets.get_mut(bucket).ok_or_else(missing)?))
    }
}

#[async_trait]
impl Backend for Memory {
    async fn create_object(&self, bucket: &str, key: &str, content: Bytes) -> Result<Creation> {
        self.with_objects(StoreCall::Create, bucket, key, |objects| {
            if objects.contains_key(key) {
                return Creation::AlreadyExists;
            }
            objects.insert(key.to_owned(), content);
            Creation::Created(Guarantee::Atomic)
        })
    }

    async fn get_range(&self, bucket: &str, key: &str, range: Range<u64>) -> Result<ByteStream> {
        let content =
            self.with_objects(StoreCall::Get, bucket, key, |objects| objects.get(key).cloned())?;
        let missing = || Error::new(Code::NotFound, format!("`{key}` does not exist"));
        let content = content.ok_or_else(missing)?;
        let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let (start, end) = (at(range.start), at(range.end));
        Ok(single_piece_stream(content.slice(start..end.max(start))))
    }
}

#[async_trait]
impl ObjectStore for Memory {
    async fn init(&self, _: &Config) -> Result<()> {
        Ok(())
    }

    async fn put_object(&self, bucket: &str, key: &str, body: ByteStream) -> Result<()> {
        let broken = |error| Error::new(Code::Aborted, format!("the upload was aborted: {error}"));
        let pieces: Vec<Bytes> = body.try_collect().await.map_err(broken)?;
        self.with_objects(StoreCall::Put, bucket, key, |objects| {
            objects.insert(key.to_owned(), pieces.concat().into());
        })
    }

    async fn object_exists(&self, bucket: &str, key: &str) -> Result<bool> {
        self.with_objects(StoreCall::Exists, bucket, key, |objects| objects.contains_key(key))
    }

    async fn get_object(&self, bucket: &str, key: &str) -> Result<ByteStream> {
        let content =
            self.with_objects(StoreCall::Get, bucket, key, |objects| objects.get(key).cloned())?;
        let missing = || Error::new(Code::NotFound, format!("`{key}` does not exist"));
        Ok(single_piece_stream(content.ok_or_else(missing)?))
    }

    async fn list_common_prefixes(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
    ) -> Result<Vec<String>> {
        let keys = self.list_objects(bucket, prefix).await?;
        Ok(common_prefixes(&keys, prefix, delimiter))
    }

    async fn list_objects(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        self.with_objects(StoreCall::List, bucket, prefix, |objects| {
            objects.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
        })
    }

    async fn delete_object(&self, bucket: &str, key: &str) -> Result<()> {
        self.with_objects(StoreCall::Delete, bucket, key, |objects| {
            objects.remove(key);
        })
    }

    async fn create_signed_url(&self, bucket: &str, key: &str, ttl: Duration) -> Result<String> {
        self.with_objects(StoreCall::Sign, bucket, key, |_| {
            format!("memory://{bucket}/{key}?seconds={}", ttl.as_secs())
        })
    }
}
