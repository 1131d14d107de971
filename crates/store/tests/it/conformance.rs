//! Rules for all backends.

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
    /// Guarantee of a conditional creation.
    pub guarantee: Guarantee,
}

/// Runs every case. The bucket is empty again afterwards.
pub(crate) async fn assert_conforms(subject: &Subject) {
    returns_what_was_put(subject).await;
    put_replaces(subject).await;
    returns_the_asked_part(subject).await;
    missing_object_is_not_found(subject).await;
    lists_objects_and_prefixes(subject).await;
    deletes_objects(subject).await;
    accepts_unusual_keys(subject).await;
    create_object_never_replaces(subject).await;
    broken_upload_leaves_no_object(subject).await;
    dropped_upload_leaves_no_object(subject).await;
    missing_bucket_is_reported(subject).await;
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
        let listing = self.backend.list_common_prefixes(self.bucket, prefix, "/").await;
        let mut prefixes = listing.unwrap();
        prefixes.sort();
        prefixes
    }

    pub(crate) async fn clear(&self) {
        for key in self.keys("").await {
            self.backend.delete_object(self.bucket, &key).await.unwrap();
        }
    }
}

async fn returns_what_was_put(subject: &Subject) {
    subject.put("small", "text").await;
    subject.put("empty", "").await;
    let pieces: Vec<_> = (0..200_u8).map(|n| Ok(Bytes::from(vec![n; 70_001]))).collect();
    subject
        .backend
        .put_object(subject.bucket, "long", Box::pin(stream::iter(pieces)))
        .await
        .unwrap();
    assert_eq!(subject.get("small").await, "text");
    assert_eq!(subject.get("empty").await, "");
    let long = subject.get("long").await;
    assert_eq!(long.len(), 200 * 70_001);
    assert!(
        long.chunks(70_001)
            .enumerate()
            .all(|(n, chunk)| chunk.iter().all(|b| usize::from(*b) == n))
    );
    let none: ByteStream = Box::pin(stream::empty());
    subject.backend.put_object(subject.bucket, "empty", none).await.unwrap();
    assert_eq!(subject.get("empty").await, "");
    subject.clear().await;
}

