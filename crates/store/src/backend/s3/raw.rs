//! Requests with arbitrary keys.
//!
//! `object_store` has a type for keys that refuses an empty part, a part `.` or `..`, and control
//! characters, and it refuses a whole page of a list because of one such key. S3 accepts them all,
//! and scripts create them: `backups//x` is the result of a variable that ends in a slash. So lists
//! are read here, and such keys deleted here, by requests that are signed with the same credentials
//! and sent by the same [client](super::send), which checks the permit.
//!
//! A response that is not a list is an error: a service that answers with a page of HTML is not a
//! bucket.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bowline_plugin::{Code, Error, Result};
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;
use http::{Method, StatusCode, header};
use md5::{Digest as _, Md5};
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{
    HttpClient, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponseBody,
};
use object_store::{CredentialProvider, PutPayload};
use quick_xml::events::Event;
use reqwest::Url;
use serde::Deserialize;
use sha2::Sha256;
use std::sync::Arc;
use tokio::time::Instant;

use super::error::{S3Response, user_error, user_error_from_response};

/// Maximum number of keys of a list.
const MAX_KEYS: usize = 2_000_000;
/// Size limit of a response: a page has 1000 keys of 1024 bytes each, which may be escaped.
const MAX_RESPONSE: usize = 16 << 20;
/// Pauses before retries.
const RETRY_PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .with_max_delay(Duration::from_secs(5))
    .without_max_times();
/// The outermost element of a list of objects.
const LIST_RESULT_ELEMENT: &[u8] = b"ListBucketResult";
/// The outermost element of the response to a deletion.
const DELETE_RESULT_ELEMENT: &[u8] = b"DeleteResult";

/// A bucket, for requests with arbitrary keys.
#[derive(Debug)]
pub(super) struct RawBucket {
    pub(super) name: String,
    /// The common prefix of the addresses of its objects.
    pub(super) address: Url,
    pub(super) region: String,
    pub(super) client: HttpClient,
    pub(super) credentials: Arc<dyn CredentialProvider<Credential = AwsCredential>>,
    /// Time for which a request that the service cannot answer is retried.
    pub(super) retry_for: Duration,
}

/// The keys below a prefix, unchanged.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ListedObjects {
    pub(super) keys: Vec<String>,
    pub(super) prefixes: Vec<String>,
}

impl RawBucket {
    /// Lists the keys below a prefix; with a delimiter, keys that contain it are grouped.
    pub(super) async fn list(
        &self,
        prefix: &str,
        delimiter: Option<&str>,
    ) -> Result<ListedObjects> {
        let mut listed = ListedObjects::default();
        let mut token: Option<String> = None;
        loop {
            let mut address = self.address.clone();
            // Sorted, as the signature requires.
            let mut query: Vec<(&str, &str)> = Vec::new();
            query.extend(token.as_deref().map(|token| ("continuation-token", token)));
            query.extend(delimiter.map(|delimiter| ("delimiter", delimiter)));
            query.extend([("encoding-type", "url"), ("list-type", "2")]);
            query.extend((!prefix.is_empty()).then_some(("prefix", prefix)));
            address.set_query(Some(&encode_query(&query)));
            let response = self.send_with_retries(Method::GET, &address, Bytes::new()).await?;
            let page = ListPage::read(&response)?;
            listed.keys.extend(page.keys.into_iter().filter(|key| key.starts_with(prefix)));
            listed.prefixes.extend(page.prefixes);
            if listed.keys.len() + listed.prefixes.len() > MAX_KEYS {
                let message = format!("the list has more than {MAX_KEYS} objects");
                return Err(Error::new(Code::ResourceExhausted, message));
            }
            match page.next_token {
                None => return Ok(listed),
                // The list would never end.
                Some(next) if Some(&next) == token.as_ref() => {
                    return Err(not_s3_error("the list is truncated"));
                }
                Some(next) => token = Some(next),
            }
        }
    }

