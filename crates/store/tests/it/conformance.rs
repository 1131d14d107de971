//! What every backend must do.

use std::io;
use std::sync::Arc;

use bowline_plugin::ByteStream;
use bowline_store::{Backend, Creation, Guarantee};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};

/// A backend with an empty bucket.
pub(crate) struct Subject {
    pub backend: Arc<dyn Backend>,
    pub bucket: &'static str,
    /// What it promises about creation.
    pub guarantee: Guarantee,
}

/// Runs every case. The bucket is empty again afterwards.
pub(crate) async fn conforms(subject: &Subject) {
    keeps_and_returns(subject).await;
    replaces(subject).await;
    tells_what_is_missing(subject).await;
    lists(subject).await;
    deletes(subject).await;
    takes_odd_keys(subject).await;
    creates_only_what_is_absent(subject).await;
    leaves_nothing_of_a_broken_upload(subject).await;
    leaves_nothing_of_a_dropped_upload(subject).await;
    tells_a_missing_bucket(subject).await;
    assert_eq!(subject.keys("").await, Vec::<String>::new());
}

pub(crate) fn body(content: impl Into<Bytes>) -> ByteStream {
    Box::pin(stream::iter([Ok(content.into())]))
}

impl Subject {
    pub(crate) async fn put(&self, key: &str, content: impl Into<Bytes>) {
        self.backend.put_object(self.bucket, key, body(content)).await.unwrap();
    }

    pub(crate) async fn get(&self, key: &str) -> Bytes {
        let stream = self.backend.get_object(self.bucket, key).await.unwrap();
        stream.try_collect::<Vec<Bytes>>().await.unwrap().concat().into()
    }

    pub(crate) async fn keys(&self, prefix: &str) -> Vec<String> {
        let mut keys = self.backend.list_objects(self.bucket, prefix).await.unwrap();
        keys.sort();
        keys
    }

    pub(crate) async fn prefixes(&self, prefix: &str) -> Vec<String> {
        let found = self.backend.list_common_prefixes(self.bucket, prefix, "/").await;
        let mut found = found.unwrap();
        found.sort();
        found
    }

    pub(crate) async fn clear(&self) {
        for key in self.keys("").await {
            self.backend.delete_object(self.bucket, &key).await.unwrap();
        }
    }
}

async fn keeps_and_returns(it: &Subject) {
    it.put("small", "text").await;
    it.put("empty", "").await;
    let pieces: Vec<_> = (0..200_u8).map(|n| Ok(Bytes::from(vec![n; 70_001]))).collect();
    it.backend.put_object(it.bucket, "long", Box::pin(stream::iter(pieces))).await.unwrap();
    assert_eq!(it.get("small").await, "text");
    assert_eq!(it.get("empty").await, "");
    let long = it.get("long").await;
    assert_eq!(long.len(), 200 * 70_001);
    assert!(
        long.chunks(70_001)
            .enumerate()
            .all(|(n, chunk)| chunk.iter().all(|b| usize::from(*b) == n))
    );
    let none: ByteStream = Box::pin(stream::empty());
    it.backend.put_object(it.bucket, "empty", none).await.unwrap();
    assert_eq!(it.get("empty").await, "");
    it.clear().await;
}

async fn replaces(it: &Subject) {
    it.put("a/b", "old and longer").await;
    it.put("a/b", "new").await;
    assert_eq!(it.get("a/b").await, "new");
    it.clear().await;
}

async fn tells_what_is_missing(it: &Subject) {
    assert!(!it.backend.object_exists(it.bucket, "a/b").await.unwrap());
    let Err(error) = it.backend.get_object(it.bucket, "a/b").await else { panic!("there is none") };
    let text = error.message().to_lowercase();
    assert!(text.contains("not exist") || text.contains("nosuchkey"), "{error}");
    it.put("a/b", "x").await;
    assert!(it.backend.object_exists(it.bucket, "a/b").await.unwrap());
    assert!(!it.backend.object_exists(it.bucket, "a").await.unwrap(), "a folder is no object");
    assert!(!it.backend.object_exists(it.bucket, "a/b/c").await.unwrap());
    it.clear().await;
}

async fn lists(it: &Subject) {
    assert_eq!(it.keys("").await, Vec::<String>::new());
    assert_eq!(it.prefixes("nowhere/").await, Vec::<String>::new());
    for key in
        ["top", "backups/a/x", "backups/a/deep/y", "backups/ab/x", "backups/file", "restores/r/x"]
    {
        it.put(key, key).await;
    }
    assert_eq!(it.prefixes("").await, ["backups/", "restores/"]);
    assert_eq!(it.prefixes("backups/").await, ["backups/a/", "backups/ab/"]);
    assert_eq!(it.prefixes("backups/a").await, ["backups/a/", "backups/ab/"]);
    assert_eq!(it.prefixes("backups/a/").await, ["backups/a/deep/"]);
    assert_eq!(it.keys("backups/a/").await, ["backups/a/deep/y", "backups/a/x"]);
    assert_eq!(it.keys("backups/a").await, ["backups/a/deep/y", "backups/a/x", "backups/ab/x"]);
    assert_eq!(it.keys("").await.len(), 6);
    it.clear().await;
}