async fn returns_the_asked_part(subject: &Subject) {
    let content: Vec<u8> = (0..700_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    subject.put("long", content.clone()).await;
    for (start, end) in [(0, 1), (0, 700_000), (1, 300_001), (699_999, 700_000), (650_000, 800_000)]
    {
        let range = start as u64..end as u64;
        let part = subject.backend.get_range(subject.bucket, "long", range).await.unwrap();
        let part = part.try_collect::<Vec<Bytes>>().await.unwrap().concat();
        assert!(part == content[start..end.min(content.len())], "{start}..{end}");
    }
    assert!(subject.backend.get_range(subject.bucket, "none", 0..1).await.is_err());
    subject.clear().await;
}

async fn put_replaces(subject: &Subject) {
    subject.put("a/b", "old and longer").await;
    subject.put("a/b", "new").await;
    assert_eq!(subject.get("a/b").await, "new");
    subject.clear().await;
}

async fn missing_object_is_not_found(subject: &Subject) {
    assert!(!subject.backend.object_exists(subject.bucket, "a/b").await.unwrap());
    let Err(error) = subject.backend.get_object(subject.bucket, "a/b").await else {
        panic!("there is none")
    };
    let text = error.message().to_lowercase();
    assert!(text.contains("not exist") || text.contains("nosuchkey"), "{error}");
    subject.put("a/b", "x").await;
    assert!(subject.backend.object_exists(subject.bucket, "a/b").await.unwrap());
    assert!(
        !subject.backend.object_exists(subject.bucket, "a").await.unwrap(),
        "a directory is no object"
    );
    assert!(!subject.backend.object_exists(subject.bucket, "a/b/c").await.unwrap());
    subject.clear().await;
}

async fn lists_objects_and_prefixes(subject: &Subject) {
    assert_eq!(subject.keys("").await, Vec::<String>::new());
    assert_eq!(subject.prefixes("nowhere/").await, Vec::<String>::new());
    for key in
        ["top", "backups/a/x", "backups/a/deep/y", "backups/ab/x", "backups/file", "restores/r/x"]
    {
        subject.put(key, key).await;
    }
    assert_eq!(subject.prefixes("").await, ["backups/", "restores/"]);
    assert_eq!(subject.prefixes("backups/").await, ["backups/a/", "backups/ab/"]);
    assert_eq!(subject.prefixes("backups/a").await, ["backups/a/", "backups/ab/"]);
    assert_eq!(subject.prefixes("backups/a/").await, ["backups/a/deep/"]);
    assert_eq!(subject.keys("backups/a/").await, ["backups/a/deep/y", "backups/a/x"]);
    assert_eq!(
        subject.keys("backups/a").await,
        ["backups/a/deep/y", "backups/a/x", "backups/ab/x"]
    );
    assert_eq!(subject.keys("").await.len(), 6);
    subject.clear().await;
}

async fn deletes_objects(subject: &Subject) {
    subject.put("a/b/c", "x").await;
    subject.put("a/d", "x").await;
    subject.backend.delete_object(subject.bucket, "a/b/c").await.unwrap();
    assert!(!subject.backend.object_exists(subject.bucket, "a/b/c").await.unwrap());
    assert_eq!(subject.prefixes("a/").await, Vec::<String>::new(), "no directory is left behind");
    assert_eq!(subject.get("a/d").await, "x");
    subject
        .backend
        .delete_object(subject.bucket, "a/b/c")
        .await
        .expect("to delete nothing is no error");
    subject.backend.delete_object(subject.bucket, "a/d").await.unwrap();
    assert_eq!(subject.prefixes("").await, Vec::<String>::new());
    subject.put("a/d", "again").await;
    assert_eq!(subject.get("a/d").await, "again");
    subject.clear().await;
}

async fn accepts_unusual_keys(subject: &Subject) {
    let keys =
        ["ü/日本語.json", "a b/c d", "100%/x%20y", "a+b&c=d?e#f", "q'\"<>;:@,$!~(){}[]|^`", "a\\b"];
    for key in keys {
        subject.put(key, key).await;
    }
    for key in keys {
        assert_eq!(subject.get(key).await, key);
        assert!(subject.backend.object_exists(subject.bucket, key).await.unwrap(), "{key}");
    }
    let mut expected = keys;
    expected.sort_unstable();
    assert_eq!(subject.keys("").await, expected);
    assert_eq!(subject.prefixes("").await, ["100%/", "a b/", "ü/"]);
    assert_eq!(subject.keys("100%/").await, ["100%/x%20y"]);
    subject.clear().await;
}

async fn create_object_never_replaces(subject: &Subject) {
    let create = |content: &str| {
        let content = Bytes::from(content.to_owned());
        subject.backend.create_object(subject.bucket, "dir/record", content)
    };
    assert_eq!(create("first").await.unwrap(), Creation::Created(subject.guarantee));
    assert_eq!(create("second").await.unwrap(), Creation::AlreadyExists);
    assert_eq!(subject.get("dir/record").await, "first");
    subject.clear().await;
    if subject.guarantee == Guarantee::Atomic {
        for _ in 0..20 {
            let writers = (0..16).map(|n| async move { (n, create(&format!("writer {n}")).await) });
            let outcomes = futures::future::join_all(writers).await;
            let winners: Vec<_> = outcomes
                .iter()
                .filter(|(_, outcome)| *outcome.as_ref().unwrap() != Creation::AlreadyExists)
                .collect();
            let [(winner, _)] = winners[..] else { panic!("one wins: {outcomes:?}") };
            assert_eq!(subject.get("dir/record").await, format!("writer {winner}"));
            subject.clear().await;
        }
    }
}

/// More than one part, so that something is on its way before it breaks.
fn pieces() -> impl futures::Stream<Item = io::Result<Bytes>> {
    stream::iter((0..24).map(|_| Ok(Bytes::from(vec![7; 512 << 10]))))
}

async fn broken_upload_leaves_no_object(subject: &Subject) {
    subject.put("kept", "old").await;
    for (key, begin) in [("kept", 0), ("kept", 24), ("fresh/new", 0), ("fresh/new", 24)] {
        let broken = stream::iter([Err(io::Error::other("the disk is on fire"))]);
        let content: ByteStream = Box::pin(pieces().take(begin).chain(broken));
        let error = subject.backend.put_object(subject.bucket, key, content).await.unwrap_err();
        assert!(error.message().contains("the disk is on fire"), "{error}");
    }
    assert_eq!(subject.get("kept").await, "old");
    assert_eq!(subject.keys("").await, ["kept"]);
    assert_eq!(subject.prefixes("").await, Vec::<String>::new());
    subject.clear().await;
}

async fn dropped_upload_leaves_no_object(subject: &Subject) {
    subject.put("kept", "old").await;
    for key in ["kept", "fresh/new"] {
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        let stalled = stream::once(async move {
            let _ = ended.send(());
            std::future::pending::<io::Result<Bytes>>().await
        });
        let content: ByteStream = Box::pin(pieces().chain(stalled));
        tokio::select! {
            _ = subject.backend.put_object(subject.bucket, key, content) => panic!("it cannot end"),
            _ = end => {}
        }
    }
    assert_eq!(subject.get("kept").await, "old");
    assert_eq!(subject.keys("").await, ["kept"]);
    subject.clear().await;
}

async fn missing_bucket_is_reported(subject: &Subject) {
    let missing = "no-such-bucket";
    let list = subject.backend.list_common_prefixes(missing, "", "/").await.unwrap_err();
    let put = subject.backend.put_object(missing, "a", body("x")).await.unwrap_err();
    let create = subject.backend.create_object(missing, "a", Bytes::new()).await.unwrap_err();
    for error in [list, put, create] {
        assert!(error.message().contains(missing) || error.message().contains("bucket"), "{error}");
    }
}
