use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, ObjectStore};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, future, stream};
use tonic::{Request, Response, Status, Streaming};

use super::invalid;
use super::registry::{Registry, panic_error};
use crate::chunk::{chunks, from_io, to_io};
use crate::proto::generated::{
    self, Bytes, CreateSignedUrlRequest, CreateSignedUrlResponse, DeleteObjectRequest, Empty,
    GetObjectRequest, ListCommonPrefixesRequest, ListCommonPrefixesResponse, ListObjectsRequest,
    ListObjectsResponse, ObjectExistsRequest, ObjectExistsResponse, ObjectStoreInitRequest,
    PutObjectRequest,
};
use crate::status::{from_error, to_error};

type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl generated::object_store_server::ObjectStore for Registry<dyn ObjectStore> {
    async fn init(&self, request: Request<ObjectStoreInitRequest>) -> Answer<Empty> {
        let request = request.into_inner();
        self.call(&request.plugin, |store| async move {
            store.init(&request.config).await?;
            Ok(Empty {})
        })
        .await
    }

    async fn put_object(&self, request: Request<Streaming<PutObjectRequest>>) -> Answer<Empty> {
        let mut messages = request.into_inner();
        let Some(first) = messages.message().await? else {
            // Velero sends nothing at all for an empty object, not even its name.
            return Err(from_error(invalid(
                "the stream ended before the bucket and key were sent",
            )));
        };
        self.call(&first.plugin, |store| async move {
            let rest = messages.map_ok(|message| message.body);
            let rest = rest.map_err(|status| to_io(to_error(status)));
            let body = stream::iter([Ok(first.body)]).chain(rest);
            let body = body.try_filter(|bytes| future::ready(!bytes.is_empty()));
            store.put_object(&first.bucket, &first.key, Box::pin(body)).await?;
            Ok(Empty {})
        })
        .await
    }

    async fn object_exists(
        &self,
        request: Request<ObjectExistsRequest>,
    ) -> Answer<ObjectExistsResponse> {
        let request = request.into_inner();
        self.call(&request.plugin, |store| async move {
            let exists = store.object_exists(&request.bucket, &request.key).await?;
            Ok(ObjectExistsResponse { exists })
        })
        .await
    }

    type GetObjectStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

    async fn get_object(
        &self,
        request: Request<GetObjectRequest>,
    ) -> Answer<Self::GetObjectStream> {
        let request = request.into_inner();
        self.call(&request.plugin, |store| async move {
            let body = store.get_object(&request.bucket, &request.key).await?;
            Ok(to_grpc_stream(body))
        })
        .await
    }

    async fn list_common_prefixes(
        &self,
        request: Request<ListCommonPrefixesRequest>,
    ) -> Answer<ListCommonPrefixesResponse> {
        let request = request.into_inner();
        self.call(&request.plugin, |store| async move {
            let (prefix, delimiter) = (&request.prefix, &request.delimiter);
            let prefixes = store.list_common_prefixes(&request.bucket, prefix, delimiter).await?;
            Ok(ListCommonPrefixesResponse { prefixes })
        })
        .await
    }

    async fn list_objects(
        &self,
        request: Request<ListObjectsRequest>,
    ) -> Answer<ListObjectsResponse> {
        let request = request.into_inner();
        self.call(&request.plugin, |store| async move {
            let keys = store.list_objects(&request.bucket, &request.prefix).await?;
            Ok(ListObjectsResponse { keys })
        })
        .await
    }

    async fn delete_object(&self, request: Request<DeleteObjectRequest>) -> Answer<Empty> {
        let request = request.into_inner();
        self.call(&request.plugin, |store| async move {
            store.delete_object(&request.bucket, &request.key).await?;
            Ok(Empty {})
        })
        .await
    }

    async fn create_signed_url(
        &self,
        request: Request<CreateSignedUrlRequest>,
    ) -> Answer<CreateSignedUrlResponse> {
        let request = request.into_inner();
        self.call(&request.plugin, |store| async move {
            let nanos = u64::try_from(request.ttl);
            let ttl = nanos.map_err(|_| invalid("the time to live is negative"))?;
            let ttl = Duration::from_nanos(ttl);
            let url = store.create_signed_url(&request.bucket, &request.key, ttl).await?;
            Ok(CreateSignedUrlResponse { url })
        })
        .await
    }
}

/// The content of an object as it is sent. The implementation is still running here, so it may also
/// panic here.
fn to_grpc_stream(body: ByteStream) -> Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>> {
    let pieces = AssertUnwindSafe(chunks(body)).catch_unwind();
    Box::pin(pieces.map(|piece| match piece {
        Ok(Ok(data)) => Ok(Bytes { data }),
        Ok(Err(error)) => Err(from_error(from_io(error))),
        Err(panic) => Err(from_error(panic_error(&*panic))),
    }))
}