async fn deletes(it: &Subject) {
    it.put("a/b/c", "x").await;
    it.put("a/d", "x").await;
    it.backend.delete_object(it.bucket, "a/b/c").await.unwrap();
    assert!(!it.backend.object_exists(it.bucket, "a/b/c").await.unwrap());
    assert_eq!(it.prefixes("a/").await, Vec::<String>::new(), "no folder is left behind");
    assert_eq!(it.get("a/d").await, "x");
    it.backend.delete_object(it.bucket, "a/b/c").await.expect("to delete nothing is no error");
    it.backend.delete_object(it.bucket, "a/d").await.unwrap();
    assert_eq!(it.prefixes("").await, Vec::<String>::new());
    it.put("a/d", "again").await;
    assert_eq!(it.get("a/d").await, "again");
    it.clear().await;
}

async fn takes_odd_keys(it: &Subject) {
    let keys =
        ["ü/日本語.json", "a b/c d", "100%/x%20y", "a+b&c=d?e#f", "q'\"<>;:@,$!~(){}[]|^`", "a\\b"];
    for key in keys {
        it.put(key, key).await;
    }
    for key in keys {
        assert_eq!(it.get(key).await, key);
        assert!(it.backend.object_exists(it.bucket, key).await.unwrap(), "{key}");
    }
    let mut expected = keys;
    expected.sort_unstable();
    assert_eq!(it.keys("").await, expected);
    assert_eq!(it.prefixes("").await, ["100%/", "a b/", "ü/"]);
    assert_eq!(it.keys("100%/").await, ["100%/x%20y"]);
    it.clear().await;
}

async fn creates_only_what_is_absent(it: &Subject) {
    let create = |content: &str| {
        let content = Bytes::from(content.to_owned());
        it.backend.create_object(it.bucket, "dir/record", content)
    };
    assert_eq!(create("first").await.unwrap(), Creation::Created(it.guarantee));
    assert_eq!(create("second").await.unwrap(), Creation::Existed);
    assert_eq!(it.get("dir/record").await, "first");
    it.clear().await;
    if it.guarantee == Guarantee::Atomic {
        for _ in 0..20 {
            let writers = (0..16).map(|n| async move { (n, create(&format!("writer {n}")).await) });
            let outcomes = futures::future::join_all(writers).await;
            let winners: Vec<_> = outcomes
                .iter()
                .filter(|(_, outcome)| *outcome.as_ref().unwrap() != Creation::Existed)
                .collect();
            let [(winner, _)] = winners[..] else { panic!("one wins: {outcomes:?}") };
            assert_eq!(it.get("dir/record").await, format!("writer {winner}"));
            it.clear().await;
        }
    }
}

/// More than one part, so that something is on its way before it breaks.
fn pieces() -> impl futures::Stream<Item = io::Result<Bytes>> {
    stream::iter((0..24).map(|_| Ok(Bytes::from(vec![7; 512 << 10]))))
}

async fn leaves_nothing_of_a_broken_upload(it: &Subject) {
    it.put("kept", "old").await;
    for (key, begin) in [("kept", 0), ("kept", 24), ("fresh/new", 0), ("fresh/new", 24)] {
        let broken = stream::iter([Err(io::Error::other("the disk is on fire"))]);
        let content: ByteStream = Box::pin(pieces().take(begin).chain(broken));
        let error = it.backend.put_object(it.bucket, key, content).await.unwrap_err();
        assert!(error.message().contains("the disk is on fire"), "{error}");
    }
    assert_eq!(it.get("kept").await, "old");
    assert_eq!(it.keys("").await, ["kept"]);
    assert_eq!(it.prefixes("").await, Vec::<String>::new());
    it.clear().await;
}

async fn leaves_nothing_of_a_dropped_upload(it: &Subject) {
    it.put("kept", "old").await;
    for key in ["kept", "fresh/new"] {
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        let stalled = stream::once(async move {
            let _ = ended.send(());
            std::future::pending::<io::Result<Bytes>>().await
        });
        let content: ByteStream = Box::pin(pieces().chain(stalled));
        tokio::select! {
            _ = it.backend.put_object(it.bucket, key, content) => panic!("it cannot end"),
            _ = end => {}
        }
    }
    assert_eq!(it.get("kept").await, "old");
    assert_eq!(it.keys("").await, ["kept"]);
    it.clear().await;
}

async fn tells_a_missing_bucket(it: &Subject) {
    let missing = "no-such-bucket";
    let list = it.backend.list_common_prefixes(missing, "", "/").await.unwrap_err();
    let put = it.backend.put_object(missing, "a", body("x")).await.unwrap_err();
    let create = it.backend.create_object(missing, "a", Bytes::new()).await.unwrap_err();
    for error in [list, put, create] {
        assert!(error.message().contains(missing) || error.message().contains("bucket"), "{error}");
    }
}
