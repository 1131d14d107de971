//! Checksums of the built-in S3 backend. Buckets with Object Lock require one.

use std::time::Duration;

use bowline_plugin::{ByteStream, ObjectStore as _};
use bowline_store::Backend as _;
use bowline_store::backend::Permit;
use bytes::Bytes;
use futures::TryStreamExt as _;

use crate::conformance::body;
use crate::fake_server::FakeServer;
use crate::s3::{BUCKET, RealS3, store_with};

/// A body that is stored in two parts.
fn large_body() -> ByteStream {
    Box::pin(futures::stream::iter((0..2).map(|_| Ok(Bytes::from(vec![7; 4 << 20])))))
}

#[tokio::test]
async fn objects_are_stored_with_a_checksum_unless_disabled() {
    const INITIATE_RESPONSE: &str =
        "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
    const COMPLETE_RESPONSE: &str =
        "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>";
    for (setting, expected) in [
        (None, Some("sha256")),
        (Some("CRC32"), Some("sha256")),
        (Some("SHA1"), Some("sha256")),
        (Some("CRC64NVME"), Some("crc64nvme")),
        (Some(""), None),
    ] {
        let server = FakeServer::start(|_, request| {
            if request.line.starts_with("HEAD") {
                return ("404 Not Found", String::new(), "");
            }
            let body = match request.line.split(' ').nth(1).unwrap_or_default() {
                path if path.contains("uploads") => INITIATE_RESPONSE,
                path if path.contains("partNumber") || !path.contains("uploadId") => "",
                _ => COMPLETE_RESPONSE,
            };
            ("200 OK", "ETag: \"e\"\r\n".to_owned(), body)
        })
        .await;
        let setting: Vec<_> = setting.iter().map(|value| ("checksumAlgorithm", *value)).collect();
        let store = store_with(&server, Permit::default(), &setting).await;
        store.put_object(BUCKET, "a", body("x")).await.unwrap();
        store.create_object(BUCKET, "b", Bytes::from("x")).await.unwrap();
        store.put_object(BUCKET, "c", large_body()).await.unwrap();
        let url = store.create_signed_url(BUCKET, "a", Duration::from_mins(1)).await.unwrap();
        assert!(!url.to_lowercase().contains("checksum"), "{url}");
        let requests = server.requests.lock().clone();
        let stored: Vec<_> = requests.iter().filter(|one| one.line.starts_with("PUT")).collect();
        assert_eq!(stored.len(), 4, "two objects and two parts: {requests:?}");
        for request in stored {
            match expected {
                Some(kind) => {
                    let header = format!("\r\nx-amz-checksum-{kind}: ");
                    assert!(request.head.contains(&header), "{setting:?}: {}", request.head);
                }
                None => assert!(!request.head.contains("x-amz-checksum"), "{}", request.head),
            }
        }
    }
}

#[tokio::test]
async fn real_server_accepts_every_checksum_in_single_and_multipart_uploads() {
    let real = RealS3::start().await;
    for setting in [None, Some("CRC32"), Some("CRC64NVME"), Some("SHA256"), Some("")] {
        let setting: Vec<_> = setting.iter().map(|value| ("checksumAlgorithm", *value)).collect();
        let store = real.store(&setting).await;
        for (key, content, length) in
            [("small", body("content"), 7), ("large", large_body(), 8 << 20)]
        {
            store.put_object(BUCKET, key, content).await.unwrap();
            let stored = store.get_object(BUCKET, key).await.unwrap();
            let pieces: Vec<Bytes> = stored.try_collect().await.unwrap();
            assert_eq!(pieces.iter().map(Bytes::len).sum::<usize>(), length, "{setting:?} {key}");
        }
    }
}
