//! Velero's own plugin for S3, unmodified, against a real S3 server.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::{ByteStream, Class, Config, ObjectStore};
use bowline_plugin_host::{Host, Options};
use bowline_testbed::program::{self, Program};
use bowline_testbed::{Bed, S3, s3};
use bytes::Bytes;
use futures::TryStreamExt as _;

const BUCKET: &str = "objects";
const MIB: usize = 1 << 20;

struct Aws {
    host: Host,
    s3: S3,
    bed: Bed,
}

impl Aws {
    async fn start() -> Self {
        let bed = Bed::new().unwrap();
        let s3 = S3::start(&bed).await.unwrap();
        s3.create_bucket(BUCKET).unwrap();
        let [plugin] = program::locate([Program::VeleroPluginForAws]).await.unwrap();
        let plugin_dir = bed.subdir("plugins").unwrap();
        symlink(plugin, plugin_dir.join("velero-plugin-for-aws")).unwrap();
        let host = Host::discover(Options { plugin_dir, ..Options::default() }).await;
        Self { host, s3, bed }
    }

    fn config(&self) -> Config {
        let url = self.s3.url();
        let credentials = self.s3.credentials_file().display().to_string();
        [
            ("bucket", BUCKET),
            ("prefix", ""),
            ("region", s3::REGION),
            ("s3ForcePathStyle", "true"),
            ("s3Url", &url),
            ("credentialsFile", &credentials),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    async fn store(&self) -> Arc<dyn ObjectStore> {
        self.host.object_store("aws", self.config()).await.unwrap().expect("it is installed")
    }
}

fn body(pieces: Vec<Bytes>) -> ByteStream {
    Box::pin(futures::stream::iter(pieces.into_iter().map(Ok)))
}

#[tokio::test]
async fn aws_plugin_is_listed_and_its_calls_succeed() {
    let aws = Aws::start().await;
    assert_eq!(aws.host.registry().problems(), []);
    let listed: Vec<String> =
        aws.host.registry().plugins().iter().map(|p| format!("{} {}", p.kind, p.name)).collect();
    assert_eq!(listed, ["VolumeSnapshotter velero.io/aws", "ObjectStore velero.io/aws"]);

    let store = aws.store().await;
    assert!(!store.object_exists(BUCKET, "backups/a/x.json").await.unwrap());
    for key in ["backups/a/x.json", "backups/b/y.json", "restores/z"] {
        store.put_object(BUCKET, key, body(vec![Bytes::from(key)])).await.unwrap();
    }
    store.put_object(BUCKET, "empty", body(Vec::new())).await.unwrap();
    assert!(store.object_exists(BUCKET, "backups/a/x.json").await.unwrap());
    let read = async |key: &str| -> Vec<u8> {
        let stream = store.get_object(BUCKET, key).await.unwrap();
        stream.try_collect::<Vec<Bytes>>().await.unwrap().concat()
    };
    assert_eq!(read("backups/b/y.json").await, b"backups/b/y.json");
    assert_eq!(read("empty").await, b"");
    let mut prefixes = store.list_common_prefixes(BUCKET, "backups/", "/").await.unwrap();
    prefixes.sort();
    assert_eq!(prefixes, ["backups/a/", "backups/b/"]);
    let mut keys = store.list_objects(BUCKET, "backups/").await.unwrap();
    keys.sort();
    assert_eq!(keys, ["backups/a/x.json", "backups/b/y.json"]);
    let url = store.create_signed_url(BUCKET, "restores/z", Duration::from_mins(10)).await.unwrap();
    assert!(url.starts_with(&aws.s3.url()) && url.contains("X-Amz-Expires=600"), "{url}");
    store.delete_object(BUCKET, "restores/z").await.unwrap();
    assert!(!store.object_exists(BUCKET, "restores/z").await.unwrap());
    let Err(error) = store.get_object(BUCKET, "restores/z").await else { panic!("it is gone") };
    assert!(error.message().contains("NoSuchKey"), "{error}");
    assert_eq!(error.class(), Class::Unclear, "Go says no more than that it failed");
    aws.host.shut_down().await;
}

/// In a process of its own, so that its memory is not that of other tests.
#[tokio::test]
async fn large_objects_stream_both_ways_in_constant_memory() {
    let output = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--exact", "aws::streams_large_objects"])
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let grown: usize = text
        .lines()
        .find_map(|line| line.split_once("grown by ")?.1.split_once(" KiB")?.0.parse().ok())
        .expect("it says how much");
    assert!(grown < 24 * 1024, "64 MiB each way took {grown} KiB");
}

#[tokio::test]
#[ignore = "started by another test, in a process of its own"]
async fn streams_large_objects() {
    const PIECE: usize = MIB / 4;
    const PIECES: usize = 256;
    let aws = Aws::start().await;
    let store = aws.store().await;
    let put = |key: &'static str, count: usize| {
        let piece = move |n: usize| Ok(Bytes::from(vec![u8::try_from(n % 251).unwrap(); PIECE]));
        let body = Box::pin(futures::stream::iter((0..count).map(piece)));
        let store = &store;
        async move { store.put_object(BUCKET, key, body).await.unwrap() }
    };
    // Memory of connections and buffers is measured after a small object.
    put("small", 4).await;
    let before = peak_memory();
    put("large", PIECES).await;
    let mut stream = store.get_object(BUCKET, "large").await.unwrap();
    let mut length = 0;
    while let Some(piece) = stream.try_next().await.unwrap() {
        for (n, byte) in piece.iter().enumerate().step_by(4096) {
            assert_eq!(usize::from(*byte), (length + n) / PIECE % 251);
        }
        length += piece.len();
    }
    assert_eq!(length, PIECE * PIECES);
    println!("grown by {} KiB", peak_memory() - before);
    aws.host.shut_down().await;
}

/// The most memory that this process has ever had, in KiB.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn credentials_of_two_locations_are_never_mixed() {
    let aws = Aws::start().await;
    let good = aws.store().await;
    let wrong_file = aws.bed.dir().join("wrong-credentials");
    let text = "[default]\naws_access_key_id=bowline-testbed\naws_secret_access_key=wrong\n";
    std::fs::write(&wrong_file, text).unwrap();
    let mut config = aws.config();
    config.insert("credentialsFile".to_owned(), wrong_file.display().to_string());
    let wrong = aws.host.object_store("aws", config).await.unwrap().expect("it is installed");
    good.put_object(BUCKET, "x", body(vec![Bytes::from("x")])).await.unwrap();
    for _ in 0..10 {
        let (allowed, refused) =
            tokio::join!(good.list_objects(BUCKET, ""), wrong.list_objects(BUCKET, ""));
        assert_eq!(allowed.unwrap(), ["x"]);
        let error = refused.unwrap_err();
        assert!(error.message().contains("SignatureDoesNotMatch"), "{error}");
    }
    aws.host.shut_down().await;
}
