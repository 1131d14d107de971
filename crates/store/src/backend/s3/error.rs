//! Errors of S3, with texts that say what to do.

use std::error::Error as _;

use bowline_plugin::{Code, Error};
use object_store::Error as S3Error;

/// Maximum length of quoted error text.
const MAX_TEXT: usize = 400;

/// Addresses from which object_store requests credentials when it has none, as they appear in its
/// errors.
const METADATA_SERVICE: [&str; 2] = ["://169.254.169.254/", "://[fd00:ec2::254]/"];

/// The error that users see. The caller knows the action and the object.
pub(super) fn user_error(bucket: &str, error: &S3Error) -> Error {
    let response = S3Response::of(error);
    user_error_of_kind(bucket, kind(error, &response), response.text)
}

/// The same for a response that was read here.
pub(super) fn user_error_from_response(bucket: &str, response: S3Response) -> Error {
    user_error_of_kind(
        bucket,
        kind_of_response(&response).unwrap_or(S3ErrorKind::Transient),
        response.text,
    )
}

fn user_error_of_kind(bucket: &str, kind: S3ErrorKind, text: String) -> Error {
    let (code, reason) = match (kind, text) {
        (S3ErrorKind::NoBucket, text) => {
            let hint = "create it, or correct `spec.objectStorage.bucket`";
            (Code::FailedPrecondition, format!("bucket `{bucket}` does not exist: {hint} ({text})"))
        }
        (S3ErrorKind::NotFound, text) => {
            (Code::NotFound, format!("the object does not exist ({text})"))
        }
        (S3ErrorKind::NoCredentials, text) => {
            let hint = "no credentials were found: neither in `spec.credential` nor in the \
                        server's environment nor in the metadata service of the cloud";
            (Code::Unauthenticated, format!("{hint} ({text})"))
        }
        (S3ErrorKind::Denied, text) => {
            let hint = "the credentials of the location do not allow it";
            (Code::PermissionDenied, format!("{hint} ({text})"))
        }
        (S3ErrorKind::Unauthenticated, text) => {
            let hint = "the credentials of the location are not accepted";
            (Code::Unauthenticated, format!("{hint} ({text})"))
        }
        (S3ErrorKind::Rejected, text) => (Code::FailedPrecondition, text),
        (S3ErrorKind::NotImplemented, text) => (Code::Unimplemented, text),
        (S3ErrorKind::Transient, text) => (Code::Unavailable, text),
    };
    Error::new(code, reason)
}

/// True if the bucket does not exist.
pub(super) fn is_missing_bucket(error: &S3Error) -> bool {
    matches!(kind(error, &S3Response::of(error)), S3ErrorKind::NoBucket)
}

/// True if the service does not implement the request.
pub(super) fn is_not_implemented(error: &S3Error) -> bool {
    matches!(kind(error, &S3Response::of(error)), S3ErrorKind::NotImplemented)
}

enum S3ErrorKind {
    NoBucket,
    /// No credentials were found, so the metadata service of the cloud was asked, in vain.
    NoCredentials,
    NotFound,
    Denied,
    Unauthenticated,
    /// A retry will fail as well.
    Rejected,
    NotImplemented,
    /// No connection, or a service that answers 5xx for longer than the retries last.
    Transient,
}

/// Some requests of object_store keep the status of a response, others have it only in their text.
fn kind(error: &S3Error, response: &S3Response) -> S3ErrorKind {
    if response.is_from_metadata_service {
        return S3ErrorKind::NoCredentials;
    }
    if let Some(kind) = kind_of_response(response) {
        return kind;
    }
    match error {
        S3Error::NotFound { .. } => S3ErrorKind::NotFound,
        S3Error::PermissionDenied { .. } => S3ErrorKind::Denied,
        S3Error::Unauthenticated { .. } => S3ErrorKind::Unauthenticated,
        S3Error::AlreadyExists { .. }
        | S3Error::Precondition { .. }
        | S3Error::NotModified { .. }
        | S3Error::InvalidPath { .. }
        | S3Error::UnknownConfigurationKey { .. } => S3ErrorKind::Rejected,
        S3Error::NotImplemented { .. } | S3Error::NotSupported { .. } => {
            S3ErrorKind::NotImplemented
        }
        _ => S3ErrorKind::Transient,
    }
}

