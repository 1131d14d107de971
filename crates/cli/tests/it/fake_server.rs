//! Answers DownloadRequests in a namespace as a server would, with links to files that it serves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::DownloadRequest;
use bowline_store::encode;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::cluster::{TestEnv, cluster};

/// Part of every link, which must not be shown.
pub(crate) const SIGNATURE: &str = "s3cr3t-signature";

/// Answers to requests for kinds of files. Requests for other kinds are not answered.
pub(crate) enum Answer {
    /// A link to these bytes.
    File(Vec<u8>),
    /// A link that is answered with another status.
    Status(&'static str),
    /// A link to a file that breaks off.
    Cut,
    /// A link to somewhere else: the scheme and the host.
    Elsewhere(String),
    /// No link, but a reason.
    Reason(&'static str),
}

/// Ends when it is dropped.
pub(crate) struct FakeServer {
    tasks: [JoinHandle<()>; 2],
}

impl FakeServer {
    pub(crate) fn start<const N: usize>(
        env: &TestEnv,
        answers: [(&'static str, Answer); N],
    ) -> Self {
        let answers = Arc::new(BTreeMap::from(answers));
        let runtime = &cluster().runtime;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let api = env.api::<DownloadRequest>();
        let http = runtime.spawn(serve(listener, answers.clone()));
        let requests = runtime.spawn(async move {
            loop {
                let list = api.list(&ListParams::default()).await.unwrap();
                for request in list.items {
                    let is_new = request.status.is_none_or(|s| s.download_url.is_empty())
                        && request.metadata.annotations.is_none();
                    let kind = request.spec.target.kind.as_str();
                    let Some(answer) = answers.get(kind).filter(|_| is_new) else { continue };
                    let link = |host: &str| {
                        let link = format!("{host}/{kind}?X-Amz-Signature={SIGNATURE}");
                        json!({"status": {"phase": "Processed", "downloadURL": link}})
                    };
                    let patch = match answer {
                        Answer::Elsewhere(host) => link(host),
                        Answer::Reason(reason) => {
                            json!({"metadata": {"annotations": {"bowline.io/error": reason}}})
                        }
                        _ => link(&format!("http://{address}")),
                    };
                    let name = request.metadata.name.unwrap();
                    // It may have been deleted meanwhile.
                    let _ = api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Self { tasks: [http, requests] }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn serve(listener: TcpListener, answers: Arc<BTreeMap<&'static str, Answer>>) {
    loop {
        let (connection, _) = listener.accept().await.unwrap();
        let _ = answer(connection, &answers).await;
    }
}

async fn answer(
    mut connection: TcpStream,
    answers: &BTreeMap<&'static str, Answer>,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(connection.read_u8().await?);
    }
    let request = String::from_utf8(request).unwrap();
    let kind = request.split(['/', '?']).nth(1).unwrap();
    assert!(request.contains(SIGNATURE), "the link is not used as it is: {request}");
    let (status, body) = match answers.get(kind) {
        Some(Answer::File(bytes)) => ("200 OK", bytes.clone()),
        Some(Answer::Cut) => ("200 OK", vec![0x1f, 0x8b]),
        Some(Answer::Status(status)) => {
            let text = format!("<Error><Code>AccessDenied</Code>{SIGNATURE}</Error>");
            (*status, text.into_bytes())
        }
        _ => ("404 Not Found", Vec::new()),
    };
    let length = body.len() + usize::from(matches!(answers.get(kind), Some(Answer::Cut)));
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    connection.write_all(head.as_bytes()).await?;
    connection.write_all(&body).await?;
    connection.shutdown().await
}

/// A text as it lies in a bucket.
pub(crate) fn gzip(text: &str) -> Vec<u8> {
    use std::io::Write as _;
    let mut gzip = encode::gzip(Vec::new());
    gzip.write_all(text.as_bytes()).unwrap();
    gzip.finish().unwrap()
}

/// A file with a text.
pub(crate) fn packed(text: &str) -> Answer {
    Answer::File(gzip(text))
}

/// A file with JSON.
pub(crate) fn packed_json(value: &Value) -> Answer {
    packed(&value.to_string())
}
