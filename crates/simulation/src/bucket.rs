//! In-memory bucket, which sees to it that what is committed stays as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Code, Config, Error, ObjectStore, Result};
use bowline_store::backend::{Backend, Creation, Guarantee};
use bytes::Bytes;
use futures::{TryStreamExt as _, stream};

use crate::fault::{FaultKind, Part};
use crate::world::{Link, State, Verdict};

/// Last part of the key of a commit record.
const RECORD: &str = "/velero-backup.json";
const BACKUPS: &str = "backups/";

/// Contents of the bucket.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    objects: BTreeMap<String, Bytes>,
    /// Files of each committed backup at the time of its commit.
    committed: BTreeMap<String, BTreeMap<String, Bytes>>,
    /// Backups whose deletion somebody has asked for.
    doomed: BTreeSet<String>,
}

impl Bucket {
    pub(crate) fn get(&self, key: &str) -> Option<&Bytes> {
        self.objects.get(key)
    }

    pub(crate) fn is_committed(&self, backup: &str) -> bool {
        self.committed.contains_key(backup)
    }

    /// Allows the deletion of a backup.
    pub(crate) fn doom(&mut self, backup: &str) {
        self.doomed.insert(backup.to_owned());
    }

    /// Committed backups whose files differ from those at their commit.
    pub(crate) fn damages(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (backup, files) in &self.committed {
            if self.doomed.contains(backup) {
                continue;
            }
            for (key, content) in files {
                match self.objects.get(key) {
                    None => found.push(format!("{key} of a committed backup is lost")),
                    Some(other) if other != content => {
                        found.push(format!("{key} of a committed backup was changed"));
                    }
                    Some(_) => {}
                }
            }
        }
        found
    }

    fn put(&mut self, key: &str, content: Bytes) -> Option<String> {
        let committed = backup_of(key).filter(|_| key.ends_with(RECORD));
        let mut violation = None;
        if let Some(backup) = committed {
            let is_double = self.objects.contains_key(key) && !self.doomed.contains(backup);
            violation = is_double.then(|| format!("{backup} is committed twice"));
        }
        self.objects.insert(key.to_owned(), content);
        if let Some(backup) = committed {
            let folder = format!("{BACKUPS}{backup}/");
            let files = self.objects.iter().filter(|(key, _)| key.starts_with(&folder));
            let files = files.map(|(key, content)| (key.clone(), content.clone())).collect();
            self.committed.insert(backup.to_owned(), files);
        }
        violation
    }
}

/// Backup to which a key belongs.
fn backup_of(key: &str) -> Option<&str> {
    key.strip_prefix(BACKUPS)?.split_once('/').map(|(backup, _)| backup)
}

/// The bucket as one server sees it.
pub(crate) struct SimulatedBucket {
    link: Link,
}

impl SimulatedBucket {
    pub(crate) fn new(link: Link) -> Self {
        Self { link }
    }

    async fn call<T>(
        &self,
        method: &str,
        key: &str,
        effect: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        let verdict = self.link.before(Part::Bucket, &format!("bucket {method} {key}")).await;
        if let Verdict::Fail(kind) = verdict {
            let is_write = matches!(method, "put" | "create");
            if kind != FaultKind::BucketFull || is_write {
                return Err(failure(kind));
            }
        }
        let result = self.link.world.with(effect);
        self.link.after(Part::Bucket).await;
        if verdict == Verdict::LoseAnswer {
            return Err(Error::new(Code::Unavailable, "the connection to the bucket was cut"));
        }
        result
    }
}

fn failure(kind: FaultKind) -> Error {
    match kind {
        FaultKind::BucketFull => Error::new(Code::ResourceExhausted, "the bucket is full"),
        FaultKind::BucketRefuses => Error::new(Code::PermissionDenied, "access denied"),
        FaultKind::BucketHang => Error::new(Code::DeadlineExceeded, "no answer"),
        _ => Error::new(Code::Unavailable, "the bucket cannot be reached"),
    }
}

fn missing(key: &str) -> Error {
    Error::new(Code::NotFound, format!("`{key}` does not exist"))
}

fn piece(content: Bytes) -> ByteStream {
    Box::pin(stream::iter([Ok(content)]))
}

#[async_trait]
impl Backend for SimulatedBucket {
    async fn create_object(&self, _: &str, key: &str, content: Bytes) -> Result<Creation> {
        self.call("create", key, |state| {
            if state.bucket.objects.contains_key(key) {
                return Ok(Creation::AlreadyExists);
            }
            if let Some(violation) = state.bucket.put(key, content) {
                state.violate(violation);
            }
            Ok(Creation::Created(Guarantee::Atomic))
        })
        .await
    }

    async fn get_range(&self, _: &str, key: &str, range: Range<u64>) -> Result<ByteStream> {
        self.call("range", key, |state| {
            let content = state.bucket.objects.get(key).ok_or_else(|| missing(key))?;
            let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
            let (start, end) = (at(range.start), at(range.end));
            Ok(piece(content.slice(start..end.max(start))))
        })
        .await
    }
}

#[async_trait]
impl ObjectStore for SimulatedBucket {
    async fn init(&self, _: &Config) -> Result<()> {
        Ok(())
    }

    async fn put_object(&self, _: &str, key: &str, body: ByteStream) -> Result<()> {
        let broken = |error| Error::new(Code::Aborted, format!("the upload was aborted: {error}"));
        let pieces: Vec<Bytes> = body.try_collect().await.map_err(broken)?;
        self.call("put", key, |state| {
            if let Some(violation) = state.bucket.put(key, pieces.concat().into()) {
                state.violate(violation);
            }
            Ok(())
        })
        .await
    }

    async fn object_exists(&self, _: &str, key: &str) -> Result<bool> {
        self.call("exists", key, |state| Ok(state.bucket.objects.contains_key(key))).await
    }

    async fn get_object(&self, _: &str, key: &str) -> Result<ByteStream> {
        self.call("get", key, |state| {
            Ok(piece(state.bucket.objects.get(key).cloned().ok_or_else(|| missing(key))?))
        })
        .await
    }

    async fn list_common_prefixes(
        &self,
        _: &str,
        prefix: &str,
        delimiter: &str,
    ) -> Result<Vec<String>> {
        self.call("prefixes", prefix, |state| {
            let below = state.bucket.objects.keys().filter_map(|key| {
                let rest = key.strip_prefix(prefix)?;
                let end = rest.find(delimiter)? + delimiter.len();
                Some(format!("{prefix}{}", &rest[..end]))
            });
            let unique: BTreeSet<String> = below.collect();
            Ok(unique.into_iter().collect())
        })
        .await
    }

    async fn list_objects(&self, _: &str, prefix: &str) -> Result<Vec<String>> {
        self.call("list", prefix, |state| {
            let keys = state.bucket.objects.keys();
            Ok(keys.filter(|key| key.starts_with(prefix)).cloned().collect())
        })
        .await
    }

    async fn delete_object(&self, _: &str, key: &str) -> Result<()> {
        self.call("delete", key, |state| {
            state.bucket.objects.remove(key);
            Ok(())
        })
        .await
    }

    async fn create_signed_url(&self, bucket: &str, key: &str, ttl: Duration) -> Result<String> {
        Ok(format!("memory://{bucket}/{key}?seconds={}", ttl.as_secs()))
    }
}