    /// Deletes an object whose key no other request can name. Not an error if the object does not
    /// exist.
    pub(super) async fn delete_any_key(&self, key: &str) -> Result<()> {
        // In an address, these would be resolved as relative path segments.
        if key.split('/').any(|part| matches!(part, "." | "..")) {
            return self.delete_by_body(key).await;
        }
        let mut address = self.address.clone();
        address.set_path(&format!(
            "{}/{}",
            self.address.path().trim_end_matches('/'),
            percent_encode(key, true)
        ));
        match self.send_with_retries(Method::DELETE, &address, Bytes::new()).await {
            Err(error) if error.code() == Code::NotFound => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    /// Deletes an object by the request that has keys in its body.
    async fn delete_by_body(&self, key: &str) -> Result<()> {
        if key.contains(|c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r')) {
            let reason = "the key contains characters that S3 requests cannot contain";
            return Err(Error::new(Code::Unimplemented, reason));
        }
        let mut address = self.address.clone();
        address.set_query(Some("delete="));
        let key = quick_xml::escape::escape(key);
        let body = format!(
            "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>\
             <Object><Key>{key}</Key></Object></Delete>"
        );
        let response = self.send_with_retries(Method::POST, &address, Bytes::from(body)).await?;
        let result: DeleteResult = parse_xml(&response, DELETE_RESULT_ELEMENT)?;
        match result.error.into_iter().next() {
            None => Ok(()),
            Some(failed) if failed.code == "NoSuchKey" => Ok(()),
            Some(failed) => {
                let response = S3Response::of_s3(failed.code, failed.message);
                Err(user_error_from_response(&self.name, response))
            }
        }
    }

    /// Sends a request, with retries for a limited time.
    async fn send_with_retries(&self, method: Method, address: &Url, body: Bytes) -> Result<Bytes> {
        let deadline = Instant::now() + self.retry_for;
        let send = || self.send_once(&method, address, body.clone());
        let sent = send
            .retry(RETRY_PAUSES)
            .when(|failed| failed.is_transient)
            .adjust(|_, pause| pause.filter(|pause| Instant::now() + *pause < deadline))
            .await;
        sent.map_err(|failed| failed.error)
    }

    /// Sends a request once.
    async fn send_once(
        &self,
        method: &Method,
        address: &Url,
        body: Bytes,
    ) -> Result<Bytes, SendError> {
        let credential = self.credentials.get_credential().await;
        let credential = credential.map_err(|error| user_error(&self.name, &error))?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = method.clone();
        *request.uri_mut() = address.as_str().parse().map_err(|_| {
            Error::new(Code::InvalidArgument, "the key cannot be part of an address")
        })?;
        if !body.is_empty() {
            let headers = request.headers_mut();
            let digest = |bytes: &[u8]| BASE64.encode(bytes).parse().ok();
            let sums = [
                ("content-md5", digest(&Md5::digest(&body))),
                ("x-amz-checksum-sha256", digest(&Sha256::digest(&body))),
                ("content-type", Some(header::HeaderValue::from_static("application/xml"))),
            ];
            headers.extend(
                sums.into_iter().filter_map(|(name, value)| {
                    Some((header::HeaderName::from_static(name), value?))
                }),
            );
            *request.body_mut() = PutPayload::from(body).into();
        }
        let signed = AwsAuthorizer::new(&credential, "s3", &self.region);
        signed.try_authorize(&mut request, None).map_err(|error| {
            Error::new(Code::Internal, format!("cannot sign the request: {error}"))
        })?;
        let response = match self.client.execute(request).await {
            Ok(answer) => answer,
            Err(error) => {
                let is_transient = !matches!(error.kind(), HttpErrorKind::Decode);
                let error = Error::new(Code::Unavailable, error_chain(&error));
                return Err(SendError { error, is_transient });
            }
        };
        let (parts, body) = response.into_parts();
        let read_error = |error| SendError { error, is_transient: true };
        let content = collect_body(body).await.map_err(read_error)?;
        if parts.status.is_success() {
            return Ok(content);
        }
        let error =
            user_error_from_response(&self.name, S3Response::read(parts.status.as_u16(), &content));
        let is_busy =
            parts.status.is_server_error() || parts.status == StatusCode::TOO_MANY_REQUESTS;
        let is_transient = is_busy && error.code() == Code::Unavailable;
        Err(SendError { error, is_transient })
    }
}

/// Reason why a request failed.
struct SendError {
    error: Error,
    /// True if a retry may succeed.
    is_transient: bool,
}

impl From<Error> for SendError {
    fn from(error: Error) -> Self {
        Self { error, is_transient: false }
    }
}

/// A page of a list.
#[derive(Debug, Default, PartialEq, Eq)]
struct ListPage {
    keys: Vec<String>,
    prefixes: Vec<String>,
    /// The token of the next page, if there is one.
    next_token: Option<String>,
}

impl ListPage {
    fn read(response: &Bytes) -> Result<Self> {
        let result: ListBucketResult = parse_xml(response, LIST_RESULT_ELEMENT)?;
        let is_encoded = result.encoding_type == "url";
        let plain = |text: String| if is_encoded { percent_decode(&text) } else { text };
        let next = result.next_continuation_token.filter(|token| !token.is_empty());
        if result.is_truncated && next.is_none() {
            // Keys that are not listed would count as deleted.
            return Err(not_s3_error("the list is truncated and has no continuation token"));
        }
        Ok(Self {
            keys: result.contents.into_iter().map(|object| plain(object.key)).collect(),
            prefixes: result.common_prefixes.into_iter().map(|it| plain(it.prefix)).collect(),
            next_token: next.filter(|_| result.is_truncated),
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListBucketResult {
    #[serde(default)]
    contents: Vec<Contents>,
    #[serde(default)]
    common_prefixes: Vec<CommonPrefix>,
    #[serde(default)]
    encoding_type: String,
    #[serde(default)]
    is_truncated: bool,
    #[serde(default)]
    next_continuation_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Contents {
    key: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CommonPrefix {
    prefix: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeleteResult {
    #[serde(default)]
    error: Vec<DeleteError>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct DeleteError {
    code: String,
    message: String,
}

/// Parses a response that must begin with an element.
fn parse_xml<T: serde::de::DeserializeOwned>(response: &Bytes, element: &[u8]) -> Result<T> {
    let text = std::str::from_utf8(response).map_err(|_| not_s3_error("not valid UTF-8"))?;
    if !begins_with_element(text, element) {
        return Err(not_s3_error("not in the format of S3"));
    }
    quick_xml::de::from_str(text).map_err(|_| not_s3_error("not the expected XML"))
}

/// True if the outermost element is this one.
fn begins_with_element(text: &str, element: &[u8]) -> bool {
    let mut reader = quick_xml::Reader::from_str(text);
    loop {
        match reader.read_event() {
            Ok(Event::Start(found) | Event::Empty(found)) => {
                return found.local_name().as_ref() == element;
            }
            Ok(Event::Eof) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}

/// The response is not repeated: it may come from a service that only the server can reach.
fn not_s3_error(reason: &str) -> Error {
    let message = format!(
        "the answer is not that of an S3 service: {reason}; `s3Url` must be the address of the S3 API, \
         not that of a console or proxy"
    );
    Error::new(Code::FailedPrecondition, message)
}

async fn collect_body(body: HttpResponseBody) -> Result<Bytes> {
    let broken = |error| Error::new(Code::Unavailable, error_chain(&error));
    let mut stream = body.bytes_stream();
    let mut content = BytesMut::new();
    while let Some(piece) = stream.try_next().await.map_err(broken)? {
        if content.len() + piece.len() > MAX_RESPONSE {
            return Err(not_s3_error("the answer is too long"));
        }
        content.extend_from_slice(&piece);
    }
    Ok(content.freeze())
}

fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let links = std::iter::successors(Some(error), |link| link.source());
    let mut texts: Vec<String> = links.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

/// A query in the form that AWS signatures require.
fn encode_query(pairs: &[(&str, &str)]) -> String {
    let pair = |(name, value): &(&str, &str)| format!("{name}={}", percent_encode(value, false));
    pairs.iter().map(pair).collect::<Vec<_>>().join("&")
}

/// Percent-encodes all but unreserved characters; in a path, slashes stay.
fn percent_encode(text: &str, is_path: bool) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            b'/' if is_path => out.push('/'),
            // Writing to a String cannot fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

/// Decodes an encoded key. Invalid escapes stay unchanged.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let number = tail.get(..2).and_then(|digits| hex::decode(digits).ok());
        match (first, number.as_deref()) {
            (b'%', Some([byte])) => {
                bytes.push(*byte);
                rest = &tail[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = tail;
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_decoded_unchanged() {
        let page = "<?xml version=\"1.0\"?>\n<ListBucketResult \
                    xmlns=\"http://s3\"><Name>b</Name><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken><Contents><Key>backups//x</Key><Size>1</Size></Contents><Contents><Key>backups/%01+a%2Bb</Key></Contents><CommonPrefixes><Prefix>backups/../</Prefix></CommonPrefixes></ListBucketResult>";
        let page = ListPage::read(&Bytes::from(page)).unwrap();
        assert_eq!(page.keys, ["backups//x", "backups/\u{1} a+b"]);
        assert_eq!(
            (page.prefixes, page.next_token),
            (vec!["backups/../".to_owned()], Some("t".into()))
        );
        // A service that does not know the setting returns keys unencoded.
        let plain = "<ListBucketResult><Contents><Key>a+b%20</Key></Contents></ListBucketResult>";
        let page = ListPage::read(&Bytes::from(plain)).unwrap();
        assert_eq!((page.keys, page.next_token), (vec!["a+b%20".to_owned()], None));
        assert_eq!(
            ListPage::read(&Bytes::from("<ListBucketResult/>")).unwrap(),
            ListPage::default()
        );
    }

    #[test]
    fn truncated_list_is_an_error() {
        for token in ["", "<NextContinuationToken></NextContinuationToken>"] {
            let page = format!(
                "<ListBucketResult><IsTruncated>true</IsTruncated>{token}\
                 <Contents><Key>backups/a/x</Key></Contents></ListBucketResult>"
            );
            let error = ListPage::read(&Bytes::from(page)).unwrap_err();
            assert!(error.message().contains("has no continuation token"), "{error}");
        }
    }

    #[test]
    fn response_that_is_no_list_is_refused_without_echoing_it() {
        for response in [
            "<!doctype html><html><body>hunter2</body></html>",
            "",
            "hunter2",
            "{\"a\":\"hunter2\"}",
        ] {
            let error = ListPage::read(&Bytes::from(response)).unwrap_err();
            assert_eq!(error.code(), Code::FailedPrecondition, "{response}");
            assert!(error.message().contains("not that of an S3 service"), "{error}");
            assert!(!error.message().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn percent_encoding_round_trips() {
        for text in ["a b", "a+b", "ü/%", "\u{1}\n", "a//b", ""] {
            for is_path in [true, false] {
                assert_eq!(percent_decode(&percent_encode(text, is_path)), text, "{text:?}");
            }
        }
        assert_eq!(percent_decode("100%"), "100%");
    }
}
