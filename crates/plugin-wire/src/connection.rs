//! The connection to one plugin process.

use std::future::{Ready, ready};
use std::io;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use bowline_plugin::{Code, Error, Result};
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

/// Errors with a stack trace travel in trailers. hyper's limit of 16 KiB would lose even their
/// text; this is Go's limit.
const HEADER_LIST_MAX: u32 = 16 << 20;

/// Error of a call on a connection that was already lost: the call has not been sent.
#[derive(Debug, thiserror::Error)]
#[error("the connection to the plugin at {} is lost", path.display())]
pub(crate) struct ConnectionLost {
    path: PathBuf,
}

/// A connection to one plugin process. Cheap to clone; all clones share it.
///
/// The connection belongs to the process that was there when it was made. Once broken it stays
/// broken, and calls return `Unavailable`: it is never silently reconnected, since the same path
/// may belong to another process by then, which has not been initialised.
///
/// A connection has no time limits and sends no keepalive pings (Go plugins close the connection on
/// those). Callers limit the time of a call by dropping it.
#[derive(Clone, Debug)]
pub struct Connection {
    channel: Channel,
    message_limit: usize,
}

impl Connection {
    /// Maximum size of a message in either direction, in bytes, unless another limit is set.
    /// Objects of a bucket are sent in pieces; items are not, but the API server accepts none that
    /// is half as large.
    pub const MESSAGE_LIMIT: usize = 8 << 20;

    /// Connects to the unix socket that a plugin named in its handshake.
    pub async fn unix(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let cannot = |error: &dyn std::fmt::Display| {
            let text = format!("connecting to the plugin at {}: {error}", path.display());
            Error::new(Code::Unavailable, text)
        };
        let stream = UnixStream::connect(path).await.map_err(|error| cannot(&error))?;
        let once = SingleUseConnector { path: path.to_owned(), stream: Some(stream) };
        // Go's host sends this authority; a socket has none.
        let channel = Endpoint::from_static("http://unused")
            .http2_max_header_list_size(HEADER_LIST_MAX)
            .connect_with_connector(once)
            .await
            .map_err(|error| cannot(&error))?;
        Ok(Self { channel, message_limit: Self::MESSAGE_LIMIT })
    }

    /// The same connection with another message limit, in bytes.
    #[must_use]
    pub fn with_message_limit(self, message_limit: usize) -> Self {
        Self { message_limit, ..self }
    }

    /// Maximum size of a message in either direction.
    pub(crate) fn message_limit(&self) -> usize {
        self.message_limit
    }

    /// The channel for the generated clients.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

/// A connector that hands out one stream, once.
struct SingleUseConnector {
    path: PathBuf,
    stream: Option<UnixStream>,
}

impl Service<Uri> for SingleUseConnector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connection_lost = || {
            io::Error::new(io::ErrorKind::NotConnected, ConnectionLost { path: self.path.clone() })
        };
        ready(self.stream.take().map(TokioIo::new).ok_or_else(connection_lost))
    }
}
