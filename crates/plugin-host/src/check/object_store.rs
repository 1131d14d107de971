//! The rules for object stores. All objects lie in a folder that no other check has, where Velero
//! permits one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Class, Config, Error, ObjectStore};
use bytes::Bytes;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::Input;
use super::configured::{self, Made};
use super::item_action::all_succeeded;
use super::rule::{HOLDS, Outcome, Rule, Unmet};
use crate::handle::Handle;

const AT_ONCE: usize = 16;
const MIB: usize = 1 << 20;

/// How long a signed URL is asked for, as Velero does.
const URL_TTL: Duration = Duration::from_mins(10);

/// How long an object that must not appear is watched for.
const AFTERMATH: Duration = Duration::from_millis(500);

const RULES: &[Rule<Trial>] = &[
    Rule::new("takes its configuration", |store| Box::pin(store.takes_its_configuration())),
    Rule::new("returns a small object as it was put", |store| {
        Box::pin(store.keeps("small", vec![Bytes::from_static(b"small")]))
    }),
    Rule::new("returns an empty object", |store| Box::pin(store.keeps("empty", Vec::new()))),
    Rule::new("returns 8 MiB, put in pieces, as they were put", |store| {
        let piece = |n| Bytes::from(vec![n; MIB]);
        Box::pin(store.keeps("large", (0..8).map(piece).collect()))
    }),
    Rule::new("tells that an object exists, or not", |store| Box::pin(store.tells_what_exists())),
    Rule::new("makes a missing object an error of the call", |store| {
        Box::pin(store.refuses_what_is_missing())
    }),
    Rule::new("lists the objects below a prefix", |store| Box::pin(store.lists_objects())),
    Rule::new("lists common prefixes, each once", |store| Box::pin(store.lists_prefixes())),
    Rule::new("replaces an object that is put again", |store| Box::pin(store.replaces())),
    Rule::new("keeps nothing of an upload that broke", |store| {
        Box::pin(store.keeps_nothing_of_a_broken_upload())
    }),
    Rule::new("gives a signed URL", |store| Box::pin(store.gives_a_signed_url())),
    Rule::new("deletes an object", |store| Box::pin(store.deletes())),
    Rule::new("puts and returns 16 objects at once", |store| Box::pin(store.works_at_once())),
    Rule::new("knows its objects after a restart of its process", |store| {
        Box::pin(store.works_after_a_restart())
    }),
];

const CLEAN_UP: Rule<Trial> =
    Rule::new("deletes all that the check put", |store| Box::pin(store.clean_up()));

type Trial = configured::Trial<Objects>;

/// What a check put into a bucket.
#[derive(Default)]
pub(super) struct Objects {
    /// What may be there.
    keys: Vec<String>,
}

#[async_trait]
impl Made for Objects {
    type Plugin = dyn ObjectStore;

    const RULES: &'static [Rule<Trial>] = RULES;
    const CLEAN_UP: Rule<Trial> = CLEAN_UP;

    fn plugin(handle: Handle) -> Arc<Self::Plugin> {
        Arc::new(handle)
    }

    /// With what a server adds to the configuration of a location.
    fn config(input: &Input) -> Config {
        let mut config = input.config.clone();
        if let Some(bucket) = &input.bucket {
            config.entry("bucket".to_owned()).or_insert_with(|| bucket.clone());
        }
        let prefix = config.entry("prefix".to_owned()).or_default();
        *prefix = prefix.trim_matches('/').to_owned();
        config
    }

    fn lacks(input: &Input) -> Option<&'static str> {
        input.bucket.is_none().then_some("name a scratch bucket with --bucket")
    }

    async fn init(plugin: &Self::Plugin, config: &Config) -> Result<(), Error> {
        plugin.init(config).await
    }

    fn left(&self, input: &Input) -> Vec<String> {
        let keys = self.keys.iter();
        keys.map(|key| format!("object {key} in the bucket {}", bucket(input))).collect()
    }
}

impl Trial {
    async fn keeps(&mut self, name: &str, pieces: Vec<Bytes>) -> Outcome {
        let key = self.put(name, pieces.clone()).await?;
        self.returns(&key, &pieces.concat()).await
    }

