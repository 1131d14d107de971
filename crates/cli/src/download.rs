//! Files of a backup or restore, obtained with a DownloadRequest.
//!
//! Only the server can open the storage location. It receives a DownloadRequest and answers with a link that is valid
//! for some minutes; the file comes from there, and the request is deleted.
//!
//! Anyone who has a link can read the file. So links never appear in a message, only their host does.

mod random;
mod reader;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bowline_api::DownloadRequest;
use bowline_api::download_request::{DownloadRequestSpec, DownloadTarget, DownloadTargetKind};
use bowline_engine::backoff::Backoff;
use bowline_store::decode::{self, Limits};
use bytes::Bytes;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use parking_lot::Mutex;
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Client, Response, StatusCode, Url};
use rustls::crypto::{CryptoProvider, ring};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::args::TrustArgs;
use crate::installation::{Installation, is_transient};
use crate::output::{self, strip_control_chars};
use crate::tls_trust;

#[cfg(test)]
pub(crate) use reader::Reader;

/// Annotation in which the server gives the reason why it cannot answer a request.
const ERROR_ANNOTATION: &str = "bowline.io/error";
/// Interval of checks for the server's answer: short at first, then growing.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(25);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a message that the server has not answered yet.
const WAIT_MESSAGE_DELAY: Duration = Duration::from_secs(3);
/// Longest time to connect, and longest silence on a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const READ_TIMEOUT: Duration = Duration::from_mins(1);
/// Longest deletion of requests while the process is exiting.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);
/// For example from an http to an https address.
const MAX_REDIRECTS: usize = 3;
/// Length of an error response that is read.
const MAX_ERROR_BODY_BYTES: usize = 4096;
/// Longest name of an object.
const MAX_NAME_LENGTH: usize = 253;

/// Downloads files from one storage location.
pub(crate) struct Downloads {
    installation: Installation,
    http: Client,
    /// Longest wait for a link from the server.
    answer_timeout: Duration,
    /// Requests that are not deleted yet.
    requests: Mutex<BTreeSet<String>>,
    /// The server failed to answer once; later downloads do not wait for it.
    is_unresponsive: AtomicBool,
    /// The message that the server has not answered yet was printed.
    has_announced_wait: AtomicBool,
}

