//! An installation for unit tests, with a function as its API server.

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;

use crate::installation::Installation;

/// An installation whose API server answers a query of any path with this status code and body.
pub(crate) fn installation_that_answers(
    answer: impl Fn(&str) -> (u16, Value) + Clone + Send + 'static,
) -> Installation {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (status, body) = answer(request.uri().query().unwrap_or_default());
        let response =
            Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
        std::future::ready(response)
    });
    Installation::with_client(Client::new(service, "velero"), "velero")
}
