//! Files of a backup or restore, by way of a DownloadRequest.
//!
//! Only the server can open the storage location. It is asked with a DownloadRequest and answers with
//! a link that is good for some minutes; the file comes from there, and the request is deleted.
//!
//! Who has a link can read the file. So links never appear in a message, only their host does.

mod random;
mod reader;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bowline_api::DownloadRequest;
use bowline_api::download_request::{DownloadRequestSpec, DownloadTarget, DownloadTargetKind};
use bowline_store::decode::{self, Limits};
use bytes::Bytes;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Client, Response, StatusCode, Url};
use rustls::crypto::{CryptoProvider, ring};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::args::TrustArgs;
use crate::installation::{Installation, is_transient};
use crate::output::{self, harmless};
use crate::trust;

#[cfg(test)]
pub(crate) use reader::Reader;

/// Written by the server on a request that it cannot answer: why.
const ERROR_ANNOTATION: &str = "bowline.io/error";
/// How often the server's answer is looked for: soon, then less and less.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// After this long it is said that the server is waited for.
const SILENT_FOR: Duration = Duration::from_secs(3);
/// How long a connection may take, and how long it may be silent.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const SILENCE_LIMIT: Duration = Duration::from_mins(1);
/// How long the deletion of requests may take when the user is leaving.
const ABANDON_LIMIT: Duration = Duration::from_secs(5);
/// From an http to an https address, say.
const MOST_REDIRECTS: usize = 3;
/// How much of a refusal is looked at.
const REFUSAL_BYTES: usize = 4096;
/// The longest name of an object.
const LONGEST_NAME: usize = 253;

/// Downloads files from one storage location.
pub(crate) struct Downloads {
    installation: Installation,
    http: Client,
    /// How long the server may take for a link.
    patience: Duration,
    /// Requests that are not deleted yet.
    requests: Mutex<BTreeSet<String>>,
    /// The server did not answer once; it is not waited for again.
    is_silent: AtomicBool,
    /// It was said that the server is waited for.
    has_said: AtomicBool,
}

