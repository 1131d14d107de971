//! Client of the API server that refuses changes while the fence is closed.

use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Method, Request, Response, header};
use kube::Client;
use kube::client::Body;
use tower_service::Service;

use super::Fence;

/// Client behind a fence.
pub(super) fn fenced_client(inner: Client, fence: Fence) -> Client {
    let namespace = inner.default_namespace().to_owned();
    Client::new(FencedClient { inner, fence }, namespace)
}

#[derive(Clone)]
struct FencedClient {
    inner: Client,
    fence: Fence,
}

impl Service<Request<Body>> for FencedClient {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, kube::Result<Response<Body>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<kube::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { inner, fence } = self.clone();
        async move {
            if is_mutating(&request) {
                fence.check().map_err(|closed| kube::Error::Service(Box::new(closed)))?;
            }
            inner.send(request).await
        }
        .boxed()
    }
}

/// True if a request may change something. Commands in pods are upgraded connections, whatever
/// their method.
fn is_mutating<B>(request: &Request<B>) -> bool {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    !reads || request.headers().contains_key(header::UPGRADE)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    /// Answers everything with an empty object.
    #[derive(Clone)]
    struct AlwaysOk;

    impl Service<Request<Body>> for AlwaysOk {
        type Response = Response<Body>;
        type Error = kube::Error;
        type Future = BoxFuture<'static, kube::Result<Response<Body>>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<kube::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            std::future::ready(Ok(Response::new(Body::from(b"{}".to_vec())))).boxed()
        }
    }

    #[test]
    fn only_read_requests_are_not_mutating() {
        for (method, upgrade, expected) in [
            (Method::GET, false, false),
            (Method::HEAD, false, false),
            (Method::GET, true, true),
            (Method::POST, false, true),
            (Method::PUT, false, true),
            (Method::PATCH, false, true),
            (Method::DELETE, false, true),
        ] {
            let mut request = Request::new(());
            *request.method_mut() = method.clone();
            if upgrade {
                let websocket = http::HeaderValue::from_static("websocket");
                request.headers_mut().insert(header::UPGRADE, websocket);
            }
            assert_eq!(is_mutating(&request), expected, "{method} {upgrade}");
        }
    }

    #[tokio::test]
    async fn closed_fence_allows_only_reads() {
        let fence = Fence::default();
        let maps: Api<ConfigMap> = Api::namespaced(fence.client(Client::new(AlwaysOk, "x")), "x");
        let write = async || {
            let empty = ConfigMap::default();
            let created = maps.create(&PostParams::default(), &empty).await.map(drop);
            let patch = Patch::Merge(json!({}));
            let patched = maps.patch("a", &PatchParams::default(), &patch).await.map(drop);
            let deleted = maps.delete("a", &DeleteParams::default()).await.map(drop);
            [created, patched, deleted]
        };
        for outcome in write().await {
            let kube::Error::Service(error) = outcome.unwrap_err() else { panic!("another error") };
            assert!(error.to_string().contains("no longer holds the Lease"), "{error}");
        }
        maps.get("a").await.unwrap();
        fence.open_until(Instant::now() + Duration::from_mins(1));
        for outcome in write().await {
            outcome.unwrap();
        }
    }
}
