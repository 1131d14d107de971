//! Certificates of S3 servers: trusted if the location says so, or not verified if it says that.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;

use bowline_plugin::{Config, ObjectStore as _};
use bowline_store::backend::S3;
use bowline_store::backend::s3::{Environment, Options};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, Stream};

/// A server that has nothing. Returns its address and the certificate to trust.
fn serve_tls() -> (String, String) {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = Stream::new(&mut connection, &mut socket);
            let response =
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            // A client that does not trust us hangs up.
            if stream.read(&mut [0; 4096]).is_ok() {
                let _ = stream.write_all(response).and_then(|()| stream.flush());
            }
            connection.send_close_notify();
            let _ = connection.write_tls(&mut socket);
        }
    });
    (url, pair.cert.pem())
}

async fn exists(url: &str, more: &[(&str, &str)]) -> bowline_plugin::Result<bool> {
    let pairs = [("bucket", "b"), ("region", "r"), ("s3ForcePathStyle", "true"), ("s3Url", url)];
    let pairs = pairs.iter().chain(more);
    let config: Config = pairs.map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let environment = Environment(keys.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    let retry_for = std::time::Duration::from_millis(500);
    let options = Options { environment, retry_for, ..Options::default() };
    S3::connect(&config, options).await?.object_exists("b", "a").await
}

#[tokio::test]
async fn certificate_is_trusted_only_when_the_location_says_so() {
    let (url, pem) = serve_tls();
    let error = exists(&url, &[]).await.unwrap_err();
    assert!(error.message().to_lowercase().contains("certificate"), "{error}");
    assert!(!exists(&url, &[("caCert", &pem)]).await.unwrap());
    assert!(!exists(&url, &[("insecureSkipTLSVerify", "true")]).await.unwrap());
    let (_, other) = serve_tls();
    assert!(exists(&url, &[("caCert", &other)]).await.is_err());
    let error = exists(&url, &[("caCert", "no certificate")]).await.unwrap_err();
    assert!(error.message().contains("caCert"), "{error}");
}
