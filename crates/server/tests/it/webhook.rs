//! An admission webhook on this machine: a minimal HTTPS server that rejects requests.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bowline_testbed::pki::Authority;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

/// Time limit for a silent connection.
const SILENCE: Duration = Duration::from_secs(30);

/// Rejects every request with this reason. It ends with this process.
pub(crate) struct Webhook {
    port: u16,
    /// The certificates that it is known by, as text.
    pub(crate) authority: String,
}

impl Webhook {
    pub(crate) fn start(reason: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path()).unwrap();
        let identity = authority.server("webhook", &[]).unwrap();
        let certificate = CertificateDer::from_pem_file(identity.certificate).unwrap();
        let key = PrivateKeyDer::from_pem_file(identity.key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let config = Arc::clone(&config);
                std::thread::spawn(move || answer(stream, config, reason));
            }
        });
        let authority = std::fs::read_to_string(authority.certificate()).unwrap();
        Self { port, authority }
    }

    /// Its address, for a configuration.
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}/", self.port)
    }
}

/// Answers one request, if there is one.
fn answer(stream: TcpStream, config: Arc<ServerConfig>, reason: &str) -> Option<()> {
    stream.set_read_timeout(Some(SILENCE)).ok()?;
    stream.set_write_timeout(Some(SILENCE)).ok()?;
    let mut stream = StreamOwned::new(ServerConnection::new(config).ok()?, stream);
    let review: Value = {
        let mut reader = BufReader::new(&mut stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        serde_json::from_slice(&body).ok()?
    };
    let review_response = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": review["request"]["uid"], "allowed": false, "status": {"message": reason},
        },
    });
    let body = review_response.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).ok()?;
    stream.conn.send_close_notify();
    stream.flush().ok()
}
