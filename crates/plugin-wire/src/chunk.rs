//! Objects in pieces.

use std::io;

use bowline_plugin::{ByteStream, Code, Error};
use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _, stream};

/// Maximum size of a piece. Larger pieces are no faster and cost memory on both sides.
pub(crate) const MAX_CHUNK: usize = 256 << 10;

/// The same bytes, in non-empty pieces of at most [`MAX_CHUNK`].
pub(crate) fn chunks(body: ByteStream) -> impl Stream<Item = io::Result<Bytes>> + Send {
    body.map_ok(|bytes| stream::iter(split(bytes).map(Ok))).try_flatten()
}

fn split(mut bytes: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        let length = bytes.len().min(MAX_CHUNK);
        (length > 0).then(|| bytes.split_to(length))
    })
}

/// Converts an error of a plugin to one of a stream.
pub(crate) fn to_io(error: Error) -> io::Error {
    io::Error::other(error)
}

/// Converts an error of a stream; one that wraps a plugin's error becomes that error again.
pub(crate) fn from_io(error: io::Error) -> Error {
    error.downcast::<Error>().unwrap_or_else(|error| {
        let code = match error.kind() {
            io::ErrorKind::NotFound => Code::NotFound,
            io::ErrorKind::PermissionDenied => Code::PermissionDenied,
            _ => Code::Unknown,
        };
        Error::new(code, error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_pieces_are_split_and_empty_ones_dropped() {
        for (pieces, expected) in [
            (vec![], vec![]),
            (vec![0, 3, 0], vec![3]),
            (
                vec![MAX_CHUNK, MAX_CHUNK + 1, 2 * MAX_CHUNK, 5],
                vec![MAX_CHUNK, MAX_CHUNK, 1, MAX_CHUNK, MAX_CHUNK, 5],
            ),
        ] {
            let body = pieces.into_iter().map(|length| Ok(Bytes::from(vec![7; length])));
            let body: ByteStream = Box::pin(stream::iter(body.collect::<Vec<_>>()));
            let sent: Vec<Bytes> = chunks(body).try_collect().await.unwrap();
            assert_eq!(sent.iter().map(Bytes::len).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn plugin_error_survives_a_stream() {
        let error = Error::new(Code::DataLoss, "half of it is gone");
        assert_eq!(from_io(to_io(error.clone())), error);
        let error = io::Error::new(io::ErrorKind::NotFound, "no file");
        assert_eq!(from_io(error), Error::new(Code::NotFound, "no file"));
    }
}
