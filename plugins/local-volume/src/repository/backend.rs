//! A store as the backend of the repository library. The library blocks and has its own threads,
//! the store is asynchronous; any failure or stop here stops the whole job.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin_sdk::bytes::Bytes;
use bowline_plugin_sdk::futures_util::TryStreamExt as _;
use bowline_plugin_sdk::tokio::runtime::Handle;
use bowline_plugin_sdk::{error_chain, tokio};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};
use rustic_core::{
    BytesList, ErrorKind, FileType, Id, ReadBackend, RusticError, RusticResult, WriteBackend,
};

use crate::stop_signal::StopSignal;

/// Time limit of one request, including its retries.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(15);

/// A store, for one job.
pub(super) struct ObjectStoreBackend {
    /// For people.
    pub name: String,
    pub store: Arc<dyn ObjectStore>,
    pub runtime: Handle,
    pub stop: Arc<StopSignal>,
}

/// The path of the file that makes a store a repository.
pub(super) const CONFIG: &str = "config";

impl ObjectStoreBackend {
    /// Runs a request from a thread that may block.
    pub(super) fn run<T>(
        &self,
        doing: &str,
        path: &Path,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> RusticResult<T> {
        let outcome = self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.stop.wait() => None,
                outcome = tokio::time::timeout(REQUEST_TIMEOUT, request) => Some(outcome),
            }
        });
        let reason = match outcome {
            Some(Ok(Ok(done))) => return Ok(done),
            Some(Ok(Err(error))) => {
                format!("cannot {doing} {path} in {}: {}", self.name, error_chain(&error))
            }
            Some(Err(_)) => {
                format!("cannot {doing} {path} in {}: no answer within 15 minutes", self.name)
            }
            None => self.stop.reason().unwrap_or_default().to_owned(),
        };
        self.stop.fail(&reason);
        Err(RusticError::new(ErrorKind::Backend, reason))
    }
}

fn path(kind: FileType, id: &Id) -> Path {
    let hex = id.to_hex();
    let hex = hex.as_str();
    match kind {
        FileType::Config => Path::from(CONFIG),
        // As in restic, so that no folder gets too full.
        FileType::Pack => Path::from_iter([kind.dirname(), &hex[..2], hex]),
        kind => Path::from_iter([kind.dirname(), hex]),
    }
}

impl ReadBackend for ObjectStoreBackend {
    fn location(&self) -> String {
        self.name.clone()
    }

    fn list_with_size(&self, kind: FileType) -> RusticResult<Vec<(Id, u32)>> {
        let size = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        if kind == FileType::Config {
            let path = Path::from(CONFIG);
            let found = self.run("check", &path, async {
                match self.store.head(&path).await {
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    found => found.map(Some),
                }
            })?;
            return Ok(found.map(|found| (Id::default(), size(found.size))).into_iter().collect());
        }
        let folder = Path::from(kind.dirname());
        self.run("list", &folder, async {
            let files = self.store.list(Some(&folder)).try_filter_map(async |file| {
                let id = file.location.filename().and_then(|name| Id::parse_some(name, kind));
                Ok(id.map(|id| (id, size(file.size))))
            });
            files.try_collect().await
        })
    }

    fn read_full(&self, kind: FileType, id: &Id) -> RusticResult<Bytes> {
        let path = path(kind, id);
        self.run("read", &path, async { self.store.get(&path).await?.bytes().await })
    }

    fn read_partial(
        &self,
        kind: FileType,
        id: &Id,
        _cacheable: bool,
        offset: u32,
        length: u32,
    ) -> RusticResult<Bytes> {
        let path = path(kind, id);
        let begin = u64::from(offset);
        let range = begin..begin + u64::from(length);
        self.run("read", &path, self.store.get_range(&path, range))
    }

    fn warmup_path(&self, kind: FileType, id: &Id) -> String {
        path(kind, id).to_string()
    }
}

impl WriteBackend for ObjectStoreBackend {
    fn write_bytes(
        &self,
        kind: FileType,
        id: &Id,
        _cacheable: bool,
        content: BytesList,
    ) -> RusticResult<()> {
        let path = path(kind, id);
        let payload: PutPayload = content.into_vec().into_iter().collect();
        self.run("write", &path, self.store.put(&path, payload)).map(drop)
    }

    fn remove(&self, kind: FileType, id: &Id, _cacheable: bool) -> RusticResult<()> {
        let path = path(kind, id);
        self.run("remove", &path, async {
            match self.store.delete(&path).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                removed => removed,
            }
        })
    }
}
