//! The built-in S3 backend, with a real S3 server and with one that misbehaves.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bowline_plugin::{Class, Code, Config, ObjectStore as _};
use bowline_store::backend::s3::{Environment, Options};
use bowline_store::backend::{Permit, PermitDenied, S3};
use bowline_store::{Backend as _, Creation, Guarantee};
use bowline_testbed::{Bed, S3 as Server, s3};
use bytes::Bytes;

use crate::conformance::{Subject, assert_conforms, body};
use crate::fake_server::FakeServer;

pub(crate) const BUCKET: &str = "objects";

/// A real server with a bucket.
pub(crate) struct RealS3 {
    pub server: Server,
    pub folder: PathBuf,
    _bed: Bed,
}

impl RealS3 {
    pub(crate) async fn start() -> Self {
        let bed = Bed::new().unwrap();
        let server = Server::start(&bed).await.unwrap();
        let folder = server.create_bucket(BUCKET).unwrap();
        Self { server, folder, _bed: bed }
    }

    pub(crate) fn config(&self, more: &[(&str, &str)]) -> Config {
        let url = self.server.url();
        let credentials = self.server.credentials_file().display().to_string();
        let mut config = config(&url, &credentials);
        config.extend(more.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        config
    }

    pub(crate) async fn store(&self, more: &[(&str, &str)]) -> S3 {
        S3::connect(&self.config(more), Options::default()).await.unwrap()
    }
}

fn config(url: &str, credentials: &str) -> Config {
    [
        ("bucket", BUCKET),
        ("prefix", ""),
        ("region", s3::REGION),
        ("s3ForcePathStyle", "true"),
        ("s3Url", url),
        ("credentialsFile", credentials),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// A store at a server that misbehaves.
async fn store_at(server: &FakeServer) -> S3 {
    store_with_permit(server, Permit::default()).await
}

async fn store_with_permit(server: &FakeServer, permit: Permit) -> S3 {
    store_with(server, permit, &[]).await
}

/// A store at a server that misbehaves, with more settings.
pub(crate) async fn store_with(server: &FakeServer, permit: Permit, more: &[(&str, &str)]) -> S3 {
    let mut config = config(&server.url, "");
    config.remove("credentialsFile");
    config.extend(more.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "hunter2")];
    let environment = Environment(keys.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    let retry_for = Duration::from_secs(3);
    let options = Options { environment, retry_for, permit, ..Options::default() };
    S3::connect(&config, options).await.unwrap()
}

#[tokio::test]
async fn built_in_s3_conforms() {
    let real = RealS3::start().await;
    let backend = Arc::new(real.store(&[]).await);
    assert_conforms(&Subject { backend, bucket: BUCKET, guarantee: Guarantee::Atomic }).await;
}

#[tokio::test]
async fn broken_upload_leaves_no_parts() {
    let real = RealS3::start().await;
    let store = real.store(&[]).await;
    let pieces = (0..15).map(|_| Ok(Bytes::from(vec![1; 1 << 20])));
    let broken = [Err(std::io::Error::other("broken"))];
    let content = Box::pin(futures::stream::iter(pieces.chain(broken)));
    store.put_object(BUCKET, "large", content).await.unwrap_err();
    let output = std::process::Command::new("find").arg(&real.folder).args(["-type", "f"]).output();
    let files = String::from_utf8(output.unwrap().stdout).unwrap();
    assert_eq!(files, "", "parts are left");
}

#[tokio::test]
async fn missing_bucket_is_an_error_with_a_hint() {
    let real = RealS3::start().await;
    let store = real.store(&[("bucket", "no-such-bucket")]).await;
    let errors = [
        store.list_common_prefixes("no-such-bucket", "", "/").await.unwrap_err(),
        store.list_objects("no-such-bucket", "").await.unwrap_err(),
        store.put_object("no-such-bucket", "a", body("x")).await.unwrap_err(),
        store.get_object("no-such-bucket", "a").await.map(drop).unwrap_err(),
        store.create_object("no-such-bucket", "a", Bytes::from("x")).await.unwrap_err(),
    ];
    for error in errors {
        assert!(error.message().contains("`no-such-bucket` does not exist: create it"), "{error}");
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    }
}

#[tokio::test]
async fn wrong_credentials_are_reported_and_never_printed() {
    let real = RealS3::start().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let id = &real.server.credentials().access_key;
    let text = format!("[default]\naws_access_key_id={id}\naws_secret_access_key=hunter2\n");
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().display().to_string();
    let store = real.store(&[("credentialsFile", &path)]).await;
    let error = store.list_objects(BUCKET, "").await.unwrap_err();
    assert_eq!(error.code(), Code::Unauthenticated, "{error}");
    assert!(error.message().contains("are not accepted (SignatureDoesNotMatch: The"), "{error}");
    assert!(!format!("{error:?} {store:?}").contains("hunter2"));
}

#[tokio::test]
async fn signed_url_downloads_without_credentials_until_it_expires() {
    let real = RealS3::start().await;
    let store = real.store(&[]).await;
    let key = "backups/b/b ü+.tar.gz";
    store.put_object(BUCKET, key, body("content")).await.unwrap();
    let url = store.create_signed_url(BUCKET, key, Duration::from_mins(10)).await.unwrap();
    assert!(url.contains("X-Amz-Expires=600"), "{url}");
    let body = http_get(&url).await;
    assert!(body.ends_with("content"), "{body}");
    let wrong = http_get(&url.replace("Expires=600", "Expires=601")).await;
    assert!(wrong.contains("403"), "{wrong}");
    let public = real.store(&[("publicUrl", "https://public.example")]).await;
    let url = public.create_signed_url(BUCKET, "a", Duration::from_mins(10)).await.unwrap();
    assert!(url.starts_with("https://public.example/objects/a?"), "{url}");
}

/// A plain request, without a library that would know S3.
async fn http_get(url: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut stream = tokio::net::TcpStream::connect(host).await.unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut body = String::new();
    stream.read_to_string(&mut body).await.unwrap();
    body
}

const DENIED: &str = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";
const BUSY: &str = "<Error><Code>SlowDown</Code></Error>";
const UNKNOWN: &str = "<Error><Code>NotImplemented</Code></Error>";

#[tokio::test]
async fn read_only_bucket_is_reported() {
    let server = FakeServer::start(|_, request| match request.line.split(' ').next() {
        Some("PUT" | "DELETE" | "POST") => ("403 Forbidden", String::new(), DENIED),
        _ => ("404 Not Found", String::new(), ""),
    })
    .await;
    let store = store_at(&server).await;
    let large = Box::pin(futures::stream::iter([Ok(Bytes::from(vec![0; 6 << 20]))]));
    let errors = [
        store.put_object(BUCKET, "a", body("x")).await.unwrap_err(),
        store.put_object(BUCKET, "a", large).await.unwrap_err(),
        store.create_object(BUCKET, "a", Bytes::from("x")).await.unwrap_err(),
        store.delete_object(BUCKET, "a").await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(
            (error.code(), error.class()),
            (Code::PermissionDenied, Class::Permanent),
            "{error}"
        );
        assert!(error.message().contains("do not allow it"), "{error}");
        assert!(!error.message().contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn request_to_a_busy_server_is_retried() {
    let server = FakeServer::start(|number, _| match number {
        0..3 => ("503 Slow Down", String::new(), BUSY),
        _ => ("200 OK", "ETag: \"e\"\r\n".to_owned(), ""),
    })
    .await;
    store_at(&server).await.put_object(BUCKET, "a", body("x")).await.unwrap();
    assert_eq!(server.lines(), ["PUT /objects/a HTTP/1.1"; 4]);
}

#[tokio::test]
async fn server_that_stays_busy_or_unreachable_is_a_transient_error() {
    let server = FakeServer::start(|_, _| ("503 Slow Down", String::new(), BUSY)).await;
    let error = store_at(&server).await.put_object(BUCKET, "a", body("x")).await.unwrap_err();
    assert_eq!((error.code(), error.class()), (Code::Unavailable, Class::Transient), "{error}");
    assert!(error.message().contains("SlowDown"), "{error}");
    let store = store_at(&server).await;
    drop(server);
    let error = store.put_object(BUCKET, "a", body("x")).await.unwrap_err();
    assert_eq!(error.class(), Class::Transient, "{error}");
    assert!(error.message().contains("refused"), "{error}");
}

#[tokio::test]
async fn without_conditional_puts_existence_is_checked_first_and_reported() {
    let server = FakeServer::start(|_, request| {
        if request.line.starts_with("HEAD") {
            ("404 Not Found", String::new(), "")
        } else if request.head.contains("if-none-match") {
            ("501 Not Implemented", String::new(), UNKNOWN)
        } else {
            ("200 OK", "ETag: \"e\"\r\n".to_owned(), "")
        }
    })
    .await;
    let created =
        store_at(&server).await.create_object(BUCKET, "a", Bytes::from("x")).await.unwrap();
    assert_eq!(created, Creation::Created(Guarantee::CheckedFirst));
}

#[tokio::test]
async fn settings_are_sent_as_headers() {
    let server = FakeServer::start(|_, _| ("200 OK", "ETag: \"e\"\r\n".to_owned(), "")).await;
    let environment = Environment::default();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    std::fs::write(
        &file,
        "[p]\naws_access_key_id=id-p\naws_secret_access_key=s\naws_session_token=t\n",
    )
    .unwrap();
    let mut config = config(&server.url, file.to_str().unwrap());
    for (key, value) in [("profile", "p"), ("kmsKeyId", "key-1"), ("tagging", "a=1&b=2")] {
        config.insert(key.to_owned(), value.to_owned());
    }
    let options = Options { environment, ..Options::default() };
    let store = S3::connect(&config, options.clone()).await.unwrap();
    store.put_object(BUCKET, "a", body("x")).await.unwrap();
    config.remove("kmsKeyId");
    config.insert("serverSideEncryption".to_owned(), "AES256".to_owned());
    store.init(&config).await.unwrap();
    store.put_object(BUCKET, "a", body("x")).await.unwrap();
    let requests = server.requests.lock().clone();
    for expected in [
        "x-amz-server-side-encryption: aws:kms\r\n",
        "x-amz-server-side-encryption-aws-kms-key-id: key-1",
        "x-amz-tagging: a=1&b=2",
        "x-amz-security-token: t",
        "credential=id-p/",
        "/us-east-1/s3/aws4_request",
    ] {
        assert!(requests[0].head.contains(expected), "{expected}: {}", requests[0].head);
    }
    assert!(requests[1].head.contains("x-amz-server-side-encryption: aes256"), "{:?}", requests[1]);
    config.insert("serverSideEncryption".to_owned(), "rot13".to_owned());
    let error = S3::connect(&config, options).await.unwrap_err();
    assert!(error.message().contains("rot13"), "{error}");
}

#[tokio::test]
async fn no_redirect_is_followed() {
    let secret = FakeServer::start(|_, _| ("200 OK", String::new(), "role credentials")).await;
    let location = format!("Location: {}/latest/meta-data\r\n", secret.url);
    let server = FakeServer::start(move |_, _| ("302 Found", location.clone(), "")).await;
    let store = store_at(&server).await;
    assert!(store.get_object(BUCKET, "a").await.is_err());
    assert!(store.object_exists(BUCKET, "a").await.is_err());
    assert!(store.list_objects(BUCKET, "").await.is_err());
    assert_eq!(secret.lines(), Vec::<String>::new());
}

#[tokio::test]
async fn metadata_address_is_refused_unless_the_server_allows_it() {
    let config = config("http://169.254.169.254", "");
    let error = S3::connect(&config, Options::default()).await.unwrap_err();
    assert!(error.message().contains("metadata address"), "{error}");
    let options = Options { allow_link_local: true, ..Options::default() };
    S3::connect(&config, options).await.unwrap();
}

#[tokio::test]
async fn request_is_not_retried_after_the_permit_has_ended() {
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    let server = FakeServer::start(move |_, request| {
        // The permit ends while the request is on its way.
        ends.store(!request.line.starts_with("HEAD"), Ordering::SeqCst);
        ("503 Service Unavailable", String::new(), "")
    })
    .await;
    let permit = Permit::new(move || {
        let is_over = is_over.load(Ordering::SeqCst);
        if is_over { Err(PermitDenied("its time is over".to_owned())) } else { Ok(()) }
    });
    let store = store_with_permit(&server, permit).await;
    let error = store.put_object(BUCKET, "a", body("x")).await.unwrap_err();
    assert!(error.message().contains("its time is over"), "{error}");
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!(server.lines(), [format!("PUT /{BUCKET}/a HTTP/1.1")]);
    store.delete_object(BUCKET, "a").await.unwrap_err();
    assert_eq!(server.lines().len(), 1, "what changes something is not sent");
    store.object_exists(BUCKET, "a").await.unwrap_err();
    assert!(server.lines().len() > 1, "what only reads is sent");
}
