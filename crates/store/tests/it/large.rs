//! Large objects, in processes of their own, so that their memory can be measured alone.

use bowline_store::Backend;
use bytes::Bytes;
use futures::TryStreamExt as _;

use crate::{filesystem, s3};

const PIECE: usize = 256 << 10;
const PIECES: usize = 256;

#[tokio::test]
async fn large_objects_stream_into_a_folder_in_constant_memory() {
    assert_constant_memory("large::streams_into_a_folder", 8).await;
}

#[tokio::test]
async fn large_objects_stream_to_s3_in_constant_memory() {
    assert_constant_memory("large::streams_to_s3", 24).await;
}

async fn assert_constant_memory(victim: &str, limit_mib: usize) {
    let output = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--exact", victim])
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    let grown: usize = text
        .lines()
        .find_map(|line| line.split_once("grown by ")?.1.split_once(" KiB")?.0.parse().ok())
        .expect("it says how much");
    assert!(grown < limit_mib << 10, "64 MiB each way took {grown} KiB");
}

#[tokio::test]
#[ignore = "started by another test, in a process of its own"]
async fn streams_into_a_folder() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join(filesystem::BUCKET)).unwrap();
    put_and_get_large_object(&filesystem::open(root.path()).await, filesystem::BUCKET).await;
}

#[tokio::test]
#[ignore = "started by another test, in a process of its own"]
async fn streams_to_s3() {
    let real = s3::RealS3::start().await;
    put_and_get_large_object(&real.store(&[]).await, s3::BUCKET).await;
}

async fn put_and_get_large_object(store: &dyn Backend, bucket: &str) {
    let put = |key: &'static str, count: usize| {
        let piece = move |n: usize| Ok(Bytes::from(vec![u8::try_from(n % 251).unwrap(); PIECE]));
        let body = Box::pin(futures::stream::iter((0..count).map(piece)));
        async move { store.put_object(bucket, key, body).await.unwrap() }
    };
    // Memory of connections and buffers is measured after a small object.
    put("small", 4).await;
    let before = peak_memory();
    put("large", PIECES).await;
    let mut stream = store.get_object(bucket, "large").await.unwrap();
    let mut length = 0;
    while let Some(piece) = stream.try_next().await.unwrap() {
        for (n, byte) in piece.iter().enumerate().step_by(4096) {
            assert_eq!(usize::from(*byte), (length + n) / PIECE % 251);
        }
        length += piece.len();
    }
    assert_eq!(length, PIECE * PIECES);
    println!("grown by {} KiB", peak_memory() - before);
}

/// The most memory that this process has ever had, in KiB.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