impl Downloads {
    /// Prepares downloads; sends no request yet.
    pub(crate) async fn new(
        installation: &Installation,
        location: &str,
        trusted: &TrustArgs,
        answer_timeout: Duration,
    ) -> anyhow::Result<Self> {
        let certificates = tls_trust::for_location(installation, location, trusted).await?;
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread was faster, which has the same effect.
            let _ = ring::default_provider().install_default();
        }
        let http = Client::builder()
            .user_agent(concat!("bowline/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(Policy::custom(redirect_policy))
            // A referer would pass the link on.
            .referer(false)
            .tls_certs_merge(certificates)
            .tls_danger_accept_invalid_certs(trusted.insecure_skip_tls_verify)
            .build()
            .context("cannot prepare downloads")?;
        Ok(Self {
            installation: installation.clone(),
            http,
            answer_timeout,
            requests: Mutex::default(),
            is_unresponsive: AtomicBool::new(false),
            has_announced_wait: AtomicBool::new(false),
        })
    }

    /// Reads a compressed JSON file.
    pub(crate) async fn json<T>(&self, kind: DownloadTargetKind, name: &str) -> anyhow::Result<T>
    where
        T: DeserializeOwned + Default + Send + 'static,
    {
        let mut body = self.open(kind, name, Limits::JSON.packed).await?;
        let mut packed = Vec::new();
        while let Some(piece) = body.next().await? {
            packed.extend_from_slice(&piece);
        }
        // Large files take a while, and other downloads are running.
        let decoded =
            tokio::task::spawn_blocking(move || decode::json_gzip(&packed, Limits::JSON)).await;
        Ok(decoded.context("the file could not be read")??)
    }

    /// Reads a compressed JSON file that older backups do not have.
    pub(crate) async fn json_or_default<T>(
        &self,
        kind: DownloadTargetKind,
        name: &str,
    ) -> anyhow::Result<T>
    where
        T: DeserializeOwned + Default + Send + 'static,
    {
        match self.json(kind, name).await {
            Err(error) if error.is::<FileNotFound>() => Ok(T::default()),
            read => read,
        }
    }

    /// Starts to download a file of at most so many bytes, as stored in the bucket.
    pub(crate) async fn open(
        &self,
        kind: DownloadTargetKind,
        name: &str,
        limit: u64,
    ) -> anyhow::Result<Body> {
        if self.is_unresponsive() {
            return Err(self.no_answer_error());
        }
        let request = request_name(name, &random::hex());
        self.requests.lock().insert(request.clone());
        let opened = async {
            let link = self.request_link(&request, kind, name).await?;
            self.open_link(&link, limit).await
        };
        let opened = opened.await;
        self.delete(&request).await;
        opened
    }

    /// Records that the server does not answer.
    pub(crate) fn mark_unresponsive(&self) {
        self.is_unresponsive.store(true, Ordering::Relaxed);
    }

    /// True if the server once failed to answer in time. Later downloads do not wait for it.
    pub(crate) fn is_unresponsive(&self) -> bool {
        self.is_unresponsive.load(Ordering::Relaxed)
    }

    /// Deletes the requests of abandoned downloads.
    pub(crate) async fn delete_open_requests(&self) {
        let remaining: Vec<String> = self.requests.lock().iter().cloned().collect();
        let deleted = async {
            for request in remaining {
                self.delete(&request).await;
            }
        };
        // The server deletes them as well, once they have expired.
        let _ = timeout(CLEANUP_TIMEOUT, deleted).await;
    }

    /// Asks the server for a link to a file.
    async fn request_link(
        &self,
        request: &str,
        kind: DownloadTargetKind,
        of: &str,
    ) -> anyhow::Result<Url> {
        let target = DownloadTarget { kind, name: of.to_owned(), ..DownloadTarget::default() };
        let spec = DownloadRequestSpec { target, ..DownloadRequestSpec::default() };
        let api = self.installation.api::<DownloadRequest>();
        let created = DownloadRequest::new(request, spec);
        self.installation
            .call_api(
                "request the file from the server",
                api.create(&PostParams::default(), &created),
            )
            .await?;

        let started = Instant::now();
        let deadline = started + self.answer_timeout;
        let mut backoff = Backoff::new(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL);
        loop {
            if started.elapsed() >= WAIT_MESSAGE_DELAY
                && !self.has_announced_wait.swap(true, Ordering::Relaxed)
            {
                output::print_message(format_args!(
                    "the server in namespace `{}` has not responded yet; waiting up to {}",
                    self.installation.namespace(),
                    bowline_api::Duration::from(self.answer_timeout),
                ));
            }
            let is_last = Instant::now() >= deadline;
            match timeout_at(deadline + MAX_POLL_INTERVAL, api.get(request)).await {
                Ok(Ok(request)) => {
                    if let Some(link) = answered_link(&request)? {
                        return Ok(link);
                    }
                }
                Ok(Err(error)) if !is_transient(&error) => {
                    return Err(self
                        .installation
                        .explain_error("read the server's response", error));
                }
                Ok(Err(_)) | Err(_) => {}
            }
            if is_last {
                self.mark_unresponsive();
                return Err(self.no_answer_error());
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            sleep(backoff.next_pause().min(remaining)).await;
        }
    }

    async fn open_link(&self, link: &Url, limit: u64) -> anyhow::Result<Body> {
        let host = link.host_str().unwrap_or_default();
        let response = self.http.get(link.clone()).send().await;
        let response = response.map_err(|error| connection_error(error, host))?;
        if response.status() != StatusCode::OK {
            return Err(response_error(response).await);
        }
        if response.content_length().is_some_and(|length| length > limit) {
            return Err(decode::Error::TooLarge(limit).into());
        }
        Ok(Body { response, received: 0, limit })
    }

    /// Deletes a request. If that fails, the server deletes it once it has expired.
    async fn delete(&self, request: &str) {
        let api = self.installation.api::<DownloadRequest>();
        let params = DeleteParams::default();
        let _ =
            self.installation.call_api("delete the request", api.delete(request, &params)).await;
        self.requests.lock().remove(request);
    }

    fn no_answer_error(&self) -> anyhow::Error {
        anyhow!(
            "no response from the server within {}; check that it runs in namespace `{}` and that \
             the storage location is available",
            bowline_api::Duration::from(self.answer_timeout),
            self.installation.namespace(),
        )
    }
}

/// Follows a few redirects, but never from https to http: the file contains Secrets, and anyone on the network path
/// could read it.
fn redirect_policy(attempt: Attempt<'_>) -> Action {
    if attempt.previous().len() > MAX_REDIRECTS {
        return attempt.error("too many redirects");
    }
    if is_downgrade(attempt.previous(), attempt.url()) {
        return attempt
            .error("redirect from https to http, which anyone on the network path could read");
    }
    attempt.follow()
}

/// True if the next address is http after one with https.
fn is_downgrade(previous: &[Url], next: &Url) -> bool {
    next.scheme() != "https" && previous.iter().any(|url| url.scheme() == "https")
}

/// The storage location does not have the file.
#[derive(Debug)]
pub(crate) struct FileNotFound;

impl std::fmt::Display for FileNotFound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the file is not in the storage location")
    }
}

impl std::error::Error for FileNotFound {}

/// File that is being downloaded.
pub(crate) struct Body {
    response: Response,
    received: u64,
    limit: u64,
}

impl Body {
    /// Size of the file, if the other side declares it.
    pub(crate) fn length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// Next chunk; nothing at the end.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        let piece = self.response.chunk().await.map_err(|error| {
            anyhow::Error::new(error.without_url()).context("the download was interrupted")
        })?;
        self.received += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        if self.received > self.limit {
            return Err(decode::Error::TooLarge(self.limit).into());
        }
        Ok(piece)
    }
}