    async fn tells_what_exists(&mut self) -> Outcome {
        let key = self.put("exists", vec![Bytes::from_static(b"x")]).await?;
        match (self.exists(&key).await?, self.exists(&self.key("none")).await?) {
            (true, false) => HOLDS,
            (false, _) => Err(Unmet::broken("it says that an object which was put does not exist")),
            (_, true) => Err(Unmet::broken("it says that an object exists which was never put")),
        }
    }

    async fn refuses_what_is_missing(&mut self) -> Outcome {
        match self.called.get_object(bucket(&self.input), &self.key("none")).await {
            Err(_) => HOLDS,
            Ok(_) => Err(Unmet::broken("it returned a stream, so an error would come too late")),
        }
    }

    async fn lists_objects(&mut self) -> Outcome {
        let mut expected = Vec::new();
        for name in ["list/a/1", "list/a/2", "list/b/1", "list/c"] {
            expected.push(self.put(name, vec![Bytes::from_static(b"x")]).await?);
        }
        let bucket = bucket(&self.input);
        same(&self.called.list_objects(bucket, &self.key("list/")).await?, &expected)?;
        same(&self.called.list_objects(bucket, &self.key("nothing/")).await?, &[])
    }

    /// After [`lists_objects`](Self::lists_objects), which put what is listed here.
    async fn lists_prefixes(&mut self) -> Outcome {
        let prefix = self.key("list/");
        let listed = self.called.list_common_prefixes(bucket(&self.input), &prefix, "/").await?;
        same(&listed, &[self.key("list/a/"), self.key("list/b/")])
    }

    async fn replaces(&mut self) -> Outcome {
        self.put("again", vec![Bytes::from_static(b"the first, which is longer")]).await?;
        self.keeps("again", vec![Bytes::from_static(b"the second")]).await
    }

    async fn keeps_nothing_of_a_broken_upload(&mut self) -> Outcome {
        let key = self.remember("broken");
        let pieces = (0..20).map(|n| match n {
            19 => Err(io::Error::other("the source of the upload broke, as it was meant to")),
            _ => Ok(Bytes::from(vec![7; MIB / 8])),
        });
        let body: ByteStream = Box::pin(stream::iter(pieces));
        if self.called.put_object(bucket(&self.input), &key, body).await.is_ok() {
            return Err(Unmet::broken("it took a part of the object for the whole"));
        }
        // The plugin hears of it at the same time as we do, and may do the wrong thing only then.
        for pause in [Duration::ZERO, AFTERMATH] {
            tokio::time::sleep(pause).await;
            if self.exists(&key).await? {
                return Err(Unmet::broken("a part of the object is there"));
            }
        }
        HOLDS
    }

    async fn gives_a_signed_url(&mut self) -> Outcome {
        let key = self.put("signed", vec![Bytes::from_static(b"x")]).await?;
        let url = match self.called.create_signed_url(bucket(&self.input), &key, URL_TTL).await {
            Err(error) if error.class() == Class::Unimplemented => {
                return Ok(Some("it has none".to_owned()));
            }
            url => url?,
        };
        if url.contains("://") { HOLDS } else { Err(Unmet::Broken(format!("`{url}` is no URL"))) }
    }

    async fn deletes(&mut self) -> Outcome {
        let key = self.put("deleted", vec![Bytes::from_static(b"x")]).await?;
        self.called.delete_object(bucket(&self.input), &key).await?;
        if self.exists(&key).await? {
            return Err(Unmet::broken("it still exists"));
        }
        HOLDS
    }

    async fn works_at_once(&mut self) -> Outcome {
        let keys: Vec<String> =
            (0..AT_ONCE).map(|n| self.remember(&format!("at-once/{n}"))).collect();
        let put = |key: &'_ String| self.put_at(key.clone(), vec![Bytes::from(key.clone())]);
        all_succeeded(join_all(keys.iter().map(put)).await)?;
        let returned = join_all(keys.iter().map(|key| self.returns(key, key.as_bytes()))).await;
        returned.into_iter().find(Result::is_err).unwrap_or(HOLDS)
    }

