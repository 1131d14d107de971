//! What each store does.

use super::filesystem::FilesystemBlobs;
use super::memory::MemoryBlobs;
use super::*;

fn id(text: &str) -> BlobId {
    text.parse().unwrap()
}

async fn check(blobs: &dyn Blobs) {
    let long = id("p00112233445566778899aabbccddeeff-s0011");
    let short = id("kopia.repository");
    assert!(matches!(blobs.get(&long, 100).await, Err(Error::NotFound(_))));
    assert!(matches!(blobs.get_range(&long, 0, 1).await, Err(Error::NotFound(_))));
    blobs.put(&long, Bytes::from_static(b"first")).await.unwrap();
    blobs.put(&long, Bytes::from_static(b"0123456789")).await.unwrap();
    blobs.put(&short, Bytes::from_static(b"{}")).await.unwrap();
    assert_eq!(blobs.get(&long, 10).await.unwrap(), "0123456789");
    assert!(matches!(blobs.get(&long, 9).await, Err(Error::TooLong { .. })));
    assert_eq!(blobs.get_range(&long, 2, 3).await.unwrap(), "234");
    assert_eq!(blobs.get_range(&long, 10, 0).await.unwrap(), "");
    for (offset, length) in [(8, 3), (11, 1), (u64::MAX, 1), (0, u64::MAX)] {
        let range = blobs.get_range(&long, offset, length).await;
        assert!(range.is_err(), "{length} bytes at {offset}");
    }
    let names = |prefix: &'static str| async move {
        let mut listed = blobs.list(prefix).await.unwrap();
        listed.sort_by(|a, b| a.id.cmp(&b.id));
        listed.into_iter().map(|blob| (blob.id.to_string(), blob.length)).collect::<Vec<_>>()
    };
    assert_eq!(names("").await, [(short.to_string(), 2), (long.to_string(), 10)]);
    assert_eq!(names("p0011").await, [(long.to_string(), 10)]);
    assert_eq!(names("q").await, []);
    blobs.delete(&long).await.unwrap();
    blobs.delete(&long).await.unwrap();
    assert_eq!(names("p").await, []);
}

#[tokio::test]
async fn memory_keeps_blobs() {
    check(&MemoryBlobs::default()).await;
}

#[tokio::test]
async fn folder_keeps_blobs() {
    let folder = tempfile::tempdir().unwrap();
    check(&FilesystemBlobs::open(folder.path()).await.unwrap()).await;
}