/// Link in the server's answer, if there is one.
fn answered_link(request: &DownloadRequest) -> anyhow::Result<Option<Url>> {
    let link = request.status.as_ref().map_or("", |status| status.download_url.as_str());
    if link.is_empty() {
        return match request.annotations().get(ERROR_ANNOTATION) {
            Some(reason) => {
                bail!("the server cannot provide the file: {}", strip_control_chars(reason))
            }
            None => Ok(None),
        };
    }
    match Url::parse(link) {
        Ok(link) if matches!(link.scheme(), "http" | "https") => Ok(Some(link)),
        // Without the parser's reason, which may quote the link.
        _ => bail!("the server responded with an invalid link"),
    }
}

/// Reason why a request could not be sent.
fn connection_error(error: reqwest::Error, host: &str) -> anyhow::Error {
    let error = anyhow::Error::new(error.without_url());
    let hint = if tls_trust::is_certificate_error(error.as_ref()) {
        "add the certificate authority of the server with --cacert"
    } else {
        "check that this machine can reach the storage"
    };
    error.context(format!("cannot download from `{}`; {hint}", strip_control_chars(host)))
}

/// Reason why the other side refuses the file.
async fn response_error(mut response: Response) -> anyhow::Error {
    let status = response.status();
    if status == StatusCode::NOT_FOUND {
        return FileNotFound.into();
    }
    let mut text = Vec::new();
    while text.len() < MAX_ERROR_BODY_BYTES {
        match response.chunk().await {
            Ok(Some(piece)) => text.extend_from_slice(&piece),
            _ => break,
        }
    }
    match s3_code(&text) {
        Some(code) => anyhow!("the storage location responded with {status}: {code}"),
        None => anyhow!("the storage location responded with {status}"),
    }
}

/// Error code of S3. The rest of its answer may quote the link.
fn s3_code(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_word = code.len() <= 64 && code.bytes().all(|b| b.is_ascii_alphanumeric());
    is_word.then(|| code.to_owned())
}

/// Unused name: that of the backup, shortened to fit, and a random part.
fn request_name(name: &str, random: &str) -> String {
    let room = MAX_NAME_LENGTH - random.len() - 1;
    let beginning = name[..name.floor_char_boundary(room)].trim_end_matches(['-', '.']);
    format!("{beginning}-{random}")
}

#[cfg(test)]
mod tests {
    use bowline_api::DownloadRequestStatus;

    use super::*;

    fn request(link: &str, reason: Option<&str>) -> DownloadRequest {
        let mut request = DownloadRequest::new("r", DownloadRequestSpec::default());
        let status = DownloadRequestStatus { download_url: link.to_owned(), ..Default::default() };
        request.status = Some(status);
        if let Some(reason) = reason {
            request.annotations_mut().insert(ERROR_ANNOTATION.to_owned(), reason.to_owned());
        }
        request
    }

    #[test]
    fn answer_is_a_link_an_error_or_pending() {
        let link = "http://127.0.0.1:1/x?signature=s3cr3t";
        assert_eq!(answered_link(&request(link, None)).unwrap().unwrap().as_str(), link);
        assert_eq!(answered_link(&request("", None)).unwrap(), None);
        let error = answered_link(&request("", Some("the bucket is\u{7} gone"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the server cannot provide the file: the bucket is\u{fffd} gone"
        );
    }

    #[test]
    fn link_with_unsupported_scheme_is_refused_and_not_quoted() {
        for link in ["file:///etc/passwd?s3cr3t", "no link s3cr3t", "//s3cr3t"] {
            let error = format!("{:?}", answered_link(&request(link, None)).unwrap_err());
            assert!(!error.contains("s3cr3t"), "{error}");
        }
    }

    #[test]
    fn a_redirect_from_https_to_http_is_not_followed() {
        let url = |text: &str| Url::parse(text).unwrap();
        for (previous, next, expected) in [
            (&["https://a"][..], "http://a", true),
            (&["http://a", "https://a"], "http://b", true),
            (&["https://a"], "https://b", false),
            (&["http://a"], "https://a", false),
            (&["http://a"], "http://b", false),
        ] {
            let previous: Vec<Url> = previous.iter().map(|text| url(text)).collect();
            assert_eq!(is_downgrade(&previous, &url(next)), expected, "{previous:?} {next}");
        }
    }

    #[test]
    fn only_the_s3_error_code_is_reported() {
        let answer = b"<Error><Code>AccessDenied</Code><Url>s3cr3t</Url></Error>";
        assert_eq!(s3_code(answer).as_deref(), Some("AccessDenied"));
        for other in [&b"no"[..], b"<Code>", b"<Code>a b</Code>", b"<Code>http://s3cr3t</Code>"] {
            assert_eq!(s3_code(other), None);
        }
    }

    #[test]
    fn request_name_starts_with_the_backup_name_and_fits_the_limit() {
        assert_eq!(request_name("b", "ff"), "b-ff");
        let long = request_name(&format!("{}.{}", "x".repeat(218), "y".repeat(34)), &random::hex());
        assert!(bowline_store::BackupName::new(&long).is_ok(), "{long}");
        assert!(long.len() <= MAX_NAME_LENGTH);
        assert_ne!(request_name("b", &random::hex()), request_name("b", &random::hex()));
    }
}
