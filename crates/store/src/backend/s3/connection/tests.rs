use super::super::error::user_error;
use super::*;
use crate::backend::{Permit, PermitDenied};
use fake_server::FakeServer;

#[path = "../../../../tests/it/fake_server.rs"]
mod fake_server;

const BUCKET: &str = "b";
const METADATA_CREDENTIALS: &str = r#"{"AccessKeyId": "of-machine", "SecretAccessKey": "s", "Token": "t", "Code": "Success",
    "Type": "AWS-HMAC", "LastUpdated": "2020-01-01T00:00:00Z", "Expiration": "2100-01-01T00:00:00Z"}"#;

/// A metadata service that returns the identity of the machine.
async fn fake_metadata_service() -> FakeServer {
    FakeServer::start(|_, request| {
        let content = match request.line.split(' ').nth(1) {
            Some("/latest/api/token") => "token",
            Some("/latest/meta-data/iam/security-credentials/") => "role",
            _ => METADATA_CREDENTIALS,
        };
        ("200 OK", String::new(), content)
    })
    .await
}

/// A bucket whose credentials come from a machine, and which must not be changed.
fn s3_client_for(service: &FakeServer, metadata: &FakeServer) -> AmazonS3 {
    let config: Config =
        [("bucket", BUCKET), ("s3Url", service.url.as_str()), ("s3ForcePathStyle", "true")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
    let permit = Permit::new(|| Err(PermitDenied("its time is over".to_owned())));
    let options = Options { permit, ..Options::default() };
    let settings = Settings::read(&config, false).unwrap();
    let connector = Arc::new(Connector::new(&settings, &options).unwrap());
    let address = endpoint::bucket_endpoint(
        &settings,
        settings.url.as_ref(),
        FALLBACK_REGION,
        EndpointVariant::default(),
    );
    let bucket = address.object_base_url(BUCKET).unwrap();
    let builder = store_builder(&settings, address, FALLBACK_REGION, &options).unwrap();
    authenticate(builder, &Identity::InstanceMetadata, FALLBACK_REGION, &options.environment)
        .with_metadata_endpoint(&metadata.url)
        .with_http_connector(BucketConnector { connector, bucket })
        .build()
        .unwrap()
}

#[tokio::test]
async fn credentials_are_fetched_even_without_a_write_permit() {
    let metadata = fake_metadata_service().await;
    let service = FakeServer::start(|_, _| ("200 OK", String::new(), "content")).await;
    let store = s3_client_for(&service, &metadata);
    let path = Path::from("key");
    // The content of the response does not matter here, only that the request was sent.
    let _ = store.get_opts(&path, object_store::GetOptions::default()).await;
    assert_eq!(metadata.lines().first().unwrap(), "PUT /latest/api/token HTTP/1.1");
    assert_eq!(service.lines(), ["GET /b/key HTTP/1.1"]);
    let head = service.requests.lock()[0].head.clone();
    assert!(head.contains("credential=of-machine/"), "{head}");
    let put = store.put_opts(&path, "x".into(), PutOptions::default()).await;
    let error = user_error("b", &put.unwrap_err());
    assert!(error.message().contains("its time is over"), "{error}");
    assert_eq!(service.lines().len(), 1, "what changes something is not sent");
}
