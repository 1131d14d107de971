//! Rules for object stores. All objects are in a folder that is unique to the check, at a place
//! that Velero permits.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Class, Config, Error, ObjectStore};
use bowline_plugin_host::Handle;
use bytes::Bytes;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::Input;
use super::configured_plugin::{self, CreatedResources};
use super::item_action::all_succeeded;
use super::rule::{HOLDS, Rule, RuleFailure, RuleOutcome};

const CONCURRENT_CALLS: usize = 16;
const MIB: usize = 1 << 20;

/// Lifetime of a signed URL, as in Velero.
const URL_TTL: Duration = Duration::from_mins(10);

/// Time for which the check watches for an object that must not appear.
const BROKEN_UPLOAD_SETTLE_TIME: Duration = Duration::from_millis(500);

const RULES: &[Rule<ObjectStoreCheck>] = &[
    Rule::new("Init accepts the configuration", |store| {
        Box::pin(store.accepts_its_configuration())
    }),
    Rule::new("returns a small object as it was put", |store| {
        Box::pin(store.returns_what_was_put("small", vec![Bytes::from_static(b"small")]))
    }),
    Rule::new("returns an empty object", |store| {
        Box::pin(store.returns_what_was_put("empty", Vec::new()))
    }),
    Rule::new("returns 8 MiB, put in pieces, as they were put", |store| {
        let piece = |n| Bytes::from(vec![n; MIB]);
        Box::pin(store.returns_what_was_put("large", (0..8).map(piece).collect()))
    }),
    Rule::new("ObjectExists reports whether an object exists", |store| {
        Box::pin(store.reports_existence())
    }),
    Rule::new("GetObject of a missing object returns an error", |store| {
        Box::pin(store.missing_object_is_an_error())
    }),
    Rule::new("lists the objects below a prefix", |store| Box::pin(store.lists_objects())),
    Rule::new("lists common prefixes, each once", |store| Box::pin(store.lists_prefixes())),
    Rule::new("replaces an object that is put again", |store| Box::pin(store.put_replaces())),
    Rule::new("keeps nothing of an interrupted upload", |store| {
        Box::pin(store.broken_upload_leaves_no_object())
    }),
    Rule::new("CreateSignedURL returns a URL", |store| Box::pin(store.gives_a_signed_url())),
    Rule::new("deletes an object", |store| Box::pin(store.deletes())),
    Rule::new("puts and returns 16 objects at once", |store| {
        Box::pin(store.handles_concurrent_calls())
    }),
    Rule::new("knows its objects after a restart of its process", |store| {
        Box::pin(store.works_after_a_restart())
    }),
];

const CLEAN_UP: Rule<ObjectStoreCheck> =
    Rule::new("all objects of the check are deleted", |store| Box::pin(store.clean_up()));

type ObjectStoreCheck = configured_plugin::ConfiguredCheck<CreatedObjects>;

/// Objects that a check stored.
#[derive(Default)]
pub(super) struct CreatedObjects {
    /// Keys that may exist.
    keys: Vec<String>,
}

#[async_trait]
impl CreatedResources for CreatedObjects {
    type Plugin = dyn ObjectStore;

    const RULES: &'static [Rule<ObjectStoreCheck>] = RULES;
    const CLEAN_UP: Rule<ObjectStoreCheck> = CLEAN_UP;

    fn plugin(handle: Handle) -> Arc<Self::Plugin> {
        Arc::new(handle)
    }

    /// The configuration, with the additions that a server makes.
    fn config(input: &Input) -> Config {
        let mut config = input.config.clone();
        if let Some(bucket) = &input.bucket {
            config.entry("bucket".to_owned()).or_insert_with(|| bucket.clone());
        }
        let prefix = config.entry("prefix".to_owned()).or_default();
        *prefix = prefix.trim_matches('/').to_owned();
        config
    }

    fn missing_input(input: &Input) -> Option<&'static str> {
        input.bucket.is_none().then_some("name a scratch bucket with --bucket")
    }

    async fn init(plugin: &Self::Plugin, config: &Config) -> Result<(), Error> {
        plugin.init(config).await
    }

    fn leftovers(&self, input: &Input) -> Vec<String> {
        let keys = self.keys.iter();
        keys.map(|key| format!("object {key} in the bucket {}", bucket(input))).collect()
    }
}

