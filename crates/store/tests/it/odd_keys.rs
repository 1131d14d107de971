//! Unusual keys in a bucket, and answers of servers that are no S3 servers.

use std::sync::Arc;

use bowline_plugin::Code;
use bowline_store::backend::Permit;
use bowline_store::layout::Prefix;
use bowline_store::{BackupName, BackupStore, Error};

use crate::fake_server::{FakeServer, Request};
use crate::s3::{BUCKET, store_with};

const LIST_FOLDERS_XML: &str = "<ListBucketResult><EncodingType>url</EncodingType>\
    <CommonPrefixes><Prefix>backups//</Prefix></CommonPrefixes>\
    <CommonPrefixes><Prefix>backups/../</Prefix></CommonPrefixes>\
    <CommonPrefixes><Prefix>backups/%01/</Prefix></CommonPrefixes>\
    <CommonPrefixes><Prefix>backups/good/</Prefix></CommonPrefixes></ListBucketResult>";
const LIST_FILES_XML: &str = "<ListBucketResult><EncodingType>url</EncodingType>\
    <Contents><Key>backups/good/</Key></Contents>\
    <Contents><Key>backups/good//x</Key></Contents>\
    <Contents><Key>backups/good/../y</Key></Contents>\
    <Contents><Key>backups/good/%01</Key></Contents>\
    <Contents><Key>backups/good/good-logs.gz</Key></Contents></ListBucketResult>";

fn respond(request: &Request) -> (&'static str, String, &'static str) {
    let is = |begin: &str| request.line.starts_with(begin);
    let body = if is("GET /objects?delimiter=") {
        LIST_FOLDERS_XML
    } else if is("GET /objects?encoding-type=url&list-type=2&prefix=backups%2Fgood%2F") {
        LIST_FILES_XML
    } else if is("POST /objects?delete") {
        "<DeleteResult/>"
    } else if is("DELETE") {
        ""
    } else {
        return ("404 Not Found", String::new(), "");
    };
    ("200 OK", String::new(), body)
}

async fn store_at(server: &FakeServer) -> BackupStore {
    let backend = Arc::new(store_with(server, Permit::default(), &[]).await);
    BackupStore::new(backend, BUCKET, &Prefix::default())
}

#[tokio::test]
async fn unusual_key_does_not_hide_other_backups() {
    let server = FakeServer::start(|_, request| respond(request)).await;
    let listing = store_at(&server).await.list().await.unwrap();
    assert_eq!(listing.backups, [BackupName::new("good").unwrap()]);
    assert_eq!(listing.unexpected, ["", "..", "\u{1}"]);
}

#[tokio::test]
async fn backup_is_deleted_with_its_unusual_keys() {
    let server = FakeServer::start(|_, request| respond(request)).await;
    store_at(&server).await.delete_backup(&BackupName::new("good").unwrap()).await.unwrap();
    let lines = server.lines();
    let mut changes: Vec<&str> = lines
        .iter()
        .filter(|line| line.starts_with("DELETE") || line.starts_with("POST"))
        .map(|line| line.strip_suffix(" HTTP/1.1").unwrap())
        .collect();
    changes.sort_unstable();
    assert_eq!(
        changes,
        [
            "DELETE /objects/backups/good/",
            "DELETE /objects/backups/good/%01",
            "DELETE /objects/backups/good//x",
            "DELETE /objects/backups/good/good-logs.gz",
            // An address cannot name this one, so it is in the body.
            "POST /objects?delete=",
        ]
    );
}

#[tokio::test]
async fn url_that_answers_with_html_is_refused_as_location() {
    const PAGE: &str = "<!doctype html><html><head><title>Console</title></head></html>";
    let server =
        FakeServer::start(|_, _| ("200 OK", "Content-Type: text/html\r\n".to_owned(), PAGE)).await;
    let error = store_at(&server).await.validate().await.unwrap_err();
    let Error::Backend { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.code(), Code::FailedPrecondition);
    assert!(source.message().contains("not that of an S3 service"), "{source}");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn response_of_another_service_is_not_echoed() {
    let secret = "internal: hunter2";
    let server = FakeServer::start(move |_, _| ("403 Forbidden", String::new(), secret)).await;
    let store = store_at(&server).await;
    let name = BackupName::new("b").unwrap();
    for error in [store.validate().await.unwrap_err(), store.backup(&name).await.unwrap_err()] {
        let Error::Backend { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.code(), Code::PermissionDenied, "{source}");
        assert!(source.message().contains("403 Forbidden"), "{source}");
        assert!(!source.message().contains("hunter2"), "{source}");
    }
}