fn kind_of_response(response: &S3Response) -> Option<S3ErrorKind> {
    match (response.code.as_deref(), response.status) {
        (Some("NoSuchBucket"), _) => Some(S3ErrorKind::NoBucket),
        (Some("NotImplemented"), _) | (_, Some(501)) => Some(S3ErrorKind::NotImplemented),
        (
            Some("InvalidAccessKeyId" | "ExpiredToken" | "InvalidToken" | "SignatureDoesNotMatch"),
            _,
        )
        | (_, Some(401)) => Some(S3ErrorKind::Unauthenticated),
        (Some("AccessDenied"), _) | (_, Some(403)) => Some(S3ErrorKind::Denied),
        (_, Some(404)) => Some(S3ErrorKind::NotFound),
        (_, Some(429)) => Some(S3ErrorKind::Transient),
        (_, Some(300..=499)) => Some(S3ErrorKind::Rejected),
        _ => None,
    }
}

/// The response of the service.
pub(super) struct S3Response {
    /// The status of its answer.
    pub(super) status: Option<u16>,
    /// S3's own code.
    pub(super) code: Option<String>,
    /// True if the error is not from S3, but from the service that serves credentials in a cloud.
    is_from_metadata_service: bool,
    /// For people, on one line. For a response in S3's format only code and message: the rest is
    /// long, and is about the request. For any other response nothing but its status: it may come
    /// from a service that only the server can reach, and a user who may write a location must not
    /// read that service through it.
    pub(super) text: String,
}

impl S3Response {
    /// An error in S3's format that was read here.
    pub(super) fn of_s3(code: String, text: String) -> Self {
        Self { status: None, code: Some(code), is_from_metadata_service: false, text }
    }

    /// An answer that was read here.
    pub(super) fn read(status: u16, content: &[u8]) -> Self {
        let content = String::from_utf8_lossy(content);
        let (code, text) = code_and_message(&content);
        let text = text.unwrap_or_else(|| non_s3_message(status));
        Self { status: Some(status), code, is_from_metadata_service: false, text }
    }

    fn of(error: &S3Error) -> Self {
        let full = error.to_string();
        let status = full
            .split_once("status code: ")
            .and_then(|(_, rest)| rest.get(..3).and_then(|digits| digits.parse::<u16>().ok()));
        let (code, text) = code_and_message(&full);
        let text = match (text, status) {
            (Some(text), _) => text,
            (None, Some(status)) => non_s3_message(status),
            (None, None) => truncate_text(&with_root_cause(error, &full)),
        };
        let is_of_metadata_service = METADATA_SERVICE.iter().any(|host| full.contains(host));
        Self { status, code, is_from_metadata_service: is_of_metadata_service, text }
    }
}

/// The code of an error in S3's format, and the reported message.
fn code_and_message(text: &str) -> (Option<String>, Option<String>) {
    let code = text_between(text, "<Code>", "</Code>").map(str::to_owned);
    let message = match (&code, text_between(text, "<Message>", "</Message>")) {
        (Some(code), Some(message)) => Some(truncate_text(&format!("{code}: {message}"))),
        (Some(code), None) => Some(truncate_text(code)),
        (None, _) => None,
    };
    (code, message)
}

/// The reported message for a response that is not in S3's format.
fn non_s3_message(status: u16) -> String {
    let named = http::StatusCode::from_u16(status).ok();
    let reason = named.and_then(|status| status.canonical_reason()).unwrap_or_default();
    format!("the server returned {} without an S3 error", format!("{status} {reason}").trim())
}

fn text_between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(begin)?;
    rest.split_once(end).map(|(inside, _)| inside)
}

/// Only the last error of the chain says why a connection failed.
fn with_root_cause(error: &S3Error, full: &str) -> String {
    let mut last = error.source();
    while let Some(next) = last.and_then(|link| link.source()) {
        last = Some(next);
    }
    match last.map(ToString::to_string) {
        Some(cause) if !full.contains(&cause) => format!("{cause} ({full})"),
        _ => full.to_owned(),
    }
}

fn truncate_text(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_for(text: &str) -> Error {
        let source = std::io::Error::other(text.to_owned()).into();
        user_error("b", &S3Error::Generic { store: "S3", source })
    }

    #[test]
    fn missing_credentials_are_distinguished_from_insufficient_ones() {
        let none = error_for(
            "Error performing PUT http://169.254.169.254/latest/api/token in 2ms - Server returned \
             non-2xx status code: 403 Forbidden: ",
        );
        assert_eq!(none.code(), Code::Unauthenticated, "{none}");
        assert!(none.to_string().contains("no credentials were found"), "{none}");
        let denied = error_for(
            "Error performing PUT https://s3.example.com/b/k - Server returned non-2xx status code: 403 \
             Forbidden: <Error><Code>AccessDenied</Code></Error>",
        );
        assert_eq!(denied.code(), Code::PermissionDenied, "{denied}");
    }
}
