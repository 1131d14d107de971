use std::future::pending;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Config, Error, Result};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use tokio::sync::oneshot;

use super::{adapter, invalid};
use crate::chunk::{chunks, from_io, to_io};
use crate::proto::generated;
use crate::status::to_error;

adapter! {
    /// A [`bowline_plugin::ObjectStore`].
    ///
    /// If reading the content to store fails, the call is reset, so that the plugin cannot mistake
    /// the part that it has received for the whole; the returned error is that of the content. An
    /// error in the content of an object that is read is an [`Error`] inside the
    /// [`std::io::Error`].
    ObjectStore, generated::object_store_client::ObjectStoreClient
}

#[async_trait]
impl bowline_plugin::ObjectStore for ObjectStore {
    async fn init(&self, config: &Config) -> Result<()> {
        let request =
            generated::ObjectStoreInitRequest { plugin: self.plugin(), config: config.clone() };
        self.stub().init(request).await.map_err(to_error)?;
        Ok(())
    }

    async fn put_object(&self, bucket: &str, key: &str, body: ByteStream) -> Result<()> {
        let empty = generated::PutObjectRequest {
            plugin: self.plugin(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            body: Bytes::new(),
        };
        let (failed, failure) = oneshot::channel();
        let messages = put_messages(empty, body, failed);
        let mut stub = self.stub();
        tokio::select! {
            biased;
            // Returning here drops the call below, which resets it.
            Ok(error) = failure => Err(error),
            answer = stub.put_object(messages) => answer.map(|_| ()).map_err(to_error),
        }
    }

    async fn object_exists(&self, bucket: &str, key: &str) -> Result<bool> {
        let request = generated::ObjectExistsRequest {
            plugin: self.plugin(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        };
        let answer = self.stub().object_exists(request).await.map_err(to_error)?;
        Ok(answer.into_inner().exists)
    }

    async fn get_object(&self, bucket: &str, key: &str) -> Result<ByteStream> {
        let request = generated::GetObjectRequest {
            plugin: self.plugin(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        };
        let mut pieces = self.stub().get_object(request).await.map_err(to_error)?.into_inner();
        // Some servers report only here that the object is missing.
        let first = pieces.message().await.map_err(to_error)?;
        let rest = pieces.map_err(|status| to_io(to_error(status)));
        Ok(Box::pin(stream::iter(first.map(Ok)).chain(rest).map_ok(|piece| piece.data)))
    }

    async fn list_common_prefixes(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
    ) -> Result<Vec<String>> {
        let request = generated::ListCommonPrefixesRequest {
            plugin: self.plugin(),
            bucket: bucket.to_owned(),
            delimiter: delimiter.to_owned(),
            prefix: prefix.to_owned(),
        };
        let answer = self.stub().list_common_prefixes(request).await.map_err(to_error)?;
        Ok(answer.into_inner().prefixes)
    }

    async fn list_objects(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        let request = generated::ListObjectsRequest {
            plugin: self.plugin(),
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        };
        let answer = self.stub().list_objects(request).await.map_err(to_error)?;
        Ok(answer.into_inner().keys)
    }

    async fn delete_object(&self, bucket: &str, key: &str) -> Result<()> {
        let request = generated::DeleteObjectRequest {
            plugin: self.plugin(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        };
        self.stub().delete_object(request).await.map_err(to_error)?;
        Ok(())
    }

    async fn create_signed_url(&self, bucket: &str, key: &str, ttl: Duration) -> Result<String> {
        let request = generated::CreateSignedUrlRequest {
            plugin: self.plugin(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            ttl: i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX),
        };
        let url = self.stub().create_signed_url(request).await.map_err(to_error)?.into_inner().url;
        Some(url)
            .filter(|url| !url.is_empty())
            .ok_or_else(|| invalid(&self.plugin, "the address is empty"))
    }
}

/// The content in pieces; at least one, so that an empty object has one too. An error is sent to
/// `failed`, and the stream then stays pending: its end would look like the end of the object.
fn put_messages(
    empty: generated::PutObjectRequest,
    body: ByteStream,
    failed: oneshot::Sender<Error>,
) -> impl Stream<Item = generated::PutObjectRequest> + Send {
    let start = Some((Box::pin(chunks(body)), failed, true));
    stream::unfold(start, move |state| {
        let empty = empty.clone();
        async move {
            let (mut body, failed, first) = state?;
            match body.next().await {
                Some(Ok(bytes)) => {
                    let message = generated::PutObjectRequest { body: bytes, ..empty };
                    Some((message, Some((body, failed, false))))
                }
                Some(Err(error)) => {
                    // The receiver is gone if the call has just ended for another reason.
                    let _ = failed.send(from_io(error));
                    pending().await
                }
                None => first.then_some((empty, None)),
            }
        }
    })
}