impl ObjectStoreCheck {
    async fn returns_what_was_put(&mut self, name: &str, pieces: Vec<Bytes>) -> RuleOutcome {
        let key = self.put(name, pieces.clone()).await?;
        self.returns(&key, &pieces.concat()).await
    }

    async fn reports_existence(&mut self) -> RuleOutcome {
        let key = self.put("exists", vec![Bytes::from_static(b"x")]).await?;
        match (self.exists(&key).await?, self.exists(&self.key("none")).await?) {
            (true, false) => HOLDS,
            (false, _) => {
                Err(RuleFailure::broken("ObjectExists returned false for an existing object"))
            }
            (_, true) => {
                Err(RuleFailure::broken("ObjectExists returned true for a missing object"))
            }
        }
    }

    async fn missing_object_is_an_error(&mut self) -> RuleOutcome {
        match self.api.get_object(bucket(&self.input), &self.key("none")).await {
            Err(_) => HOLDS,
            Ok(_) => Err(RuleFailure::broken(
                "GetObject returned a stream, so an error would come too late",
            )),
        }
    }

    async fn lists_objects(&mut self) -> RuleOutcome {
        let mut expected = Vec::new();
        for name in ["list/a/1", "list/a/2", "list/b/1", "list/c"] {
            expected.push(self.put(name, vec![Bytes::from_static(b"x")]).await?);
        }
        let bucket = bucket(&self.input);
        expect_same_keys(&self.api.list_objects(bucket, &self.key("list/")).await?, &expected)?;
        expect_same_keys(&self.api.list_objects(bucket, &self.key("nothing/")).await?, &[])
    }

    /// Runs after [`lists_objects`](Self::lists_objects), which stored the listed objects.
    async fn lists_prefixes(&mut self) -> RuleOutcome {
        let prefix = self.key("list/");
        let listed = self.api.list_common_prefixes(bucket(&self.input), &prefix, "/").await?;
        expect_same_keys(&listed, &[self.key("list/a/"), self.key("list/b/")])
    }

    async fn put_replaces(&mut self) -> RuleOutcome {
        self.put("again", vec![Bytes::from_static(b"the first, which is longer")]).await?;
        self.returns_what_was_put("again", vec![Bytes::from_static(b"the second")]).await
    }

    async fn broken_upload_leaves_no_object(&mut self) -> RuleOutcome {
        let key = self.track_key("broken");
        let pieces = (0..20).map(|n| match n {
            19 => Err(io::Error::other("the check interrupted the upload")),
            _ => Ok(Bytes::from(vec![7; MIB / 8])),
        });
        let body: ByteStream = Box::pin(stream::iter(pieces));
        if self.api.put_object(bucket(&self.input), &key, body).await.is_ok() {
            return Err(RuleFailure::broken("the store accepted an incomplete object"));
        }
        // The plugin notices the broken upload at the same time as the host, and may misbehave only
        // then.
        for pause in [Duration::ZERO, BROKEN_UPLOAD_SETTLE_TIME] {
            tokio::time::sleep(pause).await;
            if self.exists(&key).await? {
                return Err(RuleFailure::broken("a part of the object is there"));
            }
        }
        HOLDS
    }

    async fn gives_a_signed_url(&mut self) -> RuleOutcome {
        let key = self.put("signed", vec![Bytes::from_static(b"x")]).await?;
        let url = match self.api.create_signed_url(bucket(&self.input), &key, URL_TTL).await {
            Err(error) if error.class() == Class::Unimplemented => {
                return Ok(Some("the store has no signed URLs".to_owned()));
            }
            url => url?,
        };
        if url.contains("://") {
            HOLDS
        } else {
            Err(RuleFailure::Broken(format!("`{url}` is no URL")))
        }
    }

    async fn deletes(&mut self) -> RuleOutcome {
        let key = self.put("deleted", vec![Bytes::from_static(b"x")]).await?;
        self.api.delete_object(bucket(&self.input), &key).await?;
        if self.exists(&key).await? {
            return Err(RuleFailure::broken("the object still exists"));
        }
        HOLDS
    }

    async fn handles_concurrent_calls(&mut self) -> RuleOutcome {
        let keys: Vec<String> =
            (0..CONCURRENT_CALLS).map(|n| self.track_key(&format!("at-once/{n}"))).collect();
        let put = |key: &'_ String| self.put_at(key.clone(), vec![Bytes::from(key.clone())]);
        all_succeeded(join_all(keys.iter().map(put)).await)?;
        let returned = join_all(keys.iter().map(|key| self.returns(key, key.as_bytes()))).await;
        returned.into_iter().find(Result::is_err).unwrap_or(HOLDS)
    }

