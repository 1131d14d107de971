//! Something between a server and its cluster that sees each request, and lets some fail.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use kube::Client;
use kube::client::Body;
use tower_service::Service;

/// A client whose requests fail where `fails` says so, as if the API server were busy.
pub(crate) fn faulty_client(
    inner: Client,
    fails: impl Fn(&Method, &Uri) -> bool + Send + Sync + 'static,
) -> Client {
    let namespace = inner.default_namespace().to_owned();
    Client::new(FaultyService { inner, fails: Arc::new(fails) }, namespace)
}

type FailurePredicate = dyn Fn(&Method, &Uri) -> bool + Send + Sync;

#[derive(Clone)]
struct FaultyService {
    inner: Client,
    fails: Arc<FailurePredicate>,
}

impl Service<Request<Body>> for FaultyService {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, kube::Result<Response<Body>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<kube::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if (self.fails)(request.method(), request.uri()) {
            let mut busy = Response::new(Body::from(b"busy".to_vec()));
            *busy.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return std::future::ready(Ok(busy)).boxed();
        }
        let inner = self.inner.clone();
        async move { inner.send(request).await }.boxed()
    }
}

/// A client whose API server has another clock, as its answers about its version say.
pub(crate) fn dated_client(inner: Client, date: &'static str) -> Client {
    let namespace = inner.default_namespace().to_owned();
    Client::new(DatedService { inner, date }, namespace)
}

#[derive(Clone)]
struct DatedService {
    inner: Client,
    date: &'static str,
}

impl Service<Request<Body>> for DatedService {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, kube::Result<Response<Body>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<kube::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (inner, date) = (self.inner.clone(), self.date);
        let is_version = request.uri().path() == "/version";
        async move {
            let mut answer = inner.send(request).await?;
            if is_version {
                answer.headers_mut().insert(header::DATE, HeaderValue::from_static(date));
            }
            Ok(answer)
        }
        .boxed()
    }
}