    async fn works_after_a_restart(&mut self) -> Outcome {
        let key = self.put("restart", vec![Bytes::from_static(b"before")]).await?;
        self.process.restart().await;
        self.returns(&key, b"before").await
    }

    /// Deletes what lies below the folder, by listing and from memory.
    async fn clean_up(&mut self) -> Outcome {
        self.made.keys.extend(self.listed().await.unwrap_or_default());
        self.made.keys.sort();
        self.made.keys.dedup();
        let (called, bucket, keys) = (&self.called, bucket(&self.input), self.made.keys.clone());
        let delete = async |key: &'_ String| (key.clone(), called.delete_object(bucket, key).await);
        let mut coming: FuturesUnordered<_> = keys.iter().map(delete).collect();
        while let Some((key, deleted)) = coming.next().await {
            // That one is gone already may be an error, and is none here: the listing will tell.
            if deleted.is_ok() {
                self.made.keys.retain(|left| *left != key);
            }
        }
        drop(coming);
        self.made.keys = self.listed().await?;
        HOLDS
    }

    /// What it lists below the folder. It is the plugin's word: nothing outside is ours.
    async fn listed(&self) -> Result<Vec<String>, Error> {
        let folder = self.folder();
        let mut keys = self.called.list_objects(bucket(&self.input), &folder).await?;
        keys.retain(|key| key.starts_with(&folder));
        Ok(keys)
    }

    /// Where all keys lie. Velero makes a location unavailable that has a top-level folder which it
    /// does not know; `plugins` it does. (pkg/persistence/object_store_layout.go)
    fn folder(&self) -> String {
        let prefix = self.config.get("prefix").filter(|prefix| !prefix.is_empty());
        let prefix = prefix.map(|prefix| format!("{prefix}/")).unwrap_or_default();
        format!("{prefix}plugins/{}/", self.input.name())
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.folder())
    }

    /// The key of something that is about to be put, so that it will be deleted.
    fn remember(&mut self, name: &str) -> String {
        let key = self.key(name);
        self.made.keys.push(key.clone());
        key
    }

    async fn put(&mut self, name: &str, pieces: Vec<Bytes>) -> Result<String, Error> {
        let key = self.remember(name);
        self.put_at(key.clone(), pieces).await?;
        Ok(key)
    }

    async fn put_at(&self, key: String, pieces: Vec<Bytes>) -> Result<(), Error> {
        let body: ByteStream = Box::pin(stream::iter(pieces.into_iter().map(Ok)));
        self.called.put_object(bucket(&self.input), &key, body).await
    }

    async fn exists(&self, key: &str) -> Result<bool, Error> {
        self.called.object_exists(bucket(&self.input), key).await
    }

    async fn returns(&self, key: &str, expected: &[u8]) -> Outcome {
        let stream = self.called.get_object(bucket(&self.input), key).await?;
        let pieces: Vec<Bytes> =
            stream.try_collect().await.map_err(|error| Unmet::Broken(error.to_string()))?;
        let got = pieces.concat();
        if got == expected {
            return HOLDS;
        }
        let lengths = format!("{} bytes were put, {} came back", expected.len(), got.len());
        let other = if got.len() == expected.len() { ", and others" } else { "" };
        Err(Unmet::Broken(format!("{lengths}{other}")))
    }
}

/// The bucket. Without one no rule is judged that needs it: see [`Made::lacks`].
fn bucket(input: &Input) -> &str {
    input.bucket.as_deref().unwrap_or_default()
}

/// Holds if a listing has these entries, in any order.
fn same(listed: &[String], expected: &[String]) -> Outcome {
    let mut sorted = listed.to_owned();
    sorted.sort();
    if sorted == expected {
        return HOLDS;
    }
    let words = |keys: &[String]| format!("[{}]", keys.join(", "));
    Err(Unmet::Broken(format!("it listed {} instead of {}", words(listed), words(expected))))
}

#[cfg(test)]
mod tests;