    async fn works_after_a_restart(&mut self) -> RuleOutcome {
        let key = self.put("restart", vec![Bytes::from_static(b"before")]).await?;
        self.process.restart().await;
        self.returns(&key, b"before").await
    }

    /// Deletes the objects below the folder: the listed ones and the remembered ones.
    async fn clean_up(&mut self) -> RuleOutcome {
        self.created.keys.extend(self.list_own_keys().await.unwrap_or_default());
        self.created.keys.sort();
        self.created.keys.dedup();
        let (called, bucket, keys) = (&self.api, bucket(&self.input), self.created.keys.clone());
        let delete = async |key: &'_ String| (key.clone(), called.delete_object(bucket, key).await);
        let mut coming: FuturesUnordered<_> = keys.iter().map(delete).collect();
        while let Some((key, deleted)) = coming.next().await {
            // Deleting an object that is already gone may be an error, which is ignored here: the
            // listing will show it.
            if deleted.is_ok() {
                self.created.keys.retain(|tracked| *tracked != key);
            }
        }
        drop(coming);
        self.created.keys = self.list_own_keys().await?;
        HOLDS
    }

    /// The keys listed below the folder. The plugin's list is not trusted: keys outside of the
    /// folder are not ours.
    async fn list_own_keys(&self) -> Result<Vec<String>, Error> {
        let folder = self.folder();
        let mut keys = self.api.list_objects(bucket(&self.input), &folder).await?;
        keys.retain(|key| key.starts_with(&folder));
        Ok(keys)
    }

    /// The folder of all keys. Velero makes a location unavailable if it has an unknown top-level
    /// folder; `plugins` is a known one. (pkg/persistence/object_store_layout.go)
    fn folder(&self) -> String {
        let prefix = self.config.get("prefix").filter(|prefix| !prefix.is_empty());
        let prefix = prefix.map(|prefix| format!("{prefix}/")).unwrap_or_default();
        format!("{prefix}plugins/{}/", self.input.name())
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.folder())
    }

    /// The key of an object that is about to be stored, remembered so that it will be deleted.
    fn track_key(&mut self, name: &str) -> String {
        let key = self.key(name);
        self.created.keys.push(key.clone());
        key
    }

    async fn put(&mut self, name: &str, pieces: Vec<Bytes>) -> Result<String, Error> {
        let key = self.track_key(name);
        self.put_at(key.clone(), pieces).await?;
        Ok(key)
    }

    async fn put_at(&self, key: String, pieces: Vec<Bytes>) -> Result<(), Error> {
        let body: ByteStream = Box::pin(stream::iter(pieces.into_iter().map(Ok)));
        self.api.put_object(bucket(&self.input), &key, body).await
    }

    async fn exists(&self, key: &str) -> Result<bool, Error> {
        self.api.object_exists(bucket(&self.input), key).await
    }

    async fn returns(&self, key: &str, expected: &[u8]) -> RuleOutcome {
        let stream = self.api.get_object(bucket(&self.input), key).await?;
        let pieces: Vec<Bytes> =
            stream.try_collect().await.map_err(|error| RuleFailure::Broken(error.to_string()))?;
        let got = pieces.concat();
        if got == expected {
            return HOLDS;
        }
        let lengths = format!("wrote {} bytes, read {} bytes", expected.len(), got.len());
        let other = if got.len() == expected.len() { " with different content" } else { "" };
        Err(RuleFailure::Broken(format!("{lengths}{other}")))
    }
}

/// The bucket. Without one no rule that needs it is checked: see
/// [`CreatedResources::missing_input`].
fn bucket(input: &Input) -> &str {
    input.bucket.as_deref().unwrap_or_default()
}

/// Holds if a listing has these entries, in any order.
fn expect_same_keys(listed: &[String], expected: &[String]) -> RuleOutcome {
    let mut sorted = listed.to_owned();
    sorted.sort();
    if sorted == expected {
        return HOLDS;
    }
    let join_keys = |keys: &[String]| format!("[{}]", keys.join(", "));
    Err(RuleFailure::Broken(format!(
        "the list has {} instead of {}",
        join_keys(listed),
        join_keys(expected)
    )))
}

#[cfg(test)]
mod tests;
