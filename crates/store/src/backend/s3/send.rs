//! Sending of one request, and its interruption when writing is no longer permitted.
//!
//! `object_store` retries a request for minutes, a connection can take seconds to be made, and a
//! body to be sent. A server whose lease ends meanwhile must not continue. So a request that
//! changes something checks the [`Permit`] each time before it proceeds, and its body checks it for
//! each piece that the connection takes. S3 discards a request that breaks off before its end.
//!
//! The same clients fetch credentials, in part with `POST` and `PUT`: from STS, or from the
//! machine. Without them nothing could be read and no upload aborted, and fetching them changes
//! nothing. So only requests to the bucket count.
//!
//! Data that the system has accepted for sending cannot be recalled.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::poll_fn;
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, SizeHint};
use object_store::client::{
    HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use reqwest::{Client, Url};

use crate::backend::Permit;

/// Number of bytes of a body that are sent between two checks.
const PERMIT_CHECK_CHUNK: usize = 64 << 10;
/// Part of the query of a request that aborts an upload.
const UPLOAD_ID_QUERY: &str = "uploadId=";

/// A client that changes nothing in a bucket without a permit.
#[derive(Debug)]
pub(super) struct PermittedClient {
    pub(super) client: Client,
    /// The common prefix of the addresses of all objects in the bucket.
    pub(super) bucket: Url,
    pub(super) permit: Permit,
}

#[async_trait]
impl HttpService for PermittedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = Url::parse(&parts.uri.to_string());
        let url = url.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let needs_no_permit = !changes_bucket(&self.bucket, &parts.method, &url);
        let permit = if needs_no_permit { Permit::default() } else { self.permit.clone() };
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        if body.content_length() > 0 {
            let body = PermittedBody { body, unsent: Bytes::new(), permit: permit.clone() };
            *request.body_mut() = Some(reqwest::Body::wrap(body));
        }
        // Making a connection, and everything else before the request is sent on it, also happens
        // in here.
        let mut sent = pin!(self.client.execute(request));
        let response = poll_fn(|context| match permit.check() {
            Ok(()) => sent.as_mut().poll(context).map_err(to_http_error),
            Err(denied) => Poll::Ready(Err(HttpError::new(HttpErrorKind::Unknown, denied))),
        });
        let (parts, body) = http::Response::from(response.await?).into_parts();
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body.map_err(to_http_error))))
    }
}

/// True if a request may change something in a bucket. Aborting an upload removes only invisible
/// data.
fn changes_bucket(bucket: &Url, method: &Method, url: &Url) -> bool {
    let query = url.query().unwrap_or_default();
    match *method {
        Method::GET | Method::HEAD => false,
        Method::DELETE if query.split('&').any(|part| part.starts_with(UPLOAD_ID_QUERY)) => false,
        _ => is_in_bucket(bucket, url),
    }
}

