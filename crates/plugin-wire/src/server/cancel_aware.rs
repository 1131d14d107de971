//! Request bodies that distinguish cancellation from their regular end.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower_service::Service;

/// A service that never treats a cancelled request as complete.
///
/// tonic reads the reset of a call as the regular end of its messages. For an upload that would
/// mean storing half of an object as if it were the whole.
#[derive(Clone)]
pub(super) struct RejectCancelledBody<S>(pub(super) S);

impl<S> Service<Request<tonic::body::Body>> for RejectCancelledBody<S>
where
    S: Service<
            Request<CancelAwareBody>,
            Response = Response<tonic::body::Body>,
            Error = Infallible,
        >,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> S::Future {
        self.0.call(request.map(CancelAwareBody))
    }
}

impl<S: NamedService> NamedService for RejectCancelledBody<S> {
    const NAME: &'static str = S::NAME;
}

/// A body in which cancellation is an error like any other.
pub(super) struct CancelAwareBody(tonic::body::Body);

impl Body for CancelAwareBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.0).poll_frame(context);
        frame.map_err(|status| match status.code() {
            Code::Cancelled => Status::aborted("the server canceled the call"),
            _ => status,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