impl Downloads {
    /// Prepares downloads; asks for nothing yet.
    pub(crate) async fn new(
        installation: &Installation,
        location: &str,
        trusted: &TrustArgs,
        patience: Duration,
    ) -> anyhow::Result<Self> {
        let certificates = trust::for_location(installation, location, trusted).await?;
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread was faster, which is as good.
            let _ = ring::default_provider().install_default();
        }
        let http = Client::builder()
            .user_agent(concat!("bowline/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_LIMIT)
            .read_timeout(SILENCE_LIMIT)
            .redirect(Policy::custom(redirect))
            // It would hand the link on.
            .referer(false)
            .tls_certs_merge(certificates)
            .tls_danger_accept_invalid_certs(trusted.insecure_skip_tls_verify)
            .build()
            .context("cannot prepare downloads")?;
        Ok(Self {
            installation: installation.clone(),
            http,
            patience,
            requests: Mutex::default(),
            is_silent: AtomicBool::new(false),
            has_said: AtomicBool::new(false),
        })
    }

    /// Reads a compressed JSON file.
    pub(crate) async fn json<T>(&self, kind: DownloadTargetKind, of: &str) -> anyhow::Result<T>
    where
        T: DeserializeOwned + Default + Send + 'static,
    {
        let mut body = self.open(kind, of, Limits::JSON.packed).await?;
        let mut packed = Vec::new();
        while let Some(piece) = body.next().await? {
            packed.extend_from_slice(&piece);
        }
        // Large files take a while, and others are being downloaded.
        let decoded =
            tokio::task::spawn_blocking(move || decode::json_gzip(&packed, Limits::JSON)).await;
        Ok(decoded.context("the file could not be read")??)
    }

    /// Reads a compressed JSON file that older backups do not have.
    pub(crate) async fn json_if_there<T>(
        &self,
        kind: DownloadTargetKind,
        of: &str,
    ) -> anyhow::Result<T>
    where
        T: DeserializeOwned + Default + Send + 'static,
    {
        match self.json(kind, of).await {
            Err(error) if error.is::<NotThere>() => Ok(T::default()),
            read => read,
        }
    }

    /// Begins to download a file of at most so many bytes, as it lies in the bucket.
    pub(crate) async fn open(
        &self,
        kind: DownloadTargetKind,
        of: &str,
        limit: u64,
    ) -> anyhow::Result<Body> {
        if self.is_silent() {
            return Err(self.no_answer());
        }
        let request = request_name(of, &random::hex());
        self.requests().insert(request.clone());
        let opened = async {
            let link = self.link(&request, kind, of).await?;
            self.follow(&link, limit).await
        };
        let opened = opened.await;
        self.delete(&request).await;
        opened
    }

    /// Takes it that the server does not answer.
    pub(crate) fn expect_silence(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
    }

    /// Whether the server did not answer in time once. It is not waited for again.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// Deletes the requests of downloads that were given up.
    pub(crate) async fn abandon(&self) {
        let left: Vec<String> = self.requests().iter().cloned().collect();
        let deleted = async {
            for request in left {
                self.delete(&request).await;
            }
        };
        // The server deletes them as well, when they have expired.
        let _ = timeout(ABANDON_LIMIT, deleted).await;
    }

    /// Asks the server for a link to a file.
    async fn link(&self, request: &str, kind: DownloadTargetKind, of: &str) -> anyhow::Result<Url> {
        let target = DownloadTarget { kind, name: of.to_owned(), ..DownloadTarget::default() };
        let spec = DownloadRequestSpec { target, ..DownloadRequestSpec::default() };
        let api = self.installation.api::<DownloadRequest>();
        let created = DownloadRequest::new(request, spec);
        self.installation
            .ask("request the file from the server", api.create(&PostParams::default(), &created))
            .await?;

        let began = Instant::now();
        let deadline = began + self.patience;
        let mut pause = FIRST_PAUSE;
        loop {
            if began.elapsed() >= SILENT_FOR && !self.has_said.swap(true, Ordering::Relaxed) {
                output::say(format_args!(
                    "the server in namespace `{}` has not responded yet; waiting up to {}",
                    self.installation.namespace(),
                    bowline_api::Duration::from(self.patience),
                ));
            }
            let is_last = Instant::now() >= deadline;
            match timeout_at(deadline + LONGEST_PAUSE, api.get(request)).await {
                Ok(Ok(request)) => {
                    if let Some(link) = answer(&request)? {
                        return Ok(link);
                    }
                }
                Ok(Err(error)) if !is_transient(&error) => {
                    return Err(self.installation.explain("read the server's response", error));
                }
                Ok(Err(_)) | Err(_) => {}
            }
            if is_last {
                self.expect_silence();
                return Err(self.no_answer());
            }
            sleep(pause.min(deadline.saturating_duration_since(Instant::now()))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn follow(&self, link: &Url, limit: u64) -> anyhow::Result<Body> {
        let host = link.host_str().unwrap_or_default();
        let response = self.http.get(link.clone()).send().await;
        let response = response.map_err(|error| unreachable(error, host))?;
        if response.status() != StatusCode::OK {
            return Err(refusal(response).await);
        }
        if response.content_length().is_some_and(|length| length > limit) {
            return Err(decode::Error::TooLarge(limit).into());
        }
        Ok(Body { response, received: 0, limit })
    }

    /// Deletes a request. If that fails the server will do it, when it has expired.
    async fn delete(&self, request: &str) {
        let api = self.installation.api::<DownloadRequest>();
        let params = DeleteParams::default();
        let _ = self.installation.ask("delete the request", api.delete(request, &params)).await;
        self.requests().remove(request);
    }

    fn no_answer(&self) -> anyhow::Error {
        anyhow!(
            "no response from the server within {}; check that it runs in namespace `{}` and that \
             the storage location is available",
            bowline_api::Duration::from(self.patience),
            self.installation.namespace(),
        )
    }

    fn requests(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // A set is whole at any time.
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows a few redirects, but never from https to http: the file holds Secrets, and everybody on the
/// way could read it.
fn redirect(attempt: Attempt<'_>) -> Action {
    if attempt.previous().len() > MOST_REDIRECTS {
        return attempt.error("too many redirects");
    }
    if is_downgrade(attempt.previous(), attempt.url()) {
        return attempt
            .error("redirect from https to http, which anyone on the network path could read");
    }
    attempt.follow()
}

/// Whether an address is less private than one before it.
fn is_downgrade(before: &[Url], next: &Url) -> bool {
    next.scheme() != "https" && before.iter().any(|url| url.scheme() == "https")
}

/// The storage location does not have a file.
#[derive(Debug)]
pub(crate) struct NotThere;

impl std::fmt::Display for NotThere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the file is not in the storage location")
    }
}

impl std::error::Error for NotThere {}

/// A file that is being downloaded.
pub(crate) struct Body {
    response: Response,
    received: u64,
    limit: u64,
}

impl Body {
    /// How large the file is, if the other side says so.
    pub(crate) fn length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// The next piece; nothing at the end.
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

/// What the server has answered, if it has.
fn answer(request: &DownloadRequest) -> anyhow::Result<Option<Url>> {
    let link = request.status.as_ref().map_or("", |status| status.download_url.as_str());
    if link.is_empty() {
        return match request.annotations().get(ERROR_ANNOTATION) {
            Some(reason) => bail!("the server cannot provide the file: {}", harmless(reason)),
            None => Ok(None),
        };
    }
    match Url::parse(link) {
        Ok(link) if matches!(link.scheme(), "http" | "https") => Ok(Some(link)),
        // Without the parser's reason, which may quote it.
        _ => bail!("the server responded with an invalid link"),
    }
}

/// Why the other side could not be asked.
fn unreachable(error: reqwest::Error, host: &str) -> anyhow::Error {
    let error = anyhow::Error::new(error.without_url());
    let is_about_trust =
        error.chain().any(|cause| cause.to_string().to_lowercase().contains("certificate"));
    let hint = if is_about_trust {
        "add the certificate authority of the server with --cacert"
    } else {
        "check that this machine can reach it"
    };
    error.context(format!("cannot download from `{}`; {hint}", harmless(host)))
}

/// Why the other side does not give the file out.
async fn refusal(mut response: Response) -> anyhow::Error {
    let status = response.status();
    if status == StatusCode::NOT_FOUND {
        return NotThere.into();
    }
    let mut text = Vec::new();
    while text.len() < REFUSAL_BYTES {
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

/// The one word in which S3 says what is wrong. The rest of its answer may quote the link.
fn s3_code(answer: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(answer);
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_word = code.len() <= 64 && code.bytes().all(|b| b.is_ascii_alphanumeric());
    is_word.then(|| code.to_owned())
}

/// A name that is free: that of the backup, as far as it fits, and something random.
fn request_name(of: &str, random: &str) -> String {
    let room = LONGEST_NAME - random.len() - 1;
    let beginning = of[..of.floor_char_boundary(room)].trim_end_matches(['-', '.']);
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
    fn an_answer_is_a_link_a_reason_or_not_there_yet() {
        let link = "http://127.0.0.1:1/x?signature=s3cr3t";
        assert_eq!(answer(&request(link, None)).unwrap().unwrap().as_str(), link);
        assert_eq!(answer(&request("", None)).unwrap(), None);
        let error = answer(&request("", Some("the bucket is\u{7} gone"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the server cannot provide the file: the bucket is\u{fffd} gone"
        );
    }

    #[test]
    fn a_link_to_something_else_is_refused_and_not_quoted() {
        for link in ["file:///etc/passwd?s3cr3t", "no link s3cr3t", "//s3cr3t"] {
            let error = format!("{:?}", answer(&request(link, None)).unwrap_err());
            assert!(!error.contains("s3cr3t"), "{error}");
        }
    }

    #[test]
    fn a_redirect_from_https_to_http_is_not_followed() {
        let url = |text: &str| Url::parse(text).unwrap();
        for (before, next, expected) in [
            (&["https://a"][..], "http://a", true),
            (&["http://a", "https://a"], "http://b", true),
            (&["https://a"], "https://b", false),
            (&["http://a"], "https://a", false),
            (&["http://a"], "http://b", false),
        ] {
            let before: Vec<Url> = before.iter().map(|text| url(text)).collect();
            assert_eq!(is_downgrade(&before, &url(next)), expected, "{before:?} {next}");
        }
    }

    #[test]
    fn of_a_refusal_only_the_code_is_told() {
        let answer = b"<Error><Code>AccessDenied</Code><Url>s3cr3t</Url></Error>";
        assert_eq!(s3_code(answer).as_deref(), Some("AccessDenied"));
        for other in [&b"no"[..], b"<Code>", b"<Code>a b</Code>", b"<Code>http://s3cr3t</Code>"] {
            assert_eq!(s3_code(other), None);
        }
    }

    #[test]
    fn a_request_is_named_after_its_backup_and_fits() {
        assert_eq!(request_name("b", "ff"), "b-ff");
        let long = request_name(&format!("{}.{}", "x".repeat(218), "y".repeat(34)), &random::hex());
        assert!(bowline_store::BackupName::new(&long).is_ok(), "{long}");
        assert!(long.len() <= LONGEST_NAME);
        assert_ne!(request_name("b", &random::hex()), request_name("b", &random::hex()));
    }
}
