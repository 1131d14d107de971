//! The rules for object stores. All objects lie below a prefix that no other check has.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::{ByteStream, Config, Error, ObjectStore};
use bytes::Bytes;
use futures::future::join_all;
use futures::{TryStreamExt as _, stream};

use super::item_action::all_succeeded;
use super::rule::{HOLDS, Judge, Outcome, Rule, Subject, Unmet};
use super::{Bench, Input, Restart};
use crate::Plugin;
use crate::handle::Handle;
use crate::slot::{Purpose, Slot};

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

/// A store on trial, in a process of its own.
struct Trial {
    plugin: Plugin,
    store: Arc<dyn ObjectStore>,
    process: Arc<dyn Restart>,
    input: Arc<Input>,
    config: Config,
    prefix: String,
    /// What may have been put.
    keys: Vec<String>,
    is_configured: Option<bool>,
}

impl Subject for Trial {
    fn plugin(&self) -> Option<&Plugin> {
        Some(&self.plugin)
    }

    fn is_stuck(&self) -> Option<&str> {
        (self.is_configured == Some(false)).then_some("it has not taken its configuration")
    }
}

pub(super) async fn check(judge: &mut Judge<'_>, Bench { plugin, options, input }: Bench) {
    let mut config = input.config.clone();
    // What a server adds to the configuration of a location.
    config.entry("bucket".to_owned()).or_insert_with(|| input.bucket.clone());
    config.entry("prefix".to_owned()).or_default();
    let purpose = Purpose::Configured { plugin: plugin.clone(), config: config.clone() };
    let slot = Arc::new(Slot::new(&plugin.command, options, purpose));
    let handle = Arc::new(Handle::new(Arc::clone(&slot), &plugin));
    let process = Arc::clone(&slot) as Arc<dyn Restart>;
    Trial::new(plugin, handle, process, input, config).examine(judge).await;
    slot.close().await;
}

impl Trial {
    fn new(
        plugin: Plugin,
        store: Arc<dyn ObjectStore>,
        process: Arc<dyn Restart>,
        input: Arc<Input>,
        config: Config,
    ) -> Self {
        let prefix = format!("bowline-check-{}/", input.id);
        let (keys, is_configured) = (Vec::new(), None);
        Self { plugin, store, process, input, config, prefix, keys, is_configured }
    }

    async fn examine(mut self, judge: &mut Judge<'_>) {
        judge.judge(RULES, &mut self).await;
        if !self.keys.is_empty() {
            judge.judge_always(&CLEAN_UP, &mut self).await;
        }
    }

    async fn takes_its_configuration(&mut self) -> Outcome {
        self.is_configured = Some(false);
        self.store.init(&self.config).await?;
        self.is_configured = Some(true);
        HOLDS
    }

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
        match self.store.get_object(&self.input.bucket, &self.key("none")).await {
            Err(_) => HOLDS,
            Ok(_) => Err(Unmet::broken("it returned a stream, so an error would come too late")),
        }
    }

    async fn lists_objects(&mut self) -> Outcome {
        let mut expected = Vec::new();
        for name in ["list/a/1", "list/a/2", "list/b/1", "list/c"] {
            expected.push(self.put(name, vec![Bytes::from_static(b"x")]).await?);
        }
        let bucket = &self.input.bucket;
        same(&self.store.list_objects(bucket, &self.key("list/")).await?, &expected)?;
        same(&self.store.list_objects(bucket, &self.key("nothing/")).await?, &[])
    }

    /// After [`lists_objects`](Self::lists_objects), which put what is listed here.
    async fn lists_prefixes(&mut self) -> Outcome {
        let prefix = self.key("list/");
        let listed = self.store.list_common_prefixes(&self.input.bucket, &prefix, "/").await?;
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
        if self.store.put_object(&self.input.bucket, &key, body).await.is_ok() {
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
        let url = self.store.create_signed_url(&self.input.bucket, &key, URL_TTL).await?;
        if url.contains("://") { HOLDS } else { Err(Unmet::Broken(format!("`{url}` is no URL"))) }
    }

    async fn deletes(&mut self) -> Outcome {
        let key = self.put("deleted", vec![Bytes::from_static(b"x")]).await?;
        self.store.delete_object(&self.input.bucket, &key).await?;
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

    /// Deletes what lies below the prefix, by listing and from memory.
    async fn clean_up(&mut self) -> Outcome {
        let bucket = &self.input.bucket;
        let mut keys = std::mem::take(&mut self.keys);
        keys.extend(self.store.list_objects(bucket, &self.prefix).await.unwrap_or_default());
        // A listing is the plugin's word: nothing outside is touched.
        keys.retain(|key| key.starts_with(&self.prefix));
        keys.sort();
        keys.dedup();
        // That one is gone already may be an error, and is none here.
        join_all(keys.iter().map(|key| self.store.delete_object(bucket, key))).await;
        let left = self.store.list_objects(bucket, &self.prefix).await?;
        if left.is_empty() {
            return HOLDS;
        }
        Err(Unmet::Broken(format!("left in the bucket {bucket}: {}", left.join(", "))))
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The key of something that is about to be put, so that it will be deleted.
    fn remember(&mut self, name: &str) -> String {
        let key = self.key(name);
        self.keys.push(key.clone());
        key
    }

    async fn put(&mut self, name: &str, pieces: Vec<Bytes>) -> Result<String, Error> {
        let key = self.remember(name);
        self.put_at(key.clone(), pieces).await?;
        Ok(key)
    }

    async fn put_at(&self, key: String, pieces: Vec<Bytes>) -> Result<(), Error> {
        let body: ByteStream = Box::pin(stream::iter(pieces.into_iter().map(Ok)));
        self.store.put_object(&self.input.bucket, &key, body).await
    }

    async fn exists(&self, key: &str) -> Result<bool, Error> {
        self.store.object_exists(&self.input.bucket, key).await
    }

    async fn returns(&self, key: &str, expected: &[u8]) -> Outcome {
        let stream = self.store.get_object(&self.input.bucket, key).await?;
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
