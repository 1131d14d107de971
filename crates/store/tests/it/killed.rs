//! A process that is killed during a write.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_plugin::ObjectStore as _;
use bowline_testbed::eventually;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::process::Command;

use crate::conformance::body;
use crate::filesystem::{BUCKET, open};

const ROOT: &str = "BOWLINE_TEST_KILLED_ROOT";
const KEY: &str = "backups/b/b.tar.gz";

#[tokio::test]
async fn kill_during_a_write_leaves_the_old_object_and_no_visible_leftover() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(BUCKET);
    std::fs::create_dir(&folder).unwrap();
    let store = open(root.path()).await;
    store.put_object(BUCKET, KEY, body("old")).await.unwrap();

    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "killed::writes_and_never_ends"])
        .env(ROOT, root.path())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let temporary = wait_for_partial_file(&folder.join("backups/b")).await;
    victim.kill().await.unwrap();

    let stream = store.get_object(BUCKET, KEY).await.unwrap();
    assert_eq!(stream.try_collect::<Vec<Bytes>>().await.unwrap().concat(), b"old");
    assert_eq!(store.list_objects(BUCKET, "").await.unwrap(), [KEY]);
    assert!(temporary.exists(), "it was killed, so it could not tidy up");
    store.delete_object(BUCKET, KEY).await.unwrap();
    assert_eq!(store.list_common_prefixes(BUCKET, "", "/").await.unwrap(), Vec::<String>::new());
    store.put_object(BUCKET, KEY, body("new")).await.unwrap();
    assert_eq!(store.list_objects(BUCKET, "").await.unwrap(), [KEY]);
}

/// Waits until a megabyte of a temporary file is there.
async fn wait_for_partial_file(folder: &Path) -> PathBuf {
    let is_partial_file = |entry: &std::fs::DirEntry| {
        entry.file_name().to_string_lossy().starts_with(".bowline-tmp-")
            && entry.metadata().is_ok_and(|data| data.len() > 1 << 20)
    };
    eventually("a megabyte is written", Duration::from_mins(1), async || {
        let mut entries = std::fs::read_dir(folder).unwrap().flatten();
        entries.find(is_partial_file).map(|entry| entry.path())
    })
    .await
}

#[tokio::test]
#[ignore = "started by another test, and killed by it"]
async fn writes_and_never_ends() {
    let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
    let pieces = stream::iter((0..32).map(|_| Ok(Bytes::from(vec![b'n'; 256 << 10]))));
    let content = Box::pin(pieces.chain(stream::pending()));
    open(&root).await.put_object(BUCKET, KEY, content).await.unwrap();
}
