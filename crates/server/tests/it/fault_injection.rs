//! A proxy between a server and its cluster that inspects each request and lets some fail.

use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use kube::Client;
use kube::client::Body;

/// A client whose selected requests fail, as if the API server were busy.
pub(crate) fn faulty_client(
    inner: Client,
    fails: impl Fn(&Method, &Uri) -> bool + Send + Sync + 'static,
) -> Client {
    let namespace = inner.default_namespace().to_owned();
    let fails = Arc::new(fails);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inner, fails) = (inner.clone(), Arc::clone(&fails));
        async move {
            if !fails(request.method(), request.uri()) {
                return inner.send(request).await;
            }
            let mut busy = Response::new(Body::from(b"busy".to_vec()));
            *busy.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            Ok(busy)
        }
    });
    Client::new(service, namespace)
}

/// A client whose API server has another clock, as its answers about its version say.
pub(crate) fn dated_client(inner: Client, date: &'static str) -> Client {
    let namespace = inner.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let inner = inner.clone();
        async move {
            let is_version = request.uri().path() == "/version";
            let mut answer = inner.send(request).await?;
            if is_version {
                answer.headers_mut().insert(header::DATE, HeaderValue::from_static(date));
            }
            Ok::<_, kube::Error>(answer)
        }
    });
    Client::new(service, namespace)
}