/// True if an address is that of a bucket, or of something in it.
fn is_in_bucket(bucket: &Url, url: &Url) -> bool {
    let base = bucket.path().trim_end_matches('/');
    let rest = url.path().strip_prefix(base);
    url.host() == bucket.host()
        && url.port_or_known_default() == bucket.port_or_known_default()
        && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A body in pieces. It breaks off when the permit is denied.
struct PermittedBody {
    body: HttpRequestBody,
    /// The unsent rest of the last piece of the body.
    unsent: Bytes,
    permit: Permit,
}

impl Body for PermittedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Err(denied) = self.permit.check() {
            return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Unknown, denied))));
        }
        while self.unsent.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                // There are no trailers.
                Some(Ok(frame)) => self.unsent = frame.into_data().unwrap_or_default(),
            }
        }
        let length = self.unsent.len().min(PERMIT_CHECK_CHUNK);
        Poll::Ready(Some(Ok(Frame::data(self.unsent.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = u64::try_from(self.unsent.len()).unwrap_or(u64::MAX);
        let total = self.body.size_hint().exact().and_then(|body| body.checked_add(rest));
        total.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

/// An error of `object_store`, which decides by its kind whether to retry.
fn to_http_error(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_decode() {
        HttpErrorKind::Decode
    } else {
        let causes =
            std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
        causes.into_iter().find_map(error_kind_of_cause).unwrap_or(HttpErrorKind::Unknown)
    };
    // The code that retries reports the address.
    HttpError::new(kind, error.without_url())
}

/// The kind of error that a cause indicates, by how far the request has come.
fn error_kind_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<HttpErrorKind> {
    use std::io::ErrorKind as Io;
    if let Some(error) = cause.downcast_ref::<hyper::Error>() {
        return if error.is_timeout() {
            Some(HttpErrorKind::Timeout)
        // The last one: the connection was gone before the request was sent on it.
        } else if error.is_closed()
            || error.is_incomplete_message()
            || error.is_body_write_aborted()
            || error.is_canceled()
        {
            Some(HttpErrorKind::Request)
        } else {
            None
        };
    }
    match cause.downcast_ref::<std::io::Error>()?.kind() {
        Io::TimedOut => Some(HttpErrorKind::Timeout),
        Io::ConnectionAborted | Io::ConnectionReset | Io::BrokenPipe | Io::UnexpectedEof => {
            Some(HttpErrorKind::Interrupted)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use object_store::PutPayload;

    use super::*;
    use crate::backend::PermitDenied;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn reading_and_aborting_an_upload_need_no_permit() {
        for (method, query, expected) in [
            (Method::GET, "", false),
            (Method::HEAD, "", false),
            (Method::PUT, "", true),
            (Method::PUT, "?partNumber=1&uploadId=x", true),
            (Method::POST, "?uploads", true),
            (Method::POST, "?uploadId=x", true),
            (Method::DELETE, "", true),
            (Method::DELETE, "?notUploadId=x", true),
            (Method::DELETE, "?uploadId=x", false),
        ] {
            let bucket = url("http://localhost/bucket");
            let request = url(&format!("http://localhost/bucket/key{query}"));
            assert_eq!(changes_bucket(&bucket, &method, &request), expected, "{method} {query}");
        }
    }

    #[test]
    fn only_requests_to_the_bucket_need_a_permit() {
        for (bucket, request, expected) in [
            ("https://host/b", "https://host/b/key", true),
            ("https://host/b", "https://host/b?delete", true),
            ("https://host/b", "https://HOST:443/b/key", true),
            ("https://host/base/b", "https://host/base/b/key", true),
            ("https://b.host", "https://b.host/key", true),
            ("https://b.host", "https://b.host/", true),
            ("http://[::1]:9000/b", "http://[::1]:9000/b/key", true),
            // STS, at AWS and at a compatible service; and the machine.
            ("https://b.s3.eu-west-1.amazonaws.com", "https://sts.eu-west-1.amazonaws.com/", false),
            ("https://s3.eu-west-1.amazonaws.com/b", "https://sts.eu-west-1.amazonaws.com/", false),
            ("https://host/b", "https://host/?Action=AssumeRoleWithWebIdentity", false),
            ("https://b.host", "http://169.254.169.254/latest/api/token", false),
            ("https://host/b", "https://host/bc/key", false),
            ("http://host:9000/b", "http://host:9001/b/key", false),
        ] {
            let (bucket, request) = (url(bucket), url(request));
            for method in [Method::PUT, Method::POST, Method::DELETE] {
                assert_eq!(
                    changes_bucket(&bucket, &method, &request),
                    expected,
                    "{method} {request}"
                );
            }
            assert!(!changes_bucket(&bucket, &Method::GET, &request), "{request}");
        }
    }

    #[tokio::test]
    async fn body_is_cut_off_when_the_permit_ends() {
        let checks = Arc::new(AtomicUsize::new(0));
        let permit = Permit::new(move || match checks.fetch_add(1, Ordering::SeqCst) {
            0..4 => Ok(()),
            _ => Err(PermitDenied("over".to_owned())),
        });
        let payload = PutPayload::from(Bytes::from(vec![0; 10 * PERMIT_CHECK_CHUNK]));
        let mut body = PermittedBody { body: payload.into(), unsent: Bytes::new(), permit };
        let mut sent = 0;
        let error = loop {
            let remaining = 10 * PERMIT_CHECK_CHUNK - sent;
            assert_eq!(body.size_hint().exact(), Some(remaining as u64));
            match body.frame().await.expect("it is not at its end") {
                Ok(frame) => sent += frame.into_data().unwrap().len(),
                Err(error) => break error,
            }
        };
        assert_eq!(sent, 4 * PERMIT_CHECK_CHUNK);
        assert!(error.to_string().contains("over"), "{error}");
    }
}
